//! Replays: what the origin has not heard of is told, what it may have lost is told again.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::clock::Now;
use crate::engine::decide::Why;
use crate::engine::key::OwnedKey;
use crate::engine::table::{Shard, SlotRef};
use crate::engine::{QuestionKind, StoreQuestion, StoreRequest};
use crate::regional::call::{OriginKey, Part, Reply};
use crate::regional::redis::cluster_slot::cluster_slot;
use crate::regional::region::part::{origin_cells, part};
use crate::regional::region::{Effects, Operation, Outgoing, Region, State, UnderWay};
use crate::regional::replay::{self, HEALED_PER_FLUSH, MESSAGES_MAX, REPLAY_TIMEOUT_US, ReplayBatch};
use crate::regional::wait_queue::Waiting;
use crate::rules::policy::Class;

/// How often pending hits are counted while nothing can be told.
const SURVEY_INTERVAL_US: u64 = 1_000_000;
/// Messages that nobody answered may still arrive for this long.
const LATE_US: u64 = 60_000_000;

/// A cell that this process has a field in, by key and sequence; a bucket has no sequence.
pub type Field = (OriginKey, Option<u64>);

/// What became of a slot in the queue.
enum Taken {
    Nothing,
    Part(Box<Part>),
    /// It has to be read before its totals mean anything.
    Unseated(Box<StoreQuestion>),
}

impl Region {
    /// The cells that this process has a field in, to take it out at a clean stop: the totals stay, and others divide the
    /// rest among fewer. None if a message may still be under way that would then count anew.
    pub fn fields(&self, now: Now) -> Vec<Field> {
        let is_late = |since_us: u64| now.mono_us < since_us + LATE_US;
        if self.state.lock().unanswered_us.is_some_and(is_late) {
            return Vec::new();
        }
        let mut fields = Vec::new();
        for number in 0..self.table().shards() {
            let mut shard = self.table().lock(number);
            for slot in shard.taken() {
                let (slot, Some(shared)) = shard.both(slot) else { continue };
                if shared.holders() == 0 || shared.store != self.store() {
                    continue;
                }
                let origin = self.origin_key(&slot.key(), shared.is_sensitive);
                let terms = slot.terms();
                shared.follow(&slot.counter);
                let is_bucket = terms.algorithm.is_bucket();
                let cells = shared.judged_totals(&slot.counter, &terms);
                fields.extend(cells.iter().map(|cell| (origin, (!is_bucket).then_some(cell.sequence))));
            }
        }
        fields
    }

    /// Marks some keys to be told again after the origin has lost its data.
    pub(super) fn heal_some(&self, state: &mut State) {
        let mut marked = 0;
        while let Some(number) = state.heal_next {
            if marked >= HEALED_PER_FLUSH {
                return;
            }
            let mut shard = self.table().lock(number);
            for slot in shard.taken() {
                let (_, Some(shared)) = shard.both(slot) else { continue };
                if shared.holders() > 0 && shared.store == self.store() {
                    shared.is_wanted = true;
                    self.table().enqueue(number, slot, shared, false);
                    marked += 1;
                }
            }
            state.heal_next = Some(number + 1).filter(|next| *next < self.table().shards());
        }
    }

    /// Sends what is pending: all of it, or what is urgent.
    pub(super) fn flush(&self, state: &mut State, is_all: bool, now: Now) -> Effects {
        let grown = self.table().grown(self.store());
        let queue = if is_all { &grown.all } else { &grown.urgent };
        if is_all {
            while grown.urgent.pop().is_some() {}
        }
        if queue.is_empty() && state.replays_under_way == 0 {
            state.behind_since_us = None;
            self.pending_hits.store(0, Ordering::Relaxed);
            return Effects::default();
        }
        state.behind_since_us.get_or_insert(now.mono_us);
        if state.replays.is_open() || state.replays_under_way >= MESSAGES_MAX {
            // What is urgent stands in the other queue too, and goes with the next flush.
            while grown.urgent.pop().is_some() {}
            if is_all {
                self.survey(state, now);
            }
            return Effects::default();
        }
        let mut effects = Effects::default();
        let mut batch = ReplayBatch::default();
        let mut kept = Vec::new();
        let mut pending_hits = 0;
        let mut reads = 0;
        // What comes in meanwhile is for the next flush.
        for _ in 0..queue.len() {
            let messages = MESSAGES_MAX - state.replays_under_way;
            if batch.parts.len() >= replay::PARTS_MAX * messages || batch.cells >= replay::CELLS_MAX * messages {
                break;
            }
            let Some(at) = queue.pop() else { break };
            let mut shard = self.table().lock(at.shard);
            match self.take(&mut shard, at, now) {
                Taken::Nothing => {}
                Taken::Part(part) => {
                    pending_hits += part.cells.iter().map(|cell| cell.own.saturating_sub(cell.acked)).sum::<u64>();
                    batch.push(at, *part);
                }
                Taken::Unseated(asked) => {
                    drop(shard);
                    if state.checks.is_open() || reads >= replay::PARTS_MAX {
                        kept.push(at);
                    } else {
                        reads += 1;
                        effects.calls.extend(self.read_behind(state, *asked, now));
                    }
                }
            }
        }
        for at in kept {
            self.enqueue(at);
        }
        if is_all {
            self.pending_hits.store(pending_hits, Ordering::Relaxed);
        }
        let slot_of = |part: &Part| cluster_slot(&part.key);
        for ReplayBatch { slots, parts, .. } in batch.into_messages(self.options.is_cluster.then_some(slot_of)) {
            let sequences = parts.iter().map(|part| part.cells.iter().map(|cell| cell.sequence).collect()).collect();
            let call = self.call(state, false, parts, Vec::new());
            state.replays_under_way += 1;
            let id = self.enter_call(state, UnderWay::Replay { slots, sequences });
            // A store that may take long to decide may take as long to hear.
            let within_us = REPLAY_TIMEOUT_US.max(self.options.deadline_us);
            effects.calls.push(Outgoing { id, operation: Operation::Replay, call, is_strict: false, within_us });
        }
        effects
    }

    /// Counts what is pending while nothing can be told, once a second.
    fn survey(&self, state: &mut State, now: Now) {
        if now.mono_us < state.surveyed_us + SURVEY_INTERVAL_US {
            return;
        }
        state.surveyed_us = now.mono_us;
        let queue = &self.table().grown(self.store()).all;
        let mut pending_hits: u64 = 0;
        for _ in 0..queue.len() {
            let Some(at) = queue.pop() else { break };
            // A key that is gone leaves nothing to tell.
            let Some(pending) =
                self.table().lock(at.shard).at(at).and_then(|(_, shared)| shared.is_queued.then(|| shared.pending()))
            else {
                continue;
            };
            pending_hits = pending_hits.saturating_add(pending);
            queue.push(at);
        }
        self.pending_hits.store(pending_hits, Ordering::Relaxed);
    }

    /// What to tell about a slot that stands in the queue.
    fn take(&self, shard: &mut Shard, at: SlotRef, now: Now) -> Taken {
        let Some((slot, shared)) = shard.at(at) else { return Taken::Nothing };
        if !shared.is_queued {
            return Taken::Nothing;
        }
        shared.is_queued = false;
        let terms = slot.terms();
        let look = slot.counter.look(&terms, now.wall_ms);
        shared.follow(&slot.counter);
        if shared.is_in_flight || !(shared.is_dirty() || shared.is_wanted) {
            return Taken::Nothing;
        }
        let key = slot.key();
        if !shared.is_seated() {
            let asked = StoreQuestion {
                check: 0,
                key: OwnedKey::new(&key, shared.is_sensitive, slot.is_global),
                terms,
                hits: 0,
                counted_after: 0,
                kind: QuestionKind::Read,
                is_cut_off: false,
                is_strict: false,
                why: Why::Cold,
            };
            return Taken::Unseated(Box::new(asked));
        }
        let is_wanted = std::mem::take(&mut shared.is_wanted);
        shared.is_in_flight = true;
        let totals = shared.pending_totals(&slot.counter, &terms, is_wanted);
        let origin = self.origin_key(&key, shared.is_sensitive);
        Taken::Part(Box::new(part(origin, &terms, &totals, look.now_ms, now.wall_ms)))
    }

    /// Reads a key that this process has hits for but does not know its field of. Nobody waits for it.
    fn read_behind(&self, state: &mut State, asked: StoreQuestion, now: Now) -> Vec<Outgoing> {
        let key = self.origin_key(&asked.key.as_key(), asked.key.is_sensitive);
        let inquiry = StoreRequest {
            store: self.store(),
            charges: true,
            is_strict: false,
            class: Class::Comfort,
            checks: 0,
            questions: SmallVec::from_iter([asked]),
            has_free_quota: false,
            given_back: None,
        };
        let waiting = Waiting::new(inquiry, SmallVec::from_iter([key]), now.mono_us + REPLAY_TIMEOUT_US, true);
        let id = state.asks.enter(waiting);
        if state.asks.start(id, now.mono_us) { self.check_calls(state, &[id], now) } else { Vec::new() }
    }

    pub(super) fn replayed(
        &self,
        state: &mut State,
        slots: &[SlotRef],
        sequences: &[SmallVec<[u64; 2]>],
        reply: &Reply,
        now: Now,
    ) {
        for ((at, sequences), heard) in slots.iter().zip(sequences).zip(&reply.parts) {
            let mut shard = self.table().lock(at.shard);
            let Some((slot, shared)) = shard.at(*at) else { continue };
            shared.is_in_flight = false;
            let terms = slot.terms();
            let cells = origin_cells(sequences, heard);
            let is_dirty = shared.absorb(&mut slot.counter, &terms, &cells, 0, now);
            self.table().weigh(slot, Some(shared));
            if is_dirty || shared.is_wanted {
                self.table().enqueue(at.shard, at.slot, shared, false);
            }
            self.table().note(at.shard, at.slot, slot, shared);
        }
        if state.replays_under_way == 0 {
            state.behind_since_us = (!self.table().grown(self.store()).all.is_empty()).then_some(now.mono_us);
        }
    }
}
