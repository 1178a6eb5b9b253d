//! Which primary serves which slots, as a node of a Cluster tells it, and where a node sends what it does not serve.

use redis::{Value, from_redis_value};

use crate::regional::node_map::SLOTS;
use crate::regional::redis::error::OriginError;
use crate::regional::redis::link::Link;
use crate::regional::redis::settings::address::RedisNode;

/// A range of slots, both ends in it, and its primary.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotRange {
    /// The first of them.
    pub first: u16,
    /// The last of them.
    pub last: u16,
    /// Who serves them.
    pub primary: RedisNode,
}

/// Asks a node who serves what. A node that does not know its own address is where it was reached.
pub(super) async fn read_slots(link: &Link, asked: &RedisNode) -> Result<Vec<SlotRange>, OriginError> {
    let answer = link.query(&redis::cmd("CLUSTER").arg("SLOTS").to_owned()).await?;
    let mut ranges = parse_slots(answer, &asked.host).ok_or(OriginError::BadReply)?;
    if ranges.is_empty() {
        return Err(OriginError::Refused { code: "CLUSTERDOWN".into(), text: "no node has any slots".into() });
    }
    ranges.sort_unstable();
    Ok(ranges)
}

/// Each range lists its two ends and then its servers, the primary first.
fn parse_slots(answer: Value, asked: &str) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = answer else { return None };
    let range = |range: Value| {
        let Value::Array(range) = range else { return None };
        let mut fields = range.into_iter();
        let (first, last) = (number(fields.next()?)?, number(fields.next()?)?);
        let Value::Array(primary) = fields.next()? else { return None };
        let mut fields = primary.into_iter();
        let host: Option<String> = from_redis_value(fields.next()?).ok()?;
        let primary =
            RedisNode { host: host_or(host.as_deref().unwrap_or_default(), asked), port: number(fields.next()?)? };
        (first <= last && last < SLOTS).then_some(SlotRange { first, last, primary })
    };
    ranges.into_iter().map(range).collect()
}

fn number(value: Value) -> Option<u16> {
    from_redis_value(value).ok()
}

/// A host that is empty or unknown is that of the node that was asked.
fn host_or(host: &str, asked: &str) -> String {
    if matches!(host, "" | "?") { asked.to_owned() } else { host.to_owned() }
}

/// Where a node sends a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// The other has the slot by now.
    Moved { slot: u16, to: RedisNode },
    /// The slot is moving to the other, and this key is there already, or nowhere yet.
    Ask { to: RedisNode },
}

impl Redirection {
    /// Where an answer sends the call that the node `asked` was asked, if it sends it anywhere.
    pub(super) fn of<T>(answer: &Result<T, OriginError>, asked: &RedisNode) -> Option<Redirection> {
        let Err(OriginError::Refused { code, text }) = answer else { return None };
        let (slot, address) = text.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        let to = RedisNode { host: host_or(host, &asked.host), port: port.parse().ok()? };
        match code.as_str() {
            "MOVED" => Some(Redirection::Moved { slot: slot.parse().ok()?, to }),
            "ASK" => Some(Redirection::Ask { to }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> RedisNode {
        RedisNode { host: host.into(), port }
    }

    #[test]
    fn ranges_name_their_primaries() {
        let text = |text: &str| Value::BulkString(text.into());
        let server =
            |host: Value, port: i64| Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
        let range = |first: i64, last: i64, servers: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], servers].concat())
        };
        let answer = Value::Array(vec![
            range(0, 99, vec![server(text("10.0.0.1"), 6379), server(text("10.0.0.2"), 6379)]),
            range(100, 16_383, vec![server(Value::Nil, 7000)]),
            range(7, 7, vec![server(text("?"), 7001)]),
        ]);
        let found = parse_slots(answer, "asked").unwrap();
        let expected =
            [(0, 99, node("10.0.0.1", 6379)), (100, 16_383, node("asked", 7000)), (7, 7, node("asked", 7001))];
        assert_eq!(found, expected.map(|(first, last, primary)| SlotRange { first, last, primary }));
        assert_eq!(parse_slots(Value::Array(vec![range(0, 16_384, vec![server(text("a"), 1)])]), "asked"), None);
        assert_eq!(parse_slots(Value::Array(vec![range(0, 1, vec![])]), "asked"), None);
        assert_eq!(parse_slots(Value::Nil, "asked"), None);
    }

    #[test]
    fn a_redirection_names_another_node() {
        let asked = node("10.0.0.1", 6379);
        let refused = |code: &str, text: &str| {
            let answer: Result<(), _> = Err(OriginError::Refused { code: code.into(), text: text.into() });
            Redirection::of(&answer, &asked)
        };
        let moved = |host: &str| Some(Redirection::Moved { slot: 3999, to: node(host, 6381) });
        assert_eq!(refused("MOVED", "3999 127.0.0.1:6381"), moved("127.0.0.1"));
        assert_eq!(refused("MOVED", "3999 :6381"), moved("10.0.0.1"));
        assert_eq!(refused("MOVED", "3999 2001:db8::1:6381"), moved("2001:db8::1"));
        assert_eq!(refused("ASK", "3999 redis-3:6381"), Some(Redirection::Ask { to: node("redis-3", 6381) }));
        assert_eq!([refused("TRYAGAIN", "3999 a:1"), refused("MOVED", "3999")], [None, None]);
        assert_eq!(Redirection::of(&Ok(()), &asked), None);
    }
}
