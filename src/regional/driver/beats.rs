//! Heartbeats tell the origin that this process lives. The origin answers how many do, what its clock says, and whether
//! it still has the data that it had.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::clock::wall_ms;
use crate::regional::driver::RegionalDriver;
use crate::regional::metrics::RegionalMetrics;
use crate::regional::node_map::NodeId;
use crate::regional::region::CallPurpose;
use crate::regional::witness::Witness;

const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The interval until the first heartbeat is answered, and after one that was not.
const FIRST_BEAT_INTERVAL: Duration = Duration::from_millis(100);
const BEAT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a process is taken to live after a heartbeat.
const LIVE_FOR: Duration = Duration::from_secs(3);
/// Clocks may be apart by the shortest window divided by this.
const CLOCK_SHARE: u64 = 20;

/// What is remembered of the servers behind a store.
#[derive(Debug, Default)]
struct KnownServers {
    witness: Witness,
    /// The run id of each node, as it last told.
    run_ids: BTreeMap<NodeId, String>,
    /// The warning about a policy of evicting was given.
    has_warned: bool,
}

impl RegionalDriver {
    /// Tells the origin that this process lives, and hears how many do.
    pub(super) async fn beat(self: Arc<Self>) {
        let mut was_heard = false;
        let mut servers = KnownServers::default();
        let mut are_apart = false;
        let (store, process) = (self.region.store(), self.region.process());
        while !self.is_leaving.load(Ordering::Relaxed) {
            let began = Instant::now();
            let mut is_missed = false;
            match self.redis.beat(store, process, BEAT_TIMEOUT.max(self.deadline)).await {
                Ok(beat) => {
                    self.region.heartbeat_ended(true, self.now());
                    let took = began.elapsed();
                    self.metrics.called(CallPurpose::Beat, took);
                    let is_lost =
                        servers.witness.hear_incarnation(beat.incarnation, self.was_answered.load(Ordering::Relaxed));
                    let is_forgotten = was_heard && (is_lost || !beat.was_known);
                    self.hear_live(u32::try_from(beat.live).unwrap_or(u32::MAX), is_forgotten);
                    let half_ms = i64::try_from(took.as_millis() / 2).unwrap_or(0);
                    let offset_ms = beat.time_ms as i64 + half_ms - wall_ms() as i64;
                    self.metrics.clock_offset_ms.store(offset_ms, Ordering::Relaxed);
                    self.compare_clocks(offset_ms, &mut are_apart);
                    if is_lost {
                        self.heal("it has lost its data");
                    }
                    was_heard = true;
                    if self.identify(&mut servers).await {
                        // The next heartbeat goes at once: it says which data the new server has.
                        continue;
                    }
                }
                Err(error) => {
                    self.region.heartbeat_ended(false, self.now());
                    self.metrics.failed(CallPurpose::Beat, error.reason());
                    is_missed = true;
                }
            }
            sleep(if was_heard && !is_missed { BEAT_INTERVAL } else { FIRST_BEAT_INTERVAL }).await;
        }
    }

    /// Takes over how many processes live. A server that has lost its data hears of one process after the other: until
    /// all have had time to tell it, they are taken to be at least as many as before.
    fn hear_live(&self, told: u32, is_forgotten: bool) {
        let mut at_least = self.live_at_least.lock();
        if is_forgotten {
            *at_least = Some((self.region.live(), Instant::now() + LIVE_FOR));
        }
        let floor = at_least.filter(|(_, until)| Instant::now() < *until).map_or(1, |(live, _)| live);
        self.region.set_live(told.max(floor));
    }

    /// Warns when the clocks are too far apart for the rules: processes then count requests in different windows.
    fn compare_clocks(&self, offset_ms: i64, were_apart: &mut bool) {
        let window_ms = self.shortest_window_ms.load(Ordering::Relaxed);
        let are_apart = offset_ms.unsigned_abs().saturating_mul(CLOCK_SHARE) > window_ms;
        if are_apart && !*were_apart {
            tracing::warn!(
                offset_ms,
                shortest_window_ms = window_ms,
                "the clock of Redis and this one are further apart than 5 % of the shortest window: set them right"
            );
        }
        *were_apart = are_apart;
    }

    /// Notices a restart or a failover: the data behind another run id may be older, or gone. True if there was one. In a
    /// Cluster this is every node's heartbeat, too.
    async fn identify(&self, servers: &mut KnownServers) -> bool {
        if self.is_anonymous.load(Ordering::Relaxed) {
            return false;
        }
        let map = self.redis.maps().borrow().clone();
        servers.run_ids.retain(|id, _| map.nodes().iter().any(|node| node.id == *id));
        // A node of a Cluster that is given up is probed; here it would only keep the others waiting.
        let asked = match self.redis.is_cluster() {
            true => self.region.nodes_in_use(),
            false => map.nodes().iter().map(|node| node.id).collect(),
        };
        for (node, identified) in self.redis.identities(&asked, BEAT_TIMEOUT.max(self.deadline)).await {
            let identity = match identified {
                Ok(identity) => identity,
                Err(error) if error.reason() == "auth" => {
                    // Asking again would only cast doubt on the connection.
                    if !self.is_anonymous.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "this user may not ask Redis for INFO: a failover is noticed by heartbeats only");
                    }
                    return false;
                }
                Err(_) => {
                    if self.redis.is_cluster() {
                        self.region.node_answered(node, false, self.now());
                    }
                    continue;
                }
            };
            self.region.node_answered(node, true, self.now());
            if let (Some(policy), false) = (identity.evicting_policy(), servers.has_warned) {
                servers.has_warned = true;
                tracing::warn!(
                    "Redis' maxmemory-policy is {policy}, so it may throw counts away when its memory is full: set it to noeviction"
                );
            }
            servers.run_ids.insert(node, identity.run_id);
        }
        let run_ids: Vec<String> = servers.run_ids.values().cloned().collect();
        let is_other = !run_ids.is_empty() && servers.witness.hear_run_ids(&run_ids);
        if is_other {
            self.heal("it was restarted, or another server has taken over");
        }
        is_other
    }

    fn heal(&self, why: &str) {
        tracing::info!(why, "telling the origin all counts again");
        RegionalMetrics::count(&self.metrics.heals, 1);
        self.region.heal();
    }
}
