//! What operators and clients rely on, one sentence a test.

use super::*;
use crate::request::Unit;

const MINUTE_MS: u64 = 60_000;

const TEN: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 10, unit: minute}}
  - {key: b, rate_limit: {requests_per_unit: 2, unit: minute}}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: minute}}
  - {key: quota1, quota_mode: true, rate_limit: {requests_per_unit: 1, unit: minute}}
  - {key: quota2, quota_mode: true, rate_limit: {requests_per_unit: 2, unit: minute}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: never, rate_limit: {requests_per_unit: 0, unit: minute}}
  - {key: strict, rate_limit: {requests_per_unit: 10, unit: minute, charge: accepted}}
  - {key: always, rate_limit: {requests_per_unit: 10, unit: minute, charge: always}}
  - {key: fixed, rate_limit: {requests_per_unit: 10, unit: minute, algorithm: fixed_window}}
  - {key: bucket, rate_limit: {requests_per_unit: 60, unit: minute, algorithm: gcra, burst: 5}}
  - {key: dry, rate_limit: {requests_per_unit: 0, unit: minute, algorithm: gcra}}
";

#[test]
fn of_several_limits_the_status_reports_the_one_that_matters() {
    let bench = Bench::new(
        "
domain: d
descriptors:
  - key: a
    rate_limits:
      - {requests_per_unit: 12, unit: minute, name: minute}
      - {requests_per_unit: 20, unit: hour, name: hour}
      - {requests_per_unit: 1000, unit: day, name: day}
",
    );
    let reported = |hits, at_ms| {
        let decision = bench.decide(&[ask_for("a=x", hits)], at_ms);
        let StatusKind::Limited(limited) = decision.statuses[0].kind else { panic!() };
        (limited.limit.unwrap().name.to_string(), limited.verdict.remaining, limited.verdict.is_over)
    };
    assert_eq!(reported(Hits::OfRequest(10), 0), ("minute".into(), 2, false), "the least remaining");
    assert_eq!(reported(Hits::OfRequest(8), 2 * MINUTE_MS), ("hour".into(), 2, false));
    assert_eq!(reported(Hits::OfRequest(5), 2 * MINUTE_MS), ("hour".into(), 0, true), "both deny: the longer wait");
    assert_eq!(reported(Hits::OfRequest(2), 2 * MINUTE_MS), ("hour".into(), 0, false), "and nothing was charged");
}

#[test]
fn the_long_limit_still_has_188_after_twelve_passes_and_a_denial() {
    let bench = Bench::new(
        "
domain: d
descriptors:
  - key: a
    rate_limits:
      - {requests_per_unit: 12, unit: minute}
      - {requests_per_unit: 200, window: 30d}
",
    );
    (0..13).for_each(|_| drop(bench.decide(&[ask("a=x")], 0)));
    // Ask the long one alone through its window: with the minute's limit out of the way, 188 fit and 189 do not.
    let only_long = Bench {
        engine: bench.engine,
        rules: ruleset(
            "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 200, window: 30d}}
",
        ),
        modes: Modes::default(),
    };
    assert_eq!(only_long.said(&[ask_for("a=x", Hits::Own(0))], 0), "OK: OK 188");
}

#[test]
fn a_denied_request_charges_nobody() {
    let bench = Bench::new(TEN);
    assert_eq!(bench.said(&[ask("a=x"), ask("b=x")], 0), "OK: OK 9, OK 1");
    assert_eq!(bench.said(&[ask("a=x"), ask("b=x")], 0), "OK: OK 8, OK 0");
    assert_eq!(bench.said(&[ask("a=x"), ask("b=x")], 0), "OVER: OK 8, OVER 0");
    assert_eq!(bench.said(&[ask("a=x")], 0), "OK: OK 7");
    assert_eq!(bench.said(&[ask_for("a=y", Hits::OfRequest(100))], 0), "OVER: OVER 0");
    assert_eq!(bench.said(&[ask("a=y")], 0), "OK: OK 9");
}

#[test]
fn the_same_key_twice_counts_down_within_the_request() {
    let bench = Bench::new(TEN);
    assert_eq!(bench.said(&[ask("a=x"), ask("a=x"), ask("a=y")], 0), "OK: OK 9, OK 8, OK 9");
    assert_eq!(bench.said(&[ask("b=x"), ask("b=x"), ask("b=x")], 0), "OVER: OK 2, OK 2, OVER 0");
    assert_eq!(bench.said(&[ask("b=x"), ask("b=x")], 0), "OK: OK 1, OK 0");
}

#[test]
fn own_hits_are_charged_over_the_limit_and_whatever_the_others_say() {
    let bench = Bench::new(TEN);
    assert_eq!(bench.said(&[ask_for("a=x", Hits::Own(15))], 0), "OVER: OVER 0");
    assert_eq!(bench.said(&[ask_for("a=x", Hits::Own(0))], 0), "OVER: OVER 0", "the debt shows");
    assert_eq!(bench.said(&[ask("never=x"), ask_for("a=y", Hits::Own(3))], 0), "OVER: OVER 0, OK 7");
    assert_eq!(bench.said(&[ask("a=y")], 0), "OK: OK 6");
}

#[test]
fn charge_accepted_and_always_override_the_rule_of_thumb() {
    let bench = Bench::new(TEN);
    assert_eq!(bench.said(&[ask_for("strict=x", Hits::Own(15))], 0), "OVER: OVER 0");
    assert_eq!(bench.said(&[ask("strict=x")], 0), "OK: OK 9");
    assert_eq!(bench.said(&[ask_for("always=x", Hits::OfRequest(8))], 0), "OK: OK 2");
    assert_eq!(bench.said(&[ask_for("always=x", Hits::OfRequest(8))], 0), "OVER: OVER 0");
    // In the next window the sixteen weigh in.
    assert_eq!(bench.said(&[ask_for("always=x", Hits::Own(0))], MINUTE_MS + 22_500), "OK: OK 0");
    assert_eq!(bench.said(&[ask_for("always=x", Hits::Own(0))], MINUTE_MS + 18_000), "OVER: OVER 0");
}

#[test]
fn zero_hits_are_a_peek() {
    let bench = Bench::new(TEN);
    for _ in 0..3 {
        assert_eq!(bench.said(&[ask_for("a=x", Hits::Own(0))], 0), "OK: OK 10");
    }
    assert_eq!(bench.engine.stats().keys, 0, "a peek leaves no key behind");
    bench.decide(&[ask_for("a=x", Hits::OfRequest(10))], 0);
    assert_eq!(bench.said(&[ask_for("a=x", Hits::Own(0))], 0), "OK: OK 0");
}

#[test]
fn refunds_give_back_what_was_charged_and_no_more() {
    let bench = Bench::new(TEN);
    assert_eq!(bench.said(&[ask_for("a=x", Hits::Refund(5))], 0), "OK: OK 10");
    bench.decide(&[ask_for("a=x", Hits::OfRequest(8))], 0);
    assert_eq!(bench.said(&[ask_for("a=x", Hits::Refund(5))], 0), "OK: OK 7");
    assert_eq!(bench.said(&[ask_for("a=x", Hits::Refund(500))], 0), "OK: OK 10");
    assert_eq!(bench.said(&[ask("a=x")], 0), "OK: OK 9", "nothing was banked");
    // Applied although another descriptor denies.
    assert_eq!(bench.said(&[ask("never=x"), ask_for("a=x", Hits::Refund(1))], 0), "OVER: OVER 0, OK 10");
}

#[test]
fn a_shadow_rule_counts_on_and_never_denies() {
    let bench = Bench::new(TEN);
    assert_eq!(bench.said(&[ask("shadow=x")], 0), "OK: OK 0");
    let decision = bench.decide(&[ask("shadow=x")], 0);
    assert_eq!(said(&decision), "OK: OK 0");
    assert!(decision.statuses[0].is_shadowed);
    let StatusKind::Limited(limited) = decision.statuses[0].kind else { panic!() };
    assert!(limited.verdict.is_over && limited.verdict.charged == 1);
    assert!(limited.verdict.reset_ms > MINUTE_MS, "a shadowed denial reports its reset like a denial");
    // Not charged in a request that another rule denies: after two windows three hits would be gone, two are.
    assert_eq!(bench.said(&[ask("shadow=y"), ask("never=x")], 0), "OVER: OK 1, OVER 0");
}

#[test]
fn global_shadow_mode_denies_nothing_and_charges_everything() {
    let mut bench = Bench::new(TEN);
    bench.modes.shadow = true;
    bench.decide(&[ask_for("b=x", Hits::OfRequest(2)), ask("a=x")], 0);
    let decision = bench.decide(&[ask("b=x"), ask("a=x")], 0);
    assert_eq!(said(&decision), "OK: OVER 0, OK 8");
    assert!(decision.is_globally_shadowed);
    drop(decision);
    bench.modes.shadow = false;
    assert_eq!(bench.said(&[ask("a=x")], 0), "OK: OK 7");
}

#[test]
fn quota_descriptors_deny_only_together() {
    let bench = Bench::new(TEN);
    let both = [ask("quota1=x"), ask("quota2=x")];
    assert_eq!(bench.said(&both, 0), "OK: OK 0, OK 1");
    assert_eq!(bench.said(&both, 0), "OK: OVER 0, OK 0", "over alone, it neither denies nor is charged");
    assert_eq!(bench.said(&both, 0), "OVER: OVER 0, OVER 0");
    assert_eq!(bench.said(&[ask("quota1=x"), ask("quota2=x"), ask("never=x")], 0), "OVER: OVER 0, OVER 0, OVER 0");
    assert_eq!(bench.said(&[ask("quota1=x"), ask("free=x")], 0), "OVER: OVER 0, *", "unlimited takes no part");
}

#[test]
fn only_what_denies_makes_the_client_wait() {
    let bench = Bench::new(
        "
domain: d
descriptors:
  - {key: day, quota_mode: true, rate_limit: {requests_per_unit: 1, unit: day}}
  - {key: none, quota_mode: true, rate_limit: {requests_per_unit: 0, unit: day}}
  - {key: minute, quota_mode: true, rate_limit: {requests_per_unit: 1, unit: minute}}
  - {key: second, rate_limit: {requests_per_unit: 1, unit: second}}
",
    );
    bench.decide(&[ask("day=x")], 0);
    bench.decide(&[ask("minute=x")], 0);
    bench.decide(&[ask("second=x")], 0);
    let waits = |asks: &[&'static str]| {
        let asks: Vec<Ask<'_>> = asks.iter().map(|entries| ask(entries)).collect();
        let decision = bench.decide(&asks, 500);
        assert!(decision.is_over);
        decision.retry_after_ms()
    };
    assert_eq!(waits(&["day=x", "minute=y", "second=x"]), Some(501), "a quota passes, so it does not deny");
    assert_eq!(waits(&["none=x", "minute=y", "second=x"]), Some(501));
    assert_eq!(waits(&["day=x", "none=x", "minute=x"]), Some(59_501), "the first quota that frees lets it pass");
    assert_eq!(waits(&["day=x", "minute=x", "second=x"]), Some(59_501), "both kinds deny");
    assert_eq!(waits(&["none=x", "second=x"]), None);
}

#[test]
fn charged_denials_wait_for_what_they_charged() {
    let bench = Bench::new(TEN);
    bench.decide(&[ask_for("always=x", Hits::OfRequest(10)), ask_for("a=x", Hits::OfRequest(10))], 0);
    bench.decide(&[ask_for("shadow=x", Hits::OfRequest(1))], 0);
    for (entries, hits) in [("always=x", Hits::OfRequest(4)), ("a=x", Hits::Own(4))] {
        let wait_ms = bench.decide(&[ask_for(entries, hits)], 0).retry_after_ms().unwrap();
        // Fourteen count now; four more fit when at most six of them are left.
        assert_eq!(bench.said(&[ask_for(entries, Hits::Own(0))], wait_ms), "OK: OK 4");
        assert_eq!(bench.said(&[ask_for(entries, Hits::Own(0))], wait_ms - 1), "OK: OK 3");
    }
    let reset_ms = |decision: &Decision<'_>| match decision.statuses[0].kind {
        StatusKind::Limited(limited) => limited.verdict.reset_ms,
        _ => panic!(),
    };
    let first = reset_ms(&bench.decide(&[ask("shadow=x")], 0));
    assert!(reset_ms(&bench.decide(&[ask("shadow=x")], 0)) > first);
}

#[test]
fn in_global_quota_mode_an_unmatched_descriptor_passes_for_all() {
    let mut bench = Bench::new(TEN);
    bench.modes.quota = true;
    assert_eq!(bench.said(&[ask("never=x"), ask("unknown=x")], 0), "OK: OVER 0, -");
    assert_eq!(bench.said(&[ask("never=x"), ask("free=x")], 0), "OVER: OVER 0, *");
    assert_eq!(bench.said(&[ask("never=x"), ask("a=x")], 0), "OK: OVER 0, OK 9");
}

#[test]
fn replaced_limits_are_as_if_they_were_not_there() {
    let bench = Bench::new(
        "
domain: d
descriptors:
  - {key: base, rate_limit: {requests_per_unit: 1, unit: minute, name: base}}
  - {key: vip, rate_limit: {requests_per_unit: 10, unit: minute, name: vip, replaces: [{name: base}]}}
  - {key: free, rate_limit: {unlimited: true, name: free, replaces: [{name: base}, {name: vip}]}}
  - {key: one, rate_limit: {requests_per_unit: 1, unit: minute, name: one, replaces: [{name: two}]}}
  - {key: two, rate_limit: {requests_per_unit: 1, unit: minute, name: two, replaces: [{name: one}]}}
  - key: some
    rate_limits:
      - {requests_per_unit: 1, unit: minute, name: base}
      - {requests_per_unit: 5, unit: hour}
",
    );
    for left in [9, 8, 7] {
        assert_eq!(bench.said(&[ask("base=x"), ask("vip=x")], 0), format!("OK: -, OK {left}"));
    }
    assert_eq!(bench.said(&[ask("free=x"), ask("vip=x"), ask("base=x")], 0), "OK: *, -, -");
    assert_eq!(bench.said(&[ask("one=x"), ask("two=x")], 0), "OK: -, -", "mutual replacement drops both");
    assert_eq!(bench.said(&[ask("base=x")], 0), "OK: OK 0", "the scope is one request");
    assert_eq!(bench.said(&[ask("some=x"), ask("vip=x")], 0), "OK: OK 4, OK 6", "one limit of several");
}

#[test]
fn overrides_replace_number_and_window() {
    let bench = Bench::new(TEN);
    let with = |entries: &'static str, requests_per_unit, unit| Ask {
        limit: Some(LimitOverride { requests_per_unit, unit }),
        ..ask(entries)
    };
    // The same window: the rule's counts carry over.
    assert_eq!(bench.said(&[ask("a=x")], 0), "OK: OK 9");
    assert_eq!(bench.said(&[with("a=x", 100, Unit::Minute)], 0), "OK: OK 98");
    assert_eq!(bench.said(&[with("a=x", 100, Unit::Hour)], 0), "OK: OK 99", "another window is another key");
    assert_eq!(bench.said(&[ask("a=x")], 0), "OK: OK 7");
    // Without a rule: all entries make the key.
    assert_eq!(bench.said(&[with("nowhere=x", 3, Unit::Second)], 0), "OK: OK 2");
    assert_eq!(bench.said(&[with("nowhere=y", 3, Unit::Second)], 0), "OK: OK 2");
    assert_eq!(bench.said(&[with("nowhere=x", 3, Unit::Second)], 0), "OK: OK 1");
    // Neither shadow mode nor unlimited survive it.
    assert_eq!(bench.said(&[with("free=x", 0, Unit::Second)], 0), "OVER: OVER 0");
    assert_eq!(bench.said(&[with("shadow=x", 0, Unit::Second)], 0), "OVER: OVER 0");
    // An unknown domain has no limits at all.
    let decision =
        bench.engine.decide(&bench.rules, &request("unknown", &[with("a=x", 0, Unit::Second)]), bench.modes, START_MS);
    assert_eq!(said(&decision), "OK: -");
}

#[test]
fn wildcards_count_each_value_unless_they_share() {
    let bench = Bench::new(
        "
domain: d
descriptors:
  - {key: path, value: /own/*, rate_limit: {requests_per_unit: 5, unit: minute}}
  - {key: path, value: /all/*, share_threshold: true, rate_limit: {requests_per_unit: 5, unit: minute}}
  - key: team
    value: t*
    share_threshold: true
    descriptors:
      - {key: user, rate_limit: {requests_per_unit: 5, unit: minute}}
",
    );
    assert_eq!(bench.said(&[ask("path=/own/1"), ask("path=/own/2")], 0), "OK: OK 4, OK 4");
    assert_eq!(bench.said(&[ask("path=/all/1"), ask("path=/all/2")], 0), "OK: OK 4, OK 3");
    assert_eq!(bench.said(&[ask("path=/all/*")], 0), "OK: OK 2", "the pattern's own text shares too");
    assert_eq!(
        bench.said(&[ask("team=t1,user=u"), ask("team=t2,user=u"), ask("team=t2,user=v")], 0),
        "OK: OK 4, OK 3, OK 4"
    );
}

#[test]
fn the_reset_of_a_denial_is_when_a_retry_passes() {
    let bench = Bench::new(TEN);
    bench.decide(&[ask_for("a=x", Hits::OfRequest(10))], 30_000);
    let decision = bench.decide(&[ask_for("a=x", Hits::OfRequest(4))], 45_000);
    // The ten count in full until the minute is over, then fade: six are left of them 24 s into the next one, and the
    // sum is below seven a little earlier.
    let wait_ms = decision.retry_after_ms().unwrap();
    let retry_ms = 45_000 + wait_ms;
    assert!(bench.decide(&[ask_for("a=x", Hits::OfRequest(4))], retry_ms - 1).is_over);
    assert!(!bench.decide(&[ask_for("a=x", Hits::OfRequest(4))], retry_ms).is_over);
    assert_eq!(retry_ms, MINUTE_MS + 18_001);
}

#[test]
fn what_never_fits_resets_with_the_window_and_has_no_retry() {
    let bench = Bench::new(TEN);
    for asked in
        [ask("never=x"), ask("dry=x"), ask_for("a=x", Hits::OfRequest(11)), ask_for("bucket=x", Hits::OfRequest(6))]
    {
        let decision = bench.decide(&[asked], 15_000);
        assert!(decision.is_over && decision.retry_after_ms().is_none());
        let StatusKind::Limited(limited) = decision.statuses[0].kind else { panic!() };
        assert_eq!(limited.verdict.reset_ms, 45_000);
    }
}

#[test]
fn several_denials_wait_for_the_longest() {
    let bench = Bench::new(TEN);
    bench.decide(&[ask_for("b=x", Hits::OfRequest(2)), ask_for("bucket=x", Hits::OfRequest(5))], 0);
    let decision = bench.decide(&[ask("bucket=x"), ask("b=x")], 0);
    assert_eq!(decision.retry_after_ms(), Some(MINUTE_MS + 1));
    assert_eq!(decision.decisive().unwrap().rule.unwrap().id.as_ref(), "b");
    assert_eq!(bench.decide(&[ask("bucket=x")], 0).retry_after_ms(), Some(1000));
}

#[test]
fn a_fixed_window_forgets_at_its_end() {
    let bench = Bench::new(TEN);
    bench.decide(&[ask_for("fixed=x", Hits::OfRequest(10))], 59_000);
    assert_eq!(bench.decide(&[ask("fixed=x")], 59_000).retry_after_ms(), Some(1000));
    assert_eq!(bench.said(&[ask("fixed=x")], 60_000), "OK: OK 9");
}

#[test]
fn gcra_reports_what_is_admitted_now_and_when_it_is_full_again() {
    let bench = Bench::new(TEN);
    let reset_ms = |decision: &Decision<'_>| match decision.statuses[0].kind {
        StatusKind::Limited(limited) => limited.verdict.reset_ms,
        _ => panic!(),
    };
    let decision = bench.decide(&[ask_for("bucket=x", Hits::OfRequest(3))], 0);
    assert_eq!((said(&decision).as_str(), reset_ms(&decision)), ("OK: OK 2", 3000));
    assert_eq!(bench.said(&[ask_for("bucket=x", Hits::OfRequest(3))], 0), "OVER: OVER 0");
    let denied_by_other = bench.decide(&[ask("bucket=x"), ask("never=x")], 0);
    assert_eq!(reset_ms(&denied_by_other), 3000, "not charged, so it is full as early as before");
    assert_eq!(bench.said(&[ask_for("bucket=x", Hits::Own(0))], 1000), "OK: OK 3");
}

#[test]
fn a_reload_keeps_the_counts_and_applies_the_new_number() {
    let bench = Bench::new(TEN);
    bench.decide(&[ask_for("a=x", Hits::OfRequest(8))], 0);
    let raised = ruleset(
        "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 20, unit: minute}}
",
    );
    let decision = bench.engine.decide(&raised, &request("d", &[ask("a=x")]), bench.modes, START_MS);
    assert_eq!(said(&decision), "OK: OK 11");
    let lowered = ruleset(
        "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 3, unit: minute}}
",
    );
    let decision = bench.engine.decide(&lowered, &request("d", &[ask("a=x")]), bench.modes, START_MS);
    assert_eq!(said(&decision), "OVER: OVER 0");
}

/// INV-5.
#[test]
fn a_clock_that_steps_neither_panics_nor_forgets() {
    let bench = Bench::new(TEN);
    bench.decide(&[ask_for("a=x", Hits::OfRequest(9))], 10 * 60 * MINUTE_MS);
    // Ten seconds back: the key waits at the start of its window.
    assert_eq!(bench.said(&[ask("a=x")], 10 * 60 * MINUTE_MS - 10_000), "OK: OK 0");
    assert_eq!(bench.said(&[ask("a=x")], 10 * 60 * MINUTE_MS - 10_000), "OVER: OVER 0");
    // Ten hours back: the clock was wrong, the counts stay.
    assert_eq!(bench.said(&[ask("a=x")], 0), "OVER: OVER 0");
    assert_eq!(bench.said(&[ask("a=x")], 2 * MINUTE_MS), "OK: OK 9");
}

/// INV-9.
#[test]
fn extreme_numbers_get_an_answer() {
    let bench = Bench::new(TEN);
    for hits in [0, 1, u64::from(u32::MAX), u64::MAX] {
        for key in ["a", "fixed", "bucket", "dry", "strict", "always", "shadow", "quota1"] {
            let entries = format!("{key}=extreme");
            for hits in [Hits::OfRequest(hits), Hits::Own(hits), Hits::Refund(hits)] {
                for at_ms in [0, 1, 100 * MINUTE_MS] {
                    bench.decide(&[ask_for(&entries, hits), ask_for(&entries, hits)], at_ms);
                }
            }
        }
    }
    let asks: Vec<Ask<'_>> = (0..1000).map(|_| ask_for("a=many", Hits::OfRequest(u64::MAX))).collect();
    assert!(bench.decide(&asks, 0).is_over);
    let far = bench.engine.decide(&bench.rules, &request("d", &[ask("a=far")]), bench.modes, u64::MAX);
    assert!(!far.is_over);
}

#[test]
fn a_decision_allocates_nothing() {
    let bench = Bench::new(TEN);
    let asks = [ask("a=some-value-of-thirty-two-bytes!"), ask("b=x")];
    let (one, two) = (request("d", &asks[..1]), request("d", &asks));
    let now_ms = START_MS;
    for request in [&one, &two] {
        bench.engine.decide(&bench.rules, request, bench.modes, now_ms);
    }
    let counted = allocation_counter::measure(|| {
        for request in [&one, &two] {
            bench.engine.decide(&bench.rules, request, bench.modes, now_ms);
        }
    });
    assert_eq!(counted.count_total, 0);
}
