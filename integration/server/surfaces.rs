//! What once went wrong at the surface of a running service, each kept from coming back.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::harness::{
    PATIENCE, Service, answer, ask, ask_one, descriptor, descriptor_for, overridden, rule_file, run, said, tidegate,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: secret, value: hunter2, sensitive: true, rate_limit: {requests_per_unit: 5, unit: year}}
  - {key: path, rate_limit: {requests_per_unit: 5, unit: year}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: bucket, rate_limit: {requests_per_unit: 60, unit: minute, algorithm: gcra, burst: 3}}
";

#[tokio::test]
async fn sensitive_values_are_hidden_wherever_they_stand() {
    let service = Service::start_with(RULES, &[], &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let mut client = service.client().await;
    for text in ["secret=hunter2", "path=/x,secret=hunter2", "unknown=x,secret=hunter2", "secret=other,secret=hunter2"]
    {
        let said = format!("{:?}", answer(&mut client, ask_one(text)).await.dynamic_metadata);
        assert!(said.contains("<sensitive>") && !said.contains("hunter2"), "{said}");
    }
}

#[tokio::test]
async fn an_unlimited_rule_is_named_as_the_one_that_let_it_pass() {
    let service = Service::start_with(RULES, &[], &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let said = format!("{:?}", answer(&mut service.client().await, ask_one("free=x")).await.dynamic_metadata);
    assert!(said.contains("within_limit") && said.contains("\"free\""), "{said}");
}

#[tokio::test]
async fn a_weekly_override_is_called_by_its_name() {
    let service = Service::start_with(RULES, &[], &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let response = answer(&mut service.client().await, ask([overridden("path=/x", 3, 7)])).await;
    assert!(format!("{:?}", response.dynamic_metadata).contains("requests_per_unit:3 unit:WEEK"));
}

#[tokio::test]
async fn a_report_of_nonsense_denies_a_bucket_for_some_windows_and_not_for_years() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    answer(&mut client, ask([descriptor_for("bucket=x", u64::MAX)])).await;
    let response = answer(&mut client, ask([descriptor("bucket=x")])).await;
    let reset = response.statuses[0].duration_until_reset.as_ref().expect("a reset");
    assert!((60..3600).contains(&reset.seconds), "{reset:?}");
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"bucket","value":"x"}]}]}"#;
    assert_eq!(service.post("/json", body).status, 429);
}

#[tokio::test]
async fn a_reader_that_goes_away_does_not_stop_the_port() {
    let (_directory, file) = rule_file(RULES);
    let mut command =
        tidegate(&["serve", "--rules", &file, "--port", "0", "--grpc-port", "0", "--max-connections", "1"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("started");
    let mut stderr = child.stderr.take().expect("piped");
    let mut said = String::new();
    while !said.contains("(HTTP)") {
        let mut bytes = [0; 256];
        let length = stderr.read(&mut bytes).expect("readable");
        assert!(length > 0, "it ended: {said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    drop(stderr);
    let address = said.split(" on ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
    let address = address.replace("0.0.0.0", "127.0.0.1");
    // The second connection is above the cap, which is logged to nobody.
    let first = TcpStream::connect(&address).expect("the first connection");
    let mut second = TcpStream::connect(&address).expect("the second connection");
    second.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    assert_eq!(second.read(&mut [0; 8]).unwrap_or(0), 0, "closed");
    drop(first);
    TcpStream::connect(&address).expect("the port is still served");
    assert!(child.try_wait().expect("a child").is_none());
    child.kill().expect("killed");
    child.wait().expect("ended");
}

#[test]
fn slow_headers_on_the_http_port_are_cut_off() {
    let service = Service::start(RULES, &[]);
    let mut slow = TcpStream::connect(service.http).expect("connected");
    slow.write_all(b"POST /json HTTP/1.1\r\nHo").expect("written");
    slow.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).expect("closed by the service");
}

#[test]
fn settings_of_serve_do_not_trouble_other_commands_and_empty_ones_count_as_unset() {
    let (_directory, file) = rule_file(RULES);
    let bad = [("GRPC_PORT", "abc"), ("LOG_LEVEL", "bogus"), ("SHADOW_MODE", "perhaps")];
    assert_eq!(run(tidegate(&["check", "--rules", &file]).envs(bad)).code, Some(0));
    let empty = ["HOST", "PORT", "GRPC_PORT", "SHADOW_MODE", "LOG_LEVEL", "LIMIT_LIMIT_HEADER", "TIDEGATE_DRAIN_DELAY"];
    let env: Vec<(&str, &str)> = empty.iter().map(|name| (*name, "")).collect();
    assert_eq!(Service::start_with(RULES, &[], &env).get("/readyz").status, 200);
}

#[test]
fn output_that_nobody_reads_is_no_failure() {
    let (_directory, file) = rule_file(RULES);
    let program = env!("CARGO_BIN_EXE_tidegate");
    let script = format!("'{program}' check --rules '{file}' | true; exit ${{PIPESTATUS[0]}}");
    assert_eq!(run(std::process::Command::new("bash").args(["-c", &script])).code, Some(0));
    let script = format!("'{program}' serve --rules /nonexistent 2>&1 | true; exit ${{PIPESTATUS[0]}}");
    assert_eq!(run(std::process::Command::new("bash").args(["-c", &script])).code, Some(1));
}

#[test]
fn a_very_long_connection_age_is_for_good() {
    let service = Service::start(RULES, &["--grpc-max-connection-age", "1000000000000h"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        answer(&mut service.client().await, ask_one("path=/x")).await;
    });
}

#[tokio::test]
async fn sighup_reloads_the_rules_and_bad_ones_change_nothing() {
    let (directory, file) =
        rule_file("{domain: d, descriptors: [{key: path, rate_limit: {requests_per_unit: 5, unit: year}}]}");
    let arguments = ["serve", "--rules", &file, "--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1"];
    let mut command = tidegate(&arguments);
    command.args(["--grpc-port", "0", "--log-level", "warn"]);
    let mut service = Service::of(command);
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("path=/x")).await, "OK: OK 4");
    std::fs::write(&file, "domain: [\n").expect("written");
    service.process.signal("HUP");
    service.process.line_with("not reloaded");
    assert_eq!(said(&mut client, ask_one("path=/x")).await, "OK: OK 3");
    std::fs::write(&file, "{domain: d, descriptors: [{key: path, rate_limit: {requests_per_unit: 50, unit: year}}]}")
        .expect("written");
    service.process.signal("HUP");
    let started = Instant::now();
    // Peeks do not count, so the answer tells when the new number is in force.
    while said(&mut client, ask([descriptor_for("path=/x", 0)])).await != "OK: OK 48" {
        assert!(started.elapsed() < PATIENCE, "the counts survive and the new number is in force");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(directory);
}
