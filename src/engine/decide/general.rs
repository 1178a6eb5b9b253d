//! One decision over any number of keys, whatever stores have answered: all or nothing, under the locks of every shard
//! concerned.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::engine::count::counter::Counter;
use crate::engine::count::signed;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::decider::Decider;
use crate::engine::decide::given_back::GivenBack;
use crate::engine::decide::question::Why;
use crate::engine::decide::spot::{Spot, insert, is_kept};
use crate::engine::decide::tell_thresholds::TellThresholds;
use crate::engine::decide::turn::CheckTurn;
use crate::engine::decide::twins::{TwinSums, Twins};
use crate::engine::decide::verdict::Verdict;
use crate::engine::decide::{Case, GroupsOver, Outcome};
use crate::engine::steps;
use crate::engine::table::pinned::PinnedSlots;
use crate::engine::table::{Shard, Table};

/// Where a check's key is, and what was seen there.
#[derive(Clone, Copy)]
pub(super) struct CheckState {
    hash: u64,
    shard: u32,
    /// The place of the shard's guard among the guards.
    pub(super) guard: u32,
    /// `None` while the key is not in the table.
    pub(super) slot: Option<u32>,
    /// Known from this check's look on.
    pub(super) twins: Twins,
    /// When its store hears of what is charged.
    pub(super) thresholds: TellThresholds,
    /// Memory has answered a check without hits, and has the key read.
    is_read: bool,
    /// Why the check's store has to be asked, `None` if it has not.
    pub(super) asks: Option<Why>,
    /// Its store has charged it.
    pub(super) is_charged: bool,
}

impl Case<'_> {
    /// Decides any number of checks.
    pub(in crate::engine) fn decide_all(&self) -> Outcome {
        let mut outcome = Outcome::new();
        // Filled in place, because moving lists of this size costs time.
        let mut seen: SmallVec<[CheckState; 4]> = SmallVec::new();
        let mut guards: SmallVec<[MutexGuard<'_, Shard>; 4]> = SmallVec::new();
        seen.extend(self.checks.iter().map(|check| CheckState::new(self.table, check)));
        let is_crowded = lock_all(self.table, &mut seen, &mut guards);
        let is_answered = self.views.answers().next().is_some();
        let (guards, seen) = (&mut guards[..], &mut seen[..]);
        for (seen, check) in seen.iter_mut().zip(self.checks) {
            seen.slot = guards[seen.guard as usize].find(&check.key, seen.hash);
        }
        let (pinned, twin_sums, given_back) = (Vec::new(), None, None);
        let mut locked =
            LockedCase { case: self, guards, seen, is_answered, is_crowded, pinned, twin_sums, given_back };
        if is_answered {
            locked.find_charged();
        }
        if is_crowded {
            locked.find_twins();
        }

        locked.look_at_all(&mut outcome.verdicts);
        let over = self.groups_over(&outcome.verdicts);
        outcome.is_over = !self.is_shadow && locked.is_denied(&outcome.verdicts, &over);
        if !outcome.is_over && locked.seen.iter().any(|seen| seen.asks.is_some()) {
            outcome.questions = locked.questions(&outcome.verdicts, &over);
        }
        locked.charge_all(&mut outcome, &over);
        outcome.given_back = locked.given_back;
        outcome
    }
}

impl CheckState {
    #[inline]
    fn new(table: &Table, check: &Check<'_>) -> CheckState {
        let hash = table.hash(&check.key);
        let (shard, twins, thresholds) = (table.shard_of(hash), Twins::default(), TellThresholds::WITH_FLUSH);
        CheckState {
            hash,
            shard,
            guard: 0,
            slot: None,
            twins,
            thresholds,
            is_read: false,
            asks: None,
            is_charged: false,
        }
    }
}

/// Takes the locks of all shards concerned, in ascending order, each once, as every decision does. True if two keys share
/// a shard.
#[inline]
fn lock_all<'t>(table: &'t Table, seen: &mut [CheckState], guards: &mut SmallVec<[MutexGuard<'t, Shard>; 4]>) -> bool {
    // In the high half the shard's number, in the low half the check's.
    let mut order: SmallVec<[u64; 8]> = SmallVec::new();
    order.extend(seen.iter().zip(0..).map(|(seen, index)| u64::from(seen.shard) << 32 | index));
    order.sort_unstable();
    let mut last = None;
    for entry in &order {
        let (shard, index) = ((*entry >> 32) as u32, *entry as u32 as usize);
        if last != Some(shard) {
            guards.push(table.lock(shard));
            last = Some(shard);
        }
        seen[index].guard = guards.len() as u32 - 1;
    }
    guards.len() < seen.len()
}

/// A request while it holds the locks of all its keys.
pub(super) struct LockedCase<'b, 't> {
    /// The request to decide.
    pub(super) case: &'b Case<'b>,
    /// One for each shard concerned, in ascending order.
    pub(super) guards: &'b mut [MutexGuard<'t, Shard>],
    /// One for each check.
    pub(super) seen: &'b mut [CheckState],
    /// A store has answered.
    pub(super) is_answered: bool,
    /// Two keys share a shard: they may be the same.
    is_crowded: bool,
    /// The request's slots, for each guard. Filled when the first key is made, if the request is crowded; empty before.
    pinned: Vec<PinnedSlots>,
    /// `None` if all keys are different.
    pub(super) twin_sums: Option<TwinSums>,
    /// Hits that this attempt has given back, `None` if there are none.
    pub(super) given_back: Option<Box<GivenBack>>,
}

impl LockedCase<'_, '_> {
    /// Reads all keys, the first check before the second.
    #[inline]
    fn look_at_all(&mut self, verdicts: &mut SmallVec<[Verdict; 4]>) {
        for (index, check) in self.case.checks.iter().enumerate() {
            let verdict = self.look(index);
            let is_waiting = check.charging == ChargeMode::Together && (!verdict.is_over || self.case.is_quiet(check));
            if let Some(sums) = self.twin_sums.as_mut().filter(|_| is_waiting && !self.seen[index].is_charged) {
                sums.wait(index, check.hits);
            }
            verdicts.push(verdict);
        }
    }

    /// Reads a key and applies what does not wait for the verdict.
    #[inline]
    fn look(&mut self, index: usize) -> Verdict {
        let Case { table, checks, views, .. } = *self.case;
        let check = &checks[index];
        let is_quiet = self.case.is_quiet(check);
        steps::count();
        let twins = self.twins(index);
        let is_given_back = check.charging == ChargeMode::Refund && !views.is_again && self.twin_sums.is_some();
        let before = if is_given_back { self.available(index) } else { 0 };
        let seen = &mut self.seen[index];
        seen.twins = twins;
        let turn = CheckTurn { check, index, twins, is_quiet };
        let (mut verdict, decider) = match seen.slot {
            Some(at) => {
                let mut spot = Spot::new::<false>(&mut self.guards[seen.guard as usize], seen.shard, at);
                spot.touch(table, check);
                self.case.assess::<false>(&turn, spot.counts())
            }
            None => self.case.assess_unknown::<false>(&turn),
        };
        seen.thresholds = decider.thresholds();
        seen.is_read = decider == Decider::MemoryReads;
        if let Decider::Asks(why) = decider {
            seen.asks = Some(why);
        }
        if is_given_back && let Ok(more @ 1..) = u64::try_from(verdict.available.saturating_sub(before)) {
            self.given_back.get_or_insert_default().push(index, more);
        }
        if self.is_answered && !is_quiet {
            self.settle(index, &mut verdict);
        }
        if check.charging != ChargeMode::Together && !views.is_again && check.hits > 0 {
            self.charge_now(index, &mut verdict);
        }
        verdict
    }

    /// Finds the checks that have the same key, and what of them is in the count already.
    #[cold]
    fn find_twins(&mut self) {
        let checks = self.case.checks;
        let Some(mut sums) = TwinSums::find(checks, |check| self.seen[check].hash) else { return };
        (0..checks.len()).for_each(|index| sums.count(index, self.counted(index)));
        self.twin_sums = Some(sums);
    }

    /// How much of a check is in the count already when it is looked at: its hits, or below zero those it has given back.
    #[inline]
    fn counted(&self, index: usize) -> i64 {
        let Check { charging, hits, .. } = self.case.checks[index];
        let views = self.case.views;
        match charging {
            ChargeMode::Together if self.seen[index].is_charged => signed(hits),
            ChargeMode::Always if views.is_again => signed(hits),
            ChargeMode::Refund if views.is_again => -given_back(views.given_back, index),
            ChargeMode::Together | ChargeMode::Always | ChargeMode::Refund => 0,
        }
    }

    /// What the other checks with the key of this one mean for it.
    #[inline]
    fn twins(&mut self, index: usize) -> Twins {
        let check = &self.case.checks[index];
        if self.is_crowded {
            // A twin may have made the slot.
            let CheckState { hash, guard, .. } = self.seen[index];
            self.seen[index].slot = self.guards[guard as usize].find(&check.key, hash);
        }
        let (counted, is_refund) = (self.counted(index), check.charging == ChargeMode::Refund);
        match &mut self.twin_sums {
            Some(sums) => sums.look(index, counted, is_refund),
            None => Twins { waiting: 0, counted: if is_refund { 0 } else { counted } },
        }
    }

    /// How many hits fit on a key as it is.
    fn available(&mut self, index: usize) -> i64 {
        let Case { checks, now_ms, .. } = *self.case;
        let check = &checks[index];
        let CheckState { guard, slot, .. } = self.seen[index];
        let Some(slot) = slot else { return check.terms.capacity().into() };
        let (slot, part) = self.guards[guard as usize].both(slot);
        check.view(&mut slot.counter, part.as_deref()).look(&check.terms, now_ms).available
    }

    /// Charges what the overall verdict allows, and fills in what it settles.
    #[inline]
    fn charge_all(&mut self, outcome: &mut Outcome, over: &GroupsOver) {
        let case = self.case;
        let is_charging = !outcome.is_over && outcome.questions.is_empty();
        for (index, check) in case.checks.iter().enumerate() {
            let is_charged = is_charging && case.is_charged(&case.groups[check.group], over.contains(check.group));
            let verdict = &mut outcome.verdicts[index];
            let charged = match check.charging {
                ChargeMode::Together if !is_charged && self.seen[index].is_charged && outcome.questions.is_empty() => {
                    self.take_back(index);
                    0
                }
                ChargeMode::Together if !is_charged => 0,
                ChargeMode::Together => {
                    self.charge(index, verdict);
                    check.hits
                }
                ChargeMode::Always | ChargeMode::Refund => check.hits,
            };
            let waiting = if outcome.is_over { 0 } else { self.seen[index].twins.waiting };
            verdict.conclude(check, charged, waiting);
            if charged < check.hits && !verdict.is_over {
                verdict.reset_ms = self.reset_uncharged_ms(index);
            }
            if self.seen[index].is_read {
                self.read_behind(index);
            }
            if case.table.is_shared() {
                self.tell_others(index, outcome.verdicts[index].is_over);
            }
        }
    }

    /// Charges a check whose request is admitted. If it is over all the same, in shadow, the charge prolongs its wait.
    #[inline]
    fn charge(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.case.checks[index];
        if check.hits > 0 && !self.seen[index].is_charged {
            self.charge_now(index, verdict);
        }
    }

    /// The store has charged a check, and another one denies the request. The store keeps what it has charged in this process's
    /// field, and the next hits on the key use it up.
    #[cold]
    fn take_back(&mut self, index: usize) {
        let check = &self.case.checks[index];
        let CheckState { guard, slot, .. } = self.seen[index];
        let Some(slot) = slot else { return };
        let (slot, part) = self.guards[guard as usize].both(slot);
        if part.is_some_and(|part| part.take_back(check.hits)) {
            slot.counter.take_back(&check.terms, check.hits);
        }
    }

    #[inline]
    fn charge_now(&mut self, index: usize, verdict: &mut Verdict) {
        let Case { table, checks, now_ms, .. } = *self.case;
        let check = &checks[index];
        let is_new = self.seen[index].slot.is_none() && self.make_slot(index);
        let seen = &self.seen[index];
        let Some(at) = seen.slot else { return };
        let mut spot = Spot::new::<false>(&mut self.guards[seen.guard as usize], seen.shard, at);
        spot.charge(table, check, is_new, seen.thresholds, self.case.assumed(check, verdict));
        if verdict.is_over {
            spot.wait_longer(verdict, check, seen.twins.needed(check), now_ms);
        }
    }

    /// Makes a slot for a key that had none, if it is to have one. False if a twin has made it meanwhile.
    #[cold]
    fn make_slot(&mut self, index: usize) -> bool {
        let Case { table, checks, now_ms, .. } = *self.case;
        let check = &checks[index];
        let CheckState { hash, guard, .. } = self.seen[index];
        let guard = guard as usize;
        let made = self.guards[guard].find(&check.key, hash);
        self.seen[index].slot = match made {
            None if is_kept(table, check) => {
                if self.is_crowded && self.pinned.is_empty() {
                    self.pin();
                }
                let pinned = self.pinned.get(guard).unwrap_or(PinnedSlots::none());
                insert(table, &mut self.guards[guard], pinned, check, hash, now_ms)
            }
            made => made,
        };
        if let (Some(slot), Some(pinned)) = (self.seen[index].slot, self.pinned.get_mut(guard)) {
            pinned.add(slot);
        }
        made.is_none()
    }

    /// Pins the slots of this request: they must not make room for each other.
    fn pin(&mut self) {
        self.pinned.resize_with(self.guards.len(), PinnedSlots::default);
        for seen in &*self.seen {
            if let Some(slot) = seen.slot {
                self.pinned[seen.guard as usize].add(slot);
            }
        }
    }

    /// The milliseconds until the reset of a check that fits but is not charged, because another one denies the request.
    pub(super) fn reset_uncharged_ms(&mut self, index: usize) -> u64 {
        let Case { checks, now_ms, .. } = *self.case;
        let check = &checks[index];
        let CheckState { guard, slot, .. } = self.seen[index];
        let mut fresh = Counter::new(&check.terms, now_ms);
        let counter = match slot {
            Some(slot) => &mut self.guards[guard as usize].slot(slot).counter,
            None => &mut fresh,
        };
        let look = counter.look(&check.terms, now_ms);
        counter.resets_at_ms(&check.terms, &look, 0).saturating_sub(now_ms)
    }

    /// Has a key read that a check without hits asks about.
    #[cold]
    fn read_behind(&mut self, index: usize) {
        if self.seen[index].slot.is_none() {
            self.make_slot(index);
        }
        let CheckState { guard, slot, shard, .. } = self.seen[index];
        if let Some(slot) = slot {
            Spot::new::<false>(&mut self.guards[guard as usize], shard, slot).read_behind(self.case.table);
        }
    }

    fn tell_others(&mut self, index: usize, is_over: bool) {
        let CheckState { guard, slot, shard, .. } = self.seen[index];
        if let Some(slot) = slot {
            let mut spot = Spot::new::<false>(&mut self.guards[guard as usize], shard, slot);
            spot.tell_others(self.case.table, &self.case.checks[index], is_over, self.case.views);
        }
    }
}

/// How many hits a check has given back, 0 if nothing is known.
pub(super) fn given_back(given_back: Option<&GivenBack>, index: usize) -> i64 {
    given_back.map_or(0, |given_back| signed(given_back.by(index)))
}
