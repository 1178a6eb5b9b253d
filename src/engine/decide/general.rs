//! One decision over several keys, or one that a store has settled: all or nothing, under the locks of every shard.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::engine::count::counter::Counter;
use crate::engine::decide::decider::{Asking, CheckAnswer, Consult, Decider, Question, Why, is_judged};
use crate::engine::decide::given_back::GivenBack;
use crate::engine::decide::kin::Kin;
use crate::engine::decide::spot::{Spot, insert, is_kept};
use crate::engine::decide::twins::Twins;
use crate::engine::decide::{
    Basis, Charging, Check, Group, GroupsOver, Outcome, Verdict, assess, assess_unknown, assumed, conclude, denies,
    groups_over, is_charged,
};
use crate::engine::reach::Store;
use crate::engine::steps;
use crate::engine::table::pinned::Pinned;
use crate::engine::table::{Shard, Table};

/// As [`Seen::urgent_at`]: whatever is pending.
const ALWAYS_URGENT: u64 = 0;

/// Where a check's key is, and what was seen there.
#[derive(Clone, Copy)]
struct Seen {
    hash: u64,
    shard: u32,
    /// Into the guards.
    guard: u32,
    slot: Option<u32>,
    twins: Twins,
    /// So many pending hits are told at once.
    urgent_at: u64,
    /// The origin has to be asked.
    asks: Option<Why>,
    /// Its store has charged it.
    is_charged: bool,
}

pub(in crate::engine) fn decide_all(
    table: &Table,
    checks: &[Check<'_>],
    groups: &[Group],
    is_shadow: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> Outcome {
    let mut outcome = Outcome::new();
    // Filled where they are: lists of this size are not moved for nothing.
    let mut seen: SmallVec<[Seen; 4]> = SmallVec::new();
    let mut guards: SmallVec<[MutexGuard<'_, Shard>; 4]> = SmallVec::new();
    seen.extend(checks.iter().map(|check| Seen::new(table, check)));
    let is_crowded = lock_all(table, &mut seen, &mut guards);
    let is_settled = consult.all_settled().next().is_some();
    let (guards, seen) = (&mut guards[..], &mut seen[..]);
    for (seen, check) in seen.iter_mut().zip(checks) {
        seen.slot = guards[seen.guard as usize].find(&check.key, seen.hash);
    }
    let (pinned, kin, given_back) = (Vec::new(), None, None);
    let mut batch =
        Batch { table, checks, guards, seen, now_ms, consult, is_settled, is_crowded, pinned, kin, given_back };
    if is_settled {
        batch.find_charged(groups);
    }
    if is_crowded {
        batch.find_kin();
    }

    for (index, check) in checks.iter().enumerate() {
        let Group { is_shadow: is_group_shadow, is_quota } = groups[check.group];
        let is_quiet = is_shadow || is_group_shadow;
        let verdict = batch.look(index, is_quiet, is_quota);
        let is_waiting = check.charging == Charging::Together && (!verdict.is_over || is_quiet);
        if let Some(kin) = batch.kin.as_mut().filter(|_| is_waiting && !batch.seen[index].is_charged) {
            kin.wait(index, check.hits);
        }
        outcome.verdicts.push(verdict);
    }
    let verdicts = &mut outcome.verdicts[..];
    let over = groups_over(checks, groups, verdicts);
    let is_over = !is_shadow && batch.is_denied(groups, verdicts, &over);
    if !is_over && batch.seen.iter().any(|seen| seen.asks.is_some()) {
        outcome.questions = batch.questions(groups, verdicts, &over, is_shadow);
    }
    let is_asked = !outcome.questions.is_empty();
    for (index, check) in checks.iter().enumerate() {
        let is_group_over = over.contains(check.group);
        let is_charged = !is_over && !is_asked && is_charged(&groups[check.group], is_group_over, is_shadow);
        let verdict = &mut verdicts[index];
        let charged = match check.charging {
            Charging::Together if !is_charged => 0,
            Charging::Together => {
                batch.charge(index, verdict);
                check.hits
            }
            Charging::Always | Charging::Refund => check.hits,
        };
        let waiting = if is_over { 0 } else { batch.seen[index].twins.waiting };
        conclude(verdict, check, charged, waiting);
        if charged < check.hits && !verdict.is_over {
            verdict.reset_ms = batch.reset_uncharged_ms(index);
        }
        if table.is_shared() {
            batch.tell_others(index, verdict.is_over);
        }
    }
    outcome.given_back = batch.given_back;
    outcome.is_over = is_over;
    outcome
}

impl Seen {
    #[inline]
    fn new(table: &Table, check: &Check<'_>) -> Seen {
        let hash = table.hash(&check.key);
        let (shard, twins) = (table.shard_of(hash), Twins::default());
        Seen { hash, shard, guard: 0, slot: None, twins, urgent_at: u64::MAX, asks: None, is_charged: false }
    }
}

/// Takes the locks of all shards concerned, in ascending order, each once, as every batch does. True if two keys share
/// a shard.
#[inline]
fn lock_all<'t>(table: &'t Table, seen: &mut [Seen], guards: &mut SmallVec<[MutexGuard<'t, Shard>; 4]>) -> bool {
    // A shard's number above, whose it is below.
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
struct Batch<'b, 't> {
    table: &'t Table,
    checks: &'b [Check<'b>],
    guards: &'b mut [MutexGuard<'t, Shard>],
    seen: &'b mut [Seen],
    now_ms: u64,
    consult: &'b Consult<'b>,
    /// A store has said something.
    is_settled: bool,
    /// Two keys share a shard: they may be the same.
    is_crowded: bool,
    /// For each guard, from when a key is first made where there are others.
    pinned: Vec<Pinned>,
    /// If any two keys are the same.
    kin: Option<Kin>,
    /// By this look.
    given_back: Option<Box<GivenBack>>,
}

impl Batch<'_, '_> {
    /// Reads a key and applies what does not wait for the verdict.
    #[inline]
    fn look(&mut self, index: usize, is_quiet: bool, is_quota: bool) -> Verdict {
        let (table, now_ms, consult) = (self.table, self.now_ms, self.consult);
        let check = &self.checks[index];
        steps::count();
        let twins = self.twins(index);
        let is_given_back = check.charging == Charging::Refund && !consult.is_again && self.kin.is_some();
        let before = if is_given_back { self.available(index) } else { 0 };
        let seen = &mut self.seen[index];
        seen.twins = twins;
        let (mut verdict, standing) = match seen.slot {
            Some(at) => {
                let mut spot = Spot::new::<false>(&mut self.guards[seen.guard as usize], seen.shard, at);
                spot.touch(table, check);
                assess::<false>(check, &mut spot.slot.counter, spot.shared, twins, is_quiet, now_ms, consult)
            }
            None => assess_unknown::<false>(check, twins, is_quiet, now_ms, consult),
        };
        seen.urgent_at = standing.urgent_at();
        if let Decider::Asks(why) = standing {
            seen.asks = Some(why);
        }
        if is_given_back && let Ok(more @ 1..) = u64::try_from(verdict.available.saturating_sub(before)) {
            self.given_back.get_or_insert_default().push(index, more);
        }
        if self.is_settled && !is_quiet {
            self.settle(index, is_quota, &mut verdict);
        }
        if check.charging != Charging::Together && !consult.is_again && check.hits > 0 {
            self.charge_now(index, &mut verdict);
        }
        verdict
    }

    /// Finds what the stores have charged. They do not charge a quota that is over by another of its limits.
    #[cold]
    fn find_charged(&mut self, groups: &[Group]) {
        let mut over: SmallVec<[bool; 8]> = SmallVec::from_elem(false, groups.len());
        for (index, check) in self.checks.iter().enumerate() {
            let settled = self.consult.settled(check).filter(|settled| settled.is_charged && settled.is_admitted);
            let answered = settled.map_or(CheckAnswer::NotAsked, |settled| settled.answered(index));
            self.seen[index].is_charged = answered == CheckAnswer::Fits;
            over[check.group] |= answered == CheckAnswer::Over;
        }
        for (seen, check) in self.seen.iter_mut().zip(self.checks) {
            seen.is_charged &= !over[check.group];
        }
    }

    /// Finds the checks that have the same key, and what of them is in the count already.
    #[cold]
    fn find_kin(&mut self) {
        let Some(mut kin) = Kin::find(self.checks, |check| self.seen[check].hash) else { return };
        (0..self.checks.len()).for_each(|index| kin.count(index, self.counted(index)));
        self.kin = Some(kin);
    }

    /// What of a check is in the count already when it is looked at: hits, or below zero what was given back.
    #[inline]
    fn counted(&self, index: usize) -> i64 {
        let Check { charging, hits, .. } = self.checks[index];
        let hits = i64::try_from(hits).unwrap_or(i64::MAX);
        match charging {
            Charging::Together if self.seen[index].is_charged => hits,
            Charging::Always if self.consult.is_again => hits,
            Charging::Refund if self.consult.is_again => -given_back(self.consult.given_back, index),
            Charging::Together | Charging::Always | Charging::Refund => 0,
        }
    }

    /// What the other checks with the key of this one mean for it.
    #[inline]
    fn twins(&mut self, index: usize) -> Twins {
        if self.is_crowded {
            // A twin may have made the slot.
            let Seen { hash, guard, .. } = self.seen[index];
            self.seen[index].slot = self.guards[guard as usize].find(&self.checks[index].key, hash);
        }
        let (counted, is_refund) = (self.counted(index), self.checks[index].charging == Charging::Refund);
        match &mut self.kin {
            Some(kin) => kin.look(index, counted, is_refund),
            None => Twins { waiting: 0, counted: if is_refund { 0 } else { counted } },
        }
    }

    /// What fits on a key as it is.
    fn available(&mut self, index: usize) -> i64 {
        let check = &self.checks[index];
        let Seen { guard, slot, .. } = self.seen[index];
        let Some(slot) = slot else { return check.terms.capacity().into() };
        let (slot, shared) = self.guards[guard as usize].both(slot);
        check.view(&mut slot.counter, shared.as_deref()).look(&check.terms, self.now_ms).available
    }

    /// Whether the request is denied: by the store that decides it, otherwise by what is known here and elsewhere.
    fn is_denied(&self, groups: &[Group], verdicts: &[Verdict], over: &GroupsOver) -> bool {
        if !self.is_settled {
            return denies(groups, over);
        }
        let mut is_charged = false;
        for settled in self.consult.all_settled() {
            if !settled.is_admitted {
                return true;
            }
            is_charged |= settled.is_charged;
        }
        if !is_charged {
            return denies(groups, over);
        }
        // The store does not know of those that it was only told about.
        self.checks.iter().zip(verdicts).any(|(check, verdict)| {
            let Group { is_shadow, is_quota } = groups[check.group];
            verdict.is_over && check.charging == Charging::Always && !is_shadow && !is_quota
        })
    }

    /// Puts a store's word in the place of what memory says. What the farthest has admitted, the nearer ones charge.
    fn settle(&mut self, index: usize, is_quota: bool, verdict: &mut Verdict) {
        let check = &self.checks[index];
        if check.charging != Charging::Together {
            return;
        }
        let own = self.consult.settled(check);
        let answered = own.map_or(CheckAnswer::NotAsked, |settled| settled.answered(index));
        let is_charged_elsewhere = self.consult.all_settled().any(|settled| settled.is_charged && settled.is_admitted);
        if answered == CheckAnswer::NotAsked && (is_quota || !is_charged_elsewhere) {
            return;
        }
        verdict.basis = match (check.reach.store(), verdict.basis) {
            (Some(store), _) if answered != CheckAnswer::NotAsked => Basis::Store(store),
            // Its own store gave no answer, and its policy has let it pass.
            (_, basis @ Basis::Without(..)) if !verdict.is_over => basis,
            // Another store has decided, whatever became of its own.
            _ => Basis::Memory,
        };
        if is_charged_elsewhere && answered != CheckAnswer::Over {
            // Nobody that asks its own store knows of it before that has been told.
            self.seen[index].urgent_at = ALWAYS_URGENT;
        }
        let was_over = verdict.is_over;
        verdict.is_over = answered == CheckAnswer::Over;
        if was_over == verdict.is_over {
            return;
        }
        if !verdict.is_over {
            verdict.is_hopeless = false;
            verdict.reset_ms = self.reset_uncharged_ms(index);
            return;
        }
        let Seen { guard, slot, twins, .. } = self.seen[index];
        let mut fresh = Counter::new(&check.terms, self.now_ms);
        let (counter, shared) = match slot {
            Some(slot) => {
                let (slot, shared) = self.guards[guard as usize].both(slot);
                (&mut slot.counter, shared)
            }
            None => (&mut fresh, None),
        };
        let view = check.view(counter, shared.as_deref());
        verdict.wait_for(view, &check.terms, twins.needed(check), self.now_ms);
        let paused_ms = shared.and_then(|shared| shared.paused_for_ms(check.hits, self.consult.mono_ms));
        verdict.reset_ms = verdict.reset_ms.max(paused_ms.unwrap_or(0)).max(1);
    }

    /// What to ask before this can be decided: if one check of a store asks, all of that store are in the same call.
    fn questions(
        &self,
        groups: &[Group],
        verdicts: &[Verdict],
        over: &GroupsOver,
        is_shadow: bool,
    ) -> SmallVec<[Question; 2]> {
        // Whoever has charged has decided: nobody is asked after it.
        if self.consult.all_settled().any(|settled| settled.is_charged && settled.is_admitted) {
            return SmallVec::new();
        }
        let asks = |store: Store| {
            let of_store =
                |(check, seen): (&Check<'_>, &Seen)| check.reach.store() == Some(store) && seen.asks.is_some();
            self.checks.iter().zip(self.seen.iter()).any(of_store)
        };
        let is_asked = [Store::Origin, Store::Owner].map(asks);
        let counted_after = self.counted_after(groups, is_shadow);
        let mut questions: SmallVec<[Question; 2]> = SmallVec::new();
        let mut spent: SmallVec<[bool; 8]> = SmallVec::from_elem(false, groups.len());
        for (index, check) in self.checks.iter().enumerate() {
            steps::count();
            let question = self.question(index, is_asked, &counted_after, is_shadow || groups[check.group].is_shadow);
            // What no store is to judge stays as it is.
            spent[check.group] |= verdicts[index].is_over && !question.is_some_and(|question| question.is_judged);
            questions.extend(question);
        }
        // A quota that is over by another of its limits is not charged, so no store must charge it. The nearer ones may
        // still find that what memory takes for over is not.
        questions.retain(|question| {
            let group = self.checks[question.check].group;
            let is_quota = groups[group].is_quota && !groups[group].is_shadow && !is_shadow;
            let is_spent = if question.store == Store::Owner { over.contains(group) } else { spent[group] };
            !(is_quota && is_spent)
        });
        questions
    }

    /// What to ask about a check, if its store is asked at all.
    fn question(&self, index: usize, is_asked: [bool; 2], counted_after: &[i64], is_quiet: bool) -> Option<Question> {
        let check = &self.checks[index];
        let store = check.reach.store().filter(|store| is_asked[*store as usize])?;
        // What its policy has decided, nobody is asked about.
        if let Some(Asking::Never(_)) = self.consult.asking(check) {
            return None;
        }
        let counted_after = counted_after.get(index).copied().unwrap_or(0);
        // What was given back after it may show that it was over: then there is nothing to ask.
        let can_fit = i64::from(check.terms.capacity()).saturating_add(counted_after) >= 0;
        let is_judged = is_judged(check, is_quiet) && can_fit;
        let asks = self.seen[index].asks;
        let why = asks.unwrap_or(Why::Together);
        (is_judged || asks.is_some()).then_some(Question { check: index, store, is_judged, counted_after, why })
    }

    /// For each check what [`Question::counted_after`] says; empty if all keys are different.
    fn counted_after(&self, groups: &[Group], is_shadow: bool) -> Vec<i64> {
        let Some(kin) = &self.kin else { return Vec::new() };
        let given_back = |index| match self.consult.is_again {
            true => given_back(self.consult.given_back, index),
            false => given_back(self.given_back.as_deref(), index),
        };
        let by_now = |index: usize| match self.checks[index].charging {
            Charging::Together => 0,
            Charging::Always => i64::try_from(self.checks[index].hits).unwrap_or(i64::MAX),
            Charging::Refund => -given_back(index),
        };
        let unasked = |index: usize| {
            let check = &self.checks[index];
            let is_quiet = is_shadow || groups[check.group].is_shadow;
            if check.charging == Charging::Together && is_quiet { check.hits } else { 0 }
        };
        kin.after(by_now, unasked)
    }

    /// Charges a check whose request was admitted. One that is over all the same, in shadow, has longer to wait for it.
    #[inline]
    fn charge(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.checks[index];
        if check.hits > 0 && !self.seen[index].is_charged {
            self.charge_now(index, verdict);
        }
    }

    #[inline]
    fn charge_now(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.checks[index];
        let is_new = self.seen[index].slot.is_none() && self.make_slot(index);
        let seen = &self.seen[index];
        let Some(at) = seen.slot else { return };
        let mut spot = Spot::new::<false>(&mut self.guards[seen.guard as usize], seen.shard, at);
        spot.charge(self.table, check, is_new, seen.urgent_at, assumed(check, verdict, self.consult));
        if verdict.is_over {
            spot.wait_longer(verdict, check, seen.twins.needed(check), self.now_ms);
        }
    }

    /// Makes a slot for a key that had none, if it is to have one. False if a twin has made it meanwhile.
    #[cold]
    fn make_slot(&mut self, index: usize) -> bool {
        let check = &self.checks[index];
        let Seen { hash, guard, .. } = self.seen[index];
        let guard = guard as usize;
        let made = self.guards[guard].find(&check.key, hash);
        self.seen[index].slot = match made {
            None if is_kept(self.table, check) => {
                if self.is_crowded && self.pinned.is_empty() {
                    self.pin();
                }
                let pinned = self.pinned.get(guard).unwrap_or(Pinned::none());
                insert(self.table, &mut self.guards[guard], pinned, check, hash, self.now_ms)
            }
            made => made,
        };
        if let (Some(slot), Some(pinned)) = (self.seen[index].slot, self.pinned.get_mut(guard)) {
            pinned.add(slot);
        }
        made.is_none()
    }

    /// The slots of this request must not make room for each other.
    fn pin(&mut self) {
        self.pinned.resize_with(self.guards.len(), Pinned::default);
        for seen in &*self.seen {
            if let Some(slot) = seen.slot {
                self.pinned[seen.guard as usize].add(slot);
            }
        }
    }

    /// The reset of a check that fits but is not charged, because another one denies the request.
    fn reset_uncharged_ms(&mut self, index: usize) -> u64 {
        let check = &self.checks[index];
        let Seen { guard, slot, .. } = self.seen[index];
        let mut fresh = Counter::new(&check.terms, self.now_ms);
        let counter = match slot {
            Some(slot) => &mut self.guards[guard as usize].slot(slot).counter,
            None => &mut fresh,
        };
        let look = counter.look(&check.terms, self.now_ms);
        counter.resets_at_ms(&check.terms, &look, 0).saturating_sub(self.now_ms)
    }

    fn tell_others(&mut self, index: usize, is_over: bool) {
        let Seen { guard, slot, shard, .. } = self.seen[index];
        if let Some(slot) = slot {
            let mut spot = Spot::new::<false>(&mut self.guards[guard as usize], shard, slot);
            spot.tell_others(self.table, &self.checks[index], is_over, self.consult);
        }
    }
}

/// What a check has given back, as far as one knows.
fn given_back(given_back: Option<&GivenBack>, index: usize) -> i64 {
    given_back.map_or(0, |given_back| i64::try_from(given_back.by(index)).unwrap_or(i64::MAX))
}
