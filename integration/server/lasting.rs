//! Calls that stay open, health `Watch` and reflection: few on a connection, given up when nobody reads, and in nobody's way
//! when the service stops.

use std::time::{Duration, Instant};

use prost::Message;
use tokio::task::block_in_place;
use tokio::time::timeout;
use tonic::codegen::tokio_stream::{self, StreamExt};
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::support::frames::{
    Connection, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, RST_STREAM, SETTINGS, call_headers_to,
};
use crate::support::harness::{PATIENCE, Service, until_equal};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 10, unit: year}}
";

const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// On one connection.
const LASTING_MAX: u32 = 16;
/// The number of the setting that says how much a stream may be sent before it asks for more.
const INITIAL_WINDOW_SIZE: u16 = 4;

fn question() -> ServerReflectionRequest {
    let asked = MessageRequest::FileByFilename("google/protobuf/descriptor.proto".into());
    ServerReflectionRequest { host: String::new(), message_request: Some(asked) }
}

/// Watches health.
fn watch(stream: u32) -> Vec<u8> {
    let message = HealthCheckRequest { service: "ratelimit".into() }.encode_to_vec();
    let headers = Frame::new(HEADERS, END_HEADERS, stream, call_headers_to(WATCH));
    [headers.bytes(), Frame::message(stream, &message).bytes()].concat()
}

/// Asks for a large file, and may ask more.
fn reflect(stream: u32) -> Vec<u8> {
    let headers = Frame::new(HEADERS, END_HEADERS, stream, call_headers_to(REFLECTION));
    let asked = Frame { flags: 0, ..Frame::message(stream, &question().encode_to_vec()) };
    [headers.bytes(), asked.bytes()].concat()
}

/// Half of each kind.
fn opened(number: u32) -> Vec<u8> {
    let stream = 2 * number + 1;
    if number.is_multiple_of(2) { watch(stream) } else { reflect(stream) }
}

#[test]
fn lasting_calls_that_nobody_reads_have_so_many_places_and_so_much_time() {
    let service = Service::start(RULES, &[]);
    let mut read = Connection::greeted(service.grpc);
    assert!(read.send(&watch(1)));
    read.read_to(DATA).expect("how it is");

    let mut unread = Connection::open_with(service.grpc, &[(INITIAL_WINDOW_SIZE, 0)]);
    unread.read_to(SETTINGS).expect("a greeting");
    let sent = Instant::now();
    assert!(unread.send(&(0..LASTING_MAX + 10).flat_map(opened).collect::<Vec<u8>>()));
    let mut refused = 0;
    for _ in 0..LASTING_MAX + 10 {
        let head = unread.read_to(HEADERS).expect("the connection stays");
        refused += u32::from(head.flags & END_STREAM != 0);
    }
    assert_eq!(refused, 10, "more than a connection may have");
    until_equal(PATIENCE, Some(f64::from(LASTING_MAX + 1)), || service.metric("tidegate_in_flight"));
    let mut given_up = 0;
    while given_up < LASTING_MAX {
        let reset = unread.read_to(RST_STREAM).expect("it is given up");
        // Those that were refused may be told that their questions are not read.
        given_up += u32::from(reset.stream < 2 * LASTING_MAX);
    }
    assert!(sent.elapsed() >= Duration::from_secs(9), "who has a place has ten seconds");
    until_equal(PATIENCE, Some(1.0), || service.metric("tidegate_in_flight"));
    assert!(unread.send(&opened(LASTING_MAX + 10)));
    let head = unread.read_to(HEADERS).expect("the connection stays");
    assert!(head.flags & END_STREAM == 0, "there is room again: {head:?}");

    // A Watch that is read stays, however little there is to hear.
    assert!(read.send(&Frame::ping().bytes()));
    loop {
        let frame = read.read().expect("the connection stays");
        assert!(frame.stream != 1, "{frame:?}");
        if frame.kind == PING {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_reflection_stream_does_not_hold_the_exit() {
    let mut service = Service::start(RULES, &["--drain-delay", "0s", "--drain-timeout", "10m"]);
    let mut reflection = ServerReflectionClient::new(service.channel().await);
    let asked = tokio_stream::once(question()).chain(tokio_stream::pending());
    let mut answers = reflection.server_reflection_info(asked).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some(), "a first answer");
    service.process.signal("TERM");
    let ended = timeout(PATIENCE, answers.message()).await.expect("it is ended");
    assert!(ended.expect("no error: all that was asked is answered").is_none());
    let status = block_in_place(|| service.process.ends_within(PATIENCE)).expect("the service ends");
    assert_eq!(status.code(), Some(0));
}
