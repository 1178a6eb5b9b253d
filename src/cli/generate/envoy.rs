//! `tidegate gen envoy`: the filter, the actions and the cluster, alone or in a bootstrap that runs.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::cli::generate::plan::GatewayPlan;
use crate::cli::yaml::{element, in_comment, indented, quoted, yaml};

/// The cluster's name, and what the filter calls it by.
const CLUSTER: &str = "tidegate";

/// Where the service is, or the bootstrap's upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceTarget {
    Tcp { host: String, port: u16 },
    Unix { path: PathBuf },
}

impl ServiceTarget {
    /// `host:port` or `unix:/path`, as typed.
    pub fn read(typed: &str) -> Result<ServiceTarget, String> {
        let wrong = || format!("'{typed}' is no address: write HOST:PORT or unix:/PATH");
        if let Some(path) = typed.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(ServiceTarget::Unix { path }) } else { Err(wrong()) };
        }
        let (host, port) = typed.rsplit_once(':').ok_or_else(wrong)?;
        let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match in_brackets {
            Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)),
        };
        let is_number = port.chars().all(|c| c.is_ascii_digit());
        match port.parse() {
            Ok(port) if port > 0 && is_host && is_number => {
                Ok(ServiceTarget::Tcp { host: in_brackets.unwrap_or(host).to_owned(), port })
            }
            _ => Err(wrong()),
        }
    }

    /// Envoy's form of the address, on one line.
    fn address(&self) -> String {
        match self {
            ServiceTarget::Tcp { host, port } => {
                format!("{{socket_address: {{address: {}, port_value: {port}}}}}", quoted(host))
            }
            ServiceTarget::Unix { path } => format!("{{pipe: {{path: {}}}}}", quoted(&path.to_string_lossy())),
        }
    }

    /// Names are looked up, addresses are not.
    fn discovery(&self) -> &'static str {
        match self {
            ServiceTarget::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_err() => "STRICT_DNS",
            _ => "STATIC",
        }
    }
}

/// What a bootstrap has around the parts.
#[derive(Clone, Debug)]
pub(crate) struct Around {
    /// The port of its listener, on all IPv4 addresses.
    pub listen_port: u16,
    /// Proxies in front whose X-Forwarded-For is believed.
    pub trusted_hops: u32,
    /// Where requests that pass go.
    pub upstream: ServiceTarget,
}

/// The parts, each with a comment on where it belongs; with `around`, all of them in place.
pub(crate) fn document(plan: &GatewayPlan, service: &ServiceTarget, around: Option<&Around>) -> String {
    let (filter, cluster) = (element(&filter(plan, CLUSTER, None)), element(&cluster(CLUSTER, service)));
    let rate_limits = rate_limits(plan);
    match around {
        Some(around) => bootstrap(plan, around, &filter, &rate_limits, &cluster),
        None => format!(
            "# 1. Into http_filters of the connection manager, before envoy.filters.http.router.
http_filters:
{filter}
# For the path to be one and the same however it is written, beside them: normalize_path, merge_slashes, and
# path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT.

# 2. Onto the virtual host, or onto the routes that they are meant for.
rate_limits:
{rate_limits}
# 3. To the other clusters.
clusters:
{cluster}"
        ),
    }
}

/// The HTTP filter. Without `authority`, Envoy names the cluster as the authority of its calls.
pub(crate) fn filter(plan: &GatewayPlan, cluster: &str, authority: Option<&str>) -> String {
    let mut why = String::new();
    if !plan.denying.is_empty() {
        let _ = writeln!(why, "  # Rules that deny in an outage: {}.", in_comment(&plan.denying.join(", ")));
    }
    let authority = authority.map(|name| format!(", authority: {}", quoted(name))).unwrap_or_default();
    format!(
        "name: envoy.filters.http.ratelimit
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
  domain: {domain}
  timeout: {timeout}s
  # What happens to a request when no answer comes: {what}.
{why}  failure_mode_deny: {deny}
  enable_x_ratelimit_headers: DRAFT_VERSION_03
  rate_limit_service:
    transport_api_version: V3
    grpc_service:
      envoy_grpc: {{cluster_name: {cluster}{authority}}}
      # An instance that stops hands its calls to another one.
      retry_policy:
        retry_on: unavailable,connect-failure,refused-stream,reset
        num_retries: 2
        retry_host_predicate:
        - name: envoy.retry_host_predicates.previous_hosts
          typed_config:
            '@type': type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
        host_selection_retry_max_attempts: 3
",
        domain = quoted(&plan.domain),
        timeout = plan.timeout.as_secs_f64(),
        what = if plan.failure_mode_deny { "it is refused with 500" } else { "it passes" },
        deny = plan.failure_mode_deny,
        cluster = quoted(cluster),
    )
}

/// The actions, as a list.
pub(crate) fn rate_limits(plan: &GatewayPlan) -> String {
    let mut text = String::new();
    for descriptor in &plan.descriptors {
        let _ = writeln!(text, "# {}", in_comment(&descriptor.rules.join(", ")));
        if descriptor.entries.iter().any(|(_, value)| value.is_some()) {
            text += "# Sent with every request here: move it to the routes that it is meant for.\n";
        }
        text += &element(&format!("actions:\n{}", yaml(&Value::from(descriptor.actions.clone()))));
    }
    text
}

fn cluster(name: &str, service: &ServiceTarget) -> String {
    format!(
        "name: {name}
type: {discovery}
connect_timeout: 1s
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config: {{http2_protocol_options: {{}}}}
# An instance that stops says so for two seconds before it goes.
health_checks:
- timeout: 0.5s
  interval: 0.5s
  no_traffic_interval: 0.5s
  unhealthy_threshold: 2
  healthy_threshold: 1
  grpc_health_check: {{}}
common_lb_config: {{update_merge_window: 0s}}
# The default of 3 is too few for the calls of an instance that stops.
circuit_breakers: {{thresholds: [{{max_retries: 1024, max_requests: 100000, max_pending_requests: 100000}}]}}
load_assignment:
  cluster_name: {name}
  endpoints: [{{lb_endpoints: [{{endpoint: {{address: {address}}}}}]}}]
",
        discovery = service.discovery(),
        address = service.address(),
    )
}

fn bootstrap(plan: &GatewayPlan, around: &Around, filter: &str, rate_limits: &str, cluster: &str) -> String {
    let Around { listen_port, trusted_hops, upstream } = around;
    format!(
        "admin:
  address: {{socket_address: {{address: 127.0.0.1, port_value: 9901}}}}
static_resources:
  listeners:
  - name: front
    address: {{socket_address: {{address: 0.0.0.0, port_value: {listen_port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          # Whose address counts: with 0 that of the connection, with more what so many proxies in front forward.
          use_remote_address: true
          xff_num_trusted_hops: {trusted_hops}
          # Other spellings of a path are the same path.
          normalize_path: true
          merge_slashes: true
          path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT
          route_config:
            virtual_hosts:
            - name: {domain}
              domains: ['*']
              rate_limits:
{rate_limits}              routes:
              - match: {{prefix: /}}
                route: {{cluster: upstream}}
          http_filters:
{filter}          - name: envoy.filters.http.router
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: upstream
    type: {discovery}
    connect_timeout: 1s
    load_assignment:
      cluster_name: upstream
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {address}}}}}]}}]
{cluster}",
        domain = quoted(&plan.domain),
        rate_limits = indented(14, rate_limits),
        filter = indented(10, filter),
        discovery = upstream.discovery(),
        address = upstream.address(),
        cluster = indented(2, cluster),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_read_as_it_is_written() {
        let tcp = |host: &str, port| Ok(ServiceTarget::Tcp { host: host.to_owned(), port });
        assert_eq!(ServiceTarget::read("127.0.0.1:8081"), tcp("127.0.0.1", 8081));
        assert_eq!(ServiceTarget::read("[::1]:8081"), tcp("::1", 8081));
        assert_eq!(ServiceTarget::read("tidegate.svc:8081"), tcp("tidegate.svc", 8081));
        assert_eq!(ServiceTarget::read("unix:/run/t.sock"), Ok(ServiceTarget::Unix { path: "/run/t.sock".into() }));
        for typed in [
            "tidegate",
            "tidegate:0",
            ":8081",
            "tidegate:http",
            "unix:run",
            "unix:",
            "::1",
            "[::1",
            "http://a:1",
            "a b:1",
            "a:+1",
        ] {
            assert!(ServiceTarget::read(typed).expect_err(typed).contains("HOST:PORT or unix:/PATH"), "{typed}");
        }
    }

    #[test]
    fn only_names_are_looked_up() {
        let of = |typed: &str| ServiceTarget::read(typed).expect("it is good").discovery();
        assert_eq!(
            [of("10.0.0.1:1"), of("[::1]:1"), of("unix:/s"), of("a.b:1")],
            ["STATIC", "STATIC", "STATIC", "STRICT_DNS"]
        );
    }
}
