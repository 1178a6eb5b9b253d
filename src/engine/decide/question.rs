//! Finds what to ask a store before a request can be decided.

use smallvec::SmallVec;

use crate::engine::count::signed;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::general::{CheckState, LockedCase, given_back};
use crate::engine::decide::store_views::{CheckAnswer, StoreAccess};
use crate::engine::decide::verdict::Verdict;
use crate::engine::decide::{Case, GroupsOver};
use crate::engine::reach::{Reach, Store};
use crate::engine::steps;

/// Why a store is asked about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The key was never read, or not for a while.
    Cold,
    /// More hits would be pending than the allowance.
    Headroom,
    /// Another check of the request asks, and keys come more than once in it.
    Together,
    /// The limit is strict: memory never admits anything.
    Strict,
}

/// A check that its store is to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its place among the checks.
    pub check: usize,
    /// Whom to ask.
    pub store: Store,
    /// The store says whether the hits fit; otherwise only how the key stands.
    pub is_judged: bool,
    /// The store adds this to the limit, so that only earlier checks count for this one: hits of later checks on its key
    /// that are in the count already, less refunds, less hits of earlier checks that the store is not asked about.
    pub counted_after: i64,
    /// For metrics: it changes nothing about the question.
    pub why: Why,
}

/// Whether the check's hits may be refused, so that the store has to say whether they fit.
pub(super) fn is_judged(check: &Check<'_>, is_quiet: bool) -> bool {
    check.charging == ChargeMode::Together && !is_quiet && check.reach != Reach::Process
}

impl LockedCase<'_, '_> {
    /// What to ask before the request can be decided: about the checks that have to ask. Memory decides the others, by this look
    /// and by the one after the answer. If keys come more than once, all checks of the store go along: each counts those before.
    pub(super) fn questions(&self, verdicts: &[Verdict], over: &GroupsOver) -> SmallVec<[Question; 2]> {
        let Case { checks, groups, views, is_shadow, .. } = *self.case;
        if views.is_decided_by_owner() {
            return SmallVec::new();
        }
        let asks = |store: Store| {
            let of_store =
                |(check, seen): (&Check<'_>, &CheckState)| check.reach.store() == Some(store) && seen.asks.is_some();
            self.twin_sums.is_some() && checks.iter().zip(self.seen.iter()).any(of_store)
        };
        let with_others = [Store::Origin, Store::Owner].map(asks);
        let counted_after = self.counted_after();
        let mut questions: SmallVec<[Question; 2]> = SmallVec::new();
        let mut spent: SmallVec<[bool; 8]> = SmallVec::from_elem(false, groups.len());
        for (index, check) in checks.iter().enumerate() {
            steps::count();
            let question = self.question(index, with_others, &counted_after);
            // A check that is over and that no store judges stays over.
            spent[check.group] |= verdicts[index].is_over && !question.is_some_and(|question| question.is_judged);
            questions.extend(question);
        }
        // A quota group that is over by another of its limits is not charged, so no store must charge it. But the nearer
        // store is still asked about what it judges itself: it may find that memory was wrong.
        questions.retain(|question| {
            let group = checks[question.check].group;
            let is_quota = groups[group].is_quota && !groups[group].is_shadow && !is_shadow;
            let is_spent = if question.store == Store::Owner { over.contains(group) } else { spent[group] };
            !(is_quota && is_spent)
        });
        questions
    }

    /// What to ask about a check, if it has to ask, or goes along with others of its store.
    fn question(&self, index: usize, with_others: [bool; 2], counted_after: &[i64]) -> Option<Question> {
        let check = &self.case.checks[index];
        let store = check.reach.store()?;
        let asks = self.seen[index].asks;
        if asks.is_none() && !with_others[store as usize] {
            return None;
        }
        // Its policy has decided it, or its store has: nobody is asked.
        let is_never = self.case.views.asking(check).is_some_and(|access| access != StoreAccess::Allowed);
        if is_never || self.case.views.answer_about(check, index) != CheckAnswer::NotAsked {
            return None;
        }
        let counted_after = counted_after.get(index).copied().unwrap_or(0);
        // If later checks gave back more than the limit, this one was over: there is nothing to judge.
        let can_fit = i64::from(check.terms.capacity()).saturating_add(counted_after) >= 0;
        let is_judged = is_judged(check, self.case.is_quiet(check)) && can_fit;
        let why = asks.unwrap_or(Why::Together);
        (is_judged || asks.is_some()).then_some(Question { check: index, store, is_judged, counted_after, why })
    }

    /// For each check what [`Question::counted_after`] says; empty if all keys are different.
    fn counted_after(&self) -> Vec<i64> {
        let Case { checks, views, .. } = *self.case;
        let Some(sums) = &self.twin_sums else { return Vec::new() };
        let given_back = |index| match views.is_again {
            true => given_back(views.given_back, index),
            false => given_back(self.given_back.as_deref(), index),
        };
        let by_now = |index: usize| match checks[index].charging {
            ChargeMode::Together => 0,
            ChargeMode::Always => signed(checks[index].hits),
            ChargeMode::Refund => -given_back(index),
        };
        let unasked = |index: usize| {
            let check = &checks[index];
            if check.charging == ChargeMode::Together && self.case.is_quiet(check) { check.hits } else { 0 }
        };
        sums.after(by_now, unasked)
    }
}
