//! Probes find out whether a store that did not answer does again. The log says when that changes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::engine::reach::Store;
use crate::regional::driver::RegionalDriver;
use crate::regional::redis::{Lane, Redis};
use crate::regional::region::ProbeResult;
use crate::regional::replay::REPLAY_TIMEOUT_US;

/// How often to check whether a probe is due.
const PROBE_LOOK: Duration = Duration::from_millis(50);
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);

impl RegionalDriver {
    /// Logs when breakers open and close, and probes the store when that is due. Never ends.
    pub(super) async fn probe(self: Arc<Self>) {
        let mut was_open = [false; 3];
        let who = match self.region.store() {
            Store::Origin => "the origin",
            Store::Owner => "the owner of strict limits",
        };
        loop {
            sleep(PROBE_LOOK).await;
            let is_open = self.region.breakers().map(|(is_open, _)| is_open);
            for ((name, was), is) in ["checks", "replays", "strict"].into_iter().zip(was_open).zip(is_open) {
                if name == "strict" && !self.has_strict_checks_apart() {
                    continue;
                }
                match (was, is) {
                    (false, true) => {
                        tracing::warn!(breaker = name, "{who} does not answer: each rule's on_outage decides")
                    }
                    (true, false) => tracing::warn!(breaker = name, "{who} answers again"),
                    _ => {}
                }
            }
            was_open = is_open;
            if self.region.wants_probe(self.now()) {
                let good = match self.redis.probe(PROBE_TIMEOUT).await {
                    Ok(()) => self.probe_all().await,
                    Err(_) => ProbeResult::NOTHING,
                };
                self.region.probed(good, self.now());
            }
        }
    }

    /// A server that answers PING may still refuse the script, or take too long for it.
    async fn probe_all(&self) -> ProbeResult {
        let strict = self.is_strictly_served().await;
        let checks = match self.region.store() {
            Store::Origin => self.is_served(Lane::Checks, self.deadline).await,
            Store::Owner => strict,
        };
        let patient = Duration::from_micros(REPLAY_TIMEOUT_US).max(self.deadline);
        ProbeResult { checks, strict, replays: self.is_served(Lane::Replays, patient).await }
    }

    async fn is_served(&self, lane: Lane, within: Duration) -> bool {
        self.serves(&self.redis, lane, within).await
    }

    /// Whether checks of strict limits are served: an owner whose replicas do not acknowledge decides nothing.
    async fn is_strictly_served(&self) -> bool {
        let within = self.strict_deadline.unwrap_or(self.deadline);
        let Some(replicated) = &self.replicated else { return self.is_served(Lane::Checks, within).await };
        self.serves(replicated, Lane::Checks, within).await
    }

    async fn serves(&self, redis: &Redis, lane: Lane, within: Duration) -> bool {
        let served = redis.try_call(lane, &self.region.trial(), within).await;
        served.inspect_err(|error| self.warn(error)).is_ok()
    }
}
