//! Which limits of the rules in force are closed: too small for the fleet, so that Redis decides every request that memory
//! does not deny.
//!
//! That is nothing wrong, but requests wait for it, and a larger slack may end it. Rules may be many, so only some are named.

use serde_json::{Value, json};

use crate::engine::reach::Layers;
use crate::engine::usual_decider::{UsualDecider, share};
use crate::rules::Ruleset;

/// So many are named.
const NAMED_MAX: usize = 10;

/// Limits that are closed at the present fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClosedLimits {
    /// How many there are.
    pub count: usize,
    /// The first of them, domains by name and rules in the order of declaration.
    named: Vec<ClosedLimit>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq)]
struct ClosedLimit {
    domain: String,
    rule: String,
    /// As this region holds it: its part of a split limit.
    limit: u32,
    window_ms: u64,
    /// `None`: no slack opens it.
    opening_slack: Option<f64>,
}

impl ClosedLimits {
    /// Those of the rules, while so many processes are alive.
    pub(crate) fn of(ruleset: &Ruleset, layers: &Layers, live: u32) -> ClosedLimits {
        let mut closed = ClosedLimits::default();
        for domain in ruleset.domains() {
            for (rule, limit) in domain.rules().flat_map(|rule| rule.limits().iter().map(move |limit| (rule, limit))) {
                let Some(headroom) = UsualDecider::of_limit(rule, limit, layers, live).closed() else { continue };
                closed.count += 1;
                if closed.named.len() < NAMED_MAX {
                    closed.named.push(ClosedLimit {
                        domain: domain.name.to_string(),
                        rule: rule.id.to_string(),
                        limit: headroom.limit,
                        window_ms: limit.terms.window_ms,
                        opening_slack: headroom.opening_slack_permille().map(share),
                    });
                }
            }
        }
        closed
    }

    pub(crate) fn to_json(&self) -> Value {
        let named = self.named.iter().map(|closed| {
            json!({
                "domain": closed.domain,
                "rule": closed.rule,
                "limit": closed.limit,
                "window_ms": closed.window_ms,
                "opening_slack": closed.opening_slack,
            })
        });
        json!({"count": self.count, "first": named.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Options, RuleText};

    #[test]
    fn the_first_are_named_and_all_are_counted() {
        let small: String = (0..12)
            .map(|n| format!("  - {{key: k{n}, rate_limit: {{requests_per_unit: 10, unit: second}}}}\n"))
            .collect();
        let text = format!(
            "domain: d
descriptors:
  - {{key: large, rate_limit: {{requests_per_unit: 1000, unit: second}}}}
  - {{key: shadow, shadow_mode: true, rate_limit: {{requests_per_unit: 10, unit: second}}}}
  - {{key: always, rate_limit: {{requests_per_unit: 10, unit: second, charge: always}}}}
  - {{key: strict, rate_limit: {{requests_per_unit: 10, unit: second, scope: strict}}}}
  - {{key: local, rate_limit: {{requests_per_unit: 10, unit: second, scope: local}}}}
  - {{key: free, rate_limit: {{unlimited: true}}}}
{small}"
        );
        let loaded = Ruleset::load(&[RuleText { name: "f.yaml".into(), text }], &Options::default());
        let ruleset = loaded.ruleset.unwrap_or_else(|| panic!("{:?}", loaded.problems));
        let layers = Layers { is_regional: true, slack_permille: 100, ..Layers::ALONE };
        assert_eq!(ClosedLimits::of(&ruleset, &layers, 1), ClosedLimits::default(), "10 leaves one process one hit");
        let shown = ClosedLimits::of(&ruleset, &layers, 2).to_json();
        assert_eq!((&shown["count"], shown["first"].as_array().map(Vec::len)), (&json!(12), Some(NAMED_MAX)));
        let first = json!({"domain": "d", "rule": "k0", "limit": 10, "window_ms": 1000, "opening_slack": 0.2});
        assert_eq!(shown["first"][0], first);
        assert_eq!(ClosedLimits::of(&ruleset, &Layers::ALONE, 2).count, 0, "counts are not shared");
    }
}
