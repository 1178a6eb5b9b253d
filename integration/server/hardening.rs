//! Clients that misbehave: what they are refused, and that nobody else notices.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Uri;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::task::{block_in_place, spawn_blocking};

use crate::support::bystander::Bystander;
use crate::support::frames::{
    CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, call_headers, call_headers_with, header,
};
use crate::support::harness::{Client, PATIENCE, Service, answer, ask_one};
use crate::support::promise::Promise;

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Reads to the end of the connection. Panics if it stays open.
fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        // Closed with something of ours unread.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("the connection stays open: {error}"),
    }
}

#[test]
fn the_grpc_port_does_not_speak_http_1() {
    let service = Service::start(RULES, &[]);
    for greeting in
        ["GET /healthcheck HTTP/1.1\r\nhost: test\r\n\r\n", "POST /json HTTP/1.1\r\n", "hello?", "\x16\x03\x01"]
    {
        let mut stream = TcpStream::connect(service.grpc).unwrap();
        stream.write_all(greeting.as_bytes()).unwrap();
        let said = read_to_close(&mut stream);
        assert!(said.is_empty(), "{greeting:?} was answered with {:?}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn a_client_that_does_not_greet_is_sent_away() {
    let service = Service::start(RULES, &[]);
    let connected = Instant::now();
    let mut silent = TcpStream::connect(service.grpc).unwrap();
    let mut slow = TcpStream::connect(service.grpc).unwrap();
    slow.write_all(&PREFACE[..10]).unwrap();
    for stream in [&mut silent, &mut slow] {
        assert!(read_to_close(stream).is_empty());
        let after = connected.elapsed();
        assert!(after >= Duration::from_secs(9), "after {after:?}");
    }
}

#[test]
fn a_greeting_in_pieces_is_a_greeting() {
    let service = Service::start(RULES, &[]);
    let mut stream = TcpStream::connect(service.grpc).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for piece in PREFACE.chunks(5) {
        stream.write_all(piece).unwrap();
        // Far enough apart to arrive one by one.
        std::thread::sleep(Duration::from_millis(15));
    }
    let mut connection = Connection::over(stream);
    assert!(connection.send(&Frame::new(SETTINGS, 0, 0, vec![]).bytes()));
    assert_eq!(connection.read().expect("an answer").kind, SETTINGS);
}

#[test]
fn a_call_whose_authority_is_no_host_name_is_counted_and_says_what_to_change() {
    const PROTOCOL_ERROR: u32 = 1;
    let mut service = Service::start(RULES, &[]);
    let mut connection = Connection::greeted(service.grpc);
    let call = |authority: &str, stream: u32| {
        let headers = Frame::new(HEADERS, END_HEADERS, stream, call_headers_with(authority));
        [headers.bytes(), Frame::message(stream, &ask_one("a=x").encode_to_vec()).bytes()].concat()
    };
    assert!(connection.send(&call("outbound|8081||tidegate.svc.cluster.local", 1)));
    let reset = connection.read_to(RST_STREAM).expect("the connection stays");
    assert_eq!((reset.stream, reset.number(0)), (1, PROTOCOL_ERROR));
    let line = service.process.line_with("reset a call");
    assert!(line.contains("envoy_grpc.authority"), "{line}");
    assert!(connection.send(&call("tidegate.svc.cluster.local", 3)));
    assert_eq!(connection.read_to(DATA).expect("an answer").stream, 3);
    assert_eq!(service.metric("tidegate_errors_total{reason=\"protocol\"}"), Some(1.0));
}

#[test]
fn the_greeting_announces_the_bounds() {
    let service = Service::start(RULES, &[]);
    let mut connection = Connection::open(service.grpc);
    let frame = connection.read().expect("a greeting");
    assert_eq!(frame.kind, SETTINGS);
    let settings = frame.settings();
    let announced = |wanted: u16| settings.iter().find(|(id, _)| *id == wanted).map(|(_, value)| *value);
    assert_eq!(announced(3), Some(1024), "MAX_CONCURRENT_STREAMS in {settings:?}");
    assert_eq!(announced(6), Some(8192), "MAX_HEADER_LIST_SIZE in {settings:?}");
    // A setting with its default value need not be announced.
    assert_eq!(announced(5).unwrap_or(16_384), 16_384, "MAX_FRAME_SIZE in {settings:?}");
}

#[test]
fn connections_above_the_cap_are_closed_until_one_leaves() {
    let service = Service::start(RULES, &["--max-connections", "2"]);
    let is_served = |connection: &mut Connection| connection.read().is_some_and(|frame| frame.kind == SETTINGS);
    let mut first = Connection::open(service.grpc);
    let mut second = Connection::open(service.grpc);
    assert!(is_served(&mut first) && is_served(&mut second));
    assert!(!is_served(&mut Connection::open(service.grpc)), "the third is closed without a word");
    assert!(first.send(&Frame::ping().bytes()));
    assert!(first.read_to(PING).is_some(), "the first does not notice");
    drop(second);
    let deadline = Instant::now() + PATIENCE;
    let mut third = loop {
        // When the service learns that one has left can only be seen by trying.
        let mut connection = Connection::open(service.grpc);
        if is_served(&mut connection) {
            break connection;
        }
        assert!(Instant::now() < deadline, "there is room again");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(!is_served(&mut Connection::open(service.grpc)), "and now it is full again");
    assert!(third.send(&Frame::ping().bytes()) && third.read_to(PING).is_some());
}

/// The first byte of a header block whose status is 200, which HPACK has in its static table.
const STATUS_200: u8 = 0x88;

/// What becomes of a call with this header block: it must be anything but an answer.
fn assert_refused(service: &Service, block: &[u8]) {
    let mut connection = Connection::open(service.grpc);
    connection.read_to(SETTINGS).expect("a greeting");
    let mut pieces = block.chunks(16_000).peekable();
    let mut kind = HEADERS;
    while let Some(piece) = pieces.next() {
        let ends = if pieces.peek().is_none() { END_HEADERS } else { 0 };
        let stream_ends = if kind == HEADERS { END_STREAM } else { 0 };
        if !connection.send(&Frame::new(kind, ends | stream_ends, 1, piece.to_vec()).bytes()) {
            break;
        }
        kind = CONTINUATION;
    }
    loop {
        match connection.read() {
            None => return,
            Some(frame) if frame.kind == GOAWAY => return,
            Some(frame) if frame.stream == 1 && frame.kind == RST_STREAM => return,
            Some(frame) if frame.stream == 1 && frame.kind == HEADERS => {
                assert_ne!(frame.payload.first(), Some(&STATUS_200), "the call was accepted: {frame:?}");
                return;
            }
            Some(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_above_8_kib_are_refused_while_others_go_on() {
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    block_in_place(|| {
        let long = [call_headers(), header("x-long", &"v".repeat(9000))].concat();
        assert_refused(&service, &long);
        let many: Vec<u8> = (0..300).flat_map(|number| header(&format!("x-{number}"), "v")).collect();
        assert_refused(&service, &[call_headers(), many].concat());
        let longer = [call_headers(), header("x-long", &"v".repeat(100_000))].concat();
        assert_refused(&service, &longer);
    });
    let _ = bystander.finish().await;

    let mut request = tonic::Request::new(ask_one("a=x"));
    request.metadata_mut().insert("x-long", "v".repeat(6000).parse().unwrap());
    let within = service.client().await.should_rate_limit(request).await;
    assert_eq!(within.expect("headers within the bound are taken").into_inner().overall_code, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_never_end_are_cut_off() {
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    let before = service.process.memory("VmHWM");
    block_in_place(|| {
        let mut connection = Connection::open(service.grpc);
        connection.read_to(SETTINGS).expect("a greeting");
        let endless = Frame::new(CONTINUATION, 0, 1, header("x", &"v".repeat(16_000))).bytes();
        let mut is_open = connection.send(&Frame::new(HEADERS, 0, 1, call_headers()).bytes());
        for _ in 0..4096 {
            is_open = is_open && connection.send(&endless);
        }
        // Still open for writing is possible only if the last frames are on their way; then the answer is, too.
        if let Some(frame) = connection.read_to(GOAWAY) {
            assert_ne!(frame.number(4), 0, "a GOAWAY with an error");
        }
    });
    let _ = bystander.finish().await;
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    assert!(grown < 16 * 1024 * 1024, "64 MiB of headers cost {grown} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_resets_fails_no_call_of_others() {
    let _ = resets().await;
}

pub async fn resets() -> Vec<Promise> {
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    let before = service.process.memory("VmHWM");
    let address = service.grpc;
    let flood = spawn_blocking(move || {
        let mut connection = Connection::open(address);
        connection.read_to(SETTINGS).expect("a greeting");
        let mut stream = 1;
        for _ in 0..1000 {
            let mut bytes = Vec::new();
            for _ in 0..100 {
                bytes.extend(Frame::call(END_HEADERS, stream).bytes());
                bytes.extend(Frame::reset(stream).bytes());
                stream += 2;
            }
            if !connection.send(&bytes) {
                break;
            }
        }
        // Those that are taken up as fast as they come are calls as any others.
        let _ = connection.send(&Frame::ping().bytes());
        loop {
            match connection.read() {
                Some(frame) if frame.kind == GOAWAY => break assert_eq!(frame.number(4), ENHANCE_YOUR_CALM),
                Some(frame) if frame.kind == PING => break,
                Some(_) => {}
                None => break,
            }
        }
    });
    flood.await.expect("the connection lives, or was ended");
    let promise = bystander.finish().await;
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    assert!(grown < 32 * 1024 * 1024, "the flood cost {grown} bytes");
    vec![promise]
}

/// A connection on which so many calls are made while the process stands still, all but the last of them given up. And the
/// number of the last.
fn given_up_meanwhile(service: &Service, calls: u32) -> (Connection, u32) {
    let message = ask_one("a=1").encode_to_vec();
    let last = 2 * calls - 1;
    let call = |stream: u32| {
        let mut bytes = Frame::call(END_HEADERS, stream).bytes();
        bytes.extend(Frame::message(stream, &message).bytes());
        if stream < last {
            bytes.extend(Frame::reset(stream).bytes());
        }
        bytes
    };
    (sent_meanwhile(service, (1..=last).step_by(2).flat_map(call).collect()), last)
}

/// A connection on which all of this came while the process stood still.
fn sent_meanwhile(service: &Service, bytes: Vec<u8>) -> Connection {
    let mut connection = Connection::open(service.grpc);
    connection.read_to(SETTINGS).expect("a greeting");
    service.process.signal("STOP");
    assert!(connection.send(&bytes));
    service.process.signal("CONT");
    connection
}

#[test]
fn calls_that_were_given_up_while_the_process_stood_still_cost_no_others() {
    let service = Service::start(RULES, &[]);
    // As many as may be open at once.
    let (mut connection, last) = given_up_meanwhile(&service, 1024);
    let answered = loop {
        let frame = connection.read().expect("the connection stays open");
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        if frame.kind == DATA && frame.stream == last {
            break frame;
        }
    };
    assert_eq!(answered.payload[5..7], [8, 1], "the overall code is OK");

    // So short that the socket holds all of them, and the process finds all at once.
    let attack = (1..=3000).step_by(2).flat_map(|stream| {
        let mut bytes = Frame::short_call(stream == 1, stream).bytes();
        bytes.extend(Frame::reset(stream).bytes());
        bytes
    });
    let mut connection = sent_meanwhile(&service, attack.collect());
    let ended = connection.read_to(GOAWAY).expect("more than that is an attack");
    assert_eq!(ended.number(4), ENHANCE_YOUR_CALM);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_above_the_bound_are_refused_and_the_others_stay() {
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    block_in_place(|| {
        let mut connection = Connection::open(service.grpc);
        connection.read_to(SETTINGS).expect("a greeting");
        let open: Vec<u8> = (0..1025).flat_map(|number| Frame::call(END_HEADERS, 2 * number + 1).bytes()).collect();
        assert!(connection.send(&open));
        let refused = connection.read_to(RST_STREAM).expect("the connection stays");
        assert_eq!((refused.stream, refused.number(0)), (2 * 1024 + 1, REFUSED_STREAM));
        // An end without a message gets an answer, if only an error.
        assert!(connection.send(&Frame::new(DATA, END_STREAM, 1, vec![]).bytes()));
        assert_eq!(connection.read_to(HEADERS).expect("an answer").stream, 1);
    });
    let _ = bystander.finish().await;
}

#[test]
fn a_connection_is_asked_to_go_at_its_age() {
    let service = Service::start(RULES, &["--grpc-max-connection-age", "1s"]);
    // A tenth more or less.
    let least = Duration::from_millis(900);
    let connected = Instant::now();
    let mut connections: Vec<Connection> = (0..5).map(|_| Connection::open(service.grpc)).collect();
    for connection in &mut connections {
        let frame = connection.read_to(GOAWAY).expect("GOAWAY before the connection closes");
        assert_eq!(frame.number(4), 0, "without an error");
        let after = connected.elapsed();
        assert!(after >= least, "after {after:?}");
    }
}

#[test]
fn a_connection_that_does_not_go_is_closed_after_its_grace() {
    let flags = ["--grpc-max-connection-age", "1s", "--grpc-max-connection-age-grace", "500ms"];
    let service = Service::start(RULES, &flags);
    let connected = Instant::now();
    let mut connection = Connection::open(service.grpc);
    // A call whose message never comes.
    assert!(connection.send(&Frame::call(END_HEADERS, 1).bytes()));
    while connection.read().is_some() {}
    let after = connected.elapsed();
    // The call itself would be waited for longer.
    assert!((Duration::from_millis(1400)..Duration::from_secs(9)).contains(&after), "after {after:?}");
}

/// Connects, and counts how often.
#[derive(Clone)]
struct Counting(Arc<AtomicUsize>, std::net::SocketAddr);

impl tonic::codegen::Service<Uri> for Counting {
    type Response = TokioIo<tokio::net::TcpStream>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Counting(count, address) = self.clone();
        Box::pin(async move {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(TokioIo::new(tokio::net::TcpStream::connect(address).await?))
        })
    }
}

#[tokio::test]
async fn a_client_whose_connections_age_does_not_notice() {
    let service = Service::start(RULES, &["--grpc-max-connection-age", "1s"]);
    let count = Arc::new(AtomicUsize::new(0));
    let channel = service.endpoint().connect_with_connector_lazy(Counting(count.clone(), service.grpc));
    let mut client = Client::new(channel);
    let deadline = Instant::now() + PATIENCE;
    while count.load(Ordering::Relaxed) < 4 {
        assert!(Instant::now() < deadline, "the connection is renewed");
        match client.should_rate_limit(ask_one("a=x")).await {
            Ok(response) => assert_eq!(response.into_inner().overall_code, 1),
            Err(status) => assert!(was_not_sent(&status), "{status:?}"),
        }
        // The pace of the traffic.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(answer(&mut client, ask_one("a=x")).await.overall_code, 1);
}

/// The client had chosen a connection that was just closing, and found out before it sent anything. Others choose again by
/// themselves; this one leaves it to its caller.
fn was_not_sent(status: &tonic::Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        cause = error.source();
    }
    false
}
