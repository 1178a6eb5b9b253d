//! The answers of ShouldRateLimit, field by field: verdicts, limits, resets, and what is refused.
//!
//! Limits whose counts matter are per year, so that no test meets the end of a window.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tidegate::clock::wall_ms;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit, rate_limit};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::harness::{
    Client, METHOD, Service, answer, ask, ask_one, descriptor, descriptor_for, headers, in_short, overridden, refund,
    said, send_bytes,
};

pub const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 10, unit: year}}
  - {key: b, rate_limit: {requests_per_unit: 2, unit: year, name: pair}}
  - {key: one, rate_limit: {requests_per_unit: 1, unit: week}}
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: year}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: never, rate_limit: {requests_per_unit: 0, unit: year}}
  - {key: window, rate_limit: {requests_per_unit: 3, window: 90s}}
  - {key: second, rate_limit: {requests_per_unit: 3, window: 1s}}
  - key: path
    value: /login
    descriptors:
      - {key: ip, rate_limit: {requests_per_unit: 1, unit: year, replaces: [{name: pair}]}}
";

const YEAR_S: u64 = 365 * 24 * 60 * 60;
pub const UNIT_YEAR: i32 = rate_limit::Unit::Year as i32;

fn now_ms() -> u64 {
    wall_ms()
}

/// Seconds to the end of a fixed window, rounded up.
fn window_left_s(now_ms: u64, window_s: u64) -> i64 {
    let window_ms = window_s * 1000;
    (window_ms - now_ms % window_ms).div_ceil(1000) as i64
}

pub fn reset_s(status: &DescriptorStatus) -> i64 {
    let reset = status.duration_until_reset.as_ref().expect("a reset");
    assert_eq!(reset.nanos, 0, "whole seconds");
    reset.seconds
}

async fn refusal(client: &mut Client, request: RateLimitRequest) -> (Code, String) {
    let status = client.should_rate_limit(request).await.expect_err("a refusal");
    (status.code(), status.message().to_owned())
}

fn invalid(text: impl Into<String>) -> (Code, String) {
    (Code::InvalidArgument, text.into())
}

#[tokio::test]
async fn every_descriptor_has_its_status_in_its_place() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let mixed = || {
        let texts = ["nothing=x", "b=x", "free=x", "a=x", "shadow=x", "a=y", "path=/login", "path=/login,ip=1"];
        ask(texts.map(descriptor).into_iter().chain([RateLimitDescriptor::default()]))
    };
    // The last rule replaces `pair`, so that b is as good as unmatched.
    assert_eq!(said(&mut client, mixed()).await, "OK: OK 0, OK 0, OK 4294967295, OK 9, OK 0, OK 9, OK 0, OK 0, OK 0");
    assert_eq!(
        said(&mut client, mixed()).await,
        "OVER: OK 0, OK 0, OK 4294967295, OK 9, OK 0, OK 9, OK 0, OVER 0, OK 0",
        "denied as a whole, so nobody is charged"
    );
    assert_eq!(said(&mut client, ask(["a=x", "b=x", "a=x"].map(descriptor))).await, "OK: OK 8, OK 1, OK 7");
}

#[tokio::test]
async fn what_has_no_limit_says_nothing_but_ok() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let bare = |limit_remaining| DescriptorStatus { code: 1, limit_remaining, ..DescriptorStatus::default() };
    let bare_answer = |limit_remaining| RateLimitResponse {
        overall_code: 1,
        statuses: vec![bare(limit_remaining)],
        ..RateLimitResponse::default()
    };
    assert_eq!(answer(&mut client, ask_one("nothing=x")).await, bare_answer(0));
    assert_eq!(answer(&mut client, ask_one("a=x,too=deep")).await, bare_answer(0));
    assert_eq!(answer(&mut client, ask_one("path=/login")).await, bare_answer(0), "a node without a limit of its own");
    assert_eq!(answer(&mut client, ask_one("free=x")).await, bare_answer(u32::MAX));
    let elsewhere = RateLimitRequest { domain: "elsewhere".into(), ..ask_one("a=x") };
    assert_eq!(answer(&mut client, elsewhere).await, bare_answer(0));
    let elsewhere = RateLimitRequest { domain: "elsewhere".into(), ..ask([overridden("a=x", 1, UNIT_YEAR)]) };
    assert_eq!(answer(&mut client, elsewhere).await, bare_answer(0), "overrides need a known domain");
}

#[tokio::test]
async fn a_limited_descriptor_names_its_limit_and_when_it_resets() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let before_ms = now_ms();
    let response = answer(&mut client, ask_one("b=x")).await;
    let after_ms = now_ms();
    let status = &response.statuses[0];
    let limit = RateLimit { name: "pair".into(), requests_per_unit: 2, unit: UNIT_YEAR };
    assert_eq!(status.current_limit, Some(limit.clone()));
    assert_eq!((response.overall_code, status.code, status.limit_remaining), (1, 1, 1));
    let expected = window_left_s(after_ms, YEAR_S)..=window_left_s(before_ms, YEAR_S);
    assert!(expected.contains(&reset_s(status)), "{} not in {expected:?}", reset_s(status));
    assert!(response.response_headers_to_add.is_empty() && response.dynamic_metadata.is_none());

    answer(&mut client, ask_one("b=x")).await;
    let before_ms = now_ms();
    let response = answer(&mut client, ask_one("b=x")).await;
    let status = &response.statuses[0];
    assert_eq!(status.current_limit, Some(limit));
    assert_eq!((response.overall_code, status.code, status.limit_remaining), (2, 2, 0));
    // Two of two are counted: one fits again as soon as the sliding window has let a bit of them go.
    let expected = window_left_s(now_ms(), YEAR_S)..=window_left_s(before_ms, YEAR_S) + 1;
    assert!(expected.contains(&reset_s(status)), "{} not in {expected:?}", reset_s(status));

    let shadowed = ask_one("shadow=x");
    assert_eq!(said(&mut client, shadowed.clone()).await, "OK: OK 0");
    let response = answer(&mut client, shadowed).await;
    assert_eq!(in_short(&response), "OK: OK 0");
    assert_eq!(response.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 1);
    assert!(reset_s(&response.statuses[0]) > 0, "a shadowed denial reports its reset too");
}

#[tokio::test]
async fn a_window_that_is_no_unit_has_the_unit_unknown() {
    let units = ["second", "minute", "hour", "day", "month", "year", "week"];
    let mut rules = String::from("domain: d\ndescriptors:\n");
    for unit in units {
        rules += &format!("  - {{key: {unit}, rate_limit: {{requests_per_unit: 7, unit: {unit}}}}}\n");
    }
    rules += "  - {key: odd, rate_limit: {requests_per_unit: 7, window: 90s}}\n";
    rules += "  - {key: even, rate_limit: {requests_per_unit: 7, window: 24h}}\n";
    let service = Service::start(&rules, &[]);
    let mut client = service.client().await;
    let asked = units.into_iter().chain(["odd", "even"]).map(|key| descriptor(&format!("{key}=x")));
    let response = answer(&mut client, ask(asked)).await;
    let numbers: Vec<i32> = response.statuses.iter().map(|s| s.current_limit.as_ref().unwrap().unit).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 0, 4]);
    let longest_s = [1, 60, 3600, 86_400, 2_592_000, YEAR_S as i64, 604_800, 90, 86_400];
    for (status, longest_s) in response.statuses.iter().zip(longest_s) {
        assert!((1..=longest_s).contains(&reset_s(status)), "{status:?}");
    }
}

#[tokio::test]
async fn hits_of_the_request_count_for_every_descriptor_without_its_own() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let asked =
        |hits_addend, descriptors: Vec<RateLimitDescriptor>| RateLimitRequest { hits_addend, ..ask(descriptors) };
    assert_eq!(said(&mut client, asked(0, vec![descriptor("a=x")])).await, "OK: OK 9", "unset is one");
    assert_eq!(said(&mut client, asked(4, vec![descriptor("a=x")])).await, "OK: OK 5");
    let own = vec![descriptor_for("a=x", 1), descriptor("a=y")];
    assert_eq!(said(&mut client, asked(3, own)).await, "OK: OK 4, OK 7", "the descriptor's own hits win");
    assert_eq!(said(&mut client, asked(5, vec![descriptor("a=x")])).await, "OVER: OVER 0");
    assert_eq!(said(&mut client, asked(4, vec![descriptor("a=x")])).await, "OK: OK 0", "the denied five cost nothing");
    assert_eq!(said(&mut client, asked(u32::MAX, vec![descriptor("a=z")])).await, "OVER: OVER 0");
    assert_eq!(said(&mut client, ask_one("a=z")).await, "OK: OK 9");
}

#[tokio::test]
async fn hits_of_zero_look_without_touching() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let peek = || ask([descriptor_for("b=x", 0)]);
    assert_eq!(said(&mut client, peek()).await, "OK: OK 2");
    assert_eq!(said(&mut client, peek()).await, "OK: OK 2");
    said(&mut client, ask_one("b=x")).await;
    said(&mut client, ask_one("b=x")).await;
    assert_eq!(said(&mut client, peek()).await, "OK: OK 0", "all used, but not over");
    assert_eq!(said(&mut client, ask([descriptor_for("b=x", 1)])).await, "OVER: OVER 0");
    assert_eq!(said(&mut client, peek()).await, "OVER: OVER 0", "own hits are charged over the limit too");
}

#[tokio::test]
async fn refunds_give_back_what_is_there_and_no_more() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask([refund("a=x", 5)])).await, "OK: OK 10", "nothing to give back, nothing banked");
    assert_eq!(said(&mut client, ask([descriptor_for("a=x", 8)])).await, "OK: OK 2");
    assert_eq!(said(&mut client, ask([refund("a=x", 3)])).await, "OK: OK 5");
    assert_eq!(said(&mut client, ask([descriptor_for("a=x", 15)])).await, "OVER: OVER 0");
    assert_eq!(said(&mut client, ask([refund("a=x", 5)])).await, "OK: OK 0", "a refund is always OK, also in debt");
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OVER: OVER 0");
    assert_eq!(said(&mut client, ask([refund("a=x", 1000)])).await, "OK: OK 10");
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 9", "what exceeds the count is lost");
    let of_request = RateLimitDescriptor { is_negative_hits: true, ..descriptor("a=y") };
    said(&mut client, ask([descriptor_for("a=y", 8)])).await;
    let request = RateLimitRequest { hits_addend: 3, ..ask([of_request]) };
    assert_eq!(said(&mut client, request).await, "OK: OK 5", "without own hits, those of the request");
}

#[tokio::test]
async fn the_largest_hits_are_counted_without_wrapping() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    for hits in [u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
        let text = format!("a={hits}");
        assert_eq!(said(&mut client, ask([descriptor_for(&text, hits)])).await, "OVER: OVER 0");
        assert_eq!(said(&mut client, ask([descriptor_for(&text, hits)])).await, "OVER: OVER 0", "a second time on top");
        assert_eq!(said(&mut client, ask_one(&text)).await, "OVER: OVER 0");
    }
    let all = || descriptor_for("a=twice", u64::MAX);
    assert_eq!(said(&mut client, ask([all(), all()])).await, "OVER: OVER 0, OVER 0");
    assert_eq!(said(&mut client, ask([refund("a=fresh", u64::MAX)])).await, "OK: OK 10");
    said(&mut client, ask([descriptor_for("a=fresh", 6)])).await;
    assert_eq!(said(&mut client, ask([refund("a=fresh", u64::MAX)])).await, "OK: OK 10");
    assert_eq!(said(&mut client, ask_one("a=fresh")).await, "OK: OK 9");
}

#[tokio::test]
async fn a_request_may_bring_its_own_limit() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let response = answer(&mut client, ask([overridden("new=x", 3, UNIT_YEAR)])).await;
    assert_eq!(in_short(&response), "OK: OK 2");
    let limit = RateLimit { name: String::new(), requests_per_unit: 3, unit: UNIT_YEAR };
    assert_eq!(response.statuses[0].current_limit, Some(limit));
    assert_eq!(said(&mut client, ask([overridden("new=y", 3, UNIT_YEAR)])).await, "OK: OK 2", "each value apart");
    assert_eq!(said(&mut client, ask([overridden("new=x", 1, UNIT_YEAR)])).await, "OVER: OVER 0", "the same count");

    assert_eq!(said(&mut client, ask_one("b=x")).await, "OK: OK 1");
    assert_eq!(
        said(&mut client, ask([overridden("b=x", 5, UNIT_YEAR)])).await,
        "OK: OK 3",
        "the rule's count carries over"
    );
    assert_eq!(said(&mut client, ask_one("b=x")).await, "OVER: OVER 0", "and the override's hits are the rule's");
    let response = answer(&mut client, ask([overridden("free=x", 5, UNIT_YEAR)])).await;
    assert_eq!(in_short(&response), "OK: OK 4", "also in place of unlimited");
    let response = answer(&mut client, ask([overridden("a=x", 0, UNIT_YEAR)])).await;
    assert_eq!(in_short(&response), "OVER: OVER 0");
    assert_eq!(headers(&response), [""; 0], "no wait would help");
}

#[tokio::test]
async fn malformed_requests_are_told_what_is_wrong() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let empty = RateLimitRequest::default();
    assert_eq!(refusal(&mut client, empty).await, invalid("rate limit domain must not be empty"));
    let unnamed = RateLimitRequest { domain: String::new(), ..ask_one("a=x") };
    assert_eq!(refusal(&mut client, unnamed).await, invalid("rate limit domain must not be empty"));
    assert_eq!(refusal(&mut client, ask([])).await, invalid("rate limit descriptor list must not be empty"));
    for (domain, unit) in [("d", 0), ("d", 8), ("d", -1), ("elsewhere", 0), ("elsewhere", i32::MAX)] {
        let request = ask([descriptor("a=x"), overridden("a=x", 1, unit)]);
        let request = RateLimitRequest { domain: domain.into(), ..request };
        let text = format!(
            "descriptor 1 overrides its limit with unit {unit}, which is none of second, minute, hour, day, month, \
             year or week (1 to 7)"
        );
        assert_eq!(refusal(&mut client, request).await, invalid(text));
    }
    assert_eq!(said(&mut client, ask_one("a=x")).await, "OK: OK 9", "nothing of all this was counted");
}

#[tokio::test]
async fn every_bound_of_a_request_holds_at_its_edge() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let entry = |key: usize, value: usize| Entry { key: "k".repeat(key), value: "v".repeat(value) };
    let of = |entries: Vec<Entry>| ask([RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }]);
    let many = |count| ask((0..count).map(|_| descriptor("nothing=x")));
    let long_domain = |bytes| RateLimitRequest { domain: "d".repeat(bytes), ..ask_one("a=x") };
    let cases = [
        (
            of(vec![entry(1, 16 * 1024)]),
            of(vec![entry(1, 16 * 1024 + 1)]),
            "descriptor 0 has a value of 16385 bytes, at most 16384 are allowed",
        ),
        (
            of(vec![entry(256, 1)]),
            of(vec![entry(257, 1)]),
            "descriptor 0 has a key of 257 bytes, at most 256 are allowed",
        ),
        (of(vec![entry(1, 1); 16]), of(vec![entry(1, 1); 17]), "descriptor 0 has 17 entries, at most 16 are allowed"),
        (many(32), many(33), "rate limit request has 33 descriptors, at most 32 are allowed"),
        (many(1), many(1000), "rate limit request has 1000 descriptors, at most 32 are allowed"),
        (long_domain(128), long_domain(129), "rate limit domain has 129 bytes, at most 128 are allowed"),
    ];
    for (allowed, refused, text) in cases {
        let descriptors = allowed.descriptors.len();
        assert_eq!(answer(&mut client, allowed).await.statuses.len(), descriptors);
        assert_eq!(refusal(&mut client, refused).await, invalid(text));
    }
}

async fn send(channel: &Channel, message: Vec<u8>) -> Result<RateLimitResponse, Status> {
    let bytes = send_bytes(channel, METHOD, message.into()).await?;
    Ok(RateLimitResponse::decode(bytes).expect("an answer of the protocol"))
}

#[tokio::test]
async fn what_can_not_be_read_is_refused_and_the_connection_lives_on() {
    let service = Service::start(RULES, &[]);
    let channel = service.channel().await;
    let good = ask_one("a=caller").encode_to_vec();
    let mut left = 10;
    for (what, bytes) in [
        ("undecodable", vec![0xff; 20]),
        ("cut short", good[..good.len() - 1].to_vec()),
        ("not UTF-8", {
            let mut bytes = good.clone();
            *bytes.last_mut().unwrap() = 0xff;
            bytes
        }),
        ("too large", ask((0..8).map(|_| descriptor(&format!("a={}", "v".repeat(9000))))).encode_to_vec()),
        ("a mebibyte", ask_one(&format!("a={}", "v".repeat(1024 * 1024))).encode_to_vec()),
    ] {
        let error = send(&channel, bytes).await.expect_err(what);
        assert!(
            matches!(error.code(), Code::Internal | Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted),
            "{what}: {error:?}"
        );
        left -= 1;
        let response = send(&channel, good.clone()).await.unwrap_or_else(|error| panic!("after {what}: {error:?}"));
        assert_eq!(in_short(&response), format!("OK: OK {left}"), "after {what}");
    }
    let fits = ask((0..4).map(|_| descriptor(&format!("nothing={}", "v".repeat(16_000))))).encode_to_vec();
    assert!(fits.len() > 62 * 1024 && fits.len() < 64 * 1024, "{}", fits.len());
    assert_eq!(in_short(&send(&channel, fits).await.unwrap()), "OK: OK 0, OK 0, OK 0, OK 0");
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let service = Service::start(RULES, &[]);
    let method = "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit";
    let error = send_bytes(&service.channel().await, method, Bytes::new()).await.expect_err("no such service");
    assert_eq!(error.code(), Code::Unimplemented);
}

#[tokio::test]
async fn values_that_look_alike_are_counted_apart() {
    let rules = "
domain: d
descriptors:
  - key: a
    rate_limit: {requests_per_unit: 1, unit: year}
    descriptors:
      - {key: b, rate_limit: {requests_per_unit: 1, unit: year}}
";
    let service = Service::start(rules, &[]);
    let mut client = service.client().await;
    let of = |values: &[&str]| {
        let entries = ["a", "b"].iter().zip(values);
        let entries = entries.map(|(key, value)| Entry { key: key.to_string(), value: value.to_string() }).collect();
        ask([RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }])
    };
    let long = "v".repeat(16 * 1024);
    let nearly = format!("{}w", &long[1..]);
    let cases: [&[&str]; 13] = [
        &[""],
        &["x"],
        &["X"],
        &["x "],
        &["x\0"],
        &["\0x"],
        &["x_b_y"],
        &["x", "y"],
        &["x\0y", ""],
        &["x", "\0y"],
        &["\u{e4}"],
        &[&long],
        &[&nearly],
    ];
    for values in cases {
        assert_eq!(said(&mut client, of(values)).await, "OK: OK 0", "{values:?} is new");
    }
    for values in cases {
        assert_eq!(said(&mut client, of(values)).await, "OVER: OVER 0", "{values:?} is known");
    }
}

#[tokio::test]
async fn many_clients_at_once_are_admitted_exactly_to_the_limit() {
    let rules = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 100, unit: year}}
  - {key: wide, rate_limit: {requests_per_unit: 1000000, unit: year}}
";
    let service = Service::start(rules, &[]);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let mut client = service.client().await;
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..40 {
                // Every other one in the opposite order: two batches never both fail when one of them fits.
                let mut asked = vec![descriptor("a=x"), descriptor("wide=x")];
                if number % 2 == 1 {
                    asked.reverse();
                }
                admitted += u32::from(answer(&mut client, ask(asked)).await.overall_code == 1);
            }
            admitted
        });
    }
    let admitted: u32 = tasks.join_all().await.into_iter().sum();
    assert_eq!(admitted, 100);
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("wide=x")).await, "OK: OK 999899", "denied requests were not charged there");
}

#[tokio::test]
async fn a_denied_call_that_waits_as_told_passes() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    let denied = loop {
        // The limit is three a second: however slow the machine, a handful of calls at once meets it.
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut client = client.clone();
            calls.spawn(async move { answer(&mut client, ask_one("second=x")).await });
        }
        let answers = calls.join_all().await;
        // The last, which knows of all the others.
        if let Some(denied) = answers.into_iter().rfind(|answer| answer.overall_code == 2) {
            break denied;
        }
    };
    let wait_s = reset_s(&denied.statuses[0]);
    assert!((1..=2).contains(&wait_s), "{wait_s}");
    assert_eq!(headers(&denied), [format!("Retry-After: {wait_s}")]);
    tokio::time::sleep(Duration::from_secs(wait_s as u64)).await;
    assert_eq!(answer(&mut client, ask_one("second=x")).await.overall_code, 1);
}
