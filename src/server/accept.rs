//! The accept loop of every port: who may connect, and which connection has to go when the port is full.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::server::connection_stats::ConnectionStats;
use crate::server::drain::Drain;
use crate::server::line::Socket;
use crate::server::listener::Listen;
use crate::server::log_budget::LogBudget;

/// How many connections a port has, and what happens when there is one more.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// How many connections may be open at the same time.
    pub max: usize,
    /// Which connection has to go when there is one more.
    pub when_full: WhenFull,
    /// Counts open and refused connections. Only those of the gRPC port are shown to anybody.
    pub stats: Arc<ConnectionStats>,
}

/// Which connection is closed when a port is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// The new one, at once: open connections are long-lived and in use.
    Refuse,
    /// The oldest: idle clients must not fill a port for short questions, such as probes.
    EndOldest,
}

/// Accepts connections until the drain says to close, then waits for those that are open.
pub(crate) async fn accept<L, S, F>(mut listener: L, port: &'static str, room: Room, mut drain: Drain, serve_one: S)
where
    L: Listen,
    S: Fn(Socket, Drain) -> F,
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let Room { max, when_full, stats } = room;
    let log = LogBudget::default();
    let mut connections = JoinSet::new();
    // Oldest first. Connections that have ended are taken out when there are too many of them.
    let mut ages: VecDeque<AbortHandle> = VecDeque::new();
    let mut begin = |stream: Socket, drain: &Drain, connections: &mut JoinSet<()>| {
        while connections.try_join_next().is_some() {}
        if connections.len() >= max {
            stats.count_refused();
            if let Some(left_out) = log.take(Instant::now()) {
                tracing::warn!(port, max, left_out, "closed a connection: too many are open");
            }
            ages.retain(|connection| !connection.is_finished());
            match ages.pop_front().filter(|_| when_full == WhenFull::EndOldest) {
                Some(oldest) => oldest.abort(),
                None => return,
            }
        }
        let open = stats.count_open();
        let served = serve_one(stream, drain.clone());
        let handle = connections.spawn(async move {
            let _open = open;
            if let Err(error) = served.await {
                tracing::debug!(port, %error, "a connection ended with an error");
            }
        });
        if when_full == WhenFull::EndOldest {
            ages.push_back(handle);
            if ages.len() > 2 * max {
                ages.retain(|connection| !connection.is_finished());
            }
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            () = drain.closing() => break,
        };
        match accepted {
            Ok(stream) => begin(stream, &drain, &mut connections),
            Err(error) => pause_after(port, &error).await,
        }
    }
    listener.withdraw();
    // Clients that wait to be accepted are connected as far as they know: they are served to the end, too.
    while let Ok(Ok(stream)) = timeout(Duration::ZERO, listener.accept()).await {
        begin(stream, &drain, &mut connections);
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Pauses unless the client is to blame: a lack of file descriptors is the one failure that does not pass at once.
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
