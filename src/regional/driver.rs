//! The region's state machines, brought to life: clocks, timers, connections, and the requests that wait.
//!
//! The same serves the owner of strict limits, when that is not the region's own Redis.
//!
//! A request that has to ask waits here, for one deadline in all. The call that it caused is a task of its own: others
//! may be in the same call, so it does not end with the request. Flushes, heartbeats and probes run beside, and none of
//! them is ever waited for by a request.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, sleep_until, timeout_at};

use crate::clock::Now;
use crate::engine::decide::{StoreView, Why};
use crate::engine::reach::Store;
use crate::engine::{Engine, StoreRequest};
use crate::regional::metrics::{DecidedBy, RegionalFigures, RegionalMetrics};
use crate::regional::redis::codec::{self, Invocation};
use crate::regional::redis::{Lane, OriginError, Redis, Script};
use crate::regional::region::{Effects, Field, Operation, Outgoing, Probed, Region, RegionOptions};
use crate::regional::replay::REPLAY_TIMEOUT_US;
use crate::regional::wait_queue::{AskId, AskOutcome};
use crate::regional::witness::Witness;
use crate::server::service::wall_ms;

static ORIGIN: Script = Script::new(codec::ORIGIN);
static BEAT: Script = Script::new(codec::BEAT);
static LEAVE: Script = Script::new(codec::LEAVE);

const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Until the first heartbeat, or one after others that were lost, has been answered.
const FIRST_BEAT_INTERVAL: Duration = Duration::from_millis(100);
const BEAT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a process is taken to live after a heartbeat.
const LIVE_FOR: Duration = Duration::from_secs(3);
/// Clocks may be apart by one part in so many of the shortest window.
const CLOCK_SHARE: u64 = 20;
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// How often somebody looks whether a probe is due.
const PROBE_LOOK: Duration = Duration::from_millis(50);
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a clean stop goes on telling what is pending.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Fields that are taken out in one call.
const LEAVE_CHUNK: usize = 256;
/// The caller has this long for the way back before its own deadline.
const BEFORE_DEADLINE: Duration = Duration::from_millis(3);

/// The process's part in its region, at work.
pub struct Regional {
    region: Region,
    redis: Redis,
    /// Requests that wait.
    waiting: Mutex<HashMap<AskId, oneshot::Sender<AskOutcome>>>,
    /// Something is to be done before the time that was planned.
    wake: Notify,
    runtime: Handle,
    began: Instant,
    deadline: Duration,
    is_leaving: AtomicBool,
    /// The origin has answered a call that counts.
    was_answered: AtomicBool,
    shortest_window_ms: AtomicU64,
    /// The user that we are may not ask who answers.
    is_anonymous: AtomicBool,
    /// When it was last said that Redis refuses something.
    warned: Mutex<Option<Instant>>,
    /// How long a request about strict limits waits, if this store decides any.
    strict_deadline: Option<Duration>,
    /// Has replicas acknowledge what strict limits were charged. Waiting for them holds a connection up, so it has its own.
    replicated: Option<Replicated>,
    /// How many processes are taken to live at least, until when: a server that has lost its data does not know them.
    live_at_least: Mutex<Option<(u32, Instant)>>,
    pub metrics: RegionalMetrics,
}

/// Connections on which so many replicas are waited for.
pub struct Replicated {
    pub redis: Redis,
    pub replicas: u32,
}

impl Replicated {
    async fn script(&self, written: &Invocation, within: Duration) -> Result<redis::Value, OriginError> {
        let Invocation { keys, args } = written;
        self.redis.replicated_script(Lane::Checks, &ORIGIN, keys, args, self.replicas, within).await
    }
}

/// How to take part.
pub struct RegionalOptions {
    pub region: RegionOptions,
    /// How long a request waits.
    pub deadline: Duration,
    /// How long a request waits about strict limits, if this store decides any.
    pub strict_deadline: Option<Duration>,
    pub replicated: Option<Replicated>,
    /// What all moments of the process are counted from.
    pub began: Instant,
}

impl fmt::Debug for Regional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regional").field("process", &self.region.process()).finish_non_exhaustive()
    }
}

impl Regional {
    /// Starts to take part. Must be called on the runtime.
    pub fn start(engine: Arc<Engine>, redis: Redis, options: RegionalOptions) -> Arc<Regional> {
        let RegionalOptions { mut region, deadline, strict_deadline, replicated, began } = options;
        region.is_cluster = redis.is_cluster();
        let regional = Arc::new(Regional {
            region: Region::new(engine, region),
            redis,
            waiting: Mutex::default(),
            wake: Notify::new(),
            runtime: Handle::current(),
            began,
            deadline,
            strict_deadline,
            replicated,
            live_at_least: Mutex::default(),
            is_leaving: AtomicBool::new(false),
            was_answered: AtomicBool::new(false),
            shortest_window_ms: AtomicU64::new(u64::MAX),
            is_anonymous: AtomicBool::new(false),
            warned: Mutex::default(),
            metrics: RegionalMetrics::default(),
        });
        tokio::spawn(regional.clone().pump());
        tokio::spawn(regional.clone().beat());
        tokio::spawn(regional.clone().probe());
        regional
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    pub fn redis(&self) -> &Redis {
        &self.redis
    }

    pub fn now(&self) -> Now {
        Now { wall_ms: wall_ms(), mono_us: self.mono_us(Instant::now()) }
    }

    fn mono_us(&self, at: Instant) -> u64 {
        // From one on: zero stands for never.
        u64::try_from(at.saturating_duration_since(self.began).as_micros())
            .unwrap_or(u64::MAX)
            .saturating_add(1_000_000)
    }

    pub fn figures(&self, lost_hits: u64) -> RegionalFigures {
        let [checks, replays, strict] = self.region.breakers();
        let mut breakers = vec![("checks", checks.0, checks.1), ("replays", replays.0, replays.1)];
        if self.has_strict_checks_apart() {
            breakers.push(("strict", strict.0, strict.1));
        }
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
            clock_offset_ms: self.metrics.clock_offset_ms.load(Ordering::Relaxed),
            breakers,
            live: self.region.live(),
            pending_hits: self.region.pending_hits(),
            lost_hits,
            lag_s: self.region.lag_us(self.now()) as f64 / 1e6,
            connection: self.redis.status(),
        }
    }

    /// The shortest window of the rules in force: clocks should agree within a small part of it.
    pub fn set_shortest_window(&self, window_ms: Option<u64>) {
        self.shortest_window_ms.store(window_ms.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The moment, in whole milliseconds, that freshness and pauses go by. As `mono_us`, but for every request.
    pub fn mono_ms(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.began);
        (passed.as_secs() + 1) * 1000 + u64::from(passed.subsec_millis())
    }

    /// What a request may know of the store.
    pub fn view(&self) -> StoreView<'static> {
        self.region.view()
    }

    /// Strict limits are decided here beside others, and may be in an outage when those are not.
    fn has_strict_checks_apart(&self) -> bool {
        self.strict_deadline.is_some() && self.region.store() == Store::Origin
    }

    /// To be called after a decision that was made from memory.
    pub fn decided(&self, engine: &Engine) {
        if engine.table().ledger(self.region.store()).is_any_urgent() {
            self.wake.notify_one();
        }
    }

    /// How long requests wait at most.
    pub fn patience(&self) -> Duration {
        self.deadline
    }

    /// The moment until which a request waits for the origin: as long as its patience lasts from when it was decided to
    /// ask, but never so long that its call ends without an answer.
    pub fn deadline(began: Instant, patience: Duration, call_ends: Option<Instant>) -> Instant {
        let patient = began + patience;
        // At the very start of the clock there is nothing before.
        let before = call_ends.map(|ends| ends.checked_sub(BEFORE_DEADLINE).unwrap_or(ends));
        before.map_or(patient, |before| before.min(patient))
    }

    /// Asks the origin, until the deadline at most.
    pub async fn ask(self: &Arc<Self>, inquiry: StoreRequest, deadline: Instant) -> AskOutcome {
        self.count(&inquiry);
        let (sender, receiver) = oneshot::channel();
        let now = self.now();
        let (id, effects) = {
            // No answer may come before the sender is there.
            let mut waiting = self.waiting.lock();
            let (id, effects) = self.region.ask(inquiry, self.mono_us(deadline), now);
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
            // Answered, and charged, in the last moment: the answer is on its way.
            Err(_) => receiver.await.unwrap_or(AskOutcome::NoAnswer),
        }
    }

    fn count(&self, inquiry: &StoreRequest) {
        let asks = |why: Why| inquiry.questions.iter().filter(|asked| asked.why == why).count() as u64;
        RegionalMetrics::count(&self.metrics.hydrations, asks(Why::Cold));
        RegionalMetrics::count(&self.metrics.checks, u64::from(asks(Why::Headroom) > 0));
    }

    fn perform(self: &Arc<Self>, effects: Effects) {
        if !effects.told.is_empty() {
            let mut waiting = self.waiting.lock();
            for (id, outcome) in effects.told {
                if let Some(sender) = waiting.remove(&id) {
                    // Whoever has gone needs no answer.
                    let _ = sender.send(outcome);
                }
            }
        }
        for outgoing in effects.calls {
            let regional = self.clone();
            self.runtime.spawn(async move { regional.call(outgoing).await });
        }
    }

    async fn call(self: Arc<Self>, outgoing: Outgoing) {
        let Outgoing { id, operation, call, is_strict, within_us } = outgoing;
        let lane = if operation == Operation::Check { Lane::Checks } else { Lane::Replays };
        let began = Instant::now();
        let written = codec::encode(&call);
        let within = Duration::from_micros(within_us);
        let answered = match &self.replicated {
            Some(replicated) if is_strict => replicated.script(&written, within).await,
            _ => self.redis.script(lane, &ORIGIN, &written.keys, &written.args, within).await,
        };
        let reply = answered.and_then(|value| codec::decode(&call, &value).map_err(|_| OriginError::BadReply));
        let effects = match reply {
            Ok(reply) => {
                self.was_answered.store(true, Ordering::Relaxed);
                self.metrics.called(operation, began.elapsed());
                if operation == Operation::Replay {
                    let cells = call.parts.iter().map(|part| part.cells.len() as u64).sum();
                    RegionalMetrics::count(&self.metrics.replayed_cells, cells);
                }
                self.region.replied(id, &reply, self.now())
            }
            Err(error) => {
                self.metrics.failed(operation, error.reason());
                self.warn(&error);
                tracing::debug!(operation = operation.word(), %error, "the origin gave no answer");
                self.region.failed(id, self.now())
            }
        };
        self.perform(effects);
        // Others may now have to wait for less than was planned.
        self.wake.notify_one();
    }

    /// Flushes, and lets those go on who had to wait for time to pass.
    async fn pump(self: Arc<Self>) {
        // A clean stop tells what is left by itself, and nothing after it.
        while !self.is_leaving.load(Ordering::Relaxed) {
            let next = self.began + Duration::from_micros(self.region.next_us().saturating_sub(1_000_000));
            tokio::select! {
                () = sleep_until(next.into()) => {}
                () = self.wake.notified() => {}
            }
            self.perform(self.region.poll(self.now()));
        }
    }

    /// Tells the origin that this process lives, and hears how many do.
    async fn beat(self: Arc<Self>) {
        let mut was_heard = false;
        let mut has_warned = false;
        let mut witness = Witness::default();
        let mut are_apart = false;
        let written = codec::encode_beat(self.region.store(), self.region.process());
        while !self.is_leaving.load(Ordering::Relaxed) {
            let began = Instant::now();
            let mut is_missed = false;
            let answered = self.redis.script(Lane::Replays, &BEAT, &written.keys, &written.args, BEAT_TIMEOUT).await;
            let beat = answered.and_then(|value| codec::decode_beat(&value).map_err(|_| OriginError::BadReply));
            match beat {
                Ok(beat) => {
                    self.region.beaten(true, self.now());
                    let took = began.elapsed();
                    self.metrics.called(Operation::Beat, took);
                    let is_lost = witness.hear_incarnation(beat.incarnation, self.was_answered.load(Ordering::Relaxed));
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
                    if self.identify(&mut witness, &mut has_warned).await {
                        // Which data the new server has, the next heartbeat says, at once.
                        continue;
                    }
                }
                Err(error) => {
                    self.region.beaten(false, self.now());
                    self.metrics.failed(Operation::Beat, error.reason());
                    is_missed = true;
                }
            }
            sleep(if was_heard && !is_missed { BEAT_INTERVAL } else { FIRST_BEAT_INTERVAL }).await;
        }
    }

    /// A server that has lost its data hears of one process after the other: until all have had the time to tell it,
    /// there are taken to be as many as before.
    fn hear_live(&self, told: u32, is_forgotten: bool) {
        let mut at_least = self.live_at_least.lock();
        if is_forgotten {
            *at_least = Some((self.region.live(), Instant::now() + LIVE_FOR));
        }
        let floor = at_least.filter(|(_, until)| Instant::now() < *until).map_or(1, |(live, _)| live);
        self.region.set_live(told.max(floor));
    }

    /// Says so when the clocks are too far apart for the rules: requests are then counted in different windows.
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

    /// Notices a restart or a failover: the data behind another run id may be older, or gone. True if there was one.
    async fn identify(&self, witness: &mut Witness, has_warned: &mut bool) -> bool {
        if self.is_anonymous.load(Ordering::Relaxed) {
            return false;
        }
        let identity = match self.redis.identity(BEAT_TIMEOUT).await {
            Ok(identity) => identity,
            Err(error) => {
                // Asking again would only have the connection doubted.
                if error.reason() == "auth" && !self.is_anonymous.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "this user may not ask Redis for INFO: a failover is noticed by heartbeats only");
                }
                return false;
            }
        };
        if let (Some(policy), false) = (identity.evicting_policy(), *has_warned) {
            *has_warned = true;
            tracing::warn!(
                "Redis' maxmemory-policy is {policy}, so it may throw counts away when its memory is full: set it to noeviction"
            );
        }
        let is_other = witness.hear_run_ids(&identity.run_ids);
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

    /// Finds out whether an origin that did not answer does again.
    async fn probe(self: Arc<Self>) {
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
                    Err(_) => Probed::NOTHING,
                };
                self.region.probed(good, self.now());
            }
        }
    }

    /// A server that answers PING may still refuse the script, or take too long for it.
    async fn probe_all(&self) -> Probed {
        let strict = self.is_strictly_served().await;
        let checks = match self.region.store() {
            Store::Origin => self.is_served(Lane::Checks, self.deadline).await,
            Store::Owner => strict,
        };
        let patient = Duration::from_micros(REPLAY_TIMEOUT_US).max(self.deadline);
        Probed { checks, strict, replays: self.is_served(Lane::Replays, patient).await }
    }

    async fn is_served(&self, lane: Lane, within: Duration) -> bool {
        let written = codec::encode(&self.region.trial());
        let served = self.redis.script(lane, &ORIGIN, &written.keys, &written.args, within).await;
        served.inspect_err(|error| self.warn(error)).is_ok()
    }

    /// Whether strict limits are decided here: an owner whose replicas do not acknowledge decides nothing.
    async fn is_strictly_served(&self) -> bool {
        let within = self.strict_deadline.unwrap_or(self.deadline);
        let Some(replicated) = &self.replicated else { return self.is_served(Lane::Checks, within).await };
        let written = codec::encode(&self.region.trial());
        replicated.script(&written, within).await.inspect_err(|error| self.warn(error)).is_ok()
    }

    /// Says once a minute why Redis refuses; that it does not answer is said by the breakers.
    fn warn(&self, error: &OriginError) {
        if !matches!(error, OriginError::Refused { .. } | OriginError::BadReply | OriginError::Unreplicated { .. }) {
            return;
        }
        let mut warned = self.warned.lock();
        if warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            *warned = Some(Instant::now());
            tracing::warn!(%error, "Redis does not do what it is asked");
        }
    }

    /// A clean stop: tells everything that is pending, then takes this process's fields out, so that others divide what
    /// is left among fewer.
    pub async fn leave(self: &Arc<Self>) {
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
        let process = self.region.process().to_string();
        let fields = self.region.fields(self.now());
        let name = |(key, sequence): &Field| match sequence {
            Some(sequence) => codec::cell_key(key, *sequence),
            None => codec::bucket_key(key),
        };
        // Keys of a Cluster are in many slots.
        let chunk = if self.redis.is_cluster() { 1 } else { LEAVE_CHUNK };
        let args = [process.into_bytes()];
        for chunk in fields.chunks(chunk) {
            let left = until.saturating_duration_since(Instant::now());
            let keys: Vec<Vec<u8>> = chunk.iter().map(name).collect();
            if self.redis.script(Lane::Replays, &LEAVE, &keys, &args, left).await.is_err() {
                return;
            }
        }
        let written = codec::encode_leave(self.region.store(), self.region.process());
        let left = until.saturating_duration_since(Instant::now());
        // Others notice within three seconds anyway.
        let _ = self.redis.script(Lane::Replays, &BEAT, &written.keys, &written.args, left).await;
    }
}

/// A request that waits; when it ends without an answer, nobody waits for it any more.
struct Patience<'r> {
    regional: &'r Arc<Regional>,
    id: AskId,
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
            let deadline = Regional::deadline(arrived + late, ms(80), Some(call_ends));
            assert_eq!(deadline, arrived + ms(57), "the message came after {late:?}");
        }
    }

    #[test]
    fn who_has_time_waits_for_as_long_as_its_patience_lasts() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        assert_eq!(Regional::deadline(began, ms(10), Some(began + ms(60))), began + ms(10));
        assert_eq!(Regional::deadline(began, ms(10), None), began + ms(10));
    }
}
