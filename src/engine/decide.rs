//! Does it fit: one decision over all the keys of a request, all or nothing.
//!
//! Under the locks of every shard concerned: look at each key, find the overall verdict, charge. Refunds and hits that
//! are charged whatever happens are applied as they are met; everything else waits for the verdict and is charged
//! together or not at all. No other request sees anything in between.
//!
//! When counts are shared with other processes, a decision may come to the conclusion that it can't be made from memory.
//! Then it says what to ask the origin, charges nothing but what is charged whatever happens, and is made again with the
//! answer, or without one.

use parking_lot::MutexGuard;
use smallvec::{SmallVec, smallvec};

use crate::engine::abroad::View;
use crate::engine::counter::{Counter, window_end_ms};
use crate::engine::key::Key;
use crate::engine::share::Shared;
pub use crate::engine::standing::{Answered, Asking, Consult, Question, Settled, Why};
use crate::engine::standing::{Standing, is_judged, standing};
use crate::engine::table::{Entry, Shard, Slot, Table};
use crate::rules::limit::Terms;

/// How the hits of a check are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charging {
    /// With the rest of the request, if it is admitted.
    Together,
    /// Whatever the verdict, over the limit too.
    Always,
    /// Given back, whatever the verdict.
    Refund,
}

/// Who shares the count of a check's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Process,
    Region {
        /// Thousandths of the limit that may be admitted before the origin knows.
        slack_permille: u16,
    },
}

/// One key of a request and what it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    pub key: Key<'a>,
    pub terms: Terms,
    pub hits: u64,
    pub charging: Charging,
    /// Into the groups: the descriptor that this limit belongs to.
    pub group: usize,
    pub reach: Reach,
    /// Other regions share the count too.
    pub is_global: bool,
    /// The identifier leaves the process only as a keyed digest.
    pub is_sensitive: bool,
}

/// The checks of one descriptor: what its verdict does to the request's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    /// Counts, but never denies.
    pub is_shadow: bool,
    /// Denies only together with all other quota groups.
    pub is_quota: bool,
}

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The hits do not fit. Whether that denies anything is for the groups to say.
    pub is_over: bool,
    /// What is left after the charge.
    pub remaining: u32,
    /// Milliseconds until the limit starts afresh, or, when over, until the same hits would be admitted.
    pub reset_ms: u64,
    /// The hits can never be admitted; the reset is the end of the window then.
    pub is_hopeless: bool,
    /// What was counted, or given back.
    pub charged: u64,
    /// What would have fit before this check.
    pub available: i64,
}

impl Verdict {
    /// Says when so many hits are admitted, by what the counter holds now, with the check's own charge if it had one.
    fn wait_for(&mut self, mut view: View<'_>, terms: &Terms, hits: u64, now_ms: u64) {
        let look = view.look(terms, now_ms);
        let admits_at_ms = view.admits_at(terms, &look, hits);
        self.is_hopeless = admits_at_ms.is_none();
        self.reset_ms = admits_at_ms.unwrap_or_else(|| window_end_ms(terms, look.now_ms)).saturating_sub(now_ms);
    }

    fn within(available: i64, reset_ms: u64) -> Verdict {
        Verdict { is_over: false, remaining: 0, reset_ms, is_hopeless: false, charged: 0, available }
    }
}

/// The verdicts of a request, one for each check, and what follows from them.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub is_over: bool,
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// Not empty: nothing is decided, this is to be asked first.
    pub questions: SmallVec<[Question; 2]>,
}

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

impl Seen {
    fn new(table: &Table, key: &Key<'_>) -> Seen {
        let hash = table.hash(key);
        Seen {
            hash,
            shard: table.shard_of(hash),
            guard: 0,
            slot: None,
            waiting: 0,
            counts: false,
            asks: None,
            urgent_at: u64::MAX,
        }
    }
}

/// Decides a request. `is_shadow` is the global mode in which nothing is denied and everything is charged.
pub fn decide(
    table: &Table,
    checks: &[Check<'_>],
    groups: &[Group],
    is_shadow: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> Outcome {
    match (checks, consult.asking) {
        ([check], Asking::Allowed | Asking::Never) => decide_one(table, check, groups, is_shadow, now_ms, consult),
        _ => decide_all(table, checks, groups, is_shadow, now_ms, consult),
    }
}

/// The same for a single key, which is what most requests have: nothing to sort, nothing to wait for.
fn decide_one(
    table: &Table,
    check: &Check<'_>,
    groups: &[Group],
    is_shadow: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> Outcome {
    let hash = table.hash(&check.key);
    let number = table.shard_of(hash);
    let mut shard = table.lock(number);
    let mut slot = shard.find(&check.key, hash);
    let mut fresh;
    let (counter, mut shared) = match slot {
        Some(at) => {
            let (slot, mut shared) = shard.both(at);
            touch(table, (number, at), slot, shared.as_deref_mut(), check);
            (&mut slot.counter, shared)
        }
        None => {
            fresh = Counter::new(&check.terms, now_ms);
            (&mut fresh, None)
        }
    };
    let is_reported = check.charging != Charging::Together && !consult.is_again;
    let mut verdict = judge(view(counter, shared.as_deref()), check, 0, now_ms, consult);
    let is_quiet = is_shadow || groups[check.group].is_shadow;
    let standing = standing(check, &verdict, counter, shared.as_deref_mut(), 0, is_quiet, consult);
    if let Standing::Paused { wait_ms } = standing {
        verdict.is_over = true;
        verdict.wait_for(view(counter, shared.as_deref()), &check.terms, check.hits, now_ms);
        verdict.reset_ms = verdict.reset_ms.max(wait_ms);
    }
    let is_over = !is_shadow && verdict.is_over && denies(&[*check], groups, &[verdict]);
    let asks = match &standing {
        Standing::Asks(why) if !is_over => Some(*why),
        _ => None,
    };
    let is_charged = check.charging == Charging::Together
        && asks.is_none()
        && !is_over
        && charges_group(&[*check], groups, &[verdict], check.group, is_shadow);
    if (is_charged || is_reported) && check.hits > 0 {
        let is_counted = slot.is_none();
        if slot.is_none() && is_kept(table, check) {
            slot = Some(insert(table, &mut shard, &[], check, hash, now_ms));
        }
        if let Some(slot) = slot {
            let urgent_at = standing.urgent_at();
            charge(table, &mut shard, (number, slot), check, is_counted, urgent_at);
            if verdict.is_over {
                verdict.wait_for(shard.view(slot), &check.terms, check.hits, now_ms);
            }
        }
    }
    if let Some(slot) = slot {
        tell_others(table, &mut shard, number, slot, check, verdict.is_over, consult);
    }
    drop(shard);
    let charged = if is_charged || check.charging != Charging::Together { check.hits } else { 0 };
    conclude(&mut verdict, check, charged, 0);
    let questions = asks.map(|why| Question { check: 0, is_judged: is_judged(check, is_quiet), why });
    Outcome { is_over, verdicts: smallvec![verdict], questions: questions.into_iter().collect() }
}

fn decide_all(
    table: &Table,
    checks: &[Check<'_>],
    groups: &[Group],
    is_shadow: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> Outcome {
    let mut seen: SmallVec<[Seen; 4]> = checks.iter().map(|check| Seen::new(table, &check.key)).collect();
    // Locks are taken in ascending order of shards, each once, as every batch does.
    let mut shards: SmallVec<[u32; 4]> = seen.iter().map(|seen| seen.shard).collect();
    shards.sort_unstable();
    shards.dedup();
    let mut guards: SmallVec<[MutexGuard<'_, Shard>; 4]> = shards.iter().map(|shard| table.lock(*shard)).collect();
    for seen in &mut seen {
        seen.guard = shards.binary_search(&seen.shard).unwrap_or_default();
    }
    let mut batch = Batch { table, checks, guards: &mut guards, seen: &mut seen, now_ms, consult };

    let mut verdicts: SmallVec<[Verdict; 4]> = smallvec![Verdict::within(0, 0); checks.len()];
    for ((index, check), verdict) in checks.iter().enumerate().zip(verdicts.iter_mut()) {
        let is_quiet = is_shadow || groups[check.group].is_shadow;
        *verdict = batch.look(index, is_quiet);
        batch.seen[index].counts = check.charging == Charging::Together && (!verdict.is_over || is_quiet);
    }
    let is_over = !is_shadow
        && match consult.asking {
            Asking::Settled(settled) => !settled.is_admitted,
            Asking::Allowed | Asking::Never => denies(checks, groups, &verdicts),
        };
    let questions = if is_over { SmallVec::new() } else { batch.questions(groups, is_shadow) };
    for (index, check) in checks.iter().enumerate() {
        let is_charged = !is_over && charges_group(checks, groups, &verdicts, check.group, is_shadow);
        let charged = match check.charging {
            Charging::Together if !is_charged || !questions.is_empty() => 0,
            Charging::Together => {
                batch.charge(index, &mut verdicts[index]);
                check.hits
            }
            Charging::Always | Charging::Refund => check.hits,
        };
        let waiting = if is_over { 0 } else { batch.seen[index].waiting };
        let verdict = &mut verdicts[index];
        conclude(verdict, check, charged, waiting);
        if charged < check.hits && !verdict.is_over {
            verdict.reset_ms = batch.reset_uncharged_ms(index);
        }
        let is_over = verdict.is_over;
        batch.tell_others(index, is_over);
    }
    Outcome { is_over, verdicts, questions }
}

/// A request while it holds the locks of all its keys.
struct Batch<'b, 't> {
    table: &'t Table,
    checks: &'b [Check<'b>],
    guards: &'b mut [MutexGuard<'t, Shard>],
    seen: &'b mut [Seen],
    now_ms: u64,
    consult: &'b Consult<'b>,
}

impl Batch<'_, '_> {
    /// Reads a key and applies what does not wait for the verdict.
    fn look(&mut self, index: usize, is_quiet: bool) -> Verdict {
        let check = &self.checks[index];
        let waiting = self.waiting_before(index);
        let Seen { hash, guard, shard: number, .. } = self.seen[index];
        let shard = &mut self.guards[guard];
        let slot = shard.find(&check.key, hash);
        self.seen[index].waiting = waiting;
        self.seen[index].slot = slot;
        let mut fresh;
        let (counter, mut shared) = match slot {
            Some(at) => {
                let (slot, mut shared) = shard.both(at);
                touch(self.table, (number, at), slot, shared.as_deref_mut(), check);
                (&mut slot.counter, shared)
            }
            None => {
                fresh = Counter::new(&check.terms, self.now_ms);
                (&mut fresh, None)
            }
        };
        let mut verdict = judge(view(counter, shared.as_deref()), check, waiting, self.now_ms, self.consult);
        let standing = standing(check, &verdict, counter, shared.as_deref_mut(), waiting, is_quiet, self.consult);
        self.seen[index].urgent_at = standing.urgent_at();
        match standing {
            Standing::Memory { .. } => {}
            Standing::Asks(why) => self.seen[index].asks = Some(why),
            Standing::Paused { wait_ms } => {
                verdict.is_over = true;
                let hits = waiting.saturating_add(check.hits);
                verdict.wait_for(view(counter, shared.as_deref()), &check.terms, hits, self.now_ms);
                verdict.reset_ms = verdict.reset_ms.max(wait_ms);
            }
        }
        if let Asking::Settled(settled) = self.consult.asking
            && !is_quiet
        {
            self.settle(index, settled, &mut verdict);
        }
        if check.charging != Charging::Together && !self.consult.is_again && check.hits > 0 {
            self.charge_now(index, &mut verdict);
        }
        verdict
    }

    /// Puts the origin's word in the place of what memory says.
    fn settle(&mut self, index: usize, settled: &Settled, verdict: &mut Verdict) {
        let check = &self.checks[index];
        let answered = settled.checks.get(index).copied().unwrap_or(Answered::NotAsked);
        if check.charging != Charging::Together || (answered == Answered::NotAsked && !settled.is_admitted) {
            return;
        }
        let was_over = verdict.is_over;
        verdict.is_over = answered == Answered::Over;
        if settled.is_admitted && answered == Answered::Fits {
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
        verdict.wait_for(view(counter, shared.as_deref()), &check.terms, hits, self.now_ms);
        let paused_ms = shared.and_then(|shared| shared.paused_for_ms(check.hits, self.consult.mono_ms));
        verdict.reset_ms = verdict.reset_ms.max(paused_ms.unwrap_or(0)).max(1);
    }

    /// The hits of earlier checks on the same key that wait for the verdict: within a request, a key counts down.
    fn waiting_before(&self, index: usize) -> u64 {
        // The origin's answer has them in it.
        if matches!(self.consult.asking, Asking::Settled(_)) {
            return 0;
        }
        let (earlier, own) = (&self.seen[..index], &self.seen[index]);
        let is_twin = |other: usize| {
            earlier[other].counts && earlier[other].hash == own.hash && self.checks[other].key == self.checks[index].key
        };
        (0..index).filter(|other| is_twin(*other)).fold(0, |sum, other| sum.saturating_add(self.checks[other].hits))
    }

    /// What to ask before this can be decided: if one check asks, all of the region's are in the same call.
    fn questions(&self, groups: &[Group], is_shadow: bool) -> SmallVec<[Question; 2]> {
        if !self.seen.iter().any(|seen| seen.asks.is_some()) {
            return SmallVec::new();
        }
        let mut questions = SmallVec::new();
        for (index, check) in self.checks.iter().enumerate() {
            let is_judged = is_judged(check, is_shadow || groups[check.group].is_shadow);
            let asks = self.seen[index].asks;
            if is_judged || asks.is_some() {
                questions.push(Question { check: index, is_judged, why: asks.unwrap_or(Why::Together) });
            }
        }
        questions
    }

    /// Charges a check whose request was admitted. One that is over all the same, in shadow, has longer to wait for it.
    fn charge(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.checks[index];
        let is_charged_there = match self.consult.asking {
            Asking::Settled(settled) => settled.checks.get(index).is_some_and(|answer| *answer == Answered::Fits),
            Asking::Allowed | Asking::Never => false,
        };
        if check.hits > 0 && !is_charged_there {
            self.charge_now(index, verdict);
        }
    }

    fn charge_now(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.checks[index];
        let Seen { hash, guard, slot, waiting, shard: number, urgent_at, .. } = self.seen[index];
        let shard = &mut self.guards[guard];
        // A twin earlier in the request may have made the slot meanwhile.
        let found = slot.or_else(|| shard.find(&check.key, hash));
        let slot = found.or_else(|| {
            // The slots of this request must not make room for each other.
            let pinned: SmallVec<[u32; 4]> =
                self.seen.iter().filter(|seen| seen.guard == guard).filter_map(|seen| seen.slot).collect();
            is_kept(self.table, check).then(|| insert(self.table, shard, &pinned, check, hash, self.now_ms))
        });
        self.seen[index].slot = slot;
        let Some(slot) = slot else { return };
        charge(self.table, shard, (number, slot), check, found.is_none(), urgent_at);
        if verdict.is_over {
            let hits = waiting.saturating_add(check.hits);
            verdict.wait_for(shard.view(slot), &check.terms, hits, self.now_ms);
        }
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
            tell_others(self.table, &mut self.guards[guard], shard, slot, &self.checks[index], is_over, self.consult);
        }
    }
}

/// A counter as decisions see it.
fn view<'a>(counter: &'a mut Counter, shared: Option<&'a Shared>) -> View<'a> {
    View { counter, abroad: shared.and_then(Shared::abroad) }
}

/// Marks a key as used. What the origin has denied under another limit says nothing about this one.
fn touch(table: &Table, (number, at): (u32, u32), slot: &mut Slot, shared: Option<&mut Shared>, check: &Check<'_>) {
    let has_changed = slot.touch(&check.terms);
    slot.is_global = check.is_global;
    let Some(shared) = shared else { return };
    if has_changed {
        shared.resume();
    }
    if shared.ask() {
        table.count_asked();
    }
    // Other rules may be in force than when the key was made.
    if !check.is_global && shared.abroad().is_some() {
        shared.leave_abroad();
    }
    if shared.is_sensitive != check.is_sensitive {
        shared.is_sensitive = check.is_sensitive;
        table.hide(number, at, slot, shared);
    }
}

/// A refund leaves no key behind, unless the origin has to hear of it.
fn is_kept(table: &Table, check: &Check<'_>) -> bool {
    check.charging != Charging::Refund || (table.is_shared() && check.reach != Reach::Process)
}

fn insert(table: &Table, shard: &mut Shard, pinned: &[u32], check: &Check<'_>, hash: u64, now_ms: u64) -> u32 {
    let Check { key, terms, is_sensitive, is_global, .. } = *check;
    // With its hits, so that the table knows a key that is over its limit from the start.
    let mut counter = Counter::new(&terms, now_ms);
    if check.charging != Charging::Refund {
        counter.add(&terms, check.hits);
    }
    table.insert(shard, pinned, Entry { key, hash, terms, counter, is_sensitive, is_global }, now_ms)
}

/// Counts a check's hits, or gives them back, and sees to it that the origin hears of it. The counter of a new slot has
/// them already.
fn charge(
    table: &Table,
    shard: &mut Shard,
    (number, at): (u32, u32),
    check: &Check<'_>,
    is_counted: bool,
    urgent_at: u64,
) {
    let Check { terms, hits, .. } = check;
    let (slot, shared) = shard.both(at);
    let Some(shared) = shared.filter(|_| check.reach != Reach::Process) else {
        match check.charging {
            Charging::Refund => slot.counter.refund(terms, *hits),
            Charging::Together | Charging::Always if is_counted => {}
            Charging::Together | Charging::Always => slot.counter.add(terms, *hits),
        }
        return;
    };
    shared.follow(&slot.counter);
    let mut is_urgent = false;
    if check.charging == Charging::Refund {
        slot.counter.refund(terms, *hits);
        shared.refund(*hits);
    } else {
        let before = shared.pending();
        if !is_counted {
            slot.counter.add(terms, *hits);
        }
        shared.add(*hits);
        is_urgent = before < urgent_at && before.saturating_add(*hits) >= urgent_at;
    }
    table.enqueue(number, at, shared, is_urgent);
}

/// What the decision means for others: regions that should know of the count, and the origin, which is asked about a key
/// that denies about once a second, in the background.
fn tell_others(
    table: &Table,
    shard: &mut Shard,
    number: u32,
    at: u32,
    check: &Check<'_>,
    is_over: bool,
    consult: &Consult<'_>,
) {
    let (slot, Some(shared)) = shard.both(at) else { return };
    table.note(number, at, slot, shared);
    let is_regional = check.reach != Reach::Process;
    if is_over && is_regional && shared.is_second_old(consult.mono_ms) && !shared.is_wanted {
        shared.is_wanted = true;
        table.enqueue(number, at, shared, false);
    }
}

/// What a counter says to a check. Hits that are charged whatever happens are in it already when the request comes again.
fn judge(mut view: View<'_>, check: &Check<'_>, waiting: u64, now_ms: u64, consult: &Consult<'_>) -> Verdict {
    let Check { terms, hits, charging, .. } = check;
    if *charging == Charging::Refund {
        // What it comes to; it is given back right after.
        view.look(terms, now_ms);
        let mut refunded = view.counter.clone();
        if !consult.is_again {
            refunded.refund(terms, *hits);
        }
        let mut refunded = View { counter: &mut refunded, abroad: view.abroad };
        let look = refunded.look(terms, now_ms);
        let reset_ms = refunded.resets_at_ms(terms, &look, waiting).saturating_sub(now_ms);
        return Verdict::within(look.available, reset_ms);
    }
    let mut look = view.look(terms, now_ms);
    if *charging == Charging::Always && consult.is_again {
        look.available = look.available.saturating_add(i64::try_from(*hits).unwrap_or(i64::MAX));
    }
    let needed = waiting.saturating_add(*hits);
    let is_over = i128::from(look.available) < i128::from(needed);
    let reset_ms = if is_over { 0 } else { view.resets_at_ms(terms, &look, needed).saturating_sub(now_ms) };
    let mut verdict = Verdict { is_over, ..Verdict::within(look.available, reset_ms) };
    if is_over {
        verdict.wait_for(view, terms, needed, now_ms);
    }
    verdict
}

pub(crate) fn is_group_over(checks: &[Check<'_>], verdicts: &[Verdict], group: usize) -> bool {
    checks.iter().zip(verdicts).any(|(check, verdict)| check.group == group && verdict.is_over)
}

/// Denied by any group that denies alone, or by all quota groups together.
pub(crate) fn denies(checks: &[Check<'_>], groups: &[Group], verdicts: &[Verdict]) -> bool {
    if !verdicts.iter().any(|verdict| verdict.is_over) {
        return false;
    }
    let mut quota_groups = 0;
    let mut quota_groups_over = 0;
    for (index, group) in groups.iter().enumerate() {
        let is_over = !group.is_shadow && is_group_over(checks, verdicts, index);
        if group.is_quota {
            quota_groups += 1;
            quota_groups_over += usize::from(is_over);
        } else if is_over {
            return true;
        }
    }
    quota_groups > 0 && quota_groups == quota_groups_over
}

/// In an admitted request, a quota group that is over is the only one not charged.
fn charges_group(checks: &[Check<'_>], groups: &[Group], verdicts: &[Verdict], group: usize, is_shadow: bool) -> bool {
    is_shadow || groups[group].is_shadow || !groups[group].is_quota || !is_group_over(checks, verdicts, group)
}

/// Fills in what only the overall verdict settles.
fn conclude(verdict: &mut Verdict, check: &Check<'_>, charged: u64, waiting: u64) {
    verdict.charged = charged;
    let own = if check.charging == Charging::Refund { 0 } else { charged };
    let left = i128::from(verdict.available) - i128::from(waiting) - i128::from(own);
    verdict.remaining = if verdict.is_over { 0 } else { left.clamp(0, i128::from(u32::MAX)) as u32 };
}
