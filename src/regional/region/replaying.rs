//! Replays tell the origin what it has not heard of, and again what it may have lost.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::engine::table::SlotRef;
use crate::engine::table::cell::HeldAt;
use crate::engine::table::ledger::UnsentKey;
use crate::regional::call::{CallKey, OriginKey, Reply};
use crate::regional::redis::cluster_slot::cluster_slot;
use crate::regional::region::{CallPurpose, Effects, OutgoingCall, PendingCall, Region, RegionState};
use crate::regional::replay::{HEALED_PER_FLUSH, MESSAGES_MAX, REPLAY_TIMEOUT_US, ReplayBatch};

/// The time between counts of the pending hits while nothing can be told.
const SURVEY_INTERVAL_US: u64 = 1_000_000;
/// Messages without an answer may still arrive for this long.
const LATE_US: u64 = 60_000_000;

/// A place where the store may hold something that this process has told of a key.
pub(crate) type CellField = (OriginKey, HeldAt);

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

    /// Marks some keys to be told again after the origin has lost its data.
    pub(super) fn heal_some(&self, state: &mut RegionState) {
        if let Some(shard) = state.heal_next {
            state.heal_next = self.ledger().resend_some(shard, HEALED_PER_FLUSH);
        }
    }

    /// Sends what is pending: all of it, or only what is urgent.
    pub(super) fn flush(&self, state: &mut RegionState, is_all: bool, now: Now) -> Effects {
        let ledger = self.ledger();
        if is_all {
            // Done before the look at what is unsent. A request queues its key there first, so an urgent one that is
            // forgotten here goes with this flush.
            ledger.forget_urgent();
        }
        let is_idle = if is_all { !ledger.is_any_unsent() } else { !ledger.is_any_urgent() };
        if is_idle && state.replays_under_way == 0 {
            state.behind_since_us = None;
            self.pending_hits.store(0, Ordering::Relaxed);
            return Effects::default();
        }
        state.behind_since_us.get_or_insert(now.mono_us);
        if state.replays.is_open() || state.replays_under_way >= MESSAGES_MAX {
            // Urgent keys wait with the rest, and go with the next flush.
            ledger.forget_urgent();
            if is_all {
                self.survey(state, now);
            }
            return Effects::default();
        }
        let mut effects = Effects::default();
        let (mut batch, mut farewells) = (ReplayBatch::default(), ReplayBatch::default());
        let mut pending_hits = 0;
        let mut unsent = ledger.unsent(!is_all, now);
        let messages = MESSAGES_MAX - state.replays_under_way;
        while !batch.is_full(messages)
            && let Some(UnsentKey { at, key, terms, update }) = unsent.next()
        {
            let origin = self.origin_key(&key.as_key(), key.is_sensitive);
            let part = CallKey::new(origin, &terms, update);
            pending_hits += part.cells.iter().map(|cell| cell.own.saturating_sub(cell.acked)).sum::<u64>();
            batch.push(at, part);
        }
        let mut told = HashSet::new();
        while is_all
            && !farewells.is_full(messages)
            && let Some(farewell) = ledger.next_farewell()
        {
            let origin = self.origin_key(&farewell.key.as_key(), farewell.key.is_sensitive);
            // A key that was given up twice: no call names a key twice.
            if !told.insert(origin) {
                ledger.put_farewell_back(farewell);
                break;
            }
            pending_hits += farewell.pending;
            farewells.push(farewell.clone(), CallKey::new(origin, &farewell.terms, farewell.update));
        }
        if is_all {
            self.pending_hits.store(pending_hits, Ordering::Relaxed);
        }
        let slot_of = |part: &CallKey| cluster_slot(&part.key);
        let slot_of: Option<fn(&CallKey) -> u16> = self.options.is_cluster.then_some(slot_of);
        for ReplayBatch { keys: slots, parts, .. } in batch.into_messages(slot_of) {
            let slots = slots.into_iter().zip(parts.iter().map(|part| part.key)).collect();
            effects.calls.push(self.replay(state, parts, PendingCall::Replay { slots }));
        }
        for ReplayBatch { keys: farewells, parts, .. } in farewells.into_messages(slot_of) {
            effects.calls.push(self.replay(state, parts, PendingCall::Farewells { farewells }));
        }
        effects
    }

    fn replay(&self, state: &mut RegionState, parts: Vec<CallKey>, under_way: PendingCall) -> OutgoingCall {
        let call = self.call(state, false, parts, Vec::new());
        state.replays_under_way += 1;
        let id = self.enter_call(state, under_way);
        // A store that may take long over a check may take as long over a replay.
        let within_us = REPLAY_TIMEOUT_US.max(self.options.deadline_us);
        OutgoingCall { id, operation: CallPurpose::Replay, call, is_strict: false, within_us }
    }

    /// Counts what is pending once a second, while nothing can be told.
    fn survey(&self, state: &mut RegionState, now: Now) {
        if now.mono_us < state.surveyed_us + SURVEY_INTERVAL_US {
            return;
        }
        state.surveyed_us = now.mono_us;
        self.pending_hits.store(self.ledger().unsent_hits(), Ordering::Relaxed);
    }

    pub(super) fn replayed(&self, state: &mut RegionState, slots: &[(SlotRef, OriginKey)], reply: &Reply, now: Now) {
        for ((at, key), cells) in slots.iter().zip(&reply.parts) {
            self.ledger().acknowledged(*at, cells, state.wait_queue.is_busy(key), now);
        }
        if state.replays_under_way == 0 {
            state.behind_since_us = self.ledger().is_any_unsent().then_some(now.mono_us);
        }
    }
}
