//! A flood of distinct keys, in frames written by hand: a full client would need more of the machine than the service does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message;
use tokio::task::{JoinSet, spawn_blocking};

use crate::support::frames::{Connection, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, RST_STREAM, SETTINGS};
use crate::support::harness::{ask, descriptor};

/// Descriptors in a request: as many as are allowed.
pub const BATCH: u64 = 32;
const CONNECTIONS: usize = 3;
/// Streams that are open at once on a connection, and the bytes on them: half of a connection's first window, so that
/// WINDOW_UPDATE frames can be ignored.
const STREAMS: usize = 16;
const BYTES: usize = 32_000;

/// Keys that the server has not seen. Each is asked for once.
#[derive(Clone, Copy)]
pub struct Flood {
    /// The descriptor's key; its value is a number.
    pub key: &'static str,
    pub value_bytes: usize,
    pub hits: u32,
    pub keys: u64,
}

impl Flood {
    /// Sends all of it, and waits for the answers, each of which must be OK.
    pub async fn pour(self, address: SocketAddr) {
        let next = Arc::new(AtomicU64::new(0));
        let mut connections = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let next = next.clone();
            let send = move || self.send(address, &next);
            connections.spawn(async { spawn_blocking(send).await.expect("every call is answered") });
        }
        let answered: u64 = connections.join_all().await.into_iter().sum();
        assert_eq!(answered, self.keys.div_ceil(BATCH));
    }

    /// A value of the flood, for others to ask for.
    pub fn value(&self, number: u64) -> String {
        format!("{number:0width$}", width = self.value_bytes)
    }

    /// Sends requests, some at a time, until all are sent. Returns how many were answered.
    fn send(&self, address: SocketAddr, next: &AtomicU64) -> u64 {
        let mut connection = Connection::open(address);
        connection.read_to(SETTINGS).expect("a greeting");
        let mut template = Template::new(*self);
        let mut stream = 1;
        let mut answered = 0;
        loop {
            let mut bytes = Vec::new();
            let mut open = 0;
            for _ in 0..STREAMS.min(BYTES / template.bytes.len()) {
                let first = next.fetch_add(BATCH, Ordering::Relaxed);
                if first < self.keys {
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
}

/// A request that is encoded once. Later requests differ only in the digits of their values.
struct Template {
    flood: Flood,
    bytes: Vec<u8>,
    /// Where in `bytes` the values begin.
    places: Vec<usize>,
}

impl Template {
    fn new(flood: Flood) -> Template {
        let placeholder = "#".repeat(flood.value_bytes);
        let mut request = ask((0..BATCH).map(|_| descriptor(&format!("{}={placeholder}", flood.key))));
        request.hits_addend = flood.hits;
        let bytes = request.encode_to_vec();
        let is_place = |place: &usize| bytes[*place..].starts_with(placeholder.as_bytes());
        let places: Vec<usize> = (0..bytes.len()).filter(is_place).collect();
        assert_eq!(places.len() as u64, BATCH);
        Template { flood, bytes, places }
    }

    /// The request for the values from this number on.
    fn of(&mut self, first: u64) -> &[u8] {
        for (place, number) in self.places.iter().zip(first..) {
            let value = self.flood.value(number);
            self.bytes[*place..place + value.len()].copy_from_slice(value.as_bytes());
        }
        &self.bytes
    }
}
