//! What clients and operators read in an answer that came through a real Envoy: its headers, and the line in the access log
//! that says which rule denied.

use crate::support::envoy_proxy::{Bootstrap, Cluster, denying_filter, rate_limit_filter, route};
use crate::support::harness::{HttpAnswer, Service};
use crate::support::upstream::Upstream;

const YEAR_S: u64 = 31_536_000;

const RULES: &str = "
domain: edge
descriptors:
  - {key: tenant, rate_limit: {requests_per_unit: 5, unit: year, name: of_tenant}}
  - {key: user, rate_limit: {requests_per_unit: 2, unit: year}}
";
const BY_TENANT_AND_BY_USER: &str = "
- actions: [{request_headers: {header_name: x-tenant, descriptor_key: tenant}}]
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
";
const ANN: &[(&str, &str)] = &[("x-tenant", "acme"), ("x-user", "ann")];

fn seconds(answer: &HttpAnswer, header: &str) -> u64 {
    let value = answer.header(header).unwrap_or_else(|| panic!("no {header}: {answer:?}"));
    value.parse().unwrap_or_else(|error| panic!("{header}: {error}: {answer:?}"))
}

/// A denial says when to come back, which is within two windows, and says the same in both headers.
fn assert_says_when(denied: &HttpAnswer, reset: &str) {
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait_s = seconds(denied, "retry-after");
    assert!((1..=2 * YEAR_S).contains(&wait_s), "{denied:?}");
    assert_eq!(seconds(denied, reset), wait_s);
}

#[test]
fn the_headers_of_the_draft_name_every_limit_and_tell_of_the_nearest() {
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let filter = rate_limit_filter("failure_mode_deny: true\nenable_x_ratelimit_headers: DRAFT_VERSION_03");
    let routes = route("/", BY_TENANT_AND_BY_USER);
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&filter).start();
    let both = "5;w=31536000;name=\"of_tenant\", 2;w=31536000";

    for left in ["1", "0"] {
        let passed = envoy.get("/", ANN);
        assert_eq!((passed.status, passed.header("x-ratelimit-remaining")), (200, Some(left)));
        assert_eq!(passed.header("x-ratelimit-limit"), Some(format!("2, {both}").as_str()));
        assert!((1..=YEAR_S).contains(&seconds(&passed, "x-ratelimit-reset")), "{passed:?}");
        assert_eq!(passed.header("retry-after"), None);
    }
    let denied = envoy.get("/", ANN);
    assert_eq!(denied.header("x-ratelimit-limit"), Some(format!("2, {both}").as_str()));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert_says_when(&denied, "x-ratelimit-reset");

    let tenant = envoy.get("/", &[("x-tenant", "acme")]);
    assert_eq!(tenant.header("x-ratelimit-limit"), Some("5, 5;w=31536000;name=\"of_tenant\""));
    assert_eq!(tenant.header("x-ratelimit-remaining"), Some("2"), "the denied request was not charged");
    let unlimited = envoy.get("/", &[]);
    assert_eq!((unlimited.status, unlimited.header("x-ratelimit-limit")), (200, None));
}

#[test]
fn the_service_adds_its_own_headers_and_retry_after_to_denials_only() {
    let renamed = [
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "x-limit"),
        ("LIMIT_REMAINING_HEADER", "x-left"),
        ("LIMIT_RESET_HEADER", "x-reset"),
    ];
    for (env, [limit, remaining, reset]) in [
        (&renamed[..1], ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]),
        (&renamed[..], ["x-limit", "x-left", "x-reset"]),
    ] {
        let service = Service::start_with(RULES, &[], env);
        let upstream = Upstream::start();
        let routes = route("/", BY_TENANT_AND_BY_USER);
        let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();
        for left in ["1", "0"] {
            let passed = envoy.get("/", ANN);
            assert_eq!(passed.status, 200, "{passed:?}");
            assert_eq!((passed.header(limit), passed.header(remaining)), (Some("2"), Some(left)), "{passed:?}");
            assert!((1..=YEAR_S).contains(&seconds(&passed, reset)), "{passed:?}");
            assert_eq!(passed.header("retry-after"), None);
        }
        let denied = envoy.get("/", ANN);
        assert_eq!((denied.header(limit), denied.header(remaining)), (Some("2"), Some("0")), "{denied:?}");
        assert_says_when(&denied, reset);
    }
}

#[test]
fn without_settings_a_denial_says_when_to_come_back_and_nothing_else() {
    for (env, says) in [(&[][..], true), (&[("TIDEGATE_RETRY_AFTER", "false")][..], false)] {
        let service = Service::start_with(RULES, &[], env);
        let upstream = Upstream::start();
        let routes = route("/", BY_TENANT_AND_BY_USER);
        let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();
        let answers = [(); 3].map(|()| envoy.get("/", ANN));
        assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429]);
        let is_limit = |(name, _): &(String, String)| name.to_ascii_lowercase().contains("limit-");
        assert!(!answers.iter().flat_map(|answer| &answer.headers).any(is_limit), "{answers:?}");
        assert_eq!(answers.map(|answer| answer.header("retry-after").is_some()), [false, false, says]);
    }
}

#[test]
fn the_access_log_says_which_rule_denied() {
    const OURS: &str = "envoy.filters.http.ratelimit:tidegate";
    let format =
        format!("access %RESPONSE_CODE% rule=%DYNAMIC_METADATA({OURS}:rule)% reason=%DYNAMIC_METADATA({OURS}:reason)%");
    let rules = "
domain: edge
descriptors:
  - key: tenant
    value: acme
    descriptors:
      - {key: user, rate_limit: {requests_per_unit: 1, unit: year}}
";
    let by_user_of_tenant = "
- actions:
  - {request_headers: {header_name: x-tenant, descriptor_key: tenant}}
  - {request_headers: {header_name: x-user, descriptor_key: user}}
";
    let service = Service::start_with(rules, &[], &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let upstream = Upstream::start();
    let bootstrap = Bootstrap::new(&route("/", by_user_of_tenant), &upstream, Cluster::at(service.grpc));
    let mut envoy = bootstrap.filter(&denying_filter()).access_log(&format).start();
    for (tenant, line) in [
        ("acme", "access 200 rule=tenant=acme/user reason=within_limit"),
        ("acme", "access 429 rule=tenant=acme/user reason=over_limit"),
        ("globex", "access 200 rule=- reason=no_rule"),
    ] {
        envoy.get("/", &[("x-tenant", tenant), ("x-user", "ann")]);
        assert_eq!(envoy.process.line_with("access "), line);
    }
}
