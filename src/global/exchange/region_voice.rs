//! What an exchange keeps to speak for its region, or to follow the process that does.

use std::collections::VecDeque;

use crate::clock::Now;
use crate::global::feed::{FeedEntry, RecentSums};
use crate::global::mentions::SpokenFor;
use crate::global::row::CellName;
use crate::global::spoken_cells::SpokenCells;
use crate::global::voice::Voice;
use crate::regional::call::ProcessId;
use crate::regional::voice::{FEED_KEPT, FeedPlace};

/// How often a process looks for something to mention: so that handing it over costs a small part of an interval.
pub(super) const MENTION_US: u64 = 200_000;
/// How often the speaker gives a sign of life at least.
const LIFE_US: u64 = 1_000_000;

/// See the top of this file.
#[derive(Debug)]
pub(super) struct RegionVoice {
    /// Who speaks.
    pub lease: Voice,
    /// A call is under way: the next one waits for its end.
    pub is_talking: bool,
    /// The lease is to be given up with the next call.
    pub gives_up: bool,
    /// What the speaker publishes for others.
    pub spoken: SpokenCells,
    /// What a follower leaves to the speaker.
    pub spoken_for: SpokenFor,
    /// When a follower next looks for something to mention.
    pub mention_at_us: u64,
    /// The cells that the call under way mentions.
    pub mentioning: Vec<CellName>,
    /// What was handed on lately, or heard.
    pub recent: RecentSums,
    /// What is to be handed on.
    pub outbox: VecDeque<Vec<u8>>,
    /// When something was last appended to the feed.
    pub appended_us: u64,
    /// The last entry that was heard.
    pub feed_place: FeedPlace,
    /// Whose turn is being heard, and the part that comes next; `None` if some of it was missed.
    pub heard_part: Option<(ProcessId, u64)>,
    /// When the table is read for what was missed in the feed; `None` if nothing was.
    pub lacks_at_us: Option<u64>,
    /// The speaker can't publish.
    pub is_speaker_stuck: bool,
    /// The table may have lost rows, which the next turn of the speaker tells the others.
    pub is_doubtful: bool,
}

impl RegionVoice {
    pub(super) fn new(process: ProcessId, now: Now, seed: u64) -> RegionVoice {
        RegionVoice {
            lease: Voice::new(process, now.mono_us, seed.rotate_left(16)),
            is_talking: false,
            gives_up: false,
            spoken: SpokenCells::default(),
            spoken_for: SpokenFor::default(),
            mention_at_us: now.mono_us,
            mentioning: Vec::new(),
            recent: RecentSums::default(),
            outbox: VecDeque::new(),
            appended_us: 0,
            feed_place: FeedPlace::default(),
            heard_part: None,
            lacks_at_us: None,
            is_speaker_stuck: false,
            is_doubtful: false,
        }
    }

    /// Puts entries into the outbox. If the feed could not keep them all anyway, nothing waits: others notice what they lack.
    /// False if they are dropped.
    pub(super) fn send(&mut self, bodies: Vec<Vec<u8>>) -> bool {
        if self.outbox.len() + bodies.len() > FEED_KEPT {
            self.outbox.clear();
            self.recent.clear();
            return false;
        }
        self.outbox.extend(bodies);
        true
    }

    /// Has the speaker give a sign of life if it has given none for a while.
    pub(super) fn live(&mut self, sign: impl FnOnce() -> FeedEntry, now: Now) {
        if self.outbox.is_empty() && now.mono_us >= self.appended_us + LIFE_US {
            self.outbox.push_back(sign().encode());
        }
    }

    /// When the speaker gives the next sign of life, or has something to hand on.
    pub(super) fn sends_at_us(&self) -> u64 {
        if self.outbox.is_empty() { self.appended_us + LIFE_US } else { 0 }
    }
}
