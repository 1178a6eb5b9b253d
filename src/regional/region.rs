//! A process's side of the region: everything between the engine and the origin, as one state machine.
//!
//! It is told what happens (a request has to ask, a call came back, time has passed) and says what to do (make these
//! calls, tell these requests). It never waits and never reads a clock; the driver and the simulator do that.

mod checking;
mod healing;
mod nodes;
mod patrol;
mod replaying;
mod sorting;

use crate::regional::region::nodes::Nodes;
pub(crate) use crate::regional::region::nodes::{BreakerKind, BreakerState, ProbeResult};
use crate::regional::region::patrol::Patrol;
pub(crate) use crate::regional::region::replaying::CellField;
use crate::regional::region::replaying::{ReplayCall, Replays};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::clock::Now;
use crate::engine::decide::{Cause, StoreAccess, StoreView};
use crate::engine::key::Key;
use crate::engine::reach::Store;
use crate::engine::table::ledger::Ledger;
use crate::engine::{Engine, StoreRequest};
use crate::regional::breaker::{BreakerOptions, CallEnd};
use crate::regional::call::{Ask, Call, CallKey, OriginKey, ProcessId, Reply};
use crate::regional::gathering::{Gathering, ReadyRequest};
use crate::regional::key_names::KeyNames;
use crate::regional::node_map::{NodeId, NodeMap};
use crate::regional::presence::{LIVE_ASSUMED, Presence};
use crate::regional::region::checking::CheckCall;
use crate::regional::replay::FLUSH_INTERVAL_US;
use crate::regional::wait_queue::{AskOutcome, QueuedRequest, WaitId, WaitQueue};
use parking_lot::Mutex;

/// Names a call until it has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What a call to the origin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallPurpose {
    Check,
    Replay,
    Beat,
}

impl CallPurpose {
    pub const ALL: [CallPurpose; 3] = [CallPurpose::Check, CallPurpose::Replay, CallPurpose::Beat];

    pub fn word(self) -> &'static str {
        match self {
            CallPurpose::Check => "check",
            CallPurpose::Replay => "replay",
            CallPurpose::Beat => "beat",
        }
    }
}

/// A call to make.
#[derive(Clone, Debug)]
pub struct OutgoingCall {
    /// To be handed back with [`Region::replied`] or [`Region::failed`], and before that with [`Region::timed_out`].
    pub id: CallId,
    /// Chooses the lane, and the metric that counts the call.
    pub operation: CallPurpose,
    /// Which node it is for.
    pub node: NodeId,
    /// What to send.
    pub call: Call,
    /// It charges a strict limit: if replicas have to acknowledge that, it goes over their connections.
    pub is_strict: bool,
    /// How long it may take: see [`Region::timed_out`].
    pub within_us: u64,
}

/// What to do now.
#[derive(Debug, Default)]
pub struct Effects {
    /// Calls to make.
    pub calls: Vec<OutgoingCall>,
    /// Requests that wait no longer, and what they are told.
    pub told: Vec<(WaitId, AskOutcome)>,
}

impl Effects {
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.told.is_empty()
    }

    fn join(&mut self, other: Effects) {
        self.calls.extend(other.calls);
        self.told.extend(other.told);
    }
}

/// A call that has not come back.
#[derive(Debug)]
enum PendingCall {
    CheckCall(CheckCall),
    Replay(ReplayCall),
}

#[derive(Debug)]
struct RegionState {
    wait_queue: WaitQueue,
    under_way: HashMap<CallId, PendingCall>,
    next_call: u64,
    /// Requests that go with the next check.
    gathering: Gathering,
    /// Checks that have not come back.
    checks_under_way: usize,
    telling: Replays,
    nodes: Nodes,
    flush_at_us: u64,
    /// The process stops: it tells what it can, and spares nobody.
    is_leaving: bool,
    /// Since when something has been pending without a break that the origin has not answered for.
    behind_since_us: Option<u64>,
    /// When a call last came back without an answer.
    unanswered_us: Option<u64>,
    /// When pending hits were last counted while nothing could be told.
    surveyed_us: u64,
    presence: Presence,
    random: u64,
}

impl RegionState {
    /// Something waits for a node that is given up, or was until now.
    fn is_any_parked(&self) -> bool {
        self.nodes.parked() > 0 || self.telling.is_any_released()
    }
}

/// How a process takes part in its region.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// Which store is at the other end: the region's, or the one that all regions ask about strict limits.
    pub store: Store,
    /// Names this process at the store.
    pub process: ProcessId,
    /// Names keys at the store: all processes that share it need the same secret.
    pub key_names: KeyNames,
    /// The store is a Cluster: keys of one call have to be in one slot.
    pub is_cluster: bool,
    /// Who has which slot, as far as is known.
    pub nodes: Arc<NodeMap>,
    /// How long a request waits for the store, unless it is about strict limits. No call gets less time.
    pub deadline_us: u64,
    /// When the store is given up.
    pub breaker: BreakerOptions,
    /// Seeds choices that should differ between processes.
    pub seed: u64,
}

/// A process's side of the region.
#[derive(Debug)]
pub struct Region {
    engine: Arc<Engine>,
    options: RegionOptions,
    /// Locked after the requests that wait in the driver, and before any shard of the table: see `Table::lock` for the
    /// order.
    state: Mutex<RegionState>,
    /// Locked before any shard of the table, and never together with the state.
    patrol: Mutex<Patrol>,
    live: AtomicU32,
    /// More are alive than a moment ago: what keys hold back may be too much.
    has_grown: AtomicBool,
    /// Hits that are held back, as far as the patrol has seen.
    held_hits: AtomicU64,
    /// This process may not know yet how many are alive.
    is_new: AtomicBool,
    /// Since when its heartbeats have been answered without a break.
    joined_us: AtomicU64,
    /// This process has never known how many are alive.
    is_stranger: AtomicBool,
    /// The breakers are closed, for limits that are not strict, so that requests may ask. Read without the lock.
    may_ask: AtomicBool,
    /// Likewise for strict limits.
    may_ask_strictly: AtomicBool,
    /// How often that was lost.
    times_lost: AtomicU64,
    /// Likewise for strict limits.
    times_lost_strictly: AtomicU64,
    /// Hits that were pending when the last flush began.
    pending_hits: AtomicU64,
}

impl Region {
    pub fn new(engine: Arc<Engine>, options: RegionOptions) -> Region {
        let state = RegionState {
            wait_queue: WaitQueue::default(),
            under_way: HashMap::new(),
            next_call: 0,
            gathering: Gathering::default(),
            checks_under_way: 0,
            telling: Replays::new(options.is_cluster),
            nodes: Nodes::new(options.nodes.clone(), options.breaker, options.seed),
            flush_at_us: 0,
            is_leaving: false,
            behind_since_us: None,
            unanswered_us: None,
            surveyed_us: 0,
            presence: Presence::default(),
            random: options.seed | 1,
        };
        let region = Region {
            engine,
            options,
            state: Mutex::new(state),
            patrol: Mutex::default(),
            live: AtomicU32::new(1),
            has_grown: AtomicBool::new(false),
            held_hits: AtomicU64::new(0),
            is_new: AtomicBool::new(true),
            joined_us: AtomicU64::new(0),
            is_stranger: AtomicBool::new(true),
            may_ask: AtomicBool::new(true),
            may_ask_strictly: AtomicBool::new(true),
            times_lost: AtomicU64::new(0),
            times_lost_strictly: AtomicU64::new(0),
            pending_hits: AtomicU64::new(0),
        };
        region.tell_requests(&region.state.lock());
        region
    }

    pub fn process(&self) -> ProcessId {
        self.options.process
    }

    pub fn store(&self) -> Store {
        self.options.store
    }

    fn ledger(&self) -> Ledger<'_> {
        self.engine.table().ledger(self.store())
    }

    /// How many processes share the store and are alive, as it last told; at least 1.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    /// Takes over how many processes are alive.
    pub fn set_live(&self, live: u32) {
        let before = self.live.swap(live.max(1), Ordering::Relaxed);
        self.ledger().set_live(live.max(1));
        if live > before {
            self.has_grown.store(true, Ordering::Relaxed);
        }
    }

    /// What requests may know of the store: whether they may ask, or have to do without because it does not answer.
    pub fn view(&self) -> StoreView<'static> {
        let asking = |may_ask: &AtomicBool| match may_ask.load(Ordering::Relaxed) {
            true => StoreAccess::Allowed,
            false => StoreAccess::Never(Cause::Outage),
        };
        let least = if self.is_stranger.load(Ordering::Relaxed) { LIVE_ASSUMED } else { 1 };
        StoreView {
            answer: None,
            live: self.live().max(least),
            is_new: self.is_new.load(Ordering::Relaxed),
            joined_ms: Some(self.joined_us.load(Ordering::Relaxed) / 1000),
            asking: asking(&self.may_ask),
            strict: asking(&self.may_ask_strictly),
        }
    }

    /// Has a request ask. It waits until `until_us` at the latest.
    pub fn ask(&self, store_request: StoreRequest, until_us: u64, now: Now) -> (WaitId, Effects) {
        let keys =
            store_request.questions.iter().map(|asked| self.origin_key(&asked.key.as_key(), asked.key.is_sensitive));
        let waiting = QueuedRequest::new(store_request.clone(), keys.collect(), until_us);
        let state = &mut *self.state.lock();
        let mut effects = Effects::default();
        let is_strict = store_request.is_strict;
        let is_given_up = self.is_given_up(state, &waiting.keys, is_strict);
        let id = state.wait_queue.enter(waiting);
        if is_given_up {
            state.wait_queue.waiting.remove(&id);
            effects.told.push((id, AskOutcome::NoAnswer));
            return (id, effects);
        }
        if state.wait_queue.start(id, now.mono_us) {
            // A strict limit is asked about one way or the other, and mostly far away.
            if is_strict || state.checks_under_way == 0 {
                effects.calls = self.check_calls(state, &[id], now);
            } else {
                let keys = state.wait_queue.waiting.get(&id).map(|waiting| waiting.keys.clone()).unwrap_or_default();
                state.gathering.add(ReadyRequest { id, keys }, now.mono_us);
            }
        }
        (id, effects)
    }

    /// Withdraws a request. What the store says about its keys is still taken over.
    pub fn cancel(&self, id: WaitId) {
        self.state.lock().wait_queue.give_up(id);
    }

    /// Ends a request's wait, because its time is up. True if it had no answer: one that was answered is charged.
    pub fn give_up(&self, id: WaitId, now: Now) -> bool {
        let state = &mut *self.state.lock();
        let Some(waiting) = state.wait_queue.waiting.get(&id) else { return false };
        for asked in &waiting.store_request.questions {
            self.ledger().unreadable(&asked.key, &asked.terms, now);
        }
        state.wait_queue.give_up(id)
    }

    /// When [`Region::poll`] has something to do, at the latest.
    pub fn next_us(&self) -> u64 {
        let state = self.state.lock();
        let next_us = [state.wait_queue.next_us(), state.gathering.until_us(), self.heals_at_us(&state)];
        next_us.into_iter().flatten().fold(state.flush_at_us, u64::min)
    }

    /// Does what is due by now: lets requests go on that waited for their time, and flushes.
    pub fn poll(&self, now: Now) -> Effects {
        if now.mono_us >= self.state.lock().flush_at_us {
            // Requests need the state: a walk takes a while.
            self.patrol_some(now);
            self.survey(now);
            self.sort_all(now);
        }
        let state = &mut *self.state.lock();
        let mut effects = Effects::default();
        for key in state.wait_queue.due(now.mono_us) {
            effects.join(self.release(state, &key, now));
        }
        if state.gathering.until_us().is_some_and(|until_us| now.mono_us >= until_us) {
            effects.join(self.go_together(state, now));
        }
        if now.mono_us >= state.flush_at_us {
            state.flush_at_us = now.mono_us + FLUSH_INTERVAL_US;
            state.wait_queue.tidy(now.mono_us);
            self.begin_flush(state, now);
        }
        effects.join(self.send_some(state, now));
        effects
    }

    /// Tells the origin what is pending, as fast as it takes it: for a clean stop.
    pub fn flush_now(&self, now: Now) -> Effects {
        self.sort_all(now);
        let state = &mut *self.state.lock();
        state.is_leaving = true;
        self.begin_flush(state, now);
        self.send_some(state, now)
    }

    /// Whether anything is pending, under way or still to be told again.
    pub fn is_behind(&self) -> bool {
        let state = self.state.lock();
        let is_healing = state.telling.healing.is_some();
        is_healing || !state.under_way.is_empty() || state.is_any_parked() || self.is_any_unsent(&state)
    }

    /// It is taken to be older than everything that counts, unless it is gone for a while: for simulations.
    pub fn was_always_there(&self) {
        self.state.lock().presence.was_always_there();
        self.joined_us.store(0, Ordering::Relaxed);
    }

    /// Hits that were pending when the last flush began.
    pub fn pending_hits(&self) -> u64 {
        self.pending_hits.load(Ordering::Relaxed)
    }

    /// Hits that are held back, because their keys are far from their limits: the origin hears of them when there are more.
    pub fn held_hits(&self) -> u64 {
        self.held_hits.load(Ordering::Relaxed)
    }

    /// Before a clean stop: nothing is held back any more. What is the largest part of its limit is told first.
    pub fn release_held(&self) {
        self.ledger().release_held();
    }

    /// How long something has been pending that the origin does not know of.
    pub fn lag_us(&self, now: Now) -> u64 {
        self.state.lock().behind_since_us.map_or(0, |since_us| now.mono_us.saturating_sub(since_us))
    }

    /// Takes the answer to a call.
    pub fn replied(&self, id: CallId, reply: &Reply, now: Now) -> Effects {
        let state = &mut *self.state.lock();
        match state.under_way.remove(&id) {
            None => Effects::default(),
            Some(PendingCall::CheckCall(check)) => {
                state.nodes.record(check.node, self.check_kind(check.is_strict), CallEnd::InTime, now.mono_us);
                state.checks_under_way -= 1;
                let mut effects = self.checked(state, &check, reply, now);
                effects.join(self.go_together(state, now));
                effects
            }
            Some(PendingCall::Replay(replay)) => self.replayed(state, replay, reply, now),
        }
    }

    /// Takes note that the time of a call is up. A check has failed then, because its requests wait no longer. A replay is
    /// still under way until [`Region::replied`] or [`Region::failed`] says what has become of it. `heard_us` is when
    /// anything last came over the call's connection, in monotonic time.
    pub fn timed_out(&self, id: CallId, heard_us: Option<u64>, now: Now) -> Effects {
        let late = CallEnd::Late { heard_us };
        let state = &mut *self.state.lock();
        match state.under_way.remove(&id) {
            None => Effects::default(),
            Some(PendingCall::CheckCall(check)) => self.check_failed(state, &check, late, now),
            Some(PendingCall::Replay(replay)) => {
                let (replay, effects) = self.replay_is_late(state, replay, late, now);
                state.under_way.insert(id, PendingCall::Replay(replay));
                effects
            }
        }
    }

    /// Takes note that a call had no answer, and will have none.
    pub fn failed(&self, id: CallId, now: Now) -> Effects {
        self.call_failed(id, CallEnd::Failed, now)
    }

    /// Takes note that a call was refused because its slot is moving to another node, which says nothing about either.
    pub fn misdirected(&self, id: CallId, now: Now) -> Effects {
        self.call_failed(id, CallEnd::InTime, now)
    }

    fn call_failed(&self, id: CallId, end: CallEnd, now: Now) -> Effects {
        let state = &mut *self.state.lock();
        match state.under_way.remove(&id) {
            None => Effects::default(),
            Some(PendingCall::CheckCall(check)) => self.check_failed(state, &check, end, now),
            Some(PendingCall::Replay(replay)) => {
                state.unanswered_us = Some(now.mono_us);
                self.unreplayed(state, replay, end, now)
            }
        }
    }

    fn check_failed(&self, state: &mut RegionState, check: &CheckCall, end: CallEnd, now: Now) -> Effects {
        state.unanswered_us = Some(now.mono_us);
        state.nodes.record(check.node, self.check_kind(check.is_strict), end, now.mono_us);
        self.tell_requests(state);
        state.checks_under_way -= 1;
        let mut effects = self.unchecked(state, check, now);
        effects.join(self.go_together(state, now));
        effects
    }

    fn origin_key(&self, key: &Key<'_>, is_sensitive: bool) -> OriginKey {
        let mut origin = self.options.key_names.origin_key(key, is_sensitive);
        if self.store() == Store::Owner {
            // A key that becomes strict starts at the owner with what each process has accepted. If the owner is the
            // same server as an origin, that must not come on top of what is there from before, so it has another name.
            origin.0[0] ^= 0xff;
        }
        origin
    }

    fn call(&self, state: &mut RegionState, charges: bool, parts: Vec<CallKey>, asks: Vec<Ask>) -> Call {
        let nonce = (random(state) % 4096) as u16;
        Call { process: self.options.process, nonce, charges, parts, asks }
    }

    fn enter_call(&self, state: &mut RegionState, under_way: PendingCall) -> CallId {
        state.next_call += 1;
        let id = CallId(state.next_call);
        state.under_way.insert(id, under_way);
        id
    }
}

/// xorshift64*: which process goes first need not be unpredictable, but it has to be repeatable.
fn random(state: &mut RegionState) -> u64 {
    state.random ^= state.random >> 12;
    state.random ^= state.random << 25;
    state.random ^= state.random >> 27;
    state.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
}
