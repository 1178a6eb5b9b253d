//! The servers of a store: one, or the nodes of a Cluster, each with a part of the keys and troubles of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::regional::call::Call;
use crate::regional::model::Origin;
use crate::regional::node_map::{MapNode, NodeId, NodeMap, SLOTS};
use crate::regional::redis::cluster_slot::cluster_slot;

/// How many copies are kept of each server.
const COPIES_MAX: usize = 50;

/// A simulated Redis.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// What it holds.
    pub(super) origin: Origin,
    /// Names this run: another one may have older data.
    pub(super) run_id: u64,
    /// Copies and when they were made, the oldest first.
    copies: VecDeque<(u64, Origin)>,
    /// Until when nothing is answered: calls that arrive are served then.
    pub(super) frozen_until_us: u64,
    /// Until when probes fail, and nothing else.
    pub(super) probes_fail_until_us: u64,
    /// When it has served all that has come in.
    pub(super) busy_until_ns: u64,
    /// How much longer than usual an answer takes, between these, and until when.
    pub(super) slow: ((u64, u64), u64),
}

impl Server {
    /// The copy that was made at that time, or the oldest.
    fn copy_of(&self, then_us: u64) -> Option<Origin> {
        let copy = self.copies.iter().rev().find(|(at_us, _)| *at_us <= then_us).or(self.copies.front());
        copy.map(|(_, copy)| copy.clone())
    }
}

/// The servers of a store.
#[derive(Debug)]
pub(super) struct Servers {
    /// By the number of their id. Those that have lost their slots stay here.
    all: Vec<Server>,
    map: Arc<NodeMap>,
    runs: u64,
}

impl Servers {
    /// So many servers share the slots evenly.
    pub(super) fn new(count: usize) -> Servers {
        let bound = |number: usize| (number * usize::from(SLOTS) / count) as u16;
        let ids = || (0..count).map(|number| NodeId(number as u32));
        let ranges: Vec<_> = ids().enumerate().map(|(at, id)| (bound(at), bound(at + 1) - 1, id)).collect();
        let nodes = ids().map(Servers::shown).collect();
        let map = if count == 1 { NodeMap::undivided("0") } else { NodeMap::divided(nodes, &ranges) };
        let all = (0..count).map(|number| Server { run_id: number as u64, ..Server::default() }).collect();
        Servers { all, map: Arc::new(map), runs: count as u64 }
    }

    fn shown(id: NodeId) -> MapNode {
        MapNode { id, address: id.0.to_string().into() }
    }

    /// Who has which slot now.
    pub(super) fn map(&self) -> &Arc<NodeMap> {
        &self.map
    }

    pub(super) fn is_divided(&self) -> bool {
        self.map.nodes().len() > 1
    }

    /// Who has what a call is about.
    pub(super) fn of_call(&self, call: &Call) -> NodeId {
        self.of_slot(call.parts.first().map_or(0, |part| cluster_slot(&part.key)))
    }

    /// Who has a slot.
    pub(super) fn of_slot(&self, slot: u16) -> NodeId {
        self.map.of(if self.is_divided() { slot } else { 0 })
    }

    pub(super) fn get(&self, id: NodeId) -> &Server {
        &self.all[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> &mut Server {
        &mut self.all[id.0 as usize]
    }

    /// Those that have slots.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (NodeId, &Server)> {
        self.map.nodes().iter().map(|node| (node.id, self.get(node.id)))
    }

    /// Does something with each that has slots.
    pub(super) fn each(&mut self, mut change: impl FnMut(&mut Server)) {
        let map = self.map.clone();
        map.nodes().iter().for_each(|node| change(self.get_mut(node.id)));
    }

    /// Keeps a copy of each.
    pub(super) fn copy(&mut self, now_us: u64) {
        self.each(|server| {
            server.copies.push_back((now_us, server.origin.clone()));
            if server.copies.len() > COPIES_MAX {
                server.copies.pop_front();
            }
        });
    }

    /// All lose what they have, and are the same servers otherwise.
    pub(super) fn clear(&mut self) {
        self.each(|server| server.origin.clear());
    }

    /// Copies from then take over from all.
    pub(super) fn fail_over(&mut self, then_us: u64) {
        let mut runs = self.runs;
        self.each(|server| {
            if let Some(copy) = server.copy_of(then_us) {
                server.origin = copy;
                (server.run_id, runs) = (runs, runs + 1);
            }
        });
        self.runs = runs;
    }

    /// A replica, which has what this server had then, takes over its slots. The server itself is on its own.
    pub(super) fn promote(&mut self, id: NodeId, then_us: u64) {
        let Some(origin) = self.get(id).copy_of(then_us) else { return };
        let replica = NodeId(self.all.len() as u32);
        self.all.push(Server { origin, run_id: self.runs, ..Server::default() });
        self.runs += 1;
        let owner = |slot: u16| if self.map.of(slot) == id { replica } else { self.map.of(slot) };
        let ranges: Vec<_> = (0..SLOTS).map(|slot| (slot, slot, owner(slot))).collect();
        let others = self.map.nodes().iter().map(|node| node.id).filter(|other| *other != id);
        let nodes = others.chain([replica]).map(Servers::shown).collect();
        self.map = Arc::new(NodeMap::divided(nodes, &ranges));
    }
}
