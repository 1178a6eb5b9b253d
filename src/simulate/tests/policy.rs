//! What a rule's policy promises, whatever happens.

use super::SECOND_US;
use crate::simulate::faults::{Fault, Network};
use crate::simulate::process::Asked;
use crate::simulate::world::{Setup, World};

const KEYS: usize = 2;
const LIMIT: u64 = 40;

/// Ten times as many requests as fit, over processes that die and an origin that freezes.
fn run(seed: u64, limit: &str, network: Network) -> World {
    let mut setup = Setup::new(seed, 2 + (seed % 8) as usize, limit);
    setup.network = network;
    let processes = setup.processes as u64;
    let mut world = World::new(setup);
    for _ in 0..10 * LIMIT * KEYS as u64 {
        let at_us = 10_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let key = world.random().below(KEYS as u64) as usize;
        world.request_at(at_us, process, Asked { key, hits: 1 });
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
            world.request_at(at_us, process, Asked { key: 0, hits: 1 });
        }
        world.run_until(5 * SECOND_US);
        assert_eq!(admitted(&world, 0), LIMIT, "seed {seed}");
    }
}
