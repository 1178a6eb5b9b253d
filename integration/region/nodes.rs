//! A Redis that is partly there, with real servers: one node of a Cluster hangs, or answers take as long as requests wait.

use std::time::Duration;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, Service, until};
use crate::support::ledger::{Ledger, Outcome};
use crate::support::load::Traffic;
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;

/// Every request asks, and is denied in an outage.
const RULES: &str = "
domain: d
descriptors:
  - {key: asked, rate_limit: {requests_per_unit: 1000000000, unit: hour, slack: 0, on_outage: deny}}
";
const KEYS: usize = 30;
/// The node that hangs.
const FROZEN: usize = 2;
const RATE: u64 = 300;

/// Which node has each key: the one whose total grows with requests. And how many hits that took.
fn places(fleet: &Fleet, cluster: &RedisCluster) -> (Vec<usize>, u64) {
    let mut hits = 0;
    let totals = || cluster.nodes.iter().map(RedisServer::total_hits).collect::<Vec<_>>();
    let mut place = |key: usize| {
        let before = totals();
        hits += fleet.send(Traffic::on(&format!("asked={key}"), RATE), 1).admitted_hits();
        let grown = || totals().iter().zip(&before).position(|(now, before)| now > before);
        until(PATIENCE, "it is counted", grown)
    };
    let places = (0..KEYS).map(&mut place).collect();
    (places, hits)
}

/// What came of a node that hangs.
struct Frozen {
    cluster: RedisCluster,
    fleet: Fleet,
    places: Vec<usize>,
    /// Hits that were admitted to find that out.
    placing: u64,
    ledger: Ledger,
    /// When it was stopped, when its breakers were open everywhere if they ever were, and when its replica had taken over.
    stopped_us: u64,
    open_us: Option<u64>,
    promoted_us: u64,
}

impl Frozen {
    /// All nodes are named in the settings, also the one that hangs, and it hangs until all is well without it.
    fn run(env: &[(&str, &str)]) -> Frozen {
        let cluster = RedisCluster::with_replicas();
        let env = [&[("REDIS_TYPE", "cluster")], env].concat();
        let fleet = Fleet::together(2, RULES, &cluster.url(), &env);
        let (places, placing) = places(&fleet, &cluster);
        let load = fleet.load(Traffic::over("asked", KEYS, RATE));
        load.goes_on(3 * RATE);
        cluster.nodes[FROZEN].stop();
        let stopped_us = load.now_us();
        let address = cluster.nodes[FROZEN].url();
        let series = format!("tidegate_origin_breaker_open{{breaker=\"checks\",node=\"{address}\"}}");
        let is_open = |service: &Service| service.metric(&series) == Some(1.0);
        let mut open_us = None;
        until(PATIENCE, "its replica takes over", || {
            if open_us.is_none() && fleet.services.iter().all(is_open) {
                open_us = Some(load.now_us());
            }
            cluster.is_promoted(FROZEN).then_some(())
        });
        let promoted_us = load.now_us();
        until(PATIENCE, "all keys are decided again, while it still hangs", || {
            let since_us = load.now_us() - 500_000;
            let recent = load.so_far().only(|entry| entry.sent_us >= since_us && places[entry.key] == FROZEN);
            let by = |process: usize| recent.entries.iter().any(|entry| entry.process == process);
            (by(0) && by(1) && recent.denied() == 0).then_some(())
        });
        load.goes_on(RATE);
        cluster.nodes[FROZEN].cont();
        until(PATIENCE, "it is a replica now", || (cluster.masters().count() == 3).then_some(()));
        load.goes_on(RATE);
        let ledger = load.finish();
        let frozen = Frozen { cluster, fleet, places, placing, ledger, stopped_us, open_us, promoted_us };
        frozen.assert_totals();
        frozen
    }

    fn others(&self) -> Ledger {
        self.ledger.only(|entry| self.places[entry.key] != FROZEN)
    }

    fn own(&self) -> Ledger {
        self.ledger.only(|entry| self.places[entry.key] == FROZEN)
    }

    /// Nothing is lost, and what nobody was told of is the most that can be there beside it.
    fn assert_totals(&self) {
        assert_eq!(self.ledger.failed(), 0);
        let truth = self.ledger.admitted_hits() + self.placing;
        let is_whole = |hits: &u64| *hits >= truth;
        let held = until(PATIENCE, "the totals are whole", || {
            Some(self.cluster.total_hits() + self.fleet.held_hits()).filter(is_whole)
        });
        let most = truth + self.own().denied();
        assert!(held <= most, "{held} hits, {most} at most");
    }

    fn promises(&self) -> Vec<Promise> {
        let Frozen { stopped_us, promoted_us, .. } = *self;
        let share = |ledger: &Ledger| ledger.denied() as f64 / ledger.entries.len().max(1) as f64;
        let others = self.others();
        let (before, then) = (share(&others.sent_in(0..stopped_us)), share(&others.sent_in(stopped_us..promoted_us)));
        let own = self.own();
        let usual = own.sent_in(0..stopped_us).latency(0.9).max(Duration::from_micros(1250));
        let denied = own.only(|entry| entry.outcome == Outcome::Denied && entry.sent_us >= promoted_us);
        let well_us = denied.entries.iter().map(|entry| entry.answered_us).max().unwrap_or(promoted_us);
        let well = micros(well_us - promoted_us);
        let mut promises = vec![
            Promise::at_most(
                "the share of other keys that on_outage answers, beyond what it was",
                0.005,
                then - before,
            ),
            Promise::within("all is well after the promotion", Duration::from_secs(1), well),
        ];
        if let Some(open_us) = self.open_us {
            let opened = micros(open_us - stopped_us);
            let p90 = own.sent_in(open_us..promoted_us).latency(0.9);
            promises.push(Promise::within("the breakers of the node open", Duration::from_millis(500), opened));
            promises.push(Promise::within("90 % of its keys' calls are answered then", 2 * usual, p90));
        }
        promises
    }
}

#[test]
fn a_node_that_hangs_concerns_nobody_but_its_own_keys() {
    let frozen = Frozen::run(&[PATIENT]);
    let denied = frozen.others().only(|entry| entry.outcome == Outcome::Denied);
    let when: Vec<_> = denied.entries.iter().map(|entry| entry.sent_us.abs_diff(frozen.stopped_us)).collect();
    assert!(when.is_empty(), "keys of other nodes are decided as ever, but not these so long after the stop: {when:?}");
}

/// With the deadline that requests have by default.
#[test]
fn a_node_that_hangs_loses_nothing() {
    print(&frozen_node());
}

pub fn frozen_node() -> Vec<Promise> {
    Frozen::run(&[]).promises()
}

fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn a_slow_redis_fails_no_call_and_loses_no_hit() {
    print(&slow(Duration::from_secs(3)));
}

/// How a process does whose Redis takes too long for each answer, for so long.
pub fn slow(lasts: Duration) -> Vec<Promise> {
    let mut promises = Vec::new();
    // At about the deadline half of the answers come in time; beyond it none does.
    for (delay_us, most_opened) in [(9_000, 1.0), (12_000, 2.0)] {
        let redis = RedisServer::start();
        let proxy = CuttingProxy::before(redis.address());
        let fleet = Fleet::together(1, RULES, &proxy.url(), &[]);
        // A younger connection is never doubted.
        let first = fleet.run(Traffic::over("asked", KEYS, RATE), Duration::from_secs(6));
        let connections = || fleet.metric("tidegate_origin_connections_total");
        let opened = || fleet.metric("tidegate_origin_breaker_opened_total{breaker=\"checks\"}");
        let (connections_before, opened_before) = (connections(), opened());
        proxy.delay(Duration::from_micros(delay_us));
        let ledger = fleet.run(Traffic::over("asked", KEYS, RATE), lasts);
        assert_eq!(ledger.failed(), 0);
        proxy.delay(Duration::ZERO);
        let truth = first.admitted_hits() + ledger.admitted_hits();
        let held = until(PATIENCE, "the totals are whole", || Some(redis.total_hits()).filter(|hits| *hits >= truth));
        let most = truth + first.denied() + ledger.denied();
        assert!(held <= most, "what was denied may have been charged, and nothing else: {held} of {most}");
        let at = format!("while answers take {} ms", delay_us / 1000);
        let connected = (connections() - connections_before) / lasts.as_secs_f64();
        promises.push(Promise::at_most(format!("new connections a second {at}"), 0.1, connected));
        promises.push(Promise::at_most(
            format!("how often the breaker opens {at}"),
            most_opened,
            opened() - opened_before,
        ));
    }
    promises
}
