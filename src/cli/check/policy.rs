//! The resolved policy of every limit: what its rule says, what its class says for it, and what is left to the settings
//! where it runs.

use std::collections::HashMap;
use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::check::table::table as aligned;
use crate::cli::check::written_limits::{WrittenFields, WrittenLimits};
use crate::rules::explain_text::window;
use crate::rules::limit::{Demand, Limit, Rule, Terms};
use crate::rules::policy::{Class, Policy, Scope, Word};
use crate::rules::{Domain, Ruleset};

/// Shown as the scope of a limit that leaves it to the settings.
const WIDEST: &str = "widest";

/// Who chose a word of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum PolicySource {
    /// The limit itself.
    Written,
    /// Its class.
    Class,
    /// Its algorithm, which reaches the region at most.
    Algorithm,
    /// Nobody: the usual word.
    Default,
}

/// A word of a policy and who chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PolicyWord {
    word: &'static str,
    source: PolicySource,
}

impl fmt::Display for PolicyWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            PolicySource::Written | PolicySource::Default => f.write_str(self.word),
            PolicySource::Class => write!(f, "{} (class)", self.word),
            PolicySource::Algorithm => write!(f, "{} (algorithm)", self.word),
        }
    }
}

/// One limit of a rule, or a rule that has none because it is unlimited.
#[derive(Debug)]
pub(super) struct PolicyRow<'r> {
    domain: &'r str,
    rule: &'r Rule,
    limit: Option<LimitPolicy<'r>>,
    /// Rules of the domain that replace it in a request.
    replaced_by: Vec<&'r str>,
}

#[derive(Debug)]
struct LimitPolicy<'r> {
    limit: &'r Limit,
    scope: PolicyWord,
    on_outage: PolicyWord,
}

impl<'r> LimitPolicy<'r> {
    fn new(limit: &'r Limit, fields: WrittenFields) -> LimitPolicy<'r> {
        let policy = &limit.policy;
        let of_class = |is_written: bool| match (is_written, policy.class) {
            (true, _) => PolicySource::Written,
            (false, Some(_)) => PolicySource::Class,
            (false, None) => PolicySource::Default,
        };
        let scope = PolicyWord {
            word: policy.scope.map_or(WIDEST, Word::word),
            source: match (of_class(fields.scope), policy.class) {
                (PolicySource::Class, Some(Class::Security)) => PolicySource::Class,
                // The class and the default leave it open, so that only the algorithm can have narrowed it.
                (PolicySource::Class | PolicySource::Default, _) if policy.scope.is_some() => PolicySource::Algorithm,
                (source, _) => source,
            },
        };
        let on_outage = PolicyWord { word: policy.on_outage.word(), source: of_class(fields.on_outage) };
        LimitPolicy { limit, scope, on_outage }
    }
}

/// Every limit of every rule, domains by name, rules in the order of declaration.
pub(super) fn rows<'r>(ruleset: &'r Ruleset, written: &WrittenLimits) -> Vec<PolicyRow<'r>> {
    ruleset.domains().flat_map(|domain| rows_of(domain, written)).collect()
}

fn rows_of<'r>(domain: &'r Domain, written: &WrittenLimits) -> Vec<PolicyRow<'r>> {
    let mut replacing: HashMap<&str, Vec<&str>> = HashMap::new();
    for rule in domain.rules() {
        rule.replaces().for_each(|name| replacing.entry(name).or_default().push(&rule.id));
    }
    let replaced_by = |name: &str| replacing.get(name).filter(|_| !name.is_empty()).cloned().unwrap_or_default();
    let mut rows = Vec::new();
    for rule in domain.rules() {
        let row = |name, limit| PolicyRow { domain: &domain.name, rule, limit, replaced_by: replaced_by(name) };
        match &rule.demand {
            Demand::Unlimited { name, .. } => rows.push(row(name, None)),
            Demand::Limits(limits) => rows.extend(limits.iter().map(|limit| {
                let fields = written.fields(&rule.at, limit.terms.window_ms);
                row(&limit.name, Some(LimitPolicy::new(limit, fields)))
            })),
        }
    }
    rows
}

impl PolicyRow<'_> {
    pub(super) fn to_json(&self) -> Value {
        let limit = self.limit.as_ref();
        let terms = limit.map(|it| &it.limit.terms);
        json!({
            "domain": self.domain,
            "rule": &*self.rule.id,
            "at": self.rule.at,
            "unlimited": self.rule.is_unlimited(),
            "name": self.name(),
            "requests_per_unit": terms.map(|terms| terms.limit),
            "window_ms": terms.map(|terms| terms.window_ms),
            "algorithm": terms.map(|terms| terms.algorithm),
            "burst": terms.and_then(Terms::own_burst),
            "class": limit.map(|it| it.limit.policy.class),
            "scope": limit.map(|it| it.scope.word),
            "scope_from": limit.map(|it| it.scope.source),
            "on_outage": limit.map(|it| it.on_outage.word),
            "on_outage_from": limit.map(|it| it.on_outage.source),
            "slack": limit.and_then(|it| it.limit.policy.slack_permille()).map(|permille| f64::from(permille) / 1000.0),
            "shadow_mode": self.rule.shadow_mode,
            "quota_mode": self.rule.quota_mode,
            "replaces": self.replaces(),
            "replaced_by": self.replaced_by,
        })
    }

    fn name(&self) -> &str {
        match (&self.limit, &self.rule.demand) {
            (Some(it), _) => &it.limit.name,
            (None, Demand::Unlimited { name, .. }) => name,
            (None, Demand::Limits(_)) => "",
        }
    }

    fn replaces(&self) -> Vec<&str> {
        match &self.limit {
            Some(it) => it.limit.replaces.iter().map(|name| &**name).collect(),
            None => self.rule.replaces().map(|name| &**name).collect(),
        }
    }

    fn cells(&self) -> [String; 9] {
        let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        let limit = self.limit.as_ref();
        let policy = limit.map(|it| &it.limit.policy);
        let slack = |policy: &Policy| match (policy.scope, policy.slack_permille()) {
            // A local limit asks nobody, and a strict one always asks.
            (Some(Scope::Local | Scope::Strict), _) => "-".to_owned(),
            (_, Some(permille)) => (f64::from(permille) / 1000.0).to_string(),
            (_, None) => "default".to_owned(),
        };
        [
            self.domain.to_owned(),
            self.rule.id.to_string(),
            self.limit_in_words(),
            or_none(limit.map(|it| it.limit.terms.algorithm.to_string())),
            or_none(policy.and_then(|policy| policy.class).map(|class| class.to_string())),
            or_none(limit.map(|it| it.scope.to_string())),
            or_none(limit.map(|it| it.on_outage.to_string())),
            or_none(policy.map(slack)),
            self.notes(),
        ]
        // A rule may name any characters, and a row is one line.
        .map(|cell| cell.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect())
    }

    fn limit_in_words(&self) -> String {
        let mut words = match &self.limit {
            None => "unlimited".to_owned(),
            Some(it) => format!("{} per {}", it.limit.terms.limit, window(it.limit.terms.window_ms)),
        };
        if let Some(burst) = self.limit.as_ref().and_then(|it| it.limit.terms.own_burst()) {
            words += &format!(", burst {burst}");
        }
        if !self.name().is_empty() {
            words += &format!(" ({})", self.name());
        }
        words
    }

    /// What else decides whether the limit denies.
    fn notes(&self) -> String {
        let mut notes = Vec::new();
        if self.rule.shadow_mode {
            notes.push("shadow_mode: never denies".to_owned());
        }
        if self.rule.quota_mode {
            notes.push("quota_mode".to_owned());
        }
        let replaces = self.replaces();
        if !replaces.is_empty() {
            notes.push(format!("replaces {}", replaces.join(", ")));
        }
        match self.replaced_by.as_slice() {
            [] => {}
            [one] => notes.push(format!("replaced by {one}")),
            [first, more @ ..] => notes.push(format!("replaced by {first} and {} more", more.len())),
        }
        notes.join("; ")
    }
}

/// The rows for people.
pub(super) fn table(rows: &[PolicyRow<'_>]) -> String {
    let head = ["domain", "rule", "limit", "algorithm", "class", "scope", "on_outage", "slack", ""];
    let cells: Vec<[String; 9]> = rows.iter().map(PolicyRow::cells).collect();
    aligned(head, &cells)
}

/// Explains the words of the table that are in no rule file, a line each; empty if there are none.
pub(super) fn legend(rows: &[PolicyRow<'_>]) -> String {
    let limits = || rows.iter().filter_map(|row| row.limit.as_ref());
    let has_source = |source| limits().any(|it| it.scope.source == source || it.on_outage.source == source);
    let mut lines = Vec::new();
    if has_source(PolicySource::Class) {
        lines.push("(class): set by the class of the limit, not written");
    }
    if has_source(PolicySource::Algorithm) {
        lines.push("(algorithm): gcra and exact_window can't be global, so that the widest is the region");
    }
    if limits().any(|it| it.scope.word == WIDEST) {
        lines.push(
            "widest: what is configured where it runs: global with MYSQL_URL (regional if the window is below 10s), \
             regional with REDIS_URL, otherwise local",
        );
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::problem::Strictness;
    use crate::rules::{Options, RuleText};

    fn with_rows(limits: &str, then: impl FnOnce(Vec<PolicyRow<'_>>)) {
        let text = format!("domain: d\ndescriptors:\n{limits}");
        let source = RuleText { name: "rules.yaml".into(), text };
        let loaded = Ruleset::load(std::slice::from_ref(&source), &Options::default());
        let ruleset = loaded.ruleset.unwrap_or_else(|| panic!("{:?}", loaded.problems));
        let mut written = WrittenLimits::default();
        written.gather_file(&source.name, &source.text, Strictness::Strict);
        then(rows(&ruleset, &written));
    }

    /// Scope and outage policy of a limit of so many a minute, as the table shows them.
    fn shown(policy: &str) -> (String, String) {
        let mut shown = None;
        with_rows(&format!("  - {{key: k, rate_limit: {{requests_per_unit: 5, unit: minute{policy}}}}}\n"), |rows| {
            let limit = rows[0].limit.as_ref().unwrap();
            shown = Some((limit.scope.to_string(), limit.on_outage.to_string()));
        });
        shown.unwrap()
    }

    #[test]
    fn a_value_says_whether_the_class_or_the_rule_sets_it() {
        let cases = [
            ("", ("widest", "local")),
            (", class: comfort", ("widest (class)", "local (class)")),
            (", class: cost", ("widest (class)", "deny (class)")),
            (", class: security", ("strict (class)", "deny (class)")),
            (", class: security, scope: strict", ("strict", "deny (class)")),
            (", class: security, on_outage: deny", ("strict (class)", "deny")),
            (", class: cost, on_outage: allow", ("widest (class)", "allow")),
            (", scope: split, on_outage: share", ("split", "share")),
            (", algorithm: gcra", ("regional (algorithm)", "local")),
            (", algorithm: exact_window, class: cost", ("regional (algorithm)", "deny (class)")),
            (", algorithm: exact_window, class: security", ("strict (class)", "deny (class)")),
            (", algorithm: exact_window, scope: regional", ("regional", "local")),
        ];
        for (policy, (scope, on_outage)) in cases {
            assert_eq!(shown(policy), (scope.to_owned(), on_outage.to_owned()), "{policy}");
        }
    }

    #[test]
    fn each_limit_is_a_row_and_so_is_a_rule_that_has_none() {
        const RULES: &str = "
  - key: a
    rate_limits:
      - {requests_per_unit: 10, unit: second, slack: 0.05, scope: local}
      - {name: slow, requests_per_unit: 100, window: 90s, class: cost}
    descriptors:
      - {key: b, value: x, shadow_mode: true, rate_limit: {requests_per_unit: 3, unit: hour, algorithm: gcra, burst: 2}}
  - {key: c, value: \"1\\n2\", rate_limit: {unlimited: true, replaces: [{name: slow}]}}
";
        with_rows(RULES, |rows| {
            let cells: Vec<String> = rows.iter().map(|row| row.cells().join("|")).collect();
            assert_eq!(
                cells,
                [
                    "d|a|10 per second|sliding_window|-|local|local|-|",
                    "d|a|100 per 1m 30s (slow)|sliding_window|cost|widest (class)|deny (class)|default|replaced by c=1\u{fffd}2",
                    "d|a/b=x|3 per hour, burst 2|gcra|-|regional (algorithm)|local|default|shadow_mode: never denies",
                    "d|c=1\u{fffd}2|unlimited|-|-|-|-|-|replaces slow",
                ]
            );
            assert_eq!(table(&rows).lines().count(), 5);
            let legend = legend(&rows);
            let marks: Vec<&str> = legend.lines().filter_map(|line| line.split(':').next()).collect();
            assert_eq!(marks, ["(class)", "(algorithm)", "widest"]);
            let json = rows[1].to_json();
            assert_eq!((&json["scope"], &json["scope_from"]), (&json!("widest"), &json!("class")));
            assert_eq!((&json["requests_per_unit"], &json["window_ms"]), (&json!(100), &json!(90_000)));
            assert_eq!((&json["slack"], &rows[0].to_json()["slack"]), (&Value::Null, &json!(0.05)));
            assert_eq!(rows[3].to_json()["scope"], Value::Null);
        });
    }
}
