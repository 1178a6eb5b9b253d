//! The files of `envoy/`, which people copy: each is read as it stands, and only moved to where a test has its servers.
//!
//! What can't be found is not silently left out: an example that changes its addresses, or one that nobody drives, fails.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::envoy_proxy::Envoy;
use crate::support::harness::{HttpAnswer, Service, http_over, run, tidegate};
use crate::support::upstream::Upstream;

/// Two clients on this machine.
pub const HERE: [u8; 4] = [127, 0, 0, 1];
pub const THERE: [u8; 4] = [127, 0, 0, 2];

pub fn path_of(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy").join(file)
}

/// The YAML documents of a file.
pub fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path_of(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    documents_in(&text)
}

pub fn documents_in(text: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(text);
    documents.map(|document| Value::deserialize(document).expect("YAML that is JSON too")).collect()
}

/// A bootstrap of `envoy/`.
pub struct Example {
    file: String,
    config: Value,
}

impl Example {
    pub fn read(file: &str) -> Example {
        let [config] = documents(file).try_into().expect("one document");
        Example { file: file.to_owned(), config }
    }

    /// Puts another address in the place of the only one that is like this.
    fn at(mut self, address: &str, port: u16, instead: SocketAddr) -> Example {
        let (old, new) = (socket_address(address, port), socket_address(&instead.ip().to_string(), instead.port()));
        let replaced = replace(&mut self.config, &|value| (*value == old).then(|| new.clone()));
        assert_eq!(replaced, 1, "{}: {address}:{port}", self.file);
        self
    }

    /// Listens on any port, with the service that it protects at the upstream.
    pub fn before(self, upstream: &Upstream) -> Example {
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        self.at("0.0.0.0", 10000, anywhere).at("127.0.0.1", 8000, upstream.address)
    }

    pub fn asking(self, service: SocketAddr) -> Example {
        self.at("127.0.0.1", 8081, service)
    }

    /// Replaces a part of paths.
    pub fn with_path(mut self, old: &str, new: &Path) -> Example {
        let new = new.to_str().expect("temporary paths are UTF-8");
        let other = |value: &Value| value.as_str().filter(|text| text.contains(old)).map(|text| text.replace(old, new));
        let replaced = replace(&mut self.config, &|value| other(value).map(Value::String));
        assert!(replaced > 0, "{}: {old}", self.file);
        self
    }

    /// Waits longer, so that a slow machine does not look like an outage.
    pub fn patient(mut self) -> Example {
        assert_eq!(wait_longer(&mut self.config), 1, "{}: one filter with a timeout", self.file);
        self
    }

    pub fn change(mut self, change: impl FnOnce(&mut Value)) -> Example {
        change(&mut self.config);
        self
    }

    pub fn text(&self) -> String {
        self.config.to_string()
    }

    pub fn start(&self) -> Envoy {
        Envoy::start(&self.text())
    }
}

fn socket_address(address: &str, port: u16) -> Value {
    json!({"address": address, "port_value": port})
}

/// Replaces values wherever they are, and says how many.
fn replace(value: &mut Value, other: &impl Fn(&Value) -> Option<Value>) -> usize {
    if let Some(new) = other(value) {
        *value = new;
        return 1;
    }
    match value {
        Value::Array(items) => items.iter_mut().map(|item| replace(item, other)).sum(),
        Value::Object(fields) => fields.values_mut().map(|field| replace(field, other)).sum(),
        _ => 0,
    }
}

/// Gives rate limit filters, and the health checks and connects of clusters, more time. Says how many filters there are.
pub fn wait_longer(value: &mut Value) -> usize {
    match value {
        Value::Array(items) => items.iter_mut().map(wait_longer).sum(),
        Value::Object(fields) => {
            let is_filter = fields.contains_key("rate_limit_service");
            let is_health_check = fields.contains_key("grpc_health_check");
            for (name, field) in fields.iter_mut() {
                if name == "connect_timeout" || (name == "timeout" && (is_filter || is_health_check)) {
                    *field = json!("30s");
                }
            }
            let inside: usize = fields.values_mut().map(wait_longer).sum();
            usize::from(is_filter && fields.contains_key("timeout")) + inside
        }
        _ => 0,
    }
}

/// One process with all rules of the examples, as their comments start it.
pub fn serve_all(flags: &[&str]) -> Service {
    let mut command = tidegate(&["serve", "--rules", "envoy/rules", "--host", "127.0.0.1", "--port", "0"]);
    command.args(["--grpc-host", "127.0.0.1", "--grpc-port", "0"]).args(flags);
    Service::of(command)
}

/// A request from an address of this machine.
pub fn ask_from(
    envoy: &Envoy,
    from: [u8; 4],
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> HttpAnswer {
    http_over(envoy.connect_from(from), method, path, headers, body)
}

/// Asks until it is denied, and returns that answer. The limit has to pass before, and hardly more: if the clock's window
/// ends meanwhile, the limit begins to come free again.
pub fn denied_after(limit: usize, mut ask: impl FnMut() -> HttpAnswer) -> HttpAnswer {
    let most = limit + limit / 10 + 1;
    for passed in 0..=most {
        let answer = ask();
        match answer.status {
            200 => {}
            429 => {
                assert!(passed >= limit, "denied after {passed} of {limit}: {answer:?}");
                return answer;
            }
            _ => panic!("{answer:?} after {passed}"),
        }
    }
    panic!("more than {most} of {limit} passed");
}

/// When a denied client may come back.
pub fn retry_after(denied: &HttpAnswer) -> u64 {
    denied.header("retry-after").and_then(|wait| wait.parse().ok()).unwrap_or_else(|| panic!("{denied:?}"))
}

#[test]
fn the_bootstraps_are_good_as_they_are() {
    for file in ["edge.yaml", "sidecar.yaml", "login.yaml", "llm-tokens.yaml"] {
        let text = std::fs::read_to_string(path_of(file)).unwrap();
        Envoy::validate(&text).unwrap_or_else(|said| panic!("{file}: {said}"));
    }
}

#[test]
fn the_rules_are_good_and_nothing_about_them_is_doubtful() {
    for rules in ["envoy/rules", "envoy/gateway/rules.yaml"] {
        let ran = run(&mut tidegate(&["check", "--rules", rules]));
        assert!(ran.code == Some(0) && ran.stdout.contains(" 0 warnings"), "{ran:?}");
    }
}

/// Every file of `envoy/` is one that some test reads.
#[test]
fn no_example_is_left_out() {
    let driven = [
        "edge.yaml",
        "gateway/envoy-gateway.yaml",
        "gateway/policy.yaml",
        "gateway/rules.yaml",
        "istio/gateway.yaml",
        "istio/sidecar.yaml",
        "llm-tokens.yaml",
        "login.yaml",
        "mtls.yaml",
        "rules/edge.yaml",
        "rules/istio-gateway.yaml",
        "rules/istio-sidecar.yaml",
        "rules/llm-tokens.yaml",
        "rules/login.yaml",
        "rules/mtls.yaml",
        "rules/sidecar.yaml",
        "sidecar.yaml",
    ];
    let examples: BTreeSet<String> = files_below(&path_of("")).into_iter().filter(|it| it.ends_with(".yaml")).collect();
    assert_eq!(examples, driven.map(str::to_owned).into());
}

/// By their paths from there.
pub fn files_below(directory: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.insert(path.strip_prefix(directory).unwrap().display().to_string());
            }
        }
    }
    found
}
