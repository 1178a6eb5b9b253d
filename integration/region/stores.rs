//! The kinds of Redis there are, and the ways in which they want to be spoken to.

use std::time::Duration;

use ::redis::Value;

use crate::support::certificates::Authority;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, rule_file, run, tidegate, until, until_equal};
use crate::support::load::Traffic;
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;
use crate::support::sentinels::Sentinels;

const RULES: &str = "
domain: d
descriptors:
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
  - {key: asked, rate_limit: {requests_per_unit: 1000000000, unit: hour, slack: 0}}
";

/// The setting that names a file with what `REDIS_AUTH` says otherwise.
const PASSWORD_FILE: &str = "TIDEGATE_REDIS_AUTH_FILE";
/// A failover or a migration may leave connections to be found anew.
const HEALED: Duration = PATIENCE;

fn mixed(rate: u64) -> Traffic {
    let mut traffic = Traffic::over("far", 30, rate);
    traffic.requests.extend(Traffic::over("asked", 30, rate).requests);
    traffic
}

#[test]
fn a_failover_by_sentinels_fails_no_call_and_loses_no_hit() {
    let mut sentinels = Sentinels::start();
    let mut fleet = Fleet::together(3, RULES, &sentinels.url(), &[("REDIS_TYPE", "sentinel")]);
    let load = fleet.load(mixed(500));
    load.goes_on(500);
    sentinels.fail_over();
    load.goes_on(1000);
    let ledger = load.finish();
    fleet.assert_counted_once(ledger.admitted_hits(), || sentinels.replica.total_hits());
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
}

#[test]
fn a_slot_that_moves_under_load_fails_no_call_and_loses_no_hit() {
    let cluster = RedisCluster::start();
    let mut fleet = Fleet::together(3, RULES, &cluster.url(), &[("REDIS_TYPE", "cluster")]);
    let load = fleet.load(mixed(500));
    load.goes_on(500);
    let cells = until(PATIENCE, "cells in the cluster", || Some(cluster.cells()).filter(|cells| cells.len() >= 60));
    assert!(cluster.nodes.iter().all(|node| !node.cells().is_empty()), "all nodes have some");
    // One after the other, each held half way for a while.
    for cell in &cells[..3] {
        let slot = cluster.slot_of(&cell.name);
        let to = (cluster.owner_of(slot) + 1) % 3;
        let migration = cluster.begin_migration(slot, to);
        load.goes_on(250);
        assert!(migration.move_keys(1) <= 1);
        load.goes_on(250);
        migration.finish();
        load.goes_on(100);
    }
    let ledger = load.finish();
    fleet.assert_counted_once(ledger.admitted_hits(), || cluster.total_hits());
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_several_slots_of_a_cluster_is_all_or_nothing() {
    use crate::support::harness::{ask, descriptor, said};
    const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 5, unit: hour}}
  - {key: b, rate_limit: {requests_per_unit: 2, unit: hour}}
";
    let cluster = RedisCluster::start();
    let fleet = Fleet::together(2, RULES, &cluster.url(), &[("REDIS_TYPE", "cluster"), crate::support::fleet::PATIENT]);
    let [mut one, mut other] = [fleet.services[0].client().await, fleet.services[1].client().await];
    let both = || ask([descriptor("a=x"), descriptor("b=x")]);
    assert_eq!(said(&mut one, both()).await, "OK: OK 4, OK 1");
    // Charged as soon as both slots have agreed: what others take in between is the error.
    until_equal(HEALED, 2, || cluster.total_hits());
    assert_eq!(said(&mut other, both()).await, "OK: OK 3, OK 0");
    until_equal(HEALED, 4, || cluster.total_hits());
    assert!(said(&mut one, both()).await.starts_with("OVER: "));
    assert_eq!(cluster.total_hits(), 4, "nothing is charged of what is denied");
}

/// Serves with these settings, and counts at this Redis.
fn assert_counts(redis: &RedisServer, url: &str, env: &[(&str, &str)]) {
    let before = redis.total_hits();
    let mut fleet = Fleet::together(2, RULES, url, env);
    let ledger = fleet.send(mixed(300), 150);
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0), "{url} {env:?}");
    assert!(ledger.admitted() > 0);
    fleet.assert_counted_once(before + ledger.admitted_hits(), || redis.total_hits());
}

#[test]
fn redis_is_reached_by_every_form_of_its_address() {
    let redis = RedisServer::start();
    let socket = redis.socket().display().to_string();
    assert_counts(&redis, &redis.url(), &[("REDIS_SOCKET_TYPE", "tcp")]);
    assert_counts(&redis, &format!("redis://{}", redis.url()), &[]);
    assert_counts(&redis, &socket, &[("REDIS_SOCKET_TYPE", "unix")]);
    assert_counts(&redis, &format!("unix://{socket}"), &[]);
}

#[test]
fn redis_is_reached_over_tls_with_and_without_a_certificate_of_our_own() {
    let authority = Authority::new("redis");
    let redis = RedisServer::with_tls(&authority);
    let address = format!("localhost:{}", redis.tls_port());
    let ca = redis.file("ca.crt");
    let trust = [("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", ca.as_str())];
    assert_counts(&redis, &address, &trust);
    assert_counts(&redis, &format!("rediss://{address}"), &trust[1..]);
    // The certificate does not name the address.
    let by_number = format!("127.0.0.1:{}", redis.tls_port());
    let skips = ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");
    assert_counts(&redis, &by_number, &[&trust[..], &[skips]].concat());

    let _: String = redis.query(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| redis.file(name));
    let own = [("REDIS_TLS_CLIENT_CERT", certificate.as_str()), ("REDIS_TLS_CLIENT_KEY", key.as_str())];
    assert_counts(&redis, &address, &[&trust[..], &own].concat());
}

/// Serves with these settings, but never counts at this Redis.
fn assert_does_not_count(redis: &RedisServer, url: &str, env: &[(&str, &str)]) {
    let fleet = Fleet::start(1, RULES, url, env);
    let before = redis.total_hits();
    let ledger = fleet.send(mixed(300), 150);
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0), "{url} {env:?}");
    until(PATIENCE, "the error is counted", || {
        let page = fleet.services[0].page("/metrics");
        let errors = page.lines().filter(|line| line.starts_with("tidegate_origin_errors_total{"));
        let count: f64 = errors.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        (count > 0.0).then_some(())
    });
    assert_eq!(redis.total_hits(), before);
}

#[test]
fn a_redis_that_nobody_vouches_for_is_told_nothing() {
    let redis = RedisServer::with_tls(&Authority::new("redis"));
    let others = tempfile::tempdir().unwrap();
    let ca = others.path().join("ca.crt");
    std::fs::write(&ca, Authority::new("others").pem()).unwrap();
    let address = format!("localhost:{}", redis.tls_port());
    let trust = [("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", ca.to_str().unwrap())];
    assert_does_not_count(&redis, &address, &trust);
}

#[test]
fn a_password_is_given_and_a_wrong_one_stops_nobody() {
    let redis = RedisServer::with_password("open-sesame");
    assert_counts(&redis, &redis.url(), &[("REDIS_AUTH", "open-sesame")]);
    assert_counts(&redis, &format!("redis://:open-sesame@{}", redis.url()), &[]);
    assert_does_not_count(&redis, &redis.url(), &[("REDIS_AUTH", "open-barley")]);

    let words = ["ACL", "SETUSER", "tidegate", "on", ">s3cr:et", "~tidegate:*", "+@all"];
    let _: String = redis.query(&words);
    assert_counts(&redis, &redis.url(), &[("REDIS_AUTH", "tidegate:s3cr:et")]);
}

#[test]
fn a_user_needs_what_the_docs_say_and_no_more() {
    let redis = RedisServer::start();
    let docs = include_str!("../../docs/redis.md");
    let (_, example) = docs.split_once("redis-cli ACL SETUSER tidegate").expect("the docs have an example");
    let (example, _) = example.split_once("```").expect("it ends");
    let granted: Vec<&str> = example.split_whitespace().filter(|word| word.starts_with('+')).collect();
    let user = ["ACL", "SETUSER", "tidegate", "reset", "on", ">open-sesame", "~tidegate:*", "-@all"];
    let _: String = redis.query(&[&user[..], &granted].concat());

    let env = [PATIENT, ("REDIS_AUTH", "tidegate:open-sesame"), ("TIDEGATE_DRAIN_DELAY", "0s")];
    let mut fleet = Fleet::together(2, RULES, &redis.url(), &env);
    let ledger = fleet.send(mixed(300), 150);
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
    let refused: Vec<Value> = redis.query(&["ACL", "LOG"]);
    assert!(refused.is_empty(), "{refused:?}");
    // A process that missed an answer leaves its fields where they are, and no bucket is a minute old here.
    let rare = ["hdel", "rename"];
    for command in granted.iter().map(|word| word.trim_start_matches('+')).filter(|it| !rare.contains(it)) {
        assert!(redis.calls_of(command) > 0, "{command} is granted, and nobody calls it");
    }
}

#[test]
fn a_password_file_is_read_again_when_redis_is_reconnected() {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    let set = |password: &str| {
        let client = ["ACL", "SETUSER", "tidegate", "reset", "on", &format!(">{password}"), "~tidegate:*", "+@all"];
        let _: String = redis.query(&client);
        std::fs::write(&file, format!("tidegate:{password}\n")).unwrap();
    };
    set("first");
    let env = [(PASSWORD_FILE, file.to_str().unwrap())];
    let mut fleet = Fleet::together(2, RULES, &redis.url(), &env);
    let load = fleet.load(mixed(300));
    load.goes_on(150);
    set("second");
    // Nobody stays connected with the old password.
    let _: u64 = redis.query(&["CLIENT", "KILL", "USER", "tidegate"]);
    load.goes_on(300);
    let ledger = load.finish();
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
}

#[test]
fn passwords_are_never_said() {
    let (_directory, rules) = rule_file(RULES);
    let said = run(tidegate(&["serve", "--rules", &rules]).env("REDIS_URL", "redis://u:open-sesame@host:port:1"));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(!format!("{said:?}").contains("open-sesame"), "{said:?}");
}
