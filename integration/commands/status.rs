//! `tidegate status`: what it says of a process that is well, of one whose Redis is away, and of nobody at all.

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::fleet::Fleet;
use crate::support::harness::{PATIENCE, Ran, Service, free_port, rule_file, run, tidegate, until};
use crate::support::load::Traffic;
use crate::support::redis::RedisServer;

const RULES: &str = "
domain: d
descriptors:
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
  - {key: asked, rate_limit: {requests_per_unit: 1000000000, unit: hour, slack: 0}}
";

fn status(admin: SocketAddr, flags: &[&str]) -> Ran {
    run(tidegate(&["status", "--addr", &admin.to_string()]).args(flags))
}

fn status_json(admin: SocketAddr) -> (Option<i32>, Value) {
    let ran = status(admin, &["--output", "json"]);
    (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}")))
}

/// Asks until it ends with this code, and returns what it said then.
fn until_code(service: &Service, code: i32) -> Ran {
    until(PATIENCE, &format!("exit code {code}"), || {
        Some(status(service.admin, &[])).filter(|ran| ran.code == Some(code))
    })
}

#[test]
fn a_process_on_its_own_is_well() {
    let service = Service::start(RULES, &[]);
    let ran = status(service.admin, &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.starts_with(&format!("healthy: tidegate {}", env!("CARGO_PKG_VERSION"))), "{ran:?}");
    assert!(ran.stdout.contains("2 rules in 1 domain") && ran.stdout.contains("this process alone"), "{ran:?}");
    let (code, document) = status_json(service.admin);
    assert_eq!((code, &document["healthy"], &document["regional"]), (Some(0), &Value::Bool(true), &Value::Null));
    assert_eq!(document["problems"], Value::Array(Vec::new()));
}

#[test]
fn a_region_is_shown_and_a_redis_that_is_gone_is_a_problem() {
    let mut redis = RedisServer::start();
    let fleet = Fleet::together(2, RULES, &redis.url(), &[]);
    let mut traffic = Traffic::over("far", 5, 200);
    traffic.requests.extend(Traffic::over("asked", 5, 200).requests);
    let ledger = fleet.send(traffic, 200);
    assert_eq!(ledger.failed(), 0);
    let service = &fleet.services[0];
    let ran = until_code(service, 0);
    // The slack of one of the two limits is 0.
    for part in [
        "closed    1 limit ",
        "asked in d: ",
        "2 live processes",
        &redis.url(),
        "connected for",
        "checks closed",
        "by Redis",
        "  check     ",
    ] {
        assert!(ran.stdout.contains(part), "no '{part}' in {}", ran.stdout);
    }
    let (_, document) = status_json(service.admin);
    let regional = &document["regional"];
    let decided: u64 = ["memory", "memory_old", "memory_cold", "origin", "outage"]
        .iter()
        .filter_map(|by| regional["decisions"][by].as_u64())
        .sum();
    assert!(decided > 0 && regional["calls"]["check"]["answered"].as_u64() > Some(0), "{document:#}");
    assert!(regional["calls"]["check"]["p50_us"].as_f64() <= regional["calls"]["check"]["p99_us"].as_f64());

    redis.kill();
    let ran = until_code(service, 1);
    assert!(ran.stdout.starts_with("degraded: "), "{ran:?}");
    assert!(ran.stdout.contains(&format!("no connection to Redis at {}", redis.url())), "{ran:?}");
    assert_eq!(service.get("/readyz").status, 200, "degraded is not unready");
    redis.restart_empty();
    until_code(service, 0);
}

#[test]
fn a_password_is_not_shown() {
    let redis = RedisServer::with_password("open-sesame");
    let url = format!("redis://:open-sesame@{}", redis.url());
    let wrong = format!("redis://:open-barley@{}", redis.url());
    for (url, code) in [(&url, 0), (&wrong, 1)] {
        let service = Service::start_with(RULES, &[], &[("REDIS_URL", url)]);
        let ran = until_code(&service, code);
        let (_, document) = status_json(service.admin);
        let said = format!("{ran:?} {document}");
        assert!(said.contains(&redis.url()) && !said.contains("open-"), "{said}");
    }
}

#[test]
fn refused_rules_are_a_problem_until_they_are_mended() {
    let (_directory, file) = rule_file(RULES);
    let mut command = tidegate(&["serve", "--rules", &file]);
    command.args(["--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1", "--grpc-port", "0"]);
    let service = Service::of(command);
    until_code(&service, 0);
    std::fs::write(&file, "domain: d\ndescriptors: [{key: a, rate_limits: 5}]\n").unwrap();
    let ran = until_code(&service, 1);
    assert!(ran.stdout.contains("the last rules were refused with "), "{ran:?}");
    assert!(ran.stdout.contains("2 rules in 1 domain, generation 1"), "those from before are in force: {ran:?}");
    std::fs::write(&file, RULES).unwrap();
    until_code(&service, 0);
}

#[test]
fn who_does_not_answer_is_told_from_who_is_unwell() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let ran = status(nobody, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.stderr.contains(&format!("nobody answers at {nobody}")), "{ran:?}");
    assert!(ran.stderr.contains("help: is tidegate running here?") && ran.stderr.contains("DEBUG_PORT"), "{ran:?}");
    let (code, document) = status_json(nobody);
    assert_eq!((code, &document["healthy"]), (Some(2), &Value::Bool(false)));
    assert!(document["error"]["hint"].as_str().is_some_and(|hint| hint.contains("--addr")), "{document}");

    let service = Service::start(RULES, &[]);
    for port in [service.http, service.grpc] {
        let ran = status(port, &["--timeout", "1s"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("help: "), "{ran:?}");
    }
    service.process.signal("STOP");
    let ran = status(service.admin, &["--timeout", "200ms"]);
    service.process.signal("CONT");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("gave no answer within 200ms"), "{ran:?}");
}
