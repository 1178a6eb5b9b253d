//! Istio's EnvoyFilters of `envoy/istio/`: what they put into a proxy is what Envoy takes, and what limits its clients.
//!
//! There is no Istio here. The patches are applied, as Istio applies them, to the least that it would have made of a gateway
//! or of a sidecar's way in.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::{Value, json};

use crate::examples::files::{
    HERE, THERE, ask_from, denied_after, documents, documents_in, retry_after, serve_all, wait_longer,
};
use crate::examples::kubernetes::problems_of;
use crate::support::certificates::{Authority, Connector, Files, SERVER, Target};
use crate::support::envoy_proxy::{Envoy, FRONT};
use crate::support::harness::{HttpAnswer, PATIENCE, run, tidegate};
use crate::support::upstream::Upstream;

/// What Istio calls the service in its proxies.
const TIDEGATE: &str = "outbound|8081||tidegate.tidegate.svc.cluster.local";

const ROUTER: &str = "envoy.filters.http.router";

/// A proxy as Istio makes it, as far as patches are concerned.
struct Proxy {
    http_filters: Vec<Value>,
    virtual_host: Value,
    tidegate: Value,
    upstream: SocketAddr,
    transport_socket: Value,
}

impl Proxy {
    fn new(upstream: &Upstream, tidegate: SocketAddr) -> Proxy {
        let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
        Proxy {
            http_filters: vec![json!({"name": ROUTER, "typed_config": {"@type": router}})],
            virtual_host: json!({
                "name": "inbound|http|8000",
                "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "service"}}]
            }),
            tidegate: grpc_cluster(TIDEGATE, tidegate),
            upstream: upstream.address,
            transport_socket: Value::Null,
        }
    }

    /// Applies every patch of a file.
    fn patched(self, file: &str, change: impl Fn(&mut Value)) -> Proxy {
        let [filter] = documents(file).try_into().expect("one EnvoyFilter");
        self.patched_by(&filter, change)
    }

    /// Applies every patch of an EnvoyFilter. One that is not understood here is not left out.
    fn patched_by(mut self, filter: &Value, change: impl Fn(&mut Value)) -> Proxy {
        for patch in filter["spec"]["configPatches"].as_array().expect("patches") {
            let mut value = patch["patch"]["value"].clone();
            change(&mut value);
            let (applies_to, matched) = (patch["applyTo"].as_str().unwrap(), &patch["match"]);
            match (applies_to, patch["patch"]["operation"].as_str().unwrap()) {
                ("HTTP_FILTER", "INSERT_BEFORE") => {
                    let next = &matched["listener"]["filterChain"]["filter"]["subFilter"]["name"];
                    let at = self.http_filters.iter().position(|filter| filter["name"] == *next);
                    self.http_filters.insert(at.unwrap_or_else(|| panic!("no filter {next}")), value);
                }
                ("VIRTUAL_HOST", "MERGE") => {
                    let name = &matched["routeConfiguration"]["vhost"]["name"];
                    assert!(name.is_null() || *name == self.virtual_host["name"], "{name}");
                    merge(&mut self.virtual_host, value);
                }
                ("CLUSTER", "MERGE") => {
                    assert_eq!(matched["cluster"]["name"], TIDEGATE);
                    merge(&mut self.tidegate, value);
                }
                other => panic!("{other:?} is not known here"),
            }
        }
        self
    }

    fn bootstrap(&self) -> Value {
        let manager =
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let mut filter_chain = json!({"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": manager,
                "stat_prefix": FRONT,
                "use_remote_address": true,
                "normalize_path": true,
                "route_config": {"virtual_hosts": [self.virtual_host]},
                "http_filters": self.http_filters,
            }
        }]});
        if !self.transport_socket.is_null() {
            filter_chain["transport_socket"] = self.transport_socket.clone();
        }
        let anywhere = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
        let mut bootstrap = json!({"static_resources": {
            "listeners": [{"name": FRONT, "address": anywhere, "filter_chains": [filter_chain]}],
            "clusters": [cluster("service", self.upstream), self.tidegate],
        }});
        assert_eq!(wait_longer(&mut bootstrap), 1, "one filter with a timeout");
        bootstrap
    }

    fn start(&self) -> Envoy {
        let text = self.bootstrap().to_string();
        Envoy::validate(&text).expect("Envoy takes what the patches make");
        Envoy::start(&text)
    }
}

fn cluster(name: &str, address: SocketAddr) -> Value {
    let address = json!({"address": address.ip().to_string(), "port_value": address.port()});
    let endpoint = json!({"endpoint": {"address": {"socket_address": address}}});
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    })
}

fn grpc_cluster(name: &str, address: SocketAddr) -> Value {
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let mut cluster = cluster(name, address);
    cluster["typed_extension_protocol_options"] = json!({options: {
        "@type": format!("type.googleapis.com/{options}"),
        "explicit_http_config": {"http2_protocol_options": {}}
    }});
    cluster
}

/// As protobuf merges: messages field by field, lists one after the other.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from),
        (into, from) => *into = from,
    }
}

#[test]
fn an_istio_gateway_limits_addresses_and_paths() {
    let service = serve_all(&[]);
    let upstream = Upstream::start();
    let envoy = Proxy::new(&upstream, service.grpc).patched("istio/gateway.yaml", |_| ()).start();
    let mut query = 0;
    let denied = denied_after(10, || {
        query += 1;
        ask_from(&envoy, HERE, "POST", &format!("/api/orders?x={query}"), &[], "")
    });
    assert!(retry_after(&denied) > 0);
    assert!(denied.header("x-ratelimit-limit").is_some_and(|limits| limits.contains("place_order")), "{denied:?}");
    assert_eq!(ask_from(&envoy, HERE, "GET", "/api/orders", &[], "").status, 200);
    assert_eq!(ask_from(&envoy, THERE, "POST", "/api/orders", &[], "").status, 200);
    denied_after(300, || ask_from(&envoy, [127, 0, 6, 1], "GET", "/", &[], ""));
}

/// TLS as between sidecars: whoever connects shows a certificate.
fn mutual_tls(files: &Files) -> Value {
    let file = |name: &str| json!({"filename": files.directory.join(name).to_str().unwrap()});
    json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true,
            "common_tls_context": {
                "tls_certificates": [{"certificate_chain": file("tls.crt"), "private_key": file("tls.key")}],
                "validation_context": {"trusted_ca": file("ca.crt")}
            }
        }
    })
}

/// A request by somebody with a certificate.
fn ask_as(caller: &Arc<ClientConfig>, envoy: &Envoy) -> HttpAnswer {
    let connection = ClientConnection::new(Arc::clone(caller), ServerName::try_from(SERVER).unwrap()).unwrap();
    let socket = TcpStream::connect_timeout(&envoy.listener(FRONT), PATIENCE).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("answers are text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no answer: {ended:?} {answer:?}"));
    HttpAnswer { status, headers: Vec::new(), body: answer }
}

#[test]
fn an_istio_sidecar_limits_callers_by_their_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let mesh = Authority::new("the mesh");
    let files = Files::in_directory(directory.path(), &mesh.issue(&[SERVER]), &mesh);
    let service = serve_all(&[]);
    let upstream = Upstream::start();
    let mut proxy = Proxy::new(&upstream, service.grpc);
    proxy.transport_socket = mutual_tls(&files);
    let envoy = proxy.patched("istio/sidecar.yaml", |_| ()).start();
    let account = |name: &str| {
        let own = mesh.issue(&[&format!("spiffe://cluster.local/ns/{name}/sa/{name}")]);
        Connector::tls(Target::Tcp(envoy.listener(FRONT)), &mesh, Some(&own)).tls_config().expect("TLS")
    };
    let [search, billing, checkout] = ["search", "billing", "checkout"].map(account);
    denied_after(30, || ask_as(&search, &envoy));
    assert_eq!(ask_as(&search, &envoy).status, 429);
    assert_eq!(ask_as(&account("search"), &envoy).status, 429, "a new certificate is no new caller");
    assert_eq!(ask_as(&billing, &envoy).status, 200);
    for _ in 0..40 {
        assert_eq!(ask_as(&checkout, &envoy).status, 200, "it has more");
    }
}

/// Without this, a patch that Envoy would refuse in a cluster could pass here.
#[test]
fn a_wrong_field_in_a_patch_is_noticed() {
    let upstream = Upstream::start();
    for (right, wrong) in [
        ("enable_x_ratelimit_headers", "enable_x_ratelimit_header"),
        ("rate_limits", "rate_limit"),
        ("health_checks", "healthchecks"),
        ("descriptor_key", "descriptor_keys"),
    ] {
        let misspell = |value: &mut Value| {
            *value = serde_json::from_str(&value.to_string().replace(&format!("\"{right}\""), &format!("\"{wrong}\"")))
                .unwrap();
        };
        let proxy = Proxy::new(&upstream, upstream.address).patched("istio/gateway.yaml", misspell);
        let said = Envoy::validate(&proxy.bootstrap().to_string()).expect_err(wrong);
        assert!(said.contains(wrong), "{said}");
    }
}

#[test]
fn what_is_generated_for_istio_fits_its_schemas_and_limits() {
    let upstream = Upstream::start();
    let service = serve_all(&[]);
    let generated = ["gen", "istio", "--rules", "envoy/rules", "--domain", "edge", "--map", "api_key=header:x-api-key"];
    for more in
        [&[][..], &["--context", "sidecar", "--selector", "app=shop", "--namespace", "shops", "--name", "limits"]]
    {
        let ran = run(tidegate(&generated).args(more));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let filters = documents_in(&ran.stdout);
        assert_eq!(problems_of(&filters), Vec::<String>::new());
        let proxy =
            filters.iter().fold(Proxy::new(&upstream, service.grpc), |proxy, filter| proxy.patched_by(filter, |_| {}));
        let envoy = proxy.start();
        let key = format!("alice-{}", more.len());
        let mut hosts = (1..=250).cycle();
        let denied = denied_after(100, || {
            // Each address has a limit of its own.
            let from = [127, 0, u8::try_from(more.len()).unwrap(), hosts.next().expect("it has no end")];
            ask_from(&envoy, from, "GET", "/", &[("x-api-key", &key)], "")
        });
        assert!(retry_after(&denied) <= 120);
    }
}
