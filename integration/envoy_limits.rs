//! Who is limited by what, through a real Envoy: by address, by header, each client for itself.

use crate::envoy_proxy::{Bootstrap, Cluster, THERE, rate_limit_filter, route};
use crate::harness::{Service, http_over};
use crate::upstream::{BODY, Upstream};

const RULES: &str = "
domain: edge
descriptors:
  - key: path
    value: /by-address
    descriptors:
      - {key: remote_address, rate_limit: {requests_per_unit: 3, unit: year, name: by_address}}
  - key: path
    value: /by-key
    descriptors:
      - {key: api_key, rate_limit: {requests_per_unit: 2, unit: year}}
";

#[test]
fn clients_of_envoy_are_limited_each_for_itself() {
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let by_address = "
- actions:
  - {request_headers: {header_name: ':path', descriptor_key: path}}
  - {remote_address: {}}
";
    let by_key = "
- actions:
  - {request_headers: {header_name: ':path', descriptor_key: path}}
  - {request_headers: {header_name: x-api-key, descriptor_key: api_key}}
";
    let routes = route("/by-address", by_address) + &route("/by-key", by_key);
    let filter = rate_limit_filter("failure_mode_deny: true\nenable_x_ratelimit_headers: DRAFT_VERSION_03");
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&filter).start();

    for left in ["2", "1", "0"] {
        let passed = envoy.get("/by-address", &[]);
        assert_eq!((passed.status, passed.body.as_str()), (200, BODY));
        assert_eq!(passed.header("x-ratelimit-limit"), Some("3, 3;w=31536000;name=\"by_address\""));
        assert_eq!(passed.header("x-ratelimit-remaining"), Some(left));
        assert_eq!(passed.header("retry-after"), None);
    }
    let denied = envoy.get("/by-address", &[]);
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
    assert_eq!(denied.header("x-ratelimit-limit"), Some("3, 3;w=31536000;name=\"by_address\""));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    let wait: u64 = denied.header("retry-after").and_then(|wait| wait.parse().ok()).expect("when to come back");
    assert!((1..=2 * 31_536_000).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-ratelimit-reset"), denied.header("retry-after"));
    let elsewhere = http_over(envoy.connect(THERE), "GET", "/by-address", &[], "");
    assert_eq!(elsewhere.status, 200, "another address still passes");

    for (key, status) in [("alice", 200), ("alice", 200), ("alice", 429), ("bob", 200), ("alice", 429)] {
        let answer = envoy.get("/by-key", &[("x-api-key", key)]);
        assert_eq!(answer.status, status, "{key}: {answer:?}");
        assert_eq!(answer.header("retry-after").is_some(), status == 429, "{key}: {answer:?}");
    }
    assert_eq!(envoy.get("/by-key", &[]).status, 200, "without the header there is no descriptor, so no limit");
}
