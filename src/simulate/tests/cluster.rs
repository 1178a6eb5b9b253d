//! A Redis Cluster: keys of one request in different slots are judged side by side, and then charged if all agree.

use super::SECOND_US;
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
