//! Connections: who may connect, for how long, and how they end.
//!
//! An own accept loop rather than tonic's, because connections get an age with jitter, a cap, and a deadline for their
//! first bytes, which tonic's transport does not offer.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::server::call::Calls;
use crate::server::drain::Drain;

/// Every HTTP/2 connection starts with these bytes.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A client that has not sent them by then is not an HTTP/2 client.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Once the port closes, for those who had just connected.
const LATE_PREFACE_TIMEOUT: Duration = Duration::from_millis(200);

const STREAMS_MAX: u32 = 1024;
/// Streams that a client may make us reset before the connection is closed (rapid reset).
const RESET_STREAMS_MAX: usize = 1024;
const FRAME_BYTES_MAX: u32 = 16 * 1024;
const HEADER_LIST_BYTES_MAX: u32 = 8 * 1024;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests are small: this is some dozens of them in full flight.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    pub connections_max: usize,
    /// How long a connection lives, give or take a tenth.
    pub age: Duration,
    /// How long it may take to end.
    pub grace: Duration,
}

/// Accepts and serves gRPC connections until the drain says to close, then waits for those that are open.
pub async fn serve(listener: TcpListener, calls: Calls, bounds: ConnectionBounds, drain: Drain) {
    accept(listener, "gRPC", bounds.connections_max, drain, move |stream, drain| {
        serve_one(stream, calls.clone(), bounds, drain)
    })
    .await;
}

/// The accept loop of any port.
pub async fn accept<S, F>(listener: TcpListener, port: &'static str, max: usize, mut drain: Drain, serve_one: S)
where
    S: Fn(TcpStream, Drain) -> F,
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(max));
    let mut connections = JoinSet::new();
    let begin = |stream: TcpStream, drain: &Drain, connections: &mut JoinSet<()>| {
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            tracing::warn!(port, max, "closed a new connection: too many are open");
            return;
        };
        let served = serve_one(stream, drain.clone());
        connections.spawn(async move {
            let _slot = slot;
            if let Err(error) = served.await {
                tracing::debug!(port, %error, "a connection ended with an error");
            }
        });
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = drain.closing() => break,
        };
        match accepted {
            Ok((stream, _)) => begin(stream, &drain, &mut connections),
            Err(error) => pause_after(port, &error).await,
        }
    }
    // Who is connected already, as far as the client knows, is served to the end too.
    while let Ok(Ok((stream, _))) = timeout(Duration::ZERO, listener.accept()).await {
        begin(stream, &drain, &mut connections);
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Out of file descriptors is the one failure of accept that does not pass by itself at once.
async fn pause_after(port: &str, error: &io::Error) {
    let is_clients_fault = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused
    );
    if !is_clients_fault {
        tracing::error!(port, %error, "can't accept connections");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn serve_one(stream: TcpStream, calls: Calls, bounds: ConnectionBounds, mut drain: Drain) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    tokio::select! {
        greeted = timeout(PREFACE_TIMEOUT, preface(&stream)) => greeted??,
        () = drain.closing() => timeout(LATE_PREFACE_TIMEOUT, preface(&stream)).await??,
    }
    let service = TowerToHyperService::new(calls);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_local_error_reset_streams(RESET_STREAMS_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let aged = Instant::now() + jittered(bounds.age);
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = tokio::time::sleep_until(aged) => {}
        () = drain.closing() => {}
    }
    connection.as_mut().graceful_shutdown();
    match timeout(bounds.grace, connection).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Ok(()),
    }
}

/// Waits for the first bytes without taking them, and refuses what is not HTTP/2.
async fn preface(stream: &TcpStream) -> anyhow::Result<()> {
    let mut seen = [0; PREFACE.len()];
    loop {
        let length = stream.peek(&mut seen).await?;
        anyhow::ensure!(length > 0, "the client went away before it said anything");
        anyhow::ensure!(PREFACE.starts_with(&seen[..length]), "not HTTP/2");
        if length == PREFACE.len() {
            return Ok(());
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Give or take a tenth, so that clients that came together do not leave together.
fn jittered(age: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = (RandomState::new().hash_one(0u8) % 2001) as u32;
    age * (9000 + random) / 10_000
}
