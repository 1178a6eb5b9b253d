//! How many requests per second, how fast, and at what cost for each: Tidegate against servers that answer a constant.
//!
//! `cargo bench --bench rls`. The constant servers are what is left of a rate limit service when nothing is limited. All servers
//! are compared with tonic on tokio's multi-thread runtime, which is how everybody writes a service. Each server is a process
//! of its own. They take turns under the same load, in the opposite order every other round, so that a machine that gets slower
//! does so for all. From outside in: `scenario` says what is asked, `servers` who answers (`constant`, `stores`), `client` who
//! asks, `figures` has the results, `report` and `plot` show them.
//!
//! It fails when a server fails or answers wrongly, never because of a figure: machines are noisy.

mod bound;
mod client;
mod constant;
mod figures;
mod machine;
mod plot;
mod process;
mod redis_server;
mod report;
mod results;
mod rounds;
mod scenario;
mod servers;
mod stores;
#[allow(dead_code)] // Nobody asks for what it counts.
mod tidegate_server;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use serde_json::{Value, json};

use crate::constant::Constant;
use crate::figures::{Figure, Run, Spread};
use crate::machine::{cores, cpu_model};
use crate::plot::{Bar, Chart, Group, Row};
use crate::report::Outcome;
use crate::results::{Output, Results};
use crate::rounds::Rounds;
use crate::scenario::{SCENARIOS, Scenario};
use crate::servers::{Kind, Server, TONIC};
use crate::stores::Stores;

/// The scenarios that the chart shows, as far as they were measured.
const CHARTED: [&str; 3] = ["hot", "descriptors-4", "uniform"];

/// Requests per second, latency and CPU of Tidegate, of constant servers and of others
#[derive(Debug, Parser)]
#[command(name = "rls", bin_name = "cargo bench --bench rls --")]
struct Options {
    /// Rounds of each scenario; one more is not counted
    #[arg(long, value_name = "COUNT", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// How long each server is asked in a round (h2load: in whole seconds)
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    duration: Duration,

    /// Only these scenarios, separated by commas
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',', value_parser = scenario)]
    only: Vec<&'static Scenario>,

    /// One more server, that runs already
    #[arg(long, value_name = "NAME=HOST:PORT", value_parser = named)]
    peer: Vec<(String, String)>,

    /// The process of a peer on this machine, whose CPU is then measured
    #[arg(long, value_name = "NAME=PID", value_parser = named)]
    peer_pid: Vec<(String, String)>,

    #[command(flatten)]
    results: Results,

    /// Show the scenarios
    #[arg(long)]
    list: bool,

    /// What cargo says to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

fn scenario(name: &str) -> Result<&'static Scenario, String> {
    Scenario::named(name).ok_or_else(|| "no such scenario; --list shows them".into())
}

fn named(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write a name, '=' and a value")?;
    Ok((name.into(), value.into()))
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let done = match args.next().as_deref() {
        Some(constant::ARGUMENT) => constant::serve(&args.next().unwrap_or_default()),
        _ => run(&Options::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rls: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    if options.list {
        SCENARIOS.iter().for_each(|scenario| println!("{:16}{}", scenario.name, scenario.title));
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let rules = directory.path().join("rules.yaml");
    std::fs::write(&rules, scenario::rule_file())?;
    let servers = start_servers(options, &rules)?;
    servers::compare_answers(&servers)?;

    let mut rounds = Rounds::new(&servers, options.rounds, options.duration);
    let mut outcomes = Vec::new();
    for scenario in SCENARIOS.iter().filter(|scenario| is_chosen(options, scenario)) {
        let outcome = rounds.take(scenario)?;
        if options.results.output == Output::Text {
            outcome.print();
        }
        outcomes.push(outcome);
    }
    if options.results.output == Output::Text {
        println!(
            "\nmedians (ranges) of {} alternating rounds of {:?}; ratios are taken round by round",
            options.rounds, options.duration
        );
    }
    save(options, &outcomes)
}

fn is_chosen(options: &Options, scenario: &Scenario) -> bool {
    options.only.is_empty() || options.only.iter().any(|chosen| chosen.name == scenario.name)
}

fn start_servers(options: &Options, rules: &Path) -> anyhow::Result<Vec<Server>> {
    eprintln!("starting the servers");
    let mut servers = Vec::new();
    for (name, address) in &options.peer {
        let pid = options.peer_pid.iter().find(|(of, _)| of == name).map(|(_, pid)| pid.parse());
        servers.push(Server::peer(name, address, pid.transpose().context("--peer-pid takes a number")?));
    }
    for constant in Constant::ALL {
        servers.push(Server::constant(constant)?);
    }
    servers.push(Server::tidegate(rules, None)?);
    servers.push(Server::tidegate(rules, Some(Stores::start()?))?);
    Ok(servers)
}

fn save(options: &Options, outcomes: &[Outcome]) -> anyhow::Result<()> {
    options.results.save_figures("rls", document(options, outcomes))?;
    let groups: Vec<Group> = outcomes.iter().filter(|it| CHARTED.contains(&it.scenario.name)).map(group).collect();
    if groups.is_empty() {
        return Ok(());
    }
    let footer = format!(
        "{}, {} cores; medians of {} alternating rounds, ratios to {TONIC} of the same round",
        cpu_model(),
        cores(),
        options.rounds
    );
    let heads = ["requests/s: longer is better".into(), "server CPU µs/request: shorter is better".into()];
    options.results.save_chart("rls", &Chart { heads, groups, footer })
}

fn document(options: &Options, outcomes: &[Outcome]) -> Value {
    json!({
        "rounds": options.rounds,
        "duration_ms": options.duration.as_millis() as u64,
        "rules": scenario::rule_file(),
        "scenarios": outcomes.iter().map(Outcome::as_json).collect::<Vec<_>>(),
    })
}

fn group(outcome: &Outcome) -> Group {
    let to: &[Run] = outcome.measured(TONIC).map_or(&[], |tonic| &tonic.runs);
    let rows = outcome.servers.iter().filter_map(|server| {
        let median = |figure| Spread::of_runs(&server.runs, figure).map(|spread| spread.median);
        let ratio = |figure| Spread::of_ratios(&server.runs, to, figure).map(|spread| spread.median);
        let requests_per_s = median(Figure::RequestsPerS)?;
        let thousands = labelled(&format!("{:.0}k", requests_per_s / 1e3), ratio(Figure::RequestsPerS));
        let server_us = median(Figure::ServerUs).map(|micros| {
            let label = labelled(&format!("{micros:.1}"), ratio(Figure::ServerUs));
            Bar { figure: micros, label }
        });
        Some(Row {
            name: server.name.clone(),
            is_ours: server.kind == Kind::Tidegate,
            bars: [Some(Bar { figure: requests_per_s, label: thousands }), server_us],
        })
    });
    Group { title: outcome.scenario.title.into(), rows: rows.collect() }
}

fn labelled(figure: &str, ratio: Option<f64>) -> String {
    ratio.map_or_else(|| figure.to_owned(), |ratio| format!("{figure} · {ratio:.2}x"))
}
