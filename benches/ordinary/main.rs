//! The cost of ordinary traffic: many users, nearly all of them far below their limit, over 3 and over 9 processes.
//!
//! `cargo bench --bench ordinary`. A fleet of 3 processes and one of 9, each with a Redis of its own, and a process without
//! Redis get the same requests. For each of them, another Redis gets the commands of the Go service. All of this happens at
//! the same time, so a machine that gets slower does so for all. From outside in: `traffic` brings everybody together,
//! `users` and `arrivals` say who asks when, `client` asks, `fleet` and `increments` are asked, `reply` and `ledger` say
//! whether the answers were right, `figures` and `report` show the result. `benches/rls` starts servers and draws charts.
//!
//! It fails when a server fails or answers wrongly, never because of a figure: machines are noisy.

mod arrivals;
mod client;
mod figures;
mod fleet;
mod increments;
mod ledger;
mod reply;
mod report;
mod traffic;
mod users;

#[path = "../rls/bound.rs"]
#[allow(dead_code)] // Figures here have upper bounds only.
mod bound;
#[path = "../rls/machine.rs"]
mod machine;
#[path = "../rls/plot.rs"]
mod plot;
#[path = "../rls/process.rs"]
#[allow(dead_code)] // All servers here say their addresses on the same stream.
mod process;
#[path = "../rls/redis_server.rs"]
mod redis_server;
#[path = "../rls/results.rs"]
mod results;
#[path = "../rls/tidegate_server.rs"]
#[allow(dead_code)] // Nobody asks for its CPU.
mod tidegate_server;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};

use crate::figures::Figures;
use crate::results::{Output, Results};
use crate::traffic::Traffic;

/// Waits, CPU of Redis, accuracy and latency under ordinary traffic
#[derive(Debug, Parser)]
#[command(name = "ordinary", bin_name = "cargo bench --bench ordinary --")]
struct Options {
    /// The most users
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    users: u64,

    /// The most requests per second of all users together; there are fewer users where this would be exceeded
    #[arg(long, value_name = "COUNT", default_value_t = 1500.0)]
    rate: f64,

    /// The limits of the users, each in a run of its own
    #[arg(long, value_name = "LIMIT", value_delimiter = ',', default_values_t = [100, 1000],
        value_parser = clap::value_parser!(u32).range(1..))]
    limits: Vec<u32>,

    /// How many processes each fleet has. All fleets run at the same time: fewer of them leave room for a higher rate
    #[arg(long, value_name = "PROCESSES", value_delimiter = ',', default_values_t = [3, 9], value_parser = fleet_size)]
    fleets: Vec<usize>,

    /// Limits per 10 seconds rather than per minute: a look in a minute, but keys are in use six times as often
    #[arg(long)]
    quick: bool,

    #[command(flatten)]
    results: Results,

    /// Passed by cargo to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn window(&self) -> Duration {
        Duration::from_secs(if self.quick { 10 } else { 60 })
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ordinary: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Requests are divided evenly among so many processes.
fn fleet_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size) if size > 0 && arrivals::PROCESSES.is_multiple_of(size) => Ok(size),
        _ => Err(format!("a fleet has 1, 3 or {} processes", arrivals::PROCESSES)),
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for limit in &options.limits {
        let traffic =
            Traffic { limit: *limit, window: options.window(), users_max: options.users, rate_max: options.rate };
        let fleets = traffic.run(&options.fleets)?;
        if options.results.output == Output::Text {
            report::print(&fleets);
        }
        all.extend(fleets);
    }
    options.results.save_figures("ordinary", document(options, &all))?;
    options.results.save_chart("ordinary", &report::chart(&all))
}

fn document(options: &Options, fleets: &[Figures]) -> Value {
    json!({
        "window_ms": options.window().as_millis() as u64,
        "fleets": fleets.iter().map(Figures::as_json).collect::<Vec<_>>(),
    })
}
