//! `tidegate explain`: which rule a descriptor meets, and why that one.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use crate::cli::descriptor::TypedDescriptor;
use crate::cli::{Exit, Output, check};
use crate::rules::Ruleset;
use crate::rules::explain::{Explanation, explain};
use crate::rules::limit::{Limit, Rule};
use crate::rules::policy::Algorithm;
use crate::settings::RuleFlags;
use crate::sources::files;

pub const EXAMPLES: &str = "Examples:
  tidegate explain --domain edge remote_address=10.0.0.1
  tidegate explain --domain edge --rules rules/ api_key=alice,path=/v1/items tier=free

A comma inside a value is written as \\, and a backslash as \\\\.";

#[derive(Args, Debug)]
pub struct ExplainFlags {
    #[command(flatten)]
    pub rules: RuleFlags,

    /// The domain that Envoy's filter names
    #[arg(long)]
    pub domain: String,

    /// Descriptors, each as key=value,key2=value2 in Envoy's order
    #[arg(required = true, value_name = "DESCRIPTOR", value_parser = TypedDescriptor::read)]
    pub descriptors: Vec<TypedDescriptor>,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

pub fn run(flags: &ExplainFlags) -> anyhow::Result<Exit> {
    let loaded = files::load(&flags.rules.rules, &flags.rules.options());
    let Some(ruleset) = loaded.ruleset else {
        check::print(&mut std::io::stderr(), &loaded.problems)?;
        bail!("the rules can't be loaded; tidegate check says the same");
    };
    let Some(domain) = ruleset.domain(&flags.domain) else {
        bail!("no domain '{}' in the rules: there are {}", flags.domain, domain_names(&ruleset));
    };
    let explained: Vec<_> =
        flags.descriptors.iter().map(|descriptor| (descriptor, explain(domain, &descriptor.entries().collect::<Vec<_>>()))).collect();
    let mut out = std::io::stdout().lock();
    if flags.output == Output::Json {
        let document: Vec<Value> = explained.iter().map(|(typed, it)| as_json(&flags.domain, typed, it)).collect();
        writeln!(out, "{:#}", Value::from(document))?;
        return Ok(Exit::Success);
    }
    for (index, (typed, explanation)) in explained.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        print(&mut out, &flags.domain, typed, explanation)?;
    }
    Ok(Exit::Success)
}

fn domain_names(ruleset: &Ruleset) -> String {
    let names: Vec<&str> = ruleset.domains().map(|domain| &*domain.name).collect();
    names.join(", ")
}

fn as_json(domain: &str, typed: &TypedDescriptor, explanation: &Explanation<'_>) -> Value {
    let rule = explanation.rule.map(|rule| {
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
    });
    json!({
        "domain": domain,
        "descriptor": typed.entries().map(|entry| json!({"key": entry.key, "value": entry.value})).collect::<Vec<_>>(),
        "steps": explanation.steps,
        "rule": rule,
        "identifier": explanation.rule.map(|_| &explanation.identifier),
        "outcome": explanation.outcome,
    })
}

fn print(
    out: &mut impl Write,
    domain: &str,
    typed: &TypedDescriptor,
    explanation: &Explanation<'_>,
) -> std::io::Result<()> {
    writeln!(out, "{typed} in domain {domain}")?;
    for step in &explanation.steps {
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
    writeln!(out, "  {}", explanation.outcome)?;
    let Some(rule) = explanation.rule else { return Ok(()) };
    for sentence in sentences(rule) {
        writeln!(out, "    {sentence}")?;
    }
    let identifier: Vec<String> = explanation.identifier.iter().map(|value| format!("{value:?}")).collect();
    for limit in rule.limits() {
        let window = window(limit);
        writeln!(out, "    key: ({domain}, {}, [{}], {window})", rule.id, identifier.join(", "))?;
    }
    if !rule.is_unlimited() {
        let counted =
            if identifier.is_empty() { "all requests of this rule together" } else { "each such list of values apart" };
        writeln!(out, "    counts {counted}")?;
    }
    Ok(())
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
    let window = window(limit);
    let burst = if terms.algorithm == Algorithm::Gcra { format!(", burst {}", terms.burst) } else { String::new() };
    let name = if limit.name.is_empty() { String::new() } else { format!(", name {}", limit.name) };
    format!("limit: {} per {window}, {}{burst}, charge {}{name}", terms.limit, terms.algorithm, limit.charge)
}

fn window(limit: &Limit) -> String {
    match limit.unit() {
        Some(unit) => unit.word().to_owned(),
        None => humantime::format_duration(std::time::Duration::from_millis(limit.terms.window_ms)).to_string(),
    }
}
