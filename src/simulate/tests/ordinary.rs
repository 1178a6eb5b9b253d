//! Ordinary traffic: many users, most of them far below their limit, a few requests a minute, spread over all processes.
//!
//! Each user is a key of its own. What a user sends of the limit is lognormal, with a median of 3 %, 60 % at the 99th
//! percentile, and one user in two hundred sends two to ten times as much as it may. Users below half of their limit, up
//! to it and above it are worlds apart, so that each class has as many as its figures need.

use std::f64::consts::TAU;

use super::SECOND_US;
use super::exact_count::{KeyOutcome, outcomes};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;
use crate::simulate::process::KeyHits;
use crate::simulate::random::Random;
use crate::simulate::world::{Setup, World};

const WINDOW_MS: u64 = 60_000;
const WINDOW_US: u64 = WINDOW_MS * 1000;
const WINDOWS: u64 = 3;
const MEDIAN: f64 = 0.03;
const SIGMA: f64 = 1.288;

/// What users send of what they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    BelowHalf,
    UpToTheLimit,
    Above,
}

impl Class {
    const ALL: [Class; 3] = [Class::BelowHalf, Class::UpToTheLimit, Class::Above];

    fn has(self, load: f64) -> bool {
        match self {
            Class::BelowHalf => load < 0.5,
            Class::UpToTheLimit => (0.5..=1.0).contains(&load),
            Class::Above => load > 1.0,
        }
    }

    /// What part of the users is in the class, in thousandths.
    fn permille(self) -> f64 {
        match self {
            Class::BelowHalf => 980.8,
            Class::UpToTheLimit => 11.1,
            Class::Above => 8.1,
        }
    }

    /// As many users as show what becomes of them.
    fn users(self, limit: u32) -> usize {
        match (self, limit) {
            (Class::BelowHalf, 10_000..) => 30,
            (Class::UpToTheLimit, 10_000..) => 4,
            (Class::Above, 10_000..) => 2,
            (Class::BelowHalf, ..=100) => 400,
            (Class::BelowHalf, _) => 150,
            (Class::UpToTheLimit, ..=100) => 60,
            (Class::UpToTheLimit, _) => 15,
            (Class::Above, ..=100) => 30,
            (Class::Above, _) => 8,
        }
    }
}

/// What became of a class of users.
#[derive(Clone, Copy, Debug)]
struct Shares {
    requests: u64,
    /// What a user of the class sends in a window.
    per_window: f64,
    /// Requests that waited for the origin, of a thousand.
    waited_permille: f64,
    /// Calls to the origin, for each request.
    calls: f64,
    /// Keys that replays were about, for each request.
    told: f64,
    /// The most that counted of any user, against the limit.
    worst: f64,
    wrongly_denied: u64,
}

fn uniform(random: &mut Random) -> f64 {
    (random.number() >> 11) as f64 / (1u64 << 53) as f64
}

fn exponential(random: &mut Random) -> f64 {
    -(1.0 - uniform(random)).ln()
}

/// What a user sends of its limit in a window.
fn load(random: &mut Random) -> f64 {
    if random.permille(5) {
        return 2.0 + 8.0 * uniform(random);
    }
    let radius = (2.0 * exponential(random)).sqrt();
    let normal = radius * (TAU * uniform(random)).cos();
    (MEDIAN * (SIGMA * normal).exp()).min(3.0)
}

fn load_of(class: Class, random: &mut Random) -> f64 {
    loop {
        let load = load(random);
        if class.has(load) {
            return load;
        }
    }
}

/// Users of a class come in the first window, and send requests at any time to any process.
fn run(class: Class, processes: usize, limit: u32) -> Shares {
    let seed = 7 + processes as u64 * 10_000 + u64::from(limit) * 10 + class as u64;
    let mut world = World::new(Setup::new(seed, processes, &format!("{{requests_per_unit: {limit}, window: 60s}}")));
    let mut random = Random::new(seed);
    for user in 0..class.users(limit) {
        let per_us = load_of(class, &mut random) * f64::from(limit) / WINDOW_US as f64;
        let mut at_us = 10_000 + random.below(WINDOW_US);
        loop {
            at_us += (exponential(&mut random) / per_us) as u64;
            if at_us >= WINDOWS * WINDOW_US {
                break;
            }
            let process = random.below(processes as u64) as usize;
            world.request_at(at_us, process, KeyHits { key: user, hits: 1 });
        }
    }
    world.run_until(WINDOWS * WINDOW_US + SECOND_US);
    let terms = Terms { limit, window_ms: WINDOW_MS, algorithm: Algorithm::SlidingWindow, burst: limit };
    let outcomes = outcomes(&world.oracle, terms);
    let sum = |of: fn(&KeyOutcome) -> u64| outcomes.values().map(of).sum::<u64>();
    let requests = sum(|outcome| outcome.requests);
    Shares {
        requests,
        per_window: requests as f64 / class.users(limit) as f64 / (WINDOWS as f64 - 0.5),
        calls: world.oracle.calls as f64 / requests as f64,
        waited_permille: sum(|outcome| outcome.waited) as f64 * 1000.0 / requests as f64,
        told: world.oracle.told as f64 / requests as f64,
        worst: outcomes.values().map(|outcome| outcome.worst).max().unwrap_or(0) as f64 / f64::from(limit),
        wrongly_denied: sum(|outcome| outcome.wrongly_denied),
    }
}

/// All classes: nobody below half of the limit waits if memory may decide at all, nobody is denied who should not be, and
/// no more than the slack is admitted on top of the limit.
fn hold(processes: usize, limit: u32) {
    let credit = limit as usize / 10 / processes;
    for class in Class::ALL {
        let shares = run(class, processes, limit);
        let Shares { requests, waited_permille, told, worst, wrongly_denied, .. } = shares;
        eprintln!(
            "{processes} on {limit}, {class:?}: {requests} requests, waited {:.2} %, told {told:.3}, worst {worst:.3}",
            waited_permille / 10.0
        );
        let bound = 1.0 + (credit * processes) as f64 / f64::from(limit);
        assert!(worst <= bound + f64::EPSILON, "{processes} on {limit}, {class:?}: {shares:?}");
        assert_eq!(wrongly_denied, 0, "{processes} on {limit}, {class:?}: {shares:?}");
        if class == Class::BelowHalf && credit > 0 {
            assert!(waited_permille <= 1.0, "{processes} on {limit}: {shares:?}");
        }
    }
}

#[test]
fn users_of_three_processes_hardly_wait() {
    hold(3, 100);
    hold(3, 1000);
}

#[test]
fn users_of_nine_processes_hardly_wait() {
    hold(9, 100);
    hold(9, 1000);
}

#[test]
fn users_of_twenty_processes_hardly_wait() {
    hold(20, 1000);
}

#[test]
fn users_of_a_hundred_processes_hardly_wait() {
    hold(100, 1000);
}

/// Where no process may admit a hit on its own, the origin decides, exactly.
#[test]
fn small_limits_of_large_fleets_are_exact() {
    hold(3, 10);
    hold(9, 10);
    hold(20, 100);
}

/// What ordinary traffic costs the origin of a large fleet, for each request: the figures of docs/scale.md.
#[test]
#[ignore = "takes minutes; it prints figures"]
fn what_large_fleets_cost_the_origin() {
    for (processes, limit) in [(10, 1000), (100, 1000), (10, 10_000), (100, 10_000), (1000, 10_000)] {
        let shares = Class::ALL.map(|class| (class.permille(), run(class, processes, limit)));
        let of_all = |of: fn(&Shares) -> f64| {
            let sum = |value: &dyn Fn(&Shares) -> f64| {
                shares.iter().map(|(permille, shares)| permille * shares.per_window * value(shares)).sum::<f64>()
            };
            sum(&of) / sum(&|_| 1.0)
        };
        let [waited, told, calls] = [
            of_all(|shares| shares.waited_permille / 10.0),
            of_all(|shares| shares.told),
            of_all(|shares| shares.calls),
        ];
        let below = &shares[0].1;
        eprintln!(
            "{processes} on {limit}: told {told:.3}, waited {waited:.2} %, calls {calls:.3}; below half told {:.3}, waited {:.2} %",
            below.told,
            below.waited_permille / 10.0
        );
        assert!(shares.iter().all(|(_, shares)| shares.wrongly_denied == 0), "{processes} on {limit}: {shares:?}");
    }
}
