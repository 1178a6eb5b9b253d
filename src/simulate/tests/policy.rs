//! A rule's policy keeps its promise, whatever happens.

use super::SECOND_US;
use crate::simulate::faults::{Fault, Network};
use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

const KEYS: usize = 2;
const LIMIT: u64 = 40;

/// Ten times as many requests as fit, over processes that die and an origin that freezes.
pub(super) fn run(seed: u64, limit: &str, network: Network) -> World {
    let mut setup = Setup::new(seed, 2 + (seed % 8) as usize, limit);
    setup.network = network;
    let processes = setup.processes as u64;
    let mut world = World::new(setup);
    for _ in 0..10 * LIMIT * KEYS as u64 {
        let at_us = 10_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let key = world.random().below(KEYS as u64) as usize;
        world.request_at(at_us, process, KeyHits { key, hits: 1 });
    }
    for _ in 0..3 {
        let at_us = 100_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let fault = match world.random().below(2) {
            0 => Fault::Freeze { region: 0, for_us: 100_000 + world.random().below(SECOND_US) },
            _ => Fault::Crash { process },
        };
        world.fault_at(at_us, fault);
    }
    world.run_until(5 * SECOND_US);
    world
}

fn admitted(world: &World, key: usize) -> u64 {
    world.oracle.admitted.iter().filter(|it| it.key == key).map(|it| it.hits).sum()
}

#[test]
fn a_strict_limit_is_never_exceeded() {
    let limit = format!("{{requests_per_unit: {LIMIT}, window: 1h, class: security}}");
    for seed in 0..300 {
        let world = run(seed, &limit, Network::ROUGH);
        for key in 0..KEYS {
            let admitted = admitted(&world, key);
            assert!(admitted <= LIMIT, "seed {seed}: {admitted} of {LIMIT}");
        }
    }
}

#[test]
fn a_strict_limit_is_used_up() {
    let limit = format!("{{requests_per_unit: {LIMIT}, window: 1h, class: security}}");
    for seed in 0..50 {
        let mut setup = Setup::new(seed, 9, &limit);
        setup.network = Network::QUIET;
        let mut world = World::new(setup);
        for _ in 0..10 * LIMIT {
            let at_us = 10_000 + world.random().below(3 * SECOND_US);
            let process = world.random().below(9) as usize;
            world.request_at(at_us, process, KeyHits { key: 0, hits: 1 });
        }
        world.run_until(5 * SECOND_US);
        assert_eq!(admitted(&world, 0), LIMIT, "seed {seed}");
    }
}

/// Found by review: until its second heartbeat a process took itself for the only one, and all of the slack for its own.
#[test]
fn processes_that_have_just_started_do_not_exceed_a_small_limit() {
    for seed in 0..50 {
        let mut world = World::new(Setup::new(seed, 3, "{requests_per_unit: 10, window: 1h}"));
        // Each process hears at once of those that came before it, and of the others a second later.
        let start_us = SECOND_US + 100_000;
        world.fault_at(start_us, Fault::LoseData { region: 0 });
        for process in 0..3 {
            world.fault_at(start_us, Fault::Crash { process });
        }
        for _ in 0..60 {
            let at_us = start_us + 1_000 + world.random().below(SECOND_US / 2);
            let process = world.random().below(3) as usize;
            world.request_at(at_us, process, KeyHits { key: 0, hits: 1 });
        }
        world.run_until(5 * SECOND_US);
        assert_eq!(admitted(&world, 0), 10, "seed {seed}");
    }
}

/// Found by review: a process that started in an outage took all of the limit for its share.
#[test]
fn a_process_that_starts_in_an_outage_takes_an_eighth_for_its_share() {
    let mut world = World::new(Setup::new(1, 2, "{requests_per_unit: 80, window: 1h, on_outage: share}"));
    world.fault_at(SECOND_US, Fault::Freeze { region: 0, for_us: 60 * SECOND_US });
    world.fault_at(2 * SECOND_US, Fault::Crash { process: 0 });
    for n in 0..50 {
        world.request_at(5 * SECOND_US + n * 1_000, 0, KeyHits { key: 0, hits: 1 });
    }
    world.run_until(10 * SECOND_US);
    assert_eq!(admitted(&world, 0), 10);
}
