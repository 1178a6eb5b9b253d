//! Limits that come with a request, through a real Envoy, and what becomes of one that makes no sense.

use prost::Message;
use tidegate::proto::google::protobuf::value::Kind;
use tidegate::proto::google::protobuf::{Struct, Value};

use crate::support::envoy_proxy::{Bootstrap, Cluster, Envoy, rate_limit_filter, route};
use crate::support::harness::Service;
use crate::support::upstream::Upstream;

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 100, unit: year}}
";

/// A limit as Envoy takes it from a header: a `google.protobuf.Value` in base64.
fn limit(requests_per_unit: u32, unit: &str) -> String {
    let number = Value { kind: Some(Kind::NumberValue(requests_per_unit.into())) };
    let unit = Value { kind: Some(Kind::StringValue(unit.into())) };
    let fields = [("requests_per_unit".to_owned(), number), ("unit".to_owned(), unit)].into();
    let value = Value { kind: Some(Kind::StructValue(Struct { fields })) };
    // gRPC writes binary metadata in base64, too, but without the padding.
    let encoded = tonic::metadata::BinaryMetadataValue::from_bytes(&value.encode_to_vec());
    let mut text = String::from_utf8(encoded.as_encoded_bytes().to_vec()).unwrap();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

const LIMIT_OF_HEADER: &str = "
- name: envoy.filters.http.header_to_metadata
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
    request_rules:
    - header: x-limit
      on_header_present: {metadata_namespace: edge, key: limit, type: PROTOBUF_VALUE, encode: BASE64}
";
const LIMIT_IN_METADATA: &str = "
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  limit: {dynamic_metadata: {metadata_key: {key: edge, path: [{key: limit}]}}}
";

fn start(service: &Service, upstream: &Upstream, failure_mode: &str) -> Envoy {
    let bootstrap = Bootstrap::new(&route("/", LIMIT_IN_METADATA), upstream, Cluster::at(service.grpc));
    bootstrap.filter(LIMIT_OF_HEADER).filter(&rate_limit_filter(failure_mode)).start()
}

#[test]
fn a_request_may_bring_its_limit() {
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let envoy = start(&service, &upstream, "failure_mode_deny: true");
    let status = |user: &str, limit: &str| envoy.get("/", &[("x-user", user), ("x-limit", limit)]).status;

    let two_a_year = limit(2, "YEAR");
    assert_eq!([(); 3].map(|()| status("ann", &two_a_year)), [200, 200, 429]);
    assert_eq!(status("ann", &limit(3, "YEAR")), 200, "the count is the same, the limit is another");
    assert_eq!(service.counted("edge", "user=ann"), 3);
    assert_eq!(envoy.get("/", &[("x-user", "ann")]).status, 200, "without one the rule's limit holds");
    assert_eq!(status("ann", &limit(0, "DAY")), 429, "nothing at all");
    assert_eq!(status("bob", &two_a_year), 200);
}

#[test]
fn a_limit_of_a_unit_that_is_none_is_an_error_that_the_service_counts() {
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    for (number, failure_mode, status) in [
        (1.0, "failure_mode_deny: false", 200),
        (2.0, "failure_mode_deny: true", 500),
        (3.0, "failure_mode_deny: true\nstatus_on_error: {code: 503}", 503),
    ] {
        let envoy = start(&service, &upstream, failure_mode);
        let answer = envoy.get("/", &[("x-user", "ann"), ("x-limit", &limit(2, "UNKNOWN"))]);
        assert_eq!(answer.status, status, "{failure_mode}: {answer:?}");
        assert_eq!(service.metric("tidegate_errors_total{reason=\"invalid\"}"), Some(number), "{failure_mode}");
    }
}
