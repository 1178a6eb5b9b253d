//! Healing: after the origin has lost its data, it is told all counts again.
//!
//! There is no hurry. What is in use is told anyway: a check brings what its key has counted, and so does the next message about
//! a key with new hits. The rest are keys that nobody asks for at the moment, and there may be very many of them. So they go
//! last, one message after the other, and all processes of the region together take only a part of the origin's time.

use crate::clock::Now;
use crate::engine::table::resend_walk::ResendWalk;
use crate::regional::region::sorting::Sorted;
use crate::regional::region::{BreakerKind, Region, RegionState};
use crate::regional::replay::ReplayBatch;

/// How many cells all processes together tell again in a second. At some three microseconds each, an eighth of the time of an
/// origin that is as fast as ours, and half of one that is four times as slow: requests do not notice, and 100,000 cells take
/// 2.5 seconds.
const CELLS_PER_S: u64 = 40_000;
/// A process that comes late catches up by so much at most: timers are rough, and nothing should come in bursts.
const CATCH_UP_US: u64 = 10_000;
/// How many keys are looked at in one go. Most have something to tell, but those that do not must not keep others waiting.
pub(super) const LOOKS_MAX: usize = 1_000;

/// How far it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Healing {
    /// Which keys it has still to look at.
    pub(super) walk: ResendWalk,
    /// When the next message may go.
    next_us: u64,
}

impl Region {
    /// Has every key told again, because the origin may have lost data.
    pub fn heal(&self) {
        let walk = ResendWalk::through(self.engine.table());
        self.state.lock().telling.healing = Some(Healing { walk, next_us: 0 });
    }

    /// How many keys are still to be looked at, and told again if the origin may have had them.
    pub fn keys_to_heal(&self) -> u64 {
        let telling = &self.state.lock().telling;
        let sorted = telling.sorted.as_ref().map_or(0, Sorted::lost_keys) as u64;
        telling.healing.map_or(0, |healing| healing.walk.keys_ahead(self.engine.stats().keys) + sorted)
    }

    /// When the next message may go that heals, if one may go at all.
    pub(super) fn heals_at_us(&self, state: &RegionState) -> Option<u64> {
        let may_go = !state.nodes.are_all_given_up(BreakerKind::Replays) && state.telling.window.room() > 0;
        state.telling.healing.filter(|_| may_go).map(|healing| healing.next_us)
    }

    /// What the origin has lost, if it is time to tell it of more.
    pub(super) fn lost(&self, state: &mut RegionState, cells: usize, now: Now) -> ReplayBatch {
        let telling = &mut state.telling;
        let Some(healing) = &mut telling.healing else { return ReplayBatch::default() };
        if now.mono_us < healing.next_us && !state.is_leaving {
            return ReplayBatch::default();
        }
        let batch = match &mut telling.sorted {
            Some(sorted) => self.lost_of_a_tag(sorted, healing, cells, now),
            None => self.lost_of_all(healing, cells, now),
        };
        let pause_us = batch.cells as u64 * 1_000_000 * u64::from(self.live()) / CELLS_PER_S;
        healing.next_us = healing.next_us.max(now.mono_us.saturating_sub(CATCH_UP_US)) + pause_us;
        if healing.walk.is_over() && telling.sorted.as_ref().is_none_or(|sorted| sorted.lost_keys() == 0) {
            telling.healing = None;
        }
        batch
    }

    fn lost_of_all(&self, healing: &mut Healing, cells: usize, now: Now) -> ReplayBatch {
        let (mut batch, mut looks) = (ReplayBatch::default(), 0);
        while !healing.walk.is_over() && looks < LOOKS_MAX && !batch.is_full(cells) {
            looks += 1;
            if let Some(unsent) = self.ledger().resend_next(&mut healing.walk, now) {
                self.push(&mut batch, unsent);
            }
        }
        batch
    }
}
