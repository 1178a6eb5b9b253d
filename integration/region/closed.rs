//! A limit that is too small for its fleet says so, wherever people look, and says what opens it.

use std::net::SocketAddr;

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, Service, answer, ask_one, run, tidegate, until, until_equal};
use crate::support::redis::RedisServer;

const RULES: &str = "
domain: d
descriptors:
  - {key: ip, rate_limit: {requests_per_unit: 10, unit: second}}
  - {key: user, rate_limit: {requests_per_unit: 1000, unit: second}}
  - {key: account, rate_limit: {requests_per_unit: 1000, unit: day}}
";
const CLOSED: &str = "tidegate_regional_closed_limits";

fn status(admin: SocketAddr) -> String {
    let ran = run(&mut tidegate(&["status", "--addr", &admin.to_string()]));
    assert_eq!(ran.code, Some(0), "a closed limit is no problem: {ran:?}");
    ran.stdout
}

/// Asks `/explain` until it says this.
fn until_explained(service: &Service, descriptor: &str, part: &str) {
    let page = || service.page(&format!("/explain?domain=d&descriptor={descriptor}"));
    until(PATIENCE, part, || page().contains(part).then_some(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_closes_a_small_limit() {
    let redis = RedisServer::start();
    let mut fleet = Fleet::start(1, RULES, &redis.url(), &[PATIENT]);
    fleet.until_settled();
    assert_eq!(fleet.metric(CLOSED), 0.0, "one hit is a tenth of 10");
    let alone = &fleet.services[0];
    assert!(!status(alone.admin).contains("closed    "));
    assert_eq!(alone.page_json("/stats")["regional"]["closed_limits"]["count"], 0);
    until_explained(alone, "ip=x", "decided by memory: 0 of at most 1 hits are pending here; 1 live process");
    assert_eq!(alone.metric("tidegate_regional_decisions_total{by=\"origin\"}"), Some(0.0));

    fleet.add();
    until_equal(PATIENCE, 2.0, || fleet.metric(CLOSED));
    fleet.add();
    fleet.until_settled();
    let first = &fleet.services[0];
    let closed = "asks Redis: slack 10 % of 10 over 3 processes is below one hit; slack >= 0.3 opens it";
    until_explained(first, "ip=x", closed);
    until_explained(first, "user=x", "decided by memory: 0 of at most 33 hits are pending here; 3 live processes");
    until_explained(first, "account=x", "asks Redis: this process has come since hits that may count");
    let text = status(first.admin);
    assert!(
        text.contains("  closed    1 limit ") && text.contains("ip in d: 10 per second; slack >= 0.3 opens it"),
        "{text}"
    );
    let page = first.page_json("/explain?domain=d&descriptor=ip=x&output=json");
    let decided = &page[0]["now"][0]["decided_by"];
    assert!(decided["asks_now"] == true && decided["opening_slack"] == 0.3 && decided["processes"] == 3, "{page:#}");

    let mut client = first.client().await;
    let asked = || first.metric("tidegate_regional_decisions_total{by=\"origin\"}").unwrap_or_default();
    let before = asked();
    assert_eq!(answer(&mut client, ask_one("ip=y")).await.overall_code, 1);
    assert_eq!(asked(), before + 1.0, "the closed limit has asked");
    assert_eq!(answer(&mut client, ask_one("user=y")).await.overall_code, 1);
    assert_eq!(asked(), before + 1.0, "the open one has not");

    // What is said to open it does.
    first.write_rules(&RULES.replace("unit: second", "unit: second, slack: 0.3"));
    until_equal(PATIENCE, 0.0, || first.metric(CLOSED).unwrap_or(1.0));
    until_explained(first, "ip=x", "decided by memory: 0 of at most 1 hits are pending here; 3 live processes");
    assert_eq!(answer(&mut client, ask_one("ip=z")).await.overall_code, 1);
    assert_eq!(asked(), before + 1.0, "memory decides it now");
}
