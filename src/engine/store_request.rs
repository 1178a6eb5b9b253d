//! The questions of one request to a store, in a form that outlives the request's borrowed values.

use smallvec::SmallVec;

use crate::engine::decide::{Case, Check, GivenBack, Group, Outcome, Question, Why};
use crate::engine::key::OwnedKey;
use crate::engine::reach::Store;
use crate::engine::steps;
use crate::rules::limit::Terms;
use crate::rules::policy::{Class, Scope};

/// The questions of one request to one store.
#[derive(Clone, Debug)]
pub struct StoreRequest {
    /// Whom to ask.
    pub store: Store,
    /// The store charges what it admits. Otherwise it only judges: a farther store decides after it.
    pub charges: bool,
    /// A question is about a strict limit, so the answer may take longer.
    pub is_strict: bool,
    /// The most important class of the limits that are asked about, at this store or a farther one: tells when to shed the
    /// request.
    pub class: Class,
    /// How many checks the request has: the answer is about all of them.
    pub checks: usize,
    /// In the order of the request's checks. Never empty.
    pub questions: SmallVec<[StoreQuestion; 2]>,
    /// A quota group that the store is not asked about is not over, so quotas deny nothing.
    pub has_free_quota: bool,
    /// Hits that this attempt has given back, for the next one to know. Only the first attempt gives hits back.
    pub given_back: Option<Box<GivenBack>>,
}

/// How a store is asked about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuestionKind {
    /// How it stands. Nothing is judged.
    Read,
    /// Whether it fits. If it does not, that denies the request.
    Fits,
    /// Whether it fits, as part of the quota group with this number.
    FitsQuota(u16),
}

impl QuestionKind {
    /// The store is asked whether it fits.
    pub fn is_judged(self) -> bool {
        match self {
            QuestionKind::Read => false,
            QuestionKind::Fits | QuestionKind::FitsQuota(_) => true,
        }
    }

    /// The quota group that it is judged for.
    pub fn quota(self) -> Option<u16> {
        match self {
            QuestionKind::FitsQuota(quota) => Some(quota),
            QuestionKind::Read | QuestionKind::Fits => None,
        }
    }
}

/// One key to ask about.
#[derive(Clone, Debug)]
pub struct StoreQuestion {
    /// Into the request's checks.
    pub check: usize,
    /// Owned: the request's text may be gone by the time of the answer.
    pub key: OwnedKey,
    /// With this region's part of the limit, if the hits are held against only that.
    pub terms: Terms,
    /// The store judges and charges them only if `kind` says so; otherwise memory deals with them.
    pub hits: u64,
    /// See [`Question::counted_after`].
    pub counted_after: i64,
    /// Whether the store judges the hits or only reads the key.
    pub kind: QuestionKind,
    /// The counts of other regions are left out.
    pub is_cut_off: bool,
    /// Memory never decides it.
    pub is_strict: bool,
    /// For metrics only.
    pub why: Why,
}

impl StoreRequest {
    /// Takes the questions for one store out of an outcome. The nearer store is asked first, and only judges if the farther
    /// one is still to be asked.
    pub(super) fn new(case: &Case<'_>, outcome: Outcome) -> StoreRequest {
        let Case { checks, groups, .. } = *case;
        let of = |store: Store| outcome.questions.iter().filter(move |question| question.store == store);
        let store = if of(Store::Origin).next().is_some() { Store::Origin } else { Store::Owner };
        StoreRequest {
            store,
            charges: store == Store::Owner || of(Store::Owner).next().is_none() || case.views.is_charged(),
            is_strict: of(store).any(|question| checks[question.check].scope == Scope::Strict),
            class: most_important(outcome.questions.iter().map(|question| checks[question.check].class)),
            checks: checks.len(),
            questions: of(store)
                .map(|question| StoreQuestion::new(question, &checks[question.check], groups))
                .collect(),
            has_free_quota: has_free_quota(case, &outcome, store),
            given_back: outcome.given_back,
        }
    }
}

impl StoreQuestion {
    fn new(question: &Question, check: &Check<'_>, groups: &[Group]) -> StoreQuestion {
        steps::count();
        let kind = match groups[check.group].is_quota {
            _ if !question.is_judged => QuestionKind::Read,
            true => QuestionKind::FitsQuota(u16::try_from(check.group).unwrap_or(u16::MAX)),
            false => QuestionKind::Fits,
        };
        StoreQuestion {
            check: question.check,
            key: OwnedKey::new(&check.key, check.is_sensitive, check.is_global()),
            terms: check.terms,
            hits: check.hits,
            counted_after: question.counted_after,
            kind,
            is_cut_off: check.is_cut_off,
            is_strict: check.scope == Scope::Strict,
            why: question.why,
        }
    }
}

/// Whether a quota group that the store is not asked about passes.
fn has_free_quota(case: &Case<'_>, outcome: &Outcome, store: Store) -> bool {
    let mut is_asked: SmallVec<[bool; 4]> = SmallVec::from_elem(false, case.groups.len());
    for question in outcome.questions.iter().filter(|question| question.store == store && question.is_judged) {
        is_asked[case.checks[question.check].group] = true;
    }
    let over = case.groups_over(&outcome.verdicts);
    let is_free =
        |(at, group): (usize, &Group)| group.is_quota && !is_asked[at] && (group.is_shadow || !over.contains(at));
    case.groups.iter().enumerate().any(is_free)
}

/// The class that is given up last. A limit without a class is there for comfort.
fn most_important(classes: impl Iterator<Item = Option<Class>>) -> Class {
    let rank = |class: &Class| match class {
        Class::Comfort => 0,
        Class::Cost => 1,
        Class::Security => 2,
    };
    classes.map(|class| class.unwrap_or(Class::Comfort)).max_by_key(rank).unwrap_or(Class::Comfort)
}
