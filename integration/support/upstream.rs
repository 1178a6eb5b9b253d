//! The server behind Envoy: answers everything, with headers that the request asks for, and can let requests wait.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::support::harness::{PATIENCE, http_over, until_equal};

/// A request header with this prefix is answered with the header `x-` of the rest of its name.
const ANSWER: &str = "x-answer-";

pub const BODY: &str = "through";

/// A server on a thread of its own.
pub struct Upstream {
    pub address: SocketAddr,
    held: Arc<AtomicUsize>,
    is_open: watch::Sender<bool>,
    _runtime: Runtime,
}

impl Upstream {
    pub fn start() -> Upstream {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (is_open, gate) = watch::channel(true);
        let held = Arc::new(AtomicUsize::new(0));
        let waiting = Arc::clone(&held);
        // The whole body is read: an answer that comes before it ends the connection, which Envoy may take for a failure.
        let answer = move |request: HeaderMap, _: Bytes| async move {
            waiting.fetch_add(1, Ordering::Relaxed);
            // Fails only when the upstream itself is dropped.
            let _ = gate.clone().wait_for(|is_open| *is_open).await;
            waiting.fetch_sub(1, Ordering::Relaxed);
            (asked_for(&request), BODY)
        };
        runtime.spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
        Upstream { address, held, is_open, _runtime: runtime }
    }

    /// Lets requests wait from now on.
    pub fn hold(&self) {
        self.is_open.send_replace(false);
    }

    /// How many requests wait.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Answers the requests that wait, and all later ones at once.
    pub fn release(&self) {
        self.is_open.send_replace(true);
    }
}

fn asked_for(request: &HeaderMap) -> HeaderMap {
    let asked = request.iter().filter_map(|(name, value)| {
        let rest = name.as_str().strip_prefix(ANSWER)?;
        Some((HeaderName::try_from(format!("x-{rest}")).ok()?, value.clone()))
    });
    asked.collect()
}

#[test]
fn requests_wait_until_they_are_released_and_are_answered_as_they_ask() {
    let upstream = Upstream::start();
    upstream.hold();
    let address = upstream.address;
    let request = std::thread::spawn(move || {
        let stream = std::net::TcpStream::connect(address).unwrap();
        http_over(stream, "GET", "/any", &[("x-answer-tokens", "7")], "")
    });
    until_equal(PATIENCE, 1, || upstream.held());
    upstream.release();
    let answer = request.join().unwrap();
    assert_eq!((answer.status, answer.body.as_str(), answer.header("x-tokens")), (200, BODY, Some("7")));
    assert_eq!(upstream.held(), 0);
}
