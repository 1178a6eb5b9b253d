//! How many are admitted, how many ask: the rows of the accuracy table.

use super::{SECOND_US, load, loaded};
use crate::engine::{Engine, Modes};
use crate::request::{Bounds, Descriptor, DescriptorEntry, Hits, Request};
use crate::rules::{Options, RuleText, Ruleset};
use crate::simulate::process::KeyHits;
use crate::simulate::world::{START_MS, Setup, World};

const WINDOW_MS: u64 = 10_000;

fn setup(seed: u64, processes: usize, limit: u32) -> Setup {
    Setup::new(seed, processes, &format!("{{requests_per_unit: {limit}, window: 10s}}"))
}

/// How many requests of the same load one exact limiter admits.
fn exact(limit: u32, per_second: u64, seconds: u64) -> u64 {
    let yaml =
        format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{requests_per_unit: {limit}, window: 10s}}}}]}}");
    let rules = Ruleset::load(&[RuleText { name: "t".into(), text: yaml }], &Options::default()).ruleset.unwrap();
    let engine = Engine::new(10);
    let entries = || [DescriptorEntry { key: "k", value: "0" }].into_iter().collect();
    let mut admitted = 0;
    let step_us = SECOND_US / per_second;
    for n in 0..(seconds * SECOND_US - SECOND_US / 100) / step_us {
        let descriptor = Descriptor { entries: entries(), hits: Hits::OfRequest(1), limit: None };
        let request = Request::new("d", [descriptor].into_iter().collect(), &Bounds::default()).unwrap();
        let at_ms = START_MS + (SECOND_US / 100 + n * step_us) / 1000;
        admitted += u64::from(!engine.decide(&rules, &request, Modes::default(), at_ms).is_over);
    }
    admitted
}

#[test]
fn nine_processes_hold_a_limit_of_a_thousand_under_ten_times_the_load() {
    for seed in 0..5 {
        let world = loaded(setup(seed, 9, 1000), 1000, 30);
        let worst = world.oracle.worst_permille(0, WINDOW_MS, 1000);
        let admitted = world.oracle.total(0);
        let exact = exact(1000, 1000, 30);
        eprintln!(
            "seed {seed}: worst {worst} permille, {admitted} of {exact}, asked {} permille, {} calls",
            world.asked_permille(),
            world.oracle.calls
        );
        assert!(worst <= 1010, "seed {seed}: {worst}");
        assert!(admitted * 100 >= exact * 99, "seed {seed}: {admitted} of {exact}");
        assert!(world.asked_permille() <= 200, "seed {seed}: {}", world.asked_permille());
    }
}

#[test]
fn nine_processes_hold_small_limits() {
    for seed in 0..5 {
        let world = loaded(setup(seed, 9, 100), 100, 30);
        let worst = world.oracle.worst_permille(0, WINDOW_MS, 100);
        assert!(worst <= 1030, "seed {seed}: {worst}");
        let world = loaded(setup(seed, 9, 10), 10, 30);
        for (window, admitted) in world.oracle.by_window(0, WINDOW_MS) {
            assert!(admitted <= 10, "seed {seed}: {admitted} in {window}");
        }
        assert_eq!(world.oracle.by_window(0, WINDOW_MS).values().next(), Some(&10), "seed {seed}");
    }
}

#[test]
fn a_burst_over_five_processes_stays_within_two_percent() {
    for seed in 0..5 {
        let world = loaded(setup(seed, 5, 1000), 10_000, 3);
        let worst = world.oracle.worst_permille(0, WINDOW_MS, 1000);
        eprintln!("seed {seed}: worst {worst}, asked {} of {}", world.oracle.asked, world.oracle.requests);
        assert!(worst <= 1020, "seed {seed}: {worst}");
    }
}

#[test]
fn a_hundred_processes_stay_within_two_percent() {
    for seed in 0..3 {
        let world = loaded(setup(seed, 100, 1000), 1000, 20);
        let worst = world.oracle.worst_permille(0, WINDOW_MS, 1000);
        eprintln!("seed {seed}: worst {worst}, asked {} permille", world.asked_permille());
        assert!(worst <= 1020, "seed {seed}: {worst}");
    }
}

#[test]
fn under_the_limit_nobody_is_denied_and_hardly_anybody_asks() {
    for seed in 0..5 {
        for (processes, limit, per_second, asked_max) in [(9, 1000, 90, 10), (9, 100, 5, 100), (100, 1000, 50, 100)] {
            let mut world = World::new(setup(seed, processes, limit));
            load(&mut world, per_second, SECOND_US / 100, 60 * SECOND_US);
            // Every process reads the key once; only what comes after counts.
            world.run_until(10 * SECOND_US);
            let (first_asked, first) = (world.oracle.asked, world.oracle.requests);
            world.run_until(62 * SECOND_US);
            let asked = (world.oracle.asked - first_asked) * 1000 / (world.oracle.requests - first);
            eprintln!("seed {seed}: {processes} processes, limit {limit}: asked {asked} permille");
            assert_eq!(world.oracle.denied, 0, "seed {seed}, {processes} processes, limit {limit}");
            assert!(asked <= asked_max, "seed {seed}, {processes} processes, limit {limit}: {asked}");
        }
    }
}

/// Without hits that are charged ahead, each that is admitted would be asked about alone, and a denial would come on top.
#[test]
fn who_is_over_its_limit_asks_for_several_hits_at_once() {
    for seed in 0..5 {
        let world = loaded(setup(seed, 3, 1000), 500, 30);
        let (asked, admitted) = (world.oracle.asked, world.oracle.total(0));
        eprintln!("seed {seed}: asked {asked}, admitted {admitted}");
        assert!(asked * 2 <= admitted, "seed {seed}: asked {asked} times for {admitted} hits");
        assert!(admitted * 100 >= exact(1000, 500, 30) * 99, "seed {seed}: {admitted}");
    }
}

/// A hundred processes near the limit of one key: the origin serves a bounded number of calls.
#[test]
fn a_hot_key_costs_the_origin_a_bounded_number_of_calls() {
    let mut world = World::new(setup(1, 100, 515_463));
    load(&mut world, 50_000, SECOND_US / 100, 4 * SECOND_US);
    world.run_until(5 * SECOND_US);
    eprintln!("{} calls in 4 s", world.oracle.calls);
    assert!(world.oracle.calls <= 4 * 2_500, "{}", world.oracle.calls);
}

/// Every request on the key asks, in a single server and in a Cluster: each process makes its next call when its turn has come,
/// but no later than after half of the deadline.
#[test]
fn a_hot_key_that_is_always_asked_about_costs_ten_thousand_calls_up_to_fifty_processes() {
    for (processes, is_cluster) in [(5, false), (50, false), (50, true), (100, false), (150, false)] {
        let limit = "{requests_per_unit: 1000000000, window: 1h, slack: 0}";
        let mut world = World::new(Setup { is_cluster, ..Setup::new(1, processes, limit) });
        load(&mut world, 50_000, SECOND_US / 100, 3 * SECOND_US / 2);
        // By then each knows how many hold the key.
        world.run_until(SECOND_US / 2);
        let calls = world.oracle.calls;
        world.run_until(3 * SECOND_US / 2);
        let calls = world.oracle.calls - calls;
        let bound = 10_000.max(200 * processes as u64);
        eprintln!("{processes} processes, cluster {is_cluster}: {calls} calls a second, at most {bound}");
        assert!(calls <= bound, "{processes} processes: {calls} calls a second");
        assert_eq!((world.oracle.denied, world.oracle.unanswered), (0, 0), "{processes} processes");
    }
}

/// A process that was idle while the others used nearly everything admits its credit at most, a third of the slack, before it
/// learns of that.
#[test]
fn an_idle_process_learns_before_it_admits_more_than_its_credit() {
    let setup = Setup::new(3, 3, "{requests_per_unit: 162000, window: 1h}");
    let mut world = World::new(setup);
    for n in 0..160 {
        world.request_at(10_000 + n * 10_000, (n % 2) as usize, KeyHits { key: 0, hits: 1000 });
    }
    world.request_at(1_000, 2, KeyHits { key: 0, hits: 1 });
    for n in 0..10 {
        world.request_at(10 * SECOND_US + n * 1000, 2, KeyHits { key: 0, hits: 1500 });
    }
    for n in 0..5 {
        world.request_at(11 * SECOND_US + n * 1000, 2, KeyHits { key: 0, hits: 1 });
    }
    world.run_until(15 * SECOND_US);
    let late: Vec<u64> =
        world.oracle.admitted.iter().filter(|it| it.at_ms >= START_MS + 9000).map(|it| it.hits).collect();
    assert_eq!(late, [1500; 3], "5400 at most");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| loaded(setup(seed, 5, 100), 100, 5).oracle;
    let (one, two, other) = (run(7), run(7), run(8));
    assert_eq!((&one.admitted, one.calls, one.asked), (&two.admitted, two.calls, two.asked));
    assert_ne!(one.admitted, other.admitted);
}
