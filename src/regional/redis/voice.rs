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

/// How many entries one answer has at most.
const ENTRIES_READ_MAX: usize = 16;

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

    /// The entries of the feed after a place. Waits for one for so long if there is none. For connections that serve nothing
    /// else ([`Redis::start_feed`]).
    pub(crate) async fn listen(&self, after: FeedPlace, wait: Duration) -> Result<Vec<FeedItem>, OriginError> {
        let mut read = redis::cmd("XREAD");
        // 0 would mean for ever.
        read.arg("COUNT").arg(ENTRIES_READ_MAX).arg("BLOCK").arg(wait.as_millis().max(1) as u64);
        read.arg("STREAMS").arg(voice_key("feed")).arg(format!("{}-{}", after.ms, after.number));
        let value = self.command(Lane::Feed, &voice_key("feed"), &read, wait * 2).await?;
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

fn item(entry: Value) -> Option<FeedItem> {
    let Value::Array(parts) = entry else { return None };
    let [Value::BulkString(id), Value::Array(fields)] = <[Value; 2]>::try_from(parts).ok()? else { return None };
    let [Value::BulkString(_), Value::BulkString(speaker), Value::BulkString(_), Value::BulkString(body)] =
        <[Value; 4]>::try_from(fields).ok()?
    else {
        return None;
    };
    let (ms, number) = std::str::from_utf8(&id).ok()?.split_once('-')?;
    let place = FeedPlace { ms: ms.parse().ok()?, number: number.parse().ok()? };
    Some(FeedItem { place, speaker: process(&speaker)?, body })
}
