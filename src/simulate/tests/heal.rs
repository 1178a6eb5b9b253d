//! An origin that takes its time: it comes back empty and is told everything again while others ask, or it is too slow for
//! what it is told.

use super::SECOND_US;
use crate::simulate::faults::Fault;
use crate::simulate::oracle::RequestedHits;
use crate::simulate::process::{KeyHits, OTHER_KEYS};
use crate::simulate::service_times::ServiceTimes;
use crate::simulate::world::{Setup, World};

const PROCESSES: usize = 3;
/// Keys that each process has to itself.
const KEYS: usize = 10_000;
/// Slower than Redis was measured: told as fast as processes can, it would have no time for others.
const TIMES_SLOWER: u64 = 4;
/// When the origin is gone, and when it is back.
const LOST_US: u64 = 10 * SECOND_US;
const BACK_US: u64 = LOST_US + 300_000;
const END_US: u64 = 15 * SECOND_US;
/// The time between two probes.
const PROBE_EVERY_US: u64 = 5_000;

/// Processes with many keys that nobody asks for any more, and probes: each is for a key of its own, has to ask, and is denied
/// in an outage.
fn world() -> World {
    let mut setup = Setup::new(1, PROCESSES, "{requests_per_unit: 1000, window: 1h}");
    setup.other_limit = Some("{requests_per_unit: 5, window: 1h, slack: 0, on_outage: deny}".into());
    (setup.keys_max, setup.service) = (100_000, Some(ServiceTimes::REDIS.times(TIMES_SLOWER)));
    let mut world = World::new(setup);
    for key in 0..PROCESSES * KEYS {
        let at_us = SECOND_US + key as u64 * 3 * SECOND_US / (PROCESSES * KEYS) as u64;
        world.request_at(at_us, key % PROCESSES, KeyHits { key, hits: 1 });
    }
    for (key, at_us) in (OTHER_KEYS..).zip((8 * SECOND_US..END_US).step_by(PROBE_EVERY_US as usize)) {
        world.request_at(at_us, key % PROCESSES, KeyHits { key, hits: 1 });
    }
    world
}

/// Probes of those that arrived at these times.
fn probes(log: &[RequestedHits], from_us: u64, to_us: u64) -> Vec<RequestedHits> {
    let is_meant = |it: &&RequestedHits| it.key >= OTHER_KEYS && (from_us..to_us).contains(&it.arrived_us);
    log.iter().filter(is_meant).copied().collect()
}

/// The time that one of a hundred exceeds.
fn p99_us(probes: &[RequestedHits]) -> u64 {
    let mut times: Vec<u64> = probes.iter().map(|it| it.answered_us - it.arrived_us).collect();
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

#[test]
fn an_origin_that_comes_back_empty_decides_while_it_is_told_everything_again() {
    let mut world = world();
    world.run_until(LOST_US);
    let (held, _) = world.origin_total();
    world.fault_at(LOST_US, Fault::LoseData { region: 0 });
    world.fault_at(LOST_US, Fault::Freeze { region: 0, for_us: BACK_US - LOST_US });
    // A heartbeat notices it within a second.
    let heals_from_us = BACK_US + SECOND_US;
    while world.keys_to_heal() == 0 {
        world.run_until(world.now_us() + 10_000);
        assert!(world.now_us() < heals_from_us, "a heartbeat notices it");
    }
    let began_us = world.now_us();
    while world.keys_to_heal() > 0 {
        world.run_until(world.now_us() + 10_000);
        assert!(world.now_us() < END_US, "it comes to an end");
    }
    let took_us = world.now_us() - began_us;
    world.run_until(world.now_us() + 100_000);
    let (now, _) = world.origin_total();
    assert!(now >= held, "{now} of {held}");
    world.run_until(END_US + SECOND_US);

    let denied = |from_us, to_us| probes(&world.oracle.denials, from_us, to_us).len() as u64;
    let (first, later) = (denied(BACK_US, BACK_US + SECOND_US), denied(BACK_US + SECOND_US, BACK_US + 2 * SECOND_US));
    let before_us = p99_us(&probes(&world.oracle.admitted, 8 * SECOND_US, LOST_US - SECOND_US / 10));
    let meanwhile_us = p99_us(&probes(&world.oracle.admitted, began_us, began_us + took_us));
    eprintln!("denied: {first} in the first second, {later} in the next; healed in {took_us} us");
    eprintln!("99 of a hundred checks: {before_us} us before, {meanwhile_us} us meanwhile");
    assert!(denied(LOST_US, BACK_US) > 0, "its policy denies while it is gone");
    assert!(later * 20 <= SECOND_US / PROBE_EVERY_US, "one of twenty at most: {later}");
    assert_eq!(denied(BACK_US + 2 * SECOND_US, END_US), 0);
    assert!(meanwhile_us <= 3 * before_us, "{before_us} us before, {meanwhile_us} us meanwhile");
    // 40,000 cells a second, one for each key. A process may take itself for the only one for a second.
    let at_pace_us = (PROCESSES * KEYS) as u64 * SECOND_US / 40_000;
    assert!(took_us <= at_pace_us * 3 / 2, "{took_us} us, {at_pace_us} us at the pace that it should have");
}

/// Whoever asks brings what the key has counted: nobody waits for the walk through all keys.
#[test]
fn a_key_that_is_asked_about_heals_with_its_check() {
    let limit = "{requests_per_unit: 5, window: 1h, slack: 0, on_outage: deny}";
    let mut world = World::new(Setup::new(1, PROCESSES, limit));
    let mut ask = |at_us: u64, process: usize| world.request_at(at_us, process, KeyHits { key: 0, hits: 1 });
    (0..4).for_each(|n| ask(SECOND_US + n * 1_000, n as usize % PROCESSES));
    // Before a heartbeat has noticed anything.
    (0..4).for_each(|n| ask(2_010_000 + n * 10_000, n as usize % PROCESSES));
    world.fault_at(2_005_000, Fault::LoseData { region: 0 });
    world.run_until(2_100_000);
    assert_eq!((world.oracle.total(0), world.keys_to_heal()), (5, 0));
}

/// So slow that messages take longer than their time: it is told less at a time, and of no key again before it has heard.
#[test]
fn a_slow_origin_is_never_sent_what_it_has_still_to_do() {
    let mut setup = Setup::new(1, 2, "{requests_per_unit: 100000000, window: 1h}");
    setup.service = Some(ServiceTimes { call_ns: 1_000_000, cell_ns: 3_000_000, need_ns: 0 });
    let mut world = World::new(setup);
    for n in 0..20_000 {
        let (process, key) = (world.random().below(2) as usize, world.random().below(400) as usize);
        world.request_at(SECOND_US + n * 500, process, KeyHits { key, hits: 1 });
    }
    world.run_until(30 * SECOND_US);
    assert_eq!(world.oracle.told_again, 0);
    world.release_held();
    world.run_until(60 * SECOND_US);
    assert_eq!((world.oracle.told_again, world.oracle.denied), (0, 0));
    let pending: u64 = (0..2).map(|process| world.pending(process)).sum();
    assert_eq!((world.origin_total().0, pending), (20_000, 0));
}
