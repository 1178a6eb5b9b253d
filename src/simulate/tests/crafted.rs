//! Schedules made to exploit what processes do not know of each other: the credits are the most that they can gain.

use super::SECOND_US;
use super::schedule::{Arrival, Fleet};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;
use crate::simulate::process::KeyHits;
use crate::simulate::random::Random;
use crate::simulate::world::{Setup, World};

const WINDOW_MS: u64 = 10_000;

/// A schedule while it is made. Moments are milliseconds from the start, which is that of a window.
struct Craft {
    random: Random,
    fleet: Fleet,
    arrivals: Vec<Arrival>,
}

impl Craft {
    fn limit(&self) -> u64 {
        self.fleet.terms.limit.into()
    }

    /// What a process may hold, or one hit.
    fn credit(&self) -> u64 {
        self.fleet.own_credit().max(1)
    }

    /// A part of the limit times three, for each process.
    fn triple(&self) -> u64 {
        3 * self.limit() / self.fleet.processes as u64
    }

    fn one(&mut self, at_us: u64, process: usize, hits: u64) {
        self.arrivals.push(Arrival { at_us, process, hits: hits as i64 });
    }

    /// So many hits of process 0, evenly from a moment on.
    fn one_sends(&mut self, at_ms: u64, for_ms: u64, hits: u64) {
        for hit in 0..hits {
            self.one(at_ms * 1000 + hit * for_ms * 1000 / hits, 0, 1);
        }
    }

    /// So many hits of each process from the given one on, anywhere in a time.
    fn each_sends(&mut self, at_us: u64, first: usize, each: u64, for_us: u64) {
        for process in first..self.fleet.processes {
            for _ in 0..each {
                let late_us = self.random.below(for_us);
                self.one(at_us + late_us, process, 1);
            }
        }
    }
}

type Make = fn(&mut Craft);

const SCHEDULES: [(&str, Make); 10] = [
    ("all cold, all at once", |craft| craft.each_sends(5_000_000, 0, craft.triple().max(1), 500)),
    ("all cold, a credit each, 20 ms later one takes the limit", |craft| {
        craft.each_sends(5_000_000, 1, craft.credit(), 10_000);
        craft.one_sends(5020, 2, 2 * craft.limit());
    }),
    ("one takes the limit at once, the others come cold", |craft| {
        craft.one_sends(5000, 2, 2 * craft.limit());
        craft.each_sends(5_008_000, 1, (craft.limit() / 5).max(2), 3000);
    }),
    ("all hold a credit, one takes the limit in one request", |craft| {
        craft.each_sends(3_000_000, 1, craft.credit(), SECOND_US);
        craft.one(5_000_000, 0, craft.limit());
        craft.each_sends(5_000_000, 1, (craft.limit() / 5).max(2), 3000);
    }),
    ("half filled by one, then all others", |craft| {
        craft.one_sends(1000, 3000, craft.limit() / 2 - 1);
        craft.each_sends(5_000_000, 1, craft.triple().max(2), 2000);
    }),
    ("filled but for one by one, then all others", |craft| {
        craft.one_sends(1000, 3000, craft.limit() - 1);
        craft.each_sends(4_001_000, 1, craft.triple().max(2), 2000);
    }),
    ("half filled by all in the window before, then all", |craft| {
        let half = (craft.limit() / 2 / craft.fleet.processes as u64).max(1);
        craft.each_sends(7_000_000, 0, half, 2_990_000);
        craft.each_sends(10_000_500, 0, craft.triple().max(2), 2000);
    }),
    ("a window begins while all hold a credit, then one takes the limit", |craft| {
        craft.each_sends(9_800_000, 1, craft.credit(), 190_000);
        craft.one_sends(10_001, 2, 2 * craft.limit());
        craft.each_sends(10_001_000, 1, (craft.limit() / 5).max(2), 5000);
    }),
    ("a slow drip by each in turn", |craft| {
        let (each, processes) = (3 * craft.limit(), craft.fleet.processes);
        for window in 0..5 {
            for hit in 0..each {
                let late_us = (2 * hit + 1) * WINDOW_MS * 1000 / (2 * each);
                craft.one(window * WINDOW_MS * 1000 + late_us, hit as usize % processes, 1);
            }
        }
    }),
    ("all views are old, one takes the limit, then all", |craft| {
        craft.each_sends(500_000, 0, 1, SECOND_US);
        craft.one_sends(3000, 1200, craft.limit());
        craft.each_sends(4_201_000, 0, craft.triple().max(2), 2000);
    }),
];

/// All schedules on fleets of some size: the worst that counted, against the limit and every credit.
fn hold(processes: usize) {
    for limit in [10, 100, 1000] {
        let terms = Terms { limit, window_ms: WINDOW_MS, algorithm: Algorithm::SlidingWindow, burst: limit };
        for (number, (name, make)) in SCHEDULES.iter().enumerate() {
            let mut worst = 0;
            for round_trip_ms in [1, 5] {
                let fleet = Fleet { processes, terms, slack_permille: 100, round_trip_ms };
                let seed = number as u64 * 2 + round_trip_ms;
                let mut craft = Craft { random: Random::new(seed), fleet, arrivals: Vec::new() };
                make(&mut craft);
                let played = fleet.play(seed, &mut craft.arrivals, &[]);
                let what = format!("{processes} on {limit}, {round_trip_ms} ms, {name}");
                assert!(played.outcome.worst <= fleet.bound(), "{what}: {played:?}");
                assert_eq!(played.outcome.wrongly_denied, 0, "{what}: {played:?}");
                assert_eq!(played.unanswered, 0, "{what}");
                worst = worst.max(played.outcome.worst);
            }
            eprintln!("{processes} on {limit}: worst {:.3}, {name}", worst as f64 / f64::from(limit));
        }
    }
}

#[test]
fn three_processes_hold_crafted_schedules() {
    hold(3);
}

#[test]
fn nine_processes_hold_crafted_schedules() {
    hold(9);
}

#[test]
fn twenty_processes_hold_crafted_schedules() {
    hold(20);
}

#[test]
fn a_hundred_processes_hold_crafted_schedules() {
    hold(100);
}

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
