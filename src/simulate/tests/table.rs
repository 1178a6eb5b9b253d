//! The table that regions share, on a server that takes time, stands still, commits late or is another one: what was admitted is
//! counted everywhere, once, and nobody reads more than has to be read.

use std::collections::BTreeMap;

use super::SECOND_US;
use crate::global::row::{CellName, Counts, OwnRow};
use crate::simulate::faults::{Fault, Network};
use crate::simulate::process::{KeyHits, region_name};
use crate::simulate::service_times::TableTimes;
use crate::simulate::world::{START_MS, Setup, World};

const LIMIT: &str = "{requests_per_unit: 1000, window: 1h, slack: 0}";
const KEYS: usize = 5;

fn setup(seed: u64, regions: usize, processes: usize) -> Setup {
    Setup { regions, table_service: Some(TableTimes::MYSQL), ..Setup::new(seed, processes, LIMIT) }
}

/// Hits that matter to other regions, by any process, evenly spaced.
fn load(world: &mut World, from_s: u64, to_s: u64) {
    let processes = world.processes.len() as u64;
    for at_us in (from_s * SECOND_US..to_s * SECOND_US).step_by(100_000) {
        let (process, key) = (world.random().below(processes) as usize, world.random().below(KEYS as u64) as usize);
        world.request_at(at_us, process, KeyHits { key, hits: 1 });
    }
}

/// Has every region use so much of every key that the others have to know.
fn make_contested(world: &mut World) {
    let processes = world.processes.len();
    for (region, key) in
        (0..world.region_of(processes - 1) + 1).flat_map(|region| (0..KEYS).map(move |key| (region, key)))
    {
        let process =
            (0..processes).find(|process| world.region_of(*process) == region).expect("a region has processes");
        world.request_at(SECOND_US / 10, process, KeyHits { key, hits: 130 });
    }
}

/// Every process counts what was admitted anywhere, and each region's rows are what it has admitted.
fn assert_counted(world: &World, what: &str) {
    for key in 0..KEYS {
        let total = world.oracle.total(key);
        let views: Vec<Option<u64>> = (0..world.processes.len()).map(|process| world.view(process, key)).collect();
        assert!(
            views.iter().all(|view| view.is_none_or(|view| view == total)),
            "{what}, key {key}: {views:?} of {total}"
        );
    }
    let mut of_regions: BTreeMap<usize, u64> = BTreeMap::new();
    for admitted in &world.oracle.admitted {
        *of_regions.entry(world.region_of(admitted.process)).or_default() += admitted.hits;
    }
    for (region, hits) in of_regions {
        assert_eq!(world.rows.total(&region_name(region)).hits, hits, "{what}, region {region}");
    }
}

/// Rows that no rule here is about: what reading everything costs beside them.
fn fill(world: &mut World, rows: u64) {
    let row = |n: u64| {
        let cell = CellName {
            workspace: (*b"d").into(),
            namespace: (*b"elsewhere").into(),
            identifier: format!("{n:06}").into_bytes().into(),
            duration_ms: 3_600_000,
            sequence: START_MS / 3_600_000 + 10,
        };
        OwnRow { cell, counts: Counts { hits: 1, refunds: 0 } }
    };
    world.rows.commit("elsewhere", &(0..rows).map(row).collect::<Vec<_>>(), START_MS - 600_000);
}

/// How many readings of everything began in the busiest second from then on.
fn busiest_second(world: &World, from_us: u64) -> usize {
    let mut seconds: BTreeMap<u64, usize> = BTreeMap::new();
    world.oracle.full_reads_us.iter().filter(|at_us| **at_us >= from_us).for_each(|at_us| {
        *seconds.entry(at_us / SECOND_US).or_default() += 1;
    });
    seconds.into_values().max().unwrap_or(0)
}

#[test]
fn a_table_that_stands_still_for_some_seconds_is_caught_up_with_and_not_read_in_full() {
    for seed in 0..10 {
        let mut world = World::new(setup(seed, 3, 3));
        make_contested(&mut world);
        load(&mut world, 3, 30);
        world.fault_at(10 * SECOND_US, Fault::FreezeTable { for_us: 3_500_000 });
        world.run_until(14 * SECOND_US);
        let before = world.oracle.rows_read;
        world.run_until(20 * SECOND_US);
        let meanwhile = world.oracle.rows_read - before;
        // Each second a cell's rows are read for some seconds after they have changed; twice, what was missed as well.
        assert!(meanwhile <= 9 * (6 + 2) * 3 * KEYS as u64, "seed {seed}: {meanwhile} rows");
        world.run_until(60 * SECOND_US);
        assert_eq!(world.oracle.full_reads_us.len(), 9, "seed {seed}: at the start");
        assert_counted(&world, &format!("seed {seed}"));
    }
}

/// A commit that waits: for a replica, for a disk, for a failover. Publishers give up after two seconds and send again.
#[test]
fn commits_that_take_up_to_fifteen_seconds_lose_nothing() {
    for seed in 0..30 {
        let mut setup = setup(seed, 3, 2);
        setup.network = Network { commit_us: (1_000, 15_000_000), ..Network::QUIET };
        let mut world = World::new(setup);
        make_contested(&mut world);
        load(&mut world, 3, 40);
        world.fault_at(45 * SECOND_US, Fault::Calm);
        world.run_until(65 * SECOND_US);
        assert_counted(&world, &format!("seed {seed}"));
        assert_eq!(world.oracle.full_reads_us.len(), 6, "seed {seed}: at the start");
    }
}

/// Every commit takes longer than imports look back as long as all is well, and that does not end.
#[test]
fn commits_that_always_take_long_are_counted_once_they_are_there() {
    for seed in 0..30 {
        let mut setup = setup(seed, 3, 2);
        setup.network = Network { commit_us: (7_000_000, 15_000_000), ..Network::QUIET };
        let mut world = World::new(setup);
        make_contested(&mut world);
        load(&mut world, 3, 40);
        world.run_until(400 * SECOND_US);
        assert_counted(&world, &format!("seed {seed}"));
        assert_eq!(world.oracle.full_reads_us.len(), 6, "seed {seed}: at the start");
    }
}

/// With the table standing still, over and over.
#[test]
fn anything_that_delays_the_table_delays_counts_and_loses_none() {
    for seed in 0..30 {
        let mut setup = setup(seed, 2, 2);
        setup.table_service = Some(TableTimes::MYSQL.times(20));
        setup.network = Network { table_lost: 50, repeated: 50, ..Network::QUIET };
        let mut world = World::new(setup);
        make_contested(&mut world);
        load(&mut world, 3, 60);
        for _ in 0..6 {
            let at_us = 5 * SECOND_US + world.random().below(50 * SECOND_US);
            let for_us = world.random().below(9 * SECOND_US);
            let fault = match world.random().below(2) {
                0 => Fault::FreezeTable { for_us },
                _ => Fault::Stall { for_us: for_us + 6 * SECOND_US },
            };
            world.fault_at(at_us, fault);
        }
        world.fault_at(70 * SECOND_US, Fault::Calm);
        world.run_until(90 * SECOND_US);
        assert_counted(&world, &format!("seed {seed}"));
        assert_eq!(world.oracle.full_reads_us.len(), 4, "seed {seed}: at the start");
    }
}

/// What changes is heard within seconds, while everybody has everything to read.
#[test]
fn processes_that_were_cut_off_for_long_read_everything_one_after_the_other() {
    const PROCESSES: usize = 20;
    let mut setup = setup(7, 2, PROCESSES);
    // Reading everything takes a quarter of a second.
    setup.table_service = Some(TableTimes { read_row_ns: 125_000, ..TableTimes::MYSQL });
    let mut world = World::new(setup);
    fill(&mut world, 2_000);
    make_contested(&mut world);
    world.run_until(30 * SECOND_US);
    let at_start = world.oracle.full_reads_us.len();
    let thaws_us = 130 * SECOND_US;
    world.fault_at(30 * SECOND_US, Fault::FreezeTable { for_us: thaws_us - 30 * SECOND_US });
    world.request_at(60 * SECOND_US, 0, KeyHits { key: 0, hits: 100 });
    // Turns are 8 s apart by then.
    world.run_until(thaws_us + 15 * SECOND_US);
    assert_counted(&world, "what was missed");
    for at_s in (145..170).step_by(5) {
        world.request_at(at_s * SECOND_US, 0, KeyHits { key: 0, hits: 10 });
        world.run_until((at_s + 5) * SECOND_US);
        assert_counted(&world, &format!("at {at_s} s"));
    }
    world.run_until(300 * SECOND_US);
    assert_eq!(world.oracle.full_reads_us.len() - at_start, 2 * PROCESSES, "each once");
    let busiest = busiest_second(&world, thaws_us);
    assert!(busiest <= 5, "{busiest} in one second");
}

#[test]
fn another_server_with_a_clock_behind_is_followed_at_once_and_read_later() {
    const PROCESSES: usize = 10;
    let mut world = World::new(setup(7, 2, PROCESSES));
    make_contested(&mut world);
    world.run_until(20 * SECOND_US);
    let at_start = world.oracle.full_reads_us.len();
    world.fault_at(20 * SECOND_US, Fault::TableClock { by_ms: -120_000 });
    for at_s in (20..60).step_by(5) {
        let process = at_s as usize % (2 * PROCESSES);
        world.request_at(at_s * SECOND_US, process, KeyHits { key: 0, hits: 10 });
        world.run_until((at_s + 5) * SECOND_US);
        assert_counted(&world, &format!("at {at_s} s"));
    }
    assert_eq!(world.oracle.full_reads_us.len() - at_start, 2 * PROCESSES, "each once");
    let busiest = busiest_second(&world, 20 * SECOND_US);
    assert!(busiest <= 4, "{busiest} in one second");
}
