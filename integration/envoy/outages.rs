//! What clients of a real Envoy see while the service is gone: what the filter's failure mode says, and limits again once the
//! service is back.

use crate::support::envoy_proxy::{Bootstrap, Cluster, rate_limit_filter, route};
use crate::support::harness::{PATIENCE, Service, free_port, rule_file, until_equal};
use crate::support::upstream::Upstream;

const RULES: &str = "
domain: edge
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 1, unit: year}}
";
const BY_USER: &str = "- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]";

fn assert_without_the_service(failure_mode: &str, without: u16) {
    let (_directory, rules) = rule_file(RULES);
    let service = Service::on_port(&rules, free_port());
    let address = service.grpc;
    let upstream = Upstream::start();
    let bootstrap = Bootstrap::new(&route("/", BY_USER), &upstream, Cluster::at(address));
    let envoy = bootstrap.filter(&rate_limit_filter(failure_mode)).start();
    let status = |user: &str| envoy.get("/", &[("x-user", user)]).status;

    assert_eq!(["ann", "ann", "bob"].map(status), [200, 429, 200], "{failure_mode}");
    drop(service);
    assert_eq!(["ann", "ann", "bob"].map(status), [without; 3], "{failure_mode}, and nobody is asked");
    assert_eq!(envoy.get("/", &[]).status, 200, "{failure_mode}: where there is nothing to ask, nothing fails");

    let _service = Service::on_port(&rules, address.port());
    // Envoy waits a moment before it connects anew. Who was asked for in that moment may have been counted or not.
    let mut users = 0;
    until_equal(PATIENCE, [200, 429], || {
        users += 1;
        [(); 2].map(|()| status(&format!("user {users}")))
    });
}

#[test]
fn without_the_service_requests_pass_or_are_denied_as_the_filter_says() {
    assert_without_the_service("failure_mode_deny: false", 200);
    assert_without_the_service("failure_mode_deny: true", 500);
    assert_without_the_service("failure_mode_deny: true\nstatus_on_error: {code: 503}", 503);
}
