//! How processes find out how their stores are: heartbeats, probes, and who has which slot.

use std::sync::Arc;

use crate::engine::reach::Store;
use crate::regional::node_map::{NodeId, NodeMap};
use crate::regional::redis::cluster_slot::beat_slot;
use crate::regional::region::ProbeResult;
use crate::simulate::process::Process;
use crate::simulate::world::event::{Event, To};
use crate::simulate::world::{BEAT_EVERY_US, BEAT_TIMEOUT_US, MONO_START_US, World};

/// How many calls a probe makes, one after the other.
const PROBE_CALLS: u32 = 3;
/// Luck with the pauses between reads of a map: all processes have the same here.
const NO_LUCK: f64 = 0.0;

impl World {
    /// Sends the heartbeats of a process, and plans the next ones and its probes.
    pub(super) fn beat(&mut self, process: usize) {
        for store in [Store::Origin, Store::Owner] {
            if self.processes[process].store(store).is_none() {
                continue;
            }
            let servers = self.servers(process, store);
            let node = servers.map().of(beat_slot(store));
            let frozen_until_us = servers.get(node).frozen_until_us;
            if self.now_us >= frozen_until_us {
                self.beat_at(process, store, node);
            } else {
                let from = self.to(process);
                self.at(self.now_us + BEAT_TIMEOUT_US, Event::BeatFails { to: from, store, node });
                // It is served all the same, when nobody waits for the answer any more.
                let late_us = frozen_until_us.max(self.now_us + BEAT_TIMEOUT_US);
                self.at(late_us, Event::BeatArrives { from, store, node });
            }
            self.identify(process, store, node);
        }
        self.at(self.now_us + BEAT_EVERY_US, Event::Beat { process });
        for tenth in 0..10 {
            self.at(self.now_us + tenth * BEAT_EVERY_US / 10, Event::Probe { process });
        }
    }

    fn beat_at(&mut self, process: usize, store: Store, node: NodeId) {
        let (now, now_ms) = (self.now(process), self.now_ms());
        let id = self.processes[process].region.process();
        let beat = self.servers_mut(process, store).get_mut(node).origin.beat(id, now_ms);
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

    /// Asks every node who it is: another run may have older data. Those that don't answer may be the same as before.
    fn identify(&mut self, process: usize, store: Store, beaten: NodeId) {
        if store != Store::Origin {
            return;
        }
        let (now, to) = (self.now(process), self.to(process));
        let known = self.processes[process].region.nodes_in_use();
        let servers = self.servers(process, store);
        let mut silent = Vec::new();
        let mut run_ids = self.processes[process].run_ids.clone();
        run_ids.retain(|id, _| servers.in_use().any(|(other, _)| other == *id));
        for (id, server) in servers.in_use().filter(|(id, _)| known.contains(id)) {
            if self.now_us < server.frozen_until_us {
                silent.push(id);
            } else {
                run_ids.insert(id, server.run_id);
            }
        }
        for node in silent.into_iter().filter(|node| *node != beaten) {
            self.at(self.now_us + BEAT_TIMEOUT_US, Event::BeatFails { to, store, node });
        }
        let Process { region, witness, run_ids: before, .. } = &mut self.processes[process];
        for node in run_ids.keys().filter(|node| **node != beaten) {
            region.node_answered(*node, true, now);
        }
        *before = run_ids;
        let names: Vec<String> = before.values().map(u64::to_string).collect();
        if !names.is_empty() && witness.hear_run_ids(&names) {
            region.heal();
        }
    }

    /// A heartbeat is served too late. The server hears of the process, which does not hear of that.
    pub(super) fn beat_arrives(&mut self, from: To, store: Store, node: NodeId) {
        let (id, now_ms) = (self.processes[from.process].region.process(), self.now_ms());
        if self.is_there(from) {
            self.servers_mut(from.process, store).get_mut(node).origin.beat(id, now_ms);
        }
    }

    pub(super) fn beat_fails(&mut self, to: To, store: Store, node: NodeId) {
        let now = self.now(to.process);
        let is_divided = self.servers(to.process, store).is_divided();
        let beaten = self.servers(to.process, store).map().of(beat_slot(store));
        let Some(region) = self.processes[to.process].store(store) else { return };
        if !is_divided || beaten == node {
            region.heartbeat_ended(false, now);
        } else {
            region.node_answered(node, false, now);
        }
        self.trouble(to);
    }

    /// Makes the probes that a process wants: several calls in a row, each in its time.
    pub(super) fn probe(&mut self, process: usize) {
        let (now, to) = (self.now(process), self.to(process));
        for store in [Store::Origin, Store::Owner] {
            let Some(region) = self.processes[process].store(store) else { continue };
            for node in region.wants_probes(now) {
                let (took_us, is_success) = self.trial(process, store, node);
                if !is_success {
                    self.trouble(to);
                }
                match took_us {
                    0 => self.probe_ends(to, store, node, is_success),
                    _ => self.at(self.now_us + took_us, Event::ProbeEnds { to, store, node, is_success }),
                }
            }
        }
    }

    /// How long a probe takes, and whether it is answered.
    fn trial(&mut self, process: usize, store: Store, node: NodeId) -> (u64, bool) {
        let server = self.servers(process, store).get(node);
        if self.now_us < server.frozen_until_us.max(server.probes_fail_until_us) {
            return (0, false);
        }
        let ((least_us, most_us), until_us) = server.slow;
        if self.now_us >= until_us {
            return (0, true);
        }
        let deadline_us = self.setup.deadline_us;
        let mut took_us = 0;
        for _ in 0..PROBE_CALLS {
            let call_us = self.random.between(least_us, most_us);
            took_us += call_us.min(deadline_us);
            if call_us > deadline_us {
                return (took_us, false);
            }
        }
        (took_us, true)
    }

    pub(super) fn probe_ends(&mut self, to: To, store: Store, node: NodeId, is_success: bool) {
        if !self.is_there(to) {
            return;
        }
        let now = self.now(to.process);
        let good = ProbeResult { checks: is_success, strict: is_success, replays: is_success };
        if let Some(region) = self.processes[to.process].store(store) {
            region.probed(node, good, now);
        }
    }

    /// A call of a process has failed: it asks who has which slot, where there are several nodes.
    pub(super) fn trouble(&mut self, to: To) {
        if !self.servers(to.process, Store::Origin).is_divided() {
            return;
        }
        let mono_us = self.now(to.process).mono_us;
        let watch = &mut self.processes[to.process].map_watch;
        let before_us = watch.next_us();
        watch.trouble(mono_us);
        let next_us = watch.next_us();
        if next_us < before_us {
            self.at(next_us.saturating_sub(MONO_START_US).max(self.now_us), Event::ReadMap { to });
        }
    }

    /// Plans the first read of a process. It knows the map from the start.
    pub(super) fn plan_maps(&mut self, process: usize) {
        if !self.servers(process, Store::Origin).is_divided() {
            return;
        }
        let (to, mono_us) = (self.to(process), self.now(process).mono_us);
        self.processes[process].map_watch.read(NO_LUCK, mono_us);
        let next_us = self.processes[process].map_watch.next_us() - MONO_START_US;
        self.at(next_us, Event::ReadMap { to });
    }

    /// A read that was planned before an earlier one took its place is not due any more.
    pub(super) fn read_map(&mut self, to: To) {
        let mono_us = MONO_START_US + self.now_us;
        if !self.is_there(to) || self.processes[to.process].map_watch.next_us() > mono_us {
            return;
        }
        let servers = self.servers(to.process, Store::Origin);
        let answers = servers.in_use().any(|(_, server)| self.now_us >= server.frozen_until_us);
        let map = answers.then(|| servers.map().clone());
        // No other is planned until this one has ended.
        let (_, there_and_back_us) = self.setup.network.delay_us;
        let took_us = if answers { 2 * there_and_back_us } else { BEAT_TIMEOUT_US };
        self.at(self.now_us + took_us, Event::MapArrives { to, map });
    }

    pub(super) fn map_arrives(&mut self, to: To, map: Option<Arc<NodeMap>>) {
        if !self.is_there(to) {
            return;
        }
        let now = self.now(to.process);
        let process = &mut self.processes[to.process];
        if let Some(map) = map {
            process.region.set_nodes(map);
        }
        process.map_watch.read(NO_LUCK, now.mono_us);
        let next_us = process.map_watch.next_us() - MONO_START_US;
        self.at(next_us, Event::ReadMap { to });
        self.plan_polls(to.process);
    }
}
