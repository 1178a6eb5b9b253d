//! A Redis that stands still, dies, forgets, or loses its replies: nobody's call fails, and in the end the origin's totals
//! are those of the client's ledger.

use std::time::{Duration, Instant};

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::Fleet;
use crate::support::harness::{PATIENCE, Service, until, until_equal};
use crate::support::load::{Load, Traffic};
use crate::support::promise::{Promise, print};
use crate::support::redis::{RedisServer, replica_of};

/// `far` is mostly counted in memory, `asked` asks for every request, and `over` denies most.
const RULES: &str = "
domain: d
descriptors:
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
  - {key: asked, rate_limit: {requests_per_unit: 1000000000, unit: hour, slack: 0}}
  - {key: over, rate_limit: {requests_per_unit: 50, unit: year}}
";

/// By when the origin's totals are right again.
const HEALED: Duration = Duration::from_secs(2);
/// The origin's deadline where it is the default.
const DEADLINE: Duration = Duration::from_millis(10);
/// What two cores that the client shares with Redis and with the services may add to what it measures.
const NOISE: Duration = Duration::from_millis(40);

/// Both kinds of keys, ten of each.
fn mixed(rate: u64) -> Traffic {
    let mut traffic = Traffic::over("far", 10, rate);
    traffic.requests.extend(Traffic::over("asked", 10, rate).requests);
    traffic
}

/// The service's own time: how many decisions took longer than its histogram's bucket.
fn slower_than(service: &Service, bucket: &str) -> f64 {
    let series = |le: &str| format!("tidegate_decision_duration_seconds_bucket{{le=\"{le}\"}}");
    let count = |le: &str| service.metric(&series(le)).unwrap_or_else(|| panic!("a bucket {le}"));
    count("+Inf") - count(bucket)
}

#[test]
fn a_redis_that_stands_still_fails_no_call_and_loses_no_hit() {
    print(&stands_still(Duration::from_secs(3)));
}

/// Redis stands still for so long after everybody has noticed.
pub fn stands_still(still: Duration) -> Vec<Promise> {
    // So that a bucket of the service's histogram ends where it has had 2.4 ms for itself.
    const DEADLINE: Duration = Duration::from_millis(14);
    const BUCKET: &str = "0.016384";
    let redis = RedisServer::start();
    let mut fleet = Fleet::together(2, RULES, &redis.url(), &[("TIDEGATE_ORIGIN_DEADLINE", "14ms")]);
    let load = fleet.load(mixed(500));
    load.goes_on(1000);
    let before = load.so_far();
    redis.stop();
    let stopped_us = load.now_us();
    let noticed = fleet.until_breaker(PATIENCE, "checks", true);
    let open_us = load.now_us();
    let reaches = Instant::now() + still;
    load.goes_on(500);
    fleet.until_breaker(PATIENCE, "checks", true);
    std::thread::sleep(reaches.saturating_duration_since(Instant::now()));
    let pending = fleet.metric("tidegate_regional_pending_hits");
    assert!(pending > 0.0, "what the origin has not heard of is shown");
    redis.cont();
    let continued = Instant::now();
    load.set_rate(0);
    let ledger = load.finish();
    fleet.until_accounted(ledger.admitted_hits(), || redis.total_hits());
    fleet.until_breaker(PATIENCE, "checks", false);
    let healed = continued.elapsed();
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));

    let p99 = ledger.sent_in(stopped_us..open_us).latency(0.99);
    let (usual, then) = (before.latency(0.99), ledger.sent_in(open_us..u64::MAX).latency(0.99));
    let slow: f64 = fleet.services.iter().map(|service| slower_than(service, BUCKET)).sum();
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
    vec![
        Promise::within("the breaker opens", Duration::from_millis(500), noticed),
        Promise::within("99 % of the calls are answered until it opens", DEADLINE + NOISE, p99),
        Promise::within(
            "99 % of the calls are answered while it is open, in twice the usual time",
            2 * usual.max(Duration::from_micros(2500)),
            then,
        ),
        Promise::at_most(
            "the share of decisions that take longer than the deadline and 2.4 ms",
            0.001,
            slow / ledger.entries.len() as f64,
        ),
        Promise::within("the totals are right again", HEALED, healed),
    ]
}

#[test]
fn a_redis_that_comes_back_empty_is_told_everything_again() {
    let mut redis = RedisServer::start();
    let mut fleet = Fleet::together(3, RULES, &redis.url(), &[]);
    // Keys that nobody asks for later, from all processes. Some of their hits are held back.
    let idle = fleet.send(Traffic::over("far", 50, 1000), 1000);
    fleet.until_accounted(idle.admitted_hits(), || redis.total_hits());
    redis.kill();
    redis.restart_empty();
    fleet.until_accounted(idle.admitted_hits(), || redis.total_hits());

    // And under load: nothing is missing, and at most what was on its way is there twice.
    let load = fleet.load(Traffic { seed: 2, ..Traffic::over("asked", 20, 500) });
    load.goes_on(500);
    redis.kill();
    load.goes_on(250);
    redis.restart_empty();
    load.goes_on(500);
    let ledger = load.finish();
    assert_eq!((ledger.failed(), ledger.denied(), idle.failed()), (0, 0, 0));
    let truth = idle.admitted_hits() + ledger.admitted_hits();
    let is_whole = |hits: &u64| *hits >= truth;
    until(PATIENCE, "the totals are whole", || Some(redis.total_hits() + fleet.held_hits()).filter(is_whole));
    fleet.stop();
    let total = redis.total_hits();
    assert!(total >= truth, "{total} of {truth}");
    let on_its_way = ledger.admitted_hits();
    assert!(total <= truth + on_its_way, "{total} of {truth}, with {on_its_way} on their way");
}

#[test]
fn a_redis_that_loads_its_data_fails_no_call_and_loses_no_hit() {
    print(&loads());
}

pub fn loads() -> Vec<Promise> {
    // So long that everybody meets it, and this thread too.
    const LOADS: Duration = Duration::from_secs(4);
    let mut redis = RedisServer::start();
    let mut fleet = Fleet::together(2, RULES, &redis.url(), &[]);
    let load = fleet.load(mixed(500));
    load.goes_on(500);
    redis.save();
    // What it is told from here on, it will have forgotten.
    load.goes_on(250);
    redis.restart_loading(LOADS);
    until(PATIENCE, "Redis has loaded", || (!redis.is_loading()).then_some(()));
    let loaded = Instant::now();
    let ledger = load.finish();
    fleet.until_accounted(ledger.admitted_hits(), || redis.total_hits());
    let healed = loaded.elapsed();

    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    for service in &mut fleet.services {
        service.process.line_with("LOADING");
    }
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
    vec![
        Promise::within("99 % of the calls are answered", DEADLINE + NOISE, ledger.latency(0.99)),
        Promise::within("the totals are right again", HEALED, healed),
    ]
}

/// Cuts until there were so many, and holds the totals against the ledger.
fn assert_counts_once(cut: impl Fn(&CuttingProxy), cuts: u64) {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let mut fleet = Fleet::together(2, RULES, &proxy.url(), &[]);
    let load = fleet.load(mixed(400));
    cut(&proxy);
    until(5 * PATIENCE, "all cuts were made", || (proxy.cuts() >= cuts).then_some(()));
    proxy.forward();
    let ledger = load.finish();
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    eprintln!("{} cuts, {} scripts, {} requests", proxy.cuts(), proxy.scripts(), ledger.entries.len());
}

#[test]
fn a_reply_that_is_lost_after_the_script_was_applied_counts_nothing_twice() {
    assert_counts_once(|proxy| proxy.swallow_at_random(150, 1), 200);
}

/// INV-2.
#[test]
fn a_reply_that_ends_half_way_counts_nothing_twice() {
    assert_counts_once(|proxy| proxy.reset_at_random(150, 2), 50);
}

#[test]
fn a_failover_to_a_replica_that_lagged_heals() {
    let mut master = RedisServer::start();
    let between = CuttingProxy::before(master.address());
    let replica = replica_of(between.address());
    let proxy = CuttingProxy::before(master.address());
    let mut fleet = Fleet::together(3, RULES, &proxy.url(), &[]);
    let load = fleet.load(mixed(500));
    load.goes_on(500);
    // From here on the replica hears nothing.
    between.freeze();
    load.goes_on(1000);
    until(PATIENCE, "the replica is behind", || (replica.total_hits() < master.total_hits()).then_some(()));
    let _: String = replica.query(&["REPLICAOF", "NO", "ONE"]);
    proxy.retarget(replica.address());
    master.kill();
    load.goes_on(1000);
    let ledger = load.finish();
    fleet.assert_counted_once(ledger.admitted_hits(), || replica.total_hits());
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
}

/// A fault that the load lives through, and after which the totals are right.
fn survives(
    name: &str,
    fault: impl Fn(&RedisServer, &CuttingProxy),
    heal: impl Fn(&RedisServer, &CuttingProxy),
) -> Vec<Promise> {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let mut fleet = Fleet::together(2, RULES, &proxy.url(), &[]);
    let load = fleet.load(mixed(300));
    load.goes_on(150);
    fault(&redis, &proxy);
    load.goes_on(600);
    heal(&redis, &proxy);
    let healing = Instant::now();
    load.goes_on(150);
    let ledger = load.finish();
    fleet.until_accounted(ledger.admitted_hits(), || redis.total_hits());
    let healed = healing.elapsed();
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0), "{name}");
    let p99 = ledger.latency(0.99);
    vec![
        Promise::within(format!("{name}: 99 % of the calls are answered"), DEADLINE + NOISE, p99),
        Promise::within(format!("{name}: the totals are right again"), 2 * HEALED, healed),
    ]
}

#[test]
fn no_error_of_redis_reaches_a_client() {
    print(&errors());
}

/// Every kind of trouble that a connection, or Redis itself, can answer with.
pub fn errors() -> Vec<Promise> {
    let set = |redis: &RedisServer, name: &str, value: &str| {
        let _: String = redis.query(&["CONFIG", "SET", name, value]);
    };
    let forwards = |_: &RedisServer, proxy: &CuttingProxy| proxy.forward();
    let (memory, enough) = ("maxmemory", "0");
    let readonly = |redis: &RedisServer, _: &CuttingProxy| {
        let _: String = redis.query(&["REPLICAOF", "127.0.0.1", "1"]);
    };
    let writable = |redis: &RedisServer, _: &CuttingProxy| {
        let _: String = redis.query(&["REPLICAOF", "NO", "ONE"]);
    };
    [
        survives("NOSCRIPT", |redis, _| redis.query(&["SCRIPT", "FLUSH"]), |_, _| {}),
        survives("slow", |_, proxy| proxy.delay(Duration::from_secs(5)), forwards),
        survives("frozen", |_, proxy| proxy.freeze(), forwards),
        survives("refused", |_, proxy| proxy.refuse(), forwards),
        survives("OOM", |redis, _| set(redis, memory, "1"), |redis, _| set(redis, memory, enough)),
        survives("READONLY", readonly, writable),
    ]
    .concat()
}

#[test]
fn it_starts_and_serves_while_redis_is_down_and_tells_it_later() {
    let mut redis = RedisServer::start();
    redis.kill();
    let mut fleet = Fleet::start(2, RULES, &redis.url(), &[]);
    for service in &fleet.services {
        assert_eq!(service.get("/readyz").status, 200, "ready means that rules are loaded");
    }
    let load = fleet.load(mixed(300));
    load.goes_on(300);
    redis.restart_empty();
    load.goes_on(300);
    let ledger = load.finish();
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
}

#[test]
fn without_redis_each_process_decides_from_its_memory() {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let fleet = Fleet::together(3, RULES, &proxy.url(), &[]);
    proxy.refuse();
    fleet.services.iter().zip(0u64..).for_each(|(service, seed)| {
        let traffic = Traffic { seed, ..Traffic::on("over=x", 200) };
        let ledger = Load::send(&[service.grpc], traffic, 200);
        assert_eq!((ledger.failed(), ledger.admitted_hits()), (0, 50), "process {seed}");
    });
    proxy.forward();
    until_equal(PATIENCE, 150, || redis.total_hits());
    let ledger = fleet.send(Traffic::on("over=x", 200), 200);
    assert_eq!((ledger.failed(), ledger.admitted_hits()), (0, 0), "what was admitted meanwhile is not forgotten");
}
