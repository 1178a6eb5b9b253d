//! A Redis Cluster: keys of one request in different slots are judged side by side, and then charged if all agree. Keys share
//! tags, and wait for each other to be told together.

use super::{SECOND_US, loaded};
use crate::simulate::faults::{Fault, Network};
use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

const KEYS: u64 = 5;

fn setup(seed: u64, is_cluster: bool, limit: &str) -> Setup {
    Setup { is_cluster, ..Setup::new(seed, 2 + (seed % 3) as usize, limit) }
}

/// Two keys of a request, never the same.
fn two_keys(world: &mut World) -> [KeyHits; 2] {
    let first = world.random().below(KEYS);
    let second = (first + 1 + world.random().below(KEYS - 1)) % KEYS;
    [first, second].map(|key| KeyHits { key: key as usize, hits: 1 })
}

/// Requests one after the other, of one key or two.
fn one_by_one(seed: u64, is_cluster: bool) -> World {
    let mut setup = setup(seed, is_cluster, "{requests_per_unit: 10, window: 1h}");
    setup.slack_permille = if seed.is_multiple_of(2) { 0 } else { 100 };
    let mut world = World::new(setup);
    let processes = world.processes.len() as u64;
    for number in 0..100 {
        let process = world.random().below(processes) as usize;
        let asked = two_keys(&mut world);
        let count = 1 + world.random().below(2) as usize;
        world.request_of_all_at(SECOND_US + number * 20_000, process, &asked[..count]);
    }
    world.run_until(5 * SECOND_US);
    world
}

#[test]
fn a_cluster_admits_what_a_single_server_does() {
    for seed in 0..100 {
        let [single, cluster] = [false, true].map(|is_cluster| one_by_one(seed, is_cluster));
        // Only the moments differ: a request of two slots waits for two calls.
        let admitted = |world: &World| -> Vec<_> {
            world.oracle.admitted.iter().map(|it| (it.key, it.hits, it.process)).collect()
        };
        assert_eq!(admitted(&single), admitted(&cluster), "seed {seed}");
        assert_eq!(single.oracle.denied, cluster.oracle.denied, "seed {seed}");
        assert!(cluster.oracle.calls >= single.oracle.calls, "seed {seed}: keys in different slots take several calls");
    }
}

/// Many requests at once, and everything goes wrong with messages.
pub(super) fn run(seed: u64, network: Network) -> World {
    let mut setup = setup(seed, true, "{requests_per_unit: 60, window: 1h, on_outage: deny}");
    setup.network = network;
    let mut world = World::new(setup);
    let processes = world.processes.len() as u64;
    for _ in 0..400 {
        let at_us = 10_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let asked = two_keys(&mut world);
        let count = 1 + world.random().below(2) as usize;
        world.request_of_all_at(at_us, process, &asked[..count]);
    }
    let at_us = 100_000 + world.random().below(2 * SECOND_US);
    world.fault_at(at_us, Fault::Freeze { region: 0, for_us: 200_000 });
    world.fault_at(4 * SECOND_US, Fault::Calm);
    world.run_until(8 * SECOND_US);
    world.release_held();
    world.run_until(9 * SECOND_US);
    world
}

#[test]
fn a_cluster_loses_nothing_and_answers_everybody() {
    for seed in 0..100 {
        let world = run(seed, Network::ROUGH);
        let admitted: u64 = world.oracle.admitted.iter().map(|it| it.hits).sum();
        let (held, _) = world.origin_total();
        assert!(held >= admitted, "seed {seed}: the Cluster holds {held}, {admitted} were admitted");
        let pending: u64 = (0..world.processes.len()).map(|process| world.pending(process)).sum();
        assert_eq!(pending, 0, "seed {seed}");
        let is_idle = world.processes.iter().all(|process| process.waiting.is_empty());
        assert!(is_idle, "seed {seed}: somebody waits for ever");
    }
}

/// Requests of one hit, evenly spaced, each for the next of so many keys, at any process.
fn round(world: &mut World, keys: usize, per_second: u64, from_us: u64, to_us: u64) {
    let processes = world.processes.len() as u64;
    for (number, at_us) in (from_us..to_us).step_by((SECOND_US / per_second) as usize).enumerate() {
        let process = world.random().below(processes) as usize;
        world.request_at(at_us, process, KeyHits { key: number % keys, hits: 1 });
    }
}

/// Five for a hundred requests at most.
#[test]
fn a_thousand_keys_take_few_calls() {
    for (seed, algorithm) in [(1, "sliding_window"), (2, "fixed_window"), (3, "gcra")] {
        let limit = format!("{{requests_per_unit: 1000000000, window: 1h, algorithm: {algorithm}}}");
        let mut world = World::new(Setup { is_cluster: true, ..Setup::new(seed, 2, &limit) });
        round(&mut world, 1000, 10_000, SECOND_US, 12 * SECOND_US);
        // At first every process reads every key.
        world.run_until(2 * SECOND_US);
        let (calls, requests, told) = (world.oracle.calls, world.oracle.requests, world.oracle.told);
        world.run_until(12 * SECOND_US);
        let calls = world.oracle.calls - calls;
        let (requests, told) = (world.oracle.requests - requests, world.oracle.told - told);
        eprintln!("{algorithm}: {calls} calls that tell of {told} keys, {requests} requests");
        assert!(calls * 20 <= requests, "{algorithm}: {calls} calls for {requests} requests");
        assert_eq!((world.oracle.denied, world.oracle.asked), (0, 0), "{algorithm}");
        world.release_held();
        world.run_until(20 * SECOND_US);
        assert_eq!(world.origin_total().0, world.oracle.admitted.len() as u64 * u64::from(algorithm != "gcra"));
    }
}

#[test]
fn a_limit_is_kept_as_well_as_on_a_single_server() {
    for (processes, limit, per_second, worst_max) in
        [(9, 1000, 1000, 1010), (9, 100, 100, 1030), (100, 1000, 1000, 1020)]
    {
        let limited = format!("{{requests_per_unit: {limit}, window: 10s}}");
        let world = loaded(Setup { is_cluster: true, ..Setup::new(1, processes, &limited) }, per_second, 30);
        let worst = world.oracle.worst_permille(0, 10_000, limit);
        eprintln!("{processes} processes on {limit}: {worst} permille");
        assert!(worst <= worst_max, "{processes} processes on {limit}: {worst}");
    }
}

/// So many keys that all of them wait for their turn, each at three times its limit.
#[test]
fn many_limits_at_once_are_kept_within_the_slack() {
    const KEYS: usize = 300;
    const LIMIT: u64 = 100;
    for processes in [2, 9] {
        let limit = format!("{{requests_per_unit: {LIMIT}, window: 10s}}");
        let mut world = World::new(Setup { is_cluster: true, ..Setup::new(1, processes, &limit) });
        round(&mut world, KEYS, 9_000, SECOND_US, 15 * SECOND_US);
        world.run_until(17 * SECOND_US);
        let worst: Vec<u64> = (0..KEYS).map(|key| world.oracle.worst_permille(key, 10_000, LIMIT)).collect();
        let (most, mean) = (worst.iter().max().unwrap(), worst.iter().sum::<u64>() / KEYS as u64);
        eprintln!("{processes} processes: {most} permille at most, {mean} on average; {} calls", world.oracle.calls);
        let credit = LIMIT / 10 / processes as u64;
        assert!(*most <= (LIMIT + processes as u64 * credit) * 1000 / LIMIT, "{processes} processes: {most}");
    }
}

/// All that a Cluster has lost is told again, many keys in a call.
#[test]
fn a_cluster_is_told_again_what_it_has_lost() {
    const KEYS: usize = 20_000;
    let setup = Setup { keys_max: 100_000, ..setup(1, true, "{requests_per_unit: 1000, window: 1h}") };
    let mut world = World::new(setup);
    round(&mut world, KEYS, KEYS as u64, SECOND_US, 2 * SECOND_US);
    world.fault_at(6 * SECOND_US, Fault::LoseData { region: 0 });
    world.run_until(6 * SECOND_US);
    let calls = world.oracle.calls;
    while world.keys_to_heal() == 0 {
        world.run_until(world.now_us() + 10_000);
        assert!(world.now_us() < 8 * SECOND_US, "a heartbeat notices it");
    }
    while world.keys_to_heal() > 0 {
        world.run_until(world.now_us() + 10_000);
        assert!(world.now_us() < 20 * SECOND_US, "it comes to an end");
    }
    world.run_until(world.now_us() + SECOND_US);
    assert_eq!(world.origin_total(), (KEYS as u64, 0));
    let calls = world.oracle.calls - calls;
    assert!(calls <= KEYS as u64 / 20, "{calls} calls");
}
