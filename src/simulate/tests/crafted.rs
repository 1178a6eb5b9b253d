//! Schedules made to exploit what processes do not know of each other: the slack is the most that they can gain.

use super::SECOND_US;
use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

fn setup(seed: u64, processes: usize) -> Setup {
    Setup::new(seed, processes, "{requests_per_unit: 1000, window: 10s}")
}

fn check(world: &World, what: &str) {
    let worst = world.oracle.worst_permille(0, 10_000, 1000);
    let (asked, unanswered) = (world.oracle.asked, world.oracle.unanswered);
    eprintln!("{what}: worst {worst} permille, {asked} asked, {unanswered} without an answer");
    assert!(worst <= 1100, "{what}: {worst}");
}

/// Every process looks once, one takes nearly everything at once, then all others spend what they think is left.
#[test]
fn stale_views_then_one_takes_all_then_everyone_at_once() {
    for (seed, processes) in [(1, 9), (2, 9), (3, 100)] {
        let mut world = World::new(setup(seed, processes));
        for process in 0..processes {
            world.request_at(10_000 + process as u64 * 100, process, KeyHits { key: 0, hits: 1 });
        }
        for n in 0..900 {
            world.request_at(60_000 + n * 10, 0, KeyHits { key: 0, hits: 1 });
        }
        for n in 0..3000u64 {
            world.request_at(75_000 + n, (n % processes as u64) as usize, KeyHits { key: 0, hits: 1 });
        }
        world.run_until(9 * SECOND_US);
        check(&world, &format!("stale views, {processes} processes"));
    }
}

/// Processes take turns, each as long as it likes.
#[test]
fn turns() {
    for processes in [9usize, 100] {
        for turn in [1u64, 5, 20, 50] {
            let mut world = World::new(setup(turn, processes));
            for n in 0..3000u64 {
                let process = (n / turn) % processes as u64;
                world.request_at(20_000 + n * 20, process as usize, KeyHits { key: 0, hits: 1 });
            }
            world.run_until(9 * SECOND_US);
            check(&world, &format!("turns of {turn}, {processes} processes"));
        }
    }
}

/// All processes ask at the same moment, for a key that none has seen.
#[test]
fn all_at_once_on_a_cold_key() {
    for processes in [9usize, 100] {
        let mut world = World::new(setup(9, processes));
        for n in 0..5000u64 {
            world.request_at(20_000 + n / 100, (n % processes as u64) as usize, KeyHits { key: 0, hits: 1 });
        }
        world.run_until(9 * SECOND_US);
        check(&world, &format!("all at once, {processes} processes"));
    }
}
