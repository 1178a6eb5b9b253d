//! `tidegate status`: is this process well, and what does it know of its region?
//!
//! Asks the admin port of a running process for `/stats`. What counts as degraded is decided here, so that a script and a
//! person hear the same.

mod layers;
mod page;
mod regions;
mod report;

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::status::page::{AdminAddress, PageError};
use crate::cli::status::report::Stats;
use crate::cli::{Exit, Output};
use crate::flag_value::duration;
use crate::observe::logging::say;

pub(crate) const EXAMPLES: &str = "Examples:
  tidegate status
  tidegate status --addr 10.0.0.7:6070 --output json
  kubectl exec deploy/tidegate -- tidegate status

Exits with 0 if all is well, with 1 if something is degraded (no rules or refused ones, no connection to Redis, a
breaker that is open, MySQL that can't be used, regions that do not agree on their names), and with 2 if the admin port does not answer.";

#[derive(Args, Debug)]
pub struct StatusFlags {
    /// The admin port (DEBUG_HOST and DEBUG_PORT of the service): host:port or [::1]:6070
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6070")]
    pub addr: AdminAddress,

    /// Wait at most this long for an answer
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    pub timeout: Duration,

    /// How to print
    #[arg(long, value_enum, default_value = "text")]
    pub output: Output,
}

pub(crate) fn run(flags: &StatusFlags) -> anyhow::Result<Exit> {
    let (document, stats) = match read(flags) {
        Ok(read) => read,
        Err(error) => {
            return Exit::NoAnswer.after(match flags.output {
                Output::Json => {
                    let error = json!({"message": error.to_string(), "hint": error.hint()});
                    writeln!(std::io::stdout(), "{:#}", json!({"healthy": false, "error": error}))
                }
                Output::Text => {
                    say(&format!("tidegate: {error}"));
                    say(&format!("  help: {}", error.hint()));
                    Ok(())
                }
            });
        }
    };
    let problems = stats.problems();
    let exit = if problems.is_empty() { Exit::Success } else { Exit::Failure };
    let mut out = std::io::stdout().lock();
    exit.after(match flags.output {
        Output::Json => writeln!(out, "{:#}", judged(document, &problems)),
        Output::Text => stats.print(&mut out, &flags.addr.to_string(), &problems),
    })
}

fn read(flags: &StatusFlags) -> Result<(Value, Stats), PageError> {
    let page = page::get(&flags.addr, "/stats", flags.timeout)?;
    let unfit = |_| PageError::NotStats { address: flags.addr.clone() };
    let document: Value = serde_json::from_str(&page).map_err(unfit)?;
    let stats = Stats::read(&document).map_err(unfit)?;
    Ok((document, stats))
}

/// The page with the verdict on it.
fn judged(mut document: Value, problems: &[String]) -> Value {
    document["healthy"] = json!(problems.is_empty());
    document["problems"] = json!(problems);
    document
}
