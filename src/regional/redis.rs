//! The only place that talks to Redis.
//!
//! A caller gets an answer, or within the time it has set an [`OriginError`] that says why not; without a connection,
//! at once. Tasks in the background connect, never a call. The client library neither reconnects nor limits times on its own
//! here. In a Cluster a call goes to the node of its first key, and once more to another if that node says so.

mod backoff;
mod calls;
pub(crate) mod cluster_slot;
pub(crate) mod codec;
mod connected_nodes;
mod dial;
mod error;
mod failures;
mod lanes;
mod link;
mod script;
mod sentinel;
pub mod settings;
mod signs_of_life;
mod slots;
mod tls;
mod topology;
mod voice;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

pub use crate::regional::redis::codec::{BadReply, Invocation, ORIGIN, decode, encode};
pub use crate::regional::redis::error::OriginError;
pub use crate::regional::redis::failures::LastError;
pub use crate::regional::redis::lanes::{ConnectionStatus, Lane};
pub use crate::regional::redis::script::Script;

use crate::regional::node_map::{NodeId, NodeMap};
use crate::regional::redis::connected_nodes::{ConnectedNode, ConnectedNodes};
use crate::regional::redis::settings::RedisSettings;
use crate::regional::redis::slots::Redirection;

/// The region's Redis. Cheap to clone; the connections close with the last clone.
#[derive(Clone)]
pub struct Redis {
    inner: Arc<Inner>,
    /// How many replicas have to acknowledge what a call wrote before its answer counts; 0: none.
    replicas: u32,
}

struct Inner {
    nodes: Arc<ConnectedNodes>,
    /// Keeps up with the slots of a Cluster.
    topology: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.topology.abort();
    }
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// It has another one after every start.
    pub run_id: String,
    /// What it does when memory is full.
    pub maxmemory_policy: String,
}

impl Identity {
    /// A policy by which the server may throw counts away; `None` if it does not.
    pub fn evicting_policy(&self) -> Option<&str> {
        Some(self.maxmemory_policy.as_str()).filter(|policy| *policy != "noeviction")
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

    fn start_lanes(settings: RedisSettings, served: &'static [Lane]) -> Redis {
        let nodes = ConnectedNodes::start(settings, served);
        let topology = tokio::spawn(topology::keep_placed(nodes.clone())).abort_handle();
        Redis { inner: Arc::new(Inner { nodes, topology }), replicas: 0 }
    }

    /// Starts connections on which every call waits for this many replicas. That holds a connection up, so nothing else
    /// should go over these. Not for a Cluster.
    pub fn start_replicated(settings: RedisSettings, replicas: u32) -> Redis {
        Redis { replicas, ..Redis::start(settings) }
    }

    fn nodes(&self) -> &ConnectedNodes {
        &self.inner.nodes
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
        let until = Instant::now() + within;
        let node = self.nodes().of_key(keys.first())?;
        let live = node.live(lane)?;
        let answer = node.lanes.answer(lane, &live, within, live.link.script(script, keys, args)).await;
        let Some(redirection) = self.redirection(&node, &answer) else { return answer };
        let left = until.saturating_duration_since(Instant::now());
        self.redirected(lane, script, keys, args, left, redirection).await.unwrap_or(answer)
    }

    /// Runs a command about a key. One that goes to the wrong node of a Cluster fails, and the next goes to the right one.
    async fn command(&self, lane: Lane, key: &Vec<u8>, command: &Cmd, within: Duration) -> Result<Value, OriginError> {
        let node = self.nodes().of_key(Some(key))?;
        let live = node.live(lane)?;
        let answer = node.lanes.answer(lane, &live, within, live.link.query(command)).await;
        if let Some(Redirection::Moved { slot, to }) = self.redirection(&node, &answer) {
            self.nodes().moved(slot, &to);
        }
        answer
    }

    fn redirection<T>(&self, asked: &ConnectedNode, answer: &Result<T, OriginError>) -> Option<Redirection> {
        Redirection::of(answer, asked.address.as_ref()?)
    }

    /// Sends a call on to where a node has said. `None` if nobody is connected there yet.
    async fn redirected(
        &self,
        lane: Lane,
        script: &'static Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
        within: Duration,
        redirection: Redirection,
    ) -> Option<Result<Value, OriginError>> {
        let (node, is_importing) = match redirection {
            Redirection::Moved { slot, to } => (self.nodes().moved(slot, &to), false),
            Redirection::Ask { to } => (self.nodes().importing(&to)?, true),
        };
        let live = node.live(lane).ok()?;
        Some(match is_importing {
            true => node.lanes.answer(lane, &live, within, live.link.asking_script(script, keys, args)).await,
            false => node.lanes.answer(lane, &live, within, live.link.script(script, keys, args)).await,
        })
    }

    /// Runs a script, and waits for its end even after its time is up: see [`Lanes::answer_at_last`](lanes::Lanes::answer_at_last).
    async fn script_to_its_end(
        &self,
        lane: Lane,
        script: &'static Script,
        Invocation { keys, args }: &Invocation,
        [within, patience]: [Duration; 2],
        is_late: impl FnOnce(&OriginError),
    ) -> Result<Value, OriginError> {
        let node = self.nodes().of_key(keys.first())?;
        let live = node.live(lane)?;
        let asking = live.link.script(script, keys, args);
        let answer = node.lanes.answer_at_last(lane, &live, within, patience, asking, is_late).await;
        let Some(redirection) = self.redirection(&node, &answer) else { return answer };
        // It was refused, so nothing of it can arrive any more. What is sent on has all the time that the caller would wait.
        self.redirected(lane, script, keys, args, patience, redirection).await.unwrap_or(answer)
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
        let node = self.nodes().of_key(keys.first())?;
        let live = node.live(lane)?;
        let asking = live.link.replicated_script(script, keys, args, self.replicas, within);
        node.lanes.answer(lane, &live, within, asking).await
    }

    /// Runs a script on one node, wherever its keys are. For a breaker's probe, never for a request.
    async fn script_at(
        &self,
        node: NodeId,
        lane: Lane,
        script: &'static Script,
        Invocation { keys, args }: &Invocation,
        within: Duration,
    ) -> Result<Value, OriginError> {
        let node = self.nodes().get(node)?;
        let live = node.live(lane)?;
        let answer = match self.replicas {
            0 => node.lanes.answer(lane, &live, within, live.link.script(script, keys, args)).await,
            replicas => {
                let asking = live.link.replicated_script(script, keys, args, replicas, within);
                node.lanes.answer(lane, &live, within, asking).await
            }
        };
        match answer {
            // A node of a Cluster that has no slot which keys can be in says so, and that is all that it can be asked.
            Err(error) if node.address.is_some() && error.is_misdirected() => Ok(Value::Nil),
            answer => answer,
        }
    }

    /// When anything last came over a connection; `None` if there is none.
    pub fn heard(&self, node: NodeId, lane: Lane) -> Option<Instant> {
        Some(self.nodes().get(node).ok()?.live(lane).ok()?.link.signs().at())
    }

    /// Asks servers who they are, side by side. Another run id means another start, and perhaps other data.
    pub async fn identities(&self, of: &[NodeId], within: Duration) -> Vec<(NodeId, Result<Identity, OriginError>)> {
        let mut asking = JoinSet::new();
        for node in of.iter().filter_map(|id| self.nodes().get(*id).ok()) {
            asking.spawn(async move {
                let identified = async {
                    let live = node.live(Lane::Beats)?;
                    let asking = async {
                        let server = live.link.info("server").await?;
                        let memory = live.link.info("memory").await?;
                        identity(&server, &memory)
                    };
                    node.lanes.answer(Lane::Beats, &live, within, asking).await
                };
                (node.id, identified.await)
            });
        }
        asking.join_all().await
    }

    pub fn is_cluster(&self) -> bool {
        self.nodes().is_cluster()
    }

    /// Who has which slot, now and whenever that changes.
    pub fn maps(&self) -> watch::Receiver<Arc<NodeMap>> {
        self.nodes().maps()
    }

    /// How the connections are, for metrics and for people.
    pub fn status(&self) -> ConnectionStatus {
        self.nodes().status()
    }
}

fn identity(server: &str, memory: &str) -> Result<Identity, OriginError> {
    let field = |info: &str, name: &str| field(info, name).map(str::to_owned).ok_or(OriginError::BadReply);
    Ok(Identity { run_id: field(server, "run_id")?, maxmemory_policy: field(memory, "maxmemory_policy")? })
}

/// The value in the line `name:value` of INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clap::Parser;
    use smallvec::SmallVec;
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::*;
    use crate::regional::call::{Call, CallKey, Measure, OriginKey, ProcessId};
    use crate::regional::redis::settings::RedisFlags;
    use crate::regional::voice::FeedPlace;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        redis: RedisFlags,
    }

    /// A node that says it has all slots, and then that keys are elsewhere. Tells of commands, and over which of its
    /// connections they came.
    async fn node() -> (RedisSettings, mpsc::Receiver<(usize, String)>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, told) = mpsc::channel(1000);
        tokio::spawn(async move {
            let number = AtomicUsize::new(0);
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, port, number.fetch_add(1, Ordering::Relaxed), tell.clone()));
            }
        });
        let url = format!("127.0.0.1:{port}");
        let flags = Flags::try_parse_from(["serve", "--redis-url", &url, "--redis-type", "cluster"]).unwrap();
        (RedisSettings::new(&flags.redis).unwrap().unwrap(), told)
    }

    async fn serve(stream: TcpStream, port: u16, number: usize, tell: mpsc::Sender<(usize, String)>) {
        let mut stream = BufReader::new(stream);
        while let Some(command) = command(&mut stream).await {
            let answer = match command.as_str() {
                "PING" => "+PONG\r\n".to_owned(),
                "CLUSTER" => {
                    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
                }
                "EVALSHA" => "-MOVED 1 127.0.0.1:1\r\n".to_owned(),
                "XREAD" => "*-1\r\n".to_owned(),
                _ => "+OK\r\n".to_owned(),
            };
            // Some tests are not interested.
            let _ = tell.try_send((number, command));
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    /// The name of the next command.
    async fn command(stream: &mut BufReader<TcpStream>) -> Option<String> {
        let mut parts = Vec::new();
        for _ in 0..length(stream).await? {
            let mut part = vec![0; length(stream).await? + 2];
            stream.read_exact(&mut part).await.ok()?;
            parts.push(String::from_utf8_lossy(&part).trim_end().to_owned());
        }
        parts.into_iter().next()
    }

    async fn length(stream: &mut BufReader<TcpStream>) -> Option<usize> {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        line.trim_end().get(1..)?.parse().ok()
    }

    /// How long something may take that comes at all.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn until_placed(redis: &Redis) -> NodeId {
        redis.maps().wait_for(|map| !map.nodes().is_empty()).await.unwrap().nodes()[0].id
    }

    /// Each time others were dialled for that.
    #[tokio::test]
    async fn a_client_of_the_feed_asks_who_has_which_slot_over_the_connection_that_it_has() {
        let (settings, mut told) = node().await;
        let redis = Redis::start_feed(settings);
        until_placed(&redis).await;
        while redis.listen(FeedPlace::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut listening = None;
        let until = Instant::now() + PATIENCE;
        loop {
            redis.nodes().trouble.notify_one();
            let (number, command) = told.recv().await.unwrap();
            assert!(Instant::now() < until, "never asked");
            match command.as_str() {
                "XREAD" => listening = Some(number),
                "CLUSTER" if listening == Some(number) => return,
                _ => {}
            }
        }
    }

    /// Its probes were refused for ever, and its breakers stayed open.
    #[tokio::test]
    async fn a_node_without_a_slot_for_keys_is_well_if_it_says_so() {
        let (settings, _told) = node().await;
        let redis = Redis::start(settings);
        let node = until_placed(&redis).await;
        let part = CallKey { key: OriginKey([0; 20]), window_ms: 1000, measure: Measure::Sum, cells: SmallVec::new() };
        let call = Call { process: ProcessId(1), nonce: 0, charges: false, parts: vec![part], asks: Vec::new() };
        let answer = loop {
            match redis.try_call(node, Lane::Checks, &call, PATIENCE).await {
                Err(OriginError::Down) => tokio::time::sleep(Duration::from_millis(5)).await,
                answer => break answer,
            }
        };
        assert_eq!(answer, Ok(()));
    }

    #[test]
    fn servers_are_known_by_what_info_says() {
        let server = "# Server\r\nredis_version:7.0.15\r\nrun_id:a\r\n";
        let memory = |policy: &str| format!("# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:{policy}\r\n");
        let evicting = identity(server, &memory("allkeys-lru")).unwrap();
        assert_eq!((evicting.run_id.as_str(), evicting.evicting_policy()), ("a", Some("allkeys-lru")));
        assert_eq!(identity(server, &memory("noeviction")).unwrap().evicting_policy(), None);
        assert_eq!(identity("x", &memory("noeviction")), Err(OriginError::BadReply));
    }
}
