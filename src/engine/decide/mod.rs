//! Does it fit: one decision over all the keys of a request, all or nothing.
//!
//! Under the locks of every shard concerned: look at each key, find the overall verdict, charge. Refunds and hits that
//! are charged whatever happens are applied as they are met; everything else waits for the verdict and is charged
//! together or not at all. No other request sees anything in between.
//!
//! When counts are shared with other processes, a decision may come to the conclusion that it can't be made from memory.
//! Then it says what to ask the origin, charges nothing but what is charged whatever happens, and is made again with the
//! answer, or without one.

pub mod allowance;
pub mod decider;
mod fast;
pub(super) mod general;
pub mod given_back;
mod kin;
pub mod outage;
mod spot;
pub mod twins;

use smallvec::{SmallVec, smallvec};

use crate::engine::count::counter::{Counter, window_end_ms};
pub use crate::engine::decide::decider::{Asking, Cause, CheckAnswer, Consult, Question, StoreAnswer, StoreView, Why};
use crate::engine::decide::decider::{Decider, is_judged, standing};
use crate::engine::decide::fast::decide_few;
use crate::engine::decide::general::decide_all;
use crate::engine::decide::given_back::GivenBack;
use crate::engine::decide::outage::Endured;
use crate::engine::decide::spot::{Spot, insert, is_kept};
use crate::engine::decide::twins::Twins;
use crate::engine::key::Key;
pub use crate::engine::reach::{Reach, Store};
use crate::engine::steps;
use crate::engine::table::Table;
use crate::engine::table::foreign::View;
use crate::engine::table::pinned::Pinned;
use crate::engine::table::regional_part::RegionalPart;
use crate::rules::limit::Terms;
use crate::rules::policy::{OnOutage, Scope};

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
    pub reach: Reach,
    /// The scope in force.
    pub scope: Scope,
    pub on_outage: OnOutage,
    /// Other regions can't be heard: held to this region's part of the limit, which is in the terms.
    pub is_cut_off: bool,
    /// The limit without regard to outages.
    pub usual_limit: u32,
    /// The identifier leaves the process only as a keyed digest.
    pub is_sensitive: bool,
}

impl<'a> Check<'a> {
    /// One hit on a key that nobody shares, charged with the rest of its request.
    pub fn local(key: Key<'a>, terms: Terms) -> Check<'a> {
        Check {
            key,
            terms,
            hits: 1,
            charging: Charging::Together,
            group: 0,
            reach: Reach::Process,
            scope: Scope::Local,
            on_outage: OnOutage::Local,
            is_cut_off: false,
            usual_limit: terms.limit,
            is_sensitive: false,
        }
    }

    /// Other regions share the count too.
    pub fn is_global(&self) -> bool {
        self.scope == Scope::Global
    }

    /// The policy that an outage has left a verdict to, if one has.
    #[inline]
    pub fn outage_policy(&self, verdict: &Verdict) -> Option<OnOutage> {
        match verdict.basis {
            Basis::Without(Cause::Outage, policy) => Some(policy),
            _ => self.is_cut_off.then_some(OnOutage::Share),
        }
    }

    /// A counter as this check sees it.
    pub(in crate::engine) fn view<'v>(&self, counter: &'v mut Counter, shared: Option<&'v RegionalPart>) -> View<'v> {
        View { counter, foreign: shared.and_then(RegionalPart::foreign), is_cut_off: self.is_cut_off }
    }
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    Memory,
    /// The store was asked.
    Store(Store),
    /// The store gave no answer, and the policy decided.
    Without(Cause, OnOutage),
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
    pub basis: Basis,
}

impl Verdict {
    /// Says when so many hits are admitted, by what the counter holds now, with the check's own charge if it had one.
    #[inline(always)]
    pub(super) fn wait_for(&mut self, view: View<'_>, terms: &Terms, hits: u64, now_ms: u64) {
        (self.reset_ms, self.is_hopeless) = wait(view, terms, hits, now_ms);
    }

    #[inline(always)]
    pub(super) fn within(available: i64, reset_ms: u64) -> Verdict {
        let basis = Basis::Memory;
        Verdict { is_over: false, remaining: 0, reset_ms, is_hopeless: false, charged: 0, available, basis }
    }
}

/// How long it is until so many hits are admitted, or until the window ends, if they never are, and whether that is so.
///
/// Returns two words, as other rare turns of a decision do, rather than write to the verdict: so that one that takes
/// none of them keeps its verdict in registers.
#[cold]
fn wait(mut view: View<'_>, terms: &Terms, hits: u64, now_ms: u64) -> (u64, bool) {
    let look = view.look(terms, now_ms);
    let admits_at_ms = view.admits_at(terms, &look, hits);
    let at_ms = admits_at_ms.unwrap_or_else(|| window_end_ms(terms, look.now_ms));
    (at_ms.saturating_sub(now_ms), admits_at_ms.is_none())
}

/// The verdicts of a request, one for each check, and what follows from them.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub is_over: bool,
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// Not empty: nothing is decided, this is to be asked first.
    pub questions: SmallVec<[Question; 2]>,
    /// What was given back on keys that come more than once.
    pub given_back: Option<Box<GivenBack>>,
}

impl Outcome {
    /// Nothing is decided yet.
    pub(super) const fn new() -> Outcome {
        Outcome { is_over: false, verdicts: SmallVec::new_const(), questions: SmallVec::new_const(), given_back: None }
    }
}

/// For each group, whether a check of it is over.
#[derive(Debug)]
pub(crate) struct GroupsOver(SmallVec<[bool; 8]>);

impl GroupsOver {
    #[inline]
    pub(crate) fn contains(&self, group: usize) -> bool {
        self.0.get(group).copied().unwrap_or(false)
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
    let is_alone = !table.is_shared() && checks.iter().all(|check| check.reach == Reach::Process);
    match checks {
        [check] if is_alone => return decide_one::<true>(table, check, groups, is_shadow, now_ms, consult),
        [check] if consult.settled(check).is_none() => {
            return decide_one::<false>(table, check, groups, is_shadow, now_ms, consult);
        }
        _ => {}
    }
    decide_several(table, checks, groups, is_shadow, now_ms, consult, is_alone)
}

/// The same for more keys than one, or for none.
#[inline(never)]
fn decide_several(
    table: &Table,
    checks: &[Check<'_>],
    groups: &[Group],
    is_shadow: bool,
    now_ms: u64,
    consult: &Consult<'_>,
    is_alone: bool,
) -> Outcome {
    let few = match (checks.len(), is_alone) {
        (2..=4, true) => decide_few::<4, true>,
        (2..=4, false) => decide_few::<4, false>,
        (5..=8, true) => decide_few::<8, true>,
        (5..=8, false) => decide_few::<8, false>,
        _ => return decide_all(table, checks, groups, is_shadow, now_ms, consult),
    };
    let mut outcome = Outcome::new();
    if !few(table, checks, groups, is_shadow, now_ms, consult, &mut outcome) {
        outcome = decide_all(table, checks, groups, is_shadow, now_ms, consult);
    }
    outcome
}

/// The same for a single key, which is what most requests have: nothing to sort, nothing to wait for.
///
/// `ALONE`: nobody shares the counts. It is known when this is compiled, so that what only matters to counts that are
/// shared is left out, which is half of the instructions.
fn decide_one<const ALONE: bool>(
    table: &Table,
    check: &Check<'_>,
    groups: &[Group],
    is_shadow: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> Outcome {
    let hash = table.hash(&check.key);
    let number = table.shard_of(hash);
    let is_quiet = is_shadow || groups[check.group].is_shadow;
    // Whoever shares with nobody asks nobody, and looks once.
    let is_counted = !ALONE && consult.is_again && check.charging == Charging::Always;
    let counted = if is_counted { i64::try_from(check.hits).unwrap_or(i64::MAX) } else { 0 };
    let twins = Twins { waiting: 0, counted };
    let mut shard = table.lock(number);
    let known = shard.find(&check.key, hash);
    let (mut verdict, standing) = match known {
        Some(at) => {
            let mut spot = Spot::new::<ALONE>(&mut shard, number, at);
            spot.touch(table, check);
            assess::<ALONE>(check, &mut spot.slot.counter, spot.shared, twins, is_quiet, now_ms, consult)
        }
        None => assess_unknown::<ALONE>(check, twins, is_quiet, now_ms, consult),
    };
    let is_over = !is_shadow && verdict.is_over && is_denied_by(groups, |group| group == check.group);
    let asks = match standing {
        Decider::Asks(why) if !is_over => Some(why),
        _ => None,
    };
    let is_charged = match check.charging {
        Charging::Together => {
            asks.is_none() && !is_over && is_charged(&groups[check.group], verdict.is_over, is_shadow)
        }
        Charging::Always | Charging::Refund => !consult.is_again,
    };
    let is_counted = is_charged && check.hits > 0;
    let at = match known {
        None if is_counted && is_kept(table, check) => insert(table, &mut shard, Pinned::none(), check, hash, now_ms),
        known => known,
    };
    if let Some(at) = at {
        let mut spot = Spot::new::<ALONE>(&mut shard, number, at);
        if is_counted {
            let assumed = assumed(check, &verdict, consult);
            spot.charge(table, check, known.is_none(), standing.urgent_at(), assumed);
            if verdict.is_over {
                spot.wait_longer(&mut verdict, check, check.hits, now_ms);
            }
        }
        spot.tell_others(table, check, verdict.is_over, consult);
    }
    drop(shard);
    let charged = if is_charged || check.charging != Charging::Together { check.hits } else { 0 };
    conclude(&mut verdict, check, charged, 0);
    let question = |why| {
        let store = check.reach.store().unwrap_or(Store::Origin);
        Question { check: 0, store, is_judged: is_judged(check, is_quiet), counted_after: 0, why }
    };
    let questions = asks.map(question).into_iter().collect();
    Outcome { is_over, verdicts: smallvec![verdict], questions, given_back: None }
}

/// What a counter says to a check, and who decides it.
#[inline(always)]
pub(super) fn assess<const ALONE: bool>(
    check: &Check<'_>,
    counter: &mut Counter,
    mut shared: Option<&mut RegionalPart>,
    twins: Twins,
    is_quiet: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> (Verdict, Decider) {
    let mut verdict = judge(check.view(counter, shared.as_deref()), check, twins, now_ms, consult);
    if ALONE {
        return (verdict, Decider::AT_LEISURE);
    }
    let standing = standing(check, &verdict, counter, shared.as_deref_mut(), twins.waiting, is_quiet, consult);
    if let Decider::Paused { .. } | Decider::Without(_) = standing {
        heed(&standing, check, twins, counter, shared, now_ms, consult, &mut verdict);
    }
    (verdict, standing)
}

/// The same for a key that nothing is known of.
#[cold]
pub(super) fn assess_unknown<const ALONE: bool>(
    check: &Check<'_>,
    twins: Twins,
    is_quiet: bool,
    now_ms: u64,
    consult: &Consult<'_>,
) -> (Verdict, Decider) {
    assess::<ALONE>(check, &mut Counter::new(&check.terms, now_ms), None, twins, is_quiet, now_ms, consult)
}

/// What it means for a verdict that somebody else decides.
#[expect(clippy::too_many_arguments, reason = "a decision's parts, which only here come together")]
fn heed(
    standing: &Decider,
    check: &Check<'_>,
    twins: Twins,
    counter: &mut Counter,
    shared: Option<&mut RegionalPart>,
    now_ms: u64,
    consult: &Consult<'_>,
    verdict: &mut Verdict,
) {
    match *standing {
        Decider::Memory { .. } | Decider::Asks(_) => {}
        Decider::Paused { wait_ms } => {
            verdict.is_over = true;
            verdict.wait_for(check.view(counter, shared.as_deref()), &check.terms, twins.needed(check), now_ms);
            verdict.reset_ms = verdict.reset_ms.max(wait_ms);
        }
        Decider::Without(cause) => {
            let live = live(check, consult);
            let mono_ms = consult.mono_ms;
            let shared = shared.map(|shared| {
                shared.follow(counter);
                &*shared
            });
            Endured { check, twins, live, mono_ms, now_ms }.judge(counter, shared, verdict);
            verdict.basis = Basis::Without(cause, check.on_outage);
        }
    }
}

/// Processes that share a check's count, as its store last told.
fn live(check: &Check<'_>, consult: &Consult<'_>) -> u32 {
    check.reach.store().map_or(1, |store| consult.of(store).live)
}

/// Hits that other processes are taken to have admitted along with this check's.
#[inline]
pub(super) fn assumed(check: &Check<'_>, verdict: &Verdict, consult: &Consult<'_>) -> u64 {
    match verdict.basis {
        Basis::Without(..) => Endured::assumed(check, live(check, consult)),
        Basis::Memory | Basis::Store(_) => 0,
    }
}

/// What a counter says to a check.
#[inline(always)]
fn judge(mut view: View<'_>, check: &Check<'_>, twins: Twins, now_ms: u64, consult: &Consult<'_>) -> Verdict {
    let Check { terms, charging, .. } = check;
    if *charging == Charging::Refund {
        let (available, reset_ms) = refunded(view, check, twins, now_ms, consult);
        return Verdict::within(available, reset_ms);
    }
    let mut look = view.look(terms, now_ms);
    look.available = twins.available_before(look.available, terms);
    let needed = twins.needed(check);
    let is_over = !u64::try_from(look.available).is_ok_and(|available| available >= needed);
    let (reset_ms, is_hopeless) = match is_over {
        false => (view.resets_at_ms(terms, &look, twins.uncounted(check)).saturating_sub(now_ms), false),
        true => wait(view, terms, needed, now_ms),
    };
    Verdict { is_over, is_hopeless, ..Verdict::within(look.available, reset_ms) }
}

/// What is available after a refund, which is given back right after, and the time until the limit starts afresh.
#[cold]
fn refunded(mut view: View<'_>, check: &Check<'_>, twins: Twins, now_ms: u64, consult: &Consult<'_>) -> (i64, u64) {
    let Check { terms, hits, .. } = check;
    view.look(terms, now_ms);
    let mut refunded = view.counter.clone();
    if !consult.is_again {
        refunded.refund(terms, *hits);
    }
    let mut refunded = View { counter: &mut refunded, ..view };
    let look = refunded.look(terms, now_ms);
    let available = twins.available_before(look.available, terms);
    (available, refunded.resets_at_ms(terms, &look, twins.waiting).saturating_sub(now_ms))
}

/// Finds the groups that a check of is over, in one walk: the largest request has thousands of both.
pub(crate) fn groups_over(checks: &[Check<'_>], groups: &[Group], verdicts: &[Verdict]) -> GroupsOver {
    let mut over = SmallVec::new();
    for (check, verdict) in checks.iter().zip(verdicts) {
        steps::count();
        if verdict.is_over {
            if over.is_empty() {
                over.resize(groups.len(), false);
            }
            over[check.group] = true;
        }
    }
    GroupsOver(over)
}

/// Denied by any group that denies alone, or by all quota groups together.
#[inline]
pub(crate) fn denies(groups: &[Group], over: &GroupsOver) -> bool {
    !over.0.is_empty() && is_denied_by(groups, |group| over.contains(group))
}

#[inline]
fn is_denied_by(groups: &[Group], is_over: impl Fn(usize) -> bool) -> bool {
    let mut quota_groups = 0;
    let mut quota_groups_over = 0;
    for (index, group) in groups.iter().enumerate() {
        steps::count();
        let is_over = !group.is_shadow && is_over(index);
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
#[inline]
pub(super) fn is_charged(group: &Group, is_over: bool, is_shadow: bool) -> bool {
    is_shadow || group.is_shadow || !group.is_quota || !is_over
}

/// Fills in what only the overall verdict settles.
#[inline(always)]
pub(super) fn conclude(verdict: &mut Verdict, check: &Check<'_>, charged: u64, waiting: u64) {
    verdict.charged = charged;
    let own = if check.charging == Charging::Refund { 0 } else { charged };
    let available = u64::try_from(verdict.available).unwrap_or(0);
    let left = if verdict.is_over { 0 } else { available.saturating_sub(waiting).saturating_sub(own) };
    verdict.remaining = u32::try_from(left).unwrap_or(u32::MAX);
    if verdict.is_hopeless {
        outage::raise_hopes(verdict, check);
    }
}
