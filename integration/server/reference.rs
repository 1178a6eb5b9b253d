//! In place of envoyproxy/ratelimit: its environment, its directories, its rule files, its pages.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::support::harness::{
    Process, Service, answer, ask, descriptor, free_port, http, in_short, overridden, tidegate,
};

/// Rules with what the reference's own examples have: exact and open values, nesting, wildcards, units in any case,
/// shadow mode, unlimited, replaces, detailed metrics.
const CONFIG: &str = "
domain: shop
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: default
    rate_limit: {unit: SECOND, requests_per_unit: 500}
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: path
    value: /static/*
    rate_limit: {unlimited: true}
  - key: source
    value: probe
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: tenant
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: region
    value_to_metric: true
    descriptors:
      - key: zone
        descriptors:
          - key: rack
            rate_limit: {unit: minute, requests_per_unit: 10}
";

const SECOND_FILE: &str = "
domain: mail
descriptors:
  - key: account
    rate_limit: {unit: week, requests_per_unit: 7, name: weekly}
";

/// The tree that the reference's compose file mounts at /data.
fn data() -> TempDir {
    let data = tempfile::tempdir().unwrap();
    let config = data.path().join("ratelimit/config");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.yaml"), CONFIG).unwrap();
    fs::write(config.join("mail.yaml"), SECOND_FILE).unwrap();
    data
}

/// Started as its compose file does: no arguments, everything in the environment.
fn started(data: &Path, more: &[(&str, &str)]) -> Service {
    let [grpc, http, admin] = [free_port(), free_port(), free_port()];
    let mut command: Command = tidegate(&[]);
    command.envs([
        ("USE_STATSD", "true"),
        ("STATSD_HOST", "statsd"),
        ("STATSD_PORT", "9125"),
        ("LOG_LEVEL", "debug"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis:6379"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
    ]);
    command.env("RUNTIME_ROOT", data);
    command.env("GRPC_PORT", grpc.to_string()).env("PORT", http.to_string()).env("DEBUG_PORT", admin.to_string());
    command.envs(more.iter().copied());
    let mut process = Process::start(command);
    process.line_with("serving");
    let at = |port: u16| ([127, 0, 0, 1], port).into();
    Service::running(process, at(grpc), at(http), at(admin))
}

fn body(domain: &str, entries: &[(&str, &str)]) -> String {
    let entries: Vec<_> = entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    json!({"domain": domain, "descriptors": [{"entries": entries}]}).to_string()
}

#[tokio::test]
async fn its_compose_file_serves_its_rule_files() {
    let data = data();
    let service = started(data.path(), &[]);

    let warning = service.process.said.iter().find(|line| line.contains("have no effect here")).expect("a warning");
    for name in ["USE_STATSD", "STATSD_HOST", "STATSD_PORT"] {
        assert!(warning.contains(name), "{warning}");
    }
    assert_eq!(service.process.said.iter().filter(|line| line.contains("no effect here")).count(), 1);

    let mut lines: Vec<String> = service.page("/rlconfig").lines().map(str::to_owned).collect();
    lines.sort();
    let modes = "shadow_mode: false, quota_mode: false";
    let expected = [
        format!("mail.account: unit=WEEK requests_per_unit=7, {modes}"),
        format!("shop.database_default: unit=SECOND requests_per_unit=500, {modes}"),
        format!("shop.database_users: unit=SECOND requests_per_unit=500, {modes}"),
        format!("shop.message_type_marketing.to_number: unit=DAY requests_per_unit=5, {modes}"),
        format!("shop.path_/static/*: unit=UNKNOWN requests_per_unit=0, {modes}"),
        format!("shop.region.zone.rack: unit=MINUTE requests_per_unit=10, {modes}"),
        "shop.source_probe: unit=HOUR requests_per_unit=1, shadow_mode: true, quota_mode: false".to_owned(),
        format!("shop.tenant: unit=MINUTE requests_per_unit=10, {modes}"),
        format!("shop.to_number: unit=DAY requests_per_unit=100, {modes}"),
    ];
    assert_eq!(lines, expected);

    let marketing = body("shop", &[("message_type", "marketing"), ("to_number", "2061234567")]);
    for left in (0..5).rev() {
        let answer = service.post("/json", &marketing);
        assert_eq!(answer.status, 200, "{left} left");
        let status = &answer.json()["statuses"][0];
        assert_eq!(status["currentLimit"], json!({"requestsPerUnit": 5, "unit": "DAY"}));
        assert_eq!(status["limitRemaining"].as_u64().unwrap_or(0), left);
    }
    let denied = service.post("/json", &marketing);
    assert_eq!((denied.status, denied.json()["overallCode"].as_str()), (429, Some("OVER_LIMIT")));
    assert_eq!(service.post("/json", "{").body, "Bad Request\n");
    assert_eq!(service.get("/healthcheck").body, "OK");

    let mut client = service.client().await;
    let of = |domain: &str, descriptors: Vec<_>| {
        let mut request = ask(descriptors);
        request.domain = domain.into();
        request
    };
    for _ in 0..3 {
        answer(&mut client, of("shop", vec![descriptor("source=probe")])).await;
    }
    answer(&mut client, of("shop", vec![descriptor("tenant=acme:1")])).await;
    answer(&mut client, of("shop", vec![descriptor("region=eu,zone=a,rack=1")])).await;
    answer(&mut client, of("shop", vec![descriptor("region=eu,zone=a,rack=2")])).await;
    answer(&mut client, of("shop", vec![descriptor("path=/static/logo.png")])).await;
    answer(&mut client, of("mail", vec![overridden("other=x", 3, 2)])).await;
    let unknown = answer(&mut client, of("nobody", vec![descriptor("a=b")])).await;
    assert_eq!(in_short(&unknown), "OK: OK 0");

    let hits = |count: &str, labels: &str| service.metric(&format!("ratelimit_service_rate_limit_{count}{{{labels}}}"));
    let marketing = "domain=\"shop\",key1=\"message_type_marketing\",key2=\"to_number\"";
    assert_eq!(hits("total_hits", marketing), Some(6.0));
    assert_eq!(hits("within_limit", marketing), Some(5.0));
    assert_eq!(hits("over_limit", marketing), Some(1.0));
    assert_eq!(hits("near_limit", marketing), Some(1.0), "one above four fifths of five");
    let probe = "domain=\"shop\",key1=\"source_probe\"";
    assert_eq!((hits("over_limit", probe), hits("shadow_mode", probe)), (Some(2.0), Some(2.0)));
    assert_eq!(hits("total_hits", "domain=\"shop\",key1=\"tenant_acme_1\""), Some(1.0));
    assert_eq!(
        hits("total_hits", "domain=\"shop\",key1=\"region_eu\",key2=\"zone\""),
        Some(2.0),
        "deeper levels are summed"
    );
    assert_eq!(hits("total_hits", "domain=\"mail\",key1=\"override\""), Some(1.0));
    assert_eq!(hits("total_hits", "domain=\"shop\",key1=\"path_/static/*\""), None, "unlimited is not counted");
    assert_eq!(service.metric("ratelimit_service_rate_limit_domain_not_found"), Some(1.0));
    assert_eq!(service.metric("ratelimit_service_config_load_success"), Some(1.0));
    let calls = "{grpc_method=\"ShouldRateLimit\"}";
    assert_eq!(service.metric(&format!("ratelimit_service_total_requests{calls}")), Some(9.0));
    assert_eq!(service.metric(&format!("ratelimit_service_response_time_seconds_count{calls}")), Some(9.0));
}

#[test]
fn metrics_are_where_its_prometheus_settings_say() {
    let data = data();
    let port = free_port();
    let address = format!(":{port}");
    let env = [
        ("USE_STATSD", "false"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", address.as_str()),
        ("PROMETHEUS_PATH", "/stats/prometheus"),
        ("EXTRA_TAGS", "cluster:eu-1,stage:prod"),
        ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true"),
        ("NEAR_LIMIT_RATIO", "0.1"),
    ];
    let service = started(data.path(), &env);
    for _ in 0..2 {
        service.post("/json", &body("shop", &[("tenant", "acme")]));
    }
    let scrape = http(([127, 0, 0, 1], port).into(), "GET", "/stats/prometheus", "");
    assert_eq!(scrape.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let near = "ratelimit_service_rate_limit_near_limit{cluster=\"eu-1\",stage=\"prod\",domain=\"shop\",key1=\"tenant_acme\"} 1\n";
    assert!(scrape.body.contains(near), "{}", scrape.body);
    assert!(scrape.body.contains("tidegate_keys{cluster=\"eu-1\",stage=\"prod\"} 1\n"), "{}", scrape.body);
    assert!(scrape.body.contains("response_time_seconds_bucket{cluster=\"eu-1\",stage=\"prod\",le=\"1048.576\""));
    assert_eq!(http(([127, 0, 0, 1], port).into(), "GET", "/config/status", "").status, 404, "metrics only");
}

#[test]
fn both_families_are_served_on_the_unspecified_address() {
    let data = data();
    let env = [("HOST", "::"), ("GRPC_HOST", "::"), ("DEBUG_HOST", "::1")];
    let service = started(data.path(), &env);
    let v6 = |port: u16| std::net::SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port));
    assert_eq!(service.get("/healthcheck").status, 200, "IPv4");
    assert_eq!(http(v6(service.http.port()), "GET", "/healthcheck", "").status, 200, "IPv6");
    assert!(std::net::TcpStream::connect(service.grpc).is_ok(), "IPv4");
    assert!(std::net::TcpStream::connect(v6(service.grpc.port())).is_ok(), "IPv6");
    assert_eq!(http(v6(service.admin.port()), "GET", "/rlconfig", "").status, 200);
    assert!(std::net::TcpStream::connect(service.admin).is_err(), "the admin port is on one address only");
}

#[test]
fn logs_are_json_with_its_names() {
    let data = data();
    let service = started(data.path(), &[("LOG_FORMAT", "json")]);
    for line in &service.process.said {
        let parsed: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for name in ["@timestamp", "@message", "level"] {
            assert!(parsed[name].is_string(), "{line}");
        }
    }
    assert!(service.process.said.iter().any(|line| line.contains("\"level\":\"warn\"")), "{:?}", service.process.said);
    assert!(service.process.said.last().unwrap().contains("\"@message\":\"serving\""));
}
