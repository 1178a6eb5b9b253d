//! A clean stop: nothing that was admitted is lost, and the others get this process's part of the slack.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::regional::driver::RegionalDriver;

/// How long a clean stop may take: to tell what is pending, and to sign off.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl RegionalDriver {
    /// A clean stop: tells everything that is pending, then takes this process's fields out, so that others divide what
    /// is left among fewer.
    pub(crate) async fn leave(self: &Arc<Self>) {
        self.is_leaving.store(true, Ordering::Relaxed);
        let until = Instant::now() + LEAVE_TIMEOUT;
        while self.region.is_behind() && Instant::now() < until {
            self.perform(self.region.flush_now(self.now()));
            sleep(Duration::from_millis(5)).await;
        }
        if self.region.is_behind() {
            tracing::warn!(hits = self.region.pending_hits(), "stopped before the origin knew of all hits");
            return;
        }
        let (store, process) = (self.region.store(), self.region.process());
        let fields = self.region.fields(self.now());
        if self.redis.take_out(process, &fields, until).await.is_err() {
            return;
        }
        let left = until.saturating_duration_since(Instant::now());
        // Others notice within three seconds anyway.
        let _ = self.redis.leave(store, process, left).await;
    }
}
