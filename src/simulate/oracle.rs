//! What was admitted, exactly: the log that everything else is compared with.

use std::collections::BTreeMap;

/// Hits of a key that a request asked for, or gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestedHits {
    /// When they were counted, or denied, by the wall clock of the process, wrong or right.
    pub at_ms: u64,
    /// That moment by the true time.
    pub at_us: u64,
    /// When the request arrived, by the true time.
    pub arrived_us: u64,
    /// When it was answered, by the true time: if a store has charged it, later than it was counted.
    pub answered_us: u64,
    /// As in [`KeyHits::key`](crate::simulate::process::KeyHits::key).
    pub key: usize,
    /// 0 if the request only looked.
    pub hits: u64,
    /// The place of the process among [`World::processes`](crate::simulate::world::World::processes).
    pub process: usize,
    /// The request waited for a store.
    pub has_waited: bool,
}

/// Everything that happened to requests.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// What was admitted. A request with several descriptors has an entry for each.
    pub admitted: Vec<RequestedHits>,
    /// What was denied.
    pub denials: Vec<RequestedHits>,
    /// What was given back.
    pub refunds: Vec<RequestedHits>,
    /// Requests that were denied, by a policy too.
    pub denied: u64,
    /// All requests that arrived.
    pub requests: u64,
    /// Requests that had to ask a store and waited for it.
    pub asked: u64,
    /// How often a store gave a request no answer, so that it was decided without.
    pub unanswered: u64,
    /// Requests that a policy decided because too many waited.
    pub shed: u64,
    /// Of `shed`, those that the policy admitted.
    pub shed_admitted: u64,
    /// Hits of requests that had no answer: the store may have counted them all the same.
    pub abandoned_hits: u64,
    /// Hits that were pending in processes that died, or whose clean stop ran out of time.
    pub died_with: u64,
    /// Hits that were not acknowledged when an origin lost data: they were pending, or in calls that arrive after it.
    /// They may be told twice.
    pub unacknowledged: u64,
    /// Calls that arrived at stores.
    pub calls: u64,
    /// Cells that those calls were about.
    pub cells: u64,
    /// Keys that replays were about.
    pub told: u64,
    /// How often a replay told of a key while an earlier one about it had not arrived yet.
    pub told_again: u64,
    /// Statements that arrived at the table that regions share.
    pub statements: u64,
    /// Rows that it told.
    pub rows_read: u64,
    /// When a reading of everything began there.
    pub full_reads_us: Vec<u64>,
}

impl Oracle {
    /// Hits of a key that were admitted, by fixed window.
    pub fn by_window(&self, key: usize, window_ms: u64) -> BTreeMap<u64, u64> {
        let mut windows = BTreeMap::new();
        for admitted in self.admitted.iter().filter(|admitted| admitted.key == key) {
            *windows.entry(admitted.at_ms / window_ms).or_default() += admitted.hits;
        }
        windows
    }

    /// The most that a fixed window admitted of a key, in thousandths of the limit.
    pub fn worst_permille(&self, key: usize, window_ms: u64, limit: u64) -> u64 {
        self.by_window(key, window_ms).values().max().map_or(0, |worst| worst * 1000 / limit)
    }

    /// The most that counted against the limit by the sliding formula at any admission, in thousandths of the limit.
    pub fn worst_sliding_permille(&self, key: usize, window_ms: u64, limit: u64) -> u64 {
        let mut windows: BTreeMap<u64, u64> = BTreeMap::new();
        let mut worst = 0;
        for admitted in self.admitted.iter().filter(|admitted| admitted.key == key) {
            let sequence = admitted.at_ms / window_ms;
            let left_ms = window_ms - admitted.at_ms % window_ms;
            let previous = sequence.checked_sub(1).and_then(|before| windows.get(&before)).copied().unwrap_or(0);
            let current = windows.entry(sequence).or_default();
            *current += admitted.hits;
            worst = worst.max(*current + previous * left_ms / window_ms);
        }
        worst * 1000 / limit
    }

    /// The most hits that were admitted in any interval of a window's length.
    pub fn worst_interval(&self, key: usize, window_ms: u64) -> u64 {
        let of_key: Vec<&RequestedHits> = self.admitted.iter().filter(|admitted| admitted.key == key).collect();
        let mut from = 0;
        let mut inside = 0;
        let mut worst = 0;
        for admitted in &of_key {
            inside += admitted.hits;
            while of_key[from].at_ms + window_ms <= admitted.at_ms {
                inside -= of_key[from].hits;
                from += 1;
            }
            worst = worst.max(inside);
        }
        worst
    }

    pub fn total(&self, key: usize) -> u64 {
        self.admitted.iter().filter(|admitted| admitted.key == key).map(|admitted| admitted.hits).sum()
    }
}
