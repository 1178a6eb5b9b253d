//! One HTTP/2 connection, until one of the two sides ends it.
//!
//! All calls that have arrived are taken in at once and decided one after the other, and their answers leave together. So a
//! handful of calls takes one read and one write of the socket. To read and write for each call would cost more than all the
//! rest.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::Request;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};

use crate::clock::Moment;
use crate::server::grpc::call::PortCalls;

const STREAMS_MAX: u32 = 1024;
/// Streams that a client may make us reset before the connection is closed (rapid reset).
const RESET_STREAMS_MAX: usize = 1024;
/// Streams that a client may have reset before we have seen them: as many as it may have open. A process that stood still for
/// longer than Envoy waits finds that many, and is not being attacked.
const UNSEEN_RESET_STREAMS_MAX: usize = STREAMS_MAX as usize;
const FRAME_BYTES_MAX: u32 = 16 * 1024;
const HEADER_LIST_BYTES_MAX: u32 = 8 * 1024;
/// How often a client is asked for a sign of life, and how long it has for it.
const KEEPALIVE: Keepalive = Keepalive { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) };
/// Requests are small: this is enough for sixteen streams that have filled their own window.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// How many answers leave together at most. With more of them, the first would wait too long for the last.
const BATCH_MAX: usize = 64;
/// After this long it is the turn of another connection of the thread.
const TURN_MAX: Duration = Duration::from_micros(250);

/// Why a connection ended although its client did not ask for it.
#[derive(Debug, Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Protocol(#[from] h2::Error),
    #[error("the client has not answered a ping")]
    Silent,
}

#[derive(Clone, Copy, Debug)]
struct Keepalive {
    interval: Duration,
    timeout: Duration,
}

/// A connection and the calls that have arrived on it.
pub(crate) struct Http2<C> {
    connection: Connection<C, Bytes>,
    calls: PortCalls,
    /// Calls that were not taken up yet, oldest first.
    arrived: VecDeque<(Request<RecvStream>, SendResponse<Bytes>)>,
    /// When the first of `arrived` was seen; `None` if there is none.
    arrived_at: Option<Instant>,
    keepalive: Keepalive,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Http2<C> {
    pub(crate) async fn begin(connection: C, calls: PortCalls) -> Result<Http2<C>, h2::Error> {
        let connection = Builder::new()
            .max_concurrent_streams(STREAMS_MAX)
            .max_local_error_reset_streams(Some(RESET_STREAMS_MAX))
            .max_pending_accept_reset_streams(UNSEEN_RESET_STREAMS_MAX)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .handshake(connection)
            .await?;
        Ok(Http2 {
            connection,
            calls: calls.on_connection(),
            arrived: VecDeque::new(),
            arrived_at: None,
            keepalive: KEEPALIVE,
        })
    }

    /// Serves the connection until it ends. At `time_to_go`, asks the client to open no more calls, and gives it `grace` for
    /// those that are open.
    pub(crate) async fn serve(mut self, time_to_go: impl Future<Output = ()>, grace: Duration) -> Result<(), Broken> {
        let mut pings = self.connection.ping_pong();
        // Kept over both parts, so that a client that has gone away is also noticed during its time of grace.
        let mut kept_alive = pin!(keep_alive(&mut pings, self.keepalive));
        tokio::select! {
            biased;
            ended = poll_fn(|context| self.poll_calls(context)) => return Ok(ended?),
            silent = &mut kept_alive => return Err(silent),
            () = time_to_go => {}
        }
        self.connection.graceful_shutdown();
        self.calls.finish();
        let finishing = async {
            tokio::select! {
                biased;
                ended = poll_fn(|context| self.poll_calls(context)) => Ok(ended?),
                silent = kept_alive => Err(silent),
            }
        };
        timeout(grace, finishing).await.unwrap_or(Ok(()))
    }

    fn poll_calls(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let mut turn = None;
        loop {
            match self.connection.poll_accept(context) {
                Poll::Ready(Some(Ok(call))) => {
                    self.arrived.push_back(call);
                    if self.arrived.len() < BATCH_MAX {
                        continue;
                    }
                }
                Poll::Ready(ended) => {
                    // There is nobody left to answer.
                    self.arrived.drain(..).for_each(|_| self.calls.give_up());
                    return Poll::Ready(ended.map_or(Ok(()), |ended| ended.map(drop)));
                }
                Poll::Pending if self.arrived.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
            // The clock is read once for each call: the end of one is the beginning of the next.
            let mut now = Moment::now();
            let arrived = *self.arrived_at.get_or_insert(now.instant);
            let turn = *turn.get_or_insert(now.instant);
            let is_over = |now: &Moment| now.instant.duration_since(turn) >= TURN_MAX;
            while let Some((request, reply)) = self.arrived.pop_front() {
                now.instant = self.calls.begin(request, reply, arrived, now, context);
                if is_over(&now) {
                    break;
                }
            }
            if self.arrived.is_empty() {
                self.arrived_at = None;
            }
            if is_over(&now) {
                break;
            }
        }
        // The answers leave before the turn ends.
        let ended = self.connection.poll_closed(context);
        context.waker().wake_by_ref();
        ended
    }
}

/// Pings the client now and then. Returns when it does not answer any more.
async fn keep_alive(pings: &mut Option<PingPong>, times: Keepalive) -> Broken {
    let Some(pings) = pings else { return std::future::pending().await };
    loop {
        sleep(times.interval).await;
        let answered = async {
            pings.send_ping(Ping::opaque())?;
            poll_fn(|context| pings.poll_pong(context)).await
        };
        match timeout(times.timeout, answered).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return error.into(),
            Err(_) => return Broken::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::service;
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    /// A connection whose client has greeted and says nothing more.
    async fn with_silent_client() -> (Http2<DuplexStream>, DuplexStream) {
        let (ours, mut theirs) = duplex(64 * 1024);
        theirs.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let calls = PortCalls::new(tonic::service::Routes::default(), service::idle(), 1024);
        let mut connection = Http2::begin(ours, calls).await.unwrap();
        connection.keepalive = Keepalive { interval: Duration::from_millis(20), timeout: Duration::from_millis(20) };
        (connection, theirs)
    }

    #[tokio::test]
    async fn a_client_that_is_gone_is_noticed_before_and_after_it_was_asked_to_go() {
        const FOR_GOOD: Duration = Duration::from_secs(3600);
        let (connection, _client) = with_silent_client().await;
        let ended = connection.serve(std::future::pending(), FOR_GOOD).await;
        assert!(matches!(ended, Err(Broken::Silent)), "{ended:?}");
        let (connection, _client) = with_silent_client().await;
        let ended = connection.serve(sleep(Duration::from_millis(30)), FOR_GOOD).await;
        assert!(matches!(ended, Err(Broken::Silent)), "{ended:?}");
    }

    #[tokio::test]
    async fn who_does_not_go_when_asked_has_a_time_of_grace() {
        let (mut connection, _client) = with_silent_client().await;
        connection.keepalive = KEEPALIVE;
        let ended = connection.serve(std::future::ready(()), Duration::from_millis(20)).await;
        assert!(ended.is_ok(), "{ended:?}");
    }
}
