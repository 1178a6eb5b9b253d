//! Checks: requests on their way to the origin and back, alone or together with others.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;

use crate::clock::Now;
use crate::engine::key::OwnedKey;
use crate::engine::quota::QuotaRule;
use crate::engine::steps;
use crate::engine::table::cell::CellShape;
use crate::engine::table::ledger::KeyAnswer;
use crate::engine::{QuestionKind, StoreQuestion};
use crate::regional::call::{Ask, COUNT_MAX, Call, CallKey, Measure, Need, OriginKey, Reply};
use crate::regional::gathering::ReadyRequest;
use crate::regional::node_map::NodeId;
use crate::regional::region::{CallPurpose, Effects, OutgoingCall, PendingCall, Region, RegionState, random};
use crate::regional::wait_queue::{AskOutcome, QueuedRequest, WaitId};
use crate::rules::limit::Terms;

/// The time between two checks of a key, for each process that holds it: a hot key costs the origin the same however
/// many processes there are.
const SPACING_US: u64 = 100;

/// A key of a check that is under way.
#[derive(Debug)]
pub(super) struct CheckKey {
    /// The key's name at the origin.
    pub(super) origin: OriginKey,
    /// The key itself, by which the table finds it.
    pub(super) key: OwnedKey,
    /// The limit's terms as the request has them; the table may hold the key under others.
    pub(super) terms: Terms,
    /// The key is held to the region's own part of the limit.
    pub(super) is_cut_off: bool,
    /// The limit is strict, so that a denial starts no pause.
    pub(super) is_strict: bool,
}

/// A request in a check that is under way.
#[derive(Debug)]
pub(super) struct CheckAsk {
    /// Names the request in the wait queue, which it may have left.
    pub(super) id: WaitId,
    /// Indices into the request's questions: those that are needs of the ask, in their order. Empty if the request only
    /// reads.
    pub(super) questions: SmallVec<[usize; 2]>,
    /// It only reads this time, because one of its keys is not seated: if a check were applied and its answer lost, it
    /// would be counted twice.
    pub(super) is_read: bool,
}

/// A check that is under way.
#[derive(Debug)]
pub(super) struct CheckCall {
    /// One for each part of the call, in the same order.
    pub(super) keys: Vec<CheckKey>,
    /// One for each ask of the call, in the same order.
    pub(super) asks: Vec<CheckAsk>,
    /// As it was sent: verdicts name needs by their place.
    pub(super) call: Call,
    /// One of the keys is strict, so that the breaker for strict checks hears how the call ends.
    pub(super) is_strict: bool,
    /// Which node it is for.
    pub(super) node: NodeId,
    /// When it was made, in monotonic time: the spacing counts from here.
    pub(super) sent_us: u64,
}

impl Region {
    /// The calls that bring requests to the origin: one for those that charge and one for those that only judge. In a
    /// Cluster there are as many for each slot.
    pub(super) fn check_calls(&self, state: &mut RegionState, ids: &[WaitId], now: Now) -> Vec<OutgoingCall> {
        // Grouped by Cluster slot, which is 0 without a Cluster, and by whether they charge. A request over several
        // slots is judged in all of them side by side, and none charges it.
        let mut groups: Vec<(bool, Vec<CheckAsk>)> = Vec::new();
        let mut numbers: HashMap<(u16, bool), usize> = HashMap::new();
        for id in ids {
            let Some(waiting) = state.wait_queue.waiting.get_mut(id) else { continue };
            let slots = waiting.keys.iter().map(|key| self.cluster_slot(key));
            let mut questions: SmallVec<[(u16, usize); 2]> = slots.zip(0..).collect();
            questions.sort_unstable();
            let of_slots = || questions.chunk_by(|one, other| one.0 == other.0);
            waiting.calls = of_slots().count();
            let charges = waiting.calls == 1 && waiting.store_request.charges;
            for of_slot in of_slots() {
                let number = *numbers.entry((of_slot[0].0, charges)).or_insert_with(|| {
                    groups.push((charges, Vec::new()));
                    groups.len() - 1
                });
                let question = |(_, question): &(u16, usize)| {
                    steps::count();
                    *question
                };
                let questions = of_slot.iter().map(question).collect();
                groups[number].1.push(CheckAsk { id: *id, questions, is_read: false });
            }
        }
        groups.into_iter().map(|(charges, asks)| self.check_call(state, asks, charges, now)).collect()
    }

    /// Lets requests go that have waited for others to go with them. They have no keys in common.
    pub(super) fn go_together(&self, state: &mut RegionState, now: Now) -> Effects {
        let (mut effects, mut ids) = (Effects::default(), Vec::new());
        for ReadyRequest { id, keys } in state.gathering.take() {
            if state.wait_queue.waiting.contains_key(&id) {
                ids.push(id);
                continue;
            }
            // It was withdrawn meanwhile: its keys are free.
            for key in state.wait_queue.free(&keys, now.mono_us, now.mono_us) {
                effects.join(self.release(state, &key, now));
            }
        }
        effects.calls.extend(self.calls_for(state, &ids, now));
        effects
    }

    /// The calls for requests that have no keys in common: no more in each than the origin serves in a moment.
    pub(super) fn calls_for(&self, state: &mut RegionState, ids: &[WaitId], now: Now) -> Vec<OutgoingCall> {
        let (mut calls, mut rest) = (Vec::new(), ids);
        while !rest.is_empty() {
            let (going, later) = rest.split_at(state.wait_queue.fitting(rest));
            calls.extend(self.check_calls(state, going, now));
            rest = later;
        }
        calls
    }

    fn check_call(&self, state: &mut RegionState, mut asks: Vec<CheckAsk>, charges: bool, now: Now) -> OutgoingCall {
        let mut keys: Vec<CheckKey> = Vec::new();
        let mut parts: Vec<CallKey> = Vec::new();
        let mut ahead: Vec<u16> = Vec::new();
        let mut numbers: HashMap<OriginKey, usize> = HashMap::new();
        let mut wire_asks = Vec::new();
        let mut until_us = now.mono_us;
        for ask in &mut asks {
            let Some(waiting) = state.wait_queue.waiting.get(&ask.id) else { continue };
            until_us = until_us.max(waiting.until_us);
            let mut needs: SmallVec<[Need; 2]> = SmallVec::new();
            let mut judged: SmallVec<[usize; 2]> = SmallVec::new();
            for question in &ask.questions {
                steps::count();
                let asked = &waiting.store_request.questions[*question];
                let origin = waiting.keys[*question];
                let part = *numbers.entry(origin).or_insert_with(|| {
                    let update = self.ledger().update_of(&asked.key, &asked.terms, asked.is_cut_off, now);
                    ahead.push(update.ahead);
                    let part = CallKey::new(origin, &asked.terms, update);
                    let StoreQuestion { terms, is_cut_off, is_strict, .. } = *asked;
                    keys.push(CheckKey { origin, key: asked.key.clone(), terms, is_cut_off, is_strict });
                    parts.push(part);
                    parts.len() - 1
                });
                if !asked.kind.is_judged() {
                    continue;
                }
                let quota = asked.kind.quota();
                let limit = judged_limit(asked, &parts[part]);
                // Alone on its key, and whatever else the request asks about denies it as a whole.
                let is_plain = asked.kind == QuestionKind::Fits && asked.counted_after == 0 && !asked.is_strict;
                let ahead = if is_plain { ahead[part] } else { 0 };
                needs.push(Need { part, limit, hits: asked.hits, quota, ahead });
                judged.push(*question);
            }
            let is_unseated = |need: &Need| parts[need.part].cells.iter().any(|cell| !cell.is_seated);
            ask.is_read = needs.iter().any(is_unseated);
            if ask.is_read {
                needs.clear();
                judged.clear();
            } else if waiting.store_request.has_free_quota && needs.iter().any(|need: &Need| need.quota.is_some()) {
                // Stands for the quota groups that the origin is not asked about: they pass, so quotas deny nothing.
                needs.push(Need { part: needs[0].part, limit: COUNT_MAX, hits: 0, quota: Some(u16::MAX), ahead: 0 });
            }
            ask.questions = judged;
            wire_asks.push(Ask { needs });
        }
        let call = self.call(state, charges, parts, wire_asks);
        let is_strict = keys.iter().any(|key| key.is_strict);
        let node = keys.first().map_or(NodeId::NOBODY, |key| self.node_of(state, &key.origin));
        let check = CheckCall { keys, asks, call: call.clone(), is_strict, node, sent_us: now.mono_us };
        let id = self.enter_call(state, PendingCall::CheckCall(check));
        state.checks_under_way += 1;
        // The origin gets its full time: a caller in a hurry gives up by itself, which says nothing about Redis.
        let within_us = until_us.saturating_sub(now.mono_us).max(self.options.deadline_us);
        OutgoingCall { id, operation: CallPurpose::Check, node, call, is_strict: is_strict && charges, within_us }
    }

    /// Lets requests go on that wait for a key: together, unless the key denies them by now.
    pub(super) fn release(&self, state: &mut RegionState, key: &OriginKey, now: Now) -> Effects {
        let mut effects = Effects::default();
        let ids = state.wait_queue.take_waiting(key);
        let mut going = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(waiting) = state.wait_queue.waiting.get(&id) else { continue };
            if self.is_given_up(state, &waiting.keys, waiting.store_request.is_strict) {
                effects.told.push((id, AskOutcome::NoAnswer));
            } else if waiting.store_request.questions.iter().any(|asked| self.is_paused(asked, now)) {
                effects.told.push((id, AskOutcome::Again));
            } else {
                going.push(id);
                continue;
            }
            state.wait_queue.waiting.remove(&id);
        }
        let started = state.wait_queue.start_together(key, &going, now.mono_us);
        if !started.is_empty() {
            effects.calls = self.check_calls(state, &started, now);
        }
        effects
    }

    fn is_paused(&self, asked: &StoreQuestion, now: Now) -> bool {
        // A question that denies only together with others settles nothing.
        let settles = !asked.is_strict && asked.kind == QuestionKind::Fits;
        settles && self.ledger().is_paused(&asked.key, asked.hits, now)
    }

    /// Takes over the answer to a check, and tells its requests.
    pub(super) fn checked(&self, state: &mut RegionState, check: &CheckCall, reply: &Reply, now: Now) -> Effects {
        let mut admitted: Vec<u64> = vec![0; check.keys.len()];
        let mut denied: Vec<Option<u64>> = vec![None; check.keys.len()];
        for ((ask, wire), verdict) in check.asks.iter().zip(&check.call.asks).zip(&reply.verdicts) {
            // A request that has given up is not charged. The next hit uses up what the origin has charged for it.
            let is_there = state.wait_queue.waiting.contains_key(&ask.id);
            let over: HashSet<usize> = verdict.over.iter().map(|over| usize::from(*over)).collect();
            let is_of_quota = |(at, need): (usize, &Need)| need.quota.filter(|_| over.contains(&at));
            let over_quotas: HashSet<u16> = wire.needs.iter().enumerate().filter_map(is_of_quota).collect();
            for (at, need) in wire.needs.iter().enumerate() {
                steps::count();
                let is_group_over = need.quota.is_some_and(|quota| over_quotas.contains(&quota));
                if over.contains(&at) {
                    let least = denied[need.part].map_or(need.hits, |hits| hits.min(need.hits));
                    denied[need.part] = Some(least);
                } else if is_there && check.call.charges && verdict.is_admitted && !is_group_over {
                    admitted[need.part] = admitted[need.part].saturating_add(need.hits);
                }
            }
        }
        let has_read = check.asks.iter().any(|ask| ask.is_read);
        let mut counted: HashMap<OriginKey, i64> = HashMap::new();
        let mut holders = 1;
        for (((key, cells), admitted), denied) in check.keys.iter().zip(&reply.parts).zip(admitted).zip(denied) {
            let CheckKey { is_strict, is_cut_off, .. } = *key;
            let answer = KeyAnswer { cells, admitted, denied, is_strict, is_cut_off, jitter: random(state) };
            let Some(settled) = self.ledger().settle(&key.key, &key.terms, answer, now) else { continue };
            if has_read {
                counted.insert(key.origin, i64::from(key.terms.capacity()).saturating_sub(settled.available));
            }
            holders = holders.max(settled.holders);
        }
        let mut effects = Effects::default();
        for (ask, verdict) in check.asks.iter().zip(&reply.verdicts) {
            let Some(waiting) = state.wait_queue.waiting.get_mut(&ask.id) else { continue };
            waiting.hear(verdict, &ask.questions, ask.is_read);
            if ask.is_read {
                waiting.judge(&counted);
            }
            if waiting.calls > 0 {
                continue;
            }
            let settled = waiting.settled(!check.call.charges);
            if let Some(waiting) = state.wait_queue.waiting.remove(&ask.id) {
                let is_settled = !waiting.has_read;
                if is_settled && !check.call.charges && settled.is_admitted && waiting.store_request.charges {
                    self.charge_here(&waiting, now);
                }
                let outcome = match is_settled {
                    true => AskOutcome::Answered(settled),
                    false => AskOutcome::Read(waiting.settled_by_reads()),
                };
                effects.told.push((ask.id, outcome));
            }
        }
        let spacing_us = SPACING_US * u64::from(holders.min(self.live()));
        effects.join(self.free(state, check, spacing_us, now));
        effects
    }

    /// Charges a request here that each of several slots of a Cluster has admitted. The origin hears of it at once.
    fn charge_here(&self, waiting: &QueuedRequest, now: Now) {
        let over = waiting.groups_over();
        let is_charged = |asked: &&StoreQuestion| {
            let is_quota = asked.kind.quota().is_some();
            asked.hits > 0 && asked.kind.is_judged() && QuotaRule::charges(is_quota, over.contains(&asked.kind))
        };
        for asked in waiting.store_request.questions.iter().filter(is_charged) {
            self.ledger().charge(&asked.key, &asked.terms, asked.hits, now);
        }
    }

    /// Tells the requests of a check that it had no answer: their rules' `on_outage` decides.
    pub(super) fn unchecked(&self, state: &mut RegionState, check: &CheckCall, now: Now) -> Effects {
        let mut effects = Effects::default();
        for key in &check.keys {
            self.ledger().unreadable(&key.key, &key.terms, now);
        }
        for ask in &check.asks {
            if state.wait_queue.waiting.remove(&ask.id).is_some() {
                effects.told.push((ask.id, AskOutcome::NoAnswer));
            }
        }
        effects.join(self.free(state, check, 0, now));
        effects
    }

    /// Frees the keys of a check that has ended, and lets requests go on that waited for them.
    fn free(&self, state: &mut RegionState, check: &CheckCall, spacing_us: u64, now: Now) -> Effects {
        let keys: Vec<OriginKey> = check.keys.iter().map(|key| key.origin).collect();
        let mut effects = Effects::default();
        // A request that waits for the spacing to pass must still have time to be answered.
        let free_at_us = check.sent_us + spacing_us.min(self.options.deadline_us / 2);
        for key in state.wait_queue.free(&keys, free_at_us, now.mono_us) {
            effects.join(self.release(state, &key, now));
        }
        effects
    }
}

/// The limit by which the origin judges a question. What later checks of the request have on the key may be counted
/// already, and must not make it too much, so it comes on top. But no more than the process has in the part: hits from
/// a window that has passed weigh less or nothing.
fn judged_limit(asked: &StoreQuestion, part: &CallKey) -> u64 {
    let newest = &part.cells[0];
    let own = match (part.measure, newest.shape) {
        (_, CellShape::Bucket(bucket)) => newest.own.min(bucket.level),
        (Measure::Sum | Measure::Exact, _) => part.cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(cell.own)),
        (Measure::Sliding { .. } | Measure::Gcra { .. }, _) => newest.own,
    };
    let after = asked.counted_after.min(i64::try_from(own).unwrap_or(i64::MAX));
    let limit = u64::from(asked.terms.capacity()).saturating_add_signed(after);
    // Below what a full cell holds, which is over any limit.
    limit.min(COUNT_MAX - 1)
}
