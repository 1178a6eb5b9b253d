//! What is measured about the region: who decided, what the origin was asked, how long it took, why it failed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::observe::histogram::Histogram;
use crate::observe::stripes::Stripes;
use crate::regional::region::Operation;

/// Who decided a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecidedBy {
    Memory,
    Origin,
    /// Memory, because the origin gave no answer.
    Outage,
}

impl DecidedBy {
    pub const ALL: [DecidedBy; 3] = [DecidedBy::Memory, DecidedBy::Origin, DecidedBy::Outage];

    pub fn word(self) -> &'static str {
        match self {
            DecidedBy::Memory => "memory",
            DecidedBy::Origin => "origin",
            DecidedBy::Outage => "outage",
        }
    }
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct RegionalMetrics {
    decisions: Stripes<3>,
    /// For each operation.
    times: [Histogram; 3],
    errors: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Keys that were read because they were cold or stale.
    pub hydrations: AtomicU64,
    /// Requests that asked because more would have been pending than may be.
    pub checks: AtomicU64,
    /// Cells that replays have told.
    pub replayed_cells: AtomicU64,
    /// How often all keys were told again, because the origin may have lost data.
    pub heals: AtomicU64,
    /// The origin's clock minus ours.
    pub clock_offset_ms: AtomicI64,
}

impl RegionalMetrics {
    pub fn decided(&self, by: DecidedBy) {
        self.decisions.add(by as usize, 1);
    }

    pub fn decisions(&self, by: DecidedBy) -> u64 {
        self.decisions.sum(by as usize)
    }

    pub fn called(&self, operation: Operation, took: Duration) {
        self.times[operation as usize].record(took);
    }

    pub fn times(&self, operation: Operation) -> &Histogram {
        &self.times[operation as usize]
    }

    pub fn failed(&self, operation: Operation, reason: &'static str) {
        *self.errors.lock().entry((operation.word(), reason)).or_default() += 1;
    }

    /// By operation and reason.
    pub fn errors(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.errors.lock().clone()
    }

    pub fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}
