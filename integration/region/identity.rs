//! Keys at the origin: no two of them share a counter, and what is sensitive is not to be found there.

use std::collections::BTreeSet;

use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, answer, ask, ask_one, until_equal};
use crate::support::redis::RedisServer;

const RULES: &str = "
domain: d
descriptors:
  - key: a
    rate_limit: {requests_per_unit: 1, unit: hour}
    descriptors:
      - key: b
        rate_limit: {requests_per_unit: 1, unit: hour}
  - {key: c, rate_limits: [{requests_per_unit: 1, unit: hour}, {requests_per_unit: 1, unit: day}]}
---
domain: d:a
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1, unit: hour}}
";

fn entries(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_identifiers_share_a_counter() {
    let redis = RedisServer::start();
    let fleet = Fleet::start(2, RULES, &redis.url(), &[PATIENT]);
    let [mut one, mut other] = [fleet.services[0].client().await, fleet.services[1].client().await];
    let long = "x".repeat(16 << 10);
    let mut longer = long.clone();
    longer.replace_range(long.len() - 1.., "y");
    let mut early = long.clone();
    early.replace_range(..1, "y");
    let mut descriptors: Vec<RateLimitDescriptor> = Vec::new();
    let values = [
        "",
        " ",
        "x",
        "X",
        "x ",
        " x",
        "x:y",
        "x_y",
        "x|y",
        "x/y",
        "x,y",
        "x=y",
        "{x}",
        "}{",
        "*",
        "x\0",
        "\0x",
        "\0",
        "x\0y",
        "x\n",
        "\r\n",
        "$1\r\nx",
        "tidegate:3:{ab}:x:1",
        "ü",
        "u\u{308}",
        "\u{fc}\u{0}",
        &long,
        &longer,
        &early,
        &long[1..],
    ];
    descriptors.extend(values.iter().map(|value| entries(&[("a", value)])));
    let pairs = [
        ("x", "y"),
        ("xy", ""),
        ("", "xy"),
        ("x/b", "y"),
        ("x", "b/y"),
        ("x_b", "y"),
        ("x\0", "y"),
        ("x", "\0y"),
        ("x:b", ":y"),
        ("x:", "b:y"),
        ("1:x", "y"),
        ("x", "1:y"),
        (&long, "y"),
        ("y", &long),
    ];
    descriptors.extend(pairs.iter().map(|(a, b)| entries(&[("a", a), ("b", b)])));
    // "ü" as one and as the same bytes is one identifier.
    let distinct: BTreeSet<String> = descriptors.iter().map(|descriptor| format!("{:?}", descriptor.entries)).collect();
    assert_eq!(distinct.len(), descriptors.len(), "the test names each once");
    for descriptor in &descriptors {
        let admitted = answer(&mut one, ask([descriptor.clone()])).await.overall_code;
        assert_eq!(admitted, 1, "another key took the place of {:?}", in_short(descriptor));
    }
    for descriptor in &descriptors {
        let again = answer(&mut other, ask([descriptor.clone()])).await.overall_code;
        assert_eq!(again, 2, "both processes mean the same key by {:?}", in_short(descriptor));
    }
    let mut in_another_domain = ask([entries(&[("a", "x")])]);
    in_another_domain.domain = "d:a".into();
    assert_eq!(answer(&mut one, in_another_domain).await.overall_code, 1, "domains have their own");
    until_equal(PATIENCE, descriptors.len() as u64 + 1, || redis.total_hits());
    let charged = || redis.cells().into_iter().filter(|cell| cell.hits > 0).map(|cell| cell.key);
    assert_eq!(charged().collect::<BTreeSet<_>>().len(), descriptors.len() + 1, "each has a cell of its own");
    assert!(charged().all(|key| key.len() <= 64), "a name at the origin is short");

    assert_eq!(answer(&mut one, ask_one("c=x")).await.overall_code, 1);
    until_equal(PATIENCE, descriptors.len() as u64 + 3, || redis.total_hits());
}

fn in_short(descriptor: &RateLimitDescriptor) -> Vec<(&str, String)> {
    descriptor.entries.iter().map(|entry| (entry.key.as_str(), entry.value.chars().take(20).collect())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sensitive_value_is_not_found_in_redis() {
    const RULES: &str = "
domain: d
descriptors:
  - {key: api_key, sensitive: true, rate_limit: {requests_per_unit: 2, unit: hour}}
";
    const VALUE: &str = "sk-live-4242-very-secret";
    let directory = tempfile::tempdir().unwrap();
    let names = |secrets: &[&str]| -> Vec<String> {
        secrets
            .iter()
            .zip(0..)
            .map(|(secret, number)| {
                let file = directory.path().join(format!("secret-{number}"));
                std::fs::write(&file, secret).unwrap();
                file.to_str().unwrap().to_owned()
            })
            .collect()
    };
    let files = names(&["0123456789abcdef0123456789abcdef", "another secret of thirty-two bytes"]);
    let redis = RedisServer::start();
    let start = |file: &str| Fleet::start(2, RULES, &redis.url(), &[("TIDEGATE_SECRET_FILE", file), PATIENT]);
    let fleet = start(&files[0]);
    let [mut one, mut other] = [fleet.services[0].client().await, fleet.services[1].client().await];
    let key = format!("api_key={VALUE}");
    assert_eq!(answer(&mut one, ask_one(&key)).await.overall_code, 1);
    assert_eq!(answer(&mut other, ask_one(&key)).await.overall_code, 1);
    assert_eq!(answer(&mut one, ask_one(&key)).await.overall_code, 2, "they share the count all the same");
    until_equal(PATIENCE, 2, || redis.total_hits());
    assert!(!redis.grep(VALUE.as_bytes()) && !redis.grep(b"very-secret"), "the value is in Redis");
    let first = redis.cells();

    // Another secret makes another name, so that nobody can try values without it.
    let elsewhere = start(&files[1]);
    assert_eq!(answer(&mut elsewhere.services[0].client().await, ask_one(&key)).await.overall_code, 1);
    until_equal(PATIENCE, 3, || redis.total_hits());
    let names: BTreeSet<String> = redis.cells().into_iter().map(|cell| cell.key).collect();
    assert!(names.len() > first.iter().map(|cell| &cell.key).collect::<BTreeSet<_>>().len());
    for service in fleet.services.iter().chain(&elsewhere.services) {
        assert!(!service.page("/metrics").contains(VALUE));
    }
}

#[test]
fn a_sensitive_rule_needs_a_secret_where_there_is_redis() {
    refused_without_a_secret(
        "
domain: d
descriptors:
  - {key: api_key, sensitive: true, rate_limit: {requests_per_unit: 2, unit: hour}}
",
    );
}

#[test]
fn a_sensitive_white_list_needs_a_secret_where_there_is_redis() {
    refused_without_a_secret(
        "
domain: d
descriptors:
  - {key: ip, rate_limit: {requests_per_unit: 4, unit: hour}}
  - {key: api_key, value: internal, sensitive: true}
",
    );
}

/// Starts, and checks, rules with the sensitive key `api_key`. Nobody has to answer at the address.
fn refused_without_a_secret(rules: &str) {
    use crate::support::harness::{rule_file, run, tidegate};
    let (_directory, file) = rule_file(rules);
    let line = rules.lines().position(|line| line.contains("api_key")).map_or(0, |before| before + 1);
    for store in [("REDIS_URL", "127.0.0.1:1"), ("STRICT_REDIS_URL", "127.0.0.1:1")] {
        let serve = &["serve", "--rules", &file, "--grpc-port", "0", "--port", "0", "--debug-port", "0"];
        for command in [serve.as_slice(), &["check", "--rules", &file]] {
            let ran = run(tidegate(command).env(store.0, store.1));
            assert_eq!(ran.code, Some(1), "{ran:?}");
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert!(said.contains("TIDEGATE_SECRET_FILE") && said.contains("api_key"), "{ran:?}");
            assert!(said.contains(&format!("{file}:{line}:5: error")), "{ran:?}");
        }
    }
}
