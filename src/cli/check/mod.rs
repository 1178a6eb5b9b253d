//! `tidegate check`: what is wrong with the rule files, and what they come to.

mod policy;
mod table;
mod written_limits;

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::cli::check::policy::PolicyRow;
use crate::cli::check::written_limits::WrittenLimits;
use crate::cli::{Exit, Output};
use crate::rules::LoadResult;
use crate::rules::problem::{LISTED_MAX, Problem, Severity};
use crate::settings::sharing::{SharingFlags, SharingSettings};
use crate::sources::files;
use crate::sources::settings::RuleFlags;

#[derive(Args, Debug)]
pub struct CheckFlags {
    #[command(flatten)]
    pub rules: RuleFlags,

    #[command(flatten)]
    pub sharing: SharingFlags,

    /// Show the policy of every limit too: its class, scope, outage policy and slack, defaults filled in
    #[arg(long)]
    pub show_policy: bool,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

pub(crate) fn run(flags: &CheckFlags) -> anyhow::Result<Exit> {
    let sharing = SharingSettings::new(&flags.sharing, &flags.rules.secret)?;
    let options = flags.rules.options()?;
    let mut loaded = files::load(&flags.rules.location(), &options);
    sharing.surroundings().refuse(&mut loaded);
    let mut remarks = sharing.warnings(&flags.sharing);
    // Unless something is set about where the rules are to hold, nobody can say what has no effect there.
    if let Some(ruleset) = loaded.ruleset.as_ref().filter(|_| sharing.is_set()) {
        remarks.extend(sharing.surroundings().not_honoured(ruleset));
    }
    let policies = match &loaded.ruleset {
        Some(ruleset) if flags.show_policy => policy::rows(ruleset, &WrittenLimits::read(ruleset, options.strictness)?),
        _ => Vec::new(),
    };
    let exit = if loaded.ruleset.is_some() { Exit::Success } else { Exit::Failure };
    exit.after(report(flags, &loaded, &remarks, &policies))
}

fn report(flags: &CheckFlags, loaded: &LoadResult, remarks: &[String], policies: &[PolicyRow]) -> std::io::Result<()> {
    let (errors, warnings) = counts(&loaded.problems);
    let warnings = warnings + remarks.len();
    let mut out = std::io::stdout().lock();
    if flags.output == Output::Json {
        let mut document = json!({
            "ok": loaded.ruleset.is_some(),
            "domains": loaded.ruleset.as_ref().map(|ruleset| ruleset.domains().count()),
            "rules": loaded.ruleset.as_ref().map(|ruleset| ruleset.rules_count()),
            "errors": errors,
            "warnings": warnings,
            "problems": loaded.problems,
            "remarks": remarks,
        });
        if flags.show_policy {
            document["policies"] = policies.iter().map(PolicyRow::to_json).collect();
        }
        return writeln!(out, "{document:#}");
    }
    print(&mut out, &loaded.problems)?;
    remarks.iter().try_for_each(|remark| writeln!(out, "warning: {remark}"))?;
    if !policies.is_empty() {
        write!(out, "{}\n\n{}", policy::table(policies), policy::legend(policies))?;
    }
    match &loaded.ruleset {
        Some(ruleset) => writeln!(
            out,
            "ok: {} in {}, {}",
            plural(ruleset.rules_count(), "rule"),
            plural(ruleset.domains().count(), "domain"),
            plural(warnings, "warning")
        ),
        None => writeln!(out, "not loaded: {}, {}", plural(errors, "error"), plural(warnings, "warning")),
    }
}

/// Prints problems, only the errors if there are too many for all: a broken generator should not flood a terminal.
pub(crate) fn print(out: &mut impl Write, problems: &[Problem]) -> std::io::Result<()> {
    let (errors, warnings) = counts(problems);
    let is_too_many = problems.len() > LISTED_MAX && errors > 0;
    for problem in problems.iter().filter(|it| !is_too_many || it.severity == Severity::Error) {
        writeln!(out, "{problem}")?;
    }
    if is_too_many && warnings > 0 {
        writeln!(out, "... and {} not listed: mend these and check again", plural(warnings, "warning"))?;
    }
    Ok(())
}

/// How many errors and warnings there are.
pub(crate) fn counts(problems: &[Problem]) -> (usize, usize) {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    (errors, problems.len() - errors)
}

/// `1 rule`, `2 rules`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
