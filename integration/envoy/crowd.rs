//! A crowd at a real Envoy: more than a thousand requests at once, each of them answered, and as many passed as the limit says.

use crate::support::envoy_proxy::{Bootstrap, Cluster, denying_filter, route};
use crate::support::harness::{HttpAnswer, PATIENCE, Service, receive_http, send_http, until_equal};
use crate::support::upstream::{BODY, Upstream};

const LIMIT: usize = 1000;
const CROWD: usize = 1200;

const RULES: &str = "
domain: edge
descriptors:
  - {key: everybody, rate_limit: {requests_per_unit: 1000, unit: year}}
";
const TOGETHER: &str = "- actions: [{generic_key: {descriptor_key: everybody, descriptor_value: all}}]";

#[test]
fn of_a_crowd_that_is_in_flight_at_once_as_many_pass_as_the_limit_says() {
    // Both ends of every connection but Envoy's are here.
    rlimit::increase_nofile_limit(8192).unwrap();
    let service = Service::start(RULES, &[]);
    let upstream = Upstream::start();
    let routes = route("/", TOGETHER);
    let envoy = Bootstrap::new(&routes, &upstream, Cluster::at(service.grpc)).filter(&denying_filter()).start();

    // First all are in flight between Envoy and the service, which stands still.
    upstream.hold();
    service.process.signal("STOP");
    let mut requests: Vec<_> = (0..CROWD).map(|_| envoy.connect()).collect();
    requests.iter_mut().for_each(|stream| send_http(stream, "GET", "/", &[], b""));
    until_equal(PATIENCE, CROWD as u64, || envoy.stat("cluster.tidegate.upstream_rq_total"));
    assert_eq!(envoy.stat("cluster.tidegate.upstream_rq_active"), CROWD as u64);
    service.process.signal("CONT");
    // Then those that pass are in flight between Envoy and the upstream, which lets them wait.
    until_equal(PATIENCE, LIMIT, || upstream.held());
    until_equal(PATIENCE, (CROWD - LIMIT) as u64, || envoy.stat("http.front.downstream_rq_4xx"));
    upstream.release();

    let answers: Vec<HttpAnswer> = requests.into_iter().map(receive_http).collect();
    let passed = answers.iter().filter(|answer| (answer.status, answer.body.as_str()) == (200, BODY)).count();
    let denied = answers.iter().filter(|answer| answer.status == 429 && answer.header("retry-after").is_some()).count();
    assert_eq!((passed, denied), (LIMIT, CROWD - LIMIT));
    assert_eq!(service.counted("edge", "everybody=all"), LIMIT as u64);
}
