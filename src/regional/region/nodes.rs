//! The nodes of a store, each with its breakers: one that is down is given up by itself, and the others go on.
//!
//! What a node has not been told while it is given up is parked there. It goes back into the queue when the node answers
//! again, or when others may have its slots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::clock::Now;
use crate::engine::key::OwnedKey;
use crate::engine::reach::Store;
use crate::engine::table::SlotRef;
use crate::engine::table::cell::{CellShape, CellUpdate, WindowUpdate};
use crate::regional::breaker::{Breaker, BreakerOptions, CallEnd};
use crate::regional::call::{Call, CallKey, Measure, OriginKey};
use crate::regional::node_map::{NodeId, NodeMap};
use crate::regional::redis::cluster_slot::{beat_slot, cluster_slot};
use crate::regional::region::{Region, RegionState};

/// How long the cell of a trial lives.
const TRIAL_TTL_MS: u64 = 1000;

/// What a breaker watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerKind {
    Checks,
    Replays,
    /// Checks of strict limits at an origin that decides others too: they have more time, and may wait for replicas.
    Strict,
}

impl BreakerKind {
    pub const ALL: [BreakerKind; 3] = [BreakerKind::Checks, BreakerKind::Replays, BreakerKind::Strict];

    pub fn word(self) -> &'static str {
        match self {
            BreakerKind::Checks => "checks",
            BreakerKind::Replays => "replays",
            BreakerKind::Strict => "strict",
        }
    }
}

/// How a breaker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerState {
    /// What it watches.
    pub kind: BreakerKind,
    /// Which node, where there are several.
    pub node: Option<Arc<str>>,
    /// Nobody asks.
    pub is_open: bool,
    /// How often it has opened.
    pub opened: u64,
}

/// The findings of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// Checks are answered.
    pub checks: bool,
    /// Checks of strict limits are answered.
    pub strict: bool,
    /// Replays are answered.
    pub replays: bool,
}

impl ProbeResult {
    pub const NOTHING: ProbeResult = ProbeResult { checks: false, strict: false, replays: false };
}

/// A node as a process sees it.
#[derive(Debug)]
struct NodeBreakers {
    checks: Breaker,
    strict: Breaker,
    replays: Breaker,
    /// Keys with something to tell. Each counts as under way, so that it stands in no queue meanwhile.
    parked: Vec<SlotRef>,
}

impl NodeBreakers {
    fn breaker(&self, kind: BreakerKind) -> &Breaker {
        match kind {
            BreakerKind::Checks => &self.checks,
            BreakerKind::Replays => &self.replays,
            BreakerKind::Strict => &self.strict,
        }
    }

    fn breaker_mut(&mut self, kind: BreakerKind) -> &mut Breaker {
        match kind {
            BreakerKind::Checks => &mut self.checks,
            BreakerKind::Replays => &mut self.replays,
            BreakerKind::Strict => &mut self.strict,
        }
    }
}

/// The nodes that there are.
#[derive(Debug)]
pub(super) struct Nodes {
    map: Arc<NodeMap>,
    nodes: BTreeMap<NodeId, NodeBreakers>,
    options: BreakerOptions,
    seed: u64,
}

impl Nodes {
    pub(super) fn new(map: Arc<NodeMap>, options: BreakerOptions, seed: u64) -> Nodes {
        let mut nodes = Nodes { map: Arc::new(NodeMap::unknown()), nodes: BTreeMap::new(), options, seed };
        nodes.replace(map);
        nodes
    }

    /// Takes over who has which slot. Returns what was parked: it may go elsewhere now.
    fn replace(&mut self, map: Arc<NodeMap>) -> Vec<SlotRef> {
        let mut parked = Vec::new();
        self.nodes.retain(|id, node| {
            parked.append(&mut node.parked);
            map.nodes().iter().any(|there| there.id == *id)
        });
        for node in map.nodes() {
            let breaker = |number: u64| {
                let seed = self.seed ^ (u64::from(node.id.0) << 8 | number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                Breaker::new(self.options, seed)
            };
            self.nodes.entry(node.id).or_insert_with(|| NodeBreakers {
                checks: breaker(1),
                strict: breaker(2),
                replays: breaker(3),
                parked: Vec::new(),
            });
        }
        self.map = map;
        parked
    }

    pub(super) fn of(&self, slot: u16) -> NodeId {
        self.map.of(slot)
    }

    /// Nobody asks this node. A slot that no node serves is given up too.
    pub(super) fn is_given_up(&self, node: NodeId, kind: BreakerKind) -> bool {
        self.nodes.get(&node).is_none_or(|node| node.breaker(kind).is_open())
    }

    /// Nobody asks any node.
    pub(super) fn are_all_given_up(&self, kind: BreakerKind) -> bool {
        self.nodes.values().all(|node| node.breaker(kind).is_open())
    }

    /// Takes note of how a call ended. Nodes that are gone are of no interest.
    pub(super) fn record(&mut self, node: NodeId, kind: BreakerKind, end: CallEnd, now_us: u64) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.breaker_mut(kind).record(end, now_us);
        }
    }

    /// Takes note of a sign of life.
    pub(super) fn answered(&mut self, node: NodeId, kind: BreakerKind) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.breaker_mut(kind).answered();
        }
    }

    /// Parks keys that can't be told now.
    pub(super) fn park(&mut self, node: NodeId, keys: impl Iterator<Item = SlotRef>) {
        // Slots that nobody has are as good as those of any node: the next map releases all.
        let node = if self.nodes.contains_key(&node) { Some(node) } else { self.nodes.keys().next().copied() };
        if let Some(node) = node.and_then(|node| self.nodes.get_mut(&node)) {
            node.parked.extend(keys);
        }
    }

    /// How many keys are parked.
    pub(super) fn parked(&self) -> usize {
        self.nodes.values().map(|node| node.parked.len()).sum()
    }
}

impl Region {
    /// Which breaker is for a check. The owner is only asked about strict limits, so that all of its checks have one.
    pub(super) fn check_kind(&self, is_strict: bool) -> BreakerKind {
        if is_strict && self.store() == Store::Origin { BreakerKind::Strict } else { BreakerKind::Checks }
    }

    /// The node that has a key.
    pub(super) fn node_of(&self, state: &RegionState, key: &OriginKey) -> NodeId {
        state.nodes.of(self.cluster_slot(key))
    }

    pub(super) fn cluster_slot(&self, key: &OriginKey) -> u16 {
        if self.options.is_cluster { cluster_slot(key) } else { 0 }
    }

    /// The slot that all cells of a key are in; 0 without a Cluster.
    pub fn slot_of(&self, key: &OwnedKey) -> u16 {
        self.cluster_slot(&self.origin_key(&key.as_key(), key.is_sensitive))
    }

    /// One of a request's keys is at a node that nobody asks.
    pub(super) fn is_given_up(&self, state: &RegionState, keys: &[OriginKey], is_strict: bool) -> bool {
        let kind = self.check_kind(is_strict);
        keys.iter().any(|key| state.nodes.is_given_up(self.node_of(state, key), kind))
    }

    /// Takes over who has which slot.
    pub fn set_nodes(&self, map: Arc<NodeMap>) {
        let state = &mut *self.state.lock();
        let parked = state.nodes.replace(map);
        state.telling.release(parked);
        self.tell_requests(state);
    }

    /// The nodes that are asked, those that are given up left out.
    pub fn nodes_in_use(&self) -> SmallVec<[NodeId; 4]> {
        let state = self.state.lock();
        let of = |(id, node): (&NodeId, &NodeBreakers)| (!node.replays.is_open()).then_some(*id);
        state.nodes.nodes.iter().filter_map(of).collect()
    }

    /// Lets requests know of breakers that have changed.
    pub(super) fn tell_requests(&self, state: &RegionState) {
        let is_known = !state.nodes.nodes.is_empty();
        let strict = (&self.may_ask_strictly, &self.times_lost_strictly, true);
        for (told, times_lost, is_strict) in [(&self.may_ask, &self.times_lost, false), strict] {
            let may_ask = !state.nodes.are_all_given_up(self.check_kind(is_strict));
            if told.swap(may_ask, Ordering::Relaxed) && !may_ask && is_known {
                times_lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How all breakers are.
    pub fn breakers(&self) -> Vec<BreakerState> {
        let state = self.state.lock();
        let (map, nodes) = (&state.nodes.map, &state.nodes.nodes);
        let is_one = map.nodes().len() <= 1 && !self.options.is_cluster;
        let mut states = Vec::new();
        for (there, kind) in map.nodes().iter().flat_map(|there| BreakerKind::ALL.map(|kind| (there, kind))) {
            let Some(node) = nodes.get(&there.id) else { continue };
            let breaker = node.breaker(if kind == BreakerKind::Strict { self.check_kind(true) } else { kind });
            let (is_open, opened) = (breaker.is_open(), breaker.opened);
            states.push(BreakerState { kind, node: (!is_one).then(|| there.address.clone()), is_open, opened });
        }
        states
    }

    /// How often the store was given up as a whole, for strict limits or for the others.
    pub fn times_lost(&self, is_strict: bool) -> u64 {
        let times_lost = if is_strict { &self.times_lost_strictly } else { &self.times_lost };
        times_lost.load(Ordering::Relaxed)
    }

    /// Takes note of a heartbeat's end. When nothing else is asked, only heartbeats show how the store is.
    pub fn heartbeat_ended(&self, is_answered: bool, now: Now) {
        let state = &mut *self.state.lock();
        let node = state.nodes.of(if self.options.is_cluster { beat_slot(self.store()) } else { 0 });
        if is_answered {
            state.presence.acknowledged(now.mono_us);
        }
        Region::heard_of(state, node, is_answered, now);
        self.is_new.store(state.presence.is_new(now.mono_us), Ordering::Relaxed);
        self.joined_us.store(state.presence.since_us().unwrap_or(now.mono_us), Ordering::Relaxed);
        self.is_stranger.store(state.presence.is_stranger(), Ordering::Relaxed);
        self.tell_requests(state);
    }

    /// Takes note of whether a node has answered to something that is none of the calls of this state machine.
    pub fn node_answered(&self, node: NodeId, is_answered: bool, now: Now) {
        let state = &mut *self.state.lock();
        Region::heard_of(state, node, is_answered, now);
        self.tell_requests(state);
    }

    fn heard_of(state: &mut RegionState, node: NodeId, is_answered: bool, now: Now) {
        let late = CallEnd::Late { heard_us: None };
        let replays = if is_answered { CallEnd::InTime } else { late };
        state.nodes.record(node, BreakerKind::Replays, replays, now.mono_us);
        if is_answered {
            // This says nothing about strict limits, which may wait for replicas in vain.
            state.nodes.answered(node, BreakerKind::Checks);
        } else {
            state.nodes.record(node, BreakerKind::Checks, late, now.mono_us);
            state.nodes.record(node, BreakerKind::Strict, late, now.mono_us);
        }
    }

    /// No node answers what it is told, or everything has been told but for what waits for nodes that do not answer.
    pub(crate) fn is_silent(&self) -> bool {
        let state = self.state.lock();
        let is_idle = state.under_way.is_empty() && state.telling.is_idle() && !self.ledger().is_any_unsent();
        state.nodes.are_all_given_up(BreakerKind::Replays) || is_idle && state.nodes.parked() > 0
    }

    /// How long the store has been given up as a whole, for strict limits or for the others; `None` if it is not.
    pub fn down_for_us(&self, is_strict: bool, now: Now) -> Option<u64> {
        let kind = self.check_kind(is_strict);
        let state = self.state.lock();
        let down = state.nodes.nodes.values().map(|node| node.breaker(kind).open_for_us(now.mono_us));
        let down: Option<Vec<u64>> = down.collect();
        Some(down?.into_iter().min().unwrap_or(0))
    }

    /// The nodes that are to be probed. The caller does that, and says how each went with [`Region::probed`].
    pub fn wants_probes(&self, now: Now) -> SmallVec<[NodeId; 1]> {
        let state = &mut *self.state.lock();
        let mut wanting = SmallVec::new();
        for (id, node) in &mut state.nodes.nodes {
            // One probe serves all.
            let wants = BreakerKind::ALL.map(|kind| node.breaker_mut(kind).wants_probe(now.mono_us));
            if wants.contains(&true) {
                wanting.push(*id);
            }
        }
        wanting
    }

    /// Takes note of what a probe has found.
    pub fn probed(&self, node: NodeId, good: ProbeResult, now: Now) {
        let state = &mut *self.state.lock();
        let Some(node) = state.nodes.nodes.get_mut(&node) else { return };
        node.checks.probed(good.checks, now.mono_us);
        node.strict.probed(good.strict, now.mono_us);
        if node.replays.probed(good.replays, now.mono_us) {
            let parked = std::mem::take(&mut node.parked);
            state.telling.release(parked);
        }
        self.tell_requests(state);
    }

    /// A small call for probes of a node that does what others do: it writes a cell of its own, which is gone a moment later.
    pub fn trial(&self, node: NodeId) -> Call {
        let window = WindowUpdate { ttl_ms: TRIAL_TTL_MS, ..WindowUpdate::default() };
        let shape = CellShape::Window(window);
        let cell = CellUpdate { is_seated: true, own: 1, shape, ..CellUpdate::default() };
        let part = CallKey {
            key: self.trial_key(node),
            window_ms: TRIAL_TTL_MS,
            measure: Measure::Sum,
            cells: SmallVec::from_iter([cell]),
        };
        Call { process: self.options.process, nonce: 0, charges: false, parts: vec![part], asks: Vec::new() }
    }

    /// A key that the node has; any key if it has none of the slots that keys can be in: its answer is that it has not. The
    /// name is all zero but for the tag, which no digest is.
    fn trial_key(&self, node: NodeId) -> OriginKey {
        let map = self.state.lock().nodes.map.clone();
        let tagged = |tag: u8| {
            let mut key = OriginKey([0; 20]);
            key.0[0] = tag;
            key
        };
        let mut keys = (0..=u8::MAX).map(tagged);
        keys.find(|key| map.of(self.cluster_slot(key)) == node).unwrap_or(tagged(0))
    }
}
