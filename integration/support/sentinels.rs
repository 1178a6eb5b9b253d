//! A master and its replica, watched by three sentinels that fail over as fast as they can.

use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::harness::{PATIENCE, Process, free_port, until};
use crate::support::redis::{RedisServer, command, replica_of};

/// The name that the sentinels have for the master.
pub const MASTER: &str = "region";
/// How long a failover may take. Sentinels that lost their processor for two seconds trust nobody for thirty, and some lose it
/// again.
const FAILOVER: Duration = Duration::from_secs(240);

pub struct Sentinels {
    pub master: RedisServer,
    pub replica: RedisServer,
    sentinels: Vec<Sentinel>,
}

struct Sentinel {
    _process: Process,
    port: u16,
    _directory: TempDir,
}

impl Sentinels {
    /// Starts all, and waits until they know of each other.
    pub fn start() -> Sentinels {
        let master = RedisServer::start();
        let replica = replica_of(master.address());
        let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::watching(master.port())).collect();
        let all = Sentinels { master, replica, sentinels };
        until(FAILOVER, "the sentinels know of each other", || {
            let agrees = |sentinel: &Sentinel| {
                sentinel.field("num-other-sentinels").as_deref() == Some("2")
                    && sentinel.field("num-slaves").as_deref() == Some("1")
            };
            all.sentinels.iter().all(agrees).then_some(())
        });
        all
    }

    /// The value of `REDIS_URL` that leads to them, with `REDIS_TYPE=sentinel`.
    pub fn url(&self) -> String {
        let addresses = self.sentinels.iter().map(|sentinel| format!(",127.0.0.1:{}", sentinel.port));
        format!("{MASTER}{}", addresses.collect::<String>())
    }

    /// Kills the master, and waits until all agree that the replica is the master now.
    pub fn fail_over(&mut self) {
        self.master.kill();
        let port = self.replica.port().to_string();
        until(FAILOVER, "the replica becomes the master", || {
            let agrees = |sentinel: &Sentinel| sentinel.field("port").as_deref() == Some(port.as_str());
            let is_master = self.replica.info("replication", "role").as_deref() == Some("master");
            (is_master && self.sentinels.iter().all(agrees)).then_some(())
        });
    }
}

impl Sentinel {
    fn watching(master: u16) -> Sentinel {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        // Sentinels write what they learn into their configuration.
        let file = directory.path().join("sentinel.conf");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} 300\n\
             sentinel failover-timeout {MASTER} 3000\n",
            directory.path().display(),
        );
        std::fs::write(&file, settings).unwrap();
        let mut start = Command::new("redis-sentinel");
        start.arg(&file);
        let sentinel = Sentinel { _process: Process::start(start), port, _directory: directory };
        until(PATIENCE, "the sentinel answers", || sentinel.field("name"));
        sentinel
    }

    /// A field of what it knows about the master.
    fn field(&self, name: &str) -> Option<String> {
        let client = ::redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).ok()?;
        let mut connection = client.get_connection_with_timeout(PATIENCE).ok()?;
        connection.set_read_timeout(Some(PATIENCE)).ok()?;
        let fields: Vec<String> = command(&["SENTINEL", "MASTER", MASTER]).query(&mut connection).ok()?;
        fields.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone())
    }
}

#[test]
fn sentinels_make_the_replica_the_master() {
    let mut sentinels = Sentinels::start();
    let _: String = sentinels.master.query(&["SET", "k", "v"]);
    let _: u64 = sentinels.master.query(&["WAIT", "1", "5000"]);
    assert_eq!(sentinels.url().split(',').count(), 4);
    sentinels.fail_over();
    assert_eq!(sentinels.replica.query::<String>(&["GET", "k"]), "v");
    let _: String = sentinels.replica.query(&["SET", "k", "w"]);
}
