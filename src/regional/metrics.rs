//! Measures the region: who decided, what the origin was asked, how long it took, why it failed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use crate::engine::reason::DecidedBy;
use crate::measure::histogram::Histogram;
use crate::measure::stripes::Stripes;
use crate::measure::times::Times;
use crate::regional::call::ProcessId;
use crate::regional::redis::ConnectionStatus;
use crate::regional::region::{BreakerState, CallPurpose};

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct RegionalMetrics {
    decisions: Stripes<{ DecidedBy::ALL.len() }>,
    /// How long answered calls took, by purpose.
    times: [Histogram; 3],
    /// Calls without an answer, by the word of their purpose and the reason.
    errors: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Keys that a request had read because they were cold or stale.
    pub hydrations: AtomicU64,
    /// Requests that asked because more hits would have been pending than may be.
    pub checks: AtomicU64,
    /// Cells that replays have told.
    pub replayed_cells: AtomicU64,
    /// How often all keys were told again, because the origin may have lost data.
    pub heals: AtomicU64,
    /// The origin's clock minus ours, at the last heartbeat.
    pub clock_offset_ms: AtomicI64,
}

impl RegionalMetrics {
    pub(crate) fn decided(&self, by: DecidedBy) {
        self.decisions.add(by as usize, 1);
    }

    pub(crate) fn decisions(&self, by: DecidedBy) -> u64 {
        self.decisions.sum(by as usize)
    }

    pub(crate) fn called(&self, operation: CallPurpose, took: Duration) {
        self.times[operation as usize].record(took);
    }

    pub(crate) fn times(&self, operation: CallPurpose) -> &Histogram {
        &self.times[operation as usize]
    }

    pub(crate) fn failed(&self, operation: CallPurpose, reason: &'static str) {
        *self.errors.lock().entry((operation.word(), reason)).or_default() += 1;
    }

    /// Calls without an answer, by the word of their purpose and the reason.
    pub(crate) fn errors(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.errors.lock().clone()
    }

    pub(crate) fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// Everything about the region, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct RegionalFigures {
    /// This process's name at the store.
    pub process: ProcessId,
    /// Decisions since the start, by who made them.
    pub decisions: [(DecidedBy, u64); DecidedBy::ALL.len()],
    /// How long answered calls took, by purpose.
    pub times: [(CallPurpose, Times); 3],
    /// Calls without an answer, by the word of their purpose and the reason.
    pub errors: BTreeMap<(&'static str, &'static str), u64>,
    /// As [`RegionalMetrics::hydrations`].
    pub hydrations: u64,
    /// As [`RegionalMetrics::checks`].
    pub checks: u64,
    /// As [`RegionalMetrics::replayed_cells`].
    pub replayed_cells: u64,
    /// As [`RegionalMetrics::heals`].
    pub heals: u64,
    /// Keys that are still to be looked at, to tell all counts again; 0 if the origin has lost nothing.
    pub keys_to_heal: u64,
    /// As [`RegionalMetrics::clock_offset_ms`].
    pub clock_offset_ms: i64,
    /// How they are; in a Cluster, those of each node.
    pub breakers: Vec<BreakerState>,
    /// Processes that share the store, this one included, as it last told.
    pub live: u32,
    /// Hits that were pending when the last flush began.
    pub pending_hits: u64,
    /// Pending hits of keys that the full table gave up, of all stores together; 0 in the owner's figures.
    pub lost_hits: u64,
    /// Hits that are held back, because their keys are far from their limits.
    pub held_hits: u64,
    /// For how many seconds something has been pending without a break; 0 if nothing is.
    pub lag_s: f64,
    /// How the connections of all lanes are.
    pub connection: ConnectionStatus,
}

impl RegionalMetrics {
    pub(crate) fn read_times(&self) -> [(CallPurpose, Times); 3] {
        CallPurpose::ALL.map(|operation| (operation, Times::of(self.times(operation))))
    }
}

impl RegionalFigures {
    /// Calls for this purpose, answered or not.
    pub(crate) fn calls(&self, operation: CallPurpose) -> u64 {
        let answered =
            self.times.iter().filter(|(of, _)| *of == operation).map(|(_, times)| times.count()).sum::<u64>();
        answered + self.failed(operation)
    }

    /// Calls for this purpose that had no answer.
    pub(crate) fn failed(&self, operation: CallPurpose) -> u64 {
        self.errors.iter().filter(|((of, _), _)| *of == operation.word()).map(|(_, count)| count).sum()
    }
}
