//! Does it fit: one decision over all the keys of a request, all or nothing.
//!
//! Under the locks of every shard concerned: look at each key, find the overall verdict, charge. Refunds and hits that
//! are charged whatever happens are applied as they are met; everything else waits for the verdict and is charged
//! together or not at all. No other request sees anything in between.
//!
//! When counts are shared with other processes, memory may not be enough to decide. Then the outcome says what to ask a
//! store. Only refunds and hits that are charged whatever happens are applied, and a second attempt decides with the
//! answer, or without one.
//!
//! [`Case::decide`] is the way in. A single key ([`one`]) and a few that are nothing special ([`fast`]) have a short way;
//! [`general`] does everything else, and gives the same answer.

mod check;
mod decider;
mod fast;
mod general;
mod given_back;
mod one;
mod outage;
mod question;
mod settlement;
mod spot;
mod store_views;
mod tell_thresholds;
mod turn;
mod twins;
mod verdict;

use smallvec::SmallVec;

pub use crate::engine::decide::check::{ChargeMode, Check};
pub use crate::engine::decide::given_back::GivenBack;
pub use crate::engine::decide::question::{Question, Why};
pub use crate::engine::decide::store_views::{Cause, CheckAnswer, StoreAccess, StoreAnswer, StoreView, StoreViews};
pub use crate::engine::decide::verdict::{Basis, NewsAge, Verdict};
use crate::engine::quota::QuotaRule;
pub use crate::engine::reach::{Reach, Store};
use crate::engine::steps;
use crate::engine::table::Table;

/// The checks of one descriptor: what their verdict means for the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Group {
    /// Counts, but never denies.
    pub is_shadow: bool,
    /// Denies only together with all other quota groups.
    pub is_quota: bool,
}

/// The verdicts of a request, one for each check, and what follows from them.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The request is denied.
    pub is_over: bool,
    /// One for each check.
    pub verdicts: SmallVec<[Verdict; 4]>,
    /// If not empty, nothing is decided: a store has to be asked first.
    pub questions: SmallVec<[Question; 2]>,
    /// Hits that were given back on keys that come more than once, `None` if there are none.
    pub given_back: Option<Box<GivenBack>>,
}

impl Outcome {
    /// Nothing is decided yet.
    const fn new() -> Outcome {
        Outcome { is_over: false, verdicts: SmallVec::new_const(), questions: SmallVec::new_const(), given_back: None }
    }
}

/// A request to decide, and everything that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Where the keys are counted. The decision locks what it needs of it.
    pub table: &'a Table,
    /// Every limit that the request has to pass.
    pub checks: &'a [Check<'a>],
    /// One for each descriptor.
    pub groups: &'a [Group],
    /// The global mode in which nothing is denied and everything is charged.
    pub is_shadow: bool,
    /// Wall time, which windows go by.
    pub now_ms: u64,
    /// All that is known of the stores, with their answers in a second attempt.
    pub views: &'a StoreViews<'a>,
}

impl Case<'_> {
    /// Decides and charges, or says what to ask first.
    pub fn decide(&self) -> Outcome {
        let is_alone = !self.table.is_shared() && self.checks.iter().all(|check| check.reach == Reach::Process);
        match self.checks {
            [check] if is_alone => self.decide_one::<true>(check),
            [check] if self.views.answer_to(check).is_none() => self.decide_one::<false>(check),
            _ => self.decide_several(is_alone),
        }
    }

    /// Decides several checks, none, or one that a store has answered about.
    #[inline(never)]
    fn decide_several(&self, is_alone: bool) -> Outcome {
        let decide_few = match (self.checks.len(), is_alone) {
            (2..=4, true) => Case::decide_few::<4, true>,
            (2..=4, false) => Case::decide_few::<4, false>,
            (5..=8, true) => Case::decide_few::<8, true>,
            (5..=8, false) => Case::decide_few::<8, false>,
            _ => return self.decide_all(),
        };
        let mut outcome = Outcome::new();
        if !decide_few(self, &mut outcome) {
            outcome = self.decide_all();
        }
        outcome
    }

    /// Whether a check denies nothing, because its group or everything is in shadow.
    #[inline(always)]
    fn is_quiet(&self, check: &Check<'_>) -> bool {
        self.is_shadow || self.groups[check.group].is_shadow
    }

    /// Whether an admitted request charges a group.
    #[inline]
    fn is_charged(&self, group: &Group, is_over: bool) -> bool {
        self.is_shadow || group.is_shadow || QuotaRule::charges(group.is_quota, is_over)
    }

    /// Finds the groups with a check that is over, in one walk: the largest request has thousands of groups and checks.
    pub(crate) fn groups_over(&self, verdicts: &[Verdict]) -> GroupsOver {
        let mut over = SmallVec::new();
        for (check, verdict) in self.checks.iter().zip(verdicts) {
            steps::count();
            if verdict.is_over {
                if over.is_empty() {
                    over.resize(self.groups.len(), false);
                }
                over[check.group] = true;
            }
        }
        GroupsOver(over)
    }

    /// Whether the groups that are over deny the request, if there were no global shadow mode.
    #[inline]
    pub(crate) fn is_denied(&self, over: &GroupsOver) -> bool {
        !over.0.is_empty() && self.is_denied_by(|group| over.contains(group))
    }

    #[inline]
    fn is_denied_by(&self, is_over: impl Fn(usize) -> bool) -> bool {
        let rule = QuotaRule::of(self.groups.iter().enumerate().map(|(index, group)| {
            steps::count();
            (group.is_quota, !group.is_shadow && is_over(index))
        }));
        rule.denies()
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
