//! How exactly the processes of a region keep one limit, by what their clients saw.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{Client, PATIENCE, answer, ask, ask_one, descriptor_for, refund, said, until_equal};
use crate::support::ledger::Ledger;
use crate::support::load::Traffic;
use crate::support::machine::{in_some_round, machine, promised};
use crate::support::redis::RedisServer;

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000, window: 10s}}
  - {key: ten, rate_limit: {requests_per_unit: 10, unit: hour}}
  - {key: budget, rate_limit: {requests_per_unit: 162000, unit: hour}}
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
";

const LIMIT: u64 = 1000;
const WINDOW: Duration = Duration::from_secs(10);
/// Wherever in a window it starts, it sees a whole one and the beginning of the next.
const TWO_WINDOWS: Duration = Duration::from_secs(21);

/// The next request's worth of hits on a key.
async fn spends(client: &mut Client, key: &str, hits: u32) -> bool {
    let mut request = ask_one(key);
    request.hits_addend = hits;
    answer(client, request).await.overall_code == 1
}

fn assert_exact(ledger: &Ledger, most: f64, name: &str) {
    assert_eq!(ledger.failed(), 0, "{name}");
    let worst = ledger.worst_window(LIMIT, WINDOW);
    let (admitted, exact) = (ledger.admitted_hits(), ledger.exact(LIMIT, WINDOW));
    println!("{name}: worst window {worst:.3}x, {admitted} of {exact}, {:.0} requests/s", ledger.pace());
    assert!(worst <= most, "{name}: {worst}x in the worst of {:?}", ledger.windows(WINDOW));
    assert!(admitted as f64 >= 0.99 * exact as f64, "{name}: {admitted} where one limiter admits {exact}");
}

/// Three fleets at once, because each needs little of the machine, and two windows take a while.
#[test]
fn processes_keep_one_limit_at_ten_times_the_load_and_deny_nothing_below_it() {
    let _machine = machine();
    in_some_round(three_fleets);
}

fn three_fleets() -> Result<(), String> {
    let redis: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start());
    let fleet = |count, redis: &RedisServer| Fleet::together(count, RULES, &redis.url(), &[PATIENT]);
    let (five, nine, below) = (fleet(5, &redis[0]), fleet(9, &redis[1]), fleet(9, &redis[2]));
    let loads = [
        five.load(Traffic { seed: 5, ..Traffic::on("a=x", 1000) }),
        nine.load(Traffic { seed: 9, ..Traffic::on("a=x", 1000) }),
        below.load(Traffic { seed: 90, ..Traffic::on("a=x", 90) }),
    ];
    std::thread::sleep(TWO_WINDOWS);
    let [by_five, by_nine, by_all_below] = loads.map(crate::support::load::Load::finish);
    assert_exact(&by_five, 1.02, "5 processes");
    assert_exact(&by_nine, 1.02, "9 processes");
    assert_eq!((by_all_below.failed(), by_all_below.denied()), (0, 0), "at 0.9 of the limit");
    let asked = below.asked_share();
    promised(asked <= 0.02, || format!("{asked} of the requests at 0.9 of the limit asked the origin"))
}

#[test]
fn a_burst_is_held_by_five_processes() {
    let _machine = machine();
    let redis = RedisServer::start();
    let fleet = Fleet::together(5, RULES, &redis.url(), &[PATIENT]);
    let ledger = fleet.run(Traffic::on("a=x", 10_000), Duration::from_secs(3));
    assert_exact(&ledger, 1.03, "burst");
}

#[test]
fn a_small_limit_is_exact() {
    let _machine = machine();
    let redis = RedisServer::start();
    let fleet = Fleet::together(9, RULES, &redis.url(), &[PATIENT]);
    let ledger = fleet.run(Traffic::over("ten", 20, 1000), Duration::from_secs(2));
    assert_eq!(ledger.failed(), 0);
    for key in 0..20 {
        let ledger = ledger.of_key(key);
        // That is 10, unless an hour ends meanwhile.
        assert_eq!(ledger.admitted_hits(), ledger.exact(10, Duration::from_secs(3600)), "ten={key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_idle_admits_one_large_request_more_and_small_ones_after() {
    let redis = RedisServer::start();
    let fleet = Fleet::together(3, RULES, &redis.url(), &[PATIENT]);
    let mut clients = Vec::new();
    for service in &fleet.services {
        clients.push(service.client().await);
    }
    for (key, has_seen_it) in [("budget=new", false), ("budget=seen", true)] {
        if has_seen_it {
            // Asks for nothing, so that it holds the key and believes it unused.
            answer(&mut clients[2], ask([descriptor_for(key, 0)])).await;
        }
        // The small ones of the key before are told within a replay interval.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = redis.total_hits();
        for number in 0..160 {
            assert!(spends(&mut clients[number % 2], key, 1000).await, "{key}: {number}");
        }
        until_equal(PATIENCE, before + 160_000, || redis.total_hits());
        let mut large = 0;
        for _ in 0..5 {
            large += u32::from(spends(&mut clients[2], key, 1500).await);
        }
        assert!(large <= 1, "{key}: {large} requests of 1,500 where 2,000 were left");
        for number in 0..10 {
            assert!(spends(&mut clients[2], key, 1).await, "{key}: small request {number}");
        }
    }
}

#[test]
fn far_from_the_limit_a_hundred_requests_make_less_than_one_command() {
    let _machine = machine();
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let fleet = Fleet::together(2, RULES, &proxy.url(), &[PATIENT]);
    let before = proxy.commands();
    let ledger = fleet.run(Traffic::on("far=x", 10_000), Duration::from_secs(3));
    let commands = (proxy.commands() - before) as f64;
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    // A machine that gives less has the same number of flushes for fewer requests.
    let share = commands / ledger.admitted() as f64 * (ledger.pace() / 10_000.0).min(1.0);
    println!("{commands} commands for {} requests at {:.0}/s", ledger.admitted(), ledger.pace());
    assert!(share <= 0.01, "{share} commands per request");
    until_equal(PATIENCE, ledger.admitted_hits(), || redis.total_hits());
}

/// Spread over a thousand keys, a message takes many of them along, and no request makes more than one cell of work.
#[test]
fn a_thousand_keys_share_their_messages() {
    let _machine = machine();
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let fleet = Fleet::together(2, RULES, &proxy.url(), &[PATIENT]);
    // Every process reads every key once.
    fleet.run(Traffic::over("far", 1000, 10_000), Duration::from_secs(2));
    let cells = || fleet.metric("tidegate_regional_replayed_cells_total");
    let (before, cells_before) = (proxy.commands(), cells());
    let ledger = fleet.run(Traffic::over("far", 1000, 10_000), Duration::from_secs(3));
    let requests = ledger.admitted() as f64;
    let commands = (proxy.commands() - before) as f64;
    println!("{commands} commands, {} cells for {requests} requests at {:.0}/s", cells() - cells_before, ledger.pace());
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    assert!(commands / requests * (ledger.pace() / 10_000.0).min(1.0) <= 0.05, "{commands} for {requests}");
    assert!(cells() - cells_before <= requests * 1.02, "{} cells for {requests}", cells() - cells_before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_counts_wherever_it_arrives() {
    let redis = RedisServer::start();
    let fleet = Fleet::together(3, RULES, &redis.url(), &[PATIENT]);
    let [mut charged, mut refunding, mut third] =
        [fleet.services[0].client().await, fleet.services[1].client().await, fleet.services[2].client().await];
    for (key, has_seen_it) in [("ten=new", false), ("ten=seen", true)] {
        if has_seen_it {
            assert_eq!(said(&mut refunding, ask([descriptor_for(key, 0)])).await, "OK: OK 10");
        }
        let before = redis.total_hits();
        assert!(spends(&mut charged, key, 10).await, "{key}");
        assert!(!spends(&mut third, key, 1).await, "{key}: all is spent");
        assert_eq!(answer(&mut refunding, ask([refund(key, 4)])).await.overall_code, 1, "{key}");
        until_equal(PATIENCE, before + 6, || redis.total_hits());
        // Who was denied may wait a moment before it asks again.
        let mut left = 4;
        let deadline = std::time::Instant::now() + PATIENCE;
        while left > 0 {
            left -= u32::from(spends(&mut third, key, 1).await);
            assert!(std::time::Instant::now() < deadline, "{key}: {left} of the refund never came back");
        }
        assert!(!spends(&mut third, key, 1).await && !spends(&mut charged, key, 1).await, "{key}: and no more");
        until_equal(PATIENCE, before + 10, || redis.total_hits());
    }
}

/// 32 requests at once for a key, while the origin is slow. Says how many checks they made, after the first was cancelled.
async fn checks_of_32(fleet: &Fleet, proxy: &CuttingProxy, key: &'static str, is_first_cancelled: bool) -> f64 {
    const SLOW: Duration = Duration::from_millis(100);
    let checks = || fleet.metric("tidegate_origin_calls_total{operation=\"check\"}");
    let before = checks();
    let client = Arc::new(fleet.services[0].client().await);
    let asks = proxy.scripts();
    proxy.delay(SLOW);
    let start = || {
        let mut client = Client::clone(&client);
        async move { client.should_rate_limit(ask_one(key)).await }
    };
    let first = tokio::spawn(start());
    until_equal(PATIENCE, true, || proxy.scripts() > asks);
    let mut others = JoinSet::new();
    (0..31).for_each(|_| drop(others.spawn(start())));
    if is_first_cancelled {
        first.abort();
        assert!(first.await.is_err_and(|error| error.is_cancelled()), "nobody waits for the first");
    } else {
        assert_eq!(first.await.unwrap().expect("an answer").into_inner().overall_code, 1);
    }
    for answer in others.join_all().await {
        assert_eq!(answer.expect("an answer").into_inner().overall_code, 1, "{key}");
    }
    proxy.forward();
    checks() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_one_cold_or_stale_key_go_to_the_origin_together() {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let fleet = Fleet::together(2, RULES, &proxy.url(), &[PATIENT]);
    for (key, is_first_cancelled) in [("far=x", false), ("far=y", true)] {
        let checks = checks_of_32(&fleet, &proxy, key, is_first_cancelled).await;
        assert!(checks <= 2.0, "{checks} calls for a cold key");
    }
    // Until both keys are stale: that takes five seconds by the clock.
    tokio::time::sleep(Duration::from_millis(5500)).await;
    for (key, is_first_cancelled) in [("far=x", true), ("far=y", false)] {
        let checks = checks_of_32(&fleet, &proxy, key, is_first_cancelled).await;
        assert!(checks <= 2.0, "{checks} calls for a stale key");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_algorithm_keeps_one_limit_and_debt_is_everybodys() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: fixed, rate_limit: {requests_per_unit: 10, unit: day, algorithm: fixed_window}}
  - {key: exact, rate_limit: {requests_per_unit: 10, unit: day, algorithm: exact_window}}
  - {key: gcra, rate_limit: {requests_per_unit: 10, unit: day, algorithm: gcra, burst: 10}}
  - {key: sliding, rate_limit: {requests_per_unit: 10, unit: day}}
";
    let redis = RedisServer::start();
    let fleet = Fleet::together(3, RULES, &redis.url(), &[PATIENT]);
    let mut clients = Vec::new();
    for service in &fleet.services {
        clients.push(service.client().await);
    }
    for key in ["fixed", "exact", "gcra", "sliding"] {
        let mut admitted = 0;
        for number in 0..30 {
            admitted += u32::from(spends(&mut clients[number % 3], &format!("{key}=x"), 1).await);
        }
        assert_eq!(admitted, 10, "{key}");
        // Usage that is reported after the fact is charged above the limit, too.
        let debt = format!("{key}=y");
        answer(&mut clients[0], ask([descriptor_for(&debt, 25)])).await;
        // A replay interval, and much more.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut answers = Vec::new();
        for client in &mut clients[1..] {
            answers.push(spends(client, &debt, 1).await);
        }
        assert_eq!(answers, [false, false], "{key}: somebody has not heard of the debt");
    }
}
