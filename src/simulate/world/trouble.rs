//! Makes things go wrong.

use crate::engine::reach::Store;
use crate::regional::node_map::NodeId;
use crate::simulate::faults::{Fault, Network, Way};
use crate::simulate::process::{Process, SimulatedWait};
use crate::simulate::world::event::{Event, To};
use crate::simulate::world::{LEAVE_WITHIN_US, World};

impl World {
    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Freeze { region, for_us } => {
                let until_us = self.now_us + for_us;
                self.homes[region].servers.each(|server| server.frozen_until_us = until_us);
            }
            Fault::FreezeOwner { for_us } => {
                let until_us = self.now_us + for_us;
                self.owner.each(|server| server.frozen_until_us = until_us);
            }
            Fault::FreezeNode { region, node, for_us } => {
                let until_us = self.now_us + for_us;
                self.homes[region].servers.get_mut(NodeId(node as u32)).frozen_until_us = until_us;
            }
            Fault::Promote { region, node, back_us } => {
                self.note_unacknowledged(region);
                let then_us = self.now_us.saturating_sub(back_us);
                // Calls that fail have processes ask who has its slots.
                self.homes[region].servers.promote(NodeId(node as u32), then_us);
            }
            Fault::Slow { region, by_us, for_us } => {
                let slow = (by_us, self.now_us + for_us);
                self.homes[region].servers.each(|server| server.slow = slow);
            }
            Fault::FailProbes { region, for_us } => {
                let until_us = self.now_us + for_us;
                self.homes[region].servers.each(|server| server.probes_fail_until_us = until_us);
            }
            Fault::LoseData { region } => {
                self.note_unacknowledged(region);
                // Heartbeats notice it.
                self.homes[region].servers.clear();
            }
            Fault::Failover { region, back_us } => {
                // Cells that the copy does not have yet are lost.
                self.note_unacknowledged(region);
                let then_us = self.now_us.saturating_sub(back_us);
                // Heartbeats notice that other servers answer.
                self.homes[region].servers.fail_over(then_us);
            }
            Fault::Partition { region, way, for_us } => {
                let until_us = self.now_us + for_us;
                if way != Way::Back {
                    self.homes[region].cut_there_us = until_us;
                }
                if way != Way::There {
                    self.homes[region].cut_back_us = until_us;
                }
            }
            Fault::Stall { for_us } => self.table.stalled_until_us = self.now_us + for_us,
            Fault::FreezeTable { for_us } => self.table.busy_until_ns = (self.now_us + for_us) * 1000,
            Fault::TableClock { by_ms } => self.table.skew_ms = by_ms,
            Fault::Skew { region, by_ms } => {
                for process in self.processes_of(region) {
                    self.processes[process].skew_ms = by_ms;
                }
            }
            Fault::Clock { process, by_ms } => self.processes[process].skew_ms = by_ms,
            Fault::Pause { process, for_us } => {
                let to = self.to(process);
                self.paused.insert(to, self.now_us + for_us);
            }
            Fault::Crash { process } => {
                self.oracle.died_with += self.pending(process);
                self.replace(process);
            }
            Fault::Restart { process } => {
                let to = self.to(process);
                self.processes[process].stores().for_each(|region| region.release_held());
                self.leaving[process] = Some(self.now_us + LEAVE_WITHIN_US);
                self.at(self.now_us, Event::Leave { to });
            }
            Fault::Join => self.join(),
            Fault::Calm => self.setup.network = Network::QUIET,
        }
    }

    /// A step of a clean stop: tells what is pending. When all of it was told, or the time is up, another process takes
    /// the place.
    pub(super) fn leave(&mut self, to: To) {
        let Some(until_us) = self.leaving[to.process].filter(|_| self.is_there(to)) else { return };
        let process = &self.processes[to.process];
        let is_behind = process.stores().any(|region| region.is_behind());
        if process.waiting.is_empty() && !is_behind || self.now_us >= until_us {
            self.oracle.died_with += self.pending(to.process);
            let now = self.now(to.process);
            for store in [Store::Origin, Store::Owner] {
                let Some(region) = self.processes[to.process].store(store) else { continue };
                let (id, fields) = (region.process(), region.fields(now));
                if !fields.is_empty() {
                    self.left.insert(id);
                }
                self.servers_mut(to.process, store).each(|server| server.origin.leave(id, &fields));
            }
            self.say_farewell(to);
            self.leaving[to.process] = None;
            self.replace(to.process);
            return;
        }
        let now = self.now(to.process);
        for store in [Store::Origin, Store::Owner] {
            self.react(to.process, store, |region| region.flush_now(now));
        }
        self.at(self.now_us + 5_000, Event::Leave { to });
    }

    fn join(&mut self) {
        let process = self.processes.len();
        let started = self.start(process);
        self.processes.push(started);
        self.leaving.push(None);
        self.plan_exchange(process);
        self.plan_polls(process);
        self.plan_maps(process);
        self.at(self.now_us, Event::Beat { process });
    }

    pub(super) fn processes_of(&self, region: usize) -> std::ops::Range<usize> {
        let is_last = region + 1 == self.setup.regions;
        let end = if is_last { self.processes.len() } else { (region + 1) * self.setup.processes };
        region * self.setup.processes..end
    }

    /// Notes what may be told twice after a loss: hits that are pending, and those in calls that were sent before it.
    fn note_unacknowledged(&mut self, region: usize) {
        let brought = |event: &Event| match event {
            Event::CallArrives { from, store: Store::Origin, call, .. } if self.region_of(from.process) == region => {
                let cells = call.parts.iter().flat_map(|part| &part.cells);
                cells.map(|told| told.own.saturating_sub(told.acked)).sum()
            }
            _ => 0,
        };
        let under_way: u64 = self.events.values().map(brought).sum();
        let pending: u64 = self.processes_of(region).map(|it| self.pending(it)).sum();
        self.oracle.unacknowledged += under_way + pending;
    }

    fn replace(&mut self, process: usize) {
        // Requests that wait there get no answer; what a store was asked for them may still arrive.
        let waiting = std::mem::take(&mut self.processes[process].waiting);
        self.oracle.abandoned_hits += waiting.values().map(SimulatedWait::hits).sum::<u64>();
        let skew_ms = self.processes[process].skew_ms;
        self.processes[process] = Process { skew_ms, ..self.start(process) };
        self.plan_exchange(process);
        self.next_poll.retain(|(other, _), _| *other != process);
        self.plan_polls(process);
        self.plan_maps(process);
        self.at(self.now_us, Event::Beat { process });
    }
}
