//! The accuracy rows and invariants of the region, by simulation.

mod accuracy;
mod chaos;
mod clocks;
mod cluster;
mod crafted;
mod digests;
mod eviction;
mod exact_count;
mod global;
mod heal;
mod kinds;
mod nodes;
mod ordinary;
mod overload;
mod owner;
mod policy;
mod schedule;
mod search;
mod table;
mod voice;

use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

pub(super) const SECOND_US: u64 = 1_000_000;

/// Plans requests of one hit on one key, evenly spaced, each to any process.
pub(super) fn load(world: &mut World, per_second: u64, from_us: u64, to_us: u64) {
    let processes = world.processes.len() as u64;
    let mut at_us = from_us;
    let step_us = (SECOND_US / per_second).max(1);
    while at_us < to_us {
        let process = world.random().below(processes) as usize;
        let jitter_us = world.random().below(step_us);
        world.request_at(at_us + jitter_us, process, KeyHits { key: 0, hits: 1 });
        at_us += step_us;
    }
}

/// A world with load on one key for some seconds, and then time to settle.
pub(super) fn loaded(setup: Setup, per_second: u64, seconds: u64) -> World {
    let mut world = World::new(setup);
    // The heartbeats come first.
    load(&mut world, per_second, SECOND_US / 100, seconds * SECOND_US);
    world.run_until((seconds + 2) * SECOND_US);
    world
}
