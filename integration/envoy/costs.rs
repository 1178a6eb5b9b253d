//! What a request costs, through a real Envoy: costs that the request brings, that its answer tells, and that are
//! given back.

use crate::support::envoy_proxy::{Bootstrap, Cluster, Envoy, denying_filter, route_with_costs};
use crate::support::harness::{PATIENCE, Service, until_equal};
use crate::support::upstream::Upstream;

const RULES: &str = "
domain: edge
descriptors:
  - {key: tokens, rate_limit: {requests_per_unit: 10, unit: year}}
  - {key: known, rate_limit: {requests_per_unit: 10, unit: year, charge: accepted}}
  - {key: fixed, rate_limit: {requests_per_unit: 100, unit: year}}
";

/// Envoy with one route.
fn start(service: &Service, upstream: &Upstream, route: &str, filters: &[&str]) -> Envoy {
    let bootstrap = Bootstrap::new(route, upstream, Cluster::at(service.grpc));
    filters.iter().fold(bootstrap, |bootstrap, filter| bootstrap.filter(filter)).filter(&denying_filter()).start()
}

#[test]
fn each_descriptor_costs_what_metadata_or_the_configuration_says() {
    let cost_of_header = "
- name: envoy.filters.http.header_to_metadata
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
    request_rules:
    - header: x-cost
      on_header_present: {metadata_namespace: edge, key: cost, type: NUMBER}
      on_header_missing: {metadata_namespace: edge, key: cost, value: '1', type: NUMBER}
";
    let rate_limits = "
- actions: [{request_headers: {header_name: x-user, descriptor_key: known}}]
  hits_addend: {format: '%DYNAMIC_METADATA(edge:cost)%'}
- actions: [{request_headers: {header_name: x-user, descriptor_key: fixed}}]
  hits_addend: {number: 30}
";
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let envoy = start(&service, &upstream, &route_with_costs("/", rate_limits), &[cost_of_header]);
    let status = |cost: &str| envoy.get("/", &[("x-user", "ann"), ("x-cost", cost)]).status;
    let counted = || ["known=ann", "fixed=ann"].map(|descriptor| service.counted("edge", descriptor));

    assert_eq!((status("4"), counted()), (200, [4, 30]));
    assert_eq!((status("7"), counted()), (429, [4, 60]), "by default a cost of its own is charged in any case");
    assert_eq!((envoy.get("/", &[("x-user", "ann")]).status, counted()), (200, [5, 90]), "the cost of no header");
    assert_eq!((status("5"), counted()), (429, [5, 120]), "now the fixed cost is too much");
    assert_eq!(envoy.get("/", &[("x-user", "bob"), ("x-cost", "10")]).status, 200, "all at once");
}

#[test]
fn tokens_of_the_answer_are_charged_when_it_is_done_and_the_debt_denies_what_comes_next() {
    let rate_limits = "
- actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
  hits_addend: {number: 0}
- actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
  hits_addend: {format: '%RESP(x-tokens)%'}
  apply_on_stream_done: true
";
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let envoy = start(&service, &upstream, &route_with_costs("/", rate_limits), &[]);
    let status = |tokens: &str| envoy.get("/", &[("x-user", "ann"), ("x-answer-tokens", tokens)]).status;
    // Envoy makes the call after the answer, and tells nobody when it is through.
    let until_counted = |tokens: u64| until_equal(PATIENCE, tokens, || service.counted("edge", "tokens=ann"));

    assert_eq!(status("7"), 200);
    until_counted(7);
    assert_eq!(status("7"), 200, "nobody knew yet what it would cost");
    until_counted(14);
    let answer = envoy.get("/", &[("x-user", "ann"), ("x-answer-tokens", "7")]);
    assert_eq!((answer.status, answer.header("x-tokens")), (429, None));
    assert!(answer.header("retry-after").is_some(), "a debt is worked off some time: {answer:?}");
    assert_eq!(service.counted("edge", "tokens=ann"), 14, "looking costs nothing, and there was no answer to pay for");
    assert_eq!(envoy.get("/", &[("x-user", "bob"), ("x-answer-tokens", "7")]).status, 200);
}

#[test]
fn bytes_of_the_answer_are_charged_when_it_is_done() {
    let rate_limits = "
- actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
  hits_addend: {number: 0}
- actions: [{request_headers: {header_name: x-user, descriptor_key: tokens}}]
  hits_addend: {format: '%BYTES_SENT%'}
  apply_on_stream_done: true
";
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let envoy = start(&service, &upstream, &route_with_costs("/", rate_limits), &[]);
    let mut bytes = 0;
    for _ in 0..2 {
        let answer = envoy.get("/", &[("x-user", "ann")]);
        assert_eq!(answer.status, 200);
        bytes += answer.body.len() as u64;
        until_equal(PATIENCE, bytes, || service.counted("edge", "tokens=ann"));
    }
    assert_eq!(envoy.get("/", &[("x-user", "ann")]).status, 429);
}

#[test]
fn what_an_answer_gives_back_can_be_spent_again() {
    let rate_limits = "
- actions: [{request_headers: {header_name: x-user, descriptor_key: known}}]
  hits_addend: {number: 6}
- actions: [{request_headers: {header_name: x-user, descriptor_key: known}}]
  hits_addend: {format: '%RESP(x-unused)%', is_negative_hits: true}
  apply_on_stream_done: true
";
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let envoy = start(&service, &upstream, &route_with_costs("/", rate_limits), &[]);
    let status = |unused: &str| envoy.get("/", &[("x-user", "ann"), ("x-answer-unused", unused)]).status;
    let until_counted = |hits: u64| until_equal(PATIENCE, hits, || service.counted("edge", "known=ann"));

    assert_eq!(status("4"), 200);
    until_counted(2);
    assert_eq!(status("0"), 200);
    until_counted(8);
    assert_eq!(status("6"), 429, "six more than eight are too many");
    assert_eq!(envoy.get("/", &[("x-user", "bob"), ("x-answer-unused", "100")]).status, 200);
    until_equal(PATIENCE, 0, || service.counted("edge", "known=bob"));
    assert_eq!([(); 2].map(|()| envoy.get("/", &[("x-user", "bob")]).status), [200, 429], "nothing is banked");
}
