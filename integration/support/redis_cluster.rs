//! Three masters of a Redis Cluster, with a replica each if a test wants them, and slots that move step by step.

use crate::support::harness::{PATIENCE, free_port, until};
use crate::support::redis::{Cell, RedisServer};

const SLOTS: u16 = 16384;

pub struct RedisCluster {
    /// The masters that it began with.
    pub nodes: Vec<RedisServer>,
    /// One for each of them, in the same order, or none.
    pub replicas: Vec<RedisServer>,
}

/// A slot that moves. The test takes each step, so that it can look at what happens in between.
pub struct Migration<'a> {
    cluster: &'a RedisCluster,
    slot: u16,
    from: usize,
    to: usize,
}

impl RedisCluster {
    /// Starts the nodes, and waits until all of them see that all slots are served.
    pub fn start() -> RedisCluster {
        RedisCluster::of(&[])
    }

    /// Every master has a replica, which takes over when the others miss the master for two seconds.
    pub fn with_replicas() -> RedisCluster {
        let buses: [u16; 3] = std::array::from_fn(|_| free_port());
        let cluster = RedisCluster::of(&buses);
        for (master, replica) in cluster.nodes.iter().zip(&cluster.replicas) {
            let id: String = master.query(&["CLUSTER", "MYID"]);
            // It may not know the master yet.
            until(PATIENCE, "a replica", || replica.try_query::<String>(&["CLUSTER", "REPLICATE", &id]).ok());
        }
        until(PATIENCE, "the replicas are up to date", || {
            let is_online = |master: &RedisServer| {
                let slave = master.info("replication", "slave0");
                slave.is_some_and(|slave| slave.contains("state=online"))
            };
            let is_linked =
                |replica: &RedisServer| replica.info("replication", "master_link_status").as_deref() == Some("up");
            let is_ready = cluster.nodes.iter().all(is_online) && cluster.replicas.iter().all(is_linked);
            is_ready.then_some(())
        });
        cluster
    }

    /// Masters, and nodes with these buses that have no slots yet.
    fn of(empty: &[u16]) -> RedisCluster {
        let buses: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let node = |bus: &u16| {
            let bus = bus.to_string();
            // Otherwise all nodes refuse everything from when one is missed until it has a successor.
            let partly = ["--cluster-require-full-coverage", "no"];
            let flags = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "2000"];
            RedisServer::with(&[&flags[..], &partly].concat())
        };
        let (nodes, replicas) = (buses.iter().map(node).collect(), empty.iter().map(node).collect());
        let cluster = RedisCluster { nodes, replicas };
        for (number, node) in (0u16..).zip(&cluster.nodes) {
            let [first, last] = [number, number + 1].map(|part| u32::from(part) * u32::from(SLOTS) / 3);
            let _: String = node.query(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(last - 1).to_string()]);
            let _: String = node.query(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        let all = || cluster.nodes.iter().chain(&cluster.replicas);
        let known = format!("cluster_known_nodes:{}", all().count());
        for (other, bus) in all().zip(buses.iter().chain(empty)).skip(1) {
            let [port, bus] = [other.port().to_string(), bus.to_string()];
            let _: String = cluster.nodes[0].query(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        until(PATIENCE, "the cluster is complete", || {
            let is_complete = |node: &RedisServer| {
                let info: String = node.query(&["CLUSTER", "INFO"]);
                let has = |line: &str| info.lines().any(|known| known == line);
                has("cluster_state:ok") && has(&known) && has("cluster_slots_assigned:16384")
            };
            all().all(is_complete).then_some(())
        });
        cluster
    }

    /// The value of `REDIS_URL` that leads here, with `REDIS_TYPE=cluster`: all nodes.
    pub fn url(&self) -> String {
        self.nodes.iter().chain(&self.replicas).map(RedisServer::url).collect::<Vec<_>>().join(",")
    }

    pub fn cells(&self) -> Vec<Cell> {
        self.nodes.iter().flat_map(RedisServer::cells).collect()
    }

    /// Whether the replica of a node has taken over from it.
    pub fn is_promoted(&self, node: usize) -> bool {
        is_master(&self.replicas[node])
    }

    /// Those that are masters now. All have to be awake.
    pub fn masters(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().chain(&self.replicas).filter(|node| is_master(node))
    }

    pub fn total_hits(&self) -> u64 {
        self.masters().map(RedisServer::total_hits).sum()
    }

    pub fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].query(&["CLUSTER", "KEYSLOT", key])
    }

    /// Which node serves a slot, as the nodes themselves see it.
    pub fn owner_of(&self, slot: u16) -> usize {
        let serves = |node: &RedisServer| {
            let nodes: String = node.query(&["CLUSTER", "NODES"]);
            let own = nodes.lines().find(|line| line.contains("myself")).expect("a node knows itself").to_owned();
            own.split(' ').skip(8).filter(|range| !range.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap()..=last.parse().unwrap()).contains(&slot)
            })
        };
        self.nodes.iter().position(serves).expect("every slot is served")
    }

    /// Announces that a slot moves: from now on, keys that the old node does not have are asked for at the new one.
    pub fn begin_migration(&self, slot: u16, to: usize) -> Migration<'_> {
        let from = self.owner_of(slot);
        let migration = Migration { cluster: self, slot, from, to };
        migration.set_slot(to, &["IMPORTING", &self.id_of(from)]);
        migration.set_slot(from, &["MIGRATING", &self.id_of(to)]);
        migration
    }

    fn id_of(&self, node: usize) -> String {
        self.nodes[node].query(&["CLUSTER", "MYID"])
    }
}

fn is_master(node: &RedisServer) -> bool {
    node.info("replication", "role").as_deref() == Some("master")
}

impl Migration<'_> {
    fn set_slot(&self, node: usize, how: &[&str]) {
        let slot = self.slot.to_string();
        let words = [&["CLUSTER", "SETSLOT", &slot], how].concat();
        let _: String = self.cluster.nodes[node].query(&words);
    }

    /// Moves at most this many keys. Returns how many it moved.
    pub fn move_keys(&self, most: usize) -> usize {
        let from = &self.cluster.nodes[self.from];
        let port = self.cluster.nodes[self.to].port().to_string();
        let keys: Vec<String> = from.query(&["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), &most.to_string()]);
        for key in &keys {
            // A key that has expired meanwhile can't be moved.
            let said: String = from.query(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
            assert!(["OK", "NOKEY"].contains(&said.as_str()), "{said}");
        }
        keys.len()
    }

    /// Moves all keys that are left, then gives the slot to the new node.
    pub fn finish(self) {
        while self.move_keys(100) > 0 {}
        let id = self.cluster.id_of(self.to);
        for node in [self.to, self.from] {
            self.set_slot(node, &["NODE", &id]);
        }
        let others = (0..self.cluster.nodes.len()).filter(|node| ![self.to, self.from].contains(node));
        others.for_each(|node| self.set_slot(node, &["NODE", &id]));
    }
}

#[test]
fn a_slot_moves_step_by_step() {
    let cluster = RedisCluster::start();
    let names = ["tidegate:3:{ab}:abc:1", "tidegate:3:{ab}:abc:2"];
    let slot = cluster.slot_of(names[0]);
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    for (count, name) in (1u8..).zip(names) {
        let held = format!("\x01e\0\0\0\0\0\0{}\0\0\0\0\0\0", char::from(10 * count));
        let _: String = cluster.nodes[from].query(&["SET", name, &held]);
    }
    let migration = cluster.begin_migration(slot, to);
    assert_eq!(migration.move_keys(1), 1);
    let there = |node: usize| cluster.nodes[node].cells().len();
    assert_eq!((there(from), there(to), cluster.total_hits()), (1, 1, 30), "half way");
    let asked: ::redis::RedisResult<String> = cluster.nodes[from].try_query(&["SET", "tidegate:3:{ab}:abc:3", "1"]);
    assert!(asked.unwrap_err().to_string().starts_with("Ask"), "new keys are made at the new node");
    migration.finish();
    assert_eq!((there(from), there(to), cluster.owner_of(slot)), (0, 2, to));
    assert_eq!((cluster.cells().len(), cluster.total_hits()), (2, 30));
}
