//! Requests over several limits of which only some have to ask: the others are decided by memory, before the call and after it.

use super::twins::Fleet;
use super::*;
use crate::engine::decide::{Cause, StoreAccess, StoreViews};
use crate::engine::reach::Store;
use crate::engine::{Attempt, StoreRequest};
use crate::regional::consultation::Consultation;
use crate::regional::wait_queue::AskOutcome;

const RULES: &str = "
domain: d
descriptors:
  - {key: closed, rate_limit: {requests_per_unit: 6, unit: hour, slack: 0}}
  - {key: bucket, rate_limit: {requests_per_unit: 900, unit: hour, slack: 0, algorithm: gcra, burst: 6}}
  - {key: exact, rate_limit: {requests_per_unit: 6, unit: hour, slack: 0, algorithm: exact_window}}
  - {key: open, rate_limit: {requests_per_unit: 1000, unit: hour, slack: 0.01}}
  - {key: guarded, rate_limit: {requests_per_unit: 1000, unit: hour, slack: 0.01, on_outage: deny}}
";

const ONE: Modes = Modes { shadow: false, quota: false };

struct Case {
    rules: Ruleset,
    fleet: Fleet,
    consultation: Option<Consultation>,
}

impl Case {
    fn new() -> Case {
        let mut fleet = Fleet::new(false, seed::seed());
        fleet.grow_up();
        Case { rules: ruleset(RULES), fleet, consultation: None }
    }

    /// Looks at a request of one hit on each, and says what the store is to be asked about, or what was decided.
    fn look(&mut self, entries: &[&'static str]) -> Result<String, Vec<usize>> {
        let asks: Vec<Ask<'_>> = entries.iter().map(|entries| ask(entries)).collect();
        let now = self.fleet.views();
        let views = self.consultation.as_ref().map_or(now, |consultation| consultation.views(&now));
        match self.fleet.look(&self.rules, &asks, ONE, &views) {
            Attempt::Decided(decision) => Ok(said(&decision)),
            Attempt::Asks(mut asked) => {
                let checks = asked.questions.iter().map(|question| question.check).collect();
                let mut heard = self.consultation.take().unwrap_or_else(|| Consultation::first(&now, &mut asked));
                self.fleet.hear(&mut heard, asked);
                self.consultation = Some(heard);
                Err(checks)
            }
        }
    }

    /// Another request has so many hits admitted, without asking anybody.
    fn meanwhile(&mut self, entries: &'static str, hits: u64) {
        let now = self.fleet.views();
        let mut views = StoreViews { ..now };
        views.origin.asking = StoreAccess::Never(Cause::Outage);
        let attempt = self.fleet.look(&self.rules, &[ask_for(entries, Hits::OfRequest(hits))], ONE, &views);
        assert!(matches!(attempt, Attempt::Decided(decision) if !decision.is_over));
    }
}

#[test]
fn what_memory_can_decide_does_not_go_along() {
    let mut case = Case::new();
    assert_eq!(case.look(&["open=x", "closed=x"]), Err(vec![1]));
    assert_eq!(case.look(&["open=x", "closed=x"]), Ok("OK: OK 999, OK 5".into()));
    assert_eq!(case.fleet.origin_total(), (1, 0), "of the closed limit only");
}

#[test]
fn what_was_charged_for_a_request_that_is_denied_is_used_up_by_the_next_hit() {
    for closed in ["closed=x", "bucket=x", "exact=x"] {
        let entries = ["open=x", closed];
        let mut case = Case::new();
        assert_eq!(case.look(&entries), Err(vec![1]), "{closed}");
        case.meanwhile("open=x", 1000);
        assert_eq!(case.look(&entries), Ok("OVER: OVER 0, OK 6".into()), "{closed}: nothing is charged here");
        case.fleet.flush();
        let before = case.fleet.origin_charged();
        assert_eq!(before, 1000 + 1, "{closed}: the origin keeps what it has charged");
        case.consultation = None;
        if closed != "closed=x" {
            assert_eq!(case.look(&[closed]), Err(vec![0]), "{closed}: only hits of windows are used up by memory");
        }
        assert_eq!(case.look(&[closed]), Ok("OK: OK 5".into()), "{closed}");
        assert_eq!(case.fleet.origin_charged(), before, "{closed}: the hit was there already");
        case.consultation = None;
        assert!(case.look(&[closed]).is_err());
        assert_eq!(case.look(&[closed]), Ok("OK: OK 4".into()), "{closed}");
        assert_eq!(case.fleet.origin_charged(), before + 1, "{closed}: and this one is new");
    }
}

#[test]
fn a_limit_whose_allowance_is_gone_meanwhile_is_asked_about_alone() {
    let entries = ["open=x", "closed=x"];
    let mut case = Case::new();
    assert_eq!(case.look(&entries), Err(vec![1]));
    case.meanwhile("open=x", 10);
    assert_eq!(case.look(&entries), Err(vec![0]), "ten may be pending");
    assert_eq!(case.look(&entries), Ok("OK: OK 989, OK 5".into()), "both are charged, each once");
    assert_eq!(case.fleet.origin_total(), (12, 0));
}

/// Found by a review: the policies of all limits decided when one of them had no answer.
#[test]
fn without_an_answer_only_what_had_to_ask_is_decided_by_its_policy() {
    let unanswered = |entries: &[&'static str], taken| {
        let mut case = Case::new();
        (0..taken).for_each(|_| assert!(case.look(&["guarded=x"]).is_ok(), "memory decides"));
        let asks: Vec<Ask<'_>> = entries.iter().map(|entries| ask(entries)).collect();
        let now = case.fleet.views();
        let Attempt::Asks(mut asked) = case.fleet.look(&case.rules, &asks, ONE, &now) else { panic!("nobody asks") };
        let mut heard = Consultation::first(&now, &mut asked);
        heard.hear(Store::Origin, AskOutcome::NoAnswer, true, false);
        case.consultation = Some(heard);
        case.look(entries)
    };
    assert_eq!(unanswered(&["guarded=x", "closed=x"], 1), Ok("OK: OK 998, OK 5".into()), "memory decides this one");
    assert_eq!(
        unanswered(&["guarded=x"], 10),
        Ok("OVER: OVER 0".into()),
        "its allowance is gone, and its policy denies"
    );
}

impl Case {
    /// What the origin is to be asked about a key.
    fn question(&self, entries: &str) -> StoreRequest {
        match self.fleet.look(&self.rules, &[ask(entries)], ONE, &self.fleet.views()) {
            Attempt::Asks(asked) => asked,
            Attempt::Decided(decision) => panic!("{entries}: {decision:?}"),
        }
    }
}

#[test]
fn requests_for_different_keys_go_together_while_a_call_is_under_way() {
    let mut case = Case::new();
    let asked = ["closed=a", "closed=b", "bucket=c", "exact=d"].map(|entries| case.question(entries));
    assert_eq!(case.fleet.ask_at_once(asked.to_vec(), 0), (vec![1, 3], 4), "the first waits for nobody");
    // No more cells than the origin serves in a moment.
    let asked: Vec<StoreRequest> = (0..30).map(|n| case.question(&format!("exact=e{n}"))).collect();
    let (sizes, told) = case.fleet.ask_at_once(asked, 0);
    assert_eq!((sizes.iter().sum::<usize>(), told), (30, 30));
    assert!(sizes.iter().all(|size| size * 17 <= 128), "{sizes:?}");
}

#[test]
fn who_is_gone_before_its_call_leaves_its_key_to_others() {
    let mut case = Case::new();
    let asked = ["closed=a", "closed=b", "closed=c"].map(|entries| case.question(entries));
    assert_eq!(case.fleet.ask_at_once(asked.to_vec(), 2), (vec![1], 1), "nobody waits for the others");
    let asked = ["closed=b", "closed=c"].map(|entries| case.question(entries));
    assert_eq!(case.fleet.ask_at_once(asked.to_vec(), 0), (vec![1, 1], 2));
}

/// Found by a review: the charge of a first answer was forgotten when a second one denied.
#[test]
fn a_second_answer_that_denies_gives_back_what_the_first_has_charged() {
    let entries = ["open=x", "closed=x"];
    let mut case = Case::new();
    assert_eq!(case.look(&entries), Err(vec![1]));
    // Other processes have nearly used up the open limit, and this one its allowance.
    case.fleet.told_by_others(&case.rules, "open=x", 995);
    case.meanwhile("open=x", 10);
    assert_eq!(case.look(&entries), Err(vec![0]), "ten may be pending");
    assert!(case.look(&entries).is_ok_and(|said| said.starts_with("OVER")), "the origin has no room for it");
    case.consultation = None;
    assert_eq!(case.look(&["closed=x"]), Ok("OK: OK 5".into()), "nothing of the denied request counts");
}
