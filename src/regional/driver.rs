//! Drives the region's state machines: clocks, timers, connections, and the requests that wait.
//!
//! A driver of its own serves the owner of strict limits, if that is not the region's own Redis.
//!
//! A request that has to ask waits here until its deadline, however often it asks. The call that it causes is a task of
//! its own: other requests may be in the same call, so it does not end with the request. Flushes, heartbeats
//! ([`beats`]) and probes ([`probes`]) run in the background. No request ever waits for them.

mod beats;
mod leaving;
mod probes;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep_until, timeout_at};

use crate::clock::{Clock, Now};
use crate::complaints::Complaints;
use crate::engine::decide::{StoreView, Why};
use crate::engine::reach::Store;
use crate::engine::{Engine, StoreRequest};
use crate::regional::call::{Call, Reply};
use crate::regional::metrics::{DecidedBy, RegionalFigures, RegionalMetrics};
use crate::regional::node_map::{NodeId, NodeMap};
use crate::regional::redis::{Lane, OriginError, Redis};
use crate::regional::region::{BreakerKind, CallId, CallPurpose, Effects, OutgoingCall, Region, RegionOptions};
use crate::regional::replay::REPLAY_AWAITED_US;
use crate::regional::wait_queue::{AskOutcome, WaitId};

/// The time left for the way back to the caller, before its own deadline.
const BEFORE_DEADLINE: Duration = Duration::from_millis(3);

/// This process's side of a store, at work: of the region's origin, or of the owner of strict limits.
pub(crate) struct RegionalDriver {
    region: Region,
    redis: Redis,
    /// Where to send the outcomes of requests that wait.
    waiting: Mutex<HashMap<WaitId, oneshot::Sender<AskOutcome>>>,
    /// Wakes the pump before its planned time.
    wake: Notify,
    runtime: Handle,
    clock: Clock,
    deadline: Duration,
    is_leaving: AtomicBool,
    /// The store has answered a check or a replay; heartbeats and probes do not count.
    was_answered: AtomicBool,
    /// The shortest window of the rules in force; `u64::MAX` without rules.
    shortest_window_ms: AtomicU64,
    /// Our Redis user may not ask for INFO, so run ids are not known.
    is_anonymous: AtomicBool,
    /// Keeps the warning that Redis refuses something to once a minute.
    complaints: Complaints<()>,
    /// How long a request about strict limits waits; `None` if this store decides none.
    strict_deadline: Option<Duration>,
    /// Connections on which replicas have to acknowledge what strict limits are charged; `None` if they need not.
    /// Waiting for replicas holds a connection up, so these are separate.
    replicated: Option<Redis>,
    /// The least number of live processes to assume, and until when: a server that has lost its data does not know
    /// them.
    live_at_least: Mutex<Option<(u32, Instant)>>,
    /// What was asked and answered since the start; the service adds who decided.
    pub metrics: RegionalMetrics,
}

/// What a driver is started with.
pub(crate) struct RegionalOptions {
    /// For the state machine. The driver itself fills in `is_cluster` and `nodes`, from the connections.
    pub region: RegionOptions,
    /// How long a request waits, unless it is about strict limits.
    pub deadline: Duration,
    /// How long a request about strict limits waits; `None` if this store decides none.
    pub strict_deadline: Option<Duration>,
    /// Connections on which replicas have to acknowledge what strict limits are charged; `None` if they need not.
    pub replicated: Option<Redis>,
    /// When the process began: its monotonic time counts from here.
    pub began: Instant,
}

impl fmt::Debug for RegionalDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regional").field("process", &self.region.process()).finish_non_exhaustive()
    }
}

impl RegionalDriver {
    /// Starts the driver. Must be called on the runtime.
    pub(crate) fn start(engine: Arc<Engine>, redis: Redis, options: RegionalOptions) -> Arc<RegionalDriver> {
        let RegionalOptions { mut region, deadline, strict_deadline, replicated, began } = options;
        let maps = redis.maps();
        (region.is_cluster, region.nodes) = (redis.is_cluster(), maps.borrow().clone());
        let regional = Arc::new(RegionalDriver {
            region: Region::new(engine, region),
            redis,
            waiting: Mutex::default(),
            wake: Notify::new(),
            runtime: Handle::current(),
            clock: Clock::since(began),
            deadline,
            strict_deadline,
            replicated,
            live_at_least: Mutex::default(),
            is_leaving: AtomicBool::new(false),
            was_answered: AtomicBool::new(false),
            shortest_window_ms: AtomicU64::new(u64::MAX),
            is_anonymous: AtomicBool::new(false),
            complaints: Complaints::default(),
            metrics: RegionalMetrics::default(),
        });
        tokio::spawn(regional.clone().pump());
        tokio::spawn(regional.clone().beat());
        tokio::spawn(regional.clone().probe());
        tokio::spawn(regional.clone().follow_slots(maps));
        regional
    }

    /// Lets the region know who has which slot. Never ends.
    async fn follow_slots(self: Arc<Self>, mut maps: watch::Receiver<Arc<NodeMap>>) {
        loop {
            let map = maps.borrow_and_update().clone();
            self.region.set_nodes(map);
            self.wake.notify_one();
            if maps.changed().await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn redis(&self) -> &Redis {
        &self.redis
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    pub(crate) fn figures(&self, lost_hits: u64) -> RegionalFigures {
        let mut breakers = self.region.breakers();
        breakers.retain(|breaker| breaker.kind != BreakerKind::Strict || self.has_strict_checks_apart());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RegionalFigures {
            process: self.region.process(),
            decisions: DecidedBy::ALL.map(|by| (by, self.metrics.decisions(by))),
            times: self.metrics.read_times(),
            errors: self.metrics.errors(),
            hydrations: count(&self.metrics.hydrations),
            checks: count(&self.metrics.checks),
            replayed_cells: count(&self.metrics.replayed_cells),
            heals: count(&self.metrics.heals),
            keys_to_heal: self.region.keys_to_heal(),
            clock_offset_ms: self.metrics.clock_offset_ms.load(Ordering::Relaxed),
            breakers,
            live: self.region.live(),
            pending_hits: self.region.pending_hits(),
            held_hits: self.region.held_hits(),
            lost_hits,
            lag_s: self.region.lag_us(self.now()) as f64 / 1e6,
            connection: self.redis.status(),
        }
    }

    /// Takes the shortest window of the rules in force, `None` without rules. Clocks should agree within a small part
    /// of it.
    pub(crate) fn set_shortest_window(&self, window_ms: Option<u64>) {
        self.shortest_window_ms.store(window_ms.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// An instant as monotonic time in whole milliseconds, which freshness and pauses go by.
    pub(crate) fn mono_ms(&self, at: Instant) -> u64 {
        self.clock.mono_ms(at)
    }

    /// For how long this process has shared the store's counts without a break.
    pub(crate) fn age_ms(&self) -> u64 {
        self.now().mono_ms().saturating_sub(self.region.view().joined_ms.unwrap_or(0))
    }

    /// What a request may know of the store.
    pub(crate) fn view(&self) -> StoreView<'static> {
        self.region.view()
    }

    /// Whether this store decides strict limits beside others: they may be in an outage when the others are not.
    fn has_strict_checks_apart(&self) -> bool {
        self.strict_deadline.is_some() && self.region.store() == Store::Origin
    }

    /// Wakes the pump if something is urgent. To be called after every decision.
    pub(crate) fn wake_if_urgent(&self, engine: &Engine) {
        if engine.table().ledger(self.region.store()).is_any_urgent() {
            self.wake.notify_one();
        }
    }

    /// How long a request waits at most, unless it is about strict limits.
    pub(crate) fn patience(&self) -> Duration {
        self.deadline
    }

    /// Until when a request waits for the store: as long as its patience lasts, counted from its first look, but never
    /// so long that its call ends without an answer.
    pub(crate) fn deadline(began: Instant, patience: Duration, call_ends: Option<Instant>) -> Instant {
        let patient = began + patience;
        // No instant exists before the very start of the clock.
        let before = call_ends.map(|ends| ends.checked_sub(BEFORE_DEADLINE).unwrap_or(ends));
        before.map_or(patient, |before| before.min(patient))
    }

    /// Asks the store, and waits until the deadline at most.
    pub(crate) async fn ask(self: &Arc<Self>, store_request: StoreRequest, deadline: Instant) -> AskOutcome {
        self.count(&store_request);
        let (sender, receiver) = oneshot::channel();
        let now = self.now();
        let (id, effects) = {
            // Locked until the sender is in, so that no answer comes before it.
            let mut waiting = self.waiting.lock();
            let (id, effects) = self.region.ask(store_request, self.clock.mono_us(deadline), now);
            waiting.insert(id, sender);
            (id, effects)
        };
        let _patience = Patience { regional: self, id };
        if effects.calls.is_empty() {
            self.wake.notify_one();
        }
        self.perform(effects);
        let mut receiver = receiver;
        match timeout_at(deadline.into(), &mut receiver).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => AskOutcome::NoAnswer,
            Err(_) if self.region.give_up(id, self.now()) => AskOutcome::NoAnswer,
            // It was answered and charged at the last moment: the answer is on its way.
            Err(_) => receiver.await.unwrap_or(AskOutcome::NoAnswer),
        }
    }

    fn count(&self, store_request: &StoreRequest) {
        let asks = |why: Why| store_request.questions.iter().filter(|asked| asked.why == why).count() as u64;
        RegionalMetrics::count(&self.metrics.hydrations, asks(Why::Cold));
        RegionalMetrics::count(&self.metrics.checks, u64::from(asks(Why::Headroom) > 0));
    }

    fn perform(self: &Arc<Self>, effects: Effects) {
        if !effects.told.is_empty() {
            let mut waiting = self.waiting.lock();
            for (id, outcome) in effects.told {
                if let Some(sender) = waiting.remove(&id) {
                    // The request may be gone.
                    let _ = sender.send(outcome);
                }
            }
        }
        for outgoing in effects.calls {
            let regional = self.clone();
            self.runtime.spawn(async move { regional.call(outgoing).await });
        }
    }

    async fn call(self: Arc<Self>, outgoing: OutgoingCall) {
        let OutgoingCall { id, operation, node, call, is_strict, within_us } = outgoing;
        let began = Instant::now();
        let within = Duration::from_micros(within_us);
        let mut was_late = false;
        let checked_by = self.replicated.as_ref().filter(|_| is_strict).unwrap_or(&self.redis);
        let replied = match operation {
            CallPurpose::Replay => self.replay(id, node, &call, within, &mut was_late).await,
            _ => checked_by.call(Lane::Checks, &call, within).await,
        };
        let effects = match replied {
            Ok(reply) => {
                self.was_answered.store(true, Ordering::Relaxed);
                if !was_late {
                    self.metrics.called(operation, began.elapsed());
                }
                if operation == CallPurpose::Replay {
                    let cells = call.parts.iter().map(|part| part.cells.len() as u64).sum();
                    RegionalMetrics::count(&self.metrics.replayed_cells, cells);
                }
                self.region.replied(id, &reply, self.now())
            }
            Err(error) => {
                if !was_late {
                    self.metrics.failed(operation, error.reason());
                }
                self.warn(&error);
                tracing::debug!(operation = operation.word(), %error, "the origin gave no answer");
                match error {
                    OriginError::Timeout { .. } if operation == CallPurpose::Check => {
                        let heard_us = self.heard_us(checked_by, node, Lane::Checks);
                        self.region.timed_out(id, heard_us, self.now())
                    }
                    _ if error.is_misdirected() => self.region.misdirected(id, self.now()),
                    _ => self.region.failed(id, self.now()),
                }
            }
        };
        self.perform(effects);
        // The pump may have something to do sooner now.
        self.wake.notify_one();
    }

    /// Makes a replay, and lets the region know when its time is up. A call that is late has failed as far as metrics go.
    async fn replay(
        self: &Arc<Self>,
        id: CallId,
        node: NodeId,
        call: &Call,
        within: Duration,
        was_late: &mut bool,
    ) -> Result<Reply, OriginError> {
        let patience = within + Duration::from_micros(REPLAY_AWAITED_US);
        let is_late = |error: &OriginError| {
            *was_late = true;
            self.metrics.failed(CallPurpose::Replay, error.reason());
            let heard_us = self.heard_us(&self.redis, node, Lane::Replays);
            self.perform(self.region.timed_out(id, heard_us, self.now()));
        };
        self.redis.replay(call, within, patience, is_late).await
    }

    /// When anything last came over a connection, in monotonic time.
    fn heard_us(&self, redis: &Redis, node: NodeId, lane: Lane) -> Option<u64> {
        redis.heard(node, lane).map(|at| self.clock.mono_us(at))
    }

    /// Flushes, and lets requests go on when the time that they wait for has come.
    async fn pump(self: Arc<Self>) {
        // A clean stop tells what is left by itself; nothing may be told after it.
        while !self.is_leaving.load(Ordering::Relaxed) {
            let next = self.clock.instant(self.region.next_us());
            tokio::select! {
                () = sleep_until(next.into()) => {}
                () = self.wake.notified() => {}
            }
            self.perform(self.region.poll(self.now()));
        }
    }

    /// Logs once a minute why Redis refuses. [`probes`] logs when it does not answer.
    fn warn(&self, error: &OriginError) {
        if !matches!(error, OriginError::Refused { .. } | OriginError::BadReply | OriginError::Unreplicated { .. }) {
            return;
        }
        if self.complaints.is_due((), Instant::now()) {
            tracing::warn!(%error, "Redis does not do what it is asked");
        }
    }
}

/// Withdraws a request when its wait ends, answered or not.
struct Patience<'r> {
    regional: &'r Arc<RegionalDriver>,
    id: WaitId,
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        self.regional.region.cancel(self.id);
        self.regional.waiting.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_comes_after_its_headers_gets_no_more_time_than_its_call_has() {
        let ms = Duration::from_millis;
        let arrived = Instant::now();
        let call_ends = arrived + ms(60);
        for late in [ms(0), ms(20), ms(59)] {
            let deadline = RegionalDriver::deadline(arrived + late, ms(80), Some(call_ends));
            assert_eq!(deadline, arrived + ms(57), "the message came after {late:?}");
        }
    }

    #[test]
    fn who_has_time_waits_for_as_long_as_its_patience_lasts() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        assert_eq!(RegionalDriver::deadline(began, ms(10), Some(began + ms(60))), began + ms(10));
        assert_eq!(RegionalDriver::deadline(began, ms(10), None), began + ms(10));
    }
}
