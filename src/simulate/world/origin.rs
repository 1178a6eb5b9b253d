//! Calls to the regions' origins, and their replies.

use crate::regional::call::{Call, ProcessId};
use crate::regional::region::{CallId, Operation, Outgoing};
use crate::simulate::faults::Plant;
use crate::simulate::process::Process;
use crate::simulate::world::{BEAT_EVERY_US, Event, To, World};

impl World {
    fn delay_us(&mut self) -> u64 {
        let (from, to) = self.setup.network.delay_us;
        self.random.between(from, to)
    }

    pub(super) fn send(&mut self, process: usize, outgoing: Outgoing) {
        let Outgoing { id, operation, call, within_us, .. } = outgoing;
        self.digest.call(&call);
        let from = self.to(process);
        let network = self.setup.network;
        let is_replay = operation == Operation::Replay;
        self.at(self.now_us + within_us, Event::CallFails { to: from, id });
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
            let at_us =
                if at_us >= self.home(process).frozen_until_us { at_us } else { self.home(process).frozen_until_us };
            self.at(at_us, Event::CallArrives { from, id, call: Box::new(call.clone()), is_replay, is_repeat });
        }
    }

    pub(super) fn call_arrives(&mut self, from: To, id: CallId, call: &Call, is_replay: bool, is_repeat: bool) {
        if self.now_us < self.home(from.process).frozen_until_us {
            let (call, at_us) = (Box::new(call.clone()), self.home(from.process).frozen_until_us);
            self.at(at_us, Event::CallArrives { from, id, call, is_replay, is_repeat });
            return;
        }
        self.oracle.calls += 1;
        self.oracle.cells += call.parts.iter().map(|part| part.cells.len() as u64).sum::<u64>();
        let time_ms = self.now_ms();
        let is_planted = is_replay && self.random.permille(100);
        let reply = match self.setup.plant {
            Some(Plant::LostAcknowledgement) if is_planted => {
                self.home(from.process).origin.clone().call(call, time_ms)
            }
            Some(Plant::DoubleApply) if is_planted => {
                let mut again = call.clone();
                again.process = ProcessId(self.random.number());
                self.home_mut(from.process).origin.call(&again, time_ms);
                self.home_mut(from.process).origin.call(call, time_ms)
            }
            _ => self.home_mut(from.process).origin.call(call, time_ms),
        };
        if is_repeat || self.random.permille(self.setup.network.lost_replies) {
            return;
        }
        let at_us = self.now_us + self.delay_us();
        self.at(at_us, Event::ReplyArrives { to: from, id, reply: Box::new(reply) });
    }

    pub(super) fn beat(&mut self, process: usize) {
        if self.now_us >= self.home(process).frozen_until_us {
            let id = self.processes[process].region.process();
            let (now, now_ms) = (self.now(process), self.now_ms());
            let beat = self.home_mut(process).origin.beat(id, now_ms);
            let Process { region, witness, .. } = &mut self.processes[process];
            region.set_live(u32::try_from(beat.live).unwrap_or(u32::MAX));
            region.beaten(true, now);
            if witness.hear_incarnation(beat.incarnation, false) {
                region.heal();
            }
        }
        self.at(self.now_us + BEAT_EVERY_US, Event::Beat { process });
        for tenth in 0..10 {
            self.at(self.now_us + tenth * BEAT_EVERY_US / 10, Event::Probe { process });
        }
    }
}
