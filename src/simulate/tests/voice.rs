//! One process speaks for each region: what that saves, that it costs no time, and that nothing is lost when it goes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::SECOND_US;
use crate::global::voice::Role;
use crate::simulate::faults::Fault;
use crate::simulate::process::{KeyHits, region_name};
use crate::simulate::world::{Setup, World};

fn setup(seed: u64, regions: usize, processes: usize, limit: &str) -> Setup {
    Setup { regions, ..Setup::new(seed, processes, limit) }
}

/// What the table was asked for from that moment on: rows that were published, and rows that were imported.
fn rows(world: &World) -> (u64, u64) {
    let exchanges = world.processes.iter().filter_map(|process| process.exchange.as_ref());
    exchanges.fold((0, 0), |(published, imported), exchange| {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (published + of(&exchange.counts.published_rows), imported + of(&exchange.counts.imported_rows))
    })
}

/// The role of each process of a region.
fn roles(world: &World, region: usize) -> Vec<Role> {
    let of_region = (0..world.processes.len()).filter(|process| world.region_of(*process) == region);
    of_region.filter_map(|process| Some(world.processes[process].exchange.as_ref()?.role())).collect()
}

fn how_many(roles: &[Role], role: Role) -> usize {
    roles.iter().filter(|other| **other == role).count()
}

/// Rows that two regions publish and import in a minute with this many processes each, and the same traffic on a hundred
/// keys.
fn rows_of(processes: usize, seed: u64) -> (u64, u64) {
    const KEYS: u64 = 100;
    let mut world = World::new(setup(seed, 2, processes, "{requests_per_unit: 1000, unit: minute}"));
    world.run_until(10 * SECOND_US);
    let before = rows(&world);
    for n in 0..70_000u64 {
        let process = world.random().below(2 * processes as u64) as usize;
        let asked = KeyHits { key: (n % KEYS) as usize, hits: 1 };
        world.request_at(10 * SECOND_US + n * 1_000, process, asked);
    }
    world.run_until(80 * SECOND_US);
    let after = rows(&world);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn rows_follow_regions_and_hot_keys_and_not_processes() {
    let alone = rows_of(1, 3);
    for processes in [4, 16] {
        let many = rows_of(processes, 3);
        eprintln!("{processes} processes: {many:?} rows published and imported, one: {alone:?}");
        assert!(many.0 * 10 <= alone.0 * 13, "{processes} processes publish {} rows, one {}", many.0, alone.0);
        assert!(many.1 * 10 <= alone.1 * 13, "{processes} processes import {} rows, one {}", many.1, alone.1);
    }
}

#[test]
fn one_process_of_a_region_speaks_and_all_others_follow() {
    for seed in 0..20 {
        let mut world = World::new(setup(seed, 2, 9, "{requests_per_unit: 100, unit: hour}"));
        world.run_until(10 * SECOND_US);
        for region in 0..2 {
            let roles = roles(&world, region);
            assert_eq!((how_many(&roles, Role::Speaking), how_many(&roles, Role::Following)), (1, 8), "seed {seed}");
        }
    }
}

/// Every region spends in turn what the others have left, so every message that comes late or gets lost shows.
fn spends_what_is_left(seed: u64, faults: &[(u64, Fault)], until_us: u64) -> World {
    const LIMIT: u64 = 1_000_000;
    let mut world = World::new(setup(seed, 2, 4, &format!("{{requests_per_unit: {LIMIT}, unit: hour}}")));
    for (at_us, fault) in faults {
        world.fault_at(*at_us, *fault);
    }
    for n in 0..until_us / 20_000 {
        let process = world.random().below(8) as usize;
        // Enough to be worth telling from the start.
        world.request_at(SECOND_US + n * 20_000, process, KeyHits { key: 0, hits: 1_000 });
    }
    world
}

/// Runs on until all processes know what was admitted, but for what died with a process.
fn agree(world: &mut World, within_us: u64) {
    let began_us = world.now_us();
    loop {
        let total = world.oracle.total(0);
        let known = total - world.oracle.died_with..=total;
        let views: Vec<u64> = (0..world.processes.len()).filter_map(|process| world.view(process, 0)).collect();
        let published: u64 = (0..2).map(|region| world.rows.total(&region_name(region)).hits).sum();
        if known.contains(&published) && views.iter().all(|view| *view == published) {
            return;
        }
        let took_us = world.now_us() - began_us;
        assert!(took_us < within_us, "{known:?} were admitted, {published} published, and known are {views:?}");
        let now_us = world.now_us();
        world.run_until(now_us + SECOND_US / 10);
    }
}

#[test]
fn a_speaker_that_dies_is_replaced_within_seconds_and_nothing_is_lost() {
    for seed in 0..20 {
        let mut world = spends_what_is_left(seed, &[], 20 * SECOND_US);
        world.run_until(8 * SECOND_US);
        let Some(speaker) = world.speaker(0) else { panic!("seed {seed}: nobody speaks") };
        world.fault_at(8 * SECOND_US, Fault::Crash { process: speaker });
        world.run_until(8 * SECOND_US + 1);
        let mut now_us = world.now_us();
        while world.speaker(0).is_none() {
            now_us += SECOND_US / 10;
            world.run_until(now_us);
            assert!(now_us <= 13 * SECOND_US, "seed {seed}: nobody speaks after {} us", now_us - 8 * SECOND_US);
        }
        world.run_until(22 * SECOND_US);
        world.release_held();
        agree(&mut world, 8 * SECOND_US);
    }
}

#[test]
fn a_speaker_that_stops_cleanly_is_replaced_at_once() {
    for seed in 0..20 {
        let mut world = World::new(setup(seed, 2, 4, "{requests_per_unit: 100, unit: hour}"));
        world.run_until(8 * SECOND_US);
        let Some(speaker) = world.speaker(0) else { panic!("seed {seed}: nobody speaks") };
        world.fault_at(8 * SECOND_US, Fault::Restart { process: speaker });
        world.run_until(9 * SECOND_US);
        assert!(world.speaker(0).is_some(), "seed {seed}");
    }
}

/// The origin freezes, loses what it has, or falls back to a copy; the speaker stands still while its lease ends.
#[test]
fn whatever_happens_to_the_origin_or_the_speaker_all_agree_soon_after() {
    for seed in 0..40 {
        let for_us = (2 + seed % 7) * SECOND_US;
        let fault = match seed % 4 {
            0 => Fault::Freeze { region: 0, for_us },
            1 => Fault::LoseData { region: 0 },
            2 => Fault::Failover { region: 0, back_us: 300_000 },
            _ => Fault::Pause { process: 0, for_us },
        };
        let mut world = spends_what_is_left(seed, &[], 24 * SECOND_US);
        world.run_until(7 * SECOND_US);
        let fault = match (fault, world.speaker(0)) {
            (Fault::Pause { .. }, Some(process)) => Fault::Pause { process, for_us },
            _ => fault,
        };
        world.fault_at(7 * SECOND_US, fault);
        world.run_until(26 * SECOND_US);
        assert_eq!(how_many(&roles(&world, 0), Role::Speaking), 1, "seed {seed}, {fault:?}");
        assert_eq!(how_many(&roles(&world, 0), Role::Following), 3, "seed {seed}, {fault:?}");
        world.release_held();
        agree(&mut world, 10 * SECOND_US);
    }
}

/// While the origin is away, each process exchanges for itself.
#[test]
fn without_the_origin_everybody_speaks_for_itself() {
    let mut world = World::new(setup(5, 2, 3, "{requests_per_unit: 1000, unit: hour}"));
    world.fault_at(5 * SECOND_US, Fault::Freeze { region: 0, for_us: 60 * SECOND_US });
    for process in 0..6 {
        world.request_at(12 * SECOND_US, process, KeyHits { key: 0, hits: 90 });
    }
    world.run_until(20 * SECOND_US);
    assert_eq!(roles(&world, 0), [Role::Alone; 3]);
    // Each publishes what it knows, of which the largest stays; and all hear of the other region.
    assert!(world.rows.total("region-0").hits >= 90);
    for process in 0..3 {
        assert_eq!(world.view(process, 0), Some(90 + 270), "process {process}");
    }
}

/// How long it takes on average until a process of another region knows of hits, in microseconds.
fn news_lag_us(processes: usize) -> u64 {
    const KEYS: usize = 40;
    let (mut lag_us, mut count) = (0, 0);
    for seed in 0..6 {
        let mut world = World::new(setup(seed, 2, processes, "{requests_per_unit: 100, unit: hour, slack: 0}"));
        let mut unheard = Vec::new();
        for key in 0..KEYS {
            let at_us = 10 * SECOND_US + world.random().below(20 * SECOND_US);
            let (from, to) = (world.random().below(processes as u64), world.random().below(processes as u64));
            world.request_at(at_us, from as usize, KeyHits { key, hits: 60 });
            unheard.push((key, at_us, processes + to as usize));
        }
        let mut now_us = 10 * SECOND_US;
        while !unheard.is_empty() {
            now_us += SECOND_US / 100;
            assert!(now_us < 60 * SECOND_US, "{unheard:?}");
            world.run_until(now_us);
            unheard.retain(|(key, at_us, process)| {
                let is_heard = world.view(*process, *key) == Some(60);
                if is_heard {
                    (lag_us, count) = (lag_us + now_us - at_us, count + 1);
                }
                !is_heard
            });
        }
    }
    lag_us / count
}

/// A key that is new takes longer by the moment until it is mentioned; nothing waits for another turn.
#[test]
fn handing_on_costs_no_interval() {
    let alone_us = news_lag_us(1);
    for processes in [4, 9] {
        let lag_us = news_lag_us(processes);
        eprintln!("news is {lag_us} us old with {processes} processes in each region, {alone_us} us with one");
        assert!(lag_us <= alone_us + SECOND_US / 5, "{processes} processes: {lag_us} us, one: {alone_us} us");
    }
}
