//! Whatever a request may hold: the documented answer, the same on both ports, and never for more than ten times the
//! memory that the request has.

use std::net::TcpStream;

use bytes::Bytes;
use http::Request;
use prost::Message;
use serde_json::{Value, json};
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tokio::task::{JoinSet, spawn_blocking};
use tonic::Code;

use crate::support::harness::{
    Client, HttpAnswer, METHOD, PATIENCE, Service, answer, ask, ask_one, descriptor, descriptor_for, http, http_over,
    in_short, overridden, refund, said, send_bytes,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 10, unit: year}}
";

const MIB: usize = 1024 * 1024;

/// Two services with equal counts: one is asked by gRPC, the other by JSON.
struct Both {
    by_grpc: Service,
    client: Client,
    by_json: Service,
}

impl Both {
    async fn start() -> Both {
        let by_grpc = Service::start(RULES, &[]);
        Both { client: by_grpc.client().await, by_grpc, by_json: Service::start(RULES, &[]) }
    }

    /// What both say: the answer in short, or why there is none.
    async fn say(&mut self, request: RateLimitRequest) -> Result<String, String> {
        let by_json = self.by_json.post("/json", &as_json(&request));
        let by_grpc = match self.client.should_rate_limit(request).await {
            Ok(response) => Ok(in_short(response.get_ref())),
            Err(status) => {
                assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
                Err(status.message().to_owned())
            }
        };
        assert_eq!(json_in_short(&by_json), by_grpc, "JSON on the left, gRPC on the right");
        by_grpc
    }
}

/// A request in proto3 JSON.
fn as_json(request: &RateLimitRequest) -> String {
    let descriptor = |descriptor: &RateLimitDescriptor| {
        let entry = |entry: &Entry| json!({"key": entry.key, "value": entry.value});
        let mut json = json!({"entries": descriptor.entries.iter().map(entry).collect::<Value>()});
        if let Some(hits) = &descriptor.hits_addend {
            // 64-bit numbers are strings.
            json["hitsAddend"] = json!(hits.value.to_string());
        }
        if descriptor.is_negative_hits {
            json["isNegativeHits"] = json!(true);
        }
        if let Some(limit) = &descriptor.limit {
            json["limit"] = json!({"requestsPerUnit": limit.requests_per_unit, "unit": limit.unit});
        }
        json
    };
    let descriptors: Value = request.descriptors.iter().map(descriptor).collect();
    json!({"domain": request.domain, "hitsAddend": request.hits_addend, "descriptors": descriptors}).to_string()
}

fn json_in_short(answer: &HttpAnswer) -> Result<String, String> {
    if answer.status == 400 {
        return Err(answer.header("x-tidegate-error").expect("a refusal says why").to_owned());
    }
    let answer = answer.json();
    let word = |code: &Value| if code == "OVER_LIMIT" { "OVER" } else { "OK" };
    let status =
        |status: &Value| format!("{} {}", word(&status["code"]), status["limitRemaining"].as_u64().unwrap_or(0));
    let statuses: Vec<String> = answer["statuses"].as_array().expect("statuses").iter().map(status).collect();
    Ok(format!("{}: {}", word(&answer["overallCode"]), statuses.join(", ")))
}

#[tokio::test]
async fn hits_are_answered_alike_at_every_edge_of_their_type() {
    let mut both = Both::start().await;
    let ok = |text: &str| Ok(text.to_owned());
    for hits in [0, 1, 10, 11, u32::MAX - 1, u32::MAX] {
        let text = format!("a=request-{hits}");
        let heard = both.say(RateLimitRequest { hits_addend: hits, ..ask_one(&text) }).await;
        let (expected, next) = match hits.max(1) {
            hits @ 1..=9 => (format!("OK: OK {}", 10 - hits), ok("OK: OK 8")),
            10 => ("OK: OK 0".to_owned(), ok("OVER: OVER 0")),
            _ => ("OVER: OVER 0".to_owned(), ok("OK: OK 9")),
        };
        assert_eq!(heard, Ok(expected), "{hits} for the request");
        assert_eq!(both.say(ask_one(&text)).await, next, "one after {hits} for the request: a denial costs nothing");
    }
    let edges = [0, 10, 11, u64::from(u32::MAX), 1 << 32, (1 << 53) + 1, i64::MAX as u64, 1 << 63, u64::MAX];
    for hits in edges {
        let text = format!("a=own-{hits}");
        let heard = both.say(ask([descriptor_for(&text, hits)])).await;
        let (expected, next) = match hits {
            0 => ("OK: OK 10", "OK: OK 9"),
            10 => ("OK: OK 0", "OVER: OVER 0"),
            _ => ("OVER: OVER 0", "OVER: OVER 0"),
        };
        assert_eq!(heard, ok(expected), "{hits} of its own");
        assert_eq!(both.say(ask_one(&text)).await, ok(next), "one after {hits} of its own, which are charged");
    }
    for hits in edges {
        let text = format!("a=refund-{hits}");
        assert_eq!(both.say(ask([descriptor_for(&text, 4)])).await, ok("OK: OK 6"));
        let left = if hits == 0 { "OK: OK 6" } else { "OK: OK 10" };
        assert_eq!(both.say(ask([refund(&text, hits)])).await, ok(left), "{hits} given back, four were taken");
    }
    let other = both.by_json;
    for hits in ["-1", "1.5", "36893488147419103232", "\"x\"", "\"-1\"", "1e30", "[]", "{}", "true"] {
        for body in [
            format!(r#"{{"domain":"d","hitsAddend":{hits},"descriptors":[{{"entries":[]}}]}}"#),
            format!(r#"{{"domain":"d","descriptors":[{{"entries":[],"hitsAddend":{hits}}}]}}"#),
        ] {
            assert_eq!(other.post("/json", &body).status, 400, "{body}");
        }
    }
}

#[tokio::test]
async fn every_number_of_descriptors_is_answered_one_by_one_or_refused_as_a_whole() {
    let mut both = Both::start().await;
    let expected = |count: usize| match count {
        0 => Err("rate limit descriptor list must not be empty".to_owned()),
        1..=32 => Ok(format!("OK: {}", ["OK 0"; 32][..count].join(", "))),
        _ => Err(format!("rate limit request has {count} descriptors, at most 32 are allowed")),
    };
    let of = |count| ask((0..count).map(|_| descriptor("nothing=x")));
    for count in (0..40).chain((40..1000).step_by(61)).chain([1000]) {
        assert_eq!(both.say(of(count)).await, expected(count), "{count} descriptors");
    }
    for count in 0..=1000 {
        match both.client.should_rate_limit(of(count)).await {
            Ok(response) => assert_eq!(Ok(in_short(response.get_ref())), expected(count), "{count} descriptors"),
            Err(status) => assert_eq!(Err(status.message().to_owned()), expected(count), "{count} descriptors"),
        }
    }
    let limited = ask((0..33).map(|_| descriptor("a=x")));
    assert!(both.say(limited).await.is_err());
    assert_eq!(both.say(ask_one("a=x")).await, Ok("OK: OK 9".to_owned()), "nothing of a refused request was counted");
}

#[tokio::test]
async fn units_that_do_not_exist_are_refused_by_number_and_by_name() {
    let mut both = Both::start().await;
    for unit in [0, -1, 8, 77, i32::MIN, i32::MAX] {
        let heard = both.say(ask([overridden("a=x", 5, unit)])).await.expect_err("no such unit");
        assert!(
            heard.starts_with(&format!("descriptor 0 overrides its limit with unit {unit}, which is none")),
            "{heard}"
        );
    }
    for unit in 1..=7 {
        assert_eq!(both.say(ask([overridden(&format!("a={unit}"), 5, unit)])).await, Ok("OK: OK 4".to_owned()));
    }
    for unit in ["\"FORTNIGHT\"", "\"second\"", "\"\"", "1.5", "2147483648"] {
        let body = format!(
            r#"{{"domain":"d","descriptors":[{{"entries":[],"limit":{{"requestsPerUnit":1,"unit":{unit}}}}}]}}"#
        );
        assert_eq!(both.by_json.post("/json", &body).status, 400, "{body}");
    }
}

/// INV-9.
#[tokio::test]
async fn odd_characters_are_values_like_any_other_and_what_is_not_text_is_refused() {
    let mut both = Both::start().await;
    let values = [
        "",
        "\0",
        "\0\0",
        "x\0",
        "_",
        "a_b",
        "a",
        "|",
        "/",
        "=",
        "=,a=",
        "%",
        "*",
        "..",
        "\r\n",
        "\u{feff}",
        "\u{10ffff}",
    ];
    let of = |value: &str| {
        let entries = vec![Entry { key: "a".into(), value: value.into() }];
        ask([RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }])
    };
    for value in values {
        assert_eq!(both.say(of(value)).await, Ok("OK: OK 9".to_owned()), "{value:?} is new");
    }
    for value in values {
        assert_eq!(both.say(of(value)).await, Ok("OK: OK 8".to_owned()), "{value:?} is known, and apart");
    }
    for key in ["\0", "a\0", "", "a_", "A"] {
        let odd = RateLimitDescriptor {
            entries: vec![Entry { key: key.into(), value: "x".into() }],
            ..RateLimitDescriptor::default()
        };
        assert_eq!(both.say(ask([odd])).await, Ok("OK: OK 0".to_owned()), "no rule is for the key {key:?}");
        let request = RateLimitRequest { domain: format!("d{key}\0"), ..ask_one("a=x") };
        assert_eq!(both.say(request).await, Ok("OK: OK 0".to_owned()), "no domain is called so");
    }

    let good = RateLimitRequest { domain: "#".into(), ..ask([descriptor("#=#")]) }.encode_to_vec();
    let places: Vec<usize> = (0..good.len()).filter(|place| good[*place] == b'#').collect();
    assert_eq!(places.len(), 3, "the domain, the key and the value");
    let channel = both.by_grpc.channel().await;
    for place in places {
        let mut bytes = good.clone();
        bytes[place] = 0xff;
        let status = send_bytes(&channel, METHOD, bytes.into()).await.expect_err("not UTF-8");
        assert_eq!(status.code(), Code::Internal, "{status:?}");
    }
    for value in [&b"\xff"[..], b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800", b"\n", b"\0"] {
        let [before, after] = [&br#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":""#[..], br#""}]}]}"#];
        let stream = TcpStream::connect(both.by_json.http).unwrap();
        let answer = http_over(stream, "POST", "/json", &[], [before, value, after].concat());
        assert_eq!(answer.status, 400, "{:?}: {answer:?}", String::from_utf8_lossy(value));
    }
    let answer =
        both.by_json.post("/json", r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"\u0000"}]}]}"#);
    assert_eq!(json_in_short(&answer), Ok("OK: OK 7".to_owned()), "a NUL that is spelled out is the same NUL");
}

/// What a call comes to whose body is made of these bytes, whether or not they are a message.
async fn code_of(service: &Service, body: &[u8]) -> Code {
    let stream = tokio::net::TcpStream::connect(service.grpc).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://test{METHOD}")).header("content-type", "application/grpc");
    let (response, mut stream) = sender.send_request(request.body(()).unwrap(), false).unwrap();
    stream.send_data(Bytes::copy_from_slice(body), true).unwrap();
    let mut response = response.await.expect("an answer");
    let trailers = match response.headers().get("grpc-status") {
        Some(_) => response.headers().clone(),
        None => {
            while let Some(data) = response.body_mut().data().await {
                data.expect("the stream is not reset");
            }
            response.body_mut().trailers().await.expect("the stream is not reset").expect("trailers")
        }
    };
    Code::from_bytes(trailers["grpc-status"].as_bytes())
}

#[tokio::test]
async fn what_is_no_call_of_grpc_is_neither_decided_nor_charged() {
    let service = Service::start(RULES, &[]);
    let message = ask_one("a=x").encode_to_vec();
    let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    for (method, content_type, status) in [
        ("GET", Some("application/grpc"), 405),
        ("PUT", None, 405),
        ("POST", Some("text/plain"), 415),
        ("POST", Some("application/grpc-web"), 415),
        ("POST", None, 415),
        ("POST", Some("application/grpc+proto"), 200),
    ] {
        let stream = tokio::net::TcpStream::connect(service.grpc).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(format!("http://test{METHOD}"));
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let (response, mut stream) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        // Whoever is refused may be told before all is sent.
        let _ = stream.send_data(Bytes::copy_from_slice(&framed), true);
        let response = response.await.expect("an answer");
        assert_eq!(response.status(), status, "{method} {content_type:?}");
        assert_eq!(response.headers().get("allow").is_some(), status == 405, "{method} {content_type:?}");
    }
    assert_eq!(service.metric("tidegate_errors_total{reason=\"malformed\"}"), Some(5.0));
    assert_eq!(service.counted("d", "a=x"), 1);
}

#[tokio::test]
async fn a_body_that_is_no_message_gets_a_typed_error() {
    let service = Service::start(RULES, &[]);
    let good = ask_one("a=x").encode_to_vec();
    let framed = |flag: u8, length: u32, bytes: &[u8]| [&[flag][..], &length.to_be_bytes(), bytes].concat();
    let whole = framed(0, good.len() as u32, &good);
    let group = [vec![0x1b; 1000], vec![0x1c; 1000]].concat();
    for (what, body, code) in [
        ("a message", whole.clone(), Code::Ok),
        ("nothing", vec![], Code::Internal),
        ("an empty message", framed(0, 0, &[]), Code::InvalidArgument),
        ("half a length", vec![0, 0, 0], Code::Internal),
        ("less than it says", framed(0, good.len() as u32 + 1, &good), Code::Internal),
        ("a length of 4 GiB", framed(0, u32::MAX, &good), Code::OutOfRange),
        ("one byte above 64 KiB", framed(0, 64 * 1024 + 1, &[0; 100]), Code::OutOfRange),
        ("compressed, which nobody agreed on", framed(1, good.len() as u32, &good), Code::Internal),
        ("a flag that does not exist", framed(9, good.len() as u32, &good), Code::Internal),
        ("groups in groups", framed(0, group.len() as u32, &group), Code::Internal),
        ("a number without an end", framed(0, 12, &[0xff; 12]), Code::Internal),
    ] {
        assert_eq!(code_of(&service, &body).await, code, "{what}");
    }
    let fields: Vec<u8> = [0x7a, 3, 1, 2, 3].into_iter().chain(good.iter().copied()).collect();
    assert_eq!(code_of(&service, &framed(0, fields.len() as u32, &fields)).await, Code::Ok, "an unknown field is left");
}

#[tokio::test]
async fn a_message_of_64_kib_is_read_and_one_byte_more_is_not() {
    let service = Service::start(RULES, &[]);
    let channel = service.channel().await;
    // Four values near their own bound, and a fifth that fills up to the byte.
    let of = |bytes: usize| {
        let with = |fifth: usize| {
            let values = [16_000, 16_000, 16_000, 16_000, fifth];
            ask(values.map(|length| descriptor(&format!("nothing={}", "v".repeat(length))))).encode_to_vec()
        };
        let message = with(1000 + bytes - with(1000).len());
        assert_eq!(message.len(), bytes);
        Bytes::from(message)
    };
    send_bytes(&channel, METHOD, of(64 * 1024)).await.expect("an answer");
    let status = send_bytes(&channel, METHOD, of(64 * 1024 + 1)).await.expect_err("too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
}

/// A mebibyte as a domain, a key and a value.
fn huge() -> [RateLimitRequest; 3] {
    let long = "v".repeat(MIB);
    let as_key = RateLimitDescriptor {
        entries: vec![Entry { key: long.clone(), value: "x".into() }],
        ..RateLimitDescriptor::default()
    };
    [RateLimitRequest { domain: long.clone(), ..ask_one("a=x") }, ask([as_key]), ask_one(&format!("a={long}"))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mebibyte_many_times_at_once_is_refused_and_hardly_kept() {
    const AT_ONCE: usize = 16;
    let service = Service::start(RULES, &[]);
    answer(&mut service.client().await, ask_one("a=x")).await;
    let before = service.process.memory("VmHWM");
    let mut clients = JoinSet::new();
    for _ in 0..AT_ONCE {
        let channel = service.channel().await;
        clients.spawn(async move {
            for request in huge().iter().cycle().take(9) {
                let status = send_bytes(&channel, METHOD, request.encode_to_vec().into()).await.expect_err("too large");
                assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
            }
        });
        let address = service.http;
        clients.spawn(async move {
            let posts = spawn_blocking(move || {
                for request in huge() {
                    assert_eq!(http(address, "POST", "/json", &as_json(&request)).status, 400);
                }
            });
            posts.await.expect("all of them are refused");
        });
    }
    while let Some(client) = tokio::time::timeout(PATIENCE, clients.join_next()).await.expect("refused in time") {
        client.expect("all of them are refused");
    }
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    // 32 of a mebibyte each are on their way at any time; ten times that is allowed, less than one time is what it takes.
    assert!(grown < 32 * MIB as u64, "grown by {grown} bytes");
    assert_eq!(said(&mut service.client().await, ask_one("a=x")).await, "OK: OK 8", "and nothing was counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_empty_parts_at_once_cost_at_most_ten_times_their_size() {
    const AT_ONCE: usize = 64;
    let length = |bytes: usize| [(bytes % 128) as u8 | 128, (bytes / 128 % 128) as u8 | 128, (bytes / 16_384) as u8];
    let descriptors = [&[0x0a, 1, b'd'][..], &[0x12, 0].repeat(32_000)].concat();
    let entries = [&[0x0a, 1, b'd', 0x12][..], &length(64_000), &[0x0a, 0].repeat(32_000)].concat();
    for (message, said) in [
        (descriptors, "rate limit request has 32000 descriptors, at most 32 are allowed"),
        (entries, "descriptor 0 has 32000 entries, at most 16 are allowed"),
    ] {
        let service = Service::start(RULES, &[]);
        let channel = service.channel().await;
        let before = service.process.memory("VmHWM");
        let size = message.len();
        let mut calls = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (channel, message) = (channel.clone(), Bytes::from(message.clone()));
            calls.spawn(async move { send_bytes(&channel, METHOD, message).await.expect_err("too many") });
        }
        for status in calls.join_all().await {
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, said));
        }
        let grown = service.process.memory("VmHWM").saturating_sub(before);
        assert!(grown <= (10 * size * AT_ONCE) as u64, "{AT_ONCE} requests of {size} bytes cost {grown}");

        // And one alone, in a process that has served before.
        let service = Service::start(RULES, &[]);
        let channel = service.channel().await;
        send_bytes(&channel, METHOD, Bytes::from(ask_one("a=x").encode_to_vec())).await.expect("an answer");
        let before = service.process.memory("VmHWM");
        send_bytes(&channel, METHOD, Bytes::from(message)).await.expect_err("too many");
        let grown = service.process.memory("VmHWM").saturating_sub(before);
        assert!(grown <= 10 * size as u64, "one request of {size} bytes costs {grown}");
    }
    let many = format!(r#"{{"domain":"d","descriptors":[{{}}{}]}}"#, ",{}".repeat(80_000));
    let service = Service::start(RULES, &[]);
    let before = service.process.memory("VmHWM");
    let (size, address) = (many.len(), service.http);
    let mut posts = JoinSet::new();
    for _ in 0..AT_ONCE {
        let body = many.clone();
        posts.spawn_blocking(move || http(address, "POST", "/json", &body));
    }
    for answer in posts.join_all().await {
        let said = json_in_short(&answer).expect_err("too many");
        assert_eq!(said, "rate limit request has 80001 descriptors, at most 32 are allowed");
    }
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    assert!(grown <= (10 * size * AT_ONCE) as u64, "{AT_ONCE} bodies of {size} bytes cost {grown}");
}
