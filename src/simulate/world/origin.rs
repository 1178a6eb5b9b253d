//! Carries calls to the stores, and replies back.

use crate::engine::reach::Store;
use crate::regional::call::{Call, ProcessId};
use crate::regional::region::{CallPurpose, OutgoingCall};
use crate::regional::replay::REPLAY_AWAITED_US;
use crate::simulate::faults::Plant;
use crate::simulate::world::World;
use crate::simulate::world::event::{CallSending, Event, To};

/// How long it takes until a process knows that a connection has broken.
const CLOSED_AFTER_US: u64 = 50_000;

impl World {
    pub(super) fn delay_us(&mut self) -> u64 {
        let (from, to) = self.setup.network.delay_us;
        self.random.between(from, to)
    }

    pub(super) fn send(&mut self, process: usize, store: Store, outgoing: OutgoingCall) {
        let OutgoingCall { id, operation, node, call, within_us, .. } = outgoing;
        self.digest.call(&call);
        let from = self.to(process);
        let network = self.setup.network;
        let is_replay = operation == CallPurpose::Replay;
        let timeout_us = self.now_us + within_us;
        let sending = CallSending { id, node, sent_us: self.now_us, is_replay, is_repeat: false, is_served: false };
        self.at(timeout_us, Event::CallTimesOut { to: from, store, sending });
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
            let at_us = at_us.max(self.servers(process, store).get(node).frozen_until_us);
            let sending = CallSending { is_repeat, ..sending };
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
        let CallSending { id, node, is_replay, is_repeat, is_served, .. } = sending;
        let frozen_until_us = self.servers(from.process, store).get(node).frozen_until_us;
        if self.now_us < frozen_until_us {
            self.at(frozen_until_us, Event::CallArrives { from, store, call: Box::new(call.clone()), sending });
            return;
        }
        let serving = self.servers(from.process, store).of_call(call);
        if serving != node {
            // It is sent on to where the slot is now.
            let (at_us, sending) = (self.now_us + 2 * self.delay_us(), CallSending { node: serving, ..sending });
            self.at(at_us, Event::CallArrives { from, store, call: Box::new(call.clone()), sending });
            self.trouble(from);
            return;
        }
        if let Some(times) = self.setup.service.filter(|_| !is_served) {
            let now_ns = self.now_us * 1000;
            let server = self.servers_mut(from.process, store).get_mut(node);
            server.busy_until_ns = server.busy_until_ns.max(now_ns) + times.of(call);
            let done_us = server.busy_until_ns.div_ceil(1000);
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
        let is_planted = is_replay && self.random.permille(100) && self.setup.plant.is_some();
        let again = ProcessId(if is_planted { self.random.number() } else { 0 });
        let plant = self.setup.plant.filter(|_| is_planted);
        let server = self.servers_mut(from.process, store).get_mut(node);
        let ((least_us, most_us), slow_until_us) = server.slow;
        let reply = match plant {
            Some(Plant::LostAcknowledgement) => server.origin.clone().call(call, time_ms),
            Some(Plant::DoubleApply) => {
                let mut twice = call.clone();
                twice.process = again;
                server.origin.call(&twice, time_ms);
                server.origin.call(call, time_ms)
            }
            None => server.origin.call(call, time_ms),
        };
        if is_repeat {
            return;
        }
        if self.random.permille(self.setup.network.lost_replies) {
            self.at(self.now_us + CLOSED_AFTER_US, Event::CallFails { to: from, store, id });
            return;
        }
        let slow_us = if self.now_us < slow_until_us { self.random.between(least_us, most_us) } else { 0 };
        let at_us = self.now_us + self.delay_us() + slow_us;
        self.at(at_us, Event::ReplyArrives { to: from, store, reply: Box::new(reply), sending });
    }
}
