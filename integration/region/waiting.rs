//! Requests that wait for each other's calls go on as soon as they may.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{Client, PATIENCE, answer, ask, ask_one, descriptor, in_short, until_equal};
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;

const RULES: &str = "
domain: d
descriptors:
  - {key: asked, rate_limit: {requests_per_unit: 1000000000, unit: hour, slack: 0}}
";
/// Other processes that hold the key. Calls about it are spaced by 0.1 ms for each.
const OTHERS: u32 = 80;
const SPACING: Duration = Duration::from_micros(100).saturating_mul(OTHERS);
/// Long enough that all of a burst are there before the first is answered.
const ANSWERS_AFTER: Duration = Duration::from_millis(3);
const BURSTS: usize = 30;

/// Others that live for the rest of the test, as far as anybody can tell.
fn add_others(redis: &RedisServer) {
    for number in 0..OTHERS {
        let _: u64 = redis.query(&["ZADD", "tidegate:3:processes", "9007199254740991", &format!("{number:016x}")]);
    }
}

/// The time until the last of 16 requests at once was answered.
async fn burst(client: &Client) -> Duration {
    let began = Instant::now();
    let mut requests = JoinSet::new();
    for _ in 0..16 {
        let mut client = client.clone();
        requests.spawn(async move { answer(&mut client, ask_one("asked=x")).await.overall_code });
    }
    assert!(requests.join_all().await.iter().all(|code| *code == 1));
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_the_spacing_of_calls_goes_on_when_it_has_passed() {
    print(&spacing().await);
}

pub async fn spacing() -> Vec<Promise> {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    add_others(&redis);
    let fleet = Fleet::start(1, RULES, &proxy.url(), &[PATIENT]);
    let live = f64::from(OTHERS + 1);
    until_equal(PATIENCE, live, || fleet.metric("tidegate_regional_live_processes"));
    let mut client = fleet.services[0].client().await;
    answer(&mut client, ask_one("asked=x")).await;
    for cell in redis.cells() {
        // Each has told of nothing.
        let records: String = (0..OTHERS).map(|number| format!("{number:08}\0\0\0\0\0\0\0")).collect();
        let _: u64 = redis.query(&["APPEND", &cell.name, &records]);
    }
    // The answer to this one tells of them.
    answer(&mut client, ask_one("asked=x")).await;

    proxy.delay(ANSWERS_AFTER);
    let mut times = Vec::new();
    for _ in 0..BURSTS {
        // The first of a burst goes at once, the others wait for it, and then for the spacing.
        tokio::time::sleep(2 * SPACING).await;
        times.push(burst(&client).await);
    }
    times.sort();
    eprintln!("{times:?}");
    let outages = fleet.metric("tidegate_regional_decisions_total{by=\"outage\"}");
    assert_eq!(outages, 0.0, "decided without an answer");
    let median = times[BURSTS / 2];
    assert!(median >= SPACING, "{median:?}: nobody had to wait");
    // Without being woken, they go with the next flush, which comes every 50 ms.
    let most = SPACING + ANSWERS_AFTER + Duration::from_millis(10);
    vec![Promise::within("a burst that waits for the spacing of calls goes on", most, median)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_more_keys_than_the_table_holds_does_not_ask_redis_in_a_loop() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: few, rate_limit: {requests_per_unit: 2, unit: year}}
  - {key: many, rate_limit: {requests_per_unit: 1000000, unit: year}}
  - {key: more, rate_limit: {requests_per_unit: 1000000, unit: year}}
";
    const REQUESTS: usize = 5;
    let redis = RedisServer::start();
    let roomy = Fleet::start(1, RULES, &redis.url(), &[PATIENT]);
    let mut client = roomy.services[0].client().await;
    for _ in 0..2 {
        assert_eq!(answer(&mut client, ask_one("few=spent")).await.overall_code, 1);
    }
    until_equal(PATIENCE, 2, || redis.total_hits());

    let tiny = Fleet::start(1, RULES, &redis.url(), &[PATIENT, ("TIDEGATE_KEYS_MAX", "2")]);
    let mut client = tiny.services[0].client().await;
    for number in 0..REQUESTS {
        let keys = [format!("few={number}"), format!("many={number}"), format!("more={number}")];
        let response = answer(&mut client, ask(keys.iter().map(|key| descriptor(key)))).await;
        assert_eq!(response.overall_code, 1, "{}", in_short(&response));
    }
    let response = answer(&mut client, ask(["few=spent", "many=x", "more=x"].map(descriptor))).await;
    assert_eq!(response.overall_code, 2, "as Redis says, whatever the table holds: {}", in_short(&response));
    assert_eq!(tiny.metric("tidegate_regional_decisions_total{by=\"outage\"}"), 0.0, "Redis has answered");
    let calls = tiny.metric("tidegate_origin_calls_total{operation=\"check\"}");
    assert!(calls <= 3.0 * (REQUESTS as f64 + 1.0), "{calls} calls for {} requests", REQUESTS + 1);
}
