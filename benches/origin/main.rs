//! What a key costs Redis: the CPU of redis-server for what is told, for checks, exact windows and buckets, against INCRBY and
//! EXPIRE, which is what a service costs that asks Redis about every request.
//!
//! `cargo bench --bench origin` takes about a minute, needs `redis-server`, and prints a Markdown table; `-- --output json`
//! the same as JSON. Calls of ten keys are compared with pipelines of ten pairs, and those of one key with a pair alone, each
//! sent when the one before is answered. The first line is what a script costs that only reads and writes: the rest is what
//! ours decides. Both sides take turns, a round each, and the medians of all rounds are shown: so what else the machine does is
//! in both figures. `at most` is what we promise. A figure above it is printed, and nothing fails.

mod calls;
mod random;
mod server;

use std::process::ExitCode;

use serde_json::json;
use tidegate::regional::redis::ORIGIN;

use crate::calls::{BARE, Keys, Kind};
use crate::random::Random;
use crate::server::Server;

/// So many that they are not in a cache.
const KEYS: usize = 20_000;
const ROUNDS: usize = 15;
/// Keys in a round.
const PER_ROUND: usize = 3_000;

/// What is measured, how many keys are in a call, and how many pairs it may cost.
const CASES: [(&str, Kind, usize, Option<f64>); 11] = [
    ("a script that reads and writes only", Kind::Bare, 10, None),
    ("told cell", Kind::Told, 10, Some(1.2)),
    ("told cell, made with it", Kind::Made, 10, None),
    ("told cell", Kind::Told, 1, None),
    ("check, warm", Kind::WarmCheck, 10, Some(3.0)),
    ("check, cold", Kind::ColdCheck, 10, Some(3.0)),
    ("check, warm", Kind::WarmCheck, 1, Some(3.0)),
    ("check, cold", Kind::ColdCheck, 1, Some(3.0)),
    ("told exact window", Kind::Exact, 10, None),
    ("told bucket", Kind::Bucket, 10, None),
    ("told bucket", Kind::Bucket, 1, None),
];

/// A line of the table.
struct Figure {
    name: &'static str,
    keys: usize,
    pair_us: f64,
    cost_us: f64,
    times: f64,
    at_most: Option<f64>,
}

fn main() -> ExitCode {
    let is_json = std::env::args().collect::<Vec<_>>().windows(2).any(|words| words == ["--output", "json"]);
    match run() {
        Ok((version, figures)) if is_json => {
            let lines = figures.iter().map(|line| {
                json!({
                    "name": line.name, "keys": line.keys, "pair_us": line.pair_us, "cost_us": line.cost_us,
                    "times": line.times, "at_most": line.at_most,
                })
            });
            println!("{}", json!({"redis": version, "figures": lines.collect::<Vec<_>>()}));
            ExitCode::SUCCESS
        }
        Ok((version, figures)) => {
            println!("Redis {version}, CPU for a key\n");
            println!("| | keys in a call | INCRBY + EXPIRE | here | times | at most |\n|---|---|---|---|---|---|");
            for Figure { name, keys, pair_us, cost_us, times, at_most } in figures {
                let at_most = at_most.map_or("-".into(), |at_most| format!("{at_most:.1}"));
                println!("| {name} | {keys} | {pair_us:.2} µs | {cost_us:.2} µs | {times:.2} | {at_most} |");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<(String, Vec<Figure>)> {
    let mut server = Server::start()?;
    let (origin, bare) = (server.load(ORIGIN)?, server.load(BARE)?);
    let mut random = Random(1);
    let mut pairs = Keys::new(Kind::Pair, KEYS);
    pairs.prepare(&mut server, &origin)?;
    let mut figures = Vec::new();
    for (name, kind, keys, at_most) in CASES {
        let script = if kind == Kind::Bare { &bare } else { &origin };
        let mut cells = Keys::new(kind, KEYS);
        cells.prepare(&mut server, script)?;
        let calls = PER_ROUND / keys;
        let mut rounds = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let pair_us = pairs.round(&mut server, &origin, calls, keys, &mut random)?;
            let cost_us = cells.round(&mut server, script, calls, keys, &mut random)?;
            rounds.push((pair_us, cost_us));
        }
        let pair_us = median(rounds.iter().map(|(pair_us, _)| *pair_us));
        let cost_us = median(rounds.iter().map(|(_, cost_us)| *cost_us));
        let times = median(rounds.iter().map(|(pair_us, cost_us)| cost_us / pair_us));
        figures.push(Figure { name, keys, pair_us, cost_us, times, at_most });
    }
    Ok((server.version, figures))
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
