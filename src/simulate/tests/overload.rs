//! More requests than may wait: everybody is answered, and what is shed follows its policy.

use super::SECOND_US;
use crate::simulate::faults::{Fault, Network};
use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

const PROCESSES: u64 = 2;
const KEYS: u64 = 3;

/// Bursts on limits that always ask, over a store that freezes, with room for few who wait.
pub(super) fn run(seed: u64, limit: &str, network: Network) -> World {
    let mut setup = Setup::new(seed, PROCESSES as usize, limit);
    (setup.slack_permille, setup.in_flight_max, setup.network) = (0, 1 + (seed % 20) as usize, network);
    let mut world = World::new(setup);
    for _ in 0..20 {
        let at_us = 10_000 + world.random().below(3 * SECOND_US);
        for _ in 0..30 {
            let process = world.random().below(PROCESSES) as usize;
            let key = world.random().below(KEYS) as usize;
            let late_us = world.random().below(300);
            world.request_at(at_us + late_us, process, KeyHits { key, hits: 1 });
        }
    }
    let at_us = 100_000 + world.random().below(2 * SECOND_US);
    world.fault_at(at_us, Fault::Freeze { region: 0, for_us: 5_000 });
    world.run_until(5 * SECOND_US);
    world
}

fn check_answers(world: &World, seed: u64) {
    let answered = world.oracle.admitted.len() as u64 + world.oracle.denied;
    assert_eq!(answered, world.oracle.requests, "seed {seed}: everybody is answered");
}

#[test]
fn what_is_shed_follows_its_policy() {
    let (mut denied, mut allowed, mut local) = (0, 0, 0);
    for seed in 0..100 {
        let limit = |on_outage: &str| format!("{{requests_per_unit: 500, window: 1h, on_outage: {on_outage}}}");
        let world = run(seed, &limit("deny"), Network::QUIET);
        check_answers(&world, seed);
        assert_eq!(world.oracle.shed_admitted, 0, "seed {seed}: denied, although there is room");
        denied += world.oracle.shed;
        let world = run(seed, &limit("allow"), Network::QUIET);
        check_answers(&world, seed);
        assert_eq!(world.oracle.shed_admitted, world.oracle.shed, "seed {seed}: admitted, although nobody agreed");
        allowed += world.oracle.shed;
        let world = run(seed, &limit("local"), Network::QUIET);
        check_answers(&world, seed);
        assert_eq!(world.oracle.shed_admitted, world.oracle.shed, "seed {seed}: memory has room for all");
        local += world.oracle.shed;
    }
    assert!(denied > 1000 && allowed > 1000 && local > 1000, "{denied}, {allowed}, {local}");
}

#[test]
fn a_strict_limit_is_not_exceeded_by_what_is_shed() {
    let limit = "{requests_per_unit: 40, window: 1h, class: security}";
    for seed in 0..100 {
        let world = run(seed, limit, Network::ROUGH);
        check_answers(&world, seed);
        for key in 0..KEYS as usize {
            assert!(world.oracle.total(key) <= 40, "seed {seed}: {}", world.oracle.total(key));
        }
    }
}

#[test]
fn the_more_a_class_matters_the_more_of_it_may_wait() {
    for (class, waits) in [("comfort", 90), ("cost", 95), ("security", 100)] {
        let limit = format!("{{requests_per_unit: 10000, window: 1h, class: {class}}}");
        let mut world = World::new(Setup { slack_permille: 0, in_flight_max: 100, ..Setup::new(1, 1, &limit) });
        for key in 0..150 {
            world.request_at(SECOND_US, 0, KeyHits { key, hits: 1 });
        }
        world.run_until(3 * SECOND_US);
        assert_eq!((world.oracle.asked, world.oracle.shed), (waits, 150 - waits), "{class}");
        check_answers(&world, 1);
    }
}
