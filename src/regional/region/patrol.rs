//! The patrol: a slow walk through the table that looks after what is held back.
//!
//! Hits that are held back count within an allowance, and that may shrink while nobody asks for their key: more processes
//! come, or others have counted much. The walk has told what has become too much, and adds up the rest for the metrics. It takes
//! some seconds; when the fleet has grown it hurries, to be through before newcomers admit anything by themselves.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::regional::region::{Region, RegionState};

/// Flushes in a walk: ten seconds.
const FLUSHES: u64 = 200;
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
        if self.has_grown.swap(false, Ordering::Relaxed) {
            state.patrol.hurried = shards;
        }
        let flushes = if state.patrol.hurried > 0 { FLUSHES_IN_A_HURRY } else { FLUSHES };
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
