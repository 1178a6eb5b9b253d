//! Carries calls to the stores, and replies and heartbeats.

use crate::engine::reach::Store;
use crate::regional::call::{Call, ProcessId};
use crate::regional::region::{CallPurpose, OutgoingCall};
use crate::regional::replay::REPLAY_AWAITED_US;
use crate::simulate::faults::Plant;
use crate::simulate::process::Process;
use crate::simulate::world::event::{CallSending, Event, To};
use crate::simulate::world::{BEAT_EVERY_US, BEAT_TIMEOUT_US, World};

/// How long it takes until a process knows that a connection has broken.
const CLOSED_AFTER_US: u64 = 50_000;

impl World {
    pub(super) fn delay_us(&mut self) -> u64 {
        let (from, to) = self.setup.network.delay_us;
        self.random.between(from, to)
    }

    pub(super) fn send(&mut self, process: usize, store: Store, outgoing: OutgoingCall) {
        let OutgoingCall { id, operation, call, within_us, .. } = outgoing;
        self.digest.call(&call);
        let from = self.to(process);
        let network = self.setup.network;
        let is_replay = operation == CallPurpose::Replay;
        let timeout_us = self.now_us + within_us;
        self.at(timeout_us, Event::CallTimesOut { to: from, store, id });
        let mut arrivals = Vec::new();
        let delay_us = self.delay_us();
        let is_lost = self.random.permille(network.lost_calls);
        if !is_lost {
            let late_us = if self.random.permille(network.late) { self.random.below(1_000_000) } else { 0 };
            arrivals.push((self.now_us + delay_us + late_us, false));
        }
        // What gets lost takes its connection along.
        let closed_us = timeout_us + if is_lost { CLOSED_AFTER_US } else { REPLAY_AWAITED_US };
        if is_replay {
            self.at(closed_us, Event::CallFails { to: from, store, id });
            self.note_replay(from, &call, is_lost);
        }
        if self.random.permille(network.repeated) {
            arrivals.push((self.now_us + delay_us + self.random.below(1_000_000), true));
        }
        for (at_us, is_repeat) in arrivals {
            // A frozen origin serves what has come in when it wakes up.
            let at_us = at_us.max(self.redis(process, store).frozen_until_us);
            let sending = CallSending { id, sent_us: self.now_us, is_replay, is_repeat, is_served: false };
            self.at(at_us, Event::CallArrives { from, store, call: Box::new(call.clone()), sending });
        }
    }

    /// Takes note of the keys that a replay is about, until it has arrived.
    fn note_replay(&mut self, from: To, call: &Call, is_lost: bool) {
        for part in &call.parts {
            self.oracle.told_again += u64::from(self.told_under_way.contains(&(from, part.key)));
            if !is_lost {
                self.told_under_way.insert((from, part.key));
            }
        }
    }

    pub(super) fn call_arrives(&mut self, from: To, store: Store, call: &Call, sending: CallSending) {
        let CallSending { id, sent_us, is_replay, is_repeat, is_served } = sending;
        let frozen_until_us = self.redis(from.process, store).frozen_until_us;
        if self.now_us < frozen_until_us {
            self.at(frozen_until_us, Event::CallArrives { from, store, call: Box::new(call.clone()), sending });
            return;
        }
        if let Some(times) = self.setup.service.filter(|_| !is_served) {
            let now_ns = self.now_us * 1000;
            let home = self.redis_mut(from.process, store);
            home.busy_until_ns = home.busy_until_ns.max(now_ns) + times.of(call);
            let done_us = home.busy_until_ns.div_ceil(1000);
            let sending = CallSending { is_served: true, ..sending };
            self.at(done_us, Event::CallArrives { from, store, call: Box::new(call.clone()), sending });
            return;
        }
        // It has taken its fields out, and closed its connections.
        if is_repeat && self.left.contains(&call.process) {
            return;
        }
        if is_replay && !is_repeat {
            for part in &call.parts {
                self.told_under_way.remove(&(from, part.key));
            }
        }
        self.oracle.calls += 1;
        self.oracle.cells += call.parts.iter().map(|part| part.cells.len() as u64).sum::<u64>();
        if is_replay {
            self.oracle.told += call.parts.len() as u64;
        }
        let time_ms = self.now_ms();
        let is_planted = is_replay && self.random.permille(100);
        let reply = match self.setup.plant {
            Some(Plant::LostAcknowledgement) if is_planted => {
                self.redis(from.process, store).origin.clone().call(call, time_ms)
            }
            Some(Plant::DoubleApply) if is_planted => {
                let mut again = call.clone();
                again.process = ProcessId(self.random.number());
                self.redis_mut(from.process, store).origin.call(&again, time_ms);
                self.redis_mut(from.process, store).origin.call(call, time_ms)
            }
            _ => self.redis_mut(from.process, store).origin.call(call, time_ms),
        };
        if is_repeat {
            return;
        }
        if self.random.permille(self.setup.network.lost_replies) {
            self.at(self.now_us + CLOSED_AFTER_US, Event::CallFails { to: from, store, id });
            return;
        }
        let at_us = self.now_us + self.delay_us();
        self.at(at_us, Event::ReplyArrives { to: from, store, id, reply: Box::new(reply), sent_us });
    }

    pub(super) fn beat(&mut self, process: usize) {
        for store in [Store::Origin, Store::Owner] {
            if self.processes[process].store(store).is_none() {
                continue;
            }
            if self.now_us >= self.redis(process, store).frozen_until_us {
                self.beat_at(process, store);
            } else {
                let to = self.to(process);
                self.at(self.now_us + BEAT_TIMEOUT_US, Event::BeatFails { to, store });
            }
        }
        self.at(self.now_us + BEAT_EVERY_US, Event::Beat { process });
        for tenth in 0..10 {
            self.at(self.now_us + tenth * BEAT_EVERY_US / 10, Event::Probe { process });
        }
    }

    fn beat_at(&mut self, process: usize, store: Store) {
        let (now, now_ms) = (self.now(process), self.now_ms());
        let id = self.processes[process].region.process();
        let beat = self.redis_mut(process, store).origin.beat(id, now_ms);
        let Process { region, owner, witness, .. } = &mut self.processes[process];
        let region = match store {
            Store::Origin => &*region,
            // Nothing makes the owner lose its data.
            Store::Owner => match owner {
                Some(owner) => &*owner,
                None => return,
            },
        };
        region.set_live(u32::try_from(beat.live).unwrap_or(u32::MAX));
        region.heartbeat_ended(true, now);
        if store == Store::Origin && witness.hear_incarnation(beat.incarnation, false) {
            region.heal();
        }
    }
}
