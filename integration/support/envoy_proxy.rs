//! A real Envoy: how it is configured, how it is asked, and what it reports.
//!
//! Most tests need one listener with routes and filters of their own, and a `Bootstrap` writes that. `Envoy::start` takes any
//! complete bootstrap.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::support::certificates::SERVER;
use crate::support::harness::{HttpAnswer, PATIENCE, Process, http, http_over, run, until};
use crate::support::upstream::Upstream;

/// The listener of a `Bootstrap`.
pub const FRONT: &str = "front";

/// Lets more requests through at once than Envoy does by default.
const CROWDED: &str = "
circuit_breakers:
  thresholds:
  - {max_connections: 10000, max_pending_requests: 10000, max_requests: 10000, max_retries: 10000}
";

/// The binary that `make test` installs.
fn binary() -> PathBuf {
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/lib");
    let pythons = std::fs::read_dir(libraries).into_iter().flatten().flatten();
    pythons
        .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
        .find(|binary| binary.is_file())
        .expect("run make test, which installs Envoy")
}

/// Envoy with a bootstrap in a directory of its own.
fn command(bootstrap: &str) -> (TempDir, Command) {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("envoy.yaml");
    std::fs::write(&config, bootstrap).unwrap();
    let mut command = Command::new(binary());
    command.arg("--config-path").arg(config).args(["--concurrency", "1", "--disable-hot-restart"]);
    (directory, command)
}

/// A running Envoy. It ends when it is dropped.
pub struct Envoy {
    pub process: Process,
    admin: SocketAddr,
    listeners: HashMap<String, SocketAddr>,
    _directory: TempDir,
}

impl Envoy {
    /// Starts Envoy with a complete bootstrap. Its admin port is any free one, whatever the text says.
    pub fn start(bootstrap: &str) -> Envoy {
        let (directory, mut command) = command(bootstrap);
        let admin_path = directory.path().join("admin");
        let any_port = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}";
        command.args(["--config-yaml", any_port, "--log-level", "info"]).arg("--admin-address-path").arg(&admin_path);
        // Files that it writes, above all its access log, are complete at once.
        command.args(["--file-flush-interval-msec", "20"]);
        let mut process = Process::start(command);
        process.line_with("starting main dispatch loop");
        let admin = std::fs::read_to_string(&admin_path).unwrap().trim().parse().expect("an address");
        until(PATIENCE, "Envoy is ready", || (http(admin, "GET", "/ready", "").status == 200).then_some(()));
        Envoy { process, admin, listeners: listeners(admin), _directory: directory }
    }

    /// Has Envoy check a bootstrap without running it. Returns what it says; `Ok` if it would run it.
    pub fn validate(bootstrap: &str) -> Result<String, String> {
        let (_directory, mut command) = command(bootstrap);
        let ran = run(command.args(["--mode", "validate"]));
        let said = ran.stdout + &ran.stderr;
        if ran.code == Some(0) { Ok(said) } else { Err(said) }
    }

    /// Where a listener can be reached from here.
    pub fn listener(&self, name: &str) -> SocketAddr {
        *self.listeners.get(name).unwrap_or_else(|| panic!("no listener '{name}': {:?}", self.listeners))
    }

    /// A statistic of Envoy, by its full name.
    pub fn stat(&self, name: &str) -> u64 {
        let page = http(self.admin, "GET", &format!("/stats?filter=^{name}$"), "").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no figure '{name}': {page:?}"))
    }

    /// A request to the listener of a `Bootstrap`.
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        http_over(self.connect(), "GET", path, headers, "")
    }

    /// A connection to the listener of a `Bootstrap`.
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect_timeout(&self.listener(FRONT), PATIENCE).unwrap()
    }

    /// A connection to that listener from a given address of this machine.
    pub fn connect_from(&self, address: [u8; 4]) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        socket.connect_timeout(&self.listener(FRONT).into(), PATIENCE).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        socket.into()
    }
}

fn listeners(admin: SocketAddr) -> HashMap<String, SocketAddr> {
    let page: Value = serde_json::from_str(&http(admin, "GET", "/listeners?format=json", "").body).unwrap();
    let listener = |status: &Value| {
        let port = status["local_address"]["socket_address"]["port_value"].as_u64()?;
        Some((status["name"].as_str()?.to_owned(), SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).ok()?))))
    };
    page["listener_statuses"].as_array().into_iter().flatten().filter_map(listener).collect()
}

/// Where Envoy finds a cluster, and how it speaks with it.
pub struct Cluster {
    endpoints: String,
    more: String,
}

impl Cluster {
    pub fn at(address: SocketAddr) -> Cluster {
        let (ip, port) = (address.ip(), address.port());
        Cluster::at_endpoint(&format!("{{socket_address: {{address: {ip}, port_value: {port}}}}}"))
    }

    pub fn at_socket(path: &Path) -> Cluster {
        Cluster::at_endpoint(&format!("{{pipe: {{path: {}}}}}", path.display()))
    }

    fn at_endpoint(address: &str) -> Cluster {
        Cluster { endpoints: format!("- endpoint: {{address: {address}}}\n"), more: String::new() }
    }

    /// Adds the endpoints of another cluster.
    pub fn and(mut self, other: &Cluster) -> Cluster {
        self.endpoints += &other.endpoints;
        self
    }

    /// Adds fields.
    pub fn with(mut self, yaml: &str) -> Cluster {
        self.more += &indented(0, yaml);
        self
    }

    /// HTTP/2, as gRPC needs it.
    fn grpc(self) -> Cluster {
        self.with(
            "
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config: {http2_protocol_options: {}}
",
        )
    }

    /// Adds TLS with Envoy's defaults and a certificate of its own. The directory has to have the files.
    pub fn tls(self, files: &Path) -> Cluster {
        let directory = files.display();
        self.with(&format!(
            "
transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    sni: {SERVER}
    common_tls_context:
      tls_certificates:
      - certificate_chain: {{filename: {directory}/edge.crt}}
        private_key: {{filename: {directory}/edge.key}}
      validation_context:
        trusted_ca: {{filename: {directory}/servers.crt}}
        match_typed_subject_alt_names: [{{san_type: DNS, matcher: {{exact: {SERVER}}}}}]
"
        ))
    }

    fn yaml(&self, name: &str) -> String {
        let (endpoints, more) = (indented(4, &self.endpoints), indented(2, &self.more));
        format!(
            "
- name: {name}
  type: STATIC
  connect_timeout: 20s
  load_assignment:
    cluster_name: {name}
    endpoints:
    - lb_endpoints:
{}{more}",
            indented(2, &endpoints)
        )
    }
}

/// One listener, with routes to the cluster `upstream` and filters that may ask the cluster `tidegate`.
pub struct Bootstrap {
    routes: String,
    filters: String,
    access_log: String,
    upstream: Cluster,
    service: Cluster,
}

impl Bootstrap {
    pub fn new(routes: &str, upstream: &Upstream, service: Cluster) -> Bootstrap {
        let (filters, access_log) = (String::new(), String::new());
        let upstream = Cluster::at(upstream.address).with(CROWDED);
        Bootstrap { routes: routes.to_owned(), filters, access_log, upstream, service: service.with(CROWDED).grpc() }
    }

    /// Adds an HTTP filter after the others, before the router.
    pub fn filter(mut self, yaml: &str) -> Bootstrap {
        self.filters += &indented(0, yaml);
        self
    }

    /// Has Envoy write a line for every request to its standard error.
    pub fn access_log(mut self, format: &str) -> Bootstrap {
        self.access_log = format!(
            "
access_log:
- name: envoy.access_loggers.stderr
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StderrAccessLog
    log_format: {{text_format_source: {{inline_string: \"{format}\\n\"}}}}
"
        );
        self
    }

    pub fn start(&self) -> Envoy {
        Envoy::start(&self.text())
    }

    pub fn text(&self) -> String {
        format!(
            "
static_resources:
  listeners:
  - name: {FRONT}
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {FRONT}
          use_remote_address: true
          # After a second of its own choosing, Envoy closes connections whose answers a busy machine has not let it write.
          delayed_close_timeout: 0s
{}
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
{}
          http_filters:
{}
          - name: envoy.filters.http.router
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
{}{}",
            indented(10, &self.access_log),
            indented(14, &self.routes),
            indented(10, &self.filters),
            indented(2, &self.upstream.yaml("upstream")),
            indented(2, &self.service.yaml("tidegate")),
        )
    }
}

/// The rate limit filter with further fields. It waits longer than it would by default, so that a slow machine does not look
/// like an outage.
pub fn rate_limit_filter(more: &str) -> String {
    format!(
        "
- name: envoy.filters.http.ratelimit
  typed_config:
    '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
    domain: edge
    timeout: 30s
    rate_limit_service:
      transport_api_version: V3
      grpc_service: {{envoy_grpc: {{cluster_name: tidegate}}}}
{}",
        indented(4, more)
    )
}

/// The rate limit filter that denies when it gets no answer: after a failed call, a request gets a 500 instead of passing.
pub fn denying_filter() -> String {
    rate_limit_filter("failure_mode_deny: true")
}

/// A route with rate limits, given as a YAML list.
pub fn route(path: &str, rate_limits: &str) -> String {
    let rate_limits = indented(4, rate_limits);
    format!("- match: {{path: {path}}}\n  route:\n    cluster: upstream\n    rate_limits:\n{rate_limits}")
}

/// A route with rate limits in the form that can name a cost. Elsewhere Envoy silently accepts `hits_addend`, and sends none.
pub fn route_with_costs(path: &str, rate_limits: &str) -> String {
    format!(
        "
- match: {{path: {path}}}
  route: {{cluster: upstream}}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      rate_limits:
{}",
        indented(6, rate_limits)
    )
}

/// Moves a block of YAML to the right, and drops blank lines.
fn indented(by: usize, yaml: &str) -> String {
    yaml.lines().filter(|line| !line.trim().is_empty()).map(|line| format!("{:by$}{line}\n", "")).collect()
}

#[test]
fn envoy_says_what_is_wrong_with_a_bootstrap() {
    let upstream = Upstream::start();
    let bootstrap = |more: &str| {
        let routes = route("/", "- actions: [{remote_address: {}}]");
        Bootstrap::new(&routes, &upstream, Cluster::at(upstream.address)).filter(&rate_limit_filter(more)).text()
    };
    Envoy::validate(&bootstrap("stage: 1")).expect("a good one");
    let said = Envoy::validate(&bootstrap("stages: 1")).unwrap_err();
    assert!(said.contains("stages"), "{said}");
}
