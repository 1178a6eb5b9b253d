//! Takes requests from their arrival to their decision, and does what the processes want done meanwhile.

use crate::engine::reach::Store;
use crate::regional::region::{Effects, Region};
use crate::regional::wait_queue::AskOutcome;
use crate::simulate::oracle::RequestedHits;
use crate::simulate::process::{AskPlace, Became, KeyHits, KeysHits};
use crate::simulate::world::event::Event;
use crate::simulate::world::{MONO_START_US, START_MS, World};

/// When a request arrived, and when what became of it did.
#[derive(Clone, Copy, Debug)]
struct RequestTimes {
    arrived_us: u64,
    counted_us: u64,
    has_waited: bool,
}

impl World {
    pub(super) fn request(&mut self, process: usize, asked: KeysHits) {
        // A process that stops gets no new requests.
        let others = (0..self.processes.len()).map(|step| (process + step) % self.processes.len());
        let process = others.into_iter().find(|other| self.leaving[*other].is_none()).unwrap_or(process);
        self.oracle.requests += 1;
        let now = self.now(process);
        let (became, effects) = self.processes[process].request(&self.ruleset, asked.clone(), now);
        if let Some(exchange) = &self.processes[process].exchange {
            exchange.match_digests(now);
        }
        if matches!(became, Became::Waits { .. }) {
            self.oracle.asked += 1;
        }
        let times = RequestTimes { arrived_us: self.now_us, counted_us: self.now_us, has_waited: false };
        self.became(process, &asked, became, effects, times);
    }

    /// Notes what became of a request, and does what follows from it.
    fn became(&mut self, process: usize, asked: &[KeyHits], became: Became, effects: Effects, times: RequestTimes) {
        let kind = match became {
            Became::Admitted => 0,
            Became::Denied => 1,
            Became::Waits { .. } => 2,
            Became::Shed { is_admitted } => 3 + u64::from(is_admitted),
        };
        for KeyHits { key, hits } in asked {
            self.digest.numbers(&[self.now_us, process as u64, *key as u64, *hits as u64, kind]);
        }
        if let Became::Shed { is_admitted } = became {
            self.oracle.shed += 1;
            self.oracle.shed_admitted += u64::from(is_admitted);
        }
        match became {
            Became::Admitted | Became::Shed { is_admitted: true } => self.note(process, asked, true, times),
            Became::Denied | Became::Shed { is_admitted: false } => {
                self.oracle.denied += 1;
                self.note(process, asked, false, times);
            }
            Became::Waits { place, until_us } => {
                let to = self.to(process);
                self.at(until_us.saturating_sub(MONO_START_US), Event::Deadline { to, place });
                return self.perform(process, place.store, effects);
            }
        }
        self.perform(process, Store::Origin, effects);
    }

    /// Has the log know of what a request asked for.
    fn note(&mut self, process: usize, asked: &[KeyHits], is_admitted: bool, times: RequestTimes) {
        let RequestTimes { arrived_us, counted_us, has_waited } = times;
        let at_ms = (START_MS + counted_us / 1000).saturating_add_signed(self.processes[process].skew_ms);
        let answered_us = self.now_us;
        for KeyHits { key, hits } in asked {
            let log = match (is_admitted, *hits < 0) {
                (false, _) => &mut self.oracle.denials,
                (true, false) => &mut self.oracle.admitted,
                (true, true) => &mut self.oracle.refunds,
            };
            let (key, hits) = (*key, hits.unsigned_abs());
            log.push(RequestedHits {
                at_ms,
                at_us: counted_us,
                arrived_us,
                answered_us,
                key,
                hits,
                process,
                has_waited,
            });
        }
    }

    /// Tells a request what its store says, if it still waits.
    pub(super) fn tell(&mut self, process: usize, place: AskPlace, outcome: AskOutcome) {
        let Some(waiting) = self.processes[process].waiting.remove(&place) else { return };
        if outcome == AskOutcome::NoAnswer {
            self.oracle.unanswered += 1;
            self.oracle.abandoned_hits += waiting.hits();
        }
        let (asked, now) = (waiting.asked.clone(), self.now(process));
        let is_charged = matches!(&outcome, AskOutcome::Answered(answer) if answer.is_charged && answer.is_admitted);
        // What a store has charged counts in the cells that the call was about.
        let counted_us = self.replied_to_us.filter(|_| is_charged).unwrap_or(self.now_us);
        let arrived_us = waiting.began_us.saturating_sub(MONO_START_US);
        let times = RequestTimes { arrived_us, counted_us, has_waited: true };
        let (became, effects) = self.processes[process].told(&self.ruleset, place.store, waiting, outcome, now);
        self.became(process, &asked, became, effects, times);
    }

    /// Lets a process's side of a store do something, and does what follows from it.
    pub(super) fn react(&mut self, process: usize, store: Store, act: impl FnOnce(&Region) -> Effects) {
        if let Some(region) = self.processes[process].store(store) {
            let effects = act(region);
            self.perform(process, store, effects);
        }
    }

    pub(super) fn perform(&mut self, process: usize, store: Store, effects: Effects) {
        for outgoing in effects.calls {
            self.send(process, store, outgoing);
        }
        for (id, outcome) in effects.told {
            self.tell(process, AskPlace { store, id }, outcome);
        }
        self.plan_polls(process);
    }

    pub(super) fn next_poll_us(&self, process: usize, store: Store) -> u64 {
        self.next_poll.get(&(process, store)).copied().unwrap_or(u64::MAX)
    }

    /// Polls each store when the process wants it, or at once if hits are urgent.
    pub(super) fn plan_polls(&mut self, process: usize) {
        for store in [Store::Origin, Store::Owner] {
            let Some(region) = self.processes[process].store(store) else { continue };
            let is_urgent = self.processes[process].engine.table().ledger(store).is_any_urgent();
            let next_us = if is_urgent { self.now_us } else { region.next_us().saturating_sub(MONO_START_US) };
            let next_us = next_us.max(self.now_us);
            if next_us < self.next_poll_us(process, store) {
                self.next_poll.insert((process, store), next_us);
                let to = self.to(process);
                self.at(next_us, Event::Poll { to, store });
            }
        }
    }
}
