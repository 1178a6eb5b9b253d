//! An explanation in words for people, and as JSON for programs: the same on the command line and on the admin port.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::rules::explain::Explanation;
use crate::rules::limit::{Limit, Rule};
use crate::rules::policy::Algorithm;

impl Explanation<'_> {
    pub fn to_json(&self) -> Value {
        json!({
            "domain": self.domain,
            "descriptor": self.asked.iter().map(|entry| json!({"key": entry.key, "value": entry.value})).collect::<Vec<_>>(),
            "steps": self.steps,
            "rule": self.rule.map(rule_json),
            "identifier": self.rule.map(|_| &self.identifier),
            "outcome": self.outcome,
        })
    }
}

fn rule_json(rule: &Rule) -> Value {
    json!({
        "id": &*rule.id,
        "at": rule.at,
        "unlimited": rule.is_unlimited(),
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "limits": rule.limits().iter().map(|limit| json!({
            "name": &*limit.name,
            "requests_per_unit": limit.terms.limit,
            "window_ms": limit.terms.window_ms,
            "algorithm": limit.terms.algorithm,
            "burst": (limit.terms.algorithm == Algorithm::Gcra).then_some(limit.terms.burst),
            "charge": limit.charge,
        })).collect::<Vec<_>>(),
        "replaces": rule.replaces().map(|name| &**name).collect::<Vec<_>>(),
    })
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked: Vec<String> = self.asked.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        writeln!(out, "{} in domain {}", asked.join(","), self.domain)?;
        for step in &self.steps {
            writeln!(out, "  {}", step.entry)?;
            if let Some(chosen) = &step.chosen {
                writeln!(out, "    -> {}  ({}; {})", chosen.path, chosen.why, chosen.at)?;
            }
            for passed in &step.passed_over {
                writeln!(out, "       {}  passed over: {} ({})", passed.path, passed.why, passed.at)?;
            }
            if step.passed_over_more > 0 {
                writeln!(out, "       and {} more passed over", step.passed_over_more)?;
            }
        }
        writeln!(out, "  {}", self.outcome)?;
        let Some(rule) = self.rule else { return Ok(()) };
        for sentence in sentences(rule) {
            writeln!(out, "    {sentence}")?;
        }
        let identifier: Vec<String> = self.identifier.iter().map(|value| format!("{value:?}")).collect();
        for limit in rule.limits() {
            let window = window(limit.terms.window_ms);
            writeln!(out, "    key: ({}, {}, [{}], {window})", self.domain, rule.id, identifier.join(", "))?;
        }
        if !rule.is_unlimited() {
            let counted = if identifier.is_empty() {
                "all requests of this rule together"
            } else {
                "each such list of values apart"
            };
            writeln!(out, "    counts {counted}")?;
        }
        Ok(())
    }
}

fn sentences(rule: &Rule) -> Vec<String> {
    let mut sentences = Vec::new();
    if rule.is_unlimited() {
        sentences.push("unlimited: always OK, never counted".into());
    }
    sentences.extend(rule.limits().iter().map(describe));
    if rule.shadow_mode {
        sentences.push("shadow_mode: counts, but never denies".into());
    }
    if rule.quota_mode {
        sentences.push("quota_mode: denies only together with all quota descriptors of the request".into());
    }
    let replaces: Vec<&str> = rule.replaces().map(|name| &**name).collect();
    if !replaces.is_empty() {
        sentences.push(format!("replaces {} in the same request", replaces.join(", ")));
    }
    sentences
}

/// A limit in one line.
fn describe(limit: &Limit) -> String {
    let terms = &limit.terms;
    let window = window(terms.window_ms);
    let burst = if terms.algorithm == Algorithm::Gcra { format!(", burst {}", terms.burst) } else { String::new() };
    let name = if limit.name.is_empty() { String::new() } else { format!(", name {}", limit.name) };
    format!("limit: {} per {window}, {}{burst}, charge {}{name}", terms.limit, terms.algorithm, limit.charge)
}

/// A window as people say it: its unit, or how long it is.
pub fn window(window_ms: u64) -> String {
    match crate::request::Unit::of_window_ms(window_ms) {
        Some(unit) => unit.word().to_owned(),
        None => humantime::format_duration(Duration::from_millis(window_ms)).to_string(),
    }
}
