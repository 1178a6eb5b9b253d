//! Replays tell the origin what it has not heard of: message by message, the next when one is answered, as the window lets
//! them go. What is urgent goes first, then what is due, then what keys that were given up had to say, and last what the
//! origin has lost ([`healing`](crate::regional::region::healing)). What a Cluster is told is put in another order
//! ([`sorting`](crate::regional::region::sorting)).
//!
//! A message whose time is up is still under way: the breaker hears of it, but its keys are told again only when the answer
//! has come late, or when the connection is closed. So a slow origin is never sent what it still has to do.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::engine::table::SlotRef;
use crate::engine::table::cell::HeldAt;
use crate::engine::table::ledger::UnsentKey;
use crate::regional::breaker::CallEnd;
use crate::regional::call::{CallKey, OriginKey, Reply};
use crate::regional::node_map::NodeId;
use crate::regional::region::healing::Healing;
use crate::regional::region::sorting::Sorted;
use crate::regional::region::{BreakerKind, CallPurpose, Effects, OutgoingCall, PendingCall, Region, RegionState};
use crate::regional::replay::{CELLS_MAX, REPLAY_TIMEOUT_US, ReplayBatch, ToldKey};
use crate::regional::send_window::{SendWindow, WindowBounds};

/// The time between counts of the pending hits while nothing can be told, or not all.
const SURVEY_INTERVAL_US: u64 = 1_000_000;
/// Messages without an answer may still arrive for this long.
const LATE_US: u64 = 60_000_000;
/// How many urgent keys wait for room at most. The others go with the next flush.
const URGENT_MAX: usize = 4096;

/// How many keys are parked for nodes that are given up, or released, in one go: requests need the state.
const PARKED_AT_ONCE: usize = 2048;

/// A place where the store may hold something that this process has told of a key.
pub(crate) type CellField = (OriginKey, HeldAt);

/// How far a process is in telling the origin.
#[derive(Debug)]
pub(super) struct Replays {
    /// What is under way, and how much may be.
    pub(super) window: SendWindow,
    /// Keys that became urgent while there was no room.
    pub(super) urgent: VecDeque<SlotRef>,
    /// What a Cluster is to be told; `None` for a single server.
    pub(super) sorted: Option<Sorted>,
    /// Keys that waited when the last flush began, and are still to be told.
    due: usize,
    /// Likewise keys that were given up.
    farewells: usize,
    /// Hits that were pending when the last flush began, as far as they have been told.
    pub(super) pending_hits: u64,
    /// Messages under way, but for those that only heal.
    news_under_way: usize,
    /// Keys that were parked for a node, and are to go back into the queue.
    released: Vec<SlotRef>,
    /// `None`: the origin has lost nothing.
    pub(super) healing: Option<Healing>,
}

impl Replays {
    pub(super) fn new(is_cluster: bool) -> Replays {
        let bounds = if is_cluster { WindowBounds::CLUSTER } else { WindowBounds::SERVER };
        Replays {
            window: SendWindow::new(bounds),
            urgent: VecDeque::new(),
            sorted: is_cluster.then(Sorted::new),
            due: 0,
            farewells: 0,
            pending_hits: 0,
            news_under_way: 0,
            released: Vec::new(),
            healing: None,
        }
    }

    /// The last flush has told everything that there was.
    fn is_through(&self) -> bool {
        let is_going = self.sorted.as_ref().is_some_and(Sorted::is_going);
        self.due == 0 && self.farewells == 0 && self.urgent.is_empty() && self.released.is_empty() && !is_going
    }

    /// Nothing is left to be told, whatever was lost.
    pub(super) fn is_idle(&self) -> bool {
        self.is_through() && self.healing.is_none()
    }

    /// Keys that were parked may be told again.
    pub(super) fn release(&mut self, parked: Vec<SlotRef>) {
        self.released.extend(parked);
    }

    pub(super) fn is_any_released(&self) -> bool {
        !self.released.is_empty()
    }
}

/// A message that tells, while it is under way.
#[derive(Debug)]
pub(super) struct ReplayCall {
    /// Whose totals it tells, by which names.
    about: Vec<(ToldKey, OriginKey)>,
    /// Which node it is for.
    node: NodeId,
    cells: usize,
    sent_us: u64,
    /// It only tells again what the origin has lost.
    is_healing: bool,
    /// Its time is up, and it may still arrive.
    is_late: bool,
}

impl Region {
    /// The cells that this process has a field in, to take it out at a clean stop: the totals stay, and others divide
    /// the rest among fewer. Empty if a message may still be under way that would then count anew.
    pub fn fields(&self, now: Now) -> Vec<CellField> {
        let is_late = |since_us: u64| now.mono_us < since_us + LATE_US;
        if self.state.lock().unanswered_us.is_some_and(is_late) {
            return Vec::new();
        }
        let mut fields = Vec::new();
        self.ledger().each_field(|key, at| {
            fields.push((self.origin_key(&key.as_key(), key.is_sensitive), at));
        });
        fields
    }

    /// Begins a flush: everything that waits by now is to be told. In a Cluster, what its turn has come for.
    pub(super) fn begin_flush(&self, state: &mut RegionState, now: Now) {
        if !self.is_any_unsent(state) && state.telling.news_under_way == 0 && !state.is_any_parked() {
            state.behind_since_us = None;
        } else {
            state.behind_since_us.get_or_insert(now.mono_us);
        }
        let (ledger, telling) = (self.ledger(), &mut state.telling);
        telling.pending_hits = 0;
        match &mut telling.sorted {
            Some(sorted) => sorted.begin_flush(state.is_leaving),
            None => (telling.due, telling.farewells) = (ledger.unsent_keys(), ledger.farewells()),
        }
    }

    /// Whether anything waits to be told.
    pub(super) fn is_any_unsent(&self, state: &RegionState) -> bool {
        state.telling.sorted.as_ref().is_some_and(Sorted::is_any_unsent) || self.ledger().is_any_unsent()
    }

    /// Since when something has been waiting to be told, once a flush is through: in a Cluster most waits for its turn.
    fn waits_since_us(&self, state: &RegionState, now: Now) -> Option<u64> {
        let sorted_us = state.telling.sorted.as_ref().and_then(Sorted::waits_since_us);
        sorted_us.or_else(|| self.ledger().is_any_unsent().then_some(now.mono_us))
    }

    /// Sends what there is room for.
    pub(super) fn send_some(&self, state: &mut RegionState, now: Now) -> Effects {
        let mut effects = Effects::default();
        if state.nodes.are_all_given_up(BreakerKind::Replays) {
            // Urgent keys wait with the rest, and go with the next flush.
            self.ledger().forget_urgent();
            state.telling.urgent.clear();
            return effects;
        }
        self.put_back(state);
        self.sort_some(state, now);
        let parked_before = state.nodes.parked();
        while state.nodes.parked() < parked_before + PARKED_AT_ONCE {
            let room = state.telling.window.room();
            if room == 0 || !self.send_next(state, room, &mut effects, now) {
                break;
            }
        }
        // Who waits for room here wakes nobody.
        while let Some(at) = self.ledger().next_urgent() {
            if state.telling.urgent.len() < URGENT_MAX {
                state.telling.urgent.push_back(at);
            }
        }
        if state.telling.is_through() {
            self.pending_hits.store(state.telling.pending_hits, Ordering::Relaxed);
        }
        effects
    }

    /// Puts keys that were parked into the queue again: they go with this flush.
    fn put_back(&self, state: &mut RegionState) {
        let telling = &mut state.telling;
        for _ in 0..PARKED_AT_ONCE {
            let Some(at) = telling.released.pop() else { break };
            self.ledger().unacknowledged(at);
            if telling.sorted.is_none() {
                telling.due += 1;
            }
        }
    }

    /// Sends one message, or two if the last key is too much for one. False if there is nothing to say.
    fn send_next(&self, state: &mut RegionState, room: usize, effects: &mut Effects, now: Now) -> bool {
        let cells = room.min(CELLS_MAX);
        let (mut batch, mut is_healing) = (self.news(state, cells, now), false);
        if batch.is_empty() {
            batch = self.farewells(state, cells);
        }
        if batch.is_empty() {
            (batch, is_healing) = (self.lost(state, cells, now), true);
        }
        let is_any = !batch.is_empty();
        for message in batch.into_messages() {
            let node = message.parts.first().map_or(NodeId::NOBODY, |part| self.node_of(state, &part.key));
            if state.nodes.is_given_up(node, BreakerKind::Replays) {
                self.leave_for_later(state, node, message);
            } else {
                effects.calls.push(self.replay(state, node, message, is_healing, now));
            }
        }
        is_any
    }

    /// Keeps what can't be told to a node now.
    fn leave_for_later(&self, state: &mut RegionState, node: NodeId, message: ReplayBatch) {
        let mut here = Vec::with_capacity(message.keys.len());
        for key in message.keys {
            match key {
                ToldKey::Here(at) => here.push(at),
                // Their number has a bound, and so they wait where they were.
                ToldKey::Gone(farewell) => self.ledger().put_farewell_back(*farewell),
            }
        }
        state.nodes.park(node, here.into_iter());
    }

    /// What is urgent, and then what is due.
    fn news(&self, state: &mut RegionState, cells: usize, now: Now) -> ReplayBatch {
        if state.telling.sorted.is_some() {
            return self.news_of_a_tag(state, cells, now);
        }
        let (ledger, telling) = (self.ledger(), &mut state.telling);
        let mut batch = ReplayBatch::default();
        while !batch.is_full(cells) {
            let urgent = telling.urgent.pop_front().or_else(|| ledger.next_urgent());
            let due = || {
                telling.due = telling.due.checked_sub(1)?;
                let at = ledger.next_unsent();
                if at.is_none() {
                    telling.due = 0;
                }
                at
            };
            let Some(at) = urgent.or_else(due) else { break };
            if let Some(unsent) = ledger.tell(at, now) {
                let pending = self.push(&mut batch, unsent);
                telling.pending_hits += pending;
            }
        }
        batch
    }

    /// Adds a key to a batch. Says how many hits of it are pending.
    pub(super) fn push(&self, batch: &mut ReplayBatch, unsent: UnsentKey) -> u64 {
        let origin = self.origin_key(&unsent.key.as_key(), unsent.key.is_sensitive);
        Self::push_as(batch, origin, unsent)
    }

    /// Likewise a key whose name is known.
    pub(super) fn push_as(batch: &mut ReplayBatch, origin: OriginKey, unsent: UnsentKey) -> u64 {
        let UnsentKey { at, terms, update, .. } = unsent;
        let part = CallKey::new(origin, &terms, update);
        let pending = part.cells.iter().map(|cell| cell.own.saturating_sub(cell.acked)).sum();
        batch.push(ToldKey::Here(at), part);
        pending
    }

    /// What keys that were given up still have to tell.
    fn farewells(&self, state: &mut RegionState, cells: usize) -> ReplayBatch {
        let (ledger, telling) = (self.ledger(), &mut state.telling);
        let (mut batch, mut told) = (ReplayBatch::default(), HashSet::new());
        while telling.farewells > 0 && !batch.is_full(cells) {
            let Some(farewell) = ledger.next_farewell() else {
                telling.farewells = 0;
                break;
            };
            let origin = self.origin_key(&farewell.key.as_key(), farewell.key.is_sensitive);
            // A key that was given up twice: no call names a key twice.
            if !told.insert(origin) {
                ledger.put_farewell_back(farewell);
                break;
            }
            telling.farewells -= 1;
            telling.pending_hits += farewell.pending;
            let part = CallKey::new(origin, &farewell.terms, farewell.update.clone());
            batch.push(ToldKey::Gone(Box::new(farewell)), part);
        }
        batch
    }

    fn replay(
        &self,
        state: &mut RegionState,
        node: NodeId,
        message: ReplayBatch,
        is_healing: bool,
        now: Now,
    ) -> OutgoingCall {
        let ReplayBatch { keys, parts, cells } = message;
        let about = keys.into_iter().zip(parts.iter().map(|part| part.key)).collect();
        let call = self.call(state, false, parts, Vec::new());
        state.telling.window.sent(cells);
        state.telling.news_under_way += usize::from(!is_healing);
        let replay = ReplayCall { about, node, cells, sent_us: now.mono_us, is_healing, is_late: false };
        let id = self.enter_call(state, PendingCall::Replay(replay));
        // A store that may take long over a check may take as long over a replay.
        let within_us = REPLAY_TIMEOUT_US.max(self.options.deadline_us);
        OutgoingCall { id, operation: CallPurpose::Replay, node, call, is_strict: false, within_us }
    }

    /// Counts what is pending, once a second, while nothing can be told or more than the last flush could tell.
    pub(super) fn survey(&self, now: Now) {
        let sorted = {
            let state = &mut *self.state.lock();
            let is_due = now.mono_us >= state.surveyed_us + SURVEY_INTERVAL_US;
            let sorted = state.telling.sorted.as_ref().filter(|sorted| sorted.is_any_unsent());
            let is_told = state.telling.is_through() && sorted.is_none() && !state.is_any_parked();
            if !is_due || !state.nodes.are_all_given_up(BreakerKind::Replays) && is_told {
                return;
            }
            state.surveyed_us = now.mono_us;
            sorted.map(Sorted::keys_here).unwrap_or_default()
        };
        // Requests need the state: a walk through many keys takes a while.
        let ledger = self.ledger();
        let sorted_hits: u64 = sorted.into_iter().filter_map(|at| ledger.unsent_hits_at(at)).sum();
        self.pending_hits.store(ledger.unsent_hits().saturating_add(sorted_hits), Ordering::Relaxed);
    }

    /// Takes the answer to a replay. More may go now.
    pub(super) fn replayed(&self, state: &mut RegionState, replay: ReplayCall, reply: &Reply, now: Now) -> Effects {
        let ReplayCall { about, node, cells, sent_us, is_healing, is_late } = replay;
        state.telling.news_under_way -= usize::from(!is_healing);
        if is_late {
            // It counted as a failure when its time was up.
            state.nodes.answered(node, BreakerKind::Replays);
            self.leave_window(state, cells, true);
        } else {
            state.nodes.record(node, BreakerKind::Replays, CallEnd::InTime, now.mono_us);
            state.telling.window.answered(cells, now.mono_us.saturating_sub(sent_us), now.mono_us);
        }
        for ((key, origin), cells) in about.iter().zip(&reply.parts) {
            if let ToldKey::Here(at) = key {
                self.ledger().acknowledged(*at, cells, state.wait_queue.is_busy(origin), now);
            }
        }
        let effects = self.send_some(state, now);
        if state.telling.news_under_way == 0 && state.telling.is_through() && !state.is_any_parked() {
            state.behind_since_us = self.waits_since_us(state, now);
        }
        effects
    }

    /// The time of a replay is up. It may still arrive, so its keys stay under way.
    pub(super) fn replay_is_late(
        &self,
        state: &mut RegionState,
        mut replay: ReplayCall,
        late: CallEnd,
        now: Now,
    ) -> (ReplayCall, Effects) {
        state.nodes.record(replay.node, BreakerKind::Replays, late, now.mono_us);
        state.unanswered_us = Some(now.mono_us);
        replay.is_late = true;
        state.telling.window.is_late();
        if self.options.is_cluster {
            // The other nodes may be well.
            state.telling.window.gone(replay.cells);
        }
        let effects = self.send_some(state, now);
        (replay, effects)
    }

    /// A replay had no answer, and will have none: all of it is told again.
    pub(super) fn unreplayed(&self, state: &mut RegionState, replay: ReplayCall, end: CallEnd, now: Now) -> Effects {
        let ReplayCall { about, node, cells, is_healing, is_late, .. } = replay;
        state.telling.news_under_way -= usize::from(!is_healing);
        if !is_late {
            state.nodes.record(node, BreakerKind::Replays, end, now.mono_us);
        }
        self.leave_window(state, cells, is_late);
        for (key, _) in about {
            match key {
                ToldKey::Here(at) => self.ledger().unacknowledged(at),
                ToldKey::Gone(farewell) => self.ledger().put_farewell_back(*farewell),
            }
        }
        self.send_some(state, now)
    }

    /// A message is not under way any more. In a Cluster a late one has left the window already.
    fn leave_window(&self, state: &mut RegionState, cells: usize, is_late: bool) {
        if !(is_late && self.options.is_cluster) {
            state.telling.window.gone(cells);
        }
    }
}
