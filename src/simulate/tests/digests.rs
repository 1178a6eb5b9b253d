//! Every seed ends as it did, to the last decision, call and row: `digests.txt` has the digest of each run.
//!
//! A change that is not meant to change what is decided or sent changes no digest. If one is meant to, say so: run the
//! test with `TIDEGATE_RECORD_DIGESTS=1`, and commit the file on its own, with the reason.

use std::fmt::Write;

use parking_lot::Mutex;

use super::{SECOND_US, chaos, cluster, overload, owner, policy};
use crate::simulate::faults::{Fault, Network, Way};
use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

const RECORDED: &str = include_str!("digests.txt");
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/simulate/tests/digests.txt");
/// How many seeds share a line.
const SEEDS_PER_LINE: usize = 10;

const LIMITS: [&str; 9] = [
    "{requests_per_unit: 60, window: 10s}",
    "{requests_per_unit: 60, window: 10s, algorithm: fixed_window}",
    "{requests_per_unit: 60, window: 10s, algorithm: exact_window}",
    "{requests_per_unit: 60, window: 10s, algorithm: gcra, burst: 20}",
    "{requests_per_unit: 60, window: 10s, charge: always}",
    "{requests_per_unit: 60, window: 10s, on_outage: share}",
    "{requests_per_unit: 60, window: 10s, on_outage: deny}",
    "{requests_per_unit: 60, window: 10s, class: cost}",
    "{requests_per_unit: 2000, window: 10s}",
];

/// Any limit, any number of regions, hits and refunds, room for all keys or for few, and anything that can go wrong.
fn anything(seed: u64) -> World {
    let regions = 1 + (seed / 9 % 3) as usize;
    let mut setup = Setup { regions, ..Setup::new(seed, 1 + (seed % 4) as usize, LIMITS[(seed % 9) as usize]) };
    setup.network = if seed.is_multiple_of(5) { Network::QUIET } else { Network::ROUGH };
    setup.keys_max = if seed.is_multiple_of(4) { 4 } else { 1000 };
    setup.slack_permille = if seed.is_multiple_of(7) { 0 } else { 100 };
    let mut world = World::new(setup);
    let processes = world.processes.len() as u64;
    for _ in 0..600 {
        let at_us = 10_000 + world.random().below(25 * SECOND_US);
        let (process, key) = (world.random().below(processes) as usize, world.random().below(6) as usize);
        let hits = if world.random().permille(100) { -3 } else { 1 + world.random().below(3) as i64 };
        world.request_at(at_us, process, KeyHits { key, hits });
    }
    for _ in 0..4 {
        let at_us = SECOND_US + world.random().below(15 * SECOND_US);
        let region = world.random().below(regions as u64) as usize;
        let process = world.random().below(processes) as usize;
        let for_us = SECOND_US + world.random().below(3 * SECOND_US);
        let fault = match world.random().below(8) {
            0 => Fault::Partition { region, way: Way::Both, for_us },
            1 | 2 => Fault::Freeze { region, for_us },
            3 => Fault::Failover { region, back_us: 200_000 },
            4 => Fault::Crash { process },
            5 => Fault::Restart { process },
            6 => Fault::LoseData { region },
            _ => Fault::Skew { region, by_ms: for_us as i64 / 1000 - 2_500 },
        };
        world.fault_at(at_us, fault);
    }
    world.run_until(30 * SECOND_US);
    world
}

fn recorded(name: &str) -> Vec<&'static str> {
    let of_name = |line: &'static str| line.strip_prefix(name)?.strip_prefix(": ");
    RECORDED.lines().filter_map(of_name).flat_map(|line| line.split(' ')).collect()
}

fn hold(name: &str, seeds: u64, run: impl Fn(u64) -> World) {
    let found: Vec<String> = (0..seeds).map(|seed| format!("{:016x}", run(seed).digest.0)).collect();
    if std::env::var_os("TIDEGATE_RECORD_DIGESTS").is_some() {
        return record(name, &found);
    }
    let recorded = recorded(name);
    assert_eq!(recorded.len(), found.len(), "{name}: {PATH} has another number of seeds");
    let others: Vec<usize> = (0..found.len()).filter(|seed| found[*seed] != recorded[*seed]).collect();
    assert!(others.is_empty(), "{name}: {} of {seeds} seeds run differently now: {others:?}", others.len());
}

/// Replaces the lines of one name; the tests take turns.
fn record(name: &str, found: &[String]) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let before = std::fs::read_to_string(PATH).unwrap_or_default();
    let mut text = String::new();
    for line in before.lines().filter(|line| !line.starts_with(&format!("{name}: "))) {
        writeln!(text, "{line}").unwrap();
    }
    for line in found.chunks(SEEDS_PER_LINE) {
        writeln!(text, "{name}: {}", line.join(" ")).unwrap();
    }
    std::fs::write(PATH, text).unwrap();
}

#[test]
fn every_seed_of_anything_ends_as_it_did() {
    hold("anything", 600, anything);
}

#[test]
fn every_seed_of_chaos_ends_as_it_did() {
    hold("chaos", chaos::SEEDS, |seed| chaos::run(seed, chaos::KINDS[(seed % 5) as usize], None));
}

#[test]
fn every_seed_of_a_strict_limit_ends_as_it_did() {
    let strict = "{requests_per_unit: 40, window: 1h, class: security}";
    hold("strict", 300, |seed| policy::run(seed, strict, Network::ROUGH));
}

#[test]
fn every_seed_of_an_owner_ends_as_it_did() {
    hold("owner", 100, |seed| owner::run(seed, Network::ROUGH));
}

#[test]
fn every_seed_of_an_overload_ends_as_it_did() {
    let policies = ["local", "share", "allow", "deny"];
    let limit = |seed: u64| {
        let on_outage = policies[(seed % 4) as usize];
        format!("{{requests_per_unit: 60, window: 1h, on_outage: {on_outage}}}")
    };
    hold("overload", 100, |seed| overload::run(seed, &limit(seed), Network::ROUGH));
}

#[test]
fn every_seed_of_a_cluster_ends_as_it_did() {
    hold("cluster", 100, |seed| cluster::run(seed, Network::ROUGH));
}
