//! The patrol: a slow walk through the table that looks after what is held back.
//!
//! Hits that are held back count within an allowance, and that may shrink while nobody asks for their key: more processes
//! come, or others have counted much. The walk has told what has become too much, and adds up the rest for the metrics. It takes
//! a second for a small table and ten for a large one. When the fleet has grown it hurries, to be through before newcomers admit
//! anything by themselves.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::regional::region::Region;

/// Flushes in a walk through few keys, and at most: one second, and ten.
const FLUSHES_MIN: u64 = 20;
const FLUSHES_MAX: u64 = 200;
/// Keys that a flush visits, about, while the walk takes less than the most.
const KEYS_PER_FLUSH: u64 = 2_500;
/// Flushes in a walk of somebody in a hurry: 0.8 seconds. Newcomers ask about everything for two seconds, and others hear of
/// them with their next heartbeat, within one.
const FLUSHES_IN_A_HURRY: u64 = 16;

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
    pub(super) fn patrol_some(&self, now: Now) {
        let patrol = &mut *self.patrol.lock();
        let shards = self.engine.table().shards();
        let keys = self.engine.stats().keys as u64;
        if self.has_grown.swap(false, Ordering::Relaxed) {
            patrol.hurried = shards;
        }
        let most = if patrol.hurried > 0 { FLUSHES_IN_A_HURRY } else { FLUSHES_MAX };
        let flushes = (keys / KEYS_PER_FLUSH).clamp(FLUSHES_MIN.min(most), most);
        patrol.owed += u64::from(shards);
        while patrol.owed >= flushes {
            patrol.owed -= flushes;
            self.visit(patrol, shards, now);
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
