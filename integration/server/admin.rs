//! The admin port: what it shows, that it changes nothing, and that clients can't make it grow.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::harness::{
    PATIENCE, Service, answer, ask, ask_one, descriptor, descriptor_for, http, http_over, tidegate,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 2, unit: day}}
  - {key: zero, rate_limit: {requests_per_unit: 0, unit: day}}
  - {key: user, detailed_metric: true, rate_limit: {requests_per_unit: 1000000, unit: day}}
  - {key: token, sensitive: true, detailed_metric: true, rate_limit: {requests_per_unit: 5, window: 90s}}
  - {key: \"quo\\\"te\\n\", rate_limit: {requests_per_unit: 5, unit: day}}
";

/// What a reader of the format that nobody here wrote makes of a scrape: the names of the families.
fn parsed_by_prometheus(scrape: &str) -> Vec<String> {
    const READER: &str = "
import sys
from prometheus_client.parser import text_string_to_metric_families
seen = set()
for family in text_string_to_metric_families(sys.stdin.read()):
    print(family.type, family.name, len(family.samples))
    for sample in family.samples:
        key = (sample.name, tuple(sorted(sample.labels.items())))
        assert key not in seen, f'twice: {key}'
        seen.add(key)
";
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/.venv/bin/python");
    let mut reader = Command::new(python)
        .args(["-c", READER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`make test` has installed prometheus-client into .venv");
    reader.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn the_scrape_is_what_prometheus_reads() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    for _ in 0..3 {
        answer(&mut client, ask_one("a=x")).await;
    }
    answer(&mut client, ask_one("user=back\\slash and \"quotes\"")).await;
    answer(&mut client, ask_one("token=secret-value")).await;
    answer(&mut client, ask([descriptor("quo\"te\n=x")])).await;
    let scrape = service.page("/metrics");
    let families = parsed_by_prometheus(&scrape);
    for family in [
        "counter ratelimit_service_rate_limit_over_limit 4",
        "counter tidegate_decisions 6",
        "counter tidegate_errors 7",
        "histogram tidegate_decision_duration_seconds 24",
        "histogram ratelimit_service_response_time_seconds 24",
        "gauge tidegate_keys 1",
        "counter tidegate_keys_evicted 1",
        "gauge tidegate_config_generation 1",
        "gauge tidegate_config_age_seconds 1",
        "gauge tidegate_in_flight 1",
        "gauge tidegate_connections 1",
        "gauge tidegate_build_info 1",
        "counter process_cpu_seconds 1",
    ] {
        assert!(families.iter().any(|line| line == family), "no '{family}' in {families:#?}");
    }
    assert!(scrape.contains("key1=\"user_back\\\\slash and \\\"quotes\\\"\""), "{scrape}");
    assert!(!scrape.contains("secret-value") && scrape.contains("key1=\"token\""), "{scrape}");
    assert_eq!(service.metric("tidegate_connections"), Some(1.0));
    assert_eq!(service.metric("tidegate_keys"), Some(4.0));
    assert_eq!(service.metric("tidegate_decision_duration_seconds_count"), Some(6.0));
    assert_eq!(service.metric("tidegate_decisions_total{outcome=\"over_limit\"}"), Some(1.0));
}

#[tokio::test]
async fn clients_can_not_make_the_scrape_grow() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    answer(&mut client, ask_one("user=first")).await;
    answer(&mut client, ask_one("a=first")).await;
    let before = service.page("/metrics");
    for batch in 0..500 {
        let names: Vec<String> = (0..20).map(|n| format!("{batch}-{n}")).collect();
        for name in &names {
            let mut request = ask_one("a=x");
            request.domain = format!("domain-{name}");
            answer(&mut client, request).await;
        }
        answer(&mut client, ask(names.iter().map(|name| descriptor(&format!("a={name}"))))).await;
        answer(&mut client, ask(names.iter().map(|name| descriptor(&format!("unknown={name}"))))).await;
    }
    let after = service.page("/metrics");
    assert_eq!(after.lines().count(), before.lines().count(), "10,000 domains, values and keys");
    assert_eq!(service.metric("ratelimit_service_rate_limit_domain_not_found"), Some(10_000.0));

    // An operator asked for the values of this one, and gets a thousand of them.
    for batch in 0..500 {
        let users = (0..20).map(|n| descriptor(&format!("user={batch}-{n}")));
        answer(&mut client, ask(users)).await;
    }
    let scrape = service.page("/metrics");
    let users = scrape
        .lines()
        .filter(|line| line.starts_with("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"user"));
    assert_eq!(users.count(), 1001);
    assert_eq!(
        service.metric("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"user_other\"}"),
        Some(10_001.0 - 1000.0)
    );
    assert!(scrape.len() < 1024 * 1024, "{} bytes", scrape.len());
}

#[tokio::test]
async fn explain_shows_how_a_key_stands_without_touching_it() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let page = || service.page("/explain?domain=d&descriptor=a%3Dx");
    assert!(page().contains("now: 0 of 2 per day, not counted before; 2 left"), "{}", page());
    answer(&mut client, ask_one("a=x")).await;
    for _ in 0..3 {
        assert!(page().contains("now: 1 of 2 per day; 1 left, starts afresh in"), "{}", page());
    }
    answer(&mut client, ask_one("a=x")).await;
    assert!(page().contains("rule a at ") && page().contains("over the limit, fits again in"), "{}", page());
    assert!(service.page("/explain?domain=d&descriptor=zero=x").contains("so many hits never fit"));

    let json = service.page_json("/explain?domain=d&descriptor=a=x&descriptor=a=y&hits=2&output=json");
    let now = |at: usize| &json[at]["now"][0];
    assert_eq!((&json[0]["rule"]["id"], &now(0)["counted"]), (&Value::from("a"), &Value::from(2)));
    assert_eq!((&now(0)["fits"], &now(1)["fits"]), (&Value::from(false), &Value::from(true)));
    let frees_in_ms = now(0)["frees_in_ms"].as_u64().expect("it frees");
    let denied = answer(&mut client, ask([descriptor_for("a=x", 0), descriptor("a=x")])).await;
    let reset_s = denied.statuses[1].duration_until_reset.as_ref().expect("denied").seconds;
    assert!(frees_in_ms.div_ceil(1000) as i64 - reset_s <= 86_400, "{frees_in_ms} ms against {reset_s} s");
    assert_eq!(service.metric("tidegate_keys"), Some(1.0), "looking makes no keys");

    let answer = http(service.admin, "GET", "/explain?domain=nobody&descriptor=a=b", "");
    assert!(answer.status == 404 && answer.body.contains("there are d"), "{answer:?}");
    let answer = http(service.admin, "GET", "/explain?domain=d", "");
    assert!(answer.status == 400 && answer.body.contains("write ?domain=d&descriptor="), "{answer:?}");
}

#[test]
fn pages_are_listed_and_others_are_not_there() {
    let service = Service::start(RULES, &[]);
    let index = service.page("/");
    for path in ["/metrics", "/rlconfig", "/config/status", "/stats", "/explain"] {
        assert!(index.contains(path), "{index}");
    }
    assert!(
        service
            .page("/rlconfig")
            .contains("d.token: unit=UNKNOWN window=1m30s requests_per_unit=5, shadow_mode: false")
    );
    assert_eq!(http(service.admin, "GET", "/nothing", "").status, 404);
    let stats = service.page_json("/stats");
    assert_eq!((&stats["keys"]["held"], &stats["config"]["rules"]), (&Value::from(0), &Value::from(5)));
    assert!(stats["process"]["resident_bytes"].as_u64().unwrap() > 1_000_000);
    assert_eq!(http(service.http, "GET", "/metrics", "").status, 404, "not on the port that everyone reaches");
}

#[test]
fn whatever_would_change_something_is_refused_and_logged() {
    let mut service = Service::start(RULES, &[]);
    for (method, path) in [("POST", "/metrics"), ("DELETE", "/rlconfig"), ("PUT", "/"), ("POST", "/reset")] {
        let answer = http(service.admin, method, path, "");
        assert_eq!(answer.status, 405, "{method} {path}: {answer:?}");
        service.process.line_with(&format!("method={method} path=\"{path}\""));
    }
    let rebound = "GET /rlconfig HTTP/1.1\r\nhost: attacker.example\r\nconnection: close\r\n\r\n";
    let mut stream = TcpStream::connect(service.admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(rebound.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains("unit="), "{answer}");
    let stream = TcpStream::connect(service.admin).unwrap();
    let cross_site = http_over(stream, "POST", "/config/status", &[("origin", "http://evil.example")], "a=b");
    assert_eq!(cross_site.status, 405);
    assert_eq!(cross_site.header("access-control-allow-origin"), None);
    assert!(service.process.line_with("evil.example").contains("refused"));
}

#[test]
fn a_body_of_a_gibibyte_is_not_read() {
    let mut service = Service::start(RULES, &[]);
    let before = service.process.memory("VmHWM");
    let mut stream = TcpStream::connect(service.admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.write_all(b"POST /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1073741824\r\n\r\n").unwrap();
    let piece = vec![0; 1 << 20];
    let sent = (0..1024).take_while(|_| stream.write_all(&piece).is_ok()).count();
    assert!(sent < 1024, "it was all taken");
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection does not stay open: {error}");
    }
    let line = service.process.line_with("refused a request to the admin port");
    assert!(line.contains("method=POST path=\"/metrics\""), "{line}");
    assert!(service.process.memory("VmHWM") - before < 16 << 20);
}

#[test]
fn a_misspelt_setting_is_pointed_out() {
    let service = Service::start_with(RULES, &[], &[("TIDEGATE_KEY_MAX", "5"), ("TIDEGATE_PORT", "tcp://10.0.0.1:1")]);
    let said = service.process.said.join("\n");
    assert!(said.contains("there is no setting TIDEGATE_KEY_MAX: did you mean TIDEGATE_KEYS_MAX?"), "{said}");
    assert!(!said.contains("TIDEGATE_PORT"), "{said}");
    let help = tidegate(&["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let headings: Vec<&str> = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    for heading in ["Rules:", "Listeners:", "TLS:", "Bounds:", "Answers:", "Metrics:", "Stopping:", "Logging:"] {
        assert!(headings.contains(&heading), "{headings:?}");
    }
}

#[test]
fn who_only_sits_on_the_http_port_gives_way_to_a_probe() {
    let service = Service::start(RULES, &[]);
    let sitting: Vec<TcpStream> = (0..600).map(|_| TcpStream::connect(service.http).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(service.get("/healthcheck").status, 200);
    }
    drop(sitting);
}
