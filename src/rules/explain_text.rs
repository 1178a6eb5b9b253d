//! An explanation in words for people, and as JSON for programs: the same on the command line and on the admin port.

use std::fmt;

use serde_json::{Value, json};

use crate::rules::explain::Explanation;
use crate::rules::limit::{Limit, Rule};

impl Explanation<'_> {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "domain": self.domain,
            "descriptor": self.entries.iter().map(|entry| json!({"key": entry.key, "value": entry.value})).collect::<Vec<_>>(),
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
            "burst": limit.terms.own_burst(),
            "charge": limit.charge,
        })).collect::<Vec<_>>(),
        "replaces": rule.replaces().map(|name| &**name).collect::<Vec<_>>(),
    })
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        writeln!(out, "{} in domain {}", entries.join(","), self.domain)?;
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
    let burst = terms.own_burst().map_or_else(String::new, |burst| format!(", burst {burst}"));
    let name = if limit.name.is_empty() { String::new() } else { format!(", name {}", limit.name) };
    format!("limit: {} per {window}, {}{burst}, charge {}{name}", terms.limit, terms.algorithm, limit.charge)
}

/// A window as people say it: its unit, or how long it is.
pub(crate) fn window(window_ms: u64) -> String {
    match crate::request::Unit::of_window_ms(window_ms) {
        Some(unit) => unit.word().to_owned(),
        None => length(window_ms),
    }
}

/// How long a window is, as it can be written in a rule: `90d`, `1h 30m`. Months and years are days.
pub(crate) fn length(window_ms: u64) -> String {
    const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let mut rest_ms = window_ms;
    let parts = UNITS.map(|(unit, unit_ms)| {
        let count = rest_ms / unit_ms;
        rest_ms %= unit_ms;
        (count > 0).then(|| format!("{count}{unit}"))
    });
    parts.into_iter().flatten().collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_days_is_not_said_in_months() {
        let days = |days: u64| window(days * 86_400_000);
        assert_eq!((days(90).as_str(), days(366).as_str(), days(30).as_str()), ("90d", "366d", "month"));
        assert_eq!((window(5_400_000).as_str(), window(1500).as_str()), ("1h 30m", "1s 500ms"));
    }
}
