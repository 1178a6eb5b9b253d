//! What a denied client reads behind Envoy: a problem document, if the operator wants one.

use serde_json::{Value, json};

use crate::support::envoy_proxy::{Bootstrap, Cluster, denying_filter, route};
use crate::support::harness::Service;
use crate::support::upstream::{BODY, Upstream};

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limits:
      - {requests_per_unit: 1, unit: year, name: yearly}
      - {requests_per_unit: 100, unit: day}
  - {key: banned, rate_limit: {requests_per_unit: 0, unit: year}}
";

const ACTIONS: &str = "
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
- actions: [{request_headers: {header_name: x-banned, descriptor_key: banned}}]
";

#[test]
fn a_denied_client_reads_which_limit_it_met_and_when_to_come_back() {
    let upstream = Upstream::start();
    let service = Service::start_with(RULES, &[], &[("TIDEGATE_PROBLEM_BODY", "true")]);
    let routes = route("/", ACTIONS);
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();

    let passed = envoy.get("/", &[("x-user", "a")]);
    assert_eq!((passed.status, passed.body.as_str()), (200, BODY));
    assert_ne!(passed.header("content-type"), Some("application/problem+json"));
    let denied = envoy.get("/", &[("x-user", "a")]);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    let body: Value = serde_json::from_str(&denied.body).unwrap_or_else(|error| panic!("{error}: {denied:?}"));
    assert_eq!(body["status"], json!(429));
    assert_eq!(body["violated-policies"], json!(["yearly"]));
    let wait: u64 = denied.header("retry-after").and_then(|wait| wait.parse().ok()).expect("when to come back");
    assert_eq!(body["retry_after"], json!(wait));
    assert_eq!(body["detail"], json!(format!("Too many requests. Try again in {wait} seconds.")));
    assert!(body["type"].as_str().is_some_and(|name| name.ends_with("#quota-exceeded")), "{body}");

    // No wait would help, and the limit has no name.
    let never = envoy.get("/", &[("x-banned", "a")]);
    let body: Value = serde_json::from_str(&never.body).unwrap();
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!((&body["retry_after"], &body["violated-policies"]), (&Value::Null, &Value::Null), "{body}");
}

#[test]
fn without_the_setting_a_denial_has_no_body() {
    let upstream = Upstream::start();
    let service = Service::start(RULES, &[]);
    let routes = route("/", ACTIONS);
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();
    let denied = envoy.get("/", &[("x-banned", "a")]);
    assert_eq!((denied.status, denied.body.as_str(), denied.header("content-type")), (429, "", None));
}
