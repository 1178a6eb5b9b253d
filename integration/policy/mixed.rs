//! Limits of several kinds in one request, or on one Redis: an outage of one is none of the others.

use std::time::{Duration, Instant};

use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{Client, PATIENCE, ask, ask_one, descriptor, until, until_equal};
use crate::support::redis::{RedisServer, replica_of};
use crate::support::verdict::{TELLING, Verdict, until_layer};

const RULES: &str = "
domain: d
descriptors:
  - {key: login, rate_limit: {requests_per_unit: 1000, unit: year, class: security}}
  - {key: page, rate_limit: {requests_per_unit: 1000, unit: year, slack: 0, on_outage: deny}}
  - {key: view, rate_limit: {requests_per_unit: 1000, unit: year, slack: 0, on_outage: allow}}
  - {key: bucket, rate_limit: {requests_per_unit: 30, unit: day, algorithm: gcra, on_outage: share}}
";

/// Longer than a busy machine takes for an answer.
const STRICT_PATIENCE: (&str, &str) = ("TIDEGATE_STRICT_TIMEOUT", "2s");

fn both(one: &str, other: &str) -> RateLimitRequest {
    ask([descriptor(one), descriptor(other)])
}

async fn verdict(client: &mut Client, request: RateLimitRequest) -> Verdict {
    Verdict::to(client, request).await.expect("an answer")
}

/// Asks until a layer is given up.
async fn ask_until_down(fleet: &Fleet, descriptor: &str, layer: &str) {
    let series = format!("tidegate_layer_up{{layer=\"{layer}\"}}");
    let mut client = fleet.services[0].client().await;
    let deadline = Instant::now() + PATIENCE;
    while fleet.metric(&series) != 0.0 {
        assert!(Instant::now() < deadline, "{layer} is still up");
        verdict(&mut client, ask_one(descriptor)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_too_slow_for_some_limits_decides_those_that_have_the_time() {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let env: Vec<(&str, &str)> = [STRICT_PATIENCE].into_iter().chain(TELLING).collect();
    let fleet = Fleet::together(1, RULES, &proxy.url(), &env);
    // Others wait for 10 ms.
    proxy.delay(Duration::from_millis(30));
    ask_until_down(&fleet, "page=x", "regional").await;
    let mut client = fleet.services[0].client().await;
    for _ in 0..5 {
        let login = verdict(&mut client, ask_one("login=x")).await;
        assert_eq!((login.is_ok, &*login.reason, &*login.by), (true, "within_limit", "origin"));
        let page = verdict(&mut client, ask_one("page=x")).await;
        assert_eq!((page.is_ok, &*page.reason), (false, "outage_deny"));
    }
    let together = verdict(&mut client, both("view=x", "login=x")).await;
    assert!(together.is_ok, "{together:?}");
    let by_policy = "tidegate_outage_decisions_total{policy=\"allow\",code=\"ok\"}";
    assert_eq!(fleet.metric(by_policy), 1.0, "one of its limits was decided by its policy");
    let denied = verdict(&mut client, both("page=x", "login=x")).await;
    assert_eq!((denied.is_ok, &*denied.reason), (false, "outage_deny"), "{denied:?}");
    until_layer(&fleet.services, "strict", true);
    assert_eq!(fleet.services[0].counted("d", "login=x"), 6, "a denial charges nothing");
    assert_eq!(fleet.services[0].counted("d", "view=x"), 1);

    proxy.forward();
    until_layer(&fleet.services, "regional", true);
    until(PATIENCE, "Redis decides all of them", || (redis.total_hits() >= 7).then_some(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_are_missing_are_an_outage_of_strict_limits_alone() {
    let redis = RedisServer::start();
    let replicas = [STRICT_PATIENCE, ("TIDEGATE_STRICT_REPLICAS", "1"), PATIENT];
    let env: Vec<(&str, &str)> = replicas.into_iter().chain(TELLING).collect();
    let fleet = Fleet::together(1, RULES, &redis.url(), &env);
    ask_until_down(&fleet, "login=x", "strict").await;
    let mut client = fleet.services[0].client().await;
    let began = Instant::now();
    for _ in 0..20 {
        let login = verdict(&mut client, ask_one("login=x")).await;
        assert_eq!((login.is_ok, &*login.reason), (false, "outage_deny"));
        let page = verdict(&mut client, ask_one("page=x")).await;
        assert_eq!((page.is_ok, &*page.reason, &*page.by), (true, "within_limit", "origin"), "{page:?}");
    }
    // Two seconds for each that would wait are twice that.
    assert!(began.elapsed() < Duration::from_secs(20), "nobody waits any more: {:?}", began.elapsed());
    until_layer(&fleet.services, "regional", true);

    let _replica = replica_of(redis.address());
    until_layer(&fleet.services, "strict", true);
    let login = verdict(&mut client, ask_one("login=y")).await;
    assert_eq!((login.is_ok, &*login.reason), (true, "within_limit"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_is_held_beside_a_limit_whose_store_answers() {
    const PROCESSES: usize = 3;
    let (redis, owner) = (RedisServer::start(), RedisServer::start());
    let owner_url = owner.url();
    let env: Vec<(&str, &str)> =
        [STRICT_PATIENCE, ("STRICT_REDIS_URL", &*owner_url)].into_iter().chain(TELLING).collect();
    let fleet = Fleet::together(PROCESSES, RULES, &redis.url(), &env);
    fleet.until_settled();
    redis.stop();
    until_layer(&fleet.services, "regional", false);
    let mut admitted = 0;
    for service in &fleet.services {
        let mut client = service.client().await;
        for _ in 0..15 {
            let answered = verdict(&mut client, both("bucket=x", "login=x")).await;
            assert_eq!((&*answered.reason, &*answered.layer), ("outage_share", "local"), "{answered:?}");
            admitted += u32::from(answered.is_ok);
        }
    }
    assert_eq!(admitted, 30, "ten for each of three processes");
    until_equal(PATIENCE, 30, || owner.total_hits());
    redis.cont();
}

/// The others tell it within a second; an outage before that must not find one process alone.
#[test]
fn processes_that_an_empty_redis_has_not_heard_of_yet_are_counted_all_the_same() {
    const PROCESSES: usize = 3;
    let mut redis = RedisServer::start();
    let fleet = Fleet::together(PROCESSES, RULES, &redis.url(), &[]);
    redis.kill();
    redis.restart_empty();
    let live = "tidegate_regional_live_processes";
    let heals = || fleet.metric("tidegate_regional_heals_total");
    let began = Instant::now();
    while heals() < PROCESSES as f64 || began.elapsed() < Duration::from_secs(2) {
        assert!(began.elapsed() < PATIENCE, "all notice: {}", heals());
        assert!(fleet.services.iter().all(|service| service.metric(live) == Some(PROCESSES as f64)));
    }
}
