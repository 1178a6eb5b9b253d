//! The only place that talks to Redis.
//!
//! A caller gets an answer, or within the time it has set an [`OriginError`] that says why not; without a connection,
//! at once. A task in the background connects, never a call. The client library neither reconnects nor limits times on
//! its own here, except in a Cluster: there it reconnects to nodes, follows slots that move, and gives up nodes that
//! hang.

mod backoff;
mod calls;
pub(crate) mod cluster_slot;
pub(crate) mod codec;
mod dial;
mod error;
mod lanes;
mod link;
mod script;
mod sentinel;
pub mod settings;
mod tls;
mod voice;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::task::AbortHandle;

pub use crate::regional::redis::codec::{BadReply, Invocation, ORIGIN, decode, encode};
pub use crate::regional::redis::error::OriginError;
pub use crate::regional::redis::lanes::{ConnectionStatus, Lane, LastError};
pub use crate::regional::redis::script::Script;

use crate::regional::redis::lanes::Lanes;
use crate::regional::redis::settings::RedisSettings;
use crate::regional::redis::settings::address::RedisTarget;

/// The region's Redis. Cheap to clone; the connections close with the last clone.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
    /// How many replicas have to acknowledge what a call wrote before its answer counts; 0: none.
    replicas: u32,
}

struct Inner {
    lanes: Arc<Lanes>,
    connector: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.connector.abort();
    }
}

/// The servers behind a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The run id of the server, or of every primary of the Cluster, sorted. A server has another one after every
    /// start.
    pub run_ids: Vec<String>,
    /// What the servers do when memory is full: each policy once, sorted.
    pub maxmemory_policies: Vec<String>,
}

impl Identity {
    /// A policy by which a server may throw counts away; `None` if no server does.
    pub fn evicting_policy(&self) -> Option<&str> {
        self.maxmemory_policies.iter().map(String::as_str).find(|policy| *policy != "noeviction")
    }
}

impl Redis {
    /// Starts to connect in the background and returns at once, also while Redis is down. Must be called on the runtime.
    pub fn start(settings: RedisSettings) -> Redis {
        Redis::start_lanes(settings, &Lane::OF_CALLS)
    }

    /// Starts a connection that only listens to the feed of the region's voice: that waits for entries, and would hold up
    /// all else.
    pub(crate) fn start_feed(settings: RedisSettings) -> Redis {
        Redis::start_lanes(settings, &[Lane::Feed])
    }

    fn start_lanes(settings: RedisSettings, lanes: &'static [Lane]) -> Redis {
        let lanes = Lanes::new(settings, lanes);
        let connector = tokio::spawn(lanes.clone().keep_connected()).abort_handle();
        Redis { inner: Arc::new(Inner { lanes, connector }), replicas: 0 }
    }

    /// Starts connections on which every call waits for this many replicas. That holds a connection up, so nothing else
    /// should go over these. Not for a Cluster.
    pub fn start_replicated(settings: RedisSettings, replicas: u32) -> Redis {
        Redis { replicas, ..Redis::start(settings) }
    }

    /// Runs a script. In a Cluster, all keys have to be in one slot: they share a hash tag.
    pub async fn script(
        &self,
        lane: Lane,
        script: &'static Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
        within: Duration,
    ) -> Result<Value, OriginError> {
        let live = self.inner.lanes.live(lane)?;
        self.inner.lanes.answer(lane, &live, within, live.link.script(script, keys, args)).await
    }

    /// Runs a script, and waits for its end even after its time is up: see [`Lanes::answer_at_last`].
    async fn script_to_its_end(
        &self,
        lane: Lane,
        script: &'static Script,
        Invocation { keys, args }: &Invocation,
        [within, patience]: [Duration; 2],
        is_late: impl FnOnce(&OriginError),
    ) -> Result<Value, OriginError> {
        let live = self.inner.lanes.live(lane)?;
        let asking = live.link.script(script, keys, args);
        self.inner.lanes.answer_at_last(lane, &live, within, patience, asking, is_late).await
    }

    /// Runs a script, and has the replicas acknowledge what it wrote.
    async fn replicated_script(
        &self,
        lane: Lane,
        script: &'static Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
        within: Duration,
    ) -> Result<Value, OriginError> {
        let live = self.inner.lanes.live(lane)?;
        let asking = live.link.replicated_script(script, keys, args, self.replicas, within);
        self.inner.lanes.answer(lane, &live, within, asking).await
    }

    /// Runs commands, each where its key is, and returns their answers in order. If one is refused, the call fails, but
    /// all are sent.
    pub async fn commands(&self, lane: Lane, commands: Vec<Cmd>, within: Duration) -> Result<Vec<Value>, OriginError> {
        let live = self.inner.lanes.live(lane)?;
        self.inner.lanes.answer(lane, &live, within, live.link.commands(commands)).await
    }

    /// Asks the servers who they are. Another run id means another start, and perhaps other data.
    pub async fn identity(&self, within: Duration) -> Result<Identity, OriginError> {
        let lane = Lane::Beats;
        let live = self.inner.lanes.live(lane)?;
        let asking = async {
            let server = live.link.info("server").await?;
            let memory = live.link.info("memory").await?;
            identity(&server, &memory)
        };
        self.inner.lanes.answer(lane, &live, within, asking).await
    }

    /// Makes fresh connections and puts them into use once they answer. For a breaker's probe, never for a request.
    pub async fn probe(&self, within: Duration) -> Result<(), OriginError> {
        let lanes = &self.inner.lanes;
        let one = || dial::dial(lanes.settings());
        let dialling = async { tokio::try_join!(one(), one(), one()) };
        let dialled = tokio::time::timeout(within, dialling).await;
        let dialled = dialled.unwrap_or(Err(OriginError::Timeout { within }));
        let (checks, replays, beats) = dialled.inspect_err(|error| lanes.note(error))?;
        tokio::join!(
            lanes.offer(Lane::Checks, checks),
            lanes.offer(Lane::Replays, replays),
            lanes.offer(Lane::Beats, beats)
        );
        Ok(())
    }

    pub fn is_cluster(&self) -> bool {
        matches!(self.inner.lanes.settings().place, RedisTarget::Cluster(_))
    }

    /// How the connections are, for metrics and for people.
    pub fn status(&self) -> ConnectionStatus {
        self.inner.lanes.status()
    }
}

fn identity(server: &[String], memory: &[String]) -> Result<Identity, OriginError> {
    let all = |texts: &[String], name: &str| -> Result<BTreeSet<String>, OriginError> {
        let field = |text: &String| field(text, name).map(str::to_owned).ok_or(OriginError::BadReply);
        texts.iter().map(field).collect()
    };
    Ok(Identity {
        run_ids: all(server, "run_id")?.into_iter().collect(),
        maxmemory_policies: all(memory, "maxmemory_policy")?.into_iter().collect(),
    })
}

/// The value in the line `name:value` of INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_known_by_what_info_says() {
        let server = |id: &str| format!("# Server\r\nredis_version:7.0.15\r\nrun_id:{id}\r\n");
        let memory = |policy: &str| format!("# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:{policy}\r\n");
        let all = identity(&[server("b"), server("a")], &[memory("noeviction"), memory("allkeys-lru")]).unwrap();
        assert_eq!(all.run_ids, ["a", "b"]);
        assert_eq!(all.evicting_policy(), Some("allkeys-lru"));
        let one = identity(&[server("a")], &[memory("noeviction")]).unwrap();
        assert_eq!(one.evicting_policy(), None);
        assert_eq!(identity(&["x".into()], &[]), Err(OriginError::BadReply));
    }
}
