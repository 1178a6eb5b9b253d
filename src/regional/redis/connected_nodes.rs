//! The servers behind a store, each with connections of its own, and who of them has which slot.
//!
//! A store that is not a Cluster is one server. In a Cluster every primary has its own lanes, so that one which hangs holds up
//! nobody but its own keys: neither calls to others nor the search for its successor. The client library's own client of
//! Clusters is not used, because it makes connections to a node while calls to all nodes wait.
//!
//! Who has which slot is asked of the nodes themselves ([`topology`](crate::regional::redis::topology)). A node that is new in the answer gets its slots when
//! its connections are there. A call that goes to the wrong node is sent on once, and its slot is remembered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::regional::node_map::{MapNode, NodeId, NodeMap};
use crate::regional::redis::cluster_slot::slot_of_name;
use crate::regional::redis::error::OriginError;
use crate::regional::redis::failures::Failures;
use crate::regional::redis::lanes::{ConnectionStatus, Lane, Lanes, Live};
use crate::regional::redis::settings::RedisSettings;
use crate::regional::redis::settings::address::{RedisNode, RedisTarget};
use crate::regional::redis::slots::SlotRange;

/// How often somebody who waits for connections looks whether they are there.
const CONNECTED_LOOK: Duration = Duration::from_millis(5);

/// A server, and the task that keeps us connected to it.
pub(super) struct ConnectedNode {
    /// Names it in maps.
    pub id: NodeId,
    /// Where it is; `None` if the store is no Cluster.
    pub address: Option<RedisNode>,
    /// Its connections.
    pub lanes: Arc<Lanes>,
    connector: AbortHandle,
}

impl Drop for ConnectedNode {
    fn drop(&mut self) {
        self.connector.abort();
        self.lanes.close();
    }
}

impl ConnectedNode {
    pub(super) fn live(&self, lane: Lane) -> Result<Arc<Live>, OriginError> {
        self.lanes.live(lane)
    }

    fn shown(&self) -> MapNode {
        let address = match &self.address {
            Some(node) => node.to_string(),
            None => self.lanes.settings().place.to_string(),
        };
        MapNode { id: self.id, address: address.into() }
    }
}

/// The servers, and who has which slot: changed together.
#[derive(Clone)]
struct Placement {
    map: Arc<NodeMap>,
    nodes: HashMap<NodeId, Arc<ConnectedNode>>,
}

/// All servers of a store.
pub(super) struct ConnectedNodes {
    settings: RedisSettings,
    /// The lanes to each server.
    served: &'static [Lane],
    placement: ArcSwap<Placement>,
    /// Locked by whoever changes the placement.
    change: Mutex<()>,
    /// Tells when the map has changed.
    maps: watch::Sender<Arc<NodeMap>>,
    /// Told when a call fails.
    pub(super) trouble: Arc<Notify>,
    next_id: AtomicU32,
    /// Connections to nodes that are gone.
    connections_before: AtomicU64,
    failures: Failures,
}

impl ConnectedNodes {
    /// Begins to connect. Must be called on the runtime. The nodes of a Cluster are not known yet.
    pub(super) fn start(settings: RedisSettings, served: &'static [Lane]) -> Arc<ConnectedNodes> {
        let map = match settings.place {
            RedisTarget::Cluster(_) => NodeMap::unknown(),
            _ => NodeMap::undivided(&settings.place.to_string()),
        };
        let map = Arc::new(map);
        let placement = Placement { map: map.clone(), nodes: HashMap::new() };
        let nodes = ConnectedNodes {
            settings,
            served,
            placement: ArcSwap::from_pointee(placement),
            change: Mutex::default(),
            maps: watch::Sender::new(map.clone()),
            trouble: Arc::default(),
            next_id: AtomicU32::new(NodeId::ONLY.0),
            connections_before: AtomicU64::new(0),
            failures: Failures::default(),
        };
        if !nodes.is_cluster() {
            let only = nodes.node(None);
            let placement = Placement { map, nodes: HashMap::from([(only.id, only)]) };
            nodes.placement.store(Arc::new(placement));
        }
        Arc::new(nodes)
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.settings.place, RedisTarget::Cluster(_))
    }

    pub(super) fn settings(&self) -> &RedisSettings {
        &self.settings
    }

    /// A server that we begin to connect to: a node of the Cluster, or `None` for the only server there is.
    fn node(&self, address: Option<RedisNode>) -> Arc<ConnectedNode> {
        let mut settings = self.settings.clone();
        if let Some(node) = &address {
            settings.place = RedisTarget::Single(node.clone());
        }
        let lanes = Lanes::new(settings, self.served, self.trouble.clone());
        let connector = tokio::spawn(lanes.clone().keep_connected()).abort_handle();
        let id = NodeId(self.next_id.fetch_add(1, Ordering::Relaxed));
        Arc::new(ConnectedNode { id, address, lanes, connector })
    }

    /// The lane over which nodes are asked who has which slot: one that every node has.
    pub(super) fn asked_over(&self) -> Lane {
        self.served.last().copied().unwrap_or(Lane::Beats)
    }

    /// The map, now and whenever it changes.
    pub(super) fn maps(&self) -> watch::Receiver<Arc<NodeMap>> {
        self.maps.subscribe()
    }

    pub(super) fn all(&self) -> Vec<Arc<ConnectedNode>> {
        let mut all: Vec<_> = self.placement.load().nodes.values().cloned().collect();
        all.sort_unstable_by_key(|node| node.id);
        all
    }

    pub(super) fn get(&self, id: NodeId) -> Result<Arc<ConnectedNode>, OriginError> {
        self.placement.load().nodes.get(&id).cloned().ok_or(OriginError::Down)
    }

    /// The server that has a key.
    pub(super) fn of_key(&self, key: Option<&Vec<u8>>) -> Result<Arc<ConnectedNode>, OriginError> {
        let slot = key.filter(|_| self.is_cluster()).map_or(0, |key| slot_of_name(key));
        let placement = self.placement.load();
        placement.nodes.get(&placement.map.of(slot)).cloned().ok_or(OriginError::Down)
    }

    /// The node at this address, if it is known.
    fn at(&self, address: &RedisNode) -> Option<Arc<ConnectedNode>> {
        self.placement.load().nodes.values().find(|node| node.address.as_ref() == Some(address)).cloned()
    }

    /// A slot has moved. Returns the node that has it now; there may be no connection to it yet.
    pub(super) fn moved(&self, slot: u16, to: &RedisNode) -> Arc<ConnectedNode> {
        let _change = self.change.lock();
        let mut placement = Placement::clone(&self.placement.load());
        let node = self.at(to).unwrap_or_else(|| self.node(Some(to.clone())));
        placement.nodes.insert(node.id, node.clone());
        let mut map = NodeMap::clone(&placement.map);
        map.move_slot(slot, node.shown());
        self.publish(Placement { map: Arc::new(map), nodes: placement.nodes });
        node
    }

    /// The node that a call is to be sent on to while its slot moves, if it is known.
    pub(super) fn importing(&self, to: &RedisNode) -> Option<Arc<ConnectedNode>> {
        self.at(to)
    }

    fn publish(&self, placement: Placement) {
        let map = placement.map.clone();
        self.placement.store(Arc::new(placement));
        self.maps.send_if_modified(|known| {
            let is_new = **known != *map;
            *known = map;
            is_new
        });
    }

    /// Takes over who has which slot. ConnectedNodes that are new get theirs when we are connected to them, or when that takes too long.
    pub(super) async fn place(&self, ranges: &[SlotRange]) {
        let mut new: Vec<Arc<ConnectedNode>> = Vec::new();
        for SlotRange { primary, .. } in ranges {
            let is_new = |new: &[Arc<ConnectedNode>]| new.iter().all(|node| node.address.as_ref() != Some(primary));
            if self.at(primary).is_none() && is_new(&new) {
                new.push(self.node(Some(primary.clone())));
            }
        }
        let began = Instant::now();
        while new.iter().any(|node| !node.lanes.is_connected()) && began.elapsed() < self.settings.connect_timeout {
            tokio::time::sleep(CONNECTED_LOOK).await;
        }
        let _change = self.change.lock();
        let mut nodes = HashMap::new();
        let mut parts = Vec::with_capacity(ranges.len());
        for SlotRange { first, last, primary } in ranges {
            let is_it = |node: &&Arc<ConnectedNode>| node.address.as_ref() == Some(primary);
            let known = self.at(primary).or_else(|| new.iter().find(is_it).cloned());
            let Some(node) = known else { continue };
            parts.push((*first, *last, node.id));
            nodes.insert(node.id, node);
        }
        let mut shown: Vec<MapNode> = nodes.values().map(|node| node.shown()).collect();
        shown.sort_unstable_by_key(|node| node.id);
        for gone in self.placement.load().nodes.values().filter(|node| !nodes.contains_key(&node.id)) {
            tracing::info!(node = %gone.shown().address, "has no slots of the Cluster any more");
            self.connections_before.fetch_add(gone.lanes.status().connections, Ordering::Relaxed);
            // Calls that are under way there end: others may be told instead.
            gone.connector.abort();
            gone.lanes.close();
        }
        self.publish(Placement { map: Arc::new(NodeMap::divided(shown, &parts)), nodes });
    }

    /// Whether the slots are known to be where this says.
    pub(super) fn is_placed(&self, ranges: &[SlotRange]) -> bool {
        let map = self.placement.load().map.clone();
        let is_there = |range: &SlotRange| {
            let id = self.at(&range.primary).map(|node| node.id);
            (range.first..=range.last).all(|slot| Some(map.of(slot)) == id)
        };
        ranges.iter().all(is_there)
    }

    /// Remembers why the nodes of the Cluster are not known.
    pub(super) fn note(&self, error: &OriginError) {
        self.failures.note(&self.settings.place, error);
    }

    /// How the connections to all servers are.
    pub(super) fn status(&self) -> ConnectionStatus {
        let statuses: Vec<ConnectionStatus> = self.all().iter().map(|node| node.lanes.status()).collect();
        let errors = statuses.iter().filter_map(|status| status.last_error.clone()).chain(self.failures.last());
        let is_doubted =
            |status: &ConnectionStatus| status.is_doubted || self.is_cluster() && status.connected_since.is_none();
        ConnectionStatus {
            address: self.settings.place.to_string(),
            connected_since: statuses.iter().filter_map(|status| status.connected_since).max(),
            is_doubted: statuses.iter().any(is_doubted),
            connections: self.connections_before.load(Ordering::Relaxed)
                + statuses.iter().map(|status| status.connections).sum::<u64>(),
            last_error: errors.max_by_key(|error| error.at),
        }
    }
}
