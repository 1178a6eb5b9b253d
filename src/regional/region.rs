//! A process's side of the region: everything between the engine and the origin, as one state machine.
//!
//! It is told what happens (a request has to ask, a call came back, time has passed) and says what to do (make these
//! calls, tell these requests). It never waits and never reads a clock; the driver and the simulator do that.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::engine::counter::Counter;
use crate::engine::decide::Asking;
use crate::engine::key::{Key, OwnedKey};
use crate::engine::share::{Moment, OriginCell, Shared, Totals};
use crate::engine::table::{Entry, Shard, Slot, SlotRef, Table};
use crate::engine::{Asked, Engine, Inquiry};
use crate::regional::asks::{AskId, AskOutcome, Asks, Waiting};
use crate::regional::breaker::Breaker;
use crate::regional::call::{Ask, Call, Heard, Measure, Need, OriginKey, Part, ProcessId, Reply, Told};
use crate::regional::keying::Keying;
use crate::regional::replay::{self, Batch, FLUSH_INTERVAL_US, HEALED_PER_FLUSH, MESSAGES_MAX, REPLAY_TIMEOUT_US};

use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// The two clocks: windows go by the wall, everything else by the monotonic one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub wall_ms: u64,
    pub mono_us: u64,
}

impl Now {
    pub fn mono_ms(&self) -> u64 {
        self.mono_us / 1000
    }

    fn moment(&self) -> Moment {
        Moment { wall_ms: self.wall_ms, mono_ms: self.mono_ms() }
    }
}

/// Names a call until it has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// What a call to the origin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Check,
    Replay,
    Beat,
}

impl Operation {
    pub const ALL: [Operation; 3] = [Operation::Check, Operation::Replay, Operation::Beat];

    pub fn word(self) -> &'static str {
        match self {
            Operation::Check => "check",
            Operation::Replay => "replay",
            Operation::Beat => "beat",
        }
    }
}

/// A call to make.
#[derive(Clone, Debug)]
pub struct Outgoing {
    pub id: CallId,
    pub operation: Operation,
    pub call: Call,
    /// After this it has failed.
    pub within_us: u64,
}

/// What to do now.
#[derive(Debug, Default)]
pub struct Effects {
    pub calls: Vec<Outgoing>,
    pub told: Vec<(AskId, AskOutcome)>,
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

/// A key of a check that is under way.
#[derive(Debug)]
struct CheckedKey {
    origin: OriginKey,
    key: OwnedKey,
    terms: Terms,
    sequences: SmallVec<[u64; 2]>,
}

/// A request of a check that is under way, and which of its questions are the needs of its ask.
#[derive(Debug)]
struct CheckedAsk {
    id: AskId,
    questions: SmallVec<[usize; 2]>,
}

#[derive(Debug)]
struct Check {
    keys: Vec<CheckedKey>,
    asks: Vec<CheckedAsk>,
    call: Call,
    sent_us: u64,
}

#[derive(Debug)]
enum UnderWay {
    Check(Check),
    Replay { slots: Vec<SlotRef>, sequences: Vec<SmallVec<[u64; 2]>> },
}

#[derive(Debug)]
struct State {
    asks: Asks,
    under_way: HashMap<CallId, UnderWay>,
    next_call: u64,
    replays_under_way: usize,
    checks: Breaker,
    replays: Breaker,
    flush_at_us: u64,
    /// The next shard whose keys are to be told again, because the origin has lost its data.
    heal_next: Option<u32>,
    /// Since when something has been pending that the origin has not answered for.
    behind_since_us: Option<u64>,
    /// When a call last came back without an answer.
    unanswered_us: Option<u64>,
    random: u64,
}

/// How a process takes part in its region.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    pub process: ProcessId,
    pub keying: Keying,
    /// Keys of one call have to be in one slot of the Cluster.
    pub is_cluster: bool,
    /// How long requests wait for the origin at most.
    pub deadline_us: u64,
    /// Of choices that should differ between processes.
    pub seed: u64,
}

/// A process's side of the region.
#[derive(Debug)]
pub struct Region {
    engine: Arc<Engine>,
    options: RegionOptions,
    state: Mutex<State>,
    live: AtomicU32,
    /// What requests need to know of the breaker, without the lock.
    may_ask: AtomicBool,
    /// Hits that were pending when the last flush began.
    pending_hits: AtomicU64,
}

/// Between two checks of a key, for each process that holds it: a hot key costs the origin the same for any number.
const SPACING_US: u64 = 100;
/// How long a cell outlives its window at the origin: clocks differ.
const GRACE_MS_MAX: u64 = 60_000;
/// Messages that nobody answered may still arrive for this long.
const LATE_US: u64 = 60_000_000;

impl Region {
    pub fn new(engine: Arc<Engine>, options: RegionOptions) -> Region {
        let state = State {
            asks: Asks::default(),
            under_way: HashMap::new(),
            next_call: 0,
            replays_under_way: 0,
            checks: Breaker::default(),
            replays: Breaker::default(),
            flush_at_us: 0,
            heal_next: None,
            behind_since_us: None,
            unanswered_us: None,
            random: options.seed | 1,
        };
        Region {
            engine,
            options,
            state: Mutex::new(state),
            live: AtomicU32::new(1),
            may_ask: AtomicBool::new(true),
            pending_hits: AtomicU64::new(0),
        }
    }

    pub fn process(&self) -> ProcessId {
        self.options.process
    }

    fn table(&self) -> &Table {
        self.engine.table()
    }

    /// Processes of the region that are alive, as the origin last told.
    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Relaxed)
    }

    pub fn set_live(&self, live: u32) {
        self.live.store(live.max(1), Ordering::Relaxed);
    }

    /// Whether requests may ask, or decide from memory because the origin does not answer.
    pub fn asking(&self) -> Asking<'static> {
        if self.may_ask.load(Ordering::Relaxed) { Asking::Allowed } else { Asking::Never }
    }

    /// A request has to ask. It waits until `until_us` at the latest.
    pub fn ask(&self, inquiry: Inquiry, until_us: u64, now: Now) -> (AskId, Effects) {
        let keys = inquiry.questions.iter().map(|asked| self.origin_key(&asked.key.as_key(), asked.key.is_sensitive));
        let waiting = Waiting::new(inquiry.clone(), keys.collect(), until_us, false);
        let state = &mut *self.state.lock();
        let id = state.asks.enter(waiting);
        let mut effects = Effects::default();
        if state.asks.start(id, now.mono_us) {
            effects.calls = self.check_calls(state, &[id], now);
        }
        (id, effects)
    }

    /// Nobody waits for a request any more. True if it had no answer: one that was answered is charged.
    pub fn give_up(&self, id: AskId, now: Now) -> bool {
        let state = &mut *self.state.lock();
        let keys: Vec<OwnedKey> = match state.asks.waiting.get(&id) {
            Some(waiting) => waiting.inquiry.questions.iter().map(|asked| asked.key.clone()).collect(),
            None => return false,
        };
        let terms: Vec<Terms> = state
            .asks
            .waiting
            .get(&id)
            .iter()
            .flat_map(|waiting| &waiting.inquiry.questions)
            .map(|asked| asked.terms)
            .collect();
        for (key, terms) in keys.iter().zip(&terms) {
            self.with_slot(key, terms, now, |_, shared| shared.unreadable(now.mono_ms()));
        }
        state.asks.give_up(id)
    }

    /// When [`Region::poll`] has something to do, at the latest.
    pub fn next_us(&self) -> u64 {
        let state = self.state.lock();
        state.asks.next_us().map_or(state.flush_at_us, |next_us| next_us.min(state.flush_at_us))
    }

    /// Time has passed: what waited for it goes on.
    pub fn poll(&self, now: Now) -> Effects {
        let state = &mut *self.state.lock();
        let mut effects = Effects::default();
        for key in state.asks.due(now.mono_us) {
            effects.join(self.release(state, &key, now));
        }
        if now.mono_us >= state.flush_at_us {
            state.flush_at_us = now.mono_us + FLUSH_INTERVAL_US;
            state.asks.tidy(now.mono_us);
            self.heal_some(state);
            effects.join(self.flush(state, true, now));
        } else if self.table().is_urgent() {
            effects.join(self.flush(state, false, now));
        }
        effects
    }

    /// Tells the origin everything that is pending, now.
    pub fn flush_now(&self, now: Now) -> Effects {
        let state = &mut *self.state.lock();
        self.flush(state, true, now)
    }

    /// Whether anything is pending or under way.
    pub fn is_behind(&self) -> bool {
        let state = self.state.lock();
        state.replays_under_way > 0 || !self.table().grown().all.is_empty() || !state.under_way.is_empty()
    }

    /// Hits that were pending when the last flush began.
    pub fn pending_hits(&self) -> u64 {
        self.pending_hits.load(Ordering::Relaxed)
    }

    /// How long something has been pending that the origin does not know of.
    pub fn lag_us(&self, now: Now) -> u64 {
        self.state.lock().behind_since_us.map_or(0, |since_us| now.mono_us.saturating_sub(since_us))
    }

    /// Whether the breakers of checks and replays are open, and how often they have opened.
    pub fn breakers(&self) -> [(bool, u64); 2] {
        let state = self.state.lock();
        [&state.checks, &state.replays].map(|breaker| (breaker.is_open(), breaker.opened))
    }

    /// Whether a probe is due. Whoever is told so makes one, and says how it went.
    pub fn wants_probe(&self, now: Now) -> bool {
        let state = &mut *self.state.lock();
        // One probe serves both.
        let checks = state.checks.wants_probe(now.mono_us);
        let replays = state.replays.wants_probe(now.mono_us);
        checks || replays
    }

    pub fn probed(&self, is_success: bool, now: Now) {
        let state = &mut *self.state.lock();
        state.checks.probed(is_success, now.mono_us);
        state.replays.probed(is_success, now.mono_us);
        self.may_ask.store(!state.checks.is_open(), Ordering::Relaxed);
    }

    /// The origin may have lost data: every key is told again, some at a time.
    pub fn heal(&self) {
        self.state.lock().heal_next = Some(0);
    }

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
            for slot in Table::slots_of(&shard) {
                let (slot, Some(shared)) = shard.both(slot) else { continue };
                if shared.holders() == 0 {
                    continue;
                }
                let origin = self.origin_key(&slot.key(), shared.is_sensitive);
                let terms = slot.terms();
                shared.follow(&slot.counter);
                let is_bucket = terms.algorithm == Algorithm::Gcra;
                let cells = shared.judged_totals(&slot.counter, &terms);
                fields.extend(cells.iter().map(|cell| (origin, (!is_bucket).then_some(cell.sequence))));
            }
        }
        fields
    }

    /// A call came back with an answer.
    pub fn replied(&self, id: CallId, reply: &Reply, now: Now) -> Effects {
        let state = &mut *self.state.lock();
        match state.under_way.remove(&id) {
            None => Effects::default(),
            Some(UnderWay::Check(check)) => {
                state.checks.record(true, now.mono_us);
                self.checked(state, &check, reply, now)
            }
            Some(UnderWay::Replay { slots, sequences }) => {
                state.replays.record(true, now.mono_us);
                state.replays_under_way -= 1;
                self.replayed(state, &slots, &sequences, reply, now);
                Effects::default()
            }
        }
    }

    /// A call came back without an answer, or not in time.
    pub fn failed(&self, id: CallId, now: Now) -> Effects {
        let state = &mut *self.state.lock();
        state.unanswered_us = Some(now.mono_us);
        match state.under_way.remove(&id) {
            None => Effects::default(),
            Some(UnderWay::Check(check)) => {
                state.checks.record(false, now.mono_us);
                self.may_ask.store(!state.checks.is_open(), Ordering::Relaxed);
                self.unchecked(state, &check, now)
            }
            Some(UnderWay::Replay { slots, .. }) => {
                state.replays.record(false, now.mono_us);
                state.replays_under_way -= 1;
                for at in slots {
                    let mut shard = self.table().lock(at.shard);
                    let Some((_, shared)) = shard.at(at) else { continue };
                    shared.is_in_flight = false;
                    shared.is_wanted = true;
                    self.table().enqueue(at.shard, at.slot, shared, false);
                }
                Effects::default()
            }
        }
    }

    fn origin_key(&self, key: &Key<'_>, is_sensitive: bool) -> OriginKey {
        self.options.keying.origin_key(key, is_sensitive)
    }

    /// Finds or makes the slot of a key.
    fn with_slot<T>(
        &self,
        key: &OwnedKey,
        terms: &Terms,
        now: Now,
        change: impl FnOnce(&mut Slot, &mut Shared) -> T,
    ) -> Option<(T, SlotRef)> {
        let table = self.table();
        let borrowed = key.as_key();
        let hash = table.hash(&borrowed);
        let number = table.shard_of(hash);
        let mut shard = table.lock(number);
        let slot = shard.find(&borrowed, hash).unwrap_or_else(|| {
            let counter = Counter::new(terms, now.wall_ms);
            let entry = Entry { key: borrowed, hash, terms: *terms, counter, is_sensitive: key.is_sensitive };
            table.insert(&mut shard, &[], entry, now.wall_ms)
        });
        let (found, shared) = shard.both(slot);
        let shared = shared?;
        let at = SlotRef { shard: number, slot, generation: shared.generation };
        Some((change(found, shared), at))
    }

    /// The calls that bring requests to the origin: one for all, or in a Cluster one for each slot.
    fn check_calls(&self, state: &mut State, ids: &[AskId], now: Now) -> Vec<Outgoing> {
        // By Cluster slot, in order; 0 for all without one. Requests over several slots are judged side by side.
        let mut groups: Vec<(u16, bool, Vec<CheckedAsk>)> = Vec::new();
        for id in ids {
            let Some(waiting) = state.asks.waiting.get_mut(id) else { continue };
            let mut slots: SmallVec<[u16; 2]> = waiting.keys.iter().map(|key| self.cluster_slot(key)).collect();
            let of_question = slots.clone();
            slots.sort_unstable();
            slots.dedup();
            waiting.calls = slots.len();
            let charges = slots.len() == 1;
            for slot in slots {
                let questions =
                    of_question.iter().enumerate().filter(|(_, other)| **other == slot).map(|(question, _)| question);
                let ask = CheckedAsk { id: *id, questions: questions.collect() };
                match groups.iter_mut().find(|(other, same, _)| *other == slot && *same && charges) {
                    Some((_, _, asks)) => asks.push(ask),
                    None => groups.push((slot, charges, vec![ask])),
                }
            }
        }
        groups.into_iter().map(|(_, charges, asks)| self.check_call(state, asks, charges, now)).collect()
    }

    fn cluster_slot(&self, key: &OriginKey) -> u16 {
        if self.options.is_cluster { crate::regional::cluster_slot::cluster_slot(key) } else { 0 }
    }

    fn check_call(&self, state: &mut State, mut asks: Vec<CheckedAsk>, charges: bool, now: Now) -> Outgoing {
        let mut keys: Vec<CheckedKey> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let mut wire_asks = Vec::new();
        let mut until_us = now.mono_us;
        for ask in &mut asks {
            let Some(waiting) = state.asks.waiting.get(&ask.id) else { continue };
            until_us = until_us.max(waiting.until_us);
            let mut needs = SmallVec::new();
            let mut judged = SmallVec::new();
            for question in &ask.questions {
                let asked = &waiting.inquiry.questions[*question];
                let origin = waiting.keys[*question];
                let part = keys.iter().position(|key| key.origin == origin).unwrap_or_else(|| {
                    let part = self.judged_part(origin, asked, now);
                    let sequences = part.cells.iter().map(|cell| cell.sequence).collect();
                    keys.push(CheckedKey { origin, key: asked.key.clone(), terms: asked.terms, sequences });
                    parts.push(part);
                    parts.len() - 1
                });
                let Some(quota) = asked.judged else { continue };
                let Terms { limit, burst, algorithm, .. } = asked.terms;
                let limit = if algorithm == Algorithm::Gcra { burst } else { limit };
                needs.push(Need { part, limit, hits: asked.hits, quota });
                judged.push(*question);
            }
            ask.questions = judged;
            wire_asks.push(Ask { needs });
        }
        let call = self.call(state, charges, parts, wire_asks, now);
        let check = Check { keys, asks, call: call.clone(), sent_us: now.mono_us };
        let id = self.enter_call(state, UnderWay::Check(check));
        let within_us = until_us.saturating_sub(now.mono_us).max(1000);
        Outgoing { id, operation: Operation::Check, call, within_us }
    }

    fn call(&self, state: &mut State, charges: bool, parts: Vec<Part>, asks: Vec<Ask>, now: Now) -> Call {
        let nonce = (random(state) % 4096) as u16;
        Call { process: self.options.process, now_ms: now.wall_ms, nonce, charges, parts, asks }
    }

    fn enter_call(&self, state: &mut State, under_way: UnderWay) -> CallId {
        state.next_call += 1;
        let id = CallId(state.next_call);
        state.under_way.insert(id, under_way);
        id
    }

    /// What a check says about a key, whether there is a slot for it or not.
    fn judged_part(&self, origin: OriginKey, asked: &Asked, now: Now) -> Part {
        let table = self.table();
        let key = asked.key.as_key();
        let hash = table.hash(&key);
        let mut shard = table.lock(table.shard_of(hash));
        match shard.find(&key, hash).map(|slot| shard.both(slot)) {
            Some((slot, Some(shared))) => {
                let look = slot.counter.look(&asked.terms, now.wall_ms);
                shared.follow(&slot.counter);
                let totals = shared.judged_totals(&slot.counter, &asked.terms);
                part(origin, &asked.terms, &totals, look.now_ms, now.wall_ms)
            }
            _ => {
                let counter = Counter::new(&asked.terms, now.wall_ms);
                let shared = table.new_shared(&counter, asked.key.is_sensitive, now.wall_ms);
                let totals = shared.judged_totals(&counter, &asked.terms);
                part(origin, &asked.terms, &totals, now.wall_ms, now.wall_ms)
            }
        }
    }

    /// Those who wait for a key go on: together in one call, unless the key denies them by now.
    fn release(&self, state: &mut State, key: &OriginKey, now: Now) -> Effects {
        let mut effects = Effects::default();
        let ids = state.asks.take_waiting(key);
        let mut going = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(waiting) = state.asks.waiting.get(&id) else { continue };
            if state.checks.is_open() {
                effects.told.push((id, AskOutcome::NoAnswer));
            } else if waiting.inquiry.questions.iter().any(|asked| self.is_paused(asked, now)) {
                effects.told.push((id, AskOutcome::Again));
            } else {
                going.push(id);
                continue;
            }
            state.asks.waiting.remove(&id);
        }
        let started = state.asks.start_together(key, &going, now.mono_us);
        if !started.is_empty() {
            effects.calls = self.check_calls(state, &started, now);
        }
        effects
    }

    fn is_paused(&self, asked: &Asked, now: Now) -> bool {
        let table = self.table();
        let key = asked.key.as_key();
        let hash = table.hash(&key);
        let mut shard = table.lock(table.shard_of(hash));
        let Some((_, Some(shared))) = shard.find(&key, hash).map(|slot| shard.both(slot)) else { return false };
        asked.judged.is_some() && shared.paused_for_ms(asked.hits, now.mono_ms()).is_some()
    }

    /// A check was answered: takes it over and tells everyone.
    fn checked(&self, state: &mut State, check: &Check, reply: &Reply, now: Now) -> Effects {
        let mut admitted: Vec<u64> = vec![0; check.keys.len()];
        let mut denied: Vec<Option<u64>> = vec![None; check.keys.len()];
        for ((ask, wire), verdict) in check.asks.iter().zip(&check.call.asks).zip(&reply.verdicts) {
            // Whoever gave up is not charged; what the origin has charged for it, the next hit takes over.
            let is_there = state.asks.waiting.contains_key(&ask.id);
            let is_over = |need: usize| verdict.over.iter().any(|over| usize::from(*over) == need);
            let is_group_over = |quota: Option<u16>| {
                quota.is_some() && wire.needs.iter().enumerate().any(|(at, other)| other.quota == quota && is_over(at))
            };
            for (at, need) in wire.needs.iter().enumerate() {
                if is_over(at) {
                    let least = denied[need.part].map_or(need.hits, |hits| hits.min(need.hits));
                    denied[need.part] = Some(least);
                } else if is_there && check.call.charges && verdict.is_admitted && !is_group_over(need.quota) {
                    admitted[need.part] = admitted[need.part].saturating_add(need.hits);
                }
            }
        }
        let mut holders = 1;
        for (((key, heard), admitted), denied) in check.keys.iter().zip(&reply.parts).zip(admitted).zip(denied) {
            let jitter = random(state);
            let taken = self.with_slot(&key.key, &key.terms, now, |slot, shared| {
                let cells = origin_cells(&key.sequences, heard);
                let is_dirty = shared.absorb(&mut slot.counter, &key.terms, &cells, admitted, now.moment());
                if let Some(hits) = denied {
                    let wait_ms = pause_ms(&mut slot.counter, &key.terms, hits, jitter, now.wall_ms);
                    shared.pause(hits, now.mono_ms() + wait_ms);
                }
                (is_dirty, shared.holders())
            });
            let Some(((is_dirty, key_holders), at)) = taken else { continue };
            holders = holders.max(key_holders);
            if is_dirty {
                self.enqueue(at);
            }
        }
        let mut effects = Effects::default();
        for (ask, verdict) in check.asks.iter().zip(&reply.verdicts) {
            let Some(waiting) = state.asks.waiting.get_mut(&ask.id) else { continue };
            waiting.hear(verdict, &ask.questions);
            if waiting.calls > 0 {
                continue;
            }
            let settled = waiting.settled();
            if let Some(waiting) = state.asks.waiting.remove(&ask.id) {
                if !check.call.charges && settled.is_admitted {
                    self.charge_here(&waiting.inquiry, now);
                }
                if !waiting.is_background {
                    effects.told.push((ask.id, AskOutcome::Settled(settled)));
                }
            }
        }
        let spacing_us = SPACING_US * u64::from(holders.min(self.live()));
        effects.join(self.free(state, check, spacing_us, now));
        effects
    }

    /// A request over several slots of a Cluster was admitted by each: it is charged here, and the origin hears of it at
    /// once.
    fn charge_here(&self, inquiry: &Inquiry, now: Now) {
        for asked in inquiry.questions.iter().filter(|asked| asked.judged.is_some() && asked.hits > 0) {
            let charged = self.with_slot(&asked.key, &asked.terms, now, |slot, shared| {
                slot.counter.look(&asked.terms, now.wall_ms);
                shared.follow(&slot.counter);
                slot.counter.add(&asked.terms, asked.hits);
                shared.add(asked.hits);
            });
            if let Some((_, at)) = charged {
                let mut shard = self.table().lock(at.shard);
                if let Some((_, shared)) = shard.at(at) {
                    self.table().enqueue(at.shard, at.slot, shared, true);
                }
            }
        }
    }

    /// A check was not answered: memory decides, and those who wait try again.
    fn unchecked(&self, state: &mut State, check: &Check, now: Now) -> Effects {
        let mut effects = Effects::default();
        for key in &check.keys {
            self.with_slot(&key.key, &key.terms, now, |_, shared| shared.unreadable(now.mono_ms()));
        }
        for ask in &check.asks {
            if let Some(waiting) = state.asks.waiting.remove(&ask.id) {
                if waiting.is_background {
                    self.want_again(&waiting.inquiry);
                } else {
                    effects.told.push((ask.id, AskOutcome::NoAnswer));
                }
            }
        }
        effects.join(self.free(state, check, 0, now));
        effects
    }

    fn free(&self, state: &mut State, check: &Check, spacing_us: u64, now: Now) -> Effects {
        let keys: Vec<OriginKey> = check.keys.iter().map(|key| key.origin).collect();
        let mut effects = Effects::default();
        // Whoever waits for the spacing to pass must still have time to be answered.
        let free_at_us = check.sent_us + spacing_us.min(self.options.deadline_us / 2);
        for key in state.asks.free(&keys, free_at_us, now.mono_us) {
            effects.join(self.release(state, &key, now));
        }
        effects
    }

    fn enqueue(&self, at: SlotRef) {
        let mut shard = self.table().lock(at.shard);
        if let Some((_, shared)) = shard.at(at) {
            self.table().enqueue(at.shard, at.slot, shared, false);
        }
    }

    /// Keys whose background read failed stay in the queue.
    fn want_again(&self, inquiry: &Inquiry) {
        for asked in &inquiry.questions {
            let key = asked.key.as_key();
            let hash = self.table().hash(&key);
            let number = self.table().shard_of(hash);
            let mut shard = self.table().lock(number);
            let Some(slot) = shard.find(&key, hash) else { continue };
            if let (_, Some(shared)) = shard.both(slot) {
                self.table().enqueue(number, slot, shared, false);
            }
        }
    }

    /// Marks some keys to be told again after the origin has lost its data.
    fn heal_some(&self, state: &mut State) {
        let mut marked = 0;
        while let Some(number) = state.heal_next {
            if marked >= HEALED_PER_FLUSH {
                return;
            }
            let mut shard = self.table().lock(number);
            for slot in Table::slots_of(&shard) {
                let (_, Some(shared)) = shard.both(slot) else { continue };
                if shared.holders() > 0 {
                    shared.is_wanted = true;
                    self.table().enqueue(number, slot, shared, false);
                    marked += 1;
                }
            }
            state.heal_next = Some(number + 1).filter(|next| *next < self.table().shards());
        }
    }

    /// Sends what is pending: all of it, or what is urgent.
    fn flush(&self, state: &mut State, is_all: bool, now: Now) -> Effects {
        let grown = self.table().grown();
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
            return Effects::default();
        }
        let mut effects = Effects::default();
        let mut batch = Batch::default();
        let mut kept = Vec::new();
        let mut pending_hits = 0;
        // What comes in meanwhile is for the next flush.
        for _ in 0..queue.len() {
            if batch.parts.len() >= replay::PARTS_MAX * (MESSAGES_MAX - state.replays_under_way) {
                break;
            }
            let Some(at) = queue.pop() else { break };
            let mut shard = self.table().lock(at.shard);
            match self.take(&mut shard, at, now) {
                Taken::Nothing => {}
                Taken::Part(part) => {
                    pending_hits += part.cells.iter().map(|cell| cell.own.saturating_sub(cell.acked)).sum::<u64>();
                    batch.push(at, part);
                }
                Taken::Unseated(asked) => {
                    drop(shard);
                    if state.checks.is_open() {
                        kept.push(at);
                    } else {
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
        let slot_of = |part: &Part| crate::regional::cluster_slot::cluster_slot(&part.key);
        for Batch { slots, parts } in batch.into_messages(self.options.is_cluster.then_some(slot_of)) {
            let sequences = parts.iter().map(|part| part.cells.iter().map(|cell| cell.sequence).collect()).collect();
            let call = self.call(state, false, parts, Vec::new(), now);
            state.replays_under_way += 1;
            let id = self.enter_call(state, UnderWay::Replay { slots, sequences });
            effects.calls.push(Outgoing { id, operation: Operation::Replay, call, within_us: REPLAY_TIMEOUT_US });
        }
        effects
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
            let asked = Asked {
                check: 0,
                key: OwnedKey::new(&key, shared.is_sensitive),
                terms,
                hits: 0,
                judged: None,
                why: crate::engine::decide::Why::Cold,
            };
            return Taken::Unseated(Box::new(asked));
        }
        shared.is_wanted = false;
        shared.is_in_flight = true;
        let totals = shared.pending_totals(&slot.counter, &terms);
        Taken::Part(part(self.origin_key(&key, shared.is_sensitive), &terms, &totals, look.now_ms, now.wall_ms))
    }

    /// Reads a key that this process has hits for but does not know its field of. Nobody waits for it.
    fn read_behind(&self, state: &mut State, asked: Asked, now: Now) -> Vec<Outgoing> {
        let key = self.origin_key(&asked.key.as_key(), asked.key.is_sensitive);
        let inquiry = Inquiry { checks: 0, questions: SmallVec::from_iter([asked]) };
        let waiting = Waiting::new(inquiry, SmallVec::from_iter([key]), now.mono_us + REPLAY_TIMEOUT_US, true);
        let id = state.asks.enter(waiting);
        if state.asks.start(id, now.mono_us) { self.check_calls(state, &[id], now) } else { Vec::new() }
    }

    fn replayed(
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
            if shared.absorb(&mut slot.counter, &terms, &cells, 0, now.moment()) || shared.is_wanted {
                self.table().enqueue(at.shard, at.slot, shared, false);
            }
        }
        if state.replays_under_way == 0 {
            state.behind_since_us = (!self.table().grown().all.is_empty()).then_some(now.mono_us);
        }
    }
}

/// A cell that this process has a field in, by key and sequence; a bucket has no sequence.
pub type Field = (OriginKey, Option<u64>);

/// What became of a slot in the queue.
enum Taken {
    Nothing,
    Part(Part),
    /// It has to be read before its totals mean anything.
    Unseated(Box<Asked>),
}

/// A key as a call names it.
fn part(key: OriginKey, terms: &Terms, totals: &[Totals], key_now_ms: u64, now_ms: u64) -> Part {
    let Terms { limit, window_ms, algorithm, .. } = *terms;
    let measure = match algorithm {
        Algorithm::SlidingWindow => Measure::Sliding { left_ms: window_ms - key_now_ms % window_ms },
        Algorithm::FixedWindow | Algorithm::ExactWindow => Measure::Sum,
        Algorithm::Gcra => Measure::Gcra { limit },
    };
    let grace_ms = window_ms.min(GRACE_MS_MAX);
    let told = |totals: &Totals| Told {
        sequence: totals.sequence,
        is_seated: totals.is_seated,
        own: totals.own,
        acked: totals.acked,
        epoch: totals.epoch,
        floor: totals.floor,
        floor_rest: totals.floor_rest,
        asked: totals.asked,
        asked_acked: totals.asked_acked,
        refunds_floor: totals.refunds_floor,
        ttl_ms: totals.ends_at_ms.saturating_sub(now_ms).saturating_add(grace_ms),
    };
    Part { key, window_ms, measure, cells: totals.iter().map(told).collect() }
}

fn origin_cells(sequences: &[u64], heard: &[Heard]) -> SmallVec<[OriginCell; 2]> {
    let cell = |(sequence, heard): (&u64, &Heard)| OriginCell {
        sequence: *sequence,
        epoch: heard.epoch,
        sum: heard.sum,
        field: heard.field,
        asked: heard.asked,
        refunds: heard.refunds,
        holders: heard.holders,
        level_at_ms: heard.level.at_ms,
        level_whole: heard.level.whole,
        level_rest: heard.level.rest,
    };
    sequences.iter().zip(heard).map(cell).collect()
}

/// How long a key denies without asking after the origin has denied so many hits: until about a hundredth of the limit
/// has come free, but never past the second that `Retry-After` names.
fn pause_ms(counter: &mut Counter, terms: &Terms, hits: u64, jitter: u64, now_ms: u64) -> u64 {
    let look = counter.look(terms, now_ms);
    let wait_ms = |hits: u64| counter.admits_at(terms, &look, hits).map(|at_ms| at_ms.saturating_sub(now_ms));
    let hundredth = u64::from(terms.limit / 100);
    let for_hundredth_ms = wait_ms(hits.max(hundredth)).or_else(|| wait_ms(hits)).unwrap_or(1000);
    // Between three quarters and five quarters of it.
    let jittered_ms = for_hundredth_ms.saturating_mul(768 + jitter % 512) / 1024;
    let named_ms = wait_ms(hits).map_or(1000, |wait_ms| wait_ms.div_ceil(1000) * 1000);
    jittered_ms.min(named_ms)
}

/// xorshift64*: which process goes first need not be unpredictable, but it has to be repeatable.
fn random(state: &mut State) -> u64 {
    state.random ^= state.random >> 12;
    state.random ^= state.random << 25;
    state.random ^= state.random >> 27;
    state.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
}
