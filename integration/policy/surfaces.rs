//! Where an outage shows: the probes, the status command, headers with each setting, metrics, the start.

use std::time::{Duration, Instant};

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, Service, answer, ask_one, rule_file, run, tidegate, until, until_equal};
use crate::support::ledger::wall_us;
use crate::support::load::{Load, Traffic};
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;
use crate::support::verdict::{TELLING, Verdict, until_layer};

const RULES: &str = "
domain: d
descriptors:
  - {key: deny, rate_limit: {requests_per_unit: 3, unit: year, on_outage: deny}}
  - {key: local, rate_limit: {requests_per_unit: 3, unit: year}}
";
const STRICT: &str = "
domain: d
descriptors:
  - {key: login, rate_limit: {requests_per_unit: 3, unit: year, class: security}}
";

const BODY: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"KEY","value":"x"}]}]}"#;

#[test]
fn an_outage_is_shown_everywhere_and_costs_no_readiness() {
    let mut redis = RedisServer::start();
    let fleet = Fleet::together(1, RULES, &redis.url(), &[]);
    let service = &fleet.services[0];
    let verbose = service.get("/readyz?verbose");
    assert_eq!(verbose.status, 200);
    assert!(verbose.body.contains("[+] rules: 2 in force\n") && verbose.body.ends_with("ready\n"), "{}", verbose.body);
    assert!(verbose.body.contains("[+] regional: up, limits hold over the region"), "{}", verbose.body);
    assert_eq!(service.get("/readyz").body, "OK");

    redis.kill();
    until_layer([service], "regional", false);
    let verbose = service.get("/readyz?verbose");
    assert_eq!((verbose.status, service.get("/readyz").status), (200, 200), "memory answers");
    assert!(verbose.body.contains("[-] regional: down for"), "{}", verbose.body);
    let ran = run(&mut tidegate(&["status", "--addr", &service.admin.to_string()]));
    assert!(ran.stdout.starts_with("degraded") && ran.stdout.contains("the regional layer is down for"), "{ran:?}");
    let denied = service.post("/json", &BODY.replace("KEY", "deny"));
    assert_eq!((denied.status, denied.header("x-ratelimit-reason")), (429, Some("outage_deny")), "{denied:?}");
    assert_eq!(denied.header("retry-after"), Some("1"));
    let why = service.page("/explain?domain=d&descriptor=deny=x");
    assert!(why.contains("outage: Redis gives no answer, so that on_outage: deny decides\n"), "{why}");
    let admitted = service.post("/json", &BODY.replace("KEY", "local"));
    assert_eq!((admitted.status, admitted.header("x-ratelimit-reason")), (200, None), "{admitted:?}");
    let count = |policy, code| {
        service.metric(&format!("tidegate_outage_decisions_total{{policy=\"{policy}\",code=\"{code}\"}}"))
    };
    assert_eq!((count("deny", "over_limit"), count("local", "ok")), (Some(1.0), Some(1.0)));
    let over = service.metric("ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"deny\"}");
    assert_eq!(over, Some(0.0), "nothing was over its limit");
    assert_eq!(service.metric("tidegate_decisions_total{outcome=\"outage\"}"), Some(1.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_is_told_as_often_as_it_is_asked_for() {
    let redis = RedisServer::start();
    let mut dead = RedisServer::start();
    dead.kill();
    for (setting, usual, in_outage) in [
        ("always", Some("within_limit"), Some("outage_deny")),
        ("denied", None, Some("outage_deny")),
        ("never", None, None),
    ] {
        let reason = async |redis: &RedisServer, is_up: bool| {
            let fleet = Fleet::start(1, RULES, &redis.url(), &[PATIENT, ("TIDEGATE_REASON_HEADER", setting)]);
            until_layer(&fleet.services, "regional", is_up);
            let answer = answer(&mut fleet.services[0].client().await, ask_one("deny=x")).await;
            let header = answer.response_headers_to_add.into_iter().find(|it| it.key == "x-ratelimit-reason");
            header.map(|header| header.value)
        };
        redis.query::<()>(&["FLUSHALL"]);
        assert_eq!(reason(&redis, true).await.as_deref(), usual, "{setting}");
        assert_eq!(reason(&dead, false).await.as_deref(), in_outage, "{setting}");
    }
}

/// Nobody asks anything: the heartbeats notice.
#[test]
fn an_outage_without_requests_is_noticed_and_ends_by_itself() {
    print(&idle_outage());
}

pub fn idle_outage() -> Vec<Promise> {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let fleet = Fleet::together(1, RULES, &proxy.url(), &[("TIDEGATE_ORIGIN_OUTAGE_AFTER", "300ms")]);
    const SOON: Duration = Duration::from_secs(4);
    let mut promises = Vec::new();
    for _ in 0..2 {
        proxy.freeze();
        let frozen = Instant::now();
        until_layer(&fleet.services, "regional", false);
        promises.push(Promise::within("an outage is noticed without a request", SOON, frozen.elapsed()));
        proxy.forward();
        let freed = Instant::now();
        until_layer(&fleet.services, "regional", true);
        promises.push(Promise::within("and so is its end", SOON, freed.elapsed()));
    }
    promises
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_regions_need_an_owner_for_what_is_strict() {
    let (_guard, file) = rule_file(STRICT);
    let regions = [("REGION", "eu"), ("TIDEGATE_REGIONS", "eu,us")];
    let ran =
        run(tidegate(&["serve", "--rules", &file, "--port", "0", "--grpc-port", "0", "--debug-port", "0"])
            .envs(regions));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["rule login is strict", "--strict-redis-url (STRICT_REDIS_URL)", ":4:"] {
        assert!(ran.stderr.contains(part), "no '{part}' in {}", ran.stderr);
    }
    // One region needs none, with Redis or without.
    let service = Service::start_with(STRICT, &[], &TELLING);
    let mut client = service.client().await;
    let verdicts = [(); 4].map(|()| "login=x");
    let mut said = Vec::new();
    for key in verdicts {
        said.push(Verdict::on(&mut client, key).await.is_ok);
    }
    assert_eq!(said, [true, true, true, false], "exact within the process");

    // A reload that would need an owner is refused, and what was in force stays.
    let service = Service::start_with(RULES, &[], &regions);
    service.write_rules(STRICT);
    until(PATIENCE, "the reload is refused", || {
        (service.metric("tidegate_config_last_load_ok") == Some(0.0)).then_some(())
    });
    assert!(service.page("/config/status").contains("is strict"));
    assert_eq!(service.metric("tidegate_config_rules"), Some(2.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_that_becomes_strict_keeps_its_counts() {
    let (redis, owner) = (RedisServer::start(), RedisServer::start());
    let env = [("STRICT_REDIS_URL", &*owner.url()), ("TIDEGATE_STRICT_TIMEOUT", PATIENT.1), PATIENT];
    let env: Vec<(&str, &str)> = env.into_iter().chain(TELLING).collect();
    let fleet = Fleet::together(
        2,
        "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 10, unit: year}}]",
        &redis.url(),
        &env,
    );
    for service in &fleet.services {
        let mut client = service.client().await;
        for _ in 0..3 {
            assert!(Verdict::on(&mut client, "a=x").await.is_ok);
        }
    }
    for service in &fleet.services {
        service.write_rules(
            "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 10, unit: year, scope: strict}}]",
        );
        until(PATIENCE, "it is reloaded", || (service.metric("tidegate_config_generation") == Some(2.0)).then_some(()));
    }
    // Both have told the owner what they had accepted, though nobody asks the second for the key any more.
    until_equal(PATIENCE, 6, || owner.total_hits());
    let mut client = fleet.services[0].client().await;
    let mut said = Vec::new();
    for _ in 0..5 {
        said.push(Verdict::on(&mut client, "a=x").await.is_ok);
    }
    assert_eq!(said, [true, true, true, true, false], "six of ten were used before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_that_go_back_and_forth_under_load_lose_no_hit_and_count_none_twice() {
    const SCOPES: [&str; 6] = ["strict", "regional", "strict", "regional", "strict", "regional"];
    let (redis, owner) = (RedisServer::start(), RedisServer::start());
    let owner_url = owner.url();
    let env: Vec<(&str, &str)> = [("STRICT_REDIS_URL", &*owner_url), ("TIDEGATE_STRICT_TIMEOUT", PATIENT.1), PATIENT]
        .into_iter()
        .chain(TELLING)
        .collect();
    let rules = |scope: &str| {
        let limit = format!("{{requests_per_unit: 1000000, unit: year, scope: {scope}}}");
        format!("domain: d\ndescriptors: [{{key: a, rate_limit: {limit}}}]")
    };
    let mut fleet = Fleet::together(1, &rules("regional"), &redis.url(), &env);
    let service = &fleet.services[0];
    let load = Load::start(&[service.grpc], Traffic::on("a=x", 300));
    load.goes_on(50);
    let mut changes = Vec::new();
    for (number, scope) in SCOPES.into_iter().enumerate() {
        let began_us = wall_us();
        service.write_rules(&rules(scope));
        let generation = number as f64 + 2.0;
        until(PATIENCE, "it is reloaded", || {
            (service.metric("tidegate_config_generation") == Some(generation)).then_some(())
        });
        changes.push(began_us..wall_us());
        load.goes_on(50);
    }
    let ledger = load.finish();
    assert_eq!(ledger.failed(), 0);
    // A request that was under way when the rules changed may have been told to one store and counted in another.
    let under_way: u64 = changes.into_iter().map(|change| ledger.under_way_max(change)).sum();
    let admitted = ledger.admitted();
    let accounted = || redis.total_hits() + fleet.held_hits();
    let counted =
        until(PATIENCE, "everything is told", || Some(accounted()).filter(|hits| *hits + under_way >= admitted));
    assert!(counted <= admitted + under_way, "{counted} counted of {admitted}, {under_way} under way");
    // Nor when the rest is told.
    let series = ["tidegate_regional_lag_seconds", "tidegate_regional_pending_hits"];
    until(PATIENCE, "nothing is pending", || {
        series.iter().all(|series| service.metric(series) == Some(0.0)).then_some(())
    });
    fleet.stop();
    let counted = redis.total_hits();
    let expected = admitted.saturating_sub(under_way)..=admitted + under_way;
    assert!(expected.contains(&counted), "{counted} counted of {admitted}, {under_way} under way");
}
