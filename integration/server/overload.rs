//! More than there is room for, and later than anyone waits: refused at once, without work, and nobody else notices.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::task::block_in_place;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::frames::{
    Connection, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, RST_STREAM, SETTINGS, call_headers, header,
};
use crate::support::harness::{PATIENCE, Service, answer, ask_one, in_short, until_equal};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

/// A call with a `grpc-timeout`.
fn call_within(timeout: &str, stream: u32) -> Frame {
    let block = [call_headers(), header("grpc-timeout", timeout)].concat();
    Frame::new(HEADERS, END_HEADERS, stream, block)
}

fn message() -> Vec<u8> {
    ask_one("a=x").encode_to_vec()
}

/// Whether the answer to a stream is an error, which comes as headers that end the stream.
fn ends_in_error(connection: &mut Connection, stream: u32) -> bool {
    loop {
        let frame = connection.read().expect("the connection stays");
        if frame.stream == stream && frame.kind == HEADERS {
            return frame.flags & END_STREAM != 0;
        }
        assert!(frame.stream != stream || ![DATA, RST_STREAM].contains(&frame.kind), "{frame:?}");
    }
}

const BODY: &str = r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"x"}]}]}"#;

/// A request to `/json` with nothing but the first byte of its body.
fn begun_post(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("POST /json HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", BODY.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&BODY.as_bytes()[..1]).unwrap();
    stream
}

async fn hits(service: &Service) -> Option<f64> {
    service.metric("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\"}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_above_the_cap_are_refused_at_once_and_health_still_answers() {
    let service = Service::start(RULES, &["--max-in-flight", "10"]);
    let channel = service.channel().await;
    // Ten requests of which a part is still to come. On this port, nobody gives way.
    let mut posts: Vec<TcpStream> = (0..10).map(|_| begun_post(service.http)).collect();
    let deadline = Instant::now() + PATIENCE;
    while service.metric("tidegate_in_flight") != Some(10.0) {
        assert!(Instant::now() < deadline, "ten calls are open");
    }
    let mut client = crate::support::harness::Client::new(channel.clone());
    let mut connection = Connection::open(service.grpc);
    block_in_place(|| {
        connection.read_to(SETTINGS).expect("a greeting");
        assert!(connection.send(&Frame::call(END_HEADERS, 1).bytes()));
        assert!(ends_in_error(&mut connection, 1), "an eleventh, whose message is still to come");
        // One that is there is decided at once, and takes nobody's place.
        let whole = [Frame::call(END_HEADERS, 3).bytes(), Frame::message(3, &message()).bytes()].concat();
        assert!(connection.send(&whole));
        assert_eq!(connection.read_to(DATA).expect("an answer").stream, 3);
    });
    let refused = service.post("/json", r#"{"domain":"d"}"#);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(
        refused.header("x-tidegate-error").is_some_and(|why| why.contains("TIDEGATE_MAX_IN_FLIGHT")),
        "{refused:?}"
    );
    let health = HealthClient::new(channel).check(HealthCheckRequest { service: "ratelimit".into() }).await;
    assert_eq!(health.expect("health answers").into_inner().status, 1, "overloaded is not dead");
    assert_eq!(service.get("/healthcheck").status, 200);
    assert!(service.metric("tidegate_errors_total{reason=\"overload\"}").unwrap() >= 2.0);
    assert_eq!(hits(&service).await, Some(1.0), "only what was there was decided");

    // One is finished, one is given up: there is room again.
    let mut finished = posts.remove(0);
    finished.write_all(&BODY.as_bytes()[1..]).unwrap();
    let mut answered = String::new();
    finished.read_to_string(&mut answered).unwrap();
    assert!(answered.starts_with("HTTP/1.1 200 OK"), "{answered}");
    drop(posts.pop());
    let deadline = Instant::now() + PATIENCE;
    while service.metric("tidegate_in_flight") != Some(8.0) {
        assert!(Instant::now() < deadline, "two have left");
    }
    assert_eq!(in_short(&answer(&mut client, ask_one("a=x")).await), "OK: OK 999997");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_deadline_has_passed_costs_no_work() {
    let service = Service::start(RULES, &[]);
    let mut connection = Connection::open(service.grpc);
    block_in_place(|| {
        connection.read_to(SETTINGS).expect("a greeting");
        let at_once = [call_within("0n", 1).bytes(), Frame::message(1, &message()).bytes()].concat();
        assert!(connection.send(&at_once) && ends_in_error(&mut connection, 1));
        // The message comes after the deadline, and so too late.
        let sent = Instant::now();
        assert!(connection.send(&call_within("50m", 3).bytes()));
        assert!(ends_in_error(&mut connection, 3));
        assert!(sent.elapsed() >= Duration::from_millis(50));
        let _ = connection.send(&Frame::message(3, &message()).bytes());
        let in_time = [call_within("60S", 5).bytes(), Frame::message(5, &message()).bytes()].concat();
        assert!(connection.send(&in_time));
        assert_eq!(connection.read_to(DATA).expect("an answer").stream, 5);
    });
    assert_eq!(service.metric("tidegate_errors_total{reason=\"deadline\"}"), Some(2.0));
    assert_eq!(hits(&service).await, Some(1.0), "only the one in time was counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_never_comes_is_not_waited_for() {
    let service = Service::start(RULES, &[]);
    let mut connection = Connection::open(service.grpc);
    block_in_place(|| {
        connection.read_to(SETTINGS).expect("a greeting");
        let sent = Instant::now();
        assert!(connection.send(&Frame::call(END_HEADERS, 1).bytes()));
        assert!(ends_in_error(&mut connection, 1));
        let after = sent.elapsed();
        assert!(after >= Duration::from_secs(9), "after {after:?}");
    });
    until_equal(PATIENCE, Some(0.0), || service.metric("tidegate_in_flight"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_read_is_counted_too() {
    let service = Service::start(RULES, &[]);
    let channel = service.channel().await;
    let garbage = bytes::Bytes::from_static(b"\xff\xff\xff\xff");
    crate::support::harness::send_bytes(&channel, crate::support::harness::METHOD, garbage)
        .await
        .expect_err("no message");
    assert_eq!(service.metric("tidegate_errors_total{reason=\"malformed\"}"), Some(1.0));
    let mut client = crate::support::harness::Client::new(channel);
    client.should_rate_limit(crate::support::harness::ask([])).await.expect_err("no descriptors");
    assert_eq!(service.metric("tidegate_errors_total{reason=\"invalid\"}"), Some(1.0));
    let errors = "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}";
    assert_eq!(service.metric(errors), Some(2.0));
    assert_eq!(service.post("/json", "{").status, 400);
    assert_eq!(service.metric("tidegate_errors_total{reason=\"malformed\"}"), Some(2.0));

    // A client that gives up is no broken client.
    let mut connection = Connection::open(service.grpc);
    block_in_place(|| {
        connection.read_to(SETTINGS).expect("a greeting");
        assert!(connection.send(&[Frame::call(END_HEADERS, 1).bytes(), Frame::reset(1).bytes()].concat()));
        assert!(connection.send(&Frame::ping().bytes()) && connection.read_to(PING).is_some());
    });
    assert_eq!(service.metric("tidegate_errors_total{reason=\"malformed\"}"), Some(2.0));
    until_equal(PATIENCE, Some(0.0), || service.metric("tidegate_in_flight"));
}
