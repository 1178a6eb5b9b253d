//! Probes find out whether a node that did not answer does again. The log says when that changes.
//!
//! A probe asks over the connections that are in use, as a request would: nobody is helped by another connection that is not
//! used. Where there is none, or one is doubted, the connector tries to make one anyway, and the probe fails until it has.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::engine::reach::Store;
use crate::regional::driver::RegionalDriver;
use crate::regional::node_map::NodeId;
use crate::regional::redis::{Lane, Redis};
use crate::regional::region::{BreakerKind, BreakerState, ProbeResult};
use crate::regional::replay::REPLAY_TIMEOUT_US;

/// How often to check whether a probe is due.
const PROBE_LOOK: Duration = Duration::from_millis(50);
/// How many calls in a row have to be answered in time.
const PROBE_CALLS: usize = 3;

impl RegionalDriver {
    /// Logs when breakers open and close, and has nodes probed when that is due. Never ends.
    pub(super) async fn probe(self: Arc<Self>) {
        let mut before: Vec<BreakerState> = Vec::new();
        loop {
            sleep(PROBE_LOOK).await;
            let breakers = self.region.breakers();
            self.log_changes(&before, &breakers);
            before = breakers;
            for node in self.region.wants_probes(self.now()) {
                // One that hangs must not keep others waiting.
                tokio::spawn(self.clone().probe_node(node));
            }
        }
    }

    fn log_changes(&self, before: &[BreakerState], now: &[BreakerState]) {
        let who = match self.region.store() {
            Store::Origin => "the origin",
            Store::Owner => "the owner of strict limits",
        };
        for BreakerState { kind, node, is_open, .. } in now {
            if *kind == BreakerKind::Strict && !self.has_strict_checks_apart() {
                continue;
            }
            let was = before.iter().find(|was| (was.kind, &was.node) == (*kind, node));
            let (breaker, node) = (kind.word(), node.as_deref());
            match (was.is_some_and(|was| was.is_open), *is_open) {
                (false, true) => {
                    tracing::warn!(breaker, node, "{who} does not answer: each rule's on_outage decides")
                }
                (true, false) => tracing::warn!(breaker, node, "{who} answers again"),
                _ => {}
            }
        }
    }

    async fn probe_node(self: Arc<Self>, node: NodeId) {
        let patient = Duration::from_micros(REPLAY_TIMEOUT_US).max(self.deadline);
        let (checks, replays) =
            tokio::join!(self.probe_checks(node), self.serves(&self.redis, node, Lane::Replays, patient));
        let (checks, strict) = checks;
        self.region.probed(node, ProbeResult { checks, strict, replays }, self.now());
    }

    /// Whether checks are served, and whether those of strict limits are: an owner whose replicas do not acknowledge decides
    /// nothing.
    async fn probe_checks(&self, node: NodeId) -> (bool, bool) {
        let redis = self.replicated.as_ref().unwrap_or(&self.redis);
        let checks = self.serves(&self.redis, node, Lane::Checks, self.deadline);
        match (self.region.store(), self.strict_deadline) {
            (_, None) => {
                let is_served = checks.await;
                (is_served, is_served)
            }
            (Store::Owner, Some(within)) => {
                let is_served = self.serves(redis, node, Lane::Checks, within).await;
                (is_served, is_served)
            }
            (Store::Origin, Some(within)) => tokio::join!(checks, self.serves(redis, node, Lane::Checks, within)),
        }
    }

    /// Whether a node serves several calls in a row, each in time. A server that answers PING may still refuse the script, or
    /// take too long for it.
    async fn serves(&self, redis: &Redis, node: NodeId, lane: Lane, within: Duration) -> bool {
        let trial = self.region.trial(node);
        for _ in 0..PROBE_CALLS {
            if let Err(error) = redis.try_call(node, lane, &trial, within).await {
                self.warn(&error);
                return false;
            }
        }
        true
    }
}
