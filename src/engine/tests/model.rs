//! The engine against the plainest model there is: a log of accepted hits for each key, recounted every time.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const RULES: &str = "
domain: d
descriptors:
  - {key: sliding, rate_limit: {requests_per_unit: 7, window: 1s}}
  - {key: longer, rate_limit: {requests_per_unit: 12, window: 3700ms}}
  - {key: fixed, rate_limit: {requests_per_unit: 6, window: 1500ms, algorithm: fixed_window}}
  - {key: exact, rate_limit: {requests_per_unit: 6, window: 1100ms, algorithm: exact_window}}
  - {key: bucket, rate_limit: {requests_per_unit: 9, window: 1300ms, algorithm: gcra, burst: 4}}
  - {key: accepted, rate_limit: {requests_per_unit: 5, window: 1s, charge: accepted}}
  - {key: always, rate_limit: {requests_per_unit: 5, window: 1s, charge: always}}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 4, window: 1s}}
";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Sliding,
    Longer,
    Fixed,
    Exact,
    Bucket,
    Accepted,
    Always,
    Shadow,
}

const KINDS: [Kind; 8] =
    [Kind::Sliding, Kind::Longer, Kind::Fixed, Kind::Exact, Kind::Bucket, Kind::Accepted, Kind::Always, Kind::Shadow];

impl Kind {
    fn entries(self, user: u8) -> String {
        format!("{}={user}", format!("{self:?}").to_lowercase())
    }

    fn limit(self) -> i128 {
        match self {
            Kind::Sliding => 7,
            Kind::Longer => 12,
            Kind::Fixed | Kind::Exact => 6,
            Kind::Bucket => 4,
            Kind::Accepted | Kind::Always => 5,
            Kind::Shadow => 4,
        }
    }

    fn window_ms(self) -> i128 {
        match self {
            Kind::Longer => 3700,
            Kind::Fixed => 1500,
            Kind::Exact => 1100,
            Kind::Bucket => 1300,
            _ => 1000,
        }
    }
}

/// Accepted hits with their times; refunds strike entries out.
#[derive(Clone, Debug, Default)]
struct Log(Vec<(i128, i128)>);

impl Log {
    fn sum(&self, counts: impl Fn(i128) -> bool) -> i128 {
        self.0.iter().filter(|(at, _)| counts(*at)).map(|(_, hits)| hits).sum()
    }

    /// How many hits fit at a moment, recounted from the log.
    fn available(&self, kind: Kind, now: i128) -> i128 {
        let window = kind.window_ms();
        let (sequence, elapsed) = (now / window, now % window);
        match kind {
            Kind::Fixed => kind.limit() - self.sum(|at| at / window == sequence),
            Kind::Exact => kind.limit() - self.sum(|at| at * 16 / window >= now * 16 / window - 16),
            Kind::Bucket => {
                // In hits times the window: nine drain in 1300 ms.
                let (mut level, mut last) = (0, now);
                for (index, (at, hits)) in self.0.iter().enumerate() {
                    level = if index == 0 { 0 } else { (level - (at - last) * 9).max(0) };
                    level = (level + hits * window).max(0);
                    last = *at;
                }
                level = (level - (now - last) * 9).max(0);
                (kind.limit() * window - level).div_euclid(window)
            }
            _ => {
                let current = self.sum(|at| at / window == sequence);
                let previous = self.sum(|at| at / window == sequence - 1);
                kind.limit() - current - previous * (window - elapsed) / window
            }
        }
    }

    fn refund(&mut self, kind: Kind, now: i128, mut hits: i128) {
        let window = kind.window_ms();
        if kind == Kind::Bucket {
            self.0.push((now, -hits));
            return;
        }
        let still_counts = |at: i128| match kind {
            Kind::Fixed => at / window == now / window,
            Kind::Exact => at * 16 / window >= now * 16 / window - 16,
            _ => at / window >= now / window - 1,
        };
        for (_, left) in self.0.iter_mut().rev().filter(|(at, _)| still_counts(*at)) {
            let taken = hits.min(*left);
            *left -= taken;
            hits -= taken;
        }
    }
}

#[derive(Clone, Debug)]
struct Step {
    wait_ms: u64,
    asks: Vec<(Kind, u8, u8, u64)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = (0..KINDS.len()).prop_map(|index| KINDS[index]);
    // Mostly plain hits; own hits (1) and refunds (2) in between.
    let how = prop_oneof![6 => Just(0u8), 2 => Just(1u8), 1 => Just(2u8)];
    let ask = (kind, 0u8..2, how, 0u64..5);
    let wait = prop_oneof![3 => 0u64..50, 3 => 50u64..600, 1 => 600u64..5000];
    let step = (wait, prop::collection::vec(ask, 1..5)).prop_map(|(wait_ms, asks)| Step { wait_ms, asks });
    prop::collection::vec(step, 1..80)
}

fn check(steps: &[Step], seed: u64) -> Result<(), TestCaseError> {
    let bench = Bench::seeded(RULES, 4000, seed);
    let mut logs: HashMap<(Kind, u8), Log> = HashMap::new();
    let mut at_ms = 0;
    for step in steps {
        at_ms += step.wait_ms;
        let now = i128::from(START_MS + at_ms);
        let texts: Vec<String> = step.asks.iter().map(|(kind, user, _, _)| kind.entries(*user)).collect();
        let asks: Vec<Ask<'_>> = step
            .asks
            .iter()
            .zip(&texts)
            .map(|((_, _, how, hits), text)| {
                let hits = match how {
                    0 => Hits::OfRequest(*hits),
                    1 => Hits::Own(*hits),
                    _ => Hits::Refund(*hits),
                };
                ask_for(text, hits)
            })
            .collect();
        let decision = bench.decide(&asks, at_ms);

        // First what holds whatever the verdict, in order; then the rest together.
        let mut waiting: Vec<((Kind, u8), i128)> = Vec::new();
        let mut expected: Vec<(bool, i128, i128, i128)> = Vec::new();
        for (kind, user, how, hits) in &step.asks {
            let (key, hits) = ((*kind, *user), i128::from(*hits));
            let log = logs.entry(key).or_default();
            let before = waiting.iter().filter(|(other, _)| *other == key).map(|(_, hits)| hits).sum::<i128>();
            let is_always = match how {
                2 => {
                    log.refund(*kind, now, hits);
                    expected.push((false, log.available(*kind, now), before, 0));
                    continue;
                }
                1 => *kind != Kind::Accepted,
                _ => *kind == Kind::Always,
            };
            let available = log.available(*kind, now);
            let is_over = available - before < hits;
            if is_always {
                log.0.push((now, hits));
                expected.push((is_over, available - hits, before, 0));
            } else {
                if !is_over || *kind == Kind::Shadow {
                    waiting.push((key, hits));
                }
                expected.push((is_over, available, before, hits));
            }
        }
        let denied =
            step.asks.iter().zip(&expected).any(|((kind, ..), (is_over, ..))| *is_over && *kind != Kind::Shadow);
        prop_assert_eq!(decision.is_over, denied, "{:?}", step);
        if !denied {
            for (key, hits) in waiting {
                logs.entry(key).or_default().0.push((now, hits));
            }
        }
        for (index, (is_over, available, before, hits)) in expected.into_iter().enumerate() {
            let StatusKind::Limited(limited) = decision.statuses[index].kind else { panic!() };
            let used = if denied { 0 } else { before + hits };
            let remaining = if is_over { 0 } else { (available - used).max(0) };
            prop_assert_eq!(limited.verdict.is_over, is_over, "descriptor {} of {:?}", index, step);
            prop_assert_eq!(i128::from(limited.verdict.remaining), remaining, "descriptor {} of {:?}", index, step);
        }

        // A denial says when to come back; by the log, that is the first moment that passes.
        if let ([(kind, user, 0 | 1, hits)], true) = (step.asks.as_slice(), denied) {
            let log = &logs[&(*kind, *user)];
            let fits = |wait: u64| log.available(*kind, now + i128::from(wait)) >= i128::from(*hits);
            match decision.retry_after_ms() {
                Some(wait_ms) => {
                    prop_assert!(fits(wait_ms), "{:?}", step);
                    prop_assert!(wait_ms == 0 || !fits(wait_ms - 1), "{:?}", step);
                }
                None => prop_assert!(i128::from(*hits) > kind.limit(), "{:?}", step),
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// INV-6.
    #[test]
    fn the_engine_agrees_with_a_log_of_accepted_hits(steps in steps(), seed in any::<u64>()) {
        check(&steps, seed)?;
    }
}
