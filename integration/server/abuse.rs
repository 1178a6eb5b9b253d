//! HTTP/2 that is meant to hurt: floods of frames that cost their sender nothing, and frames that break the protocol.
//! The connection may go; the process, its memory and everybody else stay.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use prost::Message;
use tokio::task::{block_in_place, spawn_blocking};

use crate::support::bystander::Bystander;
use crate::support::frames::{
    ACK, CONTINUATION, Connection, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PADDED, PING, PRIORITY,
    PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, call_headers, header,
};
use crate::support::harness::{PATIENCE, Service, ask_one};
use crate::support::promise::Promise;

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

const ENHANCE_YOUR_CALM: u32 = 11;

const MIB: usize = 1024 * 1024;

/// What became of a connection.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It was still there, and answered.
    Alive,
    /// It was closed, and this is why, if it was said.
    Closed(Option<u32>),
}

/// Opens a connection, and then sends the same frames over and over.
fn flood(address: SocketAddr, opening: &[u8], again: &[u8], total_bytes: usize) -> End {
    const LAST_WORDS: [u8; 8] = *b"the last";
    let mut connection = Connection::greeted(address);
    assert!(connection.send(opening));
    let mut writer = connection.stream().try_clone().unwrap();
    let piece = again.repeat(64 * 1024 / again.len());
    let writing = std::thread::spawn(move || {
        let pieces = total_bytes / piece.len();
        let is_open = (0..pieces).all(|_| writer.write_all(&piece).is_ok());
        is_open && writer.write_all(&Frame::new(PING, 0, 0, LAST_WORDS.to_vec()).bytes()).is_ok()
    });
    let mut reason = None;
    let end = loop {
        match connection.read() {
            None => break End::Closed(reason),
            Some(frame) if frame.kind == GOAWAY => reason = Some(frame.number(4)),
            Some(frame) if frame.kind == PING && frame.payload == LAST_WORDS => break End::Alive,
            Some(_) => {}
        }
    };
    let _ = connection.stream().shutdown(Shutdown::Both);
    writing.join().expect("writing ends with the connection");
    end
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_small_frames_cost_little_while_others_go_on() {
    let _ = small_frames().await;
}

pub async fn small_frames() -> Vec<Promise> {
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    let one_call = Frame::call(END_HEADERS, 1).bytes();
    let half_headers = Frame::call(0, 1).bytes();
    let priority = Frame::new(PRIORITY, 0, 3, vec![0, 0, 0, 1, 16]).bytes();
    let window_update = Frame::window_update(1).bytes();
    let settings = Frame::settings_of(&[(1, 4096), (4, 65_535), (4, 0)]).bytes();
    let unknown = Frame::new(0xbb, 0xff, 5, vec![7; 64]).bytes();
    let pong = Frame::new(PING, ACK, 0, vec![7; 8]).bytes();
    let empty_data = Frame::new(DATA, 0, 1, vec![]).bytes();
    let padding = Frame::new(DATA, PADDED, 1, [vec![255], vec![0; 255]].concat()).bytes();
    let empty_continuation = Frame::new(CONTINUATION, 0, 1, vec![]).bytes();
    let calm = End::Closed(Some(ENHANCE_YOUR_CALM));
    let floods = [
        ("PING", &[][..], Frame::ping().bytes(), Some(End::Alive)),
        ("PING that nobody asked for", &[], pong, None),
        ("SETTINGS", &[], settings, Some(End::Alive)),
        ("PRIORITY", &[], priority, Some(End::Alive)),
        ("WINDOW_UPDATE", &[], window_update, Some(End::Alive)),
        ("frames of a kind that nobody knows", &[], unknown, Some(End::Alive)),
        ("DATA without data", &one_call, empty_data, None),
        ("DATA of nothing but padding", &one_call, padding, None),
        ("CONTINUATION without headers", &half_headers, empty_continuation, Some(calm)),
        ("RST_STREAM of a call that has ended", &one_call, Frame::reset(1).bytes(), None),
    ];
    for (what, opening, again, expected) in floods {
        let before = service.process.memory("VmHWM");
        let (address, opening) = (service.grpc, opening.to_vec());
        let end = spawn_blocking(move || flood(address, &opening, &again, 4 * MIB)).await.expect("an end");
        assert!(expected.as_ref().is_none_or(|expected| *expected == end), "{what}: {end:?}");
        let grown = service.process.memory("VmHWM").saturating_sub(before);
        assert!(grown < 16 * MIB as u64, "4 MiB of {what} cost {grown} bytes");
        bystander.goes_on(10).await;
    }
    vec![bystander.finish().await]
}

/// What a frame that breaks the protocol leads to: the end of the call or of the connection, and why.
#[derive(Debug)]
enum Consequence {
    Reset(u32),
    GoAway(u32),
}

fn consequence(connection: &mut Connection) -> Option<Consequence> {
    loop {
        let frame = connection.read()?;
        match frame.kind {
            RST_STREAM => return Some(Consequence::Reset(frame.number(0))),
            GOAWAY => return Some(Consequence::GoAway(frame.number(4))),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_break_the_protocol_end_the_call_or_the_connection() {
    const INCREMENT_MAX: u32 = (1 << 31) - 1;
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    let call = |stream| Frame::call(END_HEADERS, stream).bytes();
    let frame = |kind, flags, stream, payload: &[u8]| Frame::new(kind, flags, stream, payload.to_vec()).bytes();
    let with = |name, value| [call_headers(), header(name, value)].concat();
    let increment = |stream, by: u32| frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes());
    let heard = |bytes: &[u8]| {
        block_in_place(|| {
            let mut connection = Connection::greeted(service.grpc);
            assert!(connection.send(bytes));
            consequence(&mut connection)
        })
    };
    for (what, bytes) in [
        ("a window that overflows", [call(1), increment(1, INCREMENT_MAX)].concat()),
        ("a header that belongs to HTTP/1", frame(HEADERS, END_HEADERS, 1, &with("connection", "close"))),
        ("data of a call that has ended", [call(1), Frame::reset(1).bytes(), frame(DATA, 0, 1, &[0; 100])].concat()),
    ] {
        let heard = heard(&bytes);
        assert!(matches!(heard, Some(Consequence::Reset(1..))), "{what}: {heard:?}");
    }
    for (what, bytes) in [
        ("a frame above 16 KiB", [call(1), frame(DATA, 0, 1, &[0; 16_385])].concat()),
        ("a window of the connection that overflows", increment(0, INCREMENT_MAX)),
        ("an increment of nothing", increment(0, 0)),
        ("a first window that is too large", Frame::settings_of(&[(4, 1 << 31)]).bytes()),
        ("data of a call that was never opened", frame(DATA, 0, 1, &[0])),
        ("a call with a number of the server's", call(2)),
        ("a call with a number from before", [call(5), call(3)].concat()),
        ("a call on the connection itself", call(0)),
        ("a CONTINUATION of nothing", frame(CONTINUATION, END_HEADERS, 1, &[])),
        ("a PING amid headers", [frame(HEADERS, 0, 1, &call_headers()), Frame::ping().bytes()].concat()),
        ("a PING of seven bytes", frame(PING, 0, 0, &[0; 7])),
        ("SETTINGS of five bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("SETTINGS of a call", frame(SETTINGS, 0, 1, &[])),
        ("a promise by a client", frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])),
        ("more padding than frame", [call(1), frame(DATA, PADDED, 1, &[9, 0])].concat()),
        ("headers that HPACK can't read", frame(HEADERS, END_HEADERS, 1, &[0xff; 6])),
        ("a header name in capitals", frame(HEADERS, END_HEADERS, 1, &with("X-Up", "v"))),
    ] {
        let heard = heard(&bytes);
        assert!(matches!(heard, Some(Consequence::GoAway(1..))), "{what}: {heard:?}");
    }
    let _ = bystander.finish().await;
}

#[test]
fn frames_of_an_unknown_kind_are_passed_over() {
    let service = Service::start(RULES, &[]);
    let mut connection = Connection::greeted(service.grpc);
    let unknown = |stream| Frame::new(0xbb, 0xff, stream, vec![7; 100]).bytes();
    let message = Frame::message(1, &ask_one("a=x").encode_to_vec()).bytes();
    let call = [unknown(0), Frame::call(END_HEADERS, 1).bytes(), unknown(1), message, unknown(9)].concat();
    assert!(connection.send(&call));
    assert_eq!(connection.read_to(DATA).expect("an answer").stream, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_makes_us_reset_1024_calls_is_sent_away() {
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    let address = service.grpc;
    let (resets, reason) = spawn_blocking(move || {
        let mut connection = Connection::greeted(address);
        connection.stream().set_read_timeout(Some(PATIENCE)).unwrap();
        let malformed = [call_headers(), header("connection", "close")].concat();
        let mut resets = 0;
        for number in 0..2000 {
            let frame = Frame::new(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, malformed.clone());
            if !connection.send(&frame.bytes()) {
                break;
            }
            // One by one: each is reset before the next is sent.
            match consequence(&mut connection) {
                Some(Consequence::Reset(_)) => resets += 1,
                Some(Consequence::GoAway(reason)) => return (resets, Some(reason)),
                None => break,
            }
        }
        (resets, None)
    })
    .await
    .expect("an end");
    assert_eq!((resets, reason), (1024, Some(ENHANCE_YOUR_CALM)));
    bystander.goes_on(10).await;
    let _ = bystander.finish().await;
    // The connection is not only told to go.
    let deadline = std::time::Instant::now() + PATIENCE;
    while service.metric("tidegate_connections") != Some(0.0) {
        assert!(std::time::Instant::now() < deadline, "everybody has left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
