//! A key that comes more than once in a request counts down within it, whether Redis is asked or not.

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{Service, ask, descriptor, descriptor_for, overridden, refund, said};
use crate::support::redis::RedisServer;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;

const RULES: &str = "
domain: d
descriptors:
  - {key: e, rate_limit: {requests_per_unit: 4, unit: year}}
  - {key: q, quota_mode: true, rate_limit: {requests_per_unit: 2, unit: year, slack: 0}}
  - {key: b, rate_limit: {requests_per_unit: 4, unit: year, slack: 0, algorithm: gcra}}
  - {key: s, rate_limit: {requests_per_unit: 4, unit: year, scope: strict}}
";

/// A year, as Envoy numbers units.
const YEAR: i32 = 6;

/// Requests in a row, each with what it is answered.
fn requests() -> Vec<(Vec<RateLimitDescriptor>, &'static str)> {
    let peek = |text: &str| RateLimitDescriptor { limit: overridden(text, 1, YEAR).limit, ..descriptor_for(text, 0) };
    vec![
        (vec![peek("e=1"), descriptor_for("e=1", 2)], "OK: OK 1, OK 2"),
        (vec![descriptor_for("q=1", 1), descriptor_for("q=1", 2)], "OK: OK 1, OVER 0"),
        (vec![descriptor("q=2"), descriptor("q=2"), descriptor("q=2")], "OK: OK 1, OK 0, OVER 0"),
        (vec![descriptor("b=1"), descriptor("b=1"), descriptor_for("b=1", 2)], "OK: OK 3, OK 2, OK 0"),
        (vec![descriptor("s=1"), descriptor_for("s=1", 1 << 33)], "OVER: OK 4, OVER 0"),
        (vec![descriptor("e=2"), descriptor("e=2")], "OK: OK 3, OK 2"),
        (vec![descriptor("e=2"), descriptor("q=3"), refund("e=2", 2)], "OK: OK 1, OK 1, OK 3"),
        (vec![descriptor("s=2"), descriptor("s=2"), descriptor_for("s=2", 2)], "OK: OK 3, OK 2, OK 0"),
        (vec![descriptor("q=4"), descriptor_for("q=4", 2)], "OK: OK 1, OVER 0"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_asked_redis_saw_its_own_later_hits() {
    let redis = RedisServer::start();
    let alone = Service::start_with(RULES, &[], &[]);
    let fleet = Fleet::together(1, RULES, &redis.url(), &[PATIENT]);
    for service in [&alone, &fleet.services[0]] {
        let mut client = service.client().await;
        for (number, (descriptors, expected)) in requests().into_iter().enumerate() {
            assert_eq!(said(&mut client, ask(descriptors)).await, expected, "request {number}");
        }
    }
}
