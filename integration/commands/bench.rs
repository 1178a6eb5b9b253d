//! `tidegate bench` against real services: what it counts, and what it does when a server goes away.

use std::time::Duration;

use serde_json::Value;
use tonic::transport::ServerTlsConfig;

use crate::support::harness::{Ran, Running, Service, ask, descriptor_for, free_port, in_short, run, tidegate};
use crate::support::stub::{self, Always, AuthorityFiles};

const RULES: &str = "\
domain: d
descriptors:
  - {key: hundred, rate_limit: {requests_per_unit: 100, unit: year}}
  - {key: once, rate_limit: {requests_per_unit: 1, unit: year}}
";

/// Runs `bench` in domain d, without a warm-up, so that every request counts.
fn bench(addr: &str, args: &[&str]) -> Ran {
    run(tidegate(&["bench", "--addr", addr, "--domain", "d", "--warmup", "0s"]).args(args))
}

fn report(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name}: {report}"))
}

#[test]
fn every_request_is_counted_once_on_both_sides() {
    let service = Service::start(RULES, &[]);
    let addr = service.grpc.to_string();
    let ran = bench(&addr, &["--key", "hundred", "--duration", "2s", "--output", "json"]);
    let report = report(&ran);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(number(&report, "ok"), 100, "exactly the limit: {report}");
    assert!(number(&report, "over_limit") > 0, "{report}");
    assert_eq!(number(&report, "requests"), number(&report, "ok") + number(&report, "over_limit"));
    assert_eq!((number(&report, "errors_total"), number(&report, "unknown")), (0, 0), "{report}");
}

#[test]
fn distinct_keys_are_distinct_and_hits_count() {
    let service = Service::start(RULES, &[]);
    let addr = service.grpc.to_string();
    let args = ["--key", "once", "--keys", "50", "--duration", "2s", "--output", "json"];
    let uniform = report(&bench(&addr, &args));
    assert_eq!(number(&uniform, "ok"), 50, "each key once: {uniform}");
    let args = ["--key", "hundred", "--hits", "20", "--duration", "300ms", "--output", "json"];
    let costly = report(&bench(&addr, &args));
    assert_eq!(number(&costly, "ok"), 5, "{costly}");
    let args = ["--key", "none", "--descriptors", "3", "--keys", "9", "--zipf", "1.2", "--duration", "300ms"];
    let ran = bench(&addr, &[&args[..], &["--output", "json"]].concat());
    let several = report(&ran);
    assert_eq!((ran.code, number(&several, "ok")), (Some(0), number(&several, "requests")), "{several}");
}

#[test]
fn the_report_has_units_and_the_cpu_of_both_sides() {
    let service = Service::start(RULES, &[]);
    let addr = service.grpc.to_string();
    let pid = service.process.pid().to_string();
    let args = ["--key", "none", "--duration", "1s", "--server-pid", &pid];
    let json = report(&bench(&addr, &[&args[..], &["--output", "json"]].concat()));
    for name in ["requests_per_s", "p50_us", "p90_us", "p99_us", "p999_us", "max_us", "duration_ms"] {
        assert!(json[name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {json}");
    }
    for name in ["client_cpu_ms", "client_cpu_per_request_us", "server_cpu_ms", "server_cpu_per_request_us"] {
        assert!(json[name].is_number(), "{name}: {json}");
    }
    let text = bench(&addr, &args).stdout;
    for start in ["requests  ", "latency   p50 ", "verdicts  ok ", "errors    none", "CPU       client "] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{start}: {text}");
    }
    assert!(text.contains("; server "), "{text}");
    let gone = bench(&addr, &["--server-pid", "4294967295"]);
    assert!(gone.code == Some(1) && gone.stderr.contains("--server-pid"), "{gone:?}");
}

#[test]
fn a_rate_is_not_exceeded() {
    let service = Service::start(RULES, &[]);
    let args = ["--key", "none", "--rate", "400", "--duration", "1s", "--output", "json"];
    let report = report(&bench(&service.grpc.to_string(), &args));
    let due = number(&report, "requests") + number(&report, "errors_total");
    let lasted = number(&report, "duration_ms");
    assert!(due > 0 && due <= lasted * 400 / 1000 + 4, "{due} requests in {lasted} ms: {report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_under_a_rate_counts_from_when_a_request_was_due() {
    // One stream, 100 ms an answer, 50 requests a second: the queue grows by 4 of 5 requests.
    let addr = stub::rate_limit_service(Always { after: Duration::from_millis(100) }, None);
    let args = ["--rate", "50", "--connections", "1", "--streams", "1", "--duration", "2s", "--output", "json"];
    let ran = bench(&addr, &args);
    let report = report(&ran);
    assert_eq!(ran.code, Some(1), "the server did not keep up: {report}");
    assert!(number(&report["errors"], "unsent") > 0, "{report}");
    assert!(report["max_us"].as_f64().unwrap() > 500_000.0, "waiting to be sent counts: {report}");
}

#[test]
fn when_nobody_listens_a_bench_does_not_start() {
    let addr = format!("127.0.0.1:{}", free_port());
    let ran = bench(&addr, &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains(&addr) && ran.stderr.contains("help: is the server running"), "{ran:?}");

    let service = Service::start(RULES, &["--max-connections", "1"]);
    let ran = bench(&service.grpc.to_string(), &["--connections", "2"]);
    assert!(ran.code == Some(1) && ran.stderr.contains(&service.grpc.to_string()), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn load_goes_over_tls_and_sockets_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rl.sock");
    stub::rate_limit_service_at(&path);
    let args = ["--duration", "200ms", "--output", "json"];
    let ran = bench(path.to_str().unwrap(), &args);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(number(&report(&ran), "ok") > 0, "{ran:?}");

    let authority = AuthorityFiles::new();
    let server = ServerTlsConfig::new().identity(authority.issue("localhost"));
    let addr = stub::rate_limit_service(Always::AT_ONCE, Some(server)).replace("127.0.0.1", "localhost");
    let ran = bench(&addr, &[&args[..], &["--ca", &authority.file("ca.pem")]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(number(&report(&ran), "ok") > 0, "{ran:?}");
    let plain = bench(&addr, &args);
    assert!(plain.code == Some(1) && plain.stderr.contains("add --tls"), "{plain:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_counted_by_their_kind() {
    let ran = bench(&stub::another_service(), &["--duration", "200ms", "--output", "json"]);
    let report = report(&ran);
    assert_eq!((ran.code, number(&report, "requests")), (Some(1), 0), "{report}");
    assert_eq!(number(&report["errors"], "UNIMPLEMENTED"), number(&report, "errors_total"), "{report}");
}

/// Waits until the load has used up a limit.
async fn under_load(service: &Service) {
    let mut client = service.client().await;
    loop {
        let peek = ask([descriptor_for("once=00000000000000000000000000000000", 0)]);
        let response = client.should_rate_limit(peek).await.expect("an answer").into_inner();
        if in_short(&response) == "OK: OK 0" {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_half_way_is_reported_and_not_waited_for() {
    for rate in [&[][..], &["--rate", "1000"]] {
        let service = Service::start(RULES, &[]);
        let mut command = tidegate(&["bench", "--addr", &service.grpc.to_string(), "--domain", "d", "--key", "once"]);
        command.args(["--warmup", "0s", "--duration", "10s", "--output", "json"]);
        let running = Running::start(command.args(rate));
        under_load(&service).await;
        service.process.signal("KILL");
        let ran = running.end();
        let report = report(&ran);
        assert_eq!(ran.code, Some(1), "{report}");
        assert!(number(&report, "requests") > 0 && number(&report, "ok") == 1, "{report}");
        assert!(number(&report["errors"], "connect") > 0, "it tried again: {report}");
        assert!(number(&report["errors"], "connect") < 5000, "but did not spin: {report}");
    }
}

#[test]
fn a_server_that_asks_to_reconnect_fails_no_request() {
    let service = Service::start(RULES, &["--grpc-max-connection-age", "1s"]);
    let addr = service.grpc.to_string();
    for rate in [&[][..], &["--rate", "1000"]] {
        let args = ["--key", "hundred", "--duration", "3s", "--output", "json"];
        let ran = bench(&addr, &[&args[..], rate].concat());
        let report = report(&ran);
        // What a busy machine did not send until the end has not failed.
        let unsent = report["errors"]["unsent"].as_u64().unwrap_or(0);
        assert_eq!(number(&report, "errors_total"), unsent, "{report}");
        assert_eq!(ran.code, Some(i32::from(unsent > 0)), "{report}");
        assert!(number(&report, "requests") > 0, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_still_reports() {
    let service = Service::start(RULES, &[]);
    let mut command = tidegate(&["bench", "--addr", &service.grpc.to_string(), "--domain", "d", "--key", "once"]);
    let running = Running::start(command.args(["--warmup", "0s", "--duration", "1h", "--output", "json"]));
    under_load(&service).await;
    running.interrupt();
    let ran = running.end();
    let report = report(&ran);
    assert_eq!((ran.code, number(&report, "ok")), (Some(0), 1), "{report}");
    assert!(number(&report, "duration_ms") < 3_600_000, "{report}");
}
