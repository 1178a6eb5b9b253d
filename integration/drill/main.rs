//! `make drill`: holds every figure that Tidegate promises against what real processes do on this machine.
//!
//! Not part of the tests: a figure may be missed because a neighbour is busy, and a test must not. The scenarios are those of
//! the tests, which assert what holds on any machine; here, the optimised program is driven, one drill at a time.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![expect(clippy::disallowed_types, reason = "a test should fail when another thread of it has panicked with a lock")]
#![allow(
    dead_code,
    unused_imports,
    reason = "the tests beside the scenarios, and what only they use, are not built here"
)]

mod exactness;
#[path = "../global/mod.rs"]
mod global;
#[path = "../policy/mod.rs"]
mod policy;
#[path = "../region/mod.rs"]
mod region;
mod report;
mod rows;
#[path = "../server/mod.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use crate::report::{Ended, Report};
use crate::support::promise::Promise;

/// A scenario with a name to ask for it.
struct Drill {
    name: &'static str,
    what: &'static str,
    run: fn() -> Vec<Promise>,
}

const DRILLS: &[Drill] = &[
    Drill {
        name: "region-exactness",
        what: "5 and 9 processes keep one limit at ten times the load",
        run: exactness::one_limit,
    },
    Drill {
        name: "region-burst",
        what: "5 processes and a hundred times the load at once",
        run: region::accuracy::burst,
    },
    Drill { name: "region-commands", what: "how little Redis is told of one key", run: exactness::commands_of_one_key },
    Drill {
        name: "region-commands-of-many-keys",
        what: "how little Redis is told of a thousand keys",
        run: exactness::commands_of_a_thousand_keys,
    },
    Drill {
        name: "region-commands-of-many-keys-in-a-cluster",
        what: "how little a Cluster is told of a thousand keys",
        run: exactness::commands_of_a_thousand_keys_in_a_cluster,
    },
    Drill {
        name: "region-spacing",
        what: "requests that wait for each other's calls",
        run: || wait_for(region::waiting::spacing()),
    },
    Drill {
        name: "region-redis-stands-still",
        what: "Redis stands still for 20 s",
        run: || region::faults::stands_still(Duration::from_secs(20)),
    },
    Drill {
        name: "region-redis-empty",
        what: "Redis is back empty, with 3 x 120,000 keys to tell again",
        run: || region::heal::back_empty(120_000, &[]),
    },
    Drill { name: "region-redis-loads", what: "Redis restarts and loads its data", run: region::faults::loads },
    Drill {
        name: "region-redis-errors",
        what: "Redis is slow, frozen, refused, full, read-only",
        run: region::faults::errors,
    },
    Drill {
        name: "region-redis-node",
        what: "one node of a Cluster hangs until its replica has taken over, and longer",
        run: region::nodes::frozen_node,
    },
    Drill {
        name: "region-redis-slow",
        what: "Redis answers at about the deadline, and later",
        run: || region::nodes::slow(Duration::from_secs(20)),
    },
    Drill { name: "region-kill", what: "a process is killed under load", run: region::restart::kill },
    Drill { name: "global-exactness", what: "three regions at ten times the load", run: exactness::three_regions },
    Drill {
        name: "global-rows-of-many",
        what: "what MySQL has to do for 1, 4 and 16 processes of a region",
        run: rows::rows_of_many,
    },
    Drill { name: "global-mysql-stands-still", what: "MySQL stands still", run: global::faults::stands_still },
    Drill { name: "global-mysql-dies", what: "MySQL dies and comes back", run: global::faults::dies },
    Drill { name: "policy-overload", what: "four times what may wait for Redis", run: policy::overload::overload },
    Drill { name: "policy-idle-outage", what: "Redis goes away while nobody asks", run: policy::surfaces::idle_outage },
    Drill {
        name: "policy-hasty-callers",
        what: "callers that wait less than a strict limit's owner may take",
        run: || wait_for(policy::strict::hasty_callers()),
    },
    Drill { name: "server-reload", what: "rules change", run: || wait_for(server::reload::changes()) },
    Drill { name: "server-stop", what: "a stop without a delay", run: || wait_for(server::drain::at_once()) },
    Drill { name: "server-resets", what: "a flood of resets", run: || wait_for(server::hardening::resets()) },
    Drill {
        name: "server-small-frames",
        what: "floods of small frames",
        run: || wait_for(server::abuse::small_frames()),
    },
    Drill {
        name: "server-open-calls",
        what: "11,000 calls without a message",
        run: || wait_for(server::stalls::open_calls()),
    },
];

fn wait_for(scenario: impl Future<Output = Vec<Promise>>) -> Vec<Promise> {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(scenario)
}

/// Measures what Tidegate promises in figures, and says which promises this machine sees kept.
#[derive(Parser)]
#[command(name = "drill", after_help = "Examples: make drill; cargo bench --bench drill -- redis overload")]
struct Arguments {
    /// Drills whose name contains one of these
    names: Vec<String>,

    /// Every drill, which takes some minutes
    #[arg(long)]
    all: bool,

    /// Name the drills
    #[arg(long)]
    list: bool,

    #[arg(long, value_enum, default_value_t = Output::Table)]
    output: Output,

    /// What `cargo bench` says to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        DRILLS.iter().for_each(|drill| println!("{:30} {}", drill.name, drill.what));
        return ExitCode::SUCCESS;
    }
    if !arguments.all && arguments.names.is_empty() {
        // A bare `cargo bench` comes here, too, and means the benches.
        println!("drill: nothing was asked for; `make drill` runs all of {}, `-- --list` names them", DRILLS.len());
        return ExitCode::SUCCESS;
    }
    let is_wanted = |drill: &&Drill| arguments.all || arguments.names.iter().any(|name| drill.name.contains(name));
    let wanted: Vec<&Drill> = DRILLS.iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        eprintln!("drill: no drill is called {}; `--list` names them", arguments.names.join(" or "));
        return ExitCode::FAILURE;
    }
    let report =
        Report { drills: wanted.iter().zip(1..).map(|(drill, number)| run(drill, number, wanted.len())).collect() };
    match arguments.output {
        Output::Table => print!("{}", report.table()),
        Output::Json => println!("{:#}", report.json()),
    }
    if report.is_kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One drill. What must hold on any machine and does not ends it, not the others.
fn run(drill: &Drill, number: usize, count: usize) -> Ended {
    eprintln!("[{number}/{count}] {}: {}", drill.name, drill.what);
    let began = Instant::now();
    let promises = catch_unwind(AssertUnwindSafe(drill.run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    });
    eprintln!("[{number}/{count}] {} took {:.0} s", drill.name, began.elapsed().as_secs_f64());
    Ended { name: drill.name, promises }
}
