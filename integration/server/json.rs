//! `/json`: the same service in proto3 JSON over HTTP.

use serde_json::{Value, json};

use crate::support::harness::{HttpAnswer, Service, http};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 2, unit: year, name: pair}}
  - {key: never, rate_limit: {requests_per_unit: 0, unit: year}}
  - {key: window, rate_limit: {requests_per_unit: 2, window: 90s}}
";

fn one(key: &str) -> String {
    json!({"domain": "d", "descriptors": [{"entries": [{"key": key, "value": "x"}]}]}).to_string()
}

fn reset_s(status: &Value) -> i64 {
    let text = status["durationUntilReset"].as_str().expect("a duration");
    text.strip_suffix('s').and_then(|number| number.parse().ok()).expect("whole seconds")
}

#[track_caller]
fn assert_bad(answer: &HttpAnswer) {
    assert_eq!((answer.status, answer.body.as_str()), (400, "Bad Request\n"), "{answer:?}");
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")), "{answer:?}");
}

#[test]
fn it_answers_200_until_the_limit_and_429_above() {
    let service = Service::start(RULES, &[]);
    let first = service.post("/json", &one("a"));
    let status = &first.json()["statuses"][0];
    let expected = json!({
        "overallCode": "OK",
        "statuses": [{
            "code": "OK",
            "currentLimit": {"name": "pair", "requestsPerUnit": 2, "unit": "YEAR"},
            "limitRemaining": 1,
            "durationUntilReset": format!("{}s", reset_s(status)),
        }],
    });
    assert_eq!((first.status, first.json()), (200, expected));
    assert!((1..=31_536_000).contains(&reset_s(status)));
    assert_eq!(first.header("retry-after"), None);

    let second = service.post("/json", &one("a"));
    assert_eq!(second.status, 200);
    assert_eq!(second.json()["statuses"][0].get("limitRemaining"), None, "zero is left out");

    let third = service.post("/json", &one("a"));
    let answer = third.json();
    assert_eq!((third.status, &answer["overallCode"]), (429, &json!("OVER_LIMIT")));
    assert_eq!(answer["statuses"][0]["code"], "OVER_LIMIT");
    assert_eq!(answer["statuses"][0].get("limitRemaining"), None);
    let wait = reset_s(&answer["statuses"][0]).to_string();
    assert_eq!(third.header("retry-after"), Some(wait.as_str()));
    assert_eq!(answer["responseHeadersToAdd"], json!([{"key": "Retry-After", "value": wait}]));
}

#[test]
fn what_never_fits_is_not_told_to_wait() {
    let service = Service::start(RULES, &[]);
    let answer = service.post("/json", &one("never"));
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));
    assert_eq!(answer.json().get("responseHeadersToAdd"), None);
    let silent = Service::start_with(RULES, &[], &[("TIDEGATE_RETRY_AFTER", "false")]);
    (0..2).for_each(|_| assert_eq!(silent.post("/json", &one("a")).status, 200));
    let answer = silent.post("/json", &one("a"));
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));
}

#[test]
fn what_has_no_limit_or_no_unit_leaves_it_out() {
    let service = Service::start(RULES, &[]);
    let answer = service.post("/json", &one("nothing"));
    assert_eq!((answer.status, answer.json()), (200, json!({"overallCode": "OK", "statuses": [{"code": "OK"}]})));
    let limit = &service.post("/json", &one("window")).json()["statuses"][0]["currentLimit"];
    assert_eq!(*limit, json!({"requestsPerUnit": 2}), "UNKNOWN is zero too");
}

#[test]
fn it_reads_camel_case_and_snake_case() {
    let service = Service::start(RULES, &[]);
    for (hits, own, limit, requests, refund) in [
        ("hitsAddend", "hitsAddend", "limit", "requestsPerUnit", "isNegativeHits"),
        ("hits_addend", "hits_addend", "limit", "requests_per_unit", "is_negative_hits"),
    ] {
        let entries = json!([{"key": "case", "value": hits}]);
        let of = |descriptor: Value| json!({"domain": "d", hits: 3, "descriptors": [descriptor]}).to_string();
        let limited = json!({requests: 9, "unit": "YEAR"});
        let charged = service.post("/json", &of(json!({"entries": entries, limit: limited})));
        assert_eq!(charged.json()["statuses"][0]["limitRemaining"], 6, "{charged:?}");
        let charged = service.post("/json", &of(json!({"entries": entries, limit: limited, own: "4"})));
        assert_eq!(charged.json()["statuses"][0]["limitRemaining"], 2, "64-bit numbers are strings too: {charged:?}");
        let refunded = service.post("/json", &of(json!({"entries": entries, limit: limited, refund: true, own: 5})));
        assert_eq!(refunded.json()["statuses"][0]["limitRemaining"], 7, "{refunded:?}");
    }
}

#[test]
fn what_it_can_not_read_is_a_bad_request() {
    let service = Service::start(RULES, &[]);
    let too_long = json!({"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "v".repeat(16_385)}]}]});
    let many = json!({"domain": "d", "descriptors": vec![json!({"entries": [{"key": "a", "value": "x"}]}); 33]});
    let unit = json!({"domain": "d", "descriptors": [{"entries": [], "limit": {"requestsPerUnit": 1, "unit": 77}}]});
    for body in [
        "",
        "{",
        "[]",
        "null",
        "\"domain\"",
        "{}",
        r#"{"domain": "d"}"#,
        r#"{"domain": "", "descriptors": [{}]}"#,
        r#"{"domain": 7, "descriptors": [{}]}"#,
        r#"{"domain": "d", "descriptors": [{}], "unknown": 1}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x", "weight": 1}]}]}"#,
        r#"{"domain": "d", "descriptors": [{}], "hitsAddend": -1}"#,
        r#"{"domain": "d", "descriptors": [{}], "hitsAddend": 4294967296}"#,
        r#"{"domain": "d", "descriptors": [{}]} {}"#,
        &too_long.to_string(),
        &many.to_string(),
        &unit.to_string(),
        &one(&"k".repeat(1024 * 1024)),
    ] {
        let answer = service.post("/json", body);
        assert_eq!(answer.status, 400, "{}", &body[..body.len().min(80)]);
        assert_bad(&answer);
    }
    assert_eq!(service.post("/json", &one("a")).json()["statuses"][0]["limitRemaining"], 1, "nothing was counted");
}

#[test]
fn any_method_will_do() {
    let service = Service::start(RULES, &[]);
    for (method, left) in [("GET", Some(1)), ("PUT", None), ("DELETE", None)] {
        let answer = http(service.http, method, "/json", &one("a"));
        let expected_status = if method == "DELETE" { 429 } else { 200 };
        assert_eq!(answer.status, expected_status, "{method}");
        assert_eq!(
            answer.json()["statuses"][0].get("limitRemaining"),
            left.map(|left| json!(left)).as_ref(),
            "{method}"
        );
    }
    assert_bad(&http(service.http, "GET", "/json", ""));
}

#[test]
fn both_ports_count_together() {
    let service = Service::start(RULES, &[]);
    (0..2).for_each(|_| assert_eq!(service.post("/json", &one("a")).status, 200));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let said = runtime.block_on(async {
        let mut client = service.client().await;
        crate::support::harness::said(&mut client, crate::support::harness::ask_one("a=x")).await
    });
    assert_eq!(said, "OVER: OVER 0");
}
