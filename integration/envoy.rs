//! A real Envoy in front: clients get 200s, then 429s that say when to come back, each client for itself.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::certificates::{Authority, Files, Pair, SERVER};
use crate::harness::{HttpAnswer, PATIENCE, Process, Service, http, http_over, rule_file, tidegate};

const RULES: &str = "
domain: edge
descriptors:
  - key: path
    value: /by-address
    descriptors:
      - {key: remote_address, rate_limit: {requests_per_unit: 3, unit: year, name: by_address}}
  - key: path
    value: /by-key
    descriptors:
      - {key: api_key, rate_limit: {requests_per_unit: 2, unit: year}}
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

/// What is behind Envoy: says `through` to everybody.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve_upstream(stream));
        }
    });
    address
}

fn serve_upstream(stream: TcpStream) -> Option<()> {
    let mut requests = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
    let mut stream = stream;
    // A request without a body ends with an empty line.
    while requests.any(|line| line.is_empty()) {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nthrough").ok()?;
    }
    None
}

/// Where Envoy finds a cluster, and how it talks to it.
struct Cluster {
    address: String,
    more: String,
}

impl Cluster {
    fn at(address: SocketAddr) -> Cluster {
        let address = format!("{{socket_address: {{address: {}, port_value: {}}}}}", address.ip(), address.port());
        Cluster { address, more: String::new() }
    }

    fn at_socket(path: &Path) -> Cluster {
        Cluster { address: format!("{{pipe: {{path: {}}}}}", path.display()), more: String::new() }
    }

    /// HTTP/2, as gRPC needs it.
    fn grpc(mut self) -> Cluster {
        self.more += "    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
";
        self
    }

    /// TLS as Envoy has it by default, with a certificate of its own. The files are expected in the directory.
    fn tls(mut self, files: &Path) -> Cluster {
        let directory = files.display();
        self.more += &format!(
            "    transport_socket:
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
        );
        self
    }

    fn yaml(&self, name: &str) -> String {
        let Cluster { address, more } = self;
        format!(
            "
  - name: {name}
    type: STATIC
    connect_timeout: 5s
    load_assignment:
      cluster_name: {name}
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {address}}}
{more}"
        )
    }
}

/// Two routes, one limited by the client's address and one by a header. The filter waits longer than it would by
/// default, and denies when it gets no answer, so that a slow machine does not look like a passed limit.
fn bootstrap(service: Cluster, upstream: SocketAddr) -> String {
    format!(
        "
admin:
  address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
static_resources:
  listeners:
  - name: front
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{path: /by-address}}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions:
                    - {{request_headers: {{header_name: ':path', descriptor_key: path}}}}
                    - {{remote_address: {{}}}}
              - match: {{path: /by-key}}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions:
                    - {{request_headers: {{header_name: ':path', descriptor_key: path}}}}
                    - {{request_headers: {{header_name: x-api-key, descriptor_key: api_key}}}}
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              timeout: 10s
              failure_mode_deny: true
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {{envoy_grpc: {{cluster_name: tidegate}}}}
          - name: envoy.filters.http.router
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:{}{}",
        Cluster::at(upstream).yaml("upstream"),
        service.grpc().yaml("tidegate"),
    )
}

/// Envoy, and where it listens.
struct Envoy {
    _process: Process,
    front: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Envoy {
    fn start(service: Cluster) -> Envoy {
        let directory = tempfile::tempdir().unwrap();
        let [config, admin_path] = ["envoy.yaml", "admin"].map(|name| directory.path().join(name));
        std::fs::write(&config, bootstrap(service, upstream())).unwrap();
        let mut command = Command::new(binary());
        command.arg("--config-path").arg(&config).arg("--admin-address-path").arg(&admin_path);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "info"]);
        let mut process = Process::start(command);
        process.line_with("starting main dispatch loop");
        let admin = std::fs::read_to_string(&admin_path).unwrap().trim().parse().expect("an address");
        let deadline = Instant::now() + PATIENCE;
        while http(admin, "GET", "/ready", "").status != 200 {
            assert!(Instant::now() < deadline, "Envoy is ready in time");
            std::thread::sleep(Duration::from_millis(20));
        }
        let listeners: Value = serde_json::from_str(&http(admin, "GET", "/listeners?format=json", "").body).unwrap();
        let port = &listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"];
        let port = port.as_u64().and_then(|port| u16::try_from(port).ok()).expect("the port of the listener");
        Envoy { _process: process, front: SocketAddr::from(([127, 0, 0, 1], port)), _directory: directory }
    }

    /// A request from an address of this machine.
    fn get(&self, from: [u8; 4], path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(IpAddr::V4(Ipv4Addr::from(from)), 0).into()).unwrap();
        socket.connect_timeout(&self.front.into(), PATIENCE).unwrap();
        http_over(socket.into(), "GET", path, headers, "")
    }
}

const HERE: [u8; 4] = [127, 0, 0, 1];
const THERE: [u8; 4] = [127, 0, 0, 2];

#[test]
fn clients_of_envoy_are_limited_each_for_itself() {
    let service = Service::start(RULES, &[]);
    let envoy = Envoy::start(Cluster::at(service.grpc));

    for left in ["2", "1", "0"] {
        let passed = envoy.get(HERE, "/by-address", &[]);
        assert_eq!((passed.status, passed.body.as_str()), (200, "through"));
        assert_eq!(passed.header("x-ratelimit-limit"), Some("3, 3;w=31536000;name=\"by_address\""));
        assert_eq!(passed.header("x-ratelimit-remaining"), Some(left));
        assert_eq!(passed.header("retry-after"), None);
    }
    let denied = envoy.get(HERE, "/by-address", &[]);
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
    assert_eq!(denied.header("x-ratelimit-limit"), Some("3, 3;w=31536000;name=\"by_address\""));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    let wait: u64 = denied.header("retry-after").and_then(|wait| wait.parse().ok()).expect("when to come back");
    assert!((1..=2 * 31_536_000).contains(&wait), "{wait}");
    assert_eq!(denied.header("x-ratelimit-reset"), denied.header("retry-after"));
    assert_eq!(envoy.get(THERE, "/by-address", &[]).status, 200, "another address still passes");

    for (key, status) in [("alice", 200), ("alice", 200), ("alice", 429), ("bob", 200), ("alice", 429)] {
        let answer = envoy.get(HERE, "/by-key", &[("x-api-key", key)]);
        assert_eq!(answer.status, status, "{key}: {answer:?}");
        assert_eq!(answer.header("retry-after").is_some(), status == 429, "{key}: {answer:?}");
    }
    assert_eq!(envoy.get(HERE, "/by-key", &[]).status, 200, "without the header there is no descriptor, so no limit");
}

/// The limit of two holds, and nothing else goes wrong on the way: without an answer, Envoy would say 500.
fn assert_limits(envoy: &Envoy) {
    for status in [200, 200, 429, 429] {
        let answer = envoy.get(HERE, "/by-key", &[("x-api-key", "alice")]);
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

    brings(&clients.issue(&["spiffe://example.org/ns/other/sa/envoy"]));
    let other = Envoy::start(Cluster::at(service.grpc).tls(directory.path()));
    assert_eq!(other.get(HERE, "/by-key", &[("x-api-key", "alice")]).status, 500, "no answer, so it denies");
    service.process.line_with("none of its names (spiffe://example.org/ns/other/sa/envoy) is in");

    brings(&clients.issue(&[workload]));
    let envoy = Envoy::start(Cluster::at(service.grpc).tls(directory.path()));
    assert_limits(&envoy);
}

#[test]
fn envoy_is_answered_on_a_unix_socket() {
    let (directory, rules) = rule_file(RULES);
    let socket = directory.path().join("grpc.sock");
    let mut command = tidegate(&["serve", "--rules", &rules, "--host", "127.0.0.1", "--port", "0"]);
    command.arg("--grpc-uds").arg(&socket);
    let mut process = Process::start(command);
    process.line_with("tidegate: serving");
    assert_limits(&Envoy::start(Cluster::at_socket(&socket)));
}
