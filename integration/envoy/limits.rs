//! Who is limited by what, through a real Envoy: by address, header, path and method, one by one and together.

use crate::support::envoy_proxy::{Bootstrap, Cluster, denying_filter, rate_limit_filter, route};
use crate::support::harness::{Service, http_over};
use crate::support::upstream::{BODY, Upstream};

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
    let elsewhere = http_over(envoy.connect_from([127, 0, 0, 2]), "GET", "/by-address", &[], "");
    assert_eq!(elsewhere.status, 200, "another address still passes");

    for (key, status) in [("alice", 200), ("alice", 200), ("alice", 429), ("bob", 200), ("alice", 429)] {
        let answer = envoy.get("/by-key", &[("x-api-key", key)]);
        assert_eq!(answer.status, status, "{key}: {answer:?}");
        assert_eq!(answer.header("retry-after").is_some(), status == 429, "{key}: {answer:?}");
    }
    assert_eq!(envoy.get("/by-key", &[]).status, 200, "without the header there is no descriptor, so no limit");
}

#[test]
fn paths_are_limited_with_their_methods() {
    let rules = "
domain: edge
descriptors:
  - key: path
    value: /orders
    descriptors:
      - {key: method, value: POST, rate_limit: {requests_per_unit: 1, unit: year}}
      - {key: method, rate_limit: {requests_per_unit: 2, unit: year}}
";
    let by_method = "
- actions:
  - {request_headers: {header_name: ':path', descriptor_key: path}}
  - {request_headers: {header_name: ':method', descriptor_key: method}}
";
    let service = Service::start(rules, &[]);
    let upstream = Upstream::start();
    let routes = route("/orders", by_method) + &route("/health", by_method);
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();
    let status = |method: &str, path: &str| http_over(envoy.connect(), method, path, &[], "").status;

    assert_eq!([(); 2].map(|()| status("POST", "/orders")), [200, 429]);
    assert_eq!([(); 3].map(|()| status("GET", "/orders")), [200, 200, 429], "reading has a limit of its own");
    assert_eq!([(); 3].map(|()| status("PUT", "/orders")), [200, 200, 429], "and so has every other method");
    assert_eq!([(); 3].map(|()| status("POST", "/health")), [200, 200, 200], "a path without a rule is not limited");
}

#[test]
fn nested_descriptors_meet_the_rule_of_their_depth() {
    let rules = "
domain: edge
descriptors:
  - key: tenant
    rate_limit: {requests_per_unit: 3, unit: year}
    descriptors:
      - {key: user, value: root, rate_limit: {unlimited: true}}
      - {key: user, rate_limit: {requests_per_unit: 2, unit: year}}
";
    let by_user_of_tenant = "
- actions:
  - {request_headers: {header_name: x-tenant, descriptor_key: tenant}}
  - {request_headers: {header_name: x-user, descriptor_key: user, skip_if_absent: true}}
";
    let service = Service::start(rules, &[]);
    let upstream = Upstream::start();
    let routes = route("/", by_user_of_tenant);
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();
    let status = |headers: &[(&str, &str)]| envoy.get("/", headers).status;

    assert_eq!([(); 3].map(|()| status(&[("x-tenant", "acme"), ("x-user", "ann")])), [200, 200, 429]);
    assert_eq!(status(&[("x-tenant", "acme"), ("x-user", "bob")]), 200, "another user of the tenant");
    assert_eq!(status(&[("x-tenant", "globex"), ("x-user", "ann")]), 200, "the user's name at another tenant");
    assert_eq!([(); 4].map(|()| status(&[("x-tenant", "acme"), ("x-user", "root")])), [200; 4]);
    let anonymous = [(); 4].map(|()| status(&[("x-tenant", "acme")]));
    assert_eq!(anonymous, [200, 200, 200, 429], "users have not used up what the tenant has without them");
}

const TWO_RULES: &str = "
domain: edge
descriptors:
  - {key: tenant, rate_limit: {requests_per_unit: 5, unit: year}}
  - {key: user, rate_limit: {requests_per_unit: 2, unit: year}}
";

#[test]
fn several_rate_limits_of_a_route_are_charged_together_or_not_at_all() {
    let by_tenant_and_by_user = "
- actions: [{request_headers: {header_name: x-tenant, descriptor_key: tenant}}]
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
";
    let service = Service::start(TWO_RULES, &[]);
    let upstream = Upstream::start();
    let routes = route("/", by_tenant_and_by_user);
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();
    let status = |user: &str| envoy.get("/", &[("x-tenant", "acme"), ("x-user", user)]).status;

    assert_eq!([(); 4].map(|()| status("ann")), [200, 200, 429, 429]);
    assert_eq!(service.counted("edge", "tenant=acme"), 2, "what the user's limit denied is not charged to the tenant");
    assert_eq!(["bob", "bob", "cid", "cid"].map(status), [200, 200, 200, 429], "then the tenant's five are used up");
    assert_eq!(service.counted("edge", "user=cid"), 1, "what the tenant's limit denied is not charged to the user");
}

#[test]
fn what_one_stage_charged_stays_charged_when_the_next_denies() {
    let in_two_stages = "
- stage: 0
  actions: [{request_headers: {header_name: x-tenant, descriptor_key: tenant}}]
- stage: 1
  actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
";
    let service = Service::start(TWO_RULES, &[]);
    let upstream = Upstream::start();
    let [first, second] = [0, 1].map(|stage| rate_limit_filter(&format!("failure_mode_deny: true\nstage: {stage}")));
    let routes = route("/", in_two_stages);
    let bootstrap = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&first).filter(&second);
    let envoy = bootstrap.start();
    let status = |user: &str| envoy.get("/", &[("x-tenant", "acme"), ("x-user", user)]).status;

    assert_eq!([(); 4].map(|()| status("ann")), [200, 200, 429, 429]);
    assert_eq!(service.counted("edge", "tenant=acme"), 4, "each stage is a call of its own");
    assert_eq!(["bob", "bob"].map(status), [200, 429]);
    assert_eq!(service.counted("edge", "user=bob"), 1, "the second stage is not asked once the first denies");
}
