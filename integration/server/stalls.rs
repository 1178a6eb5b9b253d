//! Clients that stop in the middle: of their headers, of a call, of reading. Nobody else notices, it costs little, and
//! who says nothing for too long is sent away.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::task::{block_in_place, spawn_blocking};

use crate::support::bystander::Bystander;
use crate::support::frames::{
    ACK, Connection, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
use crate::support::harness::{PATIENCE, Service, ask_one, until_equal};
use crate::support::promise::Promise;

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1000000, unit: year}}
";

/// The number of the setting that says how much a stream may be sent before it asks for more.
const INITIAL_WINDOW_SIZE: u16 = 4;

const MIB: u64 = 1024 * 1024;

/// The numbers of the first calls of a connection.
fn streams(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

/// A call with its message.
fn whole_call(stream: u32) -> Vec<u8> {
    [Frame::call(END_HEADERS, stream).bytes(), Frame::message(stream, &ask_one("a=x").encode_to_vec()).bytes()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_without_a_message_take_nobodys_place() {
    let _ = open_calls().await;
}

/// More calls than there are places, all without their message, beside somebody who wants to be answered.
pub async fn open_calls() -> Vec<Promise> {
    let service = Service::start(RULES, &[]);
    let before = service.process.memory("VmHWM");
    let opened: Vec<u8> = streams(1000).flat_map(|stream| Frame::call(END_HEADERS, stream).bytes()).collect();
    let mut connections = Vec::new();
    for number in 1..=11 {
        let mut connection = block_in_place(|| Connection::greeted(service.grpc));
        assert!(connection.send(&opened));
        connections.push(connection);
        // One after the other, so that it is known who has waited longest.
        let (metric, count) = match number {
            1..=10 => ("tidegate_in_flight", f64::from(number) * 1000.0),
            _ => ("tidegate_errors_total{reason=\"overload\"}", 1000.0),
        };
        let deadline = Instant::now() + PATIENCE;
        while service.metric(metric) < Some(count) {
            assert!(Instant::now() < deadline, "{metric} is {count} in the end");
        }
    }
    let bystander = Bystander::of(&service).await;
    bystander.goes_on(300).await;
    let promise = bystander.finish().await;
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    // About 10 KiB for a call that is open, of which as many are kept as there are places.
    assert!(grown < 160 * MIB, "11,000 open calls cost {grown} bytes");

    block_in_place(|| {
        let (oldest, last) = (&mut connections[0], 999 * 2 + 1);
        let ended = oldest.read_to(HEADERS).expect("the connection stays");
        assert!(ended.flags & END_STREAM != 0, "those who came first are told that there is no room: {ended:?}");
        let newest = connections.last_mut().expect("there are eleven");
        assert!(newest.send(&Frame::message(last, &ask_one("a=x").encode_to_vec()).bytes()));
        assert_eq!(newest.read_to(DATA).expect("an answer").stream, last, "and who came last is answered");
    });
    vec![promise]
}

#[test]
fn messages_that_stall_take_no_more_than_there_may_be() {
    const BUDGET: u32 = 200_000;
    const ANNOUNCED: u32 = 65_000;
    let service = Service::start(RULES, &["--max-arriving-bytes", &BUDGET.to_string()]);
    let mut connection = Connection::greeted(service.grpc);
    let room = BUDGET / (ANNOUNCED + 5);
    // One after the other, so that it is known who has waited longest.
    for (stream, open) in streams(room + 3).zip(1..) {
        let begun = [&[0][..], &ANNOUNCED.to_be_bytes(), &[0; 100]].concat();
        let begun = [Frame::call(END_HEADERS, stream).bytes(), Frame::new(DATA, 0, stream, begun).bytes()].concat();
        assert!(connection.send(&begun));
        until_equal(PATIENCE, Some(f64::from(room.min(open))), || service.metric("tidegate_in_flight"));
    }
    for stream in streams(3) {
        let ended = connection.read_to(HEADERS).expect("the connection stays");
        assert!(ended.stream == stream && ended.flags & END_STREAM != 0, "who came first is told: {ended:?}");
    }
    assert_eq!(service.metric("tidegate_errors_total{reason=\"overload\"}"), Some(3.0));
    // A message that comes at once needs no room.
    let stream = 2 * (room + 3) + 1;
    assert!(connection.send(&whole_call(stream)));
    assert_eq!(connection.read_to(DATA).expect("an answer").stream, stream);
}

#[test]
fn bodies_that_stall_take_no_more_than_there_may_be() {
    const BUDGET: usize = 200_000;
    const ANNOUNCED: usize = 65_000;
    let service = Service::start(RULES, &["--max-arriving-bytes", &BUDGET.to_string()]);
    let room = BUDGET / ANNOUNCED;
    let begun = |_| {
        let mut stream = TcpStream::connect(service.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head =
            format!("POST /json HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {ANNOUNCED}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&[b' '; 100]).unwrap();
        stream
    };
    let mut waiting: Vec<TcpStream> = Vec::new();
    // One after the other, so that it is known who has waited longest.
    for open in 1..=room {
        waiting.push(begun(open));
        until_equal(PATIENCE, Some(open as f64), || service.metric("tidegate_in_flight"));
    }
    // Messages of the other port take from the same.
    let mut connection = Connection::greeted(service.grpc);
    let message = [&[0][..], &(ANNOUNCED as u32).to_be_bytes(), &[0; 100]].concat();
    let message = [Frame::call(END_HEADERS, 1).bytes(), Frame::new(DATA, 0, 1, message).bytes()].concat();
    assert!(connection.send(&message));
    let late = begun(0);
    for mut first in waiting.drain(..2) {
        let mut answer = String::new();
        first.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
        assert!(answer.contains("TIDEGATE_MAX_ARRIVING_BYTES"), "{answer}");
    }
    until_equal(PATIENCE, Some(room as f64), || service.metric("tidegate_in_flight"));
    assert_eq!(service.metric("tidegate_errors_total{reason=\"overload\"}"), Some(2.0));
    // A body that is there needs no room, and one that fits is waited for.
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"x"}]}]}"#;
    assert_eq!(service.post("/json", body).status, 200);
    drop((waiting, late));
}

/// A client that stops in the middle of its headers, in one of three ways.
fn slow_headers(address: SocketAddr, way: usize) -> Connection {
    let mut connection = Connection::greeted(address);
    let headers = Frame::call(0, 1).bytes();
    let sent = match way % 3 {
        // A frame that says it is not the last, and no other.
        0 => &headers[..],
        1 => &headers[..headers.len() / 2],
        // Nothing but the frame's length and kind; the rest comes a byte at a time.
        _ => &headers[..9],
    };
    assert!(connection.send(sent));
    connection
}

/// Sends a byte to each from time to time, until all of them are closed.
fn trickle(connections: &[Connection]) {
    let deadline = Instant::now() + 2 * PATIENCE;
    let mut open: Vec<&Connection> = connections.iter().collect();
    while !open.is_empty() && Instant::now() < deadline {
        open.retain(|connection| connection.stream().write_all(&[0x10]).is_ok());
        // The pace of the attack: slow enough for the frame to last.
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Reads without answering anything. Says when a PING came and when the connection was closed.
fn listen(connection: &Connection, since: Instant) -> (Option<Duration>, Duration) {
    let mut stream = connection.stream();
    stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
    let mut pinged = None;
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return (pinged, since.elapsed()),
            Ok(length) => {
                let is_ping = |frame: &[u8]| frame[..4] == [0, 0, 8, PING];
                if pinged.is_none() && bytes[..length].windows(9).any(is_ping) {
                    pinged = Some(since.elapsed());
                }
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (pinged, since.elapsed()),
            Err(error) => panic!("the connection stays open: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_answer_a_ping_or_stops_in_its_headers_is_gone_after_forty_seconds() {
    let service = Service::start(RULES, &[]);
    let before = service.process.memory("VmHWM");
    let bystander = Bystander::of(&service).await;
    let address = service.grpc;
    let began = Instant::now();
    let mut polite = Connection::greeted(address);
    polite.stream().set_read_timeout(Some(2 * PATIENCE)).unwrap();
    let deaf = spawn_blocking(move || listen(&Connection::greeted(address), began));
    let slow: Vec<Connection> = block_in_place(|| (0..100).map(|number| slow_headers(address, number)).collect());
    let slow = spawn_blocking(move || {
        let (trickling, stopped): (Vec<_>, Vec<_>) = slow.into_iter().enumerate().partition(|(way, _)| way % 3 == 2);
        let trickling: Vec<Connection> = trickling.into_iter().map(|(_, connection)| connection).collect();
        trickle(&trickling);
        let closed = stopped.iter().map(|(_, connection)| connection).chain(&trickling);
        closed.map(|connection| listen(connection, began).1).max()
    });
    let answers_pings = spawn_blocking(move || {
        // Reading answers.
        polite.read_to(PING).expect("a PING of the server");
        polite
    });

    let (pinged, closed) = deaf.await.expect("it is closed");
    let pinged = pinged.expect("a PING before the end");
    assert!(pinged >= Duration::from_secs(29), "PING after {pinged:?}");
    assert!(closed >= Duration::from_secs(39), "closed after {closed:?}");
    let last = slow.await.expect("all are closed").expect("there are some");
    eprintln!("PING after {pinged:?}, closed after {closed:?}, the last of the slow ones after {last:?}");
    let _ = bystander.finish().await;
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    assert!(grown < 16 * MIB, "a hundred slow clients cost {grown} bytes");

    let mut polite = answers_pings.await.expect("it was asked");
    assert!(polite.send(&whole_call(1)));
    assert_eq!(polite.read_to(DATA).expect("who answers stays").stream, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_lets_nothing_be_sent_gets_its_answers_when_it_does() {
    let service = Service::start(RULES, &[]);
    let before = service.process.memory("VmHWM");
    let bystander = Bystander::of(&service).await;
    let mut connection = block_in_place(|| {
        let mut connection = Connection::open_with(service.grpc, &[(INITIAL_WINDOW_SIZE, 0)]);
        connection.read_to(SETTINGS).expect("a greeting");
        let calls: Vec<u8> = streams(1000).flat_map(whole_call).collect();
        assert!(connection.send(&calls));
        for _ in 0..1000 {
            let frame = connection.read_to(HEADERS).expect("the connection stays");
            assert!(frame.flags & END_STREAM == 0, "an answer, not an error: {frame:?}");
        }
        connection
    });
    bystander.goes_on(100).await;
    let _ = bystander.finish().await;
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    assert!(grown < 32 * MIB, "a thousand answers that wait cost {grown} bytes");

    block_in_place(|| {
        assert!(connection.send(&Frame::ping().bytes()));
        loop {
            let frame = connection.read().expect("the connection stays");
            assert!(![DATA, RST_STREAM, GOAWAY].contains(&frame.kind), "nothing may be sent yet: {frame:?}");
            if frame.kind == PING {
                break;
            }
        }
        assert!(connection.send(&Frame::settings_of(&[(INITIAL_WINDOW_SIZE, 65_535)]).bytes()));
        for _ in 0..1000 {
            let frame = connection.read_to(DATA).expect("an answer");
            assert_eq!(frame.payload[5..7], [8, 1], "the overall code is OK");
        }
    });
}

#[test]
fn answers_that_nobody_takes_have_so_many_places_and_so_much_time() {
    const PLACES: u32 = 100;
    let service = Service::start(RULES, &["--max-in-flight", &PLACES.to_string()]);
    let mut connection = Connection::open_with(service.grpc, &[(INITIAL_WINDOW_SIZE, 0)]);
    connection.read_to(SETTINGS).expect("a greeting");
    let calls: Vec<u8> = streams(3 * PLACES).flat_map(whole_call).collect();
    let sent = Instant::now();
    assert!(connection.send(&calls));
    let given_up = |connection: &mut Connection, count: u32| {
        (0..count).for_each(|_| drop(connection.read_to(RST_STREAM).expect("it is given up")));
    };
    given_up(&mut connection, 2 * PLACES);
    until_equal(PATIENCE, Some(f64::from(PLACES)), || service.metric("tidegate_in_flight"));
    given_up(&mut connection, PLACES);
    assert!(sent.elapsed() >= Duration::from_secs(9), "who has a place has ten seconds");
    until_equal(PATIENCE, Some(0.0), || service.metric("tidegate_in_flight"));

    // A little at a time is enough.
    let mut connection = Connection::open_with(service.grpc, &[(INITIAL_WINDOW_SIZE, 4)]);
    connection.read_to(SETTINGS).expect("a greeting");
    assert!(connection.send(&whole_call(1)));
    let mut answer = connection.read_to(DATA).expect("what fits").payload;
    assert_eq!(answer.len(), 4);
    while answer.len() < 7 {
        assert!(connection.send(&Frame::new(WINDOW_UPDATE, 0, 1, 2_u32.to_be_bytes().to_vec()).bytes()));
        answer.extend(connection.read_to(DATA).expect("some more").payload);
    }
    assert_eq!(answer[5..7], [8, 1], "the overall code is OK");
}

/// Writes the same again and again without reading, until the other side takes no more for a while. Says how many bytes
/// it took.
fn write_until_stuck(address: SocketAddr, mut bytes: impl FnMut() -> Vec<u8>) -> u64 {
    const SENT_MAX: u64 = 128 * MIB;
    let connection = Connection::greeted(address);
    connection.stream().set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut sent = 0;
    while sent < SENT_MAX {
        let bytes = bytes();
        match connection.stream().write_all(&bytes) {
            Ok(()) => sent += bytes.len() as u64,
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
                    "{error}"
                );
                return sent;
            }
        }
    }
    panic!("{sent} bytes were taken from a client that does not read what comes back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_is_made_to_wait_and_costs_little() {
    let service = Service::start(RULES, &[]);
    let bystander = Bystander::of(&service).await;
    let address = service.grpc;
    let before = service.process.memory("VmHWM");
    let calls = move || {
        let mut stream = 1;
        write_until_stuck(address, || {
            let calls = (0..100).flat_map(|number| whole_call(stream + 2 * number)).collect();
            stream += 200;
            calls
        })
    };
    let pings = move || write_until_stuck(address, || Frame::ping().bytes().repeat(1000));
    let settings = move || write_until_stuck(address, || Frame::settings_of(&[]).bytes().repeat(1000));
    for flood in [spawn_blocking(calls), spawn_blocking(pings), spawn_blocking(settings)] {
        let sent = flood.await.expect("it was made to wait");
        assert!(sent > MIB / 4, "only {sent} bytes were sent");
    }
    let grown = service.process.memory("VmHWM").saturating_sub(before);
    assert!(grown < 32 * MIB, "who does not read costs {grown} bytes");
    let _ = bystander.finish().await;
}

#[test]
fn a_ping_is_answered_with_its_own_words() {
    let service = Service::start(RULES, &[]);
    let mut connection = Connection::greeted(service.grpc);
    connection.stream().set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(connection.send(&Frame::new(PING, 0, 0, b"tidegate".to_vec()).bytes()));
    let pong = connection.read_to(PING).expect("a pong");
    assert_eq!((pong.flags & ACK, &pong.payload[..]), (ACK, &b"tidegate"[..]));
}
