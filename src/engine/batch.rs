//! One decision over several keys, or one that a store has settled: all or nothing, under the locks of every shard.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use crate::engine::counter::Counter;
use crate::engine::decide::{
    Basis, Charging, Check, Group, Outcome, Spot, Verdict, assess, assess_unknown, assumed, charges_group, conclude,
    denies, insert, is_group_over, is_kept,
};
use crate::engine::layers::Store;
use crate::engine::standing::{Answered, Asking, Consult, Question, Standing, Why, is_judged};
use crate::engine::table::{Shard, Table};

/// As [`Seen::urgent_at`]: whatever is pending.
const ALWAYS_URGENT: u64 = 0;

/// Where a check's key is, and what was seen there.
#[derive(Clone, Copy)]
struct Seen {
    hash: u64,
    shard: u32,
    /// Into the guards.
    guard: usize,
    slot: Option<u32>,
    /// Hits of earlier checks of this request on the same key that wait for the verdict.
    waiting: u64,
    /// The hits are charged if the request is admitted.
    counts: bool,
    /// The origin has to be asked.
    asks: Option<Why>,
    /// So many pending hits are told at once.
    urgent_at: u64,
}

pub(super) fn decide_all(
    table: &Table,
    checks: &[Check<'_>],
    groups: &[Group],
    is_shadow: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> Outcome {
    let mut outcome = Outcome { is_over: false, verdicts: SmallVec::new(), questions: SmallVec::new() };
    // Filled where they are: lists of this size are not moved for nothing.
    let mut seen: SmallVec<[Seen; 4]> = SmallVec::new();
    let mut guards: SmallVec<[MutexGuard<'_, Shard>; 4]> = SmallVec::new();
    seen.extend(checks.iter().map(|check| Seen::new(table, check)));
    let is_crowded = lock_all(table, &mut seen, &mut guards);
    let is_settled = consult.all_settled().next().is_some();
    let (guards, seen) = (&mut guards[..], &mut seen[..]);
    for (seen, check) in seen.iter_mut().zip(checks) {
        seen.slot = guards[seen.guard].find(&check.key, seen.hash);
    }
    let mut batch = Batch { table, checks, guards, seen, now_ms, consult, is_settled, is_crowded };

    for (index, check) in checks.iter().enumerate() {
        let Group { is_shadow: is_group_shadow, is_quota } = groups[check.group];
        let is_quiet = is_shadow || is_group_shadow;
        let verdict = batch.look(index, is_quiet, is_quota);
        batch.seen[index].counts = check.charging == Charging::Together && (!verdict.is_over || is_quiet);
        outcome.verdicts.push(verdict);
    }
    let verdicts = &mut outcome.verdicts[..];
    let is_over = !is_shadow && batch.is_denied(groups, verdicts);
    if !is_over && batch.seen.iter().any(|seen| seen.asks.is_some()) {
        outcome.questions = batch.questions(groups, verdicts, is_shadow);
    }
    let is_asked = !outcome.questions.is_empty();
    for (index, check) in checks.iter().enumerate() {
        let is_charged = !is_over && !is_asked && charges_group(checks, groups, verdicts, check.group, is_shadow);
        let verdict = &mut verdicts[index];
        let charged = match check.charging {
            Charging::Together if !is_charged => 0,
            Charging::Together => {
                batch.charge(index, verdict);
                check.hits
            }
            Charging::Always | Charging::Refund => check.hits,
        };
        let waiting = if is_over { 0 } else { batch.seen[index].waiting };
        conclude(verdict, check, charged, waiting);
        if charged < check.hits && !verdict.is_over {
            verdict.reset_ms = batch.reset_uncharged_ms(index);
        }
        if table.is_shared() {
            batch.tell_others(index, verdict.is_over);
        }
    }
    outcome.is_over = is_over;
    outcome
}

impl Seen {
    #[inline]
    fn new(table: &Table, check: &Check<'_>) -> Seen {
        let hash = table.hash(&check.key);
        let shard = table.shard_of(hash);
        Seen { hash, shard, guard: 0, slot: None, waiting: 0, counts: false, asks: None, urgent_at: u64::MAX }
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
        seen[index].guard = guards.len() - 1;
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
}

impl Batch<'_, '_> {
    /// Reads a key and applies what does not wait for the verdict.
    #[inline]
    fn look(&mut self, index: usize, is_quiet: bool, is_quota: bool) -> Verdict {
        let (table, now_ms, consult) = (self.table, self.now_ms, self.consult);
        let check = &self.checks[index];
        let waiting = if self.is_crowded { self.look_back(index) } else { 0 };
        let seen = &mut self.seen[index];
        let (mut verdict, standing) = match seen.slot {
            Some(at) => {
                let mut spot = Spot::new::<false>(&mut self.guards[seen.guard], seen.shard, at);
                spot.touch(table, check);
                assess::<false>(check, &mut spot.slot.counter, spot.shared, waiting, is_quiet, now_ms, consult)
            }
            None => assess_unknown::<false>(check, waiting, is_quiet, now_ms, consult),
        };
        seen.urgent_at = standing.urgent_at();
        if let Standing::Asks(why) = standing {
            seen.asks = Some(why);
        }
        if self.is_settled && !is_quiet {
            self.settle(index, is_quota, &mut verdict);
        }
        if check.charging != Charging::Together && !consult.is_again && check.hits > 0 {
            self.charge_now(index, &mut verdict);
        }
        verdict
    }

    /// Finds what earlier checks of the request have left for this one, and returns the hits that wait.
    #[cold]
    fn look_back(&mut self, index: usize) -> u64 {
        let waiting = self.waiting_before(index);
        let Seen { hash, guard, .. } = self.seen[index];
        self.seen[index].waiting = waiting;
        // A twin may have made the slot, or its slot may have been given up for another.
        self.seen[index].slot = self.guards[guard].find(&self.checks[index].key, hash);
        waiting
    }

    /// Whether the request is denied: by the store that decides it, otherwise by what is known here and elsewhere.
    fn is_denied(&self, groups: &[Group], verdicts: &[Verdict]) -> bool {
        if !self.is_settled {
            return denies(self.checks, groups, verdicts);
        }
        let mut is_charged = false;
        for settled in self.consult.all_settled() {
            if !settled.is_admitted {
                return true;
            }
            is_charged |= settled.is_charged;
        }
        if !is_charged {
            return denies(self.checks, groups, verdicts);
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
        let answered = own.map_or(Answered::NotAsked, |settled| settled.answered(index));
        let is_charged_elsewhere = self.consult.all_settled().any(|settled| settled.is_charged && settled.is_admitted);
        if answered == Answered::NotAsked && (is_quota || !is_charged_elsewhere) {
            return;
        }
        verdict.basis = match (check.reach.store(), verdict.basis) {
            (Some(store), _) if answered != Answered::NotAsked => Basis::Store(store),
            // Its own store gave no answer, and its policy has let it pass.
            (_, basis @ Basis::Without(..)) if !verdict.is_over => basis,
            // Another store has decided, whatever became of its own.
            _ => Basis::Memory,
        };
        if is_charged_elsewhere && answered != Answered::Over {
            // Nobody that asks its own store knows of it before that has been told.
            self.seen[index].urgent_at = ALWAYS_URGENT;
        }
        let is_charged = own.is_some_and(|settled| settled.is_admitted && settled.is_charged);
        let was_over = verdict.is_over;
        verdict.is_over = answered == Answered::Over;
        if is_charged && answered == Answered::Fits {
            // Its own hits are in the count already.
            verdict.available = verdict.available.saturating_add(i64::try_from(check.hits).unwrap_or(i64::MAX));
        }
        if was_over == verdict.is_over {
            return;
        }
        if !verdict.is_over {
            verdict.is_hopeless = false;
            verdict.reset_ms = self.reset_uncharged_ms(index);
            return;
        }
        let Seen { guard, slot, waiting, .. } = self.seen[index];
        let mut fresh = Counter::new(&check.terms, self.now_ms);
        let (counter, shared) = match slot {
            Some(slot) => {
                let (slot, shared) = self.guards[guard].both(slot);
                (&mut slot.counter, shared)
            }
            None => (&mut fresh, None),
        };
        let hits = waiting.saturating_add(check.hits);
        verdict.wait_for(check.view(counter, shared.as_deref()), &check.terms, hits, self.now_ms);
        let paused_ms = shared.and_then(|shared| shared.paused_for_ms(check.hits, self.consult.mono_ms));
        verdict.reset_ms = verdict.reset_ms.max(paused_ms.unwrap_or(0)).max(1);
    }

    /// The hits of earlier checks on the same key that wait for the verdict: within a request, a key counts down.
    fn waiting_before(&self, index: usize) -> u64 {
        // The store's answer has them in it.
        if self.consult.settled(&self.checks[index]).is_some_and(|settled| settled.is_charged) {
            return 0;
        }
        let (earlier, key) = (&self.seen[..index], &self.checks[index].key);
        let hash = self.seen[index].hash;
        let twins = earlier
            .iter()
            .zip(self.checks)
            .filter(|(seen, check)| seen.hash == hash && seen.counts && check.key == *key);
        twins.fold(0, |sum, (_, check)| sum.saturating_add(check.hits))
    }

    /// What to ask before this can be decided: if one check of a store asks, all of that store are in the same call.
    fn questions(&self, groups: &[Group], verdicts: &[Verdict], is_shadow: bool) -> SmallVec<[Question; 2]> {
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
        let mut questions = SmallVec::new();
        for (index, check) in self.checks.iter().enumerate() {
            let Some(store) = check.reach.store().filter(|store| is_asked[*store as usize]) else { continue };
            // What its policy has decided, nobody is asked about.
            if let Some(Asking::Never(_)) = self.consult.asking(check) {
                continue;
            }
            let is_quiet = is_shadow || groups[check.group].is_shadow;
            // A quota that is over by another of its limits is not charged, so the farthest must not charge it.
            let is_spent =
                groups[check.group].is_quota && !is_quiet && is_group_over(self.checks, verdicts, check.group);
            if store == Store::Owner && is_spent {
                continue;
            }
            let is_judged = is_judged(check, is_quiet);
            let asks = self.seen[index].asks;
            if is_judged || asks.is_some() {
                questions.push(Question { check: index, store, is_judged, why: asks.unwrap_or(Why::Together) });
            }
        }
        questions
    }

    /// Charges a check whose request was admitted. One that is over all the same, in shadow, has longer to wait for it.
    #[inline]
    fn charge(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.checks[index];
        let is_charged_there = self.is_settled
            && self
                .consult
                .settled(check)
                .is_some_and(|settled| settled.is_charged && settled.answered(index) == Answered::Fits);
        if check.hits > 0 && !is_charged_there {
            self.charge_now(index, verdict);
        }
    }

    #[inline]
    fn charge_now(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.checks[index];
        let is_new = self.seen[index].slot.is_none() && self.make_slot(index);
        let seen = &self.seen[index];
        let Some(at) = seen.slot else { return };
        let mut spot = Spot::new::<false>(&mut self.guards[seen.guard], seen.shard, at);
        spot.charge(self.table, check, is_new, seen.urgent_at, assumed(check, verdict, self.consult));
        if verdict.is_over {
            spot.wait_longer(verdict, check, seen.waiting.saturating_add(check.hits), self.now_ms);
        }
    }

    /// Makes a slot for a key that had none, if it is to have one. False if a twin has made it meanwhile.
    #[cold]
    fn make_slot(&mut self, index: usize) -> bool {
        let check = &self.checks[index];
        let Seen { hash, guard, .. } = self.seen[index];
        let shard = &mut self.guards[guard];
        let made = shard.find(&check.key, hash);
        // The slots of this request must not make room for each other.
        let mut pinned: SmallVec<[u32; 4]> =
            self.seen.iter().filter(|seen| seen.guard == guard).filter_map(|seen| seen.slot).collect();
        pinned.sort_unstable();
        pinned.dedup();
        self.seen[index].slot = match made {
            None if is_kept(self.table, check) => insert(self.table, shard, &pinned, check, hash, self.now_ms),
            made => made,
        };
        made.is_none()
    }

    /// The reset of a check that fits but is not charged, because another one denies the request.
    fn reset_uncharged_ms(&mut self, index: usize) -> u64 {
        let check = &self.checks[index];
        let Seen { guard, slot, .. } = self.seen[index];
        let mut fresh = Counter::new(&check.terms, self.now_ms);
        let counter = match slot {
            Some(slot) => &mut self.guards[guard].slot(slot).counter,
            None => &mut fresh,
        };
        let look = counter.look(&check.terms, self.now_ms);
        counter.resets_at_ms(&check.terms, &look, 0).saturating_sub(self.now_ms)
    }

    fn tell_others(&mut self, index: usize, is_over: bool) {
        let Seen { guard, slot, shard, .. } = self.seen[index];
        if let Some(slot) = slot {
            let mut spot = Spot::new::<false>(&mut self.guards[guard], shard, slot);
            spot.tell_others(self.table, &self.checks[index], is_over, self.consult);
        }
    }
}
