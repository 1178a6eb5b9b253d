//! A locked key during a decision: marks it as used, charges it, and queues it for its store and for other regions.

use crate::engine::count::counter::Counter;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::store_views::StoreViews;
use crate::engine::decide::tell_thresholds::TellThresholds;
use crate::engine::decide::turn::KeyCounts;
use crate::engine::decide::verdict::{Basis, Verdict};
use crate::engine::reach::{Reach, Store};
use crate::engine::table::pinned::PinnedSlots;
use crate::engine::table::regional_part::RegionalPart;
use crate::engine::table::{NewKey, Shard, Slot, Table};

/// A slot of a locked shard while a decision is made on it.
pub(super) struct Spot<'s> {
    shard: u32,
    at: u32,
    slot: &'s mut Slot,
    part: Option<&'s mut RegionalPart>,
}

impl<'s> Spot<'s> {
    #[inline(always)]
    pub(super) fn new<const ALONE: bool>(shard: &'s mut Shard, number: u32, at: u32) -> Spot<'s> {
        if ALONE {
            return Spot { shard: number, at, slot: shard.slot(at), part: None };
        }
        let (slot, part) = shard.both(at);
        Spot { shard: number, at, slot, part }
    }

    /// The key's counts, for judging a check.
    #[inline(always)]
    pub(super) fn counts(&mut self) -> KeyCounts<'_> {
        KeyCounts { counter: &mut self.slot.counter, part: self.part.as_deref_mut() }
    }

    /// Marks a key as used. New terms end its pause: what the origin denied under another limit says nothing about this one.
    #[inline(always)]
    pub(super) fn touch(&mut self, table: &Table, check: &Check<'_>) {
        let has_changed = self.slot.touch(&check.terms);
        self.slot.is_global = check.is_global();
        if let Some(part) = self.part.as_deref_mut() {
            touch_part(table, (self.shard, self.at), self.slot, part, check, has_changed);
        }
    }

    /// Counts a check's hits, or gives them back, and queues the key so that its store hears of it. `is_counted`: the slot
    /// is new and its counter has the hits already.
    #[inline(always)]
    pub(super) fn charge(
        &mut self,
        table: &Table,
        check: &Check<'_>,
        is_counted: bool,
        thresholds: TellThresholds,
        assumed: u64,
    ) {
        match self.part.as_deref_mut().filter(|_| check.reach != Reach::Process) {
            None => {
                count(&mut self.slot.counter, check, is_counted);
                if self.slot.counter.is_divided() {
                    table.weigh(self.slot, self.part.as_deref());
                }
                if let Some(part) = self.part.as_deref_mut().filter(|_| check.charging != ChargeMode::Refund) {
                    part.accept(self.slot.counter.sequence(), check.hits);
                }
            }
            Some(_) => self.charge_part(table, check, is_counted, thresholds, assumed),
        }
    }

    fn charge_part(
        &mut self,
        table: &Table,
        check: &Check<'_>,
        is_counted: bool,
        thresholds: TellThresholds,
        assumed: u64,
    ) {
        let counter = &mut self.slot.counter;
        let Some(part) = self.part.as_deref_mut() else { return };
        part.follow(counter);
        let missing = count(counter, check, is_counted);
        let (mut is_due, mut is_urgent) = (true, false);
        if let Reach::Region { slack_permille } = check.reach {
            part.set_slack_permille(slack_permille);
        }
        if check.charging == ChargeMode::Refund {
            part.refund(check.hits, missing);
        } else {
            if assumed > 0
                && let Some(bucket) = counter.bucket_mut()
            {
                part.hold(bucket, &check.terms, check.hits, assumed);
            }
            let TellThresholds { due_at, urgent_at, .. } = thresholds;
            if let Some(bucket) = counter.bucket_mut() {
                part.pend_from(bucket.at_ms());
            }
            let before = part.pending();
            part.add(counter.sequence(), check.hits);
            let now = before.saturating_add(check.hits);
            is_due = now >= due_at;
            is_urgent = now >= urgent_at && (before < urgent_at || urgent_at == 0);
        }
        if is_due {
            table.enqueue(self.shard, self.at, part, is_urgent);
        }
        if counter.is_divided() || part.has_more_beside() {
            table.weigh(self.slot, Some(part));
        }
    }

    /// Has the store tell of the key with the next flush.
    #[cold]
    pub(super) fn read_behind(&mut self, table: &Table) {
        if let Some(part) = self.part.as_deref_mut() {
            part.want();
            table.enqueue(self.shard, self.at, part, false);
        }
    }

    /// Prolongs the wait of a check that is over and was charged all the same.
    #[inline(always)]
    pub(super) fn wait_longer(&mut self, verdict: &mut Verdict, check: &Check<'_>, hits: u64, now_ms: u64) {
        let before = (verdict.reset_ms, verdict.is_hopeless);
        let view = check.view(&mut self.slot.counter, self.part.as_deref());
        verdict.wait_for(view, &check.terms, hits, now_ms);
        if let Basis::Without(..) = verdict.basis {
            // The policy has its own idea of when it admits again.
            verdict.reset_ms = verdict.reset_ms.max(before.0);
            verdict.is_hopeless |= before.1;
        }
    }

    /// The milliseconds until the reset of a check that fits but is not charged, because another one denies the request.
    pub(super) fn reset_ms(&mut self, check: &Check<'_>, now_ms: u64) -> u64 {
        let counter = &mut self.slot.counter;
        let look = counter.look(&check.terms, now_ms);
        counter.resets_at_ms(&check.terms, &look, 0).saturating_sub(now_ms)
    }

    /// Queues the key for others: for regions that should know of its count, and for its store, which is asked again about
    /// once a second, in the background, while the key denies.
    #[inline(always)]
    pub(super) fn tell_others(&mut self, table: &Table, check: &Check<'_>, is_over: bool, views: &StoreViews<'_>) {
        let Some(part) = self.part.as_deref_mut() else { return };
        let (shard, at) = (self.shard, self.at);
        table.note(shard, at, self.slot, part);
        if part.is_unheard() {
            table.seek(shard, at, self.slot, part);
        }
        let is_regional = check.reach != Reach::Process;
        if is_over && is_regional && part.is_second_old(views.mono_ms) && !part.is_wanted() {
            part.want();
            table.enqueue(shard, at, part, false);
        }
    }
}

/// Counts a check's hits, or gives them back; a counter that was made for them has them already (`is_counted`). Returns how
/// many were to be given back and were not there.
#[inline(always)]
fn count(counter: &mut Counter, check: &Check<'_>, is_counted: bool) -> u64 {
    match check.charging {
        ChargeMode::Refund => return counter.refund(&check.terms, check.hits),
        ChargeMode::Together | ChargeMode::Always if is_counted => {}
        ChargeMode::Together | ChargeMode::Always => counter.add(&check.terms, check.hits),
    }
    0
}

/// Brings a key's part in the region in line with the rules in force, which may have changed since its last use.
fn touch_part(
    table: &Table,
    (number, at): (u32, u32),
    slot: &Slot,
    part: &mut RegionalPart,
    check: &Check<'_>,
    has_changed: bool,
) {
    if let Some(store) = check.reach.store().filter(|store| *store != part.store()) {
        part.move_to(store);
    }
    if has_changed {
        part.resume();
    }
    if part.mark_asked() {
        table.count_asked();
    }
    if !check.is_global() && part.foreign().is_some() {
        part.leave_foreign();
    }
    if part.is_sensitive() != check.is_sensitive {
        part.set_sensitive(check.is_sensitive);
        table.queue_digested(number, at, slot, part);
    }
}

/// Whether a check leaves its key in the table. A refund makes no key, unless a store has to hear of it.
pub(super) fn is_kept(table: &Table, check: &Check<'_>) -> bool {
    check.charging != ChargeMode::Refund || (table.is_shared() && check.reach != Reach::Process)
}

/// Adds a check's key to a locked shard, its hits counted already. `None` if there is no room.
pub(super) fn insert(
    table: &Table,
    shard: &mut Shard,
    pinned: &PinnedSlots,
    check: &Check<'_>,
    hash: u64,
    now_ms: u64,
) -> Option<u32> {
    let Check { key, terms, is_sensitive, reach, .. } = *check;
    let (store, is_global) = (reach.store().unwrap_or(Store::Origin), check.is_global());
    // With its hits, so that the table knows a key that is over its limit from the start.
    let mut counter = Counter::new(&terms, now_ms);
    if check.charging != ChargeMode::Refund {
        counter.add(&terms, check.hits);
    }
    table.insert(shard, pinned, NewKey { key, hash, terms, counter, store, is_sensitive, is_global }, now_ms)
}
