//! The clock of one process is wrong, or jumps, while the others are right.
//!
//! A window's cell is named by its number, so a process whose clock is off counts in cells that the others have left or come to
//! later. Each cell still holds no more than its limit and the slack, so what is admitted on top is what a clock that is off by so much
//! lets into cells that would otherwise be over, or not have begun: the limit for every window that it is off.

use std::collections::BTreeMap;

use super::SECOND_US;
use crate::simulate::faults::{Fault, Network};
use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

const PROCESSES: usize = 3;
const LIMIT: u64 = 120;
const WINDOW_MS: u64 = 60_000;
const WINDOWS: u64 = 4;
const END_US: u64 = WINDOWS * WINDOW_MS * 1000;
/// All clocks, and when they are set: at first all are right.
const CLOCKS: [&[(u64, i64)]; 7] = [
    &[(0, 60_000)],
    &[(0, -60_000)],
    &[(95, 60_000)],
    &[(95, -60_000)],
    // Steps back 10 s, from right and from wrong.
    &[(70, -10_000)],
    &[(30, 10_000), (90, 0)],
    // An hour ahead, and back.
    &[(70, 3_600_000), (100, 0)],
];

/// Five times the load, to any process, while the clock of the first one does this.
fn run(seed: u64, limit: &str, network: Network, clock: &[(u64, i64)]) -> World {
    let mut world = World::new(Setup { network, is_cluster: seed % 2 == 1, ..Setup::new(seed, PROCESSES, limit) });
    for (at_s, by_ms) in clock {
        world.fault_at(at_s * SECOND_US, Fault::Clock { process: 0, by_ms: *by_ms });
    }
    let step_us = WINDOW_MS * 1000 / (5 * LIMIT);
    for at_us in (SECOND_US..END_US).step_by(step_us as usize) {
        let process = world.random().below(PROCESSES as u64) as usize;
        let at_us = at_us + world.random().below(step_us);
        world.request_at(at_us, process, KeyHits { key: 0, hits: 1 });
    }
    world
}

fn limit(algorithm: &str) -> String {
    format!("{{requests_per_unit: {LIMIT}, window: {WINDOW_MS}ms, algorithm: {algorithm}}}")
}

/// The most that a cell may hold: the limit, and what processes may have pending.
fn bound() -> u64 {
    LIMIT + PROCESSES as u64 * (LIMIT / 10 / PROCESSES as u64)
}

/// Windows, rounded up, by which clocks are ever off.
fn windows_off(clock: &[(u64, i64)]) -> u64 {
    clock.iter().map(|(_, by_ms)| by_ms.unsigned_abs().div_ceil(WINDOW_MS)).max().unwrap_or(0)
}

#[test]
fn a_clock_that_is_off_admits_no_more_than_its_windows_hold() {
    for algorithm in ["sliding_window", "fixed_window"] {
        for (seed, clock) in (0..).zip(CLOCKS) {
            let mut world = run(seed, &limit(algorithm), Network::QUIET, clock);
            world.run_until(END_US + SECOND_US);
            let oracle = &world.oracle;
            let answered = oracle.admitted.len() as u64 + oracle.denied;
            assert_eq!((answered, oracle.unanswered), (oracle.requests, 0), "{algorithm}, {clock:?}");
            for (window, admitted) in oracle.by_window(0, WINDOW_MS) {
                assert!(admitted <= bound(), "{algorithm}, {clock:?}: {admitted} in window {window}");
            }
            // As the true time has it.
            let (total, windows) = (oracle.total(0), WINDOWS + windows_off(clock));
            eprintln!("{algorithm}, {clock:?}: {total} of {}", windows * bound());
            assert!(total <= windows * bound(), "{algorithm}, {clock:?}: {total}");
        }
    }
}

/// A bucket drains by the origin's clock alone.
#[test]
fn no_clock_of_a_process_drains_a_bucket() {
    for (seed, clock) in (0..).zip(CLOCKS) {
        let mut world = run(seed, &limit("gcra, burst: 20"), Network::QUIET, clock);
        world.run_until(END_US + SECOND_US);
        let total = world.oracle.total(0);
        let most = WINDOWS * LIMIT + 20 + PROCESSES as u64;
        eprintln!("{clock:?}: {total} of {most}");
        assert!(total <= most, "{clock:?}: {total}");
        assert_eq!(world.oracle.admitted.len() as u64 + world.oracle.denied, world.oracle.requests, "{clock:?}");
    }
}

/// INV-5: as long as a process is in a window, it never counts less than it did.
#[test]
fn counts_of_a_window_never_shrink_whatever_clocks_do() {
    for (seed, clock) in (0..).zip(CLOCKS) {
        let mut world = run(seed, &limit("fixed_window"), Network::ROUGH, clock);
        let mut views: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for at_us in (0..END_US).step_by(50_000) {
            world.run_until(at_us);
            for process in 0..PROCESSES {
                let wall_ms = world.now_ms().saturating_add_signed(world.processes[process].skew_ms);
                let (window, counted) = (wall_ms / WINDOW_MS, world.view(process, 0).unwrap_or(0));
                let before = views.insert(process, (window, counted)).filter(|(before, _)| *before == window);
                let least = before.map_or(0, |(_, counted)| counted);
                assert!(counted >= least, "{clock:?}, process {process}, {at_us}: {counted} after {least}");
            }
        }
    }
}

/// Where no window ends, the origin holds what was admitted, hit for hit, whatever clocks do and messages suffer.
#[test]
fn no_clock_has_anything_counted_twice_or_forgotten() {
    for seed in 0..100 {
        let clock = CLOCKS[(seed % CLOCKS.len() as u64) as usize];
        let limit = "{requests_per_unit: 100000, window: 24h}";
        let network = if seed % 3 == 0 { Network::ROUGH } else { Network::QUIET };
        let mut world = run(seed, limit, network, clock);
        world.fault_at(END_US, Fault::Calm);
        world.run_until(END_US + 10 * SECOND_US);
        world.release_held();
        world.run_until(END_US + 20 * SECOND_US);
        let admitted: u64 = world.oracle.admitted.iter().map(|it| it.hits).sum();
        let (held, _) = world.origin_total();
        let pending: u64 = (0..PROCESSES).map(|process| world.pending(process)).sum();
        assert_eq!(pending, 0, "seed {seed}, {clock:?}");
        let more = held.checked_sub(admitted);
        let is_right = more.is_some_and(|more| more <= world.oracle.abandoned_hits);
        assert!(is_right, "seed {seed}, {clock:?}: the origin holds {held}, {admitted} were admitted");
    }
}
