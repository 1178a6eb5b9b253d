//! How a real Envoy reaches the service: over TLS with its default settings, and on a unix socket.

use crate::support::certificates::{Authority, Files, Pair, SERVER};
use crate::support::envoy_proxy::{Bootstrap, Cluster, Envoy, denying_filter, route};
use crate::support::harness::{Process, Service, rule_file, tidegate};
use crate::support::upstream::Upstream;

const RULES: &str = "
domain: edge
descriptors:
  - {key: api_key, rate_limit: {requests_per_unit: 2, unit: year}}
";

fn start(upstream: &Upstream, service: Cluster) -> Envoy {
    let by_key = "- actions: [{request_headers: {header_name: x-api-key, descriptor_key: api_key}}]";
    Bootstrap::new(&route("/", by_key), upstream, service).filter(&denying_filter()).start()
}

/// The limit of two holds, and nothing else goes wrong on the way: without an answer, Envoy would say 500.
fn assert_limits(envoy: &Envoy) {
    for status in [200, 200, 429, 429] {
        let answer = envoy.get("/", &[("x-api-key", "alice")]);
        assert_eq!(answer.status, status, "{answer:?}");
    }
}

#[test]
fn envoy_with_a_certificate_is_answered_over_tls_and_one_with_another_name_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let [servers, clients] = ["servers", "clients"].map(Authority::new);
    let files = Files::in_directory(directory.path(), &servers.issue(&[SERVER]), &clients);
    let brings = |own: &Pair| {
        files.replace(&[("servers.crt", &servers.pem()), ("edge.crt", &own.certificate), ("edge.key", &own.key)]);
    };
    let workload = "spiffe://example.org/ns/edge/sa/envoy";
    let mut flags = files.mtls_flags();
    flags.extend(["--grpc-client-tls-san".to_owned(), workload.to_owned()]);
    let mut service = Service::start(RULES, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let upstream = Upstream::start();

    brings(&clients.issue(&["spiffe://example.org/ns/other/sa/envoy"]));
    let other = start(&upstream, Cluster::at(service.grpc).tls(directory.path()));
    assert_eq!(other.get("/", &[("x-api-key", "alice")]).status, 500, "no answer, so it denies");
    service.process.line_with("none of its names (spiffe://example.org/ns/other/sa/envoy) is in");

    brings(&clients.issue(&[workload]));
    assert_limits(&start(&upstream, Cluster::at(service.grpc).tls(directory.path())));
}

#[test]
fn envoy_is_answered_on_a_unix_socket() {
    let (directory, rules) = rule_file(RULES);
    let socket = directory.path().join("grpc.sock");
    let mut command = tidegate(&["serve", "--rules", &rules, "--host", "127.0.0.1", "--port", "0"]);
    command.arg("--grpc-uds").arg(&socket);
    let mut process = Process::start(command);
    process.line_with("tidegate: serving");
    assert_limits(&start(&Upstream::start(), Cluster::at_socket(&socket)));
}
