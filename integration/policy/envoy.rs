//! What clients of a real Envoy see of a rule's policy: answers, whatever the filter would make of an error.

use std::cell::Cell;

use crate::support::envoy_proxy::{Bootstrap, Cluster, Envoy, rate_limit_filter, route};
use crate::support::fleet::PATIENT;
use crate::support::harness::{HttpAnswer, Service};
use crate::support::redis::RedisServer;
use crate::support::upstream::Upstream;
use crate::support::verdict::until_layer;

/// Security asks the owner, cost refuses and comfort goes on without Redis, unless a rule says otherwise.
const RULES: &str = "
domain: edge
descriptors:
  - {key: login, rate_limit: {requests_per_unit: 3, unit: year, class: security}}
  - key: tier
    value: free
    descriptors:
      - {key: user, rate_limit: {requests_per_unit: 3, unit: year, class: cost}}
  - key: tier
    value: paid
    descriptors:
      - {key: user, rate_limit: {requests_per_unit: 3, unit: year, class: cost, on_outage: allow}}
  - {key: page, rate_limit: {requests_per_unit: 3, unit: year, class: comfort}}
";

fn header_as(header: &str, key: &str) -> String {
    format!("{{request_headers: {{header_name: {header}, descriptor_key: {key}}}}}")
}

fn routes() -> String {
    let actions = |actions: &[String]| format!("- actions: [{}]", actions.join(", "));
    let [tier, user] = [header_as("x-tier", "tier"), header_as("x-user", "user")];
    route("/login", &actions(&[header_as("x-user", "login")]))
        + &route("/cost", &actions(&[tier, user]))
        + &route("/page", &actions(&[header_as("x-user", "page")]))
}

/// An Envoy with a failure mode, and the users that it alone has.
struct Edge {
    envoy: Envoy,
    mode: &'static str,
    asked: Cell<u64>,
}

impl Edge {
    fn before(service: &Service, upstream: &Upstream, mode: &'static str) -> Edge {
        let bootstrap = Bootstrap::new(&routes(), upstream, Cluster::at(service.grpc));
        Edge { envoy: bootstrap.filter(&rate_limit_filter(mode)).start(), mode, asked: Cell::new(0) }
    }

    fn get(&self, path: &str, tier: &str, user: &str) -> HttpAnswer {
        self.asked.update(|asked| asked + 1);
        let user = format!("{user} {}", self.mode);
        self.envoy.get(path, &[("x-tier", tier), ("x-user", &user)])
    }

    /// The status of so many requests.
    fn statuses<const N: usize>(&self, path: &str, tier: &str, user: &str) -> [u16; N] {
        [(); N].map(|()| self.get(path, tier, user).status)
    }

    /// A request that is denied, for this reason, until it may come again.
    fn assert_denied(&self, path: &str, tier: &str, user: &str, reason: Option<&str>) {
        let denied = self.get(path, tier, user);
        assert_eq!(denied.status, 429, "{}: {denied:?}", self.mode);
        assert_eq!(denied.header("x-ratelimit-reason"), reason, "{}: {denied:?}", self.mode);
        let wait = denied.header("retry-after").and_then(|wait| wait.parse::<u64>().ok());
        assert!(wait.is_some_and(|wait| wait >= 1), "{}: {denied:?}", self.mode);
        assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"), "{}: {denied:?}", self.mode);
    }

    /// The filter has had a verdict for every request.
    fn assert_no_error(&self) {
        let answers = ["ok", "over_limit"].map(|name| self.envoy.stat(&format!("cluster.upstream.ratelimit.{name}")));
        assert_eq!(answers.iter().sum::<u64>(), self.asked.get(), "{}: {answers:?}", self.mode);
    }
}

#[test]
fn clients_are_answered_as_each_rule_says_and_never_by_the_failure_mode() {
    let (mut redis, owner) = (RedisServer::start(), RedisServer::start());
    let env = [
        ("REDIS_URL", redis.url()),
        ("STRICT_REDIS_URL", owner.url()),
        (PATIENT.0, PATIENT.1.to_owned()),
        ("TIDEGATE_STRICT_TIMEOUT", PATIENT.1.to_owned()),
    ];
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let service = Service::start_with(RULES, &[], &env);
    let upstream = Upstream::start();
    let edges =
        ["failure_mode_deny: true", "failure_mode_deny: false"].map(|mode| Edge::before(&service, &upstream, mode));
    for layer in ["regional", "strict"] {
        until_layer([&service], layer, true);
    }
    for edge in &edges {
        for (path, tier) in [("/login", "any"), ("/cost", "free"), ("/cost", "paid"), ("/page", "any")] {
            assert_eq!(edge.statuses(path, tier, "usual"), [200, 200, 200], "{path} {tier}, {}", edge.mode);
            // It is over its limit, and that is all there is to say.
            edge.assert_denied(path, tier, "usual", None);
        }
    }

    owner.stop();
    until_layer([&service], "strict", false);
    for edge in &edges {
        edge.assert_denied("/login", "any", "ann", Some("outage_deny"));
        assert_eq!(edge.statuses("/cost", "free", "ann"), [200], "the others do not need the owner");
        assert_eq!(edge.statuses("/page", "any", "ann"), [200]);
    }
    owner.cont();
    until_layer([&service], "strict", true);

    redis.kill();
    until_layer([&service], "regional", false);
    for edge in &edges {
        edge.assert_denied("/cost", "free", "bob", Some("outage_deny"));
        assert_eq!(edge.statuses("/cost", "paid", "bob"), [200; 10], "who pays passes, above the limit too");
        assert_eq!(edge.statuses("/page", "any", "bob"), [200; 3]);
        edge.assert_denied("/page", "any", "bob", Some("outage_local"));
        assert_eq!(edge.statuses("/login", "any", "bob"), [200; 3], "the owner is another one");
        edge.assert_denied("/login", "any", "bob", None);
    }
    redis.restart_empty();
    until_layer([&service], "regional", true);
    for edge in &edges {
        assert_eq!(edge.statuses("/cost", "free", "cat"), [200, 200, 200]);
        edge.assert_denied("/cost", "free", "cat", None);
        edge.assert_no_error();
    }
}
