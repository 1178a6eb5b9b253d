//! Room in a full table: which keys are forgotten because nothing of them counts any more, and which are given up for others.
//!
//! What has expired goes first. Then goes what a shard's hand finds cool, here or in a neighbour; a key that is over its limit goes
//! only if nothing else is found. What a key still had to tell its store is told after it is gone. Whoever needs room while holding
//! a shard only tries the others, so nobody waits in a circle.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use crate::engine::key::OwnedKey;
use crate::engine::table::Table;
use crate::engine::table::farewell::Farewell;
use crate::engine::table::ledger::KeyUpdate;
use crate::engine::table::pinned::PinnedSlots;
use crate::engine::table::regional_part::RegionalPart;
use crate::engine::table::shard::{RemovedKey, Shard, Slot, SweepOutcome, floor_s};
use crate::engine::table::weight::EvictionGoal;

/// How many other shards are looked at when nothing of a shard can be given up, and how many of their slots.
const NEIGHBOURS_MAX: usize = 16;
const NEIGHBOUR_SLOTS_MAX: usize = 1024;
/// How many slots a sweep looks at under one lock, some microseconds at most for a thread that waits for the shard; and how
/// many a request that needs room.
const SWEEP_LOOKS: usize = 32;
const ROOM_LOOKS: usize = 16;

impl Table {
    /// Makes room for a key in a shard that has none left, which is a matter of bad luck. False if all its keys are needed.
    #[cold]
    pub(super) fn make_room_in(&self, number: u32, shard: &mut Shard, pinned: &PinnedSlots, now_ms: u64) -> bool {
        if self.expire_in(number, shard, ROOM_LOOKS, pinned, now_ms).removed > 0 {
            return true;
        }
        self.evict_cool(shard, pinned, EvictionGoal::Slot, now_ms)
            || self.evict_any(shard, pinned, EvictionGoal::Slot, now_ms)
    }

    /// Removes or gives up a key to make room for another. False if there is none.
    #[cold]
    pub(super) fn make_room(
        &self,
        need: EvictionGoal,
        number: u32,
        shard: &mut Shard,
        pinned: &PinnedSlots,
        now_ms: u64,
    ) -> bool {
        if self.expire_in(number, shard, ROOM_LOOKS, pinned, now_ms).removed > 0 || self.expire_elsewhere(now_ms) {
            return true;
        }
        if self.evict_cool(shard, pinned, need, now_ms) {
            return true;
        }
        // Everything here is over its limit: perhaps a neighbour has something cooler. Only so many of their slots are
        // searched; neighbours that are known to have nothing cost none.
        let mut searched = 0;
        for mut neighbour in self.neighbours() {
            if neighbour.is_barren(now_ms) {
                continue;
            }
            if self.evict_cool(&mut neighbour, PinnedSlots::none(), need, now_ms) {
                return true;
            }
            searched += neighbour.slots();
            if searched >= NEIGHBOUR_SLOTS_MAX {
                break;
            }
        }
        self.evict_any(shard, pinned, need, now_ms)
            || self.neighbours().any(|mut neighbour| self.evict_any(&mut neighbour, PinnedSlots::none(), need, now_ms))
    }

    /// Locks some other shards one by one, and the next time others. Passes over those that somebody holds, so it can't
    /// deadlock.
    fn neighbours(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        let start = self.neighbour.fetch_add(1, Ordering::Relaxed);
        let numbers =
            (0..NEIGHBOURS_MAX.min(self.shards.len())).map(move |offset| (start + offset) % self.shards.len());
        numbers.filter_map(move |number| self.shards[number].try_lock())
    }

    /// Gives up a key whether it is over its limit or not. False if there is none.
    fn evict_any(&self, shard: &mut Shard, pinned: &PinnedSlots, need: EvictionGoal, now_ms: u64) -> bool {
        let Some(victim) = shard.sacrifice(pinned, need) else { return false };
        let is_over = shard.is_over(victim, now_ms);
        self.evict(shard, victim, is_over, now_ms);
        true
    }

    /// Removes expired keys of a shard that may have some, unless an earlier search in this second found nothing due
    /// anywhere. False if it finds none. Passes over shards that somebody else holds, so it can't deadlock.
    fn expire_elsewhere(&self, now_ms: u64) -> bool {
        let now_s = floor_s(now_ms);
        if self.nothing_due_s.load(Ordering::Relaxed) == now_s {
            return false;
        }
        let start = self.neighbour.load(Ordering::Relaxed);
        let (mut searched, mut is_all) = (0, true);
        for offset in 0..self.shards.len() {
            let at = (start + offset) % self.shards.len();
            if self.due_s[at].load(Ordering::Relaxed) > now_s {
                continue;
            }
            let Some(mut shard) = self.shards[at].try_lock() else {
                is_all = false;
                continue;
            };
            // The next search goes on here.
            self.neighbour.store(at, Ordering::Relaxed);
            let swept = self.expire_in(at as u32, &mut shard, ROOM_LOOKS, PinnedSlots::none(), now_ms);
            if swept.removed > 0 {
                return true;
            }
            is_all &= swept.is_whole;
            searched += 1;
            if searched == NEIGHBOURS_MAX {
                return false;
            }
        }
        if is_all {
            self.nothing_due_s.store(now_s, Ordering::Relaxed);
        }
        false
    }

    fn evict(&self, shard: &mut Shard, victim: u32, is_over: bool, now_ms: u64) {
        if let (slot, Some(part)) = shard.both(victim) {
            self.bid_farewell(slot, part, now_ms);
            if let Some(foreign) = part.foreign() {
                self.missing.leave_out(foreign.others_until_ms(slot.key().window_ms));
            }
        }
        let RemovedKey { is_unasked, bytes } = shard.remove(victim);
        if is_unasked {
            self.count_asked();
        }
        self.bytes_beside.fetch_sub(bytes, Ordering::Relaxed);
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        if is_over {
            self.evicted_over_limit.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has told what the store of a key has not heard of, before the key is forgotten. A process that does not know its own
    /// field can't tell.
    fn bid_farewell(&self, slot: &mut Slot, part: &mut RegionalPart, now_ms: u64) {
        let terms = slot.terms();
        let now_ms = part.look(&mut slot.counter, &terms, now_ms).now_ms;
        let pending = part.pending();
        let lost = match part.is_dirty() && part.is_seated() {
            true => {
                let key = OwnedKey::new(&slot.key(), part.is_sensitive(), slot.is_global);
                let cells = part.pending_cells(&slot.counter, &terms, false, now_ms);
                let update = KeyUpdate { cells, now_ms, ahead: 0 };
                self.grown(part.store()).farewells.push(Farewell { key, terms, update, pending })
            }
            false => pending,
        };
        self.lost_hits.fetch_add(lost, Ordering::Relaxed);
    }

    /// Sweeps a part of a locked shard, and counts what that removes.
    fn expire_in(
        &self,
        number: u32,
        shard: &mut Shard,
        looks_max: usize,
        pinned: &PinnedSlots,
        now_ms: u64,
    ) -> SweepOutcome {
        let swept = shard.expire(now_ms, looks_max, pinned);
        self.note_due(number, shard);
        if swept.removed > 0 {
            self.unasked.fetch_sub(swept.unasked, Ordering::Relaxed);
            self.expired_at_ms.fetch_max(now_ms, Ordering::Relaxed);
            self.bytes_beside.fetch_sub(swept.bytes, Ordering::Relaxed);
            self.keys.fetch_sub(swept.removed, Ordering::Relaxed);
            self.expired.fetch_add(swept.removed as u64, Ordering::Relaxed);
        }
        swept
    }

    /// Remembers when a key of a locked shard may have expired.
    pub(super) fn note_due(&self, number: u32, shard: &Shard) {
        let due_s = &self.due_s[number as usize];
        if due_s.load(Ordering::Relaxed) != shard.next_due_s() {
            due_s.store(shard.next_due_s(), Ordering::Relaxed);
        }
    }

    /// Removes expired keys: a few of each shard in turn, so that a thread that wants a shard has it soon.
    pub fn expire(&self, now_ms: u64) {
        let now_s = floor_s(now_ms);
        let mut is_whole = false;
        while !is_whole {
            is_whole = true;
            for number in 0..self.shards() {
                if self.due_s[number as usize].load(Ordering::Relaxed) <= now_s {
                    let mut shard = self.lock(number);
                    is_whole &= self.expire_in(number, &mut shard, SWEEP_LOOKS, PinnedSlots::none(), now_ms).is_whole;
                }
            }
        }
    }

    /// Gives up keys until the rest takes no more than it may: keys that are here already may have become heavier, without a
    /// new key that made room. Holds a shard for one key at a time.
    pub fn trim(&self, now_ms: u64) {
        // Keys that are over their limit go only if nothing else is left.
        for give_up in [Table::evict_cool, Table::evict_any] {
            let mut is_any = true;
            while is_any && self.need().is_some() {
                is_any = false;
                // Starts elsewhere each time, so that it is not always the same keys that go.
                let start = self.neighbour.fetch_add(1, Ordering::Relaxed);
                for offset in 0..self.shards.len() {
                    let Some(need) = self.need() else { return };
                    let mut shard = self.lock(((start + offset) % self.shards.len()) as u32);
                    is_any |= give_up(self, &mut shard, PinnedSlots::none(), need, now_ms);
                }
            }
        }
    }

    /// Gives up a key that is not over its limit. False if there is none.
    fn evict_cool(&self, shard: &mut Shard, pinned: &PinnedSlots, need: EvictionGoal, now_ms: u64) -> bool {
        let Some(victim) = shard.victim(now_ms, pinned, need) else { return false };
        self.evict(shard, victim, false, now_ms);
        true
    }
}
