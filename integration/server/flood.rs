//! Ten million distinct keys against a table of one million: memory stays bounded, who is over the limit stays denied, and
//! keys in use keep their counts.

use crate::support::flood::{BATCH, Flood};
use crate::support::harness::{Service, answer, ask, ask_one, descriptor_for, in_short, said};

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 2, unit: year}}
  - {key: member, rate_limit: {requests_per_unit: 1000, unit: year}}
";

const KEYS: u64 = 10_000_000;
const KEYS_MAX: u64 = 1_000_000;
const DENIED: u64 = 1000;
/// Keys in regular use, far from their limit.
const MEMBERS: u64 = 320;
/// Values of 32 bytes, as identifiers often are.
const FLOOD: Flood = Flood { key: "user", value_bytes: 32, hits: 1, keys: KEYS };

/// Asks for every one of those users once, and says how many were denied.
async fn denied(service: &Service) -> u64 {
    let mut client = service.client().await;
    let mut count = 0;
    for number in 0..DENIED {
        // One by one, because a batch answers as one.
        let response = answer(&mut client, ask_one(&format!("user=denied-{}", FLOOD.value(number)))).await;
        count += u64::from(in_short(&response) == "OVER: OVER 0");
    }
    count
}

/// Charges every member so many hits, and says how much each has left.
async fn members_left(service: &Service, hits: u64) -> Vec<u32> {
    let mut client = service.client().await;
    let mut left = Vec::new();
    for first in (0..MEMBERS).step_by(BATCH as usize) {
        let members = (first..first + BATCH).map(|number| descriptor_for(&format!("member={number}"), hits));
        let response = answer(&mut client, ask(members)).await;
        left.extend(response.statuses.iter().map(|status| status.limit_remaining));
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_million_keys_cost_no_more_than_a_million_and_free_nobody() {
    let service = Service::start(RULES, &["--keys-max", "1000000"]);
    for _ in 0..2 {
        assert_eq!(denied(&service).await, 0, "the limit is two");
    }
    assert_eq!(denied(&service).await, DENIED);
    for _ in 0..20 {
        members_left(&service, 1).await;
    }
    let before = service.process.memory("VmRSS");

    FLOOD.pour(service.grpc).await;

    let grown = service.process.memory("VmHWM").saturating_sub(before);
    let allowed = KEYS_MAX * 160 * 11 / 10 + 30 * 1024 * 1024;
    assert!(grown <= allowed, "grown by {grown} bytes, {allowed} are allowed");
    assert!(grown >= KEYS_MAX * 64, "grown by {grown} bytes: that can't be a million keys");
    assert_eq!(denied(&service).await, DENIED, "who was over the limit still is");
    assert_eq!(members_left(&service, 0).await, vec![980; MEMBERS as usize], "keys in use keep their counts");
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("user=new")).await, "OK: OK 1", "and the service answers");
    let scrape = service.page("/metrics");
    assert!(scrape.len() < 1024 * 1024, "the scrape has {} bytes", scrape.len());
    let evicted = service.metric("tidegate_keys_evicted_total").expect("it is counted");
    assert!(evicted >= (KEYS - KEYS_MAX) as f64, "{evicted} keys were given up");
}
