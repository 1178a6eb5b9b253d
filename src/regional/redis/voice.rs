//! The calls of a region's voice, as Redis understands them: `scripts/voice.lua`, and reading the feed as it grows.

use std::time::Duration;

use redis::Value;

use crate::regional::call::ProcessId;
use crate::regional::redis::codec::VERSION;
use crate::regional::redis::{Lane, OriginError, Redis, Script};
use crate::regional::voice::{
    FEED_KEPT, FEED_KEPT_MS, FeedItem, FeedPlace, LEASE_MS, LeaseWish, MENTIONS_KEPT_MS, MENTIONS_MAX,
    MENTIONS_TAKEN_MAX, VoiceCall, VoiceReply,
};

static VOICE: Script = Script::new(include_str!("scripts/voice.lua"));

/// How long to wait for an entry of the feed before asking again.
pub(super) const LISTEN_WAIT: Duration = Duration::from_secs(1);
/// How many entries one answer has at most.
const ENTRIES_READ_MAX: usize = 16;

/// In place of a speaker that can't be read. Processes have random names.
const UNKNOWN: ProcessId = ProcessId(0);

/// The name of one of the keys. In a Cluster all of them are in one slot.
pub(super) fn voice_key(what: &str) -> Vec<u8> {
    format!("tidegate:{VERSION}:{what}:{{tidegate:{VERSION}:exchange}}").into_bytes()
}

impl Redis {
    /// Makes a call of the region's voice.
    pub(crate) async fn speak(&self, call: &VoiceCall, within: Duration) -> Result<VoiceReply, OriginError> {
        let keys = ["voice", "mentions", "feed"].map(voice_key);
        let args = arguments(call);
        let value = self.script(Lane::Replays, &VOICE, &keys, &args, within).await?;
        reply(value).ok_or(OriginError::BadReply)
    }

    /// The entries of the feed after a place. Waits for one for a second if there is none. For connections that serve nothing
    /// else ([`Redis::start_feed`]).
    pub(crate) async fn listen(&self, after: FeedPlace) -> Result<Vec<FeedItem>, OriginError> {
        let mut read = redis::cmd("XREAD");
        // 0 would mean for ever.
        read.arg("COUNT").arg(ENTRIES_READ_MAX).arg("BLOCK").arg(LISTEN_WAIT.as_millis() as u64);
        read.arg("STREAMS").arg(voice_key("feed")).arg(format!("{}-{}", after.ms, after.number));
        let value = self.command(Lane::Feed, &voice_key("feed"), &read, LISTEN_WAIT * 2).await?;
        items(value).ok_or(OriginError::BadReply)
    }
}

fn arguments(call: &VoiceCall) -> Vec<Vec<u8>> {
    let wish = match call.lease {
        LeaseWish::Nothing => "nothing",
        LeaseWish::Hold => "hold",
        LeaseWish::GiveUp => "give up",
    };
    let numbers = [
        LEASE_MS,
        MENTIONS_MAX as u64,
        MENTIONS_TAKEN_MAX as u64,
        MENTIONS_KEPT_MS,
        FEED_KEPT as u64,
        FEED_KEPT_MS,
        call.mentions.len() as u64,
    ];
    let head = [call.process.to_string(), wish.to_owned()].into_iter().chain(numbers.map(|number| number.to_string()));
    let bodies = call.mentions.iter().chain(&call.entries).cloned();
    head.map(String::into_bytes).chain(bodies).collect()
}

/// Reads a process as scripts are told it. `None` if it is no such name.
fn process(name: &[u8]) -> Option<ProcessId> {
    u64::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok().map(ProcessId)
}

fn reply(value: Value) -> Option<VoiceReply> {
    let Value::Array(parts) = value else { return None };
    let [Value::BulkString(speaker), Value::Int(mentioned), Value::Array(mentions)] =
        <[Value; 3]>::try_from(parts).ok()?
    else {
        return None;
    };
    let speaker = if speaker.is_empty() { None } else { Some(process(&speaker)?) };
    let bytes = |value| if let Value::BulkString(bytes) = value { Some(bytes) } else { None };
    let mentions = mentions.into_iter().map(bytes).collect::<Option<Vec<_>>>()?;
    Some(VoiceReply { speaker, mentioned: usize::try_from(mentioned).ok()?, mentions })
}

/// The entries of the only stream that was asked for. No stream: no entry has come.
fn items(value: Value) -> Option<Vec<FeedItem>> {
    let entries = match value {
        Value::Nil => return Some(Vec::new()),
        Value::Array(streams) => match streams.into_iter().next()? {
            Value::Array(stream) => stream.into_iter().nth(1)?,
            _ => return None,
        },
        Value::Map(streams) => streams.into_iter().next()?.1,
        _ => return None,
    };
    let Value::Array(entries) = entries else { return None };
    entries.into_iter().map(item).collect()
}

/// `None` if nobody could say where it stands. One that says something else than a speaker does keeps its place, and has a
/// body that is no entry: whoever hears it knows that it has missed something, and goes on after it.
fn item(entry: Value) -> Option<FeedItem> {
    let Value::Array(parts) = entry else { return None };
    let mut parts = parts.into_iter();
    let Value::BulkString(id) = parts.next()? else { return None };
    let (ms, number) = std::str::from_utf8(&id).ok()?.split_once('-')?;
    let place = FeedPlace { ms: ms.parse().ok()?, number: number.parse().ok()? };
    let (speaker, body) = parts.next().and_then(spoken).unwrap_or((UNKNOWN, Vec::new()));
    Some(FeedItem { place, speaker, body })
}

/// Who says what: the fields of an entry, by name, whatever else there is.
fn spoken(fields: Value) -> Option<(ProcessId, Vec<u8>)> {
    let Value::Array(fields) = fields else { return None };
    let (mut speaker, mut body) = (None, None);
    let mut fields = fields.into_iter();
    while let (Some(Value::BulkString(name)), Some(Value::BulkString(value))) = (fields.next(), fields.next()) {
        match name.as_slice() {
            b"s" => speaker = process(&value),
            b"b" => body = Some(value),
            _ => {}
        }
    }
    Some((speaker?, body?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn entry(id: &str, fields: &[&str]) -> Value {
        Value::Array(vec![text(id), Value::Array(fields.iter().map(|field| text(field)).collect())])
    }

    fn read(entries: Vec<Value>) -> Option<Vec<FeedItem>> {
        items(Value::Array(vec![Value::Array(vec![text("feed"), Value::Array(entries)])]))
    }

    /// One entry with other fields made the whole answer unreadable, and was read again and again.
    #[test]
    fn an_odd_entry_of_the_feed_keeps_its_place_and_is_gone_past() {
        let item = |number: u64, speaker: ProcessId, body: &str| FeedItem {
            place: FeedPlace { ms: 7, number },
            speaker,
            body: body.into(),
        };
        let found = read(vec![
            entry("7-0", &["s", "00000000000000ff", "b", "one"]),
            entry("7-1", &["b", "two", "later", "x", "s", "00000000000000ff"]),
            entry("7-2", &["s", "nobody", "b", "three"]),
            entry("7-3", &["s", "00000000000000ff"]),
            entry("7-4", &["b"]),
            Value::Array(vec![text("7-5"), Value::Nil]),
            entry("7-6", &["s", "00000000000000ff", "b", "four"]),
        ]);
        let speaker = ProcessId(255);
        let odd = |number: u64| item(number, UNKNOWN, "");
        let expected = [
            item(0, speaker, "one"),
            item(1, speaker, "two"),
            odd(2),
            odd(3),
            odd(4),
            odd(5),
            item(6, speaker, "four"),
        ];
        assert_eq!(found, Some(expected.to_vec()));
        assert_eq!(read(vec![entry("seven", &["s", "00000000000000ff", "b", "one"])]), None);
        assert_eq!(items(Value::Nil), Some(Vec::new()));
    }
}
