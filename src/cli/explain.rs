//! `tidegate explain`: which rule a descriptor meets, and why that one.

use std::io::Write;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::cli::planned_fleet::{FleetFlags, PlannedFleet};
use crate::cli::{Exit, Output, check};
use crate::engine::reach::Layers;
use crate::flag_value::thousandths;
use crate::request::typed::TypedDescriptor;
use crate::rules::explain::{Explanation, explain};
use crate::rules::explain_text::window;
use crate::rules::limit::Limit;
use crate::rules::{Domain, Ruleset};
use crate::sources::files;
use crate::sources::settings::RuleFlags;

pub(crate) const EXAMPLES: &str = "Examples:
  tidegate explain --domain edge remote_address=10.0.0.1
  tidegate explain --domain edge --rules rules/ api_key=alice,path=/v1/items tier=free
  tidegate explain --domain edge --processes 3 remote_address=10.0.0.1

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

    #[command(flatten)]
    pub fleet: FleetFlags,

    /// With --processes: the slack of limits that do not choose their own
    #[arg(long, env = "TIDEGATE_SLACK", value_name = "RATIO", default_value = "0.1", value_parser = thousandths)]
    pub slack: u16,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

/// Loads the rules, or prints what is wrong with them.
pub(crate) fn load(flags: &RuleFlags) -> anyhow::Result<Ruleset> {
    let loaded = files::load(&flags.location(), &flags.options()?);
    match loaded.ruleset {
        Some(ruleset) => Ok(ruleset),
        None => {
            // If standard error is gone, there is nobody to tell.
            let _ = check::print(&mut std::io::stderr(), &loaded.problems);
            bail!("the rules can't be loaded; tidegate check says the same");
        }
    }
}

pub(crate) fn domain<'a>(ruleset: &'a Ruleset, name: &str) -> anyhow::Result<&'a Domain> {
    let names = || ruleset.domains().map(|domain| &*domain.name).collect::<Vec<&str>>().join(", ");
    ruleset.domain(name).ok_or_else(|| anyhow!("no domain '{name}' in the rules: there are {}", names()))
}

pub(crate) fn run(flags: &ExplainFlags) -> anyhow::Result<Exit> {
    let ruleset = load(&flags.rules)?;
    let domain = domain(&ruleset, &flags.domain)?;
    let fleet = PlannedFleet::new(flags.fleet, Layers::ALONE, flags.slack);
    let explained: Vec<_> = flags.descriptors.iter().map(|typed| explain(domain, typed.entries().collect())).collect();
    let mut out = std::io::stdout().lock();
    if flags.output == Output::Json {
        let document: Vec<Value> = explained.iter().map(|explanation| to_json(explanation, fleet)).collect();
        writeln!(out, "{:#}", Value::from(document))?;
        return Ok(Exit::Success);
    }
    for (index, explanation) in explained.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write!(out, "{explanation}")?;
        write!(out, "{}", deciders(explanation, fleet))?;
    }
    Ok(Exit::Success)
}

/// Who decides each limit of the rule in a fleet, a line each; empty without a fleet.
fn deciders(explanation: &Explanation<'_>, fleet: Option<PlannedFleet>) -> String {
    let (Some(rule), Some(fleet)) = (explanation.rule, fleet) else { return String::new() };
    let line = |limit: &Limit| {
        let window = window(limit.terms.window_ms);
        format!("    {} per {window}, decided by: {}\n", limit.terms.limit, fleet.decider(rule, limit))
    };
    rule.limits().iter().map(line).collect()
}

fn to_json(explanation: &Explanation<'_>, fleet: Option<PlannedFleet>) -> Value {
    let mut document = explanation.to_json();
    if let Some(fleet) = fleet {
        let limits = explanation.rule.into_iter().flat_map(|rule| rule.limits().iter().map(move |limit| (rule, limit)));
        let decided = limits.map(|(rule, limit)| {
            let mut decider = fleet.decider(rule, limit).to_json();
            decider["window_ms"] = json!(limit.terms.window_ms);
            decider
        });
        document["decided_by"] = decided.collect();
    }
    document
}
