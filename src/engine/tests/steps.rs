//! What large requests cost: four times the checks take about four times the steps, wherever a decision leads them.

use super::twins::Fleet;
use super::*;
use crate::engine::steps;

const RULES: &str = "
domain: d
descriptors:
  - {key: plain, rate_limit: {requests_per_unit: 1, unit: hour, slack: 0}}
  - key: quota
    quota_mode: true
    rate_limits:
      - {requests_per_unit: 1, unit: hour, slack: 0}
      - {requests_per_unit: 2, unit: day, slack: 0}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour, slack: 0}}
  - {key: strict, quota_mode: true, rate_limit: {requests_per_unit: 1, unit: hour, scope: strict}}
";

/// Descriptors of different keys, and as many of their twins.
fn descriptors(key: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{key}={}", number / 2)).collect()
}

/// The steps of three requests: keys that are new, keys that are known, and keys that are over by now.
fn steps_of(key: &str, count: usize, mut decide: impl FnMut(&[Ask<'_>])) -> u64 {
    let texts = descriptors(key, count);
    let hits = [0, 1, 1].map(|hits| texts.iter().map(|text| ask_for(text, Hits::OfRequest(hits))).collect::<Vec<_>>());
    steps::of(|| hits.iter().for_each(|asks| decide(asks))).1
}

fn assert_linear(what: &str, steps_of: impl Fn(usize) -> u64) {
    let (few, many) = (steps_of(200), steps_of(800));
    assert!(few > 3 * 200, "{what}: {few} steps are too few to tell");
    // A sort takes a little more than four times as many, and a square sixteen times.
    assert!(many < 6 * few, "{what}: {few} steps for 200 checks, {many} for 800");
}

#[test]
fn the_steps_of_a_request_grew_with_the_square_of_its_checks() {
    let rules = ruleset(RULES);
    for key in ["plain", "quota", "shadow"] {
        for keys_max in [10, 100_000] {
            assert_linear(&format!("{key} in a table of {keys_max}"), |count| {
                let bench = Bench::seeded(RULES, keys_max, seed::seed());
                steps_of(key, count, |asks| drop(bench.decide(asks, 0)))
            });
        }
    }
    for key in ["plain", "quota", "shadow", "strict"] {
        for is_cluster in [false, true] {
            assert_linear(&format!("{key} with a store, in a Cluster: {is_cluster}"), |count| {
                let mut fleet = Fleet::new(is_cluster, seed::seed());
                steps_of(key, count, |asks| drop(fleet.said(&rules, asks, Modes::default())))
            });
        }
    }
}
