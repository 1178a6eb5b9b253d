//! `tidegate call` as operators type it: what it shows, what it advises, and how it ends.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::transport::ServerTlsConfig;

use crate::support::harness::{Ran, Running, Service, free_port, run, tidegate};
use crate::support::stub::{self, Always, AuthorityFiles};

const RULES: &str = "\
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 3, unit: year, name: small}}
  - {key: b, rate_limit: {requests_per_unit: 100, window: 90d}}
  - {key: free, rate_limit: {unlimited: true}}
";

/// Runs `call` in domain d.
fn call(addr: &str, args: &[&str]) -> Ran {
    run(tidegate(&["call", "--addr", addr, "--domain", "d"]).args(args))
}

fn documents(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{ran:?}"))).collect()
}

#[test]
fn a_call_shows_the_verdict_and_what_is_left_of_every_limit() {
    let service = Service::start_with(RULES, &[], &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]);
    let addr = service.grpc.to_string();
    let ran = call(&addr, &["a=x", "b=x", "free=x", "other=x,y=z"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().map(str::trim).collect();
    assert!(lines[0].starts_with("OK in ") && lines[0].ends_with(" ms"), "{ran:?}");
    assert!(lines[1].starts_with("a=x          OK          3 per year (small), 2 remaining, resets in "), "{ran:?}");
    assert!(lines[2].starts_with("b=x          OK          100 per window of its own, 99 remaining"), "{ran:?}");
    assert_eq!(lines[3], "free=x       OK          unlimited");
    assert_eq!(lines[4], "other=x,y=z  OK          no limit");
    assert_eq!(lines[5..7], ["response header  RateLimit-Limit: 3", "response header  RateLimit-Remaining: 2"]);

    call(&addr, &["a=x", "--hits", "2"]);
    let denied = call(&addr, &["a=x"]);
    assert_eq!(denied.code, Some(0), "an OVER_LIMIT is an answer: {denied:?}");
    assert!(denied.stdout.starts_with("OVER_LIMIT in ") && denied.stdout.contains("Retry-After: "), "{denied:?}");
}

#[test]
fn for_programs_a_call_is_a_line_of_json() {
    let service = Service::start_with(RULES, &[], &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let ran = call(&service.grpc.to_string(), &["a=x", "free=x", "--output", "json"]);
    let [document] = &documents(&ran)[..] else { panic!("one line: {ran:?}") };
    assert_eq!((&document["call"], &document["overall_code"]), (&json!(1), &json!("OK")));
    let status = &document["statuses"][0];
    assert_eq!(status["descriptor"], "a=x");
    assert_eq!(status["current_limit"], json!({"requests_per_unit": 3, "unit": "YEAR", "name": "small"}));
    assert_eq!((&status["code"], &status["limit_remaining"]), (&json!("OK"), &json!(2)));
    assert!(status["duration_until_reset_ms"].as_u64().unwrap() > 0, "{document}");
    assert_eq!(document["statuses"][1]["current_limit"], Value::Null);
    assert_eq!(document["response_headers_to_add"], json!([]));
    assert_eq!(document["dynamic_metadata"]["tidegate"]["rule"], "a");
    assert!(document["latency_us"].as_f64().unwrap() > 0.0, "{document}");
}

#[test]
fn repeated_calls_are_a_line_each_and_a_summary() {
    let service = Service::start(RULES, &[]);
    let addr = service.grpc.to_string();
    let ran = call(&addr, &["a=x", "--repeat", "5"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let words = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[0]), ["1", "OK"]);
    assert!(lines[0].ends_with("a=x: 2 remaining"), "{ran:?}");
    assert_eq!(words(lines[4]), ["5", "OVER_LIMIT"]);
    assert_eq!(lines[5], "5 calls: OK 3, OVER_LIMIT 2");
    assert!(lines[6].starts_with("latency: p50 ") && lines[6].contains("p99 ") && lines[6].contains("max "), "{ran:?}");

    let many = call(&addr, &["a=x", "--repeat", "100"]);
    assert!(many.stdout.lines().count() < 50, "no flood of lines: {many:?}");
    assert!(many.stdout.contains("100 calls: OK 0, OVER_LIMIT 100"), "{many:?}");

    let json = documents(&call(&addr, &["b=x", "a=y", "--repeat", "60", "--output", "json"]));
    assert_eq!(json.len(), 61, "every call, and the summary");
    let summary = &json[60]["summary"];
    assert_eq!((&summary["calls"], &summary["ok"], &summary["over_limit"]), (&json!(60), &json!(3), &json!(57)));
    assert_eq!(summary["errors"], json!({}));
    assert!(summary["p50_us"].as_f64().unwrap() <= summary["max_us"].as_f64().unwrap(), "{summary}");
}

#[test]
fn hits_refunds_and_limits_reach_the_server() {
    let service = Service::start(RULES, &[]);
    let addr = service.grpc.to_string();
    let remaining = |args: &[&str]| {
        let document = documents(&call(&addr, &[args, &["--output", "json"]].concat())).remove(0);
        (document["overall_code"].clone(), document["statuses"][0]["limit_remaining"].clone())
    };
    assert_eq!(remaining(&["b=x", "--hits", "10"]), (json!("OK"), json!(90)));
    assert_eq!(remaining(&["b=x", "--own-hits", "0"]), (json!("OK"), json!(90)), "a peek");
    assert_eq!(remaining(&["b=x", "--own-hits", "5"]), (json!("OK"), json!(85)));
    assert_eq!(remaining(&["b=x", "--own-hits", "7", "--refund"]), (json!("OK"), json!(92)));
    assert_eq!(remaining(&["new=x", "--limit", "1/hour"]), (json!("OK"), json!(0)));
    assert_eq!(remaining(&["new=x", "--limit", "1/hour"]), (json!("OVER_LIMIT"), json!(0)));
}

#[test]
fn when_nobody_listens_a_call_says_so_once() {
    let addr = format!("127.0.0.1:{}", free_port());
    let ran = call(&addr, &["a=x"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("UNAVAILABLE") && ran.stderr.contains(&addr), "{ran:?}");
    assert!(ran.stderr.contains("help: is the server running"), "{ran:?}");

    let ran = call(&addr, &["a=x", "--repeat", "1000", "--output", "json"]);
    let json = documents(&ran);
    assert_eq!((ran.code, json.len()), (Some(1), 2), "it does not try a thousand times: {ran:?}");
    assert_eq!(json[0]["error"]["code"], "UNAVAILABLE");
    assert!(json[0]["error"]["hint"].as_str().unwrap().contains("running"), "{ran:?}");
    assert_eq!(json[1]["summary"]["errors"], json!({"UNAVAILABLE": 1}));

    let ran = call("unix:/nowhere/at-all.sock", &["a=x"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("path of its socket"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_something_else_is_told_apart() {
    let ran = call(&stub::another_service(), &["a=x"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("UNIMPLEMENTED"), "{ran:?}");
    assert!(ran.stderr.contains("envoy.service.ratelimit.v3"), "{ran:?}");

    let service = Service::start(RULES, &[]);
    let ran = call(&service.http.to_string(), &["a=x"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("help: is this a gRPC port?"), "{ran:?}");

    let ran = call(&service.grpc.to_string(), &["--tls", "--ca", "Cargo.toml", "a=x"]);
    assert!(ran.code == Some(1) && ran.stderr.contains("no certificate in Cargo.toml"), "{ran:?}");
    let ran = run(&mut tidegate(&["call", "--addr", &service.grpc.to_string(), "--domain", "", "a=x"]));
    assert!(ran.code == Some(1) && ran.stderr.contains("INVALID_ARGUMENT"), "{ran:?}");
    assert!(ran.stderr.contains("rate limit domain must not be empty"), "the server's words: {ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_is_not_waited_for() {
    let addr = stub::rate_limit_service(Always { after: Duration::from_secs(60) }, None);
    let ran = call(&addr, &["a=x", "--timeout", "200ms", "--repeat", "2"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("DEADLINE_EXCEEDED") && ran.stdout.contains("see --timeout"), "{ran:?}");
    assert!(ran.stdout.contains("errors: DEADLINE_EXCEEDED 2"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_and_urls_are_addresses_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rl.sock");
    stub::rate_limit_service_at(&path);
    let path = path.to_str().unwrap();
    for addr in [path.to_owned(), format!("unix:{path}"), format!("unix://{path}")] {
        assert_eq!(call(&addr, &["a=x"]).code, Some(0), "{addr}");
    }
    let addr = stub::rate_limit_service(Always::AT_ONCE, None);
    assert_eq!(call(&format!("http://{addr}/"), &["a=x"]).code, Some(0));
    assert_eq!(call(&addr.replace("127.0.0.1", "localhost"), &["a=x"]).code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tls_both_sides_show_who_they_are() {
    let authority = AuthorityFiles::new();
    let server = ServerTlsConfig::new().identity(authority.issue("localhost"));
    let addr = stub::rate_limit_service(Always::AT_ONCE, Some(server.clone()));
    let addr = addr.replace("127.0.0.1", "localhost");
    let ca = authority.file("ca.pem");
    let ok = call(&addr, &["--ca", &ca, "a=x"]);
    assert_eq!(ok.code, Some(0), "{ok:?}");
    assert_eq!(call(&format!("https://{addr}"), &["--ca", &ca, "a=x"]).code, Some(0));

    let other = AuthorityFiles::new();
    let unknown = call(&addr, &["--ca", &other.file("ca.pem"), "a=x"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("with --ca"), "{unknown:?}");
    let wrong = call(&addr, &["--ca", &ca, "--server-name", "elsewhere", "a=x"]);
    assert!(wrong.code == Some(1) && wrong.stderr.contains("see --server-name"), "{wrong:?}");
    let plain = call(&addr, &["a=x"]);
    assert!(plain.code == Some(1) && plain.stderr.contains("add --tls"), "{plain:?}");

    let mutual = server.client_ca_root(authority.certificate());
    let addr = stub::rate_limit_service(Always::AT_ONCE, Some(mutual)).replace("127.0.0.1", "localhost");
    let without = call(&addr, &["--ca", &ca, "a=x"]);
    assert!(without.code == Some(1) && without.stderr.contains("--cert and --cert-key"), "{without:?}");
    authority.issue("client");
    let (cert, key) = (authority.file("client.pem"), authority.file("client.key"));
    let with = call(&addr, &["--ca", &ca, "--cert", &cert, "--key", &key, "a=x"]);
    assert_eq!(with.code, Some(0), "{with:?}");
}

#[test]
fn an_interrupted_repeat_still_sums_up() {
    let service = Service::start(RULES, &[]);
    let addr = service.grpc.to_string();
    let mut command = tidegate(&["call", "--addr", &addr, "--domain", "d", "a=x", "--repeat", "1000000000"]);
    let running = Running::start(command.args(["--rate", "100"]));
    // Once the limit is used up, calls have been made.
    let is_used_up = || call(&addr, &["a=x", "--own-hits", "0"]).stdout.contains(" 0 remaining");
    while !is_used_up() {}
    running.interrupt();
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains(" calls: OK 3, OVER_LIMIT "), "{ran:?}");
}

#[test]
fn calls_go_on_when_the_server_asks_to_reconnect() {
    let service = Service::start(RULES, &["--grpc-max-connection-age", "1s"]);
    let ran = call(&service.grpc.to_string(), &["free=x", "--repeat", "120", "--rate", "50"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("120 calls: OK 120, OVER_LIMIT 0"), "{ran:?}");
}
