//! One owner decides the strict limits of several regions.

use super::SECOND_US;
use crate::simulate::faults::{Fault, Network};
use crate::simulate::process::{KeyHits, OTHER_KEYS};
use crate::simulate::world::{Setup, World};

const KEYS: usize = 2;
const LIMIT: u64 = 40;
const STRICT: &str = "{requests_per_unit: 40, window: 1h, class: security}";

fn setup(seed: u64, regions: usize, processes: usize, limit: &str) -> Setup {
    let mut setup = Setup { regions, ..Setup::new(seed, processes, limit) };
    (setup.has_owner, setup.strict_deadline_us) = (true, 80_000);
    setup
}

/// Ten times as many requests as fit, in three regions. Every other one asks for a key of the region besides. Processes die,
/// and the stores freeze.
pub(super) fn run(seed: u64, network: Network) -> World {
    let mut setup = setup(seed, 3, 1 + (seed % 3) as usize, STRICT);
    setup.network = network;
    setup.other_limit = Some("{requests_per_unit: 60, window: 1h, scope: regional, on_outage: deny}".into());
    let mut world = World::new(setup);
    let processes = world.processes.len() as u64;
    for number in 0..10 * LIMIT * KEYS as u64 {
        let at_us = 10_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let key = world.random().below(KEYS as u64) as usize;
        let asked = [KeyHits { key, hits: 1 }, KeyHits { key: OTHER_KEYS + key, hits: 1 }];
        world.request_of_all_at(at_us, process, &asked[..1 + (number % 2) as usize]);
    }
    for _ in 0..4 {
        let at_us = 100_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let for_us = 100_000 + world.random().below(SECOND_US);
        let fault = match world.random().below(4) {
            0 | 1 => Fault::FreezeOwner { for_us },
            2 => Fault::Freeze { region: (seed % 3) as usize, for_us },
            _ => Fault::Crash { process },
        };
        world.fault_at(at_us, fault);
    }
    world.run_until(6 * SECOND_US);
    world
}

#[test]
fn a_strict_limit_of_three_regions_is_never_exceeded() {
    let mut most = 0;
    for seed in 0..200 {
        let world = run(seed, Network::ROUGH);
        for key in 0..KEYS {
            let admitted = world.oracle.total(key);
            assert!(admitted <= LIMIT, "seed {seed}: {admitted} of {LIMIT}");
            most = most.max(admitted);
        }
        let is_idle = world.processes.iter().all(|process| process.waiting.is_empty());
        assert!(is_idle, "seed {seed}: somebody waits for ever");
    }
    assert_eq!(most, LIMIT, "some seeds should use it up");
}

#[test]
fn a_strict_limit_of_three_regions_is_used_up() {
    for seed in 0..50 {
        let mut world = World::new(setup(seed, 3, 3, STRICT));
        for _ in 0..10 * LIMIT {
            let at_us = 10_000 + world.random().below(3 * SECOND_US);
            let process = world.random().below(9) as usize;
            world.request_at(at_us, process, KeyHits { key: 0, hits: 1 });
        }
        world.run_until(5 * SECOND_US);
        assert_eq!(world.oracle.total(0), LIMIT, "seed {seed}");
        assert_eq!(world.oracle.total(0) + world.oracle.denied, world.oracle.requests, "everybody is answered");
    }
}

/// The origin judges first, and the owner is asked about what fits there.
#[test]
fn a_request_of_both_stores_passes_only_if_both_agree() {
    for (regional, strict) in [(10, 30), (30, 10), (20, 20)] {
        let limit = format!("{{requests_per_unit: {strict}, window: 1h, class: security}}");
        let mut setup = setup(strict, 1, 3, &limit);
        setup.slack_permille = 0;
        setup.other_limit = Some(format!("{{requests_per_unit: {regional}, window: 1h, scope: regional}}"));
        let mut world = World::new(setup);
        for number in 0..60 {
            let asked = [KeyHits { key: 0, hits: 1 }, KeyHits { key: OTHER_KEYS, hits: 1 }];
            world.request_of_all_at(SECOND_US + number * 20_000, (number % 3) as usize, &asked);
        }
        world.run_until(5 * SECOND_US);
        let admitted = [0, OTHER_KEYS].map(|key| world.oracle.total(key));
        assert_eq!(admitted, [regional.min(strict); 2], "{regional} by the region, {strict} strictly");
    }
}

#[test]
fn an_owner_that_does_not_answer_leaves_other_limits_alone() {
    let mut setup = setup(7, 2, 2, STRICT);
    setup.other_limit = Some("{requests_per_unit: 1000, window: 1h, scope: regional}".into());
    let mut world = World::new(setup);
    world.fault_at(SECOND_US, Fault::FreezeOwner { for_us: 60 * SECOND_US });
    for number in 0..100 {
        let (at_us, process) = (2 * SECOND_US + number * 10_000, (number % 4) as usize);
        world.request_at(at_us, process, KeyHits { key: 0, hits: 1 });
        world.request_at(at_us, process, KeyHits { key: OTHER_KEYS, hits: 1 });
    }
    world.run_until(5 * SECOND_US);
    assert_eq!((world.oracle.total(0), world.oracle.total(OTHER_KEYS)), (0, 100));
}
