//! How many connections are open, were refused, or failed before they began: the figures that metrics show.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Plain counters. Each is right by itself; two of them read one after the other may be a moment apart.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStats {
    open: AtomicU64,
    refused: AtomicU64,
    handshake_failures: AtomicU64,
}

impl ConnectionStats {
    /// Connections that are open now, including those that have not begun HTTP/2 yet.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Connections that were closed at once because too many were open.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Connections that came to nothing: the TLS handshake failed, or HTTP/2 did not begin. Clients that leave without a
    /// word do not count: load balancers do that to see whether a port is open.
    pub(crate) fn handshake_failures(&self) -> u64 {
        self.handshake_failures.load(Ordering::Relaxed)
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_handshake_failure(&self) {
        self.handshake_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection as open until the value is dropped.
    pub(crate) fn count_open(self: &Arc<Self>) -> OpenConnection {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }
}

/// Counts as an open connection until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<ConnectionStats>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
