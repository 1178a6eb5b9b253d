//! Whether counts of other regions are missing here, and which keys have to be looked up because of it.
//!
//! Rows of other regions are left out when there is no room for their keys, and counts go with keys that are given up. A
//! request may ask for such a key at any time. So while anything may be missing, every new key is marked, and a marked key
//! that a request asks for enters a queue to be looked up. The queue is short: a key that finds it full keeps its mark, and
//! the next request on it tries again. As long as nothing is missing, no key is marked or looked up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam::queue::SegQueue;

use crate::engine::table::shard::SlotRef;

/// At most this many keys wait to be looked up: about eight turns of lookups get through them.
const SOUGHT_MAX: usize = 16_384;

/// Until when counts may be missing, and the keys to look up.
#[derive(Debug, Default)]
pub(super) struct MissingCounts {
    /// Until when counts that were left out or given up matter, in wall time; 0 if there are none.
    until_ms: AtomicU64,
    /// Something is still to be read, and may be of any key.
    is_unread: AtomicBool,
    sought: SegQueue<SlotRef>,
}

impl MissingCounts {
    /// Notes that counts are not here which matter until then.
    pub(super) fn leave_out(&self, until_ms: u64) {
        self.until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Something is going to be read that was not before.
    pub(super) fn expect_reading(&self) {
        self.is_unread.store(true, Ordering::Relaxed);
    }

    /// A full read begins. What was left out before will be read again; only what is left out from now on is missing after it.
    pub(super) fn begin_reading(&self) {
        self.is_unread.store(true, Ordering::Relaxed);
        self.until_ms.store(0, Ordering::Relaxed);
    }

    /// Nothing more is to be read: everything was heard.
    pub(super) fn end_reading(&self) {
        self.is_unread.store(false, Ordering::Relaxed);
    }

    /// Whether a key that is new here may lack counts.
    pub(super) fn is_any(&self, now_ms: u64) -> bool {
        self.is_unread.load(Ordering::Relaxed) || self.until_ms.load(Ordering::Relaxed) > now_ms
    }

    /// Queues a key to be looked up. False if too many wait already.
    pub(super) fn seek(&self, at: SlotRef) -> bool {
        let has_room = self.sought.len() < SOUGHT_MAX;
        if has_room {
            self.sought.push(at);
        }
        has_room
    }

    /// The key to look up next.
    pub(super) fn next(&self) -> Option<SlotRef> {
        self.sought.pop()
    }

    /// How many keys wait to be looked up.
    pub(super) fn sought(&self) -> usize {
        self.sought.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_missing_until_it_expires_or_all_is_heard() {
        let missing = MissingCounts::default();
        assert!(!missing.is_any(0), "as long as there is nobody to hear from");
        missing.begin_reading();
        assert!(missing.is_any(u64::MAX));
        missing.leave_out(500);
        missing.leave_out(100);
        missing.end_reading();
        assert!(missing.is_any(499) && !missing.is_any(500));
        missing.begin_reading();
        missing.end_reading();
        assert!(!missing.is_any(0), "what was left out before was heard again");
        missing.leave_out(500);
        missing.expect_reading();
        assert!(missing.is_any(500));
        missing.end_reading();
        assert!(missing.is_any(499), "what was left out before is not what was read");
    }

    #[test]
    fn so_many_wait_at_most() {
        let missing = MissingCounts::default();
        let at = SlotRef { shard: 0, slot: 0, generation: 0 };
        assert!((0..SOUGHT_MAX).all(|_| missing.seek(at)) && !missing.seek(at));
        assert!(missing.next().is_some() && missing.seek(at));
        assert_eq!(missing.sought(), SOUGHT_MAX);
    }
}
