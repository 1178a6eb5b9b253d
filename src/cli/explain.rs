//! `tidegate explain`: which rule a descriptor meets, and why that one.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use crate::cli::{Exit, Output, check};
use crate::request::typed::TypedDescriptor;
use crate::rules::Ruleset;
use crate::rules::explain::explain;
use crate::settings::rules::RuleFlags;
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
    let loaded = files::load(&flags.rules.location(), &flags.rules.options()?);
    let Some(ruleset) = loaded.ruleset else {
        check::print(&mut std::io::stderr(), &loaded.problems)?;
        bail!("the rules can't be loaded; tidegate check says the same");
    };
    let Some(domain) = ruleset.domain(&flags.domain) else {
        bail!("no domain '{}' in the rules: there are {}", flags.domain, domain_names(&ruleset));
    };
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

fn domain_names(ruleset: &Ruleset) -> String {
    let names: Vec<&str> = ruleset.domains().map(|domain| &*domain.name).collect();
    names.join(", ")
}
