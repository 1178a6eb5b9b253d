//! How many requests per second, how fast, and at what cost for each: Tidegate against servers that answer a constant.
//!
//! `cargo bench --bench rls`. The constant servers are what is left of a rate limit service when nothing is limited. All servers
//! are compared with tonic on tokio's multi-thread runtime, which is how everybody writes a service. Each server is a process
//! of its own. They take turns under the same load, in the opposite order every other round, so that a machine that gets slower
//! does so for all. From outside in: `scenario` says what is asked, `servers` who answers (`constant`, `stores`), `client` who
//! asks, `figures` has the results, `report` and `plot` show them.
//!
//! It fails when a server fails or answers wrongly, never because of a figure: machines are noisy.

mod client;
mod constant;
mod figures;
mod plot;
mod process;
mod report;
mod rounds;
mod scenario;
mod servers;
mod stores;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use serde_json::{Value, json};

use crate::constant::Constant;
use crate::figures::{Figure, Run, Spread};
use crate::plot::{Bar, Group};
use crate::report::Outcome;
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

    /// Where all figures go [default: target/bench/rls.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where the chart goes [default: target/bench/rls.svg]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// What is printed
    #[arg(long, value_enum, default_value = "text")]
    output: Output,

    /// Show the scenarios
    #[arg(long)]
    list: bool,

    /// What cargo says to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
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
        if options.output == Output::Text {
            outcome.print();
        }
        outcomes.push(outcome);
    }
    if options.output == Output::Text {
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
    let document = document(options, outcomes);
    if options.output == Output::Json {
        println!("{document:#}");
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench");
    write(&options.json.clone().unwrap_or_else(|| target.join("rls.json")), &format!("{document:#}\n"))?;
    let groups: Vec<Group> = outcomes.iter().filter(|it| CHARTED.contains(&it.scenario.name)).map(group).collect();
    if !groups.is_empty() {
        let footer = format!(
            "{}, {} cores; medians of {} alternating rounds, ratios to {TONIC} of the same round",
            cpu_model(),
            cores(),
            options.rounds
        );
        write(&options.svg.clone().unwrap_or_else(|| target.join("rls.svg")), &plot::draw(&groups, &footer))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(file, text).with_context(|| format!("can't write {}", file.display()))?;
    eprintln!("wrote {}", file.display());
    Ok(())
}

fn document(options: &Options, outcomes: &[Outcome]) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "date": humantime::format_rfc3339_seconds(tidegate::clock::wall_time()).to_string(),
        "machine": { "cpu": cpu_model(), "cores": cores() },
        "command": std::env::args().skip(1).collect::<Vec<_>>(),
        "rounds": options.rounds,
        "duration_ms": options.duration.as_millis() as u64,
        "rules": scenario::rule_file(),
        "scenarios": outcomes.iter().map(Outcome::as_json).collect::<Vec<_>>(),
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or("unknown CPU", |(_, name)| name).to_owned()
}

fn group(outcome: &Outcome) -> Group {
    let to: &[Run] = outcome.measured(TONIC).map_or(&[], |tonic| &tonic.runs);
    let bars = outcome.servers.iter().filter_map(|server| {
        let median = |figure| Spread::of_runs(&server.runs, figure).map(|spread| spread.median);
        let ratio = |figure| Spread::of_ratios(&server.runs, to, figure).map(|spread| spread.median);
        Some(Bar {
            server: server.name.clone(),
            is_ours: server.kind == Kind::Tidegate,
            requests_per_s: median(Figure::RequestsPerS)?,
            requests_ratio: ratio(Figure::RequestsPerS),
            server_us: median(Figure::ServerUs),
            server_us_ratio: ratio(Figure::ServerUs),
        })
    });
    Group { title: outcome.scenario.title.into(), bars: bars.collect() }
}
