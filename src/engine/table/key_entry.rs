//! One key under its shard's lock: what a verb of a ledger works on.
//!
//! A [`KeyEntry`] lives only inside the table. It knows where its slot is, so that queues and weights are kept right by the
//! same hand that changes the slot.

use crate::engine::count::counter::Look;
use crate::engine::headroom::Headroom;
use crate::engine::key::{Key, OwnedKey};
use crate::engine::table::foreign::View;
use crate::engine::table::foreign_ledger::ForeignSum;
use crate::engine::table::pinned::PinnedSlots;
use crate::engine::table::regional_part::RegionalPart;
use crate::engine::table::shard::Shard;
use crate::engine::table::{NewKey, Slot, SlotRef, Table};
use crate::rules::limit::Terms;

/// A key and its part in the region, while its shard is locked.
pub(super) struct KeyEntry<'a> {
    table: &'a Table,
    /// Where the slot is, with the key's generation.
    pub(super) at: SlotRef,
    /// The key, its counter and the terms of its last decision.
    pub(super) slot: &'a mut Slot,
    /// Always there: a table that nobody shares has no entries.
    pub(super) part: &'a mut RegionalPart,
}

impl KeyEntry<'_> {
    pub(super) fn key(&self) -> OwnedKey {
        OwnedKey::new(&self.slot.key(), self.part.is_sensitive(), self.slot.is_global)
    }

    /// Brings the counter and the part up to `now_ms` and reads the counter.
    pub(super) fn look(&mut self, terms: &Terms, now_ms: u64) -> Look {
        self.part.look(&mut self.slot.counter, terms, now_ms)
    }

    /// Hits that no message and no queue has: they are told when there are more of them.
    pub(super) fn held_hits(&self) -> u64 {
        if self.part.is_queued() || self.part.is_sent() { 0 } else { self.part.pending() }
    }

    /// More is held back than may be pending by now: others have come, or have counted much.
    pub(super) fn is_beyond_allowance(&mut self, now_ms: u64) -> bool {
        if self.held_hits() == 0 {
            return false;
        }
        let terms = self.slot.terms();
        self.look(&terms, now_ms);
        let counter = &mut self.slot.counter;
        let pending = self.part.pending_in(counter.cells_that_count(&terms));
        let available =
            View { counter, foreign: self.part.foreign(), is_cut_off: false }.look(&terms, now_ms).available;
        let live = self.table.live(self.part.store());
        let headroom = Headroom { limit: terms.capacity(), slack_permille: self.part.slack_permille(), live };
        pending > headroom.allowance(available)
    }

    /// Puts the key into the queue of what its store is to be told.
    pub(super) fn enqueue(&mut self, is_urgent: bool) {
        self.table.enqueue(self.at.shard, self.at.slot, self.part, is_urgent);
    }

    /// Puts the key into the queue of what other regions should know, if there is anything to know.
    pub(super) fn note(&mut self) {
        self.table.note(self.at.shard, self.at.slot, self.slot, self.part);
    }

    /// Queues the key so that its counts of other regions are looked up.
    pub(super) fn seek(&mut self) {
        self.table.seek(self.at.shard, self.at.slot, self.slot, self.part);
    }

    /// Takes note of what the key takes beside its slot now. To be called where that may have changed.
    pub(super) fn weigh(&mut self) {
        self.table.weigh(self.slot, Some(self.part));
    }

    /// Takes over what the table of the regions says about a cell. True if others have counted more than was known.
    pub(super) fn import(&mut self, sum: &ForeignSum, now_ms: u64) -> bool {
        let ForeignSum { sequence, others, row, told } = *sum;
        let terms = self.slot.terms();
        self.slot.counter.look(&terms, now_ms);
        let current = self.slot.counter.sequence();
        let foreign = self.part.foreign_mut(current);
        let is_news = foreign.import(sequence, current, others, row);
        foreign.published(sequence, current, told);
        self.part.reconsider_pause(&mut self.slot.counter, &terms, now_ms);
        if is_news && self.is_beyond_allowance(now_ms) {
            self.enqueue(true);
        }
        self.weigh();
        // Counts that other regions do not know of may matter to them now.
        self.note();
        is_news
    }
}

impl Table {
    /// The entry of a slot of a locked shard. `None` in a table that is not shared.
    fn entry<'a>(&'a self, shard: &'a mut Shard, number: u32, slot: u32) -> Option<KeyEntry<'a>> {
        let (slot_ref, part) = shard.both(slot);
        let part = part?;
        let at = SlotRef { shard: number, slot, generation: part.generation() };
        Some(KeyEntry { table: self, at, slot: slot_ref, part })
    }

    /// Works on a key by its place, if it is still there.
    pub(super) fn with_at<T>(&self, at: SlotRef, work: impl FnOnce(KeyEntry<'_>) -> T) -> Option<T> {
        let mut shard = self.lock(at.shard);
        let (slot, part) = shard.at(at)?;
        Some(work(KeyEntry { table: self, at, slot, part }))
    }

    /// Works on a key by its name, if it is here.
    pub(super) fn with_key<T>(&self, key: &Key<'_>, work: impl FnOnce(KeyEntry<'_>) -> T) -> Option<T> {
        let hash = self.hash(key);
        let number = self.shard_of(hash);
        let mut shard = self.lock(number);
        let slot = shard.find(key, hash)?;
        self.entry(&mut shard, number, slot).map(work)
    }

    /// Works on a key by its name and says whether it had to be made; `make` is called with its hash. `None` if there is
    /// no room for it.
    pub(super) fn with_new_key<'k, T>(
        &self,
        key: &Key<'k>,
        make: impl FnOnce(u64) -> NewKey<'k>,
        now_ms: u64,
        work: impl FnOnce(KeyEntry<'_>, bool) -> T,
    ) -> Option<T> {
        let hash = self.hash(key);
        let number = self.shard_of(hash);
        let mut shard = self.lock(number);
        let found = shard.find(key, hash);
        let slot = found.or_else(|| self.insert(&mut shard, PinnedSlots::none(), make(hash), now_ms))?;
        self.entry(&mut shard, number, slot).map(|entry| work(entry, found.is_none()))
    }

    /// Works on the first key of a shard in this slot or one behind it. Says which slot that is; `None` if there is none.
    pub(super) fn with_first_from<T>(
        &self,
        number: u32,
        from: u32,
        work: impl FnOnce(KeyEntry<'_>) -> T,
    ) -> Option<(u32, T)> {
        let mut shard = self.lock(number);
        let slot = shard.first_taken_from(from)?;
        self.entry(&mut shard, number, slot).map(|entry| (slot, work(entry)))
    }

    /// Works on every key of a shard.
    pub(super) fn each_in(&self, number: u32, mut work: impl FnMut(KeyEntry<'_>)) {
        let mut shard = self.lock(number);
        for slot in shard.taken() {
            if let Some(entry) = self.entry(&mut shard, number, slot) {
                work(entry);
            }
        }
    }

    /// Works on every key, shard by shard, each locked only for a moment.
    pub(super) fn each(&self, mut work: impl FnMut(KeyEntry<'_>)) {
        (0..self.shards()).for_each(|number| self.each_in(number, &mut work));
    }
}
