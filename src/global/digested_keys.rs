//! Sensitive keys by the digests that name them in rows.
//!
//! A digest does not lead back to its key. So keys are remembered by their digests as they are made. A row whose key is
//! not here is kept until the key comes or the row expires.

use std::collections::HashMap;

use crate::engine::table::SlotRef;
use crate::engine::table::foreign_ledger::ForeignSum;

/// A row that waits for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingRow {
    /// The counts that the rows of the cell come to.
    pub sum: ForeignSum,
    /// From this time on it counts nowhere any more.
    pub expires_at_ms: u64,
}

/// With fewer keys than this remembered, nobody looks for those that are gone.
const SLOTS_MIN: usize = 4096;

/// Sensitive keys, and rows that wait for theirs.
#[derive(Debug, Default)]
pub(crate) struct DigestedKeys {
    /// Where the table holds each key, by digest. Keys may be gone from there.
    slots: HashMap<Box<[u8]>, SlotRef>,
    /// How many keys are remembered before those that are gone are looked for.
    tidy_at: usize,
    /// Rows that wait for their key, by digest.
    kept: HashMap<Box<[u8]>, Vec<WaitingRow>>,
}

impl DigestedKeys {
    /// Takes note of a key that was made, and returns the rows that waited for it.
    pub(crate) fn made(&mut self, digest: Box<[u8]>, at: SlotRef) -> Vec<WaitingRow> {
        let kept = self.kept.remove(&digest).unwrap_or_default();
        self.slots.insert(digest, at);
        kept
    }

    pub(crate) fn slot(&self, digest: &[u8]) -> Option<SlotRef> {
        self.slots.get(digest).copied()
    }

    /// Forgets a key that is not where it was.
    pub(crate) fn gone(&mut self, digest: &[u8]) {
        self.slots.remove(digest);
    }

    /// Keeps a row for a key that is not here. False if the rows of `most` keys are kept already.
    pub(crate) fn keep(&mut self, digest: &[u8], row: WaitingRow, most: usize) -> bool {
        if self.kept.len() >= most && !self.kept.contains_key(digest) {
            return false;
        }
        let rows = self.kept.entry(digest.into()).or_default();
        // Replaces what was said of the same window, and drops windows of which nothing counts any more.
        rows.retain(|other| other.sum.sequence != row.sum.sequence && other.sum.sequence + 1 >= row.sum.sequence);
        rows.push(row);
        true
    }

    /// Forgets rows that have expired.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.kept.retain(|_, rows| {
            rows.retain(|row| row.expires_at_ms > now_ms);
            !rows.is_empty()
        });
    }

    /// Forgets keys that are gone, if there may be many of them.
    pub(crate) fn tidy(&mut self, is_there: impl Fn(SlotRef) -> bool) {
        if self.slots.len() >= self.tidy_at {
            self.slots.retain(|_, at| is_there(*at));
            self.tidy_at = SLOTS_MIN + 2 * self.slots.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::table::foreign::Counts;

    fn kept(sequence: u64, expires_at_ms: u64) -> WaitingRow {
        let others = Counts { hits: 5, refunds: 0 };
        WaitingRow {
            sum: ForeignSum { sequence, others, row: Counts::default(), told: Counts::default() },
            expires_at_ms,
        }
    }

    #[test]
    fn rows_wait_for_their_key() {
        let mut digested = DigestedKeys::default();
        let at = SlotRef::of(2);
        assert!(digested.keep(b"a", kept(7, 100), 1) && digested.keep(b"a", kept(8, 200), 1));
        assert!(!digested.keep(b"b", kept(7, 100), 1), "no room");
        digested.expire(100);
        assert_eq!(digested.made((*b"a").into(), at), [kept(8, 200)]);
        assert_eq!((digested.slot(b"a"), digested.slot(b"b")), (Some(at), None));
        digested.tidy(|_| false);
        assert_eq!(digested.slot(b"a"), None);
        for number in 0..10 * SLOTS_MIN {
            digested.made(number.to_string().into_bytes().into(), at);
            digested.tidy(|_| false);
        }
        assert!(digested.slots.len() <= SLOTS_MIN, "keys that are gone do not pile up");
    }
}
