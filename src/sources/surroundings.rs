//! What rules have to fit into: the layers that there are, and whether sensitive values can be hidden in them.
//!
//! A load that would not hold there is refused; a warning says what can't be honoured. `serve` asks at every load,
//! `check` before anything is deployed, and both say the same.

use crate::engine::reach::{Layers, Reach};
use crate::rules::limit::{Limit, Rule};
use crate::rules::policy::{OnOutage, Scope};
use crate::rules::{Domain, LoadResult, Ruleset, lint};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// The stores and regions that counts are shared through here.
    pub layers: Layers,
    /// Counts leave the process: to Redis, to MySQL or to the owner of strict limits.
    pub has_store: bool,
    /// Sensitive values can leave the process as keyed digests.
    pub has_secret: bool,
}

impl Surroundings {
    /// Refuses rules that would not hold here.
    pub(crate) fn refuse(&self, loaded: &mut LoadResult) {
        if self.has_store && !self.has_secret {
            lint::refuse_sensitive(loaded);
        }
        if self.layers.place.regions > 1 && self.layers.owner.is_none() {
            lint::refuse_strict(loaded);
        }
    }

    /// Says what can't be done for the rules here, a sentence each.
    pub(crate) fn not_honoured(&self, ruleset: &Ruleset) -> Vec<String> {
        not_honoured(ruleset, &self.layers)
    }
}

/// Says what the layers that there are can't do for the rules, a sentence each.
fn not_honoured(ruleset: &Ruleset, layers: &Layers) -> Vec<String> {
    let limits = || {
        ruleset.domains().flat_map(Domain::rules).flat_map(|rule| rule.limits().iter().map(move |limit| (rule, limit)))
    };
    let mut sentences = Vec::new();
    let mut say = |what: &str, ids: Vec<&str>, why: &str| {
        if let Some(first) = ids.first() {
            let others = match ids.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            sentences.push(format!("{what} of rule {first}{others} {why}"));
        }
    };
    let is_reduced = |wanted: Scope| {
        let is_reduced = move |(_, limit): &(&Rule, &Limit)| {
            // The algorithm's default: nobody asked for it.
            let is_default = limit.terms.algorithm.widest_scope() == Some(wanted);
            limit.policy.scope == Some(wanted) && layers.enforce_limit(limit).scope == Scope::Local && !is_default
        };
        limits().filter(is_reduced).map(|(rule, _)| &*rule.id).collect::<Vec<_>>()
    };
    let scopes = [Scope::Regional, Scope::Global, Scope::Split, Scope::Strict];
    let alone: Vec<&str> = scopes.into_iter().flat_map(is_reduced).collect();
    say("scope", alone, "has no effect: counts are not shared (REDIS_URL), every limit holds for this process alone");
    let split_alone = |(_, limit): &(&Rule, &Limit)| {
        let held = layers.enforce_limit(limit);
        held.scope == Scope::Split && held.reach == Reach::Process
    };
    let split_alone = limits().filter(split_alone).map(|(rule, _)| &*rule.id).collect();
    say("scope: split", split_alone, "gives each process the region's part: without REDIS_URL nobody counts together");
    let within = |wanted: Scope| {
        let within = move |(_, limit): &(&Rule, &Limit)| {
            limit.policy.scope == Some(wanted) && layers.enforce_limit(limit).scope == Scope::Regional
        };
        limits().filter(within).map(|(rule, _)| &*rule.id).collect::<Vec<_>>()
    };
    say(
        "scope: global",
        within(Scope::Global),
        "holds for the region only: nothing is exchanged with other regions for it",
    );
    say("scope: split", within(Scope::Split), "gives this region all of it: there is no other (TIDEGATE_REGIONS)");
    let without_part =
        limits().filter(|(_, limit)| limit.terms.limit > 0 && layers.enforce_limit(limit).terms.limit == 0);
    let without_part = without_part.map(|(rule, _)| &*rule.id).collect();
    say(
        "scope: split",
        without_part,
        "leaves nothing for this region: the limit is smaller than the number of regions",
    );
    let is_idle = |limit: &Limit| layers.enforce_limit(limit).reach == Reach::Process;
    let with_outage = limits().filter(|(_, limit)| limit.policy.on_outage != OnOutage::Local && is_idle(limit));
    let with_outage = with_outage.map(|(rule, _)| &*rule.id).collect();
    say("on_outage", with_outage, "has no effect: memory decides it, there is nothing whose outage could matter");
    let is_exact = |limit: &Limit| matches!(layers.enforce_limit(limit).reach, Reach::Process | Reach::Strict(_));
    let with_slack = limits().filter(|(_, limit)| limit.policy.slack_permille.is_some() && is_exact(limit));
    say("slack", with_slack.map(|(rule, _)| &*rule.id).collect(), "has no effect: every decision is exact");
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reach::{RegionIndex, Store};
    use crate::rules::{Options, RuleText};

    const WHITE_LIST: &str = "
domain: d
descriptors:
  - {key: ip, rate_limit: {requests_per_unit: 4, unit: hour}}
  - {key: api_key, value: internal, sensitive: true}
";

    fn loaded(text: &str) -> LoadResult {
        let loaded = Ruleset::load(&[RuleText { name: "f.yaml".into(), text: text.into() }], &Options::default());
        assert!(loaded.ruleset.is_some(), "{:?}", loaded.problems);
        loaded
    }

    /// The message about rules that are refused; `None` if they are taken.
    fn refused(text: &str, surroundings: Surroundings) -> Option<String> {
        let mut loaded = loaded(text);
        surroundings.refuse(&mut loaded);
        assert_eq!(loaded.ruleset.is_none(), !loaded.problems.is_empty());
        loaded.problems.first().map(ToString::to_string)
    }

    const ALONE: Surroundings = Surroundings { layers: Layers::ALONE, has_store: false, has_secret: false };

    #[test]
    fn a_sensitive_descriptor_without_a_limit_needs_a_secret_where_counts_are_shared() {
        let shared = Surroundings { has_store: true, ..ALONE };
        let said = refused(WHITE_LIST, shared).unwrap();
        assert!(said.starts_with("f.yaml:5:5: error: api_key is sensitive"), "{said}");
        assert!(said.contains("TIDEGATE_SECRET_FILE"), "{said}");
        let nested = "
domain: d
descriptors:
  - key: a
    descriptors:
      - {key: b, sensitive: true, value: x}
      - {key: c, rate_limit: {requests_per_unit: 4, unit: hour}}
";
        assert!(refused(nested, shared).unwrap().starts_with("f.yaml:6:9: error: b is sensitive"));
        assert_eq!(refused(WHITE_LIST, Surroundings { has_secret: true, ..shared }), None);
        assert_eq!(refused(WHITE_LIST, ALONE), None, "nothing leaves the process");
        assert_eq!(refused(&WHITE_LIST.replace("true", "false"), shared), None);
    }

    #[test]
    fn a_strict_rule_of_several_regions_needs_an_owner() {
        let strict = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 4, unit: hour, scope: strict}}
";
        let layers = Layers { is_regional: true, place: RegionIndex { region: 0, regions: 2 }, ..Layers::ALONE };
        let said = refused(strict, Surroundings { layers, has_store: true, ..ALONE }).unwrap();
        assert!(said.contains("STRICT_REDIS_URL"), "{said}");
        let layers = Layers { owner: Some(Store::Owner), ..layers };
        assert_eq!(refused(strict, Surroundings { layers, has_store: true, ..ALONE }), None);
    }

    #[test]
    fn what_can_not_be_honoured_is_said() {
        let rules = loaded(
            "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 4, unit: hour, scope: global}}
",
        );
        let ruleset = rules.ruleset.unwrap();
        let said = ALONE.not_honoured(&ruleset);
        assert!(said.len() == 1 && said[0].starts_with("scope of rule a has no effect"), "{said:?}");
        let layers = Layers { is_regional: true, owner: Some(Store::Origin), ..Layers::ALONE };
        let said = Surroundings { layers, ..ALONE }.not_honoured(&ruleset);
        assert!(said.len() == 1 && said[0].contains("holds for the region only"), "{said:?}");
    }
}
