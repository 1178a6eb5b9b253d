//! Checks: requests on their way to the origin and back, alone or together with others.

use smallvec::SmallVec;

use crate::engine::abroad::View;
use crate::engine::counter::Counter;
use crate::engine::key::OwnedKey;
use crate::engine::{Asked, Inquiry};
use crate::regional::asks::{AskId, AskOutcome, Waiting};
use crate::regional::call::{Ask, Call, Need, OriginKey, Part, Reply};
use crate::regional::cluster_slot::cluster_slot;
use crate::regional::region::part::{origin_cells, part};
use crate::regional::region::{Effects, Now, Operation, Outgoing, Region, State, UnderWay, random};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// Between two checks of a key, for each process that holds it: a hot key costs the origin the same for any number.
const SPACING_US: u64 = 100;

/// A key of a check that is under way.
#[derive(Debug)]
pub(super) struct CheckedKey {
    pub(super) origin: OriginKey,
    pub(super) key: OwnedKey,
    pub(super) terms: Terms,
    pub(super) is_cut_off: bool,
    pub(super) is_strict: bool,
    pub(super) sequences: SmallVec<[u64; 2]>,
}

/// A request of a check that is under way, and which of its questions are the needs of its ask.
#[derive(Debug)]
pub(super) struct CheckedAsk {
    pub(super) id: AskId,
    pub(super) questions: SmallVec<[usize; 2]>,
    /// It only reads this time: a key of it is not seated, and a check that is applied without being heard of would be
    /// counted twice.
    pub(super) is_read: bool,
}

#[derive(Debug)]
pub(super) struct Check {
    pub(super) keys: Vec<CheckedKey>,
    pub(super) asks: Vec<CheckedAsk>,
    pub(super) call: Call,
    /// A strict limit is decided by it.
    pub(super) is_strict: bool,
    pub(super) sent_us: u64,
}

impl Region {
    /// The calls that bring requests to the origin: one for all, or in a Cluster one for each slot.
    pub(super) fn check_calls(&self, state: &mut State, ids: &[AskId], now: Now) -> Vec<Outgoing> {
        // By Cluster slot, in order; 0 for all without one. Requests over several slots are judged side by side.
        let mut groups: Vec<(u16, bool, Vec<CheckedAsk>)> = Vec::new();
        for id in ids {
            let Some(waiting) = state.asks.waiting.get_mut(id) else { continue };
            let mut slots: SmallVec<[u16; 2]> = waiting.keys.iter().map(|key| self.cluster_slot(key)).collect();
            let of_question = slots.clone();
            slots.sort_unstable();
            slots.dedup();
            waiting.calls = slots.len();
            let charges = slots.len() == 1 && waiting.inquiry.charges;
            for slot in slots {
                let questions =
                    of_question.iter().enumerate().filter(|(_, other)| **other == slot).map(|(question, _)| question);
                let ask = CheckedAsk { id: *id, questions: questions.collect(), is_read: false };
                match groups.iter_mut().find(|(other, same, _)| *other == slot && *same == charges) {
                    Some((_, _, asks)) => asks.push(ask),
                    None => groups.push((slot, charges, vec![ask])),
                }
            }
        }
        groups.into_iter().map(|(_, charges, asks)| self.check_call(state, asks, charges, now)).collect()
    }

    fn cluster_slot(&self, key: &OriginKey) -> u16 {
        if self.options.is_cluster { cluster_slot(key) } else { 0 }
    }

    fn check_call(&self, state: &mut State, mut asks: Vec<CheckedAsk>, charges: bool, now: Now) -> Outgoing {
        let mut keys: Vec<CheckedKey> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let mut wire_asks = Vec::new();
        let mut until_us = now.mono_us;
        for ask in &mut asks {
            let Some(waiting) = state.asks.waiting.get(&ask.id) else { continue };
            until_us = until_us.max(waiting.until_us);
            let mut needs: SmallVec<[Need; 2]> = SmallVec::new();
            let mut judged: SmallVec<[usize; 2]> = SmallVec::new();
            for question in &ask.questions {
                let asked = &waiting.inquiry.questions[*question];
                let origin = waiting.keys[*question];
                let part = keys.iter().position(|key| key.origin == origin).unwrap_or_else(|| {
                    let part = self.judged_part(origin, asked, now);
                    let sequences = part.cells.iter().map(|cell| cell.sequence).collect();
                    let Asked { terms, is_cut_off, is_strict, .. } = *asked;
                    keys.push(CheckedKey { origin, key: asked.key.clone(), terms, is_cut_off, is_strict, sequences });
                    parts.push(part);
                    parts.len() - 1
                });
                let Some(quota) = asked.judged else { continue };
                let Terms { limit, burst, algorithm, .. } = asked.terms;
                let limit = if algorithm == Algorithm::Gcra { burst } else { limit };
                needs.push(Need { part, limit, hits: asked.hits, quota });
                judged.push(*question);
            }
            let is_unseated = |need: &Need| parts[need.part].cells.iter().any(|cell| !cell.is_seated);
            ask.is_read = needs.iter().any(is_unseated);
            if ask.is_read {
                needs.clear();
                judged.clear();
            } else if waiting.inquiry.has_free_quota && needs.iter().any(|need: &Need| need.quota.is_some()) {
                // Stands for the quota groups that the origin is not asked about: they pass, so quotas deny nothing.
                needs.push(Need { part: needs[0].part, limit: u32::MAX, hits: 0, quota: Some(u16::MAX) });
            }
            ask.questions = judged;
            wire_asks.push(Ask { needs });
        }
        let call = self.call(state, charges, parts, wire_asks);
        let is_strict = keys.iter().any(|key| key.is_strict);
        let check = Check { keys, asks, call: call.clone(), is_strict, sent_us: now.mono_us };
        let id = self.enter_call(state, UnderWay::Check(check));
        // The origin has its time whoever asks: a caller in a hurry gives up by itself, and says nothing about Redis.
        let within_us = until_us.saturating_sub(now.mono_us).max(self.options.deadline_us);
        Outgoing { id, operation: Operation::Check, call, is_strict: is_strict && charges, within_us }
    }

    /// What a check says about a key, whether there is a slot for it or not.
    fn judged_part(&self, origin: OriginKey, asked: &Asked, now: Now) -> Part {
        let table = self.table();
        let key = asked.key.as_key();
        let hash = table.hash(&key);
        let mut shard = table.lock(table.shard_of(hash));
        match shard.find(&key, hash).map(|slot| shard.both(slot)) {
            Some((slot, Some(shared))) if shared.store == self.store() => {
                let look = slot.counter.look(&asked.terms, now.wall_ms);
                shared.follow(&slot.counter);
                let mut totals = shared.judged_totals(&slot.counter, &asked.terms);
                if asked.is_cut_off {
                    totals.iter_mut().for_each(|cell| cell.abroad = 0);
                }
                part(origin, &asked.terms, &totals, look.now_ms, now.wall_ms)
            }
            _ => {
                let counter = Counter::new(&asked.terms, now.wall_ms);
                let shared = table.new_shared(&counter, self.store(), asked.key.is_sensitive, now.wall_ms);
                let totals = shared.judged_totals(&counter, &asked.terms);
                part(origin, &asked.terms, &totals, now.wall_ms, now.wall_ms)
            }
        }
    }

    /// Those who wait for a key go on: together in one call, unless the key denies them by now.
    pub(super) fn release(&self, state: &mut State, key: &OriginKey, now: Now) -> Effects {
        let mut effects = Effects::default();
        let ids = state.asks.take_waiting(key);
        let mut going = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(waiting) = state.asks.waiting.get(&id) else { continue };
            let is_given_up = state.check_breaker(waiting.inquiry.is_strict, self.store()).is_open();
            if is_given_up && waiting.is_background {
                self.want_again(&waiting.inquiry);
            } else if is_given_up {
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
        // One that denies only together with others settles nothing.
        !asked.is_strict && asked.judged == Some(None) && shared.paused_for_ms(asked.hits, now.mono_ms()).is_some()
    }

    /// A check was answered: takes it over and tells everyone.
    pub(super) fn checked(&self, state: &mut State, check: &Check, reply: &Reply, now: Now) -> Effects {
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
        let has_read = check.asks.iter().any(|ask| ask.is_read);
        let mut available: Vec<Option<i64>> = Vec::with_capacity(check.keys.len());
        let mut holders = 1;
        for (((key, heard), admitted), denied) in check.keys.iter().zip(&reply.parts).zip(admitted).zip(denied) {
            let jitter = random(state);
            let taken = self.with_slot(&key.key, &key.terms, now, |slot, shared| {
                let cells = origin_cells(&key.sequences, heard);
                let is_dirty = shared.absorb(&mut slot.counter, &key.terms, &cells, admitted, now.moment());
                self.table().weigh(slot, Some(shared));
                // The owner of strict limits is asked again as soon as memory does not deny any more.
                if let Some(hits) = denied.filter(|_| !key.is_strict) {
                    let view = View { counter: &mut slot.counter, abroad: shared.abroad(), is_cut_off: key.is_cut_off };
                    let wait_ms = pause_ms(view, &key.terms, hits, jitter, now.wall_ms);
                    shared.pause(hits, wait_ms, now.mono_ms());
                }
                let left = has_read.then(|| {
                    let (counter, abroad) = (&mut slot.counter, shared.abroad());
                    View { counter, abroad, is_cut_off: key.is_cut_off }.look(&key.terms, now.wall_ms).available
                });
                (is_dirty, shared.holders(), left)
            });
            available.push(taken.as_ref().and_then(|((_, _, left), _)| *left));
            let Some(((is_dirty, key_holders, _), at)) = taken else { continue };
            holders = holders.max(key_holders);
            if is_dirty {
                self.enqueue(at);
            }
        }
        let mut effects = Effects::default();
        for (ask, verdict) in check.asks.iter().zip(&reply.verdicts) {
            let Some(waiting) = state.asks.waiting.get_mut(&ask.id) else { continue };
            waiting.hear(verdict, &ask.questions, ask.is_read);
            if ask.is_read {
                let at = |origin: &OriginKey| check.keys.iter().position(|key| key.origin == *origin);
                waiting.judge(|origin| at(origin).and_then(|at| available[at]));
            }
            if waiting.calls > 0 {
                continue;
            }
            let settled = waiting.settled(!check.call.charges);
            if let Some(waiting) = state.asks.waiting.remove(&ask.id) {
                let is_settled = !waiting.has_read;
                if is_settled && !check.call.charges && settled.is_admitted && waiting.inquiry.charges {
                    self.charge_here(&waiting, now);
                }
                if !waiting.is_background {
                    let outcome = match is_settled {
                        true => AskOutcome::Settled(settled),
                        false => AskOutcome::Read(waiting.settled_by_reads()),
                    };
                    effects.told.push((ask.id, outcome));
                }
            }
        }
        let spacing_us = SPACING_US * u64::from(holders.min(self.live()));
        effects.join(self.free(state, check, spacing_us, now));
        effects
    }

    /// A request over several slots of a Cluster was admitted by each: it is charged here, and the origin hears of it at
    /// once.
    fn charge_here(&self, waiting: &Waiting, now: Now) {
        let is_charged = |asked: &&Asked| {
            asked.hits > 0 && asked.judged.is_some_and(|quota| quota.is_none() || !waiting.is_group_over(quota))
        };
        for asked in waiting.inquiry.questions.iter().filter(is_charged) {
            let charged = self.with_slot(&asked.key, &asked.terms, now, |slot, shared| {
                slot.counter.look(&asked.terms, now.wall_ms);
                shared.follow(&slot.counter);
                slot.counter.add(&asked.terms, asked.hits);
                shared.add(slot.counter.sequence(), asked.hits);
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
    pub(super) fn unchecked(&self, state: &mut State, check: &Check, now: Now) -> Effects {
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
}

/// How long a key denies without asking after the origin has denied so many hits: until about a hundredth of the limit
/// has come free, but never past the second that `Retry-After` names.
fn pause_ms(mut view: View<'_>, terms: &Terms, hits: u64, jitter: u64, now_ms: u64) -> u64 {
    let look = view.look(terms, now_ms);
    let wait_ms = |hits: u64| view.admits_at(terms, &look, hits).map(|at_ms| at_ms.saturating_sub(now_ms));
    let hundredth = u64::from(terms.limit / 100);
    let for_hundredth_ms = wait_ms(hits.max(hundredth)).or_else(|| wait_ms(hits)).unwrap_or(1000);
    // Between three quarters and five quarters of it.
    let jittered_ms = for_hundredth_ms.saturating_mul(768 + jitter % 512) / 1024;
    let named_ms = wait_ms(hits).map_or(1000, |wait_ms| wait_ms.div_ceil(1000) * 1000);
    jittered_ms.min(named_ms)
}
