//! What is counted about the region, for metrics and `tidegate status`.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What a call to the origin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    Check,
    Replay,
    Beat,
}

impl Operation {
    pub const ALL: [Operation; 3] = [Operation::Check, Operation::Replay, Operation::Beat];

    pub fn word(self) -> &'static str {
        match self {
            Operation::Check => "check",
            Operation::Replay => "replay",
            Operation::Beat => "beat",
        }
    }
}

/// Who decided a request that has shared limits.
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
pub struct RegionStats {
    pub cold_reads: AtomicU64,
    pub headroom_checks: AtomicU64,
    pub replayed_cells: AtomicU64,
    pub pending_hits: AtomicU64,
    /// The origin's clock minus ours.
    pub clock_offset_ms: AtomicI64,
    pub heals: AtomicU64,
}

impl RegionStats {
    pub fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}
