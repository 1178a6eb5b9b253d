//! How exactly the processes of a region keep one limit, by what their clients saw.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{Client, PATIENCE, answer, ask, ask_one, descriptor_for, refund, said, until_equal};
use crate::support::ledger::Ledger;
use crate::support::load::Traffic;
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;

pub const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000, window: 10s}}
  - {key: ten, rate_limit: {requests_per_unit: 10, unit: year}}
  - {key: budget, rate_limit: {requests_per_unit: 162000, unit: year}}
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
  - {key: asked, rate_limit: {requests_per_unit: 1000000000, unit: hour, slack: 0}}
";

pub const LIMIT: u64 = 1000;
pub const WINDOW: Duration = Duration::from_secs(10);
/// What processes may admit before Redis knows, as a part of the limit: the default.
const SLACK: f64 = 0.1;

/// The next request's worth of hits on a key.
async fn spends(client: &mut Client, key: &str, hits: u32) -> bool {
    let mut request = ask_one(key);
    request.hits_addend = hits;
    answer(client, request).await.overall_code == 1
}

/// No call failed, and no window admitted more than the slack allows. How exact it is beyond that depends on how soon Redis
/// is heard, and so on the machine.
pub fn exactness(ledger: &Ledger, most: f64, name: &str) -> Vec<Promise> {
    assert_eq!(ledger.failed(), 0, "{name}");
    let worst = ledger.worst_window(LIMIT, WINDOW);
    assert!(worst <= 1.0 + SLACK, "{name}: {worst}x in the worst of {:?}", ledger.windows(WINDOW));
    let (admitted, exact) = (ledger.admitted_hits() as f64, ledger.exact(LIMIT, WINDOW) as f64);
    eprintln!("{name}: {:.0} requests/s", ledger.pace());
    vec![
        Promise::at_most(format!("{name}: the worst window, as a part of the limit"), most, worst),
        Promise::at_least(format!("{name}: admitted, as a part of what one limiter admits"), 0.99, admitted / exact),
    ]
}

#[test]
fn a_burst_is_held_by_five_processes() {
    print(&burst());
}

pub fn burst() -> Vec<Promise> {
    let redis = RedisServer::start();
    let fleet = Fleet::together(5, RULES, &redis.url(), &[PATIENT]);
    let ledger = fleet.run(Traffic::on("a=x", 10_000), Duration::from_secs(3));
    exactness(&ledger, 1.03, "burst")
}

#[test]
fn a_small_limit_is_exact() {
    let redis = RedisServer::start();
    let fleet = Fleet::together(9, RULES, &redis.url(), &[PATIENT]);
    let ledger = fleet.send(Traffic::over("ten", 20, 1000), 2000);
    assert_eq!(ledger.failed(), 0);
    for key in 0..20 {
        assert_eq!(ledger.of_key(key).admitted_hits(), 10, "ten={key}");
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
    let mut spent = 0;
    for (key, has_seen_it) in [("budget=new", false), ("budget=seen", true)] {
        if has_seen_it {
            // Asks for nothing, so that it holds the key and believes it unused.
            answer(&mut clients[2], ask([descriptor_for(key, 0)])).await;
        }
        // The small ones of the key before may be held back.
        fleet.until_accounted(spent, || redis.total_hits());
        for number in 0..148 {
            assert!(spends(&mut clients[number % 2], key, 1000).await, "{key}: {number}");
        }
        // So much has to ask, which tells the rest.
        for client in &mut clients[..2] {
            assert!(spends(client, key, 6000).await, "{key}");
        }
        fleet.until_accounted(spent + 160_000, || redis.total_hits());
        let mut large = 0;
        for _ in 0..5 {
            large += u32::from(spends(&mut clients[2], key, 1500).await);
        }
        assert!(large <= 1, "{key}: {large} requests of 1,500 where 2,000 were left");
        for number in 0..10 {
            assert!(spends(&mut clients[2], key, 1).await, "{key}: small request {number}");
        }
        spent += 160_000 + u64::from(large) * 1500 + 10;
    }
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
    for (key, is_first_cancelled) in [("asked=x", false), ("asked=y", true)] {
        let checks = checks_of_32(&fleet, &proxy, key, is_first_cancelled).await;
        assert!(checks <= 2.0, "{checks} calls for a cold key");
    }
    // Until both keys are stale: that takes five seconds by the clock.
    tokio::time::sleep(Duration::from_millis(5500)).await;
    for (key, is_first_cancelled) in [("asked=x", true), ("asked=y", false)] {
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
        let keys = || redis.query::<u64>(&["DBSIZE"]);
        let before = keys();
        answer(&mut clients[0], ask([descriptor_for(&debt, 25)])).await;
        until_equal(PATIENCE, true, || keys() > before);
        let mut answers = Vec::new();
        for client in &mut clients[1..] {
            answers.push(spends(client, &debt, 1).await);
        }
        assert_eq!(answers, [false, false], "{key}: somebody has not heard of the debt");
    }
}
