//! What Envoy has to be told for the rules of a domain: which descriptors to send, how long to wait for an answer, and
//! what to do without one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use thiserror::Error;

use crate::cli::generate::source::ValueSource;
use crate::rules::Domain;
use crate::rules::limit::Limit;
use crate::rules::policy::{OnOutage, Scope};
use crate::rules::problem::FilePosition;
use crate::rules::reachable::{Expect, ReachingEntries, expected};

/// Envoy's own default, which covers the 10 ms that the service waits for Redis.
const TIMEOUT: Duration = Duration::from_millis(20);
/// For rules that ask one owner for every request: it may be far away.
const STRICT_TIMEOUT: Duration = Duration::from_millis(100);

/// What the operator knows better than the rules.
#[derive(Debug, Default)]
pub struct Wishes {
    /// By key, from `--map`. They win over the usual sources.
    pub sources: BTreeMap<String, ValueSource>,
    /// `None` takes the default, which depends on whether a rule is strict.
    pub timeout: Option<Duration>,
    /// `None` is true if a rule denies in an outage.
    pub failure_mode_deny: Option<bool>,
}

/// One descriptor, and the rules that wait for it.
#[derive(Debug)]
pub struct Descriptor {
    /// Each key, with its value where it is not taken from the request.
    pub entries: Vec<(String, Option<String>)>,
    /// Envoy's actions that make the entries, in their order.
    pub actions: Vec<Value>,
    /// Ids of the rules that wait for it.
    pub rules: Vec<String>,
}

/// What to configure, and why.
#[derive(Debug)]
pub struct GatewayPlan {
    /// What the filter sends as the domain.
    pub domain: String,
    /// In the order of the rules.
    pub descriptors: Vec<Descriptor>,
    /// Every key and where its value comes from, by name.
    pub sources: BTreeMap<String, ValueSource>,
    /// Keys without a `--map`, whose source was guessed from their names.
    pub guessed: Vec<String>,
    /// How long Envoy waits for an answer.
    pub timeout: Duration,
    /// Whether Envoy refuses a request when no answer comes.
    pub failure_mode_deny: bool,
    /// Ids of rules that deny in an outage.
    pub denying: Vec<String>,
}

/// Why there can't be a plan.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    #[error("the domain '{0}' has no rules that Envoy could be told about: add some")]
    NoRules(String),
    #[error(
        "{at}: nobody but you knows what the key '{key}' stands for: add --map {key}=header:NAME, or another source"
    )]
    Unknown { key: String, at: FilePosition },
    #[error(
        "{at}: '{key}' takes its value from the rules, but this one leaves it open: add --map {key}=header:NAME, or \
         another source, or give the rule a value"
    )]
    NoValue { key: String, at: FilePosition },
    #[error("--map {0}: no rule of the domain has this key")]
    UnusedMap(String),
}

impl GatewayPlan {
    pub fn new(domain: &Domain, wishes: Wishes) -> Result<GatewayPlan, Vec<PlanError>> {
        let expected = expected(domain);
        let mut errors = Vec::new();
        if expected.is_empty() {
            errors.push(PlanError::NoRules(domain.name.to_string()));
        }
        let mut sources = BTreeMap::new();
        for (key, at) in expected.iter().flat_map(|it| it.entries.iter().map(|(key, _)| (*key, &it.rule.at))) {
            match wishes.sources.get(key).cloned().or_else(|| ValueSource::usual(key)) {
                Some(source) => drop(sources.insert(key.to_owned(), source)),
                None => errors.push(PlanError::Unknown { key: key.to_owned(), at: at.clone() }),
            }
        }
        let unused = wishes.sources.keys().filter(|key| !expected.iter().any(|it| has_key(it, key)));
        errors.extend(unused.map(|key| PlanError::UnusedMap(key.clone())));
        let mut descriptors: Vec<Descriptor> = Vec::new();
        for it in &expected {
            match entries(it, &sources) {
                Ok(entries) => match descriptors.iter_mut().find(|other| other.entries == entries) {
                    Some(same) => same.rules.push(it.rule.id.to_string()),
                    None => {
                        descriptors.push(Descriptor {
                            actions: actions(&entries, &sources),
                            entries,
                            rules: vec![it.rule.id.to_string()],
                        });
                    }
                },
                Err(error) => errors.push(error),
            }
        }
        errors.dedup();
        if !errors.is_empty() {
            return Err(errors);
        }
        let has = |it: &&ReachingEntries<'_>, holds: fn(&Limit) -> bool| it.rule.limits().iter().any(holds);
        let is_strict = expected.iter().any(|it| has(&it, |limit| limit.policy.scope == Some(Scope::Strict)));
        let denying = expected.iter().filter(|it| has(it, |limit| limit.policy.on_outage == OnOutage::Deny));
        let denying: Vec<String> = denying.map(|it| it.rule.id.to_string()).collect();
        let is_guess = |key: &&String| !wishes.sources.contains_key(*key) && ValueSource::is_guess(key);
        Ok(GatewayPlan {
            domain: domain.name.to_string(),
            descriptors,
            guessed: sources.keys().filter(is_guess).cloned().collect(),
            sources,
            timeout: wishes.timeout.unwrap_or(if is_strict { STRICT_TIMEOUT } else { TIMEOUT }),
            failure_mode_deny: wishes.failure_mode_deny.unwrap_or(!denying.is_empty()),
            denying,
        })
    }
}

fn has_key(expected: &ReachingEntries<'_>, wanted: &str) -> bool {
    expected.entries.iter().any(|(key, _)| *key == wanted)
}

/// What tells descriptors apart. Rules that differ only in values of the request wait for the same descriptor. A key
/// without a source is reported elsewhere.
fn entries(
    expected: &ReachingEntries<'_>,
    sources: &BTreeMap<String, ValueSource>,
) -> Result<Vec<(String, Option<String>)>, PlanError> {
    let entry = |(key, expect): &(&str, Expect<'_>)| match (sources.get(*key), expect) {
        (Some(ValueSource::Fixed), Expect::Value(value)) => Ok(((*key).to_owned(), Some((*value).to_owned()))),
        (Some(ValueSource::Fixed), _) => {
            Err(PlanError::NoValue { key: (*key).to_owned(), at: expected.rule.at.clone() })
        }
        _ => Ok(((*key).to_owned(), None)),
    };
    expected.entries.iter().map(entry).collect()
}

fn actions(entries: &[(String, Option<String>)], sources: &BTreeMap<String, ValueSource>) -> Vec<Value> {
    let action = |(key, value): &(String, Option<String>)| Some(sources.get(key)?.action(key, value.as_deref()));
    entries.iter().filter_map(action).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Options, RuleText as File, Ruleset};

    fn plan(rules: &str, maps: &[&str]) -> Result<GatewayPlan, Vec<String>> {
        let text = format!("domain: d\ndescriptors:\n{rules}");
        let loaded = Ruleset::load(&[File { name: "f.yaml".into(), text }], &Options::default());
        let ruleset = loaded.ruleset.unwrap_or_else(|| panic!("{:?}", loaded.problems));
        let sources = maps.iter().map(|map| ValueSource::read(map).expect("it is good")).collect();
        let plan = GatewayPlan::new(ruleset.domain("d").expect("it is there"), Wishes { sources, ..Wishes::default() });
        plan.map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn keys(plan: &GatewayPlan) -> Vec<String> {
        let entry = |(key, value): &(String, Option<String>)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.clone(),
        };
        plan.descriptors.iter().map(|it| it.entries.iter().map(entry).collect::<Vec<_>>().join(",")).collect()
    }

    const LIMIT: &str = "rate_limit: {requests_per_unit: 1, unit: day}";

    #[test]
    fn rules_that_differ_in_values_of_the_request_share_a_descriptor() {
        let rules = format!(
            "  - {{key: path, value: /a, {LIMIT}, descriptors: [{{key: method, value: GET, {LIMIT}}}]}}
  - {{key: path, value: /b/*, descriptors: [{{key: method, {LIMIT}}}]}}
  - {{key: generic_key, value: slow, {LIMIT}}}
  - {{key: generic_key, value: fast, descriptors: [{{key: remote_address, {LIMIT}}}]}}
  - {{key: remote_address, value: 10.0.0.1}}
"
        );
        let plan = plan(&rules, &[]).unwrap();
        assert_eq!(keys(&plan), ["path", "path,method", "generic_key=slow", "generic_key=fast,remote_address"]);
        assert_eq!(plan.descriptors[1].rules, ["path=/a/method=GET", "path=/b/*/method"]);
        assert_eq!((plan.timeout, plan.failure_mode_deny), (TIMEOUT, false));
        assert!(plan.guessed.is_empty());
    }

    #[test]
    fn what_the_rules_do_in_an_outage_is_what_envoy_does_without_an_answer() {
        let of = |policy: &str| {
            plan(&format!("  - {{key: a, rate_limit: {{requests_per_unit: 1, unit: day, {policy}}}}}\n"), &[]).unwrap()
        };
        let security = of("class: security");
        assert_eq!((security.timeout, security.failure_mode_deny), (STRICT_TIMEOUT, true));
        assert_eq!((security.denying, security.guessed), (vec!["a".to_owned()], vec!["a".to_owned()]));
        let cost = of("class: cost");
        assert_eq!((cost.timeout, cost.failure_mode_deny), (TIMEOUT, true));
        assert!(!of("class: security, on_outage: local").failure_mode_deny);
    }

    #[test]
    fn what_only_the_operator_can_know_is_asked_for() {
        let rules = format!(
            "  - {{key: header_match, value: x, {LIMIT}}}
  - {{key: generic_key, {LIMIT}}}
"
        );
        let errors = plan(&rules, &["nobody=path"]).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].starts_with("f.yaml:3:") && errors[0].contains("--map header_match="), "{errors:?}");
        assert!(errors[1].contains("--map nobody: no rule"), "{errors:?}");
        assert!(errors[2].starts_with("f.yaml:4:") && errors[2].contains("leaves it open"), "{errors:?}");
        let plan = plan(&rules, &["header_match=value", "generic_key=header:x-key"]).unwrap();
        assert_eq!(keys(&plan), ["header_match=x", "generic_key"]);
    }
}
