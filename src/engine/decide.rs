//! Does it fit: one decision over all the keys of a request, all or nothing.
//!
//! Under the locks of every shard concerned: look at each key, find the overall verdict, charge. Refunds and hits that
//! are charged whatever happens are applied as they are met; everything else waits for the verdict and is charged
//! together or not at all. No other request sees anything in between.

use parking_lot::MutexGuard;
use smallvec::{SmallVec, smallvec};

use crate::engine::counter::{Counter, window_end_ms};
use crate::engine::key::Key;
use crate::engine::table::{Entry, Shard, Table};
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

/// One key of a request and what it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    pub key: Key<'a>,
    pub terms: Terms,
    pub hits: u64,
    pub charging: Charging,
    /// Into the groups: the descriptor that this limit belongs to.
    pub group: usize,
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
    fn wait_for(&mut self, counter: &mut Counter, terms: &Terms, hits: u64, now_ms: u64) {
        let look = counter.look(terms, now_ms);
        let admits_at_ms = counter.admits_at(terms, &look, hits);
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
}

impl Seen {
    fn new(table: &Table, key: &Key<'_>) -> Seen {
        let hash = table.hash(key);
        Seen { hash, shard: table.shard_of(hash), guard: 0, slot: None, waiting: 0, counts: false }
    }
}

/// Decides a request. `is_shadow` is the global mode in which nothing is denied and everything is charged.
pub fn decide(table: &Table, checks: &[Check<'_>], groups: &[Group], is_shadow: bool, now_ms: u64) -> Outcome {
    match checks {
        [check] => decide_one(table, check, groups, is_shadow, now_ms),
        _ => decide_all(table, checks, groups, is_shadow, now_ms),
    }
}

/// The same for a single key, which is what most requests have: nothing to sort, nothing to wait for.
fn decide_one(table: &Table, check: &Check<'_>, groups: &[Group], is_shadow: bool, now_ms: u64) -> Outcome {
    let hash = table.hash(&check.key);
    let mut shard = table.lock(table.shard_of(hash));
    let slot = shard.find(&check.key, hash);
    let mut fresh;
    let counter = match slot {
        Some(slot) => {
            let slot = shard.slot(slot);
            slot.touch(&check.terms);
            &mut slot.counter
        }
        None => {
            fresh = Counter::new(&check.terms, now_ms);
            &mut fresh
        }
    };
    let mut verdict = judge(counter, check, 0, now_ms);
    let is_over = !is_shadow && verdict.is_over && denies(&[*check], groups, &[verdict]);
    let charged = match check.charging {
        Charging::Together if is_over || !charges_group(&[*check], groups, &[verdict], check.group, is_shadow) => 0,
        Charging::Together => {
            counter.add(&check.terms, check.hits);
            if verdict.is_over {
                verdict.wait_for(counter, &check.terms, check.hits, now_ms);
            }
            check.hits
        }
        Charging::Always | Charging::Refund => check.hits,
    };
    if slot.is_none() && charged > 0 && check.charging != Charging::Refund {
        let entry = Entry { key: check.key, hash, terms: check.terms, counter: counter.clone() };
        table.insert(&mut shard, &[], entry, now_ms);
    }
    drop(shard);
    conclude(&mut verdict, check, charged, 0);
    Outcome { is_over, verdicts: smallvec![verdict] }
}

fn decide_all(table: &Table, checks: &[Check<'_>], groups: &[Group], is_shadow: bool, now_ms: u64) -> Outcome {
    let mut seen: SmallVec<[Seen; 4]> = checks.iter().map(|check| Seen::new(table, &check.key)).collect();
    // Locks are taken in ascending order of shards, each once, as every batch does.
    let mut shards: SmallVec<[u32; 4]> = seen.iter().map(|seen| seen.shard).collect();
    shards.sort_unstable();
    shards.dedup();
    let mut guards: SmallVec<[MutexGuard<'_, Shard>; 4]> = shards.iter().map(|shard| table.lock(*shard)).collect();
    for seen in &mut seen {
        seen.guard = shards.binary_search(&seen.shard).unwrap_or_default();
    }
    let mut batch = Batch { table, checks, guards: &mut guards, seen: &mut seen, now_ms };

    let mut verdicts: SmallVec<[Verdict; 4]> = smallvec![Verdict::within(0, 0); checks.len()];
    for ((index, check), verdict) in checks.iter().enumerate().zip(verdicts.iter_mut()) {
        *verdict = batch.look(index);
        batch.seen[index].counts =
            check.charging == Charging::Together && (!verdict.is_over || is_shadow || groups[check.group].is_shadow);
    }
    let is_over = !is_shadow && denies(checks, groups, &verdicts);
    for (index, check) in checks.iter().enumerate() {
        let charged = match check.charging {
            Charging::Together if is_over || !charges_group(checks, groups, &verdicts, check.group, is_shadow) => 0,
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
    }
    Outcome { is_over, verdicts }
}

/// A request while it holds the locks of all its keys.
struct Batch<'b, 't> {
    table: &'t Table,
    checks: &'b [Check<'b>],
    guards: &'b mut [MutexGuard<'t, Shard>],
    seen: &'b mut [Seen],
    now_ms: u64,
}

impl Batch<'_, '_> {
    /// Reads a key and applies what does not wait for the verdict.
    fn look(&mut self, index: usize) -> Verdict {
        let check = &self.checks[index];
        let waiting = self.waiting_before(index);
        let Seen { hash, guard, .. } = self.seen[index];
        let shard = &mut self.guards[guard];
        let slot = shard.find(&check.key, hash);
        self.seen[index].waiting = waiting;
        self.seen[index].slot = slot;
        if let Some(slot) = slot {
            let slot = shard.slot(slot);
            slot.touch(&check.terms);
            return judge(&mut slot.counter, check, waiting, self.now_ms);
        }
        let mut counter = Counter::new(&check.terms, self.now_ms);
        let verdict = judge(&mut counter, check, waiting, self.now_ms);
        if check.charging == Charging::Always && check.hits > 0 {
            self.insert(index, counter);
        }
        verdict
    }

    /// The hits of earlier checks on the same key that wait for the verdict: within a request, a key counts down.
    fn waiting_before(&self, index: usize) -> u64 {
        let (earlier, own) = (&self.seen[..index], &self.seen[index]);
        let is_twin = |other: usize| {
            earlier[other].counts && earlier[other].hash == own.hash && self.checks[other].key == self.checks[index].key
        };
        (0..index).filter(|other| is_twin(*other)).fold(0, |sum, other| sum.saturating_add(self.checks[other].hits))
    }

    /// Charges a check whose request was admitted. One that is over all the same, in shadow, has longer to wait for it.
    fn charge(&mut self, index: usize, verdict: &mut Verdict) {
        let check = &self.checks[index];
        if check.hits == 0 {
            return;
        }
        let Seen { hash, guard, slot, waiting, .. } = self.seen[index];
        let shard = &mut self.guards[guard];
        // A twin earlier in the request may have made the slot meanwhile.
        let slot = slot.or_else(|| shard.find(&check.key, hash));
        let mut fresh;
        let counter = match slot {
            Some(slot) => &mut shard.slot(slot).counter,
            None => {
                fresh = Counter::new(&check.terms, self.now_ms);
                &mut fresh
            }
        };
        counter.add(&check.terms, check.hits);
        if verdict.is_over {
            verdict.wait_for(counter, &check.terms, waiting.saturating_add(check.hits), self.now_ms);
        }
        if slot.is_none() {
            let counter = counter.clone();
            self.insert(index, counter);
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

    fn insert(&mut self, index: usize, counter: Counter) {
        let check = &self.checks[index];
        let Seen { hash, guard, .. } = self.seen[index];
        // The slots of this request must not make room for each other.
        let pinned: SmallVec<[u32; 4]> =
            self.seen.iter().filter(|seen| seen.guard == guard).filter_map(|seen| seen.slot).collect();
        let shard = &mut self.guards[guard];
        let entry = Entry { key: check.key, hash, terms: check.terms, counter };
        self.seen[index].slot = Some(self.table.insert(shard, &pinned, entry, self.now_ms));
    }
}

/// What a counter says to a check. Refunds and hits that are charged whatever happens are applied at once.
fn judge(counter: &mut Counter, check: &Check<'_>, waiting: u64, now_ms: u64) -> Verdict {
    let Check { terms, hits, charging, .. } = check;
    if *charging == Charging::Refund {
        counter.look(terms, now_ms);
        counter.refund(terms, *hits);
        let look = counter.look(terms, now_ms);
        let reset_ms = counter.resets_at_ms(terms, &look, waiting).saturating_sub(now_ms);
        return Verdict::within(look.available, reset_ms);
    }
    let look = counter.look(terms, now_ms);
    let needed = waiting.saturating_add(*hits);
    let is_over = i128::from(look.available) < i128::from(needed);
    let reset_ms = if is_over { 0 } else { counter.resets_at_ms(terms, &look, needed).saturating_sub(now_ms) };
    let mut verdict = Verdict { is_over, ..Verdict::within(look.available, reset_ms) };
    if *charging == Charging::Always {
        counter.add(terms, *hits);
    }
    if is_over {
        verdict.wait_for(counter, terms, needed, now_ms);
    }
    verdict
}

fn is_group_over(checks: &[Check<'_>], verdicts: &[Verdict], group: usize) -> bool {
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
