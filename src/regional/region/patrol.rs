//! The patrol: a slow walk through the table that looks after what is held back.
//!
//! Hits that are held back count within an allowance, and that may shrink while nobody asks for their key: more processes
//! come, or others have counted much. The walk has told what has become too much, and adds up the rest for the metrics. It takes
//! a second for a small table and ten for a large one. When the fleet has grown it hurries, to be through before newcomers admit
//! anything by themselves.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::regional::region::{Region, RegionState};

/// Flushes in a walk through few keys, and at most: one second, and ten.
const FLUSHES_MIN: u64 = 20;
const FLUSHES_MAX: u64 = 200;
/// Keys that a flush visits, about, while the walk takes less than the most.
const KEYS_PER_FLUSH: u64 = 2_500;
/// Flushes in a walk of somebody in a hurry: 1.6 seconds, because newcomers ask about everything for two.
const FLUSHES_IN_A_HURRY: u64 = 32;

/// How far the walk has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Patrol {
    /// The next shard.
    next: u32,
    /// Parts of a shard that are still to be visited, in flushes of a walk.
    owed: u64,
    /// Shards that are left to visit in a hurry.
    hurried: u32,
    /// Hits that were found held back since the walk began.
    held: u64,
}

impl Region {
    /// Visits as many shards as are due with this flush.
    pub(super) fn patrol_some(&self, state: &mut RegionState, now: Now) {
        let shards = self.engine.table().shards();
        let keys = self.engine.stats().keys as u64;
        if self.has_grown.swap(false, Ordering::Relaxed) {
            state.patrol.hurried = shards;
        }
        let most = if state.patrol.hurried > 0 { FLUSHES_IN_A_HURRY } else { FLUSHES_MAX };
        let flushes = (keys / KEYS_PER_FLUSH).clamp(FLUSHES_MIN, most);
        state.patrol.owed += u64::from(shards);
        while state.patrol.owed >= flushes {
            state.patrol.owed -= flushes;
            self.visit(&mut state.patrol, shards, now);
        }
    }

    fn visit(&self, patrol: &mut Patrol, shards: u32, now: Now) {
        patrol.held = patrol.held.saturating_add(self.ledger().patrol(patrol.next, now));
        patrol.hurried = patrol.hurried.saturating_sub(1);
        patrol.next += 1;
        if patrol.next >= shards {
            patrol.next = 0;
            self.held_hits.store(std::mem::take(&mut patrol.held), Ordering::Relaxed);
        }
    }
}
