//! Which server has which slot: a Cluster divides its keys among several nodes, and each of them may be down by itself.
//!
//! A store that is not a Cluster has one node, and so has a Cluster as long as nobody has said how it is divided. A node is
//! named by a number that is never given to another one, and by its address for people.

use std::fmt;
use std::sync::Arc;

/// Slots of a Cluster.
pub const SLOTS: u16 = 16_384;

/// Names a primary of a Cluster, for as long as it has slots, or the only server there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The only server, where there is no Cluster.
    pub const ONLY: NodeId = NodeId(0);
    /// Has the slots that no node serves.
    pub const NOBODY: NodeId = NodeId(u32::MAX);
}

/// A node and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapNode {
    /// Names it to machines.
    pub id: NodeId,
    /// Names it to people.
    pub address: Arc<str>,
}

/// Who has which slot.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeMap {
    nodes: Vec<MapNode>,
    /// By slot; empty if one node has all of them.
    of_slot: Vec<NodeId>,
}

impl fmt::Debug for NodeMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeMap").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl NodeMap {
    /// One node has everything.
    pub fn undivided(address: &str) -> NodeMap {
        NodeMap { nodes: vec![MapNode { id: NodeId::ONLY, address: address.into() }], of_slot: Vec::new() }
    }

    /// Nobody knows who has what.
    pub fn unknown() -> NodeMap {
        NodeMap { nodes: Vec::new(), of_slot: vec![NodeId::NOBODY; usize::from(SLOTS)] }
    }

    /// Nodes with ranges of slots, from the first to the last. Nobody has slots that are in no range.
    pub fn divided(nodes: Vec<MapNode>, ranges: &[(u16, u16, NodeId)]) -> NodeMap {
        let mut of_slot = vec![NodeId::NOBODY; usize::from(SLOTS)];
        for (first, last, id) in ranges {
            for slot in *first..=(*last).min(SLOTS - 1) {
                of_slot[usize::from(slot)] = *id;
            }
        }
        NodeMap { nodes, of_slot }
    }

    /// Who has a slot.
    pub fn of(&self, slot: u16) -> NodeId {
        match self.of_slot.get(usize::from(slot)) {
            Some(id) => *id,
            None => self.nodes.first().map_or(NodeId::NOBODY, |only| only.id),
        }
    }

    /// The nodes that there are.
    pub fn nodes(&self) -> &[MapNode] {
        &self.nodes
    }

    /// Gives one slot to another node.
    pub fn move_slot(&mut self, slot: u16, to: MapNode) {
        if self.of_slot.is_empty() {
            self.of_slot = vec![self.of(0); usize::from(SLOTS)];
        }
        if let Some(id) = self.of_slot.get_mut(usize::from(slot)) {
            *id = to.id;
            if !self.nodes.contains(&to) {
                self.nodes.push(to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32) -> MapNode {
        MapNode { id: NodeId(id), address: format!("host:{id}").into() }
    }

    #[test]
    fn every_slot_has_a_node_or_nobody() {
        let only = NodeMap::undivided("host:1");
        assert!([0, SLOTS - 1].iter().all(|slot| only.of(*slot) == NodeId::ONLY));
        assert_eq!(NodeMap::unknown().of(7), NodeId::NOBODY);
        let map = NodeMap::divided(vec![node(1), node(2)], &[(0, 99, NodeId(1)), (200, 20_000, NodeId(2))]);
        assert_eq!(
            [0, 99, 100, 200, SLOTS - 1].map(|slot| map.of(slot)),
            [NodeId(1), NodeId(1), NodeId::NOBODY, NodeId(2), NodeId(2)]
        );
    }

    #[test]
    fn a_slot_moves_alone() {
        let mut map = NodeMap::undivided("host:0");
        map.move_slot(5, node(3));
        assert_eq!([4, 5, 6].map(|slot| map.of(slot)), [NodeId(0), NodeId(3), NodeId(0)]);
        assert_eq!(map.nodes().len(), 2);
    }
}
