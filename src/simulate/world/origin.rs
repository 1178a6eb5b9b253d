//! Carries calls to the stores, and replies and heartbeats.

use crate::engine::reach::Store;
use crate::regional::call::{Call, ProcessId};
use crate::regional::region::{CallId, CallPurpose, OutgoingCall};
use crate::simulate::faults::Plant;
use crate::simulate::process::Process;
use crate::simulate::world::event::{Event, To};
use crate::simulate::world::{BEAT_EVERY_US, World};

impl World {
    fn delay_us(&mut self) -> u64 {
        let (from, to) = self.setup.network.delay_us;
        self.random.between(from, to)
    }

    pub(super) fn send(&mut self, process: usize, store: Store, outgoing: OutgoingCall) {
        let OutgoingCall { id, operation, call, within_us, .. } = outgoing;
        self.digest.call(&call);
        let from = self.to(process);
        let network = self.setup.network;
        let is_replay = operation == CallPurpose::Replay;
        self.at(self.now_us + within_us, Event::CallFails { to: from, store, id });
        let mut arrivals = Vec::new();
        let delay_us = self.delay_us();
        if !self.random.permille(network.lost_calls) {
            let late_us = if self.random.permille(network.late) { self.random.below(1_000_000) } else { 0 };
            arrivals.push((self.now_us + delay_us + late_us, false));
        }
        if self.random.permille(network.repeated) {
            arrivals.push((self.now_us + delay_us + self.random.below(1_000_000), true));
        }
        for (at_us, is_repeat) in arrivals {
            // A frozen origin serves what has come in when it wakes up.
            let at_us = at_us.max(self.redis(process, store).frozen_until_us);
            self.at(at_us, Event::CallArrives { from, store, id, call: Box::new(call.clone()), is_replay, is_repeat });
        }
    }

    pub(super) fn call_arrives(
        &mut self,
        from: To,
        store: Store,
        id: CallId,
        call: &Call,
        is_replay: bool,
        is_repeat: bool,
    ) {
        let frozen_until_us = self.redis(from.process, store).frozen_until_us;
        if self.now_us < frozen_until_us {
            let (call, at_us) = (Box::new(call.clone()), frozen_until_us);
            self.at(at_us, Event::CallArrives { from, store, id, call, is_replay, is_repeat });
            return;
        }
        self.oracle.calls += 1;
        self.oracle.cells += call.parts.iter().map(|part| part.cells.len() as u64).sum::<u64>();
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
        if is_repeat || self.random.permille(self.setup.network.lost_replies) {
            return;
        }
        let at_us = self.now_us + self.delay_us();
        self.at(at_us, Event::ReplyArrives { to: from, store, id, reply: Box::new(reply) });
    }

    pub(super) fn beat(&mut self, process: usize) {
        for store in [Store::Origin, Store::Owner] {
            let is_there = self.processes[process].store(store).is_some();
            if is_there && self.now_us >= self.redis(process, store).frozen_until_us {
                self.beat_at(process, store);
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
