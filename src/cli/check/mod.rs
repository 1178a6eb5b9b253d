//! `tidegate check`: what is wrong with the rule files, and what they come to.

mod policy;
mod table;
mod written;

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::cli::check::policy::PolicyRow;
use crate::cli::check::written::Written;
use crate::cli::{Exit, Output};
use crate::rules::problem::{Problem, Severity};
use crate::settings::rules::RuleFlags;
use crate::sources::files;

#[derive(Args, Debug)]
pub struct CheckFlags {
    #[command(flatten)]
    pub rules: RuleFlags,

    /// Show the policy of every limit too: its class, scope, outage policy and slack, defaults filled in
    #[arg(long)]
    pub show_policy: bool,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

pub fn run(flags: &CheckFlags) -> anyhow::Result<Exit> {
    let options = flags.rules.options()?;
    let loaded = files::load(&flags.rules.location(), &options);
    let policies = match &loaded.ruleset {
        Some(ruleset) if flags.show_policy => policy::rows(ruleset, &Written::read(ruleset, options.strictness)?),
        _ => Vec::new(),
    };
    let (errors, warnings) = counts(&loaded.problems);
    let exit = if loaded.ruleset.is_some() { Exit::Success } else { Exit::Failure };
    let mut out = std::io::stdout().lock();
    if flags.output == Output::Json {
        let mut document = json!({
            "ok": loaded.ruleset.is_some(),
            "domains": loaded.ruleset.as_ref().map(|ruleset| ruleset.domains().count()),
            "rules": loaded.ruleset.as_ref().map(|ruleset| ruleset.rules_count()),
            "errors": errors,
            "warnings": warnings,
            "problems": loaded.problems,
        });
        if flags.show_policy {
            document["policies"] = policies.iter().map(PolicyRow::to_json).collect();
        }
        writeln!(out, "{document:#}")?;
        return Ok(exit);
    }
    print(&mut out, &loaded.problems)?;
    if !policies.is_empty() {
        write!(out, "{}\n\n{}", policy::table(&policies), policy::legend(&policies))?;
    }
    match &loaded.ruleset {
        Some(ruleset) => writeln!(
            out,
            "ok: {} in {}, {}",
            plural(ruleset.rules_count(), "rule"),
            plural(ruleset.domains().count(), "domain"),
            plural(warnings, "warning")
        )?,
        None => writeln!(out, "not loaded: {}, {}", plural(errors, "error"), plural(warnings, "warning"))?,
    }
    Ok(exit)
}

/// Prints problems, errors before warnings if there are too many for all: a broken generator should not flood a terminal.
pub fn print(out: &mut impl Write, problems: &[Problem]) -> std::io::Result<()> {
    const LISTED_MAX: usize = 1000;
    let (errors, _) = counts(problems);
    let is_too_many = problems.len() > LISTED_MAX;
    let listed = problems.iter().filter(|it| !is_too_many || errors == 0 || it.severity == Severity::Error);
    let listed: Vec<&Problem> = listed.take(LISTED_MAX).collect();
    for problem in &listed {
        writeln!(out, "{problem}")?;
    }
    if listed.len() < problems.len() {
        writeln!(out, "... and {} not listed: mend these and check again", problems.len() - listed.len())?;
    }
    Ok(())
}

/// How many errors and warnings there are.
pub fn counts(problems: &[Problem]) -> (usize, usize) {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    (errors, problems.len() - errors)
}

/// `1 rule`, `2 rules`.
pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
