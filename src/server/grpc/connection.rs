//! Connections of the gRPC port: for how long they live, and how they end.
//!
//! They are served here rather than by tonic, because they have an age with jitter and a deadline for their first bytes, which
//! tonic's transport does not offer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};

use crate::server::accept::{Room, WhenFull, accept};
use crate::server::connection_stats::ConnectionStats;
use crate::server::drain::Drain;
use crate::server::grpc::call::PortCalls;
use crate::server::grpc::http2::Http2;
use crate::server::grpc::preface::{PrefaceError, PrefacedStream};
use crate::server::grpc::resets::ResetWatch;
use crate::server::grpc::workers::Workers;
use crate::server::line::{LineStream, Peer, Socket};
use crate::server::listener::{GrpcListener, Listen};
use crate::server::log_budget::LogBudget;
use crate::server::tls::{HandshakeFailure, ServerTls};

/// A client that has not finished its TLS handshake and begun HTTP/2 by then never will.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long clients that have just connected have for that when the port closes.
const LATE_GREETING_TIMEOUT: Duration = Duration::from_millis(500);

/// How many connections the port has, and how long each may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBounds {
    /// How many may be open; one more is closed at once.
    pub connections_max: usize,
    /// How long a connection lives, give or take a tenth.
    pub age: Duration,
    /// How long it has for its open calls after it was asked to go.
    pub grace: Duration,
}

/// Everything that the connections of the gRPC port share.
#[derive(Clone, Debug)]
pub(crate) struct GrpcPort {
    /// What calls are answered with. Each connection takes a copy with its own places for lasting calls.
    pub calls: PortCalls,
    /// `None`: connections are in plain text.
    pub tls: Option<Arc<ServerTls>>,
    /// How many connections there may be, and for how long.
    pub bounds: ConnectionBounds,
    /// Counts what becomes of connections, for the admin port to show.
    pub stats: Arc<ConnectionStats>,
    /// The threads that serve connections.
    pub workers: Arc<Workers>,
}

/// Accepts and serves gRPC connections until the drain says to close, then waits for those that are open.
pub(crate) async fn serve(listener: GrpcListener, port: GrpcPort, drain: Drain) {
    match listener {
        GrpcListener::Tcp(listener) => serve_on(listener, port, drain).await,
        GrpcListener::Unix(socket) => serve_on(socket, port, drain).await,
    }
}

async fn serve_on<L: Listen>(listener: L, port: GrpcPort, drain: Drain) {
    let log = Arc::new(LogBudget::default());
    let room = Room { max: port.bounds.connections_max, when_full: WhenFull::Refuse, stats: port.stats.clone() };
    accept(listener, "gRPC", room, drain, move |stream, drain| {
        let (port, log) = (port.clone(), log.clone());
        // Taken here, where connections come one by one, so that each sees the seats of those before it.
        let seat = port.workers.seat();
        async move {
            let served = async { serve_one(stream.moved()?, port, log, drain).await };
            seat.runtime().spawn(served).await.inspect_err(report_panic)?
        }
    })
    .await;
}

/// Logs what should be impossible: a panic, which has ended all calls of its connection.
fn report_panic(error: &JoinError) {
    if error.is_panic() {
        tracing::error!(%error, "a connection was lost to a bug");
    }
}

/// Why a connection came to nothing.
#[derive(Debug, Error)]
enum Refusal {
    #[error(transparent)]
    Tls(#[from] HandshakeFailure),
    #[error(transparent)]
    Preface(#[from] PrefaceError),
    #[error("the client did not finish its TLS handshake and begin HTTP/2 within {GREETING_TIMEOUT:?}")]
    Late,
    #[error("the port closed before the client had said what it wants")]
    Closing,
}

impl Refusal {
    /// Whether someone should look into it. Nobody is to blame for a mere look at the port, or for our own stop.
    fn is_failure(&self) -> bool {
        !matches!(
            self,
            Refusal::Closing | Refusal::Tls(HandshakeFailure::Silent) | Refusal::Preface(PrefaceError::Silent)
        )
    }
}

async fn serve_one(stream: Socket, port: GrpcPort, log: Arc<LogBudget>, mut drain: Drain) -> anyhow::Result<()> {
    let peer = stream.prepare()?;
    match in_time(greet(stream, port.tls.as_deref()), &mut drain).await {
        Ok(greeted) => talk(greeted, peer, port, log, drain).await,
        Err(refusal) => {
            report(&refusal, peer, &port.stats, &log);
            Ok(())
        }
    }
}

async fn greet(stream: Socket, tls: Option<&ServerTls>) -> Result<PrefacedStream<LineStream>, Refusal> {
    let line = match tls {
        None => LineStream::Plain(stream),
        Some(tls) => LineStream::Tls(Box::new(tls.accept(stream).await?)),
    };
    Ok(PrefacedStream::read(line).await?)
}

/// Bounds the time until a connection says what it wants.
async fn in_time(
    greeting: impl Future<Output = Result<PrefacedStream<LineStream>, Refusal>>,
    drain: &mut Drain,
) -> Result<PrefacedStream<LineStream>, Refusal> {
    let mut greeting = pin!(greeting);
    tokio::select! {
        greeted = timeout(GREETING_TIMEOUT, greeting.as_mut()) => return greeted.unwrap_or(Err(Refusal::Late)),
        () = drain.closing() => {}
    }
    timeout(LATE_GREETING_TIMEOUT, greeting).await.unwrap_or(Err(Refusal::Closing))
}

fn report(refusal: &Refusal, peer: Peer, stats: &ConnectionStats, log: &LogBudget) {
    if !refusal.is_failure() {
        tracing::debug!(%peer, "{refusal}");
        return;
    }
    stats.count_handshake_failure();
    if let Some(left_out) = log.take(Instant::now()) {
        tracing::warn!(%peer, left_out, "refused a connection: {refusal}");
    }
}

/// Counts resets, and logs what to change: an operator whose Envoy lets undecided requests pass may not notice otherwise.
fn report_resets(resets: usize, peer: Peer, calls: &PortCalls, log: &LogBudget) {
    (0..resets).for_each(|_| calls.reset());
    if let Some(left_out) = log.take(Instant::now()) {
        tracing::warn!(
            %peer,
            left_out,
            "reset a call, which its client may take as not limited: its headers break HTTP/2, most likely by an :authority \
             that is no host name. Envoy sends the cluster's name unless grpc_service.envoy_grpc.authority is set: set it to a \
             host name, such as tidegate"
        );
    }
}

/// Speaks HTTP/2 until one of the two sides ends it, the connection has reached its age, or the port closes.
async fn talk(
    connection: PrefacedStream<LineStream>,
    peer: Peer,
    port: GrpcPort,
    log: Arc<LogBudget>,
    mut drain: Drain,
) -> anyhow::Result<()> {
    let calls = port.calls.clone();
    let connection = ResetWatch::new(connection, move |resets| report_resets(resets, peer, &calls, &log));
    let connection = Http2::begin(connection, port.calls).await?;
    let aged = Instant::now() + jittered(port.bounds.age);
    let time_to_go = async {
        tokio::select! {
            () = tokio::time::sleep_until(aged) => {}
            () = drain.closing() => {}
        }
    };
    Ok(connection.serve(time_to_go, port.bounds.grace).await?)
}

/// Give or take a tenth, so that clients that came together do not leave together.
fn jittered(age: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = (RandomState::new().hash_one(0u8) % 2001) as u32;
    age * (9000 + random) / 10_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::drain::{self, DrainPhase, Drainer};
    use crate::server::service;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::sleep;

    /// How long a test waits for anything: so long that it fails only if that never comes.
    const PATIENCE: Duration = Duration::from_secs(60);
    const PREFACE_AND_SETTINGS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    struct Port {
        address: std::net::SocketAddr,
        stats: Arc<ConnectionStats>,
        drainer: Drainer,
        served: tokio::task::JoinHandle<()>,
    }

    impl Port {
        async fn open(connections_max: usize) -> Port {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let bounds =
                ConnectionBounds { connections_max, age: Duration::from_secs(60), grace: Duration::from_secs(1) };
            let stats = Arc::new(ConnectionStats::default());
            let calls = PortCalls::new(tonic::service::Routes::default(), service::idle(), 1024);
            let workers = Arc::new(Workers::start(2).unwrap());
            let port = GrpcPort { calls, tls: None, bounds, stats: stats.clone(), workers };
            let (drainer, drain) = drain::channel();
            let served = tokio::spawn(serve(GrpcListener::Tcp(listener), port, drain));
            Port { address, stats, drainer, served }
        }

        async fn connect(&self, greeting: &[u8]) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(greeting).await.unwrap();
            stream
        }

        /// Waits for the figures: open, refused, failed.
        async fn counts(&self, wanted: [u64; 3]) {
            let figures = || [self.stats.open(), self.stats.refused(), self.stats.handshake_failures()];
            let came = timeout(PATIENCE, async {
                while figures() != wanted {
                    sleep(Duration::from_millis(1)).await;
                }
            });
            assert!(came.await.is_ok(), "{:?} instead of {wanted:?}", figures());
        }
    }

    #[tokio::test]
    async fn connections_are_counted_as_what_they_come_to() {
        let port = Port::open(3).await;
        let first = port.connect(PREFACE_AND_SETTINGS).await;
        port.counts([1, 0, 0]).await;
        let bad = port.connect(b"GET / HTTP/1.1\r\n").await;
        port.counts([1, 0, 1]).await;
        // A mere look at the port, which may not be over when the next client comes.
        drop((bad, port.connect(b"").await));
        let second = port.connect(PREFACE_AND_SETTINGS).await;
        port.counts([2, 0, 1]).await;
        let silent = port.connect(b"").await;
        port.counts([3, 0, 1]).await;
        let _refused = port.connect(b"").await;
        port.counts([3, 1, 1]).await;
        drop((first, second, silent));
        port.counts([0, 1, 1]).await;
    }

    #[tokio::test]
    async fn who_has_said_nothing_when_the_port_closes_is_nobodys_failure() {
        let port = Port::open(10).await;
        let mut silent = port.connect(b"").await;
        let late = port.connect(&PREFACE_AND_SETTINGS[..10]).await;
        port.counts([2, 0, 0]).await;
        port.drainer.enter(DrainPhase::Closing);
        // In time, if only just.
        let mut late = late;
        late.write_all(&PREFACE_AND_SETTINGS[10..]).await.unwrap();
        assert!(late.read(&mut [0; 9]).await.unwrap() > 0, "a greeting");
        drop(late);
        assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0);
        timeout(PATIENCE, port.served).await.expect("the port closes").unwrap();
        assert_eq!([port.stats.open(), port.stats.handshake_failures()], [0, 0]);
    }
}
