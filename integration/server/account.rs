//! What an answer says besides its verdict: headers, dynamic metadata, and the global modes.

use serde_json::json;
use tidegate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate::proto::google::protobuf::{Struct, Value, value::Kind};

use crate::server::grpc::{RULES, UNIT_YEAR, reset_s};
use crate::support::harness::{
    Client, Service, answer, ask, ask_one, descriptor, descriptor_for, headers, in_short, overridden, said,
};

#[tokio::test]
async fn headers_are_off_unless_asked_for_but_a_denial_says_when_to_retry() {
    let service = Service::start(RULES, &[]);
    let mut client = service.client().await;
    assert_eq!(headers(&answer(&mut client, ask_one("one=x")).await), [""; 0]);
    let denied = answer(&mut client, ask_one("one=x")).await;
    assert_eq!(in_short(&denied), "OVER: OVER 0");
    assert_eq!(headers(&denied), [format!("Retry-After: {}", reset_s(&denied.statuses[0]))]);
    assert_eq!(headers(&answer(&mut client, ask_one("never=x")).await), [""; 0], "a limit of zero never admits");
    let above = RateLimitRequest { hits_addend: 11, ..ask_one("a=x") };
    assert_eq!(headers(&answer(&mut client, above).await), [""; 0], "neither do hits above the limit");
    let shadowed = answer(&mut client, ask(["shadow=x", "shadow=x"].map(descriptor))).await;
    assert_eq!(headers(&shadowed), [""; 0], "what is let pass has nothing to wait for");
}

#[tokio::test]
async fn headers_describe_the_descriptor_that_matters() {
    let service = Service::start_with(RULES, &[], &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]);
    let mut client = service.client().await;
    assert_eq!(headers(&answer(&mut client, ask_one("nothing=x")).await), [""; 0], "no limit, no headers");
    assert_eq!(headers(&answer(&mut client, ask_one("free=x")).await), [""; 0]);

    let response = answer(&mut client, ask(["a=x", "b=x", "free=x"].map(descriptor))).await;
    let reset = reset_s(&response.statuses[1]);
    let lines = ["RateLimit-Limit: 2".into(), "RateLimit-Remaining: 1".into(), format!("RateLimit-Reset: {reset}")];
    assert_eq!(headers(&response), lines, "the least remaining");

    answer(&mut client, ask_one("b=x")).await;
    answer(&mut client, ask_one("one=x")).await;
    let response = answer(&mut client, ask(["b=x", "one=x", "a=x"].map(descriptor))).await;
    assert_eq!(in_short(&response), "OVER: OVER 0, OVER 0, OK 9");
    let [b, one] = [0, 1].map(|index| reset_s(&response.statuses[index]));
    let lines = [
        "RateLimit-Limit: 1".into(),
        "RateLimit-Remaining: 0".into(),
        format!("RateLimit-Reset: {one}"),
        format!("Retry-After: {}", b.max(one)),
    ];
    assert_eq!(headers(&response), lines, "the last that denies, and the longest wait at the end");
}

#[tokio::test]
async fn headers_have_the_names_they_are_given() {
    let env = [
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "1"),
        ("LIMIT_LIMIT_HEADER", "x-limit"),
        ("LIMIT_REMAINING_HEADER", "x-left"),
        ("LIMIT_RESET_HEADER", "X-Reset"),
        ("TIDEGATE_RETRY_AFTER", "false"),
    ];
    let service = Service::start_with(RULES, &[], &env);
    let mut client = service.client().await;
    answer(&mut client, ask_one("one=x")).await;
    let denied = answer(&mut client, ask_one("one=x")).await;
    let reset = reset_s(&denied.statuses[0]);
    assert_eq!(headers(&denied), ["x-limit: 1".into(), "x-left: 0".into(), format!("X-Reset: {reset}")]);
}

#[tokio::test]
async fn in_shadow_mode_nothing_is_denied_and_everything_is_said() {
    let env = [("SHADOW_MODE", "true"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "true")];
    let service = Service::start_with(RULES, &[], &env);
    let mut client = service.client().await;
    answer(&mut client, ask_one("one=x")).await;
    let response = answer(&mut client, ask(["one=x", "a=x"].map(descriptor))).await;
    assert_eq!(in_short(&response), "OK: OVER 0, OK 9", "statuses stay as they are, and all are charged");
    let reset = reset_s(&response.statuses[0]);
    let lines = ["RateLimit-Limit: 1".into(), "RateLimit-Remaining: 0".into(), format!("RateLimit-Reset: {reset}")];
    assert_eq!(headers(&response), lines, "but nobody is told to wait");
    assert_eq!(said(&mut client, ask_one("never=x")).await, "OK: OVER 0");
}

#[tokio::test]
async fn the_upstream_hears_what_the_client_hears_if_it_is_to_in_shadow_mode_too() {
    let env = [
        ("SHADOW_MODE", "true"),
        ("LIMIT_REQUEST_HEADERS_ENABLED", "true"),
        ("LIMIT_REQUEST_REMAINING_HEADER", "x-left"),
    ];
    let service = Service::start_with(RULES, &[], &env);
    let mut client = service.client().await;
    let of_request = |response: &RateLimitResponse| -> Vec<String> {
        response.request_headers_to_add.iter().map(|header| format!("{}: {}", header.key, header.value)).collect()
    };
    assert_eq!(of_request(&answer(&mut client, ask_one("nothing=x")).await), [""; 0], "no limit, no headers");
    for _ in 0..2 {
        let response = answer(&mut client, ask(["one=x", "a=x"].map(descriptor))).await;
        let reset = reset_s(&response.statuses[0]);
        let lines = ["RateLimit-Limit: 1".into(), "x-left: 0".into(), format!("RateLimit-Reset: {reset}")];
        assert_eq!(of_request(&response), lines);
        assert_eq!(headers(&response), [""; 0], "the client is told on its own account");
    }
}

#[tokio::test]
async fn in_quota_mode_only_all_descriptors_together_deny() {
    let service = Service::start_with(RULES, &[], &[("QUOTA_MODE", "true")]);
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("one=x")).await, "OK: OK 0");
    assert_eq!(said(&mut client, ask_one("one=x")).await, "OVER: OVER 0");
    assert_eq!(said(&mut client, ask(["one=x", "b=x"].map(descriptor))).await, "OK: OVER 0, OK 1");
    assert_eq!(said(&mut client, ask(["one=x", "nothing=x"].map(descriptor))).await, "OK: OVER 0, OK 0");
    let unlimited = said(&mut client, ask(["one=x", "free=x"].map(descriptor))).await;
    assert_eq!(unlimited, "OVER: OVER 0, OK 4294967295", "unlimited takes no part");
    assert_eq!(said(&mut client, ask_one("b=x")).await, "OK: OK 0");
    assert_eq!(said(&mut client, ask(["one=x", "b=x"].map(descriptor))).await, "OVER: OVER 0, OVER 0");
}

fn as_json(value: &Value) -> serde_json::Value {
    match value.kind.as_ref().expect("every value is of a kind") {
        Kind::NullValue(_) => serde_json::Value::Null,
        Kind::NumberValue(number) => json!(number),
        Kind::StringValue(text) => json!(text),
        Kind::BoolValue(value) => json!(value),
        Kind::StructValue(fields) => struct_as_json(fields),
        Kind::ListValue(list) => list.values.iter().map(as_json).collect(),
    }
}

fn struct_as_json(fields: &Struct) -> serde_json::Value {
    let fields = fields.fields.iter().map(|(name, value)| (name.clone(), as_json(value)));
    serde_json::Value::Object(fields.collect())
}

/// The dynamic metadata of an answer, and of its account only the four fields that are always there.
async fn metadata(client: &mut Client, request: RateLimitRequest) -> serde_json::Value {
    let response = answer(client, request).await;
    let mut metadata = struct_as_json(response.dynamic_metadata.as_ref().expect("metadata"));
    let account = metadata["tidegate"].as_object_mut().expect("an account");
    account.retain(|name, _| ["rule", "reason", "scope", "layer"].contains(&name.as_str()));
    metadata
}

#[tokio::test]
async fn metadata_says_what_was_asked_which_rule_decided_and_why() {
    let rules = "
domain: d
descriptors:
  - {key: a, metadata: {team: core, nested: {x: 1, y: [true, null]}}, rate_limit: {requests_per_unit: 1, unit: year}}
  - {key: b, metadata: {team: other, nested: {x: 2, z: deep}}, rate_limit: {requests_per_unit: 9, unit: year}}
  - {key: soft, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: year}}
  - key: api_key
    sensitive: true
    descriptors:
      - {key: path, value: v1, rate_limit: {requests_per_unit: 5, unit: year}}
";
    let service = Service::start_with(rules, &[], &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let mut client = service.client().await;
    let account =
        |rule: &str, reason: &str| json!({"rule": rule, "reason": reason, "scope": "local", "layer": "local"});

    let request = RateLimitRequest { hits_addend: 1, ..ask(["a=x", "b=x"].map(descriptor)) };
    assert_eq!(
        metadata(&mut client, request).await,
        json!({
            "domain": "d",
            "hitsAddend": 1.0,
            "descriptors": [{"entries": ["a=x"]}, {"entries": ["b=x"]}],
            "metadata": {"team": "core", "nested": {"x": 1.0, "y": [true, null], "z": "deep"}},
            "tidegate": account("a", "within_limit"),
        }),
        "the first value wins, and maps are joined"
    );
    assert_eq!(
        metadata(&mut client, ask([descriptor("a=x"), descriptor_for("b=x", 0)])).await,
        json!({
            "domain": "d",
            "descriptors": [{"entries": ["a=x"]}, {"entries": ["b=x"], "hitsAddend": 0.0}],
            "metadata": {"team": "other", "nested": {"x": 2.0, "z": "deep"}},
            "tidegate": account("a", "over_limit"),
        }),
        "also on a denial, without the metadata of what denies"
    );
    let nothing = metadata(&mut client, ask_one("nothing=x")).await;
    assert_eq!(nothing["tidegate"]["reason"], "no_rule");
    assert!(nothing.get("metadata").is_none() && nothing.get("hitsAddend").is_none(), "{nothing}");

    metadata(&mut client, ask_one("soft=x")).await;
    assert_eq!(metadata(&mut client, ask_one("soft=x")).await["tidegate"], account("soft", "shadow"));

    let brought = metadata(&mut client, ask([overridden("new=x", 3, UNIT_YEAR)])).await;
    assert_eq!(brought["descriptors"][0]["entries"], json!(["new=x"]));
    let limit = brought["descriptors"][0]["limit"].as_str().expect("the override as text");
    assert!(limit.contains("requests_per_unit:3") && limit.contains("unit:YEAR"), "{limit}");

    let hidden = metadata(&mut client, ask_one("api_key=hunter2,path=v1")).await;
    assert_eq!(hidden["tidegate"], account("api_key/path=v1", "within_limit"));
    assert!(!hidden.to_string().contains("hunter2"), "{hidden}");
    assert!(hidden.to_string().contains("path=v1"), "{hidden}");
    let hidden = metadata(&mut client, ask_one("api_key=hunter2,elsewhere=x")).await;
    assert!(!hidden.to_string().contains("hunter2"), "also where no rule is met in the end: {hidden}");
}
