//! A clean stop: nothing that was admitted is lost, and the others get this process's part of the slack.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::regional::driver::RegionalDriver;

/// How long a clean stop goes on telling while the origin does not answer, or calls took all the time that there was.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl RegionalDriver {
    /// A clean stop: tells what is due, then what was held back, the largest parts of limits first. Then it takes this
    /// process's fields out, so that others need not.
    pub(crate) async fn leave(self: &Arc<Self>, until: Instant) {
        self.is_leaving.store(true, Ordering::Relaxed);
        let patient_until = Instant::now() + LEAVE_TIMEOUT;
        let until = until.max(patient_until);
        self.region.release_held();
        while self.region.is_behind() && Instant::now() < until {
            if self.region.is_silent() && Instant::now() >= patient_until {
                break;
            }
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
