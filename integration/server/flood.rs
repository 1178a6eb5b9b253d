//! Ten million distinct keys against a table of one million: memory stays bounded, who is over the limit stays denied, and
//! keys in use keep their counts.
//!
//! The flood is written as frames by hand, because a full client would need more of the machine than the service does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message;
use tokio::task::{JoinSet, spawn_blocking};

use crate::support::frames::{Connection, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM, SETTINGS};
use crate::support::harness::{Service, answer, ask, ask_one, descriptor, descriptor_for, in_short, said};

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 2, unit: year}}
  - {key: member, rate_limit: {requests_per_unit: 1000, unit: year}}
";

const KEYS: u64 = 10_000_000;
const KEYS_MAX: u64 = 1_000_000;
const DENIED: u64 = 1000;
/// Keys in regular use, far from their limit.
const MEMBERS: u64 = 320;
/// Descriptors in a request, as many as are allowed.
const BATCH: u64 = 32;
const CONNECTIONS: usize = 3;
/// Streams that are open at once on a connection.
const STREAMS: usize = 16;

/// The user of a number: 32 bytes, as identifiers often are.
fn user(number: u64) -> String {
    format!("{number:032}")
}

/// A request of 32 users that is encoded once; later ones differ in the digits only.
struct Template {
    bytes: Vec<u8>,
    /// Where the users are.
    places: Vec<usize>,
}

impl Template {
    fn new() -> Template {
        let placeholder = "#".repeat(32);
        let bytes = ask((0..BATCH).map(|_| descriptor(&format!("user={placeholder}")))).encode_to_vec();
        let is_place = |place: &usize| bytes[*place..].starts_with(placeholder.as_bytes());
        let places: Vec<usize> = (0..bytes.len()).filter(is_place).collect();
        assert_eq!(places.len() as u64, BATCH);
        Template { bytes, places }
    }

    /// The request of the users from this number on.
    fn of(&mut self, first: u64) -> &[u8] {
        for (place, number) in self.places.iter().zip(first..) {
            self.bytes[*place..place + 32].copy_from_slice(user(number).as_bytes());
        }
        &self.bytes
    }
}

/// Sends requests of users nobody has seen, some at a time, until all have been sent. Returns how many were answered.
fn flood(address: SocketAddr, next: &AtomicU64) -> u64 {
    let mut connection = Connection::open(address);
    connection.read_to(SETTINGS).expect("a greeting");
    let mut template = Template::new();
    let mut stream = 1;
    let mut answered = 0;
    loop {
        let mut bytes = Vec::new();
        let mut open = 0;
        for _ in 0..STREAMS {
            let first = next.fetch_add(BATCH, Ordering::Relaxed);
            if first < KEYS {
                bytes.extend(Frame::call(END_HEADERS, stream).bytes());
                bytes.extend(Frame::message(stream, template.of(first)).bytes());
                stream += 2;
                open += 1;
            }
        }
        if open == 0 {
            return answered;
        }
        assert!(connection.send(&bytes), "the connection stays open");
        let mut received = 0;
        while open > 0 {
            let frame = connection.read().expect("the connection stays open");
            assert!(![GOAWAY, RST_STREAM].contains(&frame.kind), "{frame:?}");
            if frame.kind == DATA {
                assert_eq!(frame.payload[5..7], [8, 1], "the overall code is OK: new keys are within their limit");
                received += u32::try_from(frame.payload.len()).unwrap();
                answered += 1;
            }
            if frame.kind == HEADERS && frame.flags & END_STREAM != 0 {
                open -= 1;
            }
        }
        assert!(connection.send(&Frame::window_update(received).bytes()));
    }
}

/// Asks for every one of those users once, and says how many were denied.
async fn denied(service: &Service) -> u64 {
    let mut client = service.client().await;
    let mut count = 0;
    for number in 0..DENIED {
        // One by one, because a batch answers as one.
        let response = answer(&mut client, ask_one(&format!("user=denied-{}", user(number)))).await;
        count += u64::from(in_short(&response) == "OVER: OVER 0");
    }
    count
}

/// Charges every member so many hits, and says how much each has left.
async fn members_left(service: &Service, hits: u64) -> Vec<u32> {
    let mut client = service.client().await;
    let mut left = Vec::new();
    for first in (0..MEMBERS).step_by(BATCH as usize) {
        let members = (first..first + BATCH).map(|number| descriptor_for(&format!("member={number}"), hits));
        let response = answer(&mut client, ask(members)).await;
        left.extend(response.statuses.iter().map(|status| status.limit_remaining));
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_million_keys_cost_no_more_than_a_million_and_free_nobody() {
    let service = Service::start(RULES, &["--keys-max", "1000000"]);
    for _ in 0..2 {
        assert_eq!(denied(&service).await, 0, "the limit is two");
    }
    assert_eq!(denied(&service).await, DENIED);
    for _ in 0..20 {
        members_left(&service, 1).await;
    }
    let before = service.process.memory("VmRSS");

    let next = Arc::new(AtomicU64::new(0));
    let mut floods = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (address, next) = (service.grpc, next.clone());
        floods
            .spawn(async move { spawn_blocking(move || flood(address, &next)).await.expect("every call is answered") });
    }
    let answered: u64 = floods.join_all().await.into_iter().sum();
    assert_eq!(answered * BATCH, KEYS);

    let grown = service.process.memory("VmHWM").saturating_sub(before);
    let allowed = KEYS_MAX * 160 * 11 / 10 + 30 * 1024 * 1024;
    assert!(grown <= allowed, "grown by {grown} bytes, {allowed} are allowed");
    assert!(grown >= KEYS_MAX * 64, "grown by {grown} bytes: that can't be a million keys");
    assert_eq!(denied(&service).await, DENIED, "who was over the limit still is");
    assert_eq!(members_left(&service, 0).await, vec![980; MEMBERS as usize], "keys in use keep their counts");
    let mut client = service.client().await;
    assert_eq!(said(&mut client, ask_one("user=new")).await, "OK: OK 1", "and the service answers");
    let scrape = service.page("/metrics");
    assert!(scrape.len() < 1024 * 1024, "the scrape has {} bytes", scrape.len());
    let evicted = service.metric("tidegate_keys_evicted_total").expect("it is counted");
    assert!(evicted >= (KEYS - KEYS_MAX) as f64, "{evicted} keys were given up");
}
