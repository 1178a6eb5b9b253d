//! Instances behind a real Envoy that stop and start again, one after the other, under traffic: no request fails.
//!
//! The filter denies when it gets no answer, so a call that fails is a request that fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::envoy_proxy::{Bootstrap, Cluster, Envoy, FRONT, denying_filter, route};
use crate::support::harness::{HttpAnswer, PATIENCE, Service, free_port, http, rule_file, until, until_equal};
use crate::support::upstream::Upstream;

const RULES: &str = "
domain: edge
descriptors:
  - {key: everybody, rate_limit: {requests_per_unit: 1000000, unit: year}}
";
const TOGETHER: &str = "- actions: [{generic_key: {descriptor_key: everybody, descriptor_value: all}}]";
const HITS: &str = "ratelimit_service_rate_limit_total_hits{domain=\"edge\",key1=\"everybody\"}";

/// Envoy looks often, also at instances that it has not called yet: by default it asks those once a minute.
const HEALTH: &str = "
health_checks:
- timeout: 5s
  interval: 0.2s
  no_traffic_interval: 0.2s
  unhealthy_threshold: 2
  healthy_threshold: 1
  grpc_health_check: {service_name: ratelimit}
";

/// A call that fails on one instance is made again on the other.
const RETRYING_FILTER: &str = "
- name: envoy.filters.http.ratelimit
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
    domain: edge
    timeout: 30s
    failure_mode_deny: true
    rate_limit_service:
      transport_api_version: V3
      grpc_service:
        envoy_grpc: {cluster_name: tidegate}
        retry_policy:
          retry_on: unavailable,connect-failure,refused-stream,reset
          num_retries: 2
          retry_host_predicate:
          - name: envoy.retry_host_predicates.previous_hosts
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
          host_selection_retry_max_attempts: 3
";

/// Clients that ask one request after the other until they are told to stop.
struct Traffic {
    is_over: Arc<AtomicBool>,
    passed: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Vec<HttpAnswer>>>,
}

impl Traffic {
    fn start(front: SocketAddr) -> Traffic {
        let (is_over, passed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = || {
            let (is_over, passed) = (Arc::clone(&is_over), Arc::clone(&passed));
            std::thread::spawn(move || {
                let mut failed = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let answer = http(front, "GET", "/", "");
                    match answer.status {
                        200 => _ = passed.fetch_add(1, Ordering::Relaxed),
                        _ => failed.push(answer),
                    }
                    // The pace of the traffic.
                    std::thread::sleep(Duration::from_millis(4));
                }
                failed
            })
        };
        let clients = (0..4).map(|_| client()).collect();
        Traffic { is_over, passed, clients }
    }

    /// Waits until some more requests have passed.
    fn goes_on(&self) {
        let before = self.passed.load(Ordering::Relaxed);
        until(PATIENCE, "requests pass", || (self.passed.load(Ordering::Relaxed) > before + 50).then_some(()));
    }

    /// Those that failed.
    fn end(self) -> Vec<HttpAnswer> {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    }
}

fn start(instances: &[Service; 2], upstream: &Upstream, filter: &str) -> Envoy {
    let [one, other] = instances.each_ref().map(|instance| Cluster::at(instance.grpc));
    let envoy = Bootstrap::new(&route("/", TOGETHER), upstream, one.and(&other).with(HEALTH)).filter(filter).start();
    until_equal(PATIENCE, 2, || envoy.stat("cluster.tidegate.membership_healthy"));
    envoy
}

fn until_asked(instance: &Service) {
    until(PATIENCE, "the instance is asked", || instance.metric(HITS).filter(|hits| *hits > 0.0));
}

/// Stops each of two instances in turn and starts it again where it was, while clients go on.
fn assert_no_request_fails(filter: &str, signal: &str, code: Option<i32>) {
    let (_directory, rules) = rule_file(RULES);
    let mut instances = [free_port(), free_port()].map(|port| Service::on_port(&rules, port));
    let upstream = Upstream::start();
    let envoy = start(&instances, &upstream, filter);
    let traffic = Traffic::start(envoy.listener(FRONT));
    for restarted in 0..2 {
        instances.iter().for_each(until_asked);
        let port = instances[restarted].grpc.port();
        instances[restarted].process.signal(signal);
        let status = instances[restarted].process.ends_within(PATIENCE).expect("the instance ends");
        assert_eq!(status.code(), code, "{:?}", instances[restarted].process.said);
        until_equal(PATIENCE, 1, || envoy.stat("cluster.tidegate.membership_healthy"));
        traffic.goes_on();
        instances[restarted] = Service::on_port(&rules, port);
        until_equal(PATIENCE, 2, || envoy.stat("cluster.tidegate.membership_healthy"));
    }
    instances.iter().for_each(until_asked);
    let failed = traffic.end();
    assert!(failed.is_empty(), "{} failed, such as {:?}", failed.len(), failed.first());
}

#[test]
fn instances_are_restarted_one_after_the_other_and_no_request_fails() {
    assert_no_request_fails(&denying_filter(), "TERM", Some(0));
}

#[test]
fn with_retries_no_request_fails_even_if_instances_are_killed() {
    assert_no_request_fails(RETRYING_FILTER, "TERM", Some(0));
    assert_no_request_fails(RETRYING_FILTER, "KILL", None);
}
