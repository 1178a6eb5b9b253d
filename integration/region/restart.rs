//! Processes that come and go: what the region has counted stays counted.

use std::time::Duration;

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, until};
use crate::support::ledger::Outcome;
use crate::support::load::Traffic;
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;

const RULES: &str = "
domain: d
descriptors:
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
  - {key: hundred, rate_limit: {requests_per_unit: 100, unit: year}}
";

/// How often a process tells the origin, and what two busy cores may add to it.
const REPLAY: Duration = Duration::from_millis(50);
const MARGIN: Duration = Duration::from_millis(100);

#[test]
fn a_kill_loses_little_and_counts_nothing_twice() {
    print(&kill());
}

pub fn kill() -> Vec<Promise> {
    let redis = RedisServer::start();
    let fleet = Fleet::together(3, RULES, &redis.url(), &[]);
    let load = fleet.load(Traffic::over("far", 20, 10_000));
    load.goes_on(10_000);
    let killed_us = load.now_us();
    fleet.services[0].process.signal("KILL");
    load.goes_on(5000);
    let ledger = load.finish();
    let admitted = ledger.admitted_hits();
    // What nobody was answered for may have been counted.
    let unanswered = ledger.failed();
    assert_eq!(ledger.only(|entry| entry.process != 0).failed(), 0, "the others go on");
    // Once the others have told everything, so that only what the dead one had is missing.
    let total = settled_total(&redis);
    let interval_us = u64::try_from((REPLAY + MARGIN).as_micros()).unwrap();
    let last = ledger.only(|entry| {
        entry.process == 0 && entry.outcome == Outcome::Admitted && entry.answered_us + interval_us >= killed_us
    });
    eprintln!("{admitted} admitted, {total} counted, {} in the last interval", last.admitted_hits());
    assert!(total <= admitted + unanswered, "{total} counted, {admitted} admitted");
    let lost = admitted.saturating_sub(total + last.admitted_hits()) as f64;
    vec![Promise::at_most("hits lost by a kill, but for those of the last replay interval", 0.0, lost)]
}

/// The total once it has stood still for ten replays.
fn settled_total(redis: &RedisServer) -> u64 {
    let (mut total, mut since) = (redis.total_hits(), std::time::Instant::now());
    until(PATIENCE, "the total stands still", || {
        let now = redis.total_hits();
        if now != total {
            (total, since) = (now, std::time::Instant::now());
        }
        (since.elapsed() > 10 * REPLAY).then_some(total)
    })
}

#[test]
fn a_stop_loses_nothing() {
    let redis = RedisServer::start();
    let mut fleet = Fleet::together(1, RULES, &redis.url(), &[PATIENT, ("TIDEGATE_DRAIN_DELAY", "0s")]);
    let load = fleet.load(Traffic::over("far", 50, 2000));
    load.goes_on(2000);
    // Nothing is sent any more when it is told to stop, so that nothing can fail, but the last hits were just now.
    load.leave(0);
    load.settled(0);
    fleet.services[0].process.signal("TERM");
    let ledger = load.finish();
    let status = fleet.services[0].process.ends_within(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    assert_eq!((ledger.failed(), redis.total_hits()), (0, ledger.admitted_hits()), "all was told before the end");
    assert!(redis.cells().iter().all(|cell| cell.fields.is_empty()), "who has left holds no key");
}

#[test]
fn a_stop_before_a_cluster_loses_nothing_either() {
    let cluster = RedisCluster::start();
    let env = [PATIENT, ("TIDEGATE_DRAIN_DELAY", "0s"), ("REDIS_TYPE", "cluster")];
    let mut fleet = Fleet::together(1, RULES, &cluster.url(), &env);
    let ledger = fleet.send(Traffic::over("far", 500, 2000), 1000);
    fleet.services[0].process.signal("TERM");
    let status = fleet.services[0].process.ends_within(PATIENCE).expect("it ends");
    assert_eq!(status.code(), Some(0));
    assert_eq!((ledger.failed(), cluster.total_hits()), (0, ledger.admitted_hits()), "all was told before the end");
    assert!(cluster.cells().iter().all(|cell| cell.fields.is_empty()), "who has left holds no key");
}

#[test]
fn a_rolling_restart_fails_no_call_loses_nothing_and_forgets_no_limit() {
    let redis = RedisServer::start();
    let mut fleet = Fleet::together(3, RULES, &redis.url(), &[PATIENT, ("TIDEGATE_DRAIN_DELAY", "3s")]);
    let spent = fleet.send(Traffic::on("hundred=x", 300), 300);
    assert_eq!(spent.failed(), 0);
    // Up to the slack above it, if a process hears late of the others.
    let spent = spent.admitted_hits();
    assert!((100..=110).contains(&spent), "the limit is spent: {spent}");
    let load = fleet.load(Traffic::over("far", 20, 1000));
    for old in 0..3 {
        let new = fleet.another();
        let mut service = std::mem::replace(&mut fleet.services[old], new);
        load.add(fleet.services[old].grpc);
        load.goes_on(200);
        service.process.signal("TERM");
        // Health checks notice within the delay, and traffic goes elsewhere.
        until(PATIENCE, "it says that it stops", || (service.get("/readyz").status == 500).then_some(()));
        load.leave(old);
        load.settled(old);
        assert_eq!(service.process.ends_within(PATIENCE).expect("it ends").code(), Some(0));
    }
    let ledger = load.finish();
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    fleet.until_accounted(spent + ledger.admitted_hits(), || redis.total_hits());
    // Processes that have just come ask about keys that may be spent.
    fleet.until_settled();
    let after = fleet.send(Traffic::on("hundred=x", 300), 300);
    assert_eq!((after.failed(), after.admitted_hits()), (0, 0), "new processes know what the old ones spent");
    fleet.assert_counted_once(spent + ledger.admitted_hits(), || redis.total_hits());
}
