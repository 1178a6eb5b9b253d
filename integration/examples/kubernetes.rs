//! What Kubernetes is given from `envoy/`: held against the schemas of Istio and Envoy Gateway.
//!
//! Neither runs here. What Envoy Gateway makes of a policy, rules for Tidegate and routes for Envoy, is made the same way
//! here, sent over xDS, and driven.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tidegate::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

use crate::examples::files::HERE;
use crate::examples::files::{ask_from, denied_after, documents, documents_in, retry_after};
use crate::support::envoy_proxy::{Bootstrap, Cluster};
use crate::support::harness::{PATIENCE, Service, run, tidegate, until};
use crate::support::management_server::ManagementServer;
use crate::support::upstream::Upstream;

/// What the schemas have against objects, a line each.
pub fn problems_of(objects: &[Value]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("objects.json");
    std::fs::write(&file, Value::from(objects).to_string()).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(package.join(".tools/node_modules/schemas").exists(), "run make test, which installs the schemas");
    let mut command = Command::new("node");
    command.current_dir(package).args(["integration/support/schemas.mjs", ".tools"]).stdin(File::open(&file).unwrap());
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.stdout.lines().map(str::to_owned).collect()
}

/// The configuration of Envoy Gateway, which is text in a ConfigMap.
fn gateway_configuration() -> Value {
    let [config_map] = documents("gateway/envoy-gateway.yaml").try_into().expect("one ConfigMap");
    let [configuration] = documents_in(config_map["data"]["envoy-gateway.yaml"].as_str().unwrap()).try_into().unwrap();
    configuration
}

#[test]
fn what_kubernetes_is_given_fits_its_schemas() {
    let files = ["istio/gateway.yaml", "istio/sidecar.yaml", "gateway/envoy-gateway.yaml", "gateway/policy.yaml"];
    let mut objects: Vec<Value> = files.into_iter().flat_map(documents).collect();
    assert_eq!(objects.len(), 5);
    // No schema is published for the configuration of Envoy Gateway itself. Its deployment has the type of a proxy's.
    let deployment = &gateway_configuration()["provider"]["kubernetes"]["rateLimitDeployment"];
    assert!(deployment.is_object());
    let provider = json!({"type": "Kubernetes", "kubernetes": {"envoyDeployment": deployment}});
    objects.push(json!({
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "EnvoyProxy",
        "metadata": {"name": "deployment"},
        "spec": {"provider": provider}
    }));
    assert_eq!(problems_of(&objects), Vec::<String>::new());
}

/// Without this, a schema that lets everything pass would look like files without a fault.
#[test]
fn the_schemas_find_faults() {
    let faults = [
        ("istio/gateway.yaml", "HTTP_FILTER", "HTTP_FILTERS", "applyTo must be equal to one of the allowed values"),
        ("istio/sidecar.yaml", "workloadSelector", "workloadSelectors", "/spec/workloadSelectors: unknown field"),
        ("istio/sidecar.yaml", "vhost", "host", "routeConfiguration/host: unknown field"),
        ("gateway/policy.yaml", "clientSelectors", "clients", "rules/0/clients: unknown field"),
        ("gateway/policy.yaml", "requests", "request", "limit must have required property requests"),
        ("gateway/policy.yaml", "Minute", "minute", "unit must be equal to one of the allowed values"),
        ("gateway/policy.yaml", "hostnames", "hosts", "HTTPRoute shop /spec/hosts: unknown field"),
    ];
    for (file, right, wrong, expected) in faults {
        let text = Value::from(documents(file)).to_string();
        let changed = text.replace(&format!("\"{right}\""), &format!("\"{wrong}\""));
        assert_ne!(text, changed, "{file}: {right}");
        let Value::Array(objects) = serde_json::from_str(&changed).unwrap() else { panic!("a list") };
        let problems = problems_of(&objects);
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{problems:?}");
    }
}

/// One entry of a descriptor: its key, its value unless any value will do, and Envoy's action that makes it.
struct Selector {
    key: String,
    value: Option<String>,
    action: Value,
}

impl Selector {
    fn any_of(key: String, header: &Value) -> Selector {
        let action = json!({"request_headers": {"header_name": header, "descriptor_key": key}});
        Selector { key, value: None, action }
    }

    fn always(key: String) -> Selector {
        let action = json!({"generic_key": {"descriptor_key": key, "descriptor_value": key}});
        Selector { value: Some(key.clone()), key, action }
    }

    fn like(key: String, header: &str, matcher: Value) -> Selector {
        let action = json!({"header_value_match": {
            "descriptor_key": key,
            "descriptor_value": key,
            "headers": [{"name": header, "string_match": matcher}]
        }});
        Selector { value: Some(key.clone()), key, action }
    }
}

/// The selectors of a rule of a policy, as far as policy.yaml has them: one of each kind, headers first.
fn selectors(index: usize, rule: &Value) -> Vec<Selector> {
    let Some(selected) = rule["clientSelectors"].as_array() else {
        return vec![Selector::always(format!("rule-{index}-match--1"))];
    };
    let [selected] = selected.as_slice() else { panic!("one list of selectors: {rule}") };
    let mut selectors = Vec::new();
    for (header_index, header) in selected["headers"].as_array().into_iter().flatten().enumerate() {
        assert_eq!(header["type"], "Distinct", "others are not known here");
        selectors.push(Selector::any_of(format!("rule-{index}-match-{header_index}"), &header["name"]));
    }
    if let Some(methods) = selected["methods"].as_array() {
        let [method] = methods.as_slice() else { panic!("one method: {rule}") };
        selectors.push(Selector::like(format!("rule-{index}-method"), ":method", json!({"exact": method["value"]})));
    }
    if selected["path"].is_object() {
        assert_eq!(selected["path"]["type"], "RegularExpression", "others are not known here");
        let matcher = json!({"safe_regex": {"regex": selected["path"]["value"]}});
        selectors.push(Selector::like(format!("rule-{index}-path"), ":path", matcher));
    }
    selectors
}

/// What Envoy Gateway makes of a route and its policy: the rules for Tidegate, and what Envoy sends.
fn translate(route: &Value, policy: &Value) -> (RateLimitConfig, Vec<Value>) {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let (namespace, name) = (text(&route["metadata"]["namespace"]), text(&route["metadata"]["name"]));
    let gateway = text(&route["spec"]["parentRefs"][0]["name"]);
    let host = text(&route["spec"]["hostnames"][0]).replace('.', "_");
    let whole_route = Selector::always(format!("httproute/{namespace}/{name}/rule/0/match/0/{host}"));
    let (mut descriptors, mut rate_limits) = (Vec::new(), Vec::new());
    let rules = policy["spec"]["rateLimit"]["global"]["rules"].as_array().expect("rules");
    for (index, rule) in rules.iter().enumerate() {
        let selectors = selectors(index, rule);
        let limit = RateLimitPolicy {
            requests_per_unit: rule["limit"]["requests"]
                .as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .expect("a number"),
            unit: unit(&rule["limit"]["unit"]),
            ..RateLimitPolicy::default()
        };
        let innermost = RateLimitDescriptor { rate_limit: Some(limit), ..RateLimitDescriptor::default() };
        descriptors.push(nested(&selectors, innermost));

        let actions: Vec<&Value> =
            std::iter::once(&whole_route).chain(&selectors).map(|selector| &selector.action).collect();
        let mut on_arrival = json!({"actions": actions});
        if rule["cost"]["request"].is_object() {
            on_arrival["hits_addend"] = json!({"number": rule["cost"]["request"]["number"]});
        }
        rate_limits.push(on_arrival);
        if rule["cost"]["response"].is_object() {
            let metadata = &rule["cost"]["response"]["metadata"];
            let format = format!("%DYNAMIC_METADATA({}:{})%", text(&metadata["namespace"]), text(&metadata["key"]));
            let hits = json!({"format": format});
            rate_limits.push(json!({"actions": actions, "hits_addend": hits, "apply_on_stream_done": true}));
        }
    }
    let whole_route = RateLimitDescriptor { descriptors, ..nested(&[whole_route], RateLimitDescriptor::default()) };
    let domain = format!("{namespace}/{gateway}/http");
    (RateLimitConfig { name: domain.clone(), domain, descriptors: vec![whole_route] }, rate_limits)
}

/// Descriptors in each other, with what the innermost has beside key and value.
fn nested(selectors: &[Selector], innermost: RateLimitDescriptor) -> RateLimitDescriptor {
    let (first, rest) = selectors.split_first().expect("at least one");
    let (key, value) = (first.key.clone(), first.value.clone().unwrap_or_default());
    if rest.is_empty() {
        return RateLimitDescriptor { key, value, ..innermost };
    }
    RateLimitDescriptor { key, value, descriptors: vec![nested(rest, innermost)], ..RateLimitDescriptor::default() }
}

fn unit(name: &Value) -> i32 {
    let name = name.as_str().expect("a unit").to_uppercase();
    RateLimitUnit::from_str_name(&name).unwrap_or_else(|| panic!("{name}")).into()
}

/// The rules of a file, as they would come over xDS.
fn in_file(descriptors: &Value) -> Vec<RateLimitDescriptor> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let limit = |limit: &Value| RateLimitPolicy {
        requests_per_unit: limit["requests_per_unit"].as_u64().and_then(|n| u32::try_from(n).ok()).expect("a number"),
        unit: unit(&limit["unit"]),
        ..RateLimitPolicy::default()
    };
    let descriptor = |descriptor: &Value| RateLimitDescriptor {
        key: text(&descriptor["key"]),
        value: text(&descriptor["value"]),
        rate_limit: descriptor["rate_limit"].is_object().then(|| limit(&descriptor["rate_limit"])),
        descriptors: in_file(&descriptor["descriptors"]),
        ..RateLimitDescriptor::default()
    };
    descriptors.as_array().into_iter().flatten().map(descriptor).collect()
}

/// Starts Tidegate as Envoy Gateway does with this configuration, following a management server.
fn start_below(server: &ManagementServer) -> Service {
    let deployment = &gateway_configuration()["provider"]["kubernetes"]["rateLimitDeployment"];
    // Started as /bin/ratelimit without arguments, which the image has and which serves (`kubernetes/container_image.rs`).
    assert!(deployment["patch"].is_null(), "nothing else has to be changed");
    let mut command = tidegate(&[]);
    for variable in deployment["container"]["env"].as_array().into_iter().flatten() {
        command.env(variable["name"].as_str().unwrap(), variable["value"].as_str().unwrap());
    }
    command.envs([("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1")]);
    command.envs([("PORT", "0"), ("GRPC_PORT", "0")]);
    command.env("CONFIG_GRPC_XDS_SERVER_URL", server.address.to_string());
    Service::of(command)
}

#[test]
fn a_policy_of_envoy_gateway_limits_what_it_says() {
    let [route, policy] = documents("gateway/policy.yaml").try_into().expect("a route and its policy");
    let target = &policy["spec"]["targetRefs"][0];
    assert_eq!((&target["kind"], &target["name"]), (&route["kind"], &route["metadata"]["name"]));
    let (config, rate_limits) = translate(&route, &policy);
    let [shown] = documents("gateway/rules.yaml").try_into().expect("one document");
    assert_eq!(
        (shown["domain"].as_str(), in_file(&shown["descriptors"])),
        (Some(&*config.domain), config.descriptors.clone())
    );

    let mut server = ManagementServer::start();
    let nonce = server.say("1", std::slice::from_ref(&config));
    let service = start_below(&server);
    assert_eq!(server.answer_to(&nonce), ("1".into(), None));
    let upstream = Upstream::start();
    let envoy = Bootstrap::new(&limited_route(&rate_limits), &upstream, Cluster::at(service.grpc))
        .filter(&format!("- {}", tokens_to_metadata()))
        .filter(&format!("- {}", rate_limit_filter(&config.domain)))
        .start();

    let ask = |method: &str, path: &str, key: &str, tokens: &str| {
        ask_from(&envoy, HERE, method, path, &[("x-api-key", key), ("x-answer-tokens", tokens)], "")
    };
    let mut query = 0;
    let denied = denied_after(10, || {
        query += 1;
        ask("POST", &format!("/api/orders?x={query}"), "alice", "1")
    });
    assert!(retry_after(&denied) > 0);
    assert_eq!(ask("GET", "/api/orders", "alice", "1").status, 200);
    assert_eq!(ask("POST", "/api/orders", "bob", "1").status, 200);
    denied_after(100, || ask("GET", "/", "carol", "1"));

    // Tokens are charged when they have been used, over the limit too.
    let tokens = || {
        let page = service.page("/metrics");
        let of_rule = |line: &&str| line.contains("total_hits{") && line.contains("key2=\"rule-3-match-0\"");
        page.lines().find(of_rule).and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    assert_eq!(ask("GET", "/", "dave", "150000").status, 200);
    until(PATIENCE, "they are charged", || tokens().filter(|tokens| *tokens >= 150_000.0));
    assert_eq!(ask("GET", "/", "dave", "1").status, 429);
}

fn limited_route(rate_limits: &[Value]) -> String {
    let per_route = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
    let filter = json!({"envoy.filters.http.ratelimit": {"@type": per_route, "rate_limits": rate_limits}});
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream"}, "typed_per_filter_config": filter});
    format!("- {route}")
}

fn rate_limit_filter(domain: &str) -> Value {
    json!({
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": domain,
            "timeout": "10s",
            "failure_mode_deny": true,
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "tidegate"}}
            }
        }
    })
}

/// In the place of a filter that reads a response of a language model.
fn tokens_to_metadata() -> Value {
    json!({
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "response_rules": [{
                "header": "x-tokens",
                "on_header_present": {"metadata_namespace": "llm", "key": "tokens", "type": "NUMBER"}
            }]
        }
    })
}
