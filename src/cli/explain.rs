//! `tidegate explain`: which rule a descriptor meets, and why that one.

use std::io::Write;

use anyhow::{anyhow, bail};
use clap::Args;
use serde_json::Value;

use crate::cli::{Exit, Output, check};
use crate::request::typed::TypedDescriptor;
use crate::rules::explain::explain;
use crate::rules::{Domain, Ruleset};
use crate::sources::files;
use crate::sources::settings::RuleFlags;

pub(crate) const EXAMPLES: &str = "Examples:
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
    let explained: Vec<_> = flags.descriptors.iter().map(|typed| explain(domain, typed.entries().collect())).collect();
    let mut out = std::io::stdout().lock();
    if flags.output == Output::Json {
        let document: Vec<Value> = explained.iter().map(|explanation| explanation.to_json()).collect();
        writeln!(out, "{:#}", Value::from(document))?;
        return Ok(Exit::Success);
    }
    for (index, explanation) in explained.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write!(out, "{explanation}")?;
    }
    Ok(Exit::Success)
}
