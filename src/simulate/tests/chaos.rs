//! Thousands of seeds of everything that can go wrong: nothing that was admitted is ever lost, nothing is counted twice.

use super::SECOND_US;
use crate::simulate::faults::{Fault, Network, Plant};
use crate::simulate::process::KeyHits;
use crate::simulate::world::{Setup, World};

pub(super) const SEEDS: u64 = 2_000;
const KEYS: u64 = 3;
const LIMIT: u64 = 300;

/// What goes wrong in a run, and so what may be missing at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Messages are lost, late and repeated, and processes come and go cleanly: exact.
    Messages,
    /// Older copies take over: what was told since is told again.
    Failovers,
    /// Processes die with what they had pending.
    Crashes,
    /// All data is lost.
    Losses,
    /// Older copies take over, and processes die with what they had told since.
    Zones,
}

pub(super) const KINDS: [Kind; 5] = [Kind::Messages, Kind::Failovers, Kind::Crashes, Kind::Losses, Kind::Zones];

pub(super) fn run(seed: u64, kind: Kind, plant: Option<Plant>) -> World {
    run_with(Setup { plant, ..setup(seed) }, kind)
}

fn setup(seed: u64) -> Setup {
    let limit = format!("{{requests_per_unit: {LIMIT}, window: 1h}}");
    Setup { network: Network::ROUGH, ..Setup::new(seed, 2 + (seed % 4) as usize, &limit) }
}

fn run_with(setup: Setup, kind: Kind) -> World {
    let processes = setup.processes as u64;
    let mut world = World::new(setup);
    for _ in 0..150 {
        let at_us = 10_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let key = world.random().below(KEYS) as usize;
        let hits = 1 + world.random().below(4) as i64;
        world.request_at(at_us, process, KeyHits { key, hits });
    }
    for _ in 0..3 {
        let at_us = 100_000 + world.random().below(3 * SECOND_US);
        let process = world.random().below(processes) as usize;
        let fault = match (kind, world.random().below(3)) {
            (Kind::Messages, 0) | (Kind::Crashes, 0) => {
                Fault::Freeze { region: 0, for_us: 100_000 + world.random().below(SECOND_US) }
            }
            (Kind::Messages, _) => Fault::Restart { process },
            (Kind::Crashes, _) => Fault::Crash { process },
            (Kind::Zones, 0) => Fault::Crash { process },
            (Kind::Failovers | Kind::Zones, _) => Fault::Failover { region: 0, back_us: world.random().below(500_000) },
            (Kind::Losses, _) => Fault::LoseData { region: 0 },
        };
        world.fault_at(at_us, fault);
    }
    world.fault_at(4 * SECOND_US, Fault::Calm);
    world.run_until(8 * SECOND_US);
    world.release_held();
    world.run_until(9 * SECOND_US);
    world
}

/// Says what is wrong with a run, if anything is.
fn wrong(world: &World, kind: Kind) -> Option<String> {
    let admitted: u64 = world.oracle.admitted.iter().map(|it| it.hits).sum();
    let (held, _) = world.origin_total();
    let pending: u64 = (0..world.processes.len()).map(|process| world.pending(process)).sum();
    if pending > 0 {
        return Some(format!("{pending} hits are still pending"));
    }
    if world.oracle.told_again > 0 {
        return Some(format!("{} keys were told of again before the origin had heard", world.oracle.told_again));
    }
    let lost_max = match kind {
        Kind::Crashes => world.oracle.died_with,
        // The dead may have told hits that nobody else had heard of.
        Kind::Zones => admitted,
        // A clean stop may run out of time, and says so. A Cluster is told in more messages: it takes longer until all of them
        // have got through.
        Kind::Messages if world.is_cluster() => world.oracle.died_with,
        Kind::Messages | Kind::Failovers | Kind::Losses => 0,
    };
    if held + lost_max < admitted {
        return Some(format!("the origin holds {held}, {admitted} were admitted, {lost_max} may be lost"));
    }
    // A check whose caller gave up may have been counted, and after a loss what was under way is told twice.
    let more_max = world.oracle.abandoned_hits + world.oracle.unacknowledged;
    if held.saturating_sub(admitted) > more_max {
        return Some(format!("the origin holds {held}, {admitted} were admitted, {more_max} may be too many"));
    }
    None
}

/// INV-1 and INV-2.
#[test]
fn nothing_is_lost_and_nothing_is_counted_twice() {
    for seed in 0..SEEDS {
        let kind = KINDS[(seed % 5) as usize];
        let world = run(seed, kind, None);
        if let Some(what) = wrong(&world, kind) {
            panic!("seed {seed}, {kind:?}: {what}");
        }
    }
}

/// INV-1 and INV-2 in a Cluster, where more waits before it is told.
#[test]
fn nothing_is_lost_and_nothing_is_counted_twice_in_a_cluster() {
    for seed in 0..SEEDS / 2 {
        let kind = KINDS[(seed % 5) as usize];
        let world = run_with(Setup { is_cluster: true, ..setup(seed) }, kind);
        if let Some(what) = wrong(&world, kind) {
            panic!("seed {seed}, {kind:?}: {what}");
        }
    }
}

/// After healing, all processes agree with the origin.
/// INV-4.
#[test]
fn everyone_agrees_in_the_end() {
    for seed in 0..200 {
        let kind = KINDS[(seed % 5) as usize];
        let mut world = run(seed, kind, None);
        // Every process looks at every key.
        for process in 0..world.processes.len() {
            for key in 0..KEYS as usize {
                world.request_at(10 * SECOND_US, process, KeyHits { key, hits: 1 });
            }
        }
        world.run_until(20 * SECOND_US);
        for key in 0..KEYS as usize {
            for process in 0..world.processes.len() {
                world.request_at(20 * SECOND_US, process, KeyHits { key, hits: 1 });
            }
        }
        world.run_until(29 * SECOND_US);
        world.release_held();
        world.run_until(30 * SECOND_US);
        // Who told first has not heard of those who told after.
        world.read_again();
        world.run_until(31 * SECOND_US);
        for key in 0..KEYS as usize {
            let views: Vec<_> = (0..world.processes.len()).map(|process| world.view(process, key)).collect();
            let least = views.iter().flatten().min();
            let most = views.iter().flatten().max();
            let spread = most.zip(least).map_or(0, |(most, least)| most - least);
            assert!(spread <= world.processes.len() as u64, "seed {seed}, {kind:?}, key {key}: {views:?}");
        }
    }
}

#[test]
fn planted_mistakes_are_found() {
    for plant in [Plant::DoubleApply, Plant::LostAcknowledgement] {
        let found = (0..100).filter(|seed| wrong(&run(*seed, Kind::Messages, Some(plant)), Kind::Messages).is_some());
        let found = found.count();
        eprintln!("{plant:?}: {found} of 100 seeds");
        assert!(found > 0, "{plant:?}");
    }
}
