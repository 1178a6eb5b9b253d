//! How a request walks over the stores, from its first look to its decision.
//!
//! The first look decides most requests from memory. A request that has to ask a store is decided by a later look: it
//! asks, hears the answer, looks again, and may then ask the other store, the nearer one first. This file remembers
//! what the stores have said so far. The server or the simulator carries the questions, and bounds how long.
//!
//! A store that is out of reach at the first look stays out of reach for the request: a breaker that closes meanwhile
//! must not make it wait twice.

use crate::engine::StoreRequest;
use crate::engine::decide::GivenBack;
use crate::engine::decide::{Cause, Store, StoreAccess, StoreAnswer, StoreView, StoreViews};
use crate::regional::wait_queue::AskOutcome;
use crate::rules::policy::Class;

/// How many requests may wait for the stores before one of this class is shed. `in_flight_max` is how many may be open.
pub(crate) fn waiting_max(in_flight_max: usize, class: Class) -> usize {
    let percent = match class {
        Class::Comfort => 90,
        Class::Cost => 95,
        Class::Security => 100,
    };
    (in_flight_max.saturating_mul(percent) / 100).max(1)
}

/// What a request has heard from the stores so far.
#[derive(Clone, Debug)]
pub(crate) struct Consultation {
    origin: StoreRecord,
    owner: StoreRecord,
    /// What the first look gave back: later looks need to know.
    given_back: Option<Box<GivenBack>>,
    /// Too many requests wait already: this one asks nobody.
    is_shed: bool,
}

/// What a request knows of a store.
#[derive(Clone, Debug)]
struct StoreRecord {
    /// The first look found it out of reach for limits that are not strict.
    is_out: bool,
    /// The first look found it out of reach for strict limits.
    is_strictly_out: bool,
    /// An outcome has said that keys were read which this process did not know.
    has_read: bool,
    /// It gave no answer when it was asked last, or there is no time to ask again.
    is_silent: bool,
    /// All that it has said.
    answer: Option<StoreAnswer>,
}

impl Consultation {
    /// Starts after the first look, which had these views and led to this question. Takes what that look gave back.
    pub(crate) fn first(views: &StoreViews<'_>, question: &mut StoreRequest) -> Consultation {
        Consultation {
            origin: StoreRecord::first(&views.origin),
            owner: StoreRecord::first(&views.owner),
            given_back: question.given_back.take(),
            is_shed: false,
        }
    }

    /// Sheds the request: the next look decides it without asking.
    pub(crate) fn shed(&mut self) {
        self.is_shed = true;
    }

    /// Takes a store's outcome. `is_in_time`: there is time to ask again. `is_strict`: the question was about strict
    /// limits.
    pub(crate) fn hear(&mut self, store: Store, outcome: AskOutcome, is_in_time: bool, is_strict: bool) {
        let record = match store {
            Store::Origin => &mut self.origin,
            Store::Owner => &mut self.owner,
        };
        record.hear(outcome, is_in_time, is_strict);
    }

    /// The views for the next look: how the stores stand now, and what they have said.
    pub(crate) fn views<'a>(&'a self, now: &StoreViews<'a>) -> StoreViews<'a> {
        StoreViews {
            origin: self.origin.view(now.origin, self.is_shed),
            owner: self.owner.view(now.owner, self.is_shed),
            is_again: true,
            given_back: self.given_back.as_deref(),
            ..*now
        }
    }
}

impl StoreRecord {
    fn first(view: &StoreView<'_>) -> StoreRecord {
        let is_out = |asking| matches!(asking, StoreAccess::Never(_));
        let (is_out, is_strictly_out) = (is_out(view.asking), is_out(view.strict));
        StoreRecord { is_out, is_strictly_out, has_read: false, is_silent: false, answer: None }
    }

    /// After the first read, memory decides. If that leads to another read, the table is too small to keep the keys,
    /// and would have the store asked without end: then the answer itself decides. But not about strict limits: others
    /// may have taken the rest meanwhile.
    fn hear(&mut self, outcome: AskOutcome, is_in_time: bool, is_strict: bool) {
        let had_read = self.has_read;
        self.has_read |= matches!(outcome, AskOutcome::Read(_));
        let answer = match outcome {
            AskOutcome::Answered(answer) => Some(answer),
            AskOutcome::Again if is_in_time => None,
            AskOutcome::Read(_) if is_in_time && !had_read => None,
            AskOutcome::Read(Some(answer)) if is_in_time && !is_strict => Some(answer),
            AskOutcome::Again | AskOutcome::Read(_) | AskOutcome::NoAnswer => {
                self.is_silent = true;
                None
            }
        };
        self.is_silent |= !is_in_time;
        match (&mut self.answer, answer) {
            (Some(known), Some(later)) => known.add(&later),
            (known @ None, answer) => *known = answer,
            (Some(_), None) => {}
        }
    }

    fn view<'a>(&'a self, now: StoreView<'a>, is_shed: bool) -> StoreView<'a> {
        let asking = |is_out: bool, now: StoreAccess| match now {
            _ if is_out => StoreAccess::Never(Cause::Outage),
            StoreAccess::Allowed if self.is_silent => StoreAccess::Silent,
            StoreAccess::Allowed if is_shed => StoreAccess::Never(Cause::Overload),
            now => now,
        };
        let (asking, strict) = (asking(self.is_out, now.asking), asking(self.is_strictly_out, now.strict));
        StoreView { asking, strict, answer: self.answer.as_ref(), ..now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::SmallVec;

    const ALLOWED: StoreView<'static> = StoreView::new(3, StoreAccess::Allowed);
    const OUT: StoreView<'static> = StoreView::new(3, StoreAccess::Never(Cause::Outage));

    fn views(origin: StoreView<'static>, owner: StoreView<'static>) -> StoreViews<'static> {
        StoreViews { mono_ms: 7, origin, owner, is_cut_off: true, is_again: false, given_back: None }
    }

    fn question() -> StoreRequest {
        StoreRequest {
            store: Store::Origin,
            charges: true,
            is_strict: false,
            class: Class::Comfort,
            checks: 1,
            questions: SmallVec::new(),
            has_free_quota: false,
            given_back: None,
        }
    }

    fn first(origin: StoreView<'static>, owner: StoreView<'static>) -> Consultation {
        Consultation::first(&views(origin, owner), &mut question())
    }

    fn answer(is_admitted: bool) -> StoreAnswer {
        StoreAnswer { is_admitted, is_charged: is_admitted, checks: SmallVec::new() }
    }

    /// What the next look may do with a store.
    #[derive(Debug, PartialEq, Eq)]
    enum Found {
        Allowed,
        Never(Cause),
        Silent,
        Answered(StoreAnswer),
    }

    fn found(consultation: &Consultation, store: Store) -> [Found; 2] {
        let now = views(ALLOWED, ALLOWED);
        let views = consultation.views(&now);
        let view = views.of(store);
        [view.asking, view.strict].map(|asking| match (asking, view.answer) {
            (StoreAccess::Never(cause), None) => Found::Never(cause),
            (StoreAccess::Allowed, None) => Found::Allowed,
            (StoreAccess::Silent, None) => Found::Silent,
            (_, Some(answer)) => Found::Answered(answer.clone()),
        })
    }

    fn after(outcomes: &[AskOutcome], is_in_time: bool, is_strict: bool) -> [Found; 2] {
        let mut consultation = first(ALLOWED, ALLOWED);
        for outcome in outcomes {
            consultation.hear(Store::Origin, outcome.clone(), is_in_time, is_strict);
        }
        found(&consultation, Store::Origin)
    }

    const OUTAGE: [Found; 2] = [Found::Never(Cause::Outage), Found::Never(Cause::Outage)];
    const SILENT: [Found; 2] = [Found::Silent, Found::Silent];
    const MAY_ASK: [Found; 2] = [Found::Allowed, Found::Allowed];

    fn answered(is_admitted: bool) -> [Found; 2] {
        [(); 2].map(|()| Found::Answered(answer(is_admitted)))
    }

    #[test]
    fn an_answer_decides_even_one_that_is_late() {
        for (is_in_time, is_strict) in [(true, false), (true, true), (false, false), (false, true)] {
            for is_admitted in [false, true] {
                let outcome = AskOutcome::Answered(answer(is_admitted));
                assert_eq!(after(&[outcome], is_in_time, is_strict), answered(is_admitted));
            }
        }
    }

    #[test]
    fn somebody_else_has_asked_so_memory_may_know() {
        assert_eq!(after(&[AskOutcome::Again], true, false), MAY_ASK);
        assert_eq!(after(&[AskOutcome::Again, AskOutcome::Again, AskOutcome::Again], true, true), MAY_ASK);
        assert_eq!(after(&[AskOutcome::Again], false, false), SILENT, "there is no time to ask again");
    }

    #[test]
    fn keys_that_a_tiny_table_does_not_keep_are_asked_for_twice_and_then_the_answer_decides() {
        let read = || AskOutcome::Read(Some(answer(false)));
        assert_eq!(after(&[read()], true, false), MAY_ASK, "memory should know by now");
        assert_eq!(after(&[AskOutcome::Again, read()], true, false), MAY_ASK);
        assert_eq!(after(&[read(), read()], true, false), answered(false));
        assert_eq!(after(&[read(), AskOutcome::Read(None)], true, false), SILENT, "not all of it could be judged");
        assert_eq!(after(&[read(), AskOutcome::Again], true, false), MAY_ASK);
        assert_eq!(after(&[read()], false, false), SILENT);
        assert_eq!(after(&[read(), read()], false, false), SILENT);
    }

    #[test]
    fn a_strict_limit_is_never_decided_by_what_was_read() {
        let read = || AskOutcome::Read(Some(answer(true)));
        assert_eq!(after(&[read()], true, true), MAY_ASK);
        assert_eq!(after(&[read(), read()], true, true), SILENT);
    }

    #[test]
    fn without_an_answer_the_policy_decides() {
        assert_eq!(after(&[AskOutcome::NoAnswer], true, false), SILENT);
        assert_eq!(after(&[AskOutcome::NoAnswer], false, true), SILENT);
    }

    #[test]
    fn the_owner_is_asked_after_the_origin_and_both_answers_stay() {
        let mut consultation = first(ALLOWED, ALLOWED);
        consultation.hear(Store::Origin, AskOutcome::Answered(answer(false)), true, false);
        assert_eq!(found(&consultation, Store::Owner), MAY_ASK);
        consultation.hear(Store::Owner, AskOutcome::Answered(answer(true)), true, true);
        assert_eq!(found(&consultation, Store::Origin), answered(false));
        assert_eq!(found(&consultation, Store::Owner), answered(true));
        let mut consultation = first(ALLOWED, ALLOWED);
        consultation.hear(Store::Origin, AskOutcome::Answered(answer(true)), true, false);
        consultation.hear(Store::Owner, AskOutcome::NoAnswer, true, true);
        assert_eq!(found(&consultation, Store::Origin), answered(true));
        assert_eq!(found(&consultation, Store::Owner), SILENT);
    }

    #[test]
    fn a_store_that_was_out_at_first_stays_out_for_this_request() {
        let consultation = first(OUT, ALLOWED);
        assert_eq!(found(&consultation, Store::Origin), OUTAGE, "although it answers others by now");
        assert_eq!(found(&consultation, Store::Owner), MAY_ASK);
        let only_strict = StoreView { strict: StoreAccess::Never(Cause::Outage), ..ALLOWED };
        let mut consultation = first(only_strict, OUT);
        assert_eq!(found(&consultation, Store::Origin), [Found::Allowed, Found::Never(Cause::Outage)]);
        consultation.hear(Store::Origin, AskOutcome::Answered(answer(true)), true, false);
        assert_eq!(found(&consultation, Store::Origin), answered(true), "of limits that are not strict");
        let strict = consultation.views(&views(ALLOWED, ALLOWED)).origin.strict;
        assert_eq!(strict, StoreAccess::Never(Cause::Outage));
    }

    #[test]
    fn a_store_that_goes_out_meanwhile_is_not_asked_again() {
        let consultation = first(ALLOWED, ALLOWED);
        let now = views(OUT, ALLOWED);
        assert!(matches!(consultation.views(&now).origin.asking, StoreAccess::Never(Cause::Outage)));
        assert!(matches!(consultation.views(&now).owner.asking, StoreAccess::Allowed));
    }

    #[test]
    fn who_is_shed_asks_nobody_and_an_outage_stays_one() {
        let mut consultation = first(ALLOWED, OUT);
        consultation.shed();
        assert_eq!(found(&consultation, Store::Origin), [(); 2].map(|()| Found::Never(Cause::Overload)));
        assert_eq!(found(&consultation, Store::Owner), OUTAGE);
    }

    #[test]
    fn every_look_after_the_first_knows_that_it_is_one_and_what_was_given_back() {
        let mut question = StoreRequest { given_back: Some(Box::default()), ..question() };
        let consultation = Consultation::first(&views(ALLOWED, ALLOWED), &mut question);
        assert!(question.given_back.is_none(), "it is kept once");
        let now = StoreViews { mono_ms: 9, is_cut_off: false, ..views(ALLOWED, ALLOWED) };
        let views = consultation.views(&now);
        assert!(views.is_again && views.given_back.is_some());
        assert_eq!((views.mono_ms, views.is_cut_off, views.origin.live), (9, false, 3));
    }

    #[test]
    fn the_more_a_class_matters_the_longer_it_may_wait() {
        let places = [Class::Comfort, Class::Cost, Class::Security].map(|class| waiting_max(1000, class));
        assert_eq!(places, [900, 950, 1000]);
        assert_eq!(waiting_max(1, Class::Comfort), 1, "one may always wait");
    }
}
