//! Lease, mentions and feed, as `redis/scripts/voice.lua` keeps them.

use std::collections::VecDeque;

use crate::regional::call::ProcessId;
use crate::regional::model::Origin;
use crate::regional::voice::{
    FEED_KEPT, FeedItem, FeedPlace, LEASE_MS, LeaseWish, MENTIONS_KEPT_MS, MENTIONS_MAX, MENTIONS_TAKEN_MAX, VoiceCall,
    VoiceReply,
};

/// What the origin keeps for the region's voice.
#[derive(Clone, Debug, Default)]
pub(super) struct VoiceKeys {
    /// Who speaks, and until when.
    lease: Option<(ProcessId, u64)>,
    mentions: VecDeque<Vec<u8>>,
    /// When the mentions expire.
    mentions_until_ms: u64,
    feed: VecDeque<FeedItem>,
}

impl Origin {
    /// Serves a call at a time of the origin's own clock.
    pub(crate) fn speak(&mut self, call: &VoiceCall, time_ms: u64) -> VoiceReply {
        let keys = &mut self.voice;
        keys.lease = keys.lease.filter(|(_, until_ms)| time_ms < *until_ms);
        if keys.mentions_until_ms <= time_ms {
            keys.mentions.clear();
        }
        let holder = keys.lease.map(|(holder, _)| holder);
        if call.lease == LeaseWish::Hold && holder.is_none_or(|holder| holder == call.process) {
            keys.lease = Some((call.process, time_ms + LEASE_MS));
        }
        let speaker = keys.lease.map(|(holder, _)| holder);
        if speaker != Some(call.process) || call.lease == LeaseWish::Nothing {
            let room = MENTIONS_MAX.saturating_sub(keys.mentions.len());
            let mentioned = call.mentions.len().min(room);
            keys.mentions.extend(call.mentions[..mentioned].iter().cloned());
            if mentioned > 0 {
                keys.mentions_until_ms = time_ms + MENTIONS_KEPT_MS;
            }
            return VoiceReply { speaker, mentioned, mentions: Vec::new() };
        }
        for body in &call.entries {
            let last = keys.feed.back().map_or(FeedPlace::default(), |item| item.place);
            let now = FeedPlace { ms: time_ms, number: 0 };
            let place = if now > last { now } else { FeedPlace { number: last.number + 1, ..last } };
            keys.feed.push_back(FeedItem { place, speaker: call.process, body: body.clone() });
            if keys.feed.len() > FEED_KEPT {
                keys.feed.pop_front();
            }
        }
        if call.lease == LeaseWish::GiveUp {
            // What was mentioned is for the next speaker.
            keys.lease = None;
            return VoiceReply { speaker: None, mentioned: 0, mentions: Vec::new() };
        }
        let taken = keys.mentions.len().min(MENTIONS_TAKEN_MAX);
        let mentions = keys.mentions.drain(..taken).collect();
        VoiceReply { speaker: keys.lease.map(|(holder, _)| holder), mentioned: 0, mentions }
    }

    /// The entries after a place.
    pub(crate) fn feed_after(&self, place: FeedPlace) -> Vec<FeedItem> {
        self.voice.feed.iter().filter(|item| item.place > place).cloned().collect()
    }
}
