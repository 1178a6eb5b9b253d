//! A connection that is up, to one server or to all nodes of a Cluster, and what can be asked over it.
//!
//! Nothing here has a time limit: callers give up their calls, and a dropped call leaves the connection whole.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Pipeline, Value};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::regional::redis::error::OriginError;
use crate::regional::redis::script::Script;

/// How many commands may be on their way to a Cluster at a time: each finds its node by itself.
const CLUSTER_COMMANDS_AT_A_TIME: usize = 64;
/// How many commands a pipeline has at most: the client library holds their replies until the last is there.
const PIPELINE_COMMANDS_MAX: usize = 1000;

/// A connection that is up.
pub(super) enum Link {
    Single {
        connection: MultiplexedConnection,
        driver: Driver,
    },
    /// Reconnects to its nodes by itself.
    Cluster(ClusterConnection),
}

/// The task that reads and writes a connection. Both end together.
pub(super) struct Driver {
    task: AbortHandle,
    /// Ends when the task does, which holds the other end.
    gone: watch::Receiver<()>,
}

impl Driver {
    pub(super) fn spawn(driver: impl Future<Output = ()> + Send + 'static) -> Driver {
        let (held, gone) = watch::channel(());
        let task = tokio::spawn(async move {
            driver.await;
            drop(held);
        });
        Driver { task: task.abort_handle(), gone }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // If it were left alone, it would wait for answers that nobody wants any more.
        self.task.abort();
    }
}

impl Link {
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Link::Cluster(_))
    }

    /// Ends when the connection is gone. For a Cluster it never ends, because a Cluster is not gone as a whole.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let gone = match self {
            Link::Single { driver, .. } => Some(driver.gone.clone()),
            Link::Cluster(_) => None,
        };
        async move {
            match gone {
                // Nothing is ever sent: this ends with the sender.
                Some(mut gone) => while gone.changed().await.is_ok() {},
                None => std::future::pending().await,
            }
        }
    }

    /// Closes the connection: calls on it end, and what they have sent is read no more, but for what has arrived. A Cluster
    /// stays: its client gives up the calls to a node that hangs by itself.
    pub(super) fn close(&self) {
        if let Link::Single { driver, .. } = self {
            driver.task.abort();
        }
    }

    /// Runs one command, on the node of its key.
    pub(super) async fn query(&self, command: &Cmd) -> Result<Value, OriginError> {
        let answer = match self {
            Link::Single { connection, .. } => connection.clone().send_packed_command(command).await,
            Link::Cluster(connection) => connection.clone().req_packed_command(command).await,
        };
        Ok(answer?.extract_error()?)
    }

    /// Asks for a sign of life. In a Cluster, any one node will do: the Cluster must not fail as a whole because one
    /// node is down.
    pub(super) async fn ping(&self) -> Result<(), OriginError> {
        match self {
            Link::Single { .. } => self.query(&redis::cmd("PING")).await?,
            Link::Cluster(connection) => {
                let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
                connection.clone().route_command(redis::cmd("PING"), anywhere).await?.extract_error()?
            }
        };
        Ok(())
    }

    /// Whether every primary of the Cluster answers. If one does not, a new connection would hold up calls to the
    /// others too, because the client library connects to it while calls wait. Over a connection from before, only
    /// calls to that one fail.
    pub(super) async fn is_whole(&self) -> Result<bool, OriginError> {
        let Link::Cluster(connection) = self else { return Ok(true) };
        let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let slots = redis::cmd("CLUSTER").arg("SLOTS").to_owned();
        let slots = connection.clone().route_command(slots, anywhere).await?.extract_error()?;
        let primaries = primaries(slots).ok_or(OriginError::BadReply)?;
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        match connection.clone().route_command(redis::cmd("PING"), everywhere).await?.extract_error()? {
            Value::Map(answers) => Ok(answers.len() >= primaries),
            _ => Err(OriginError::BadReply),
        }
    }

    /// Runs a script, and waits until `replicas` replicas have what it wrote.
    pub(super) async fn replicated_script(
        &self,
        script: &Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
        replicas: u32,
        within: Duration,
    ) -> Result<Value, OriginError> {
        // WAIT ends before the caller gives up, because it holds the connection up for others. 0 would mean for ever.
        let wait_ms = (u64::try_from(within.as_millis()).unwrap_or(u64::MAX) / 4 * 3).max(1);
        let run = |verb: &str, what: &str| {
            let wait = redis::cmd("WAIT").arg(replicas).arg(wait_ms).to_owned();
            self.commands(vec![evaluation(verb, what, keys, args), wait])
        };
        let answers = match run("EVALSHA", script.hash()).await {
            Err(OriginError::Refused { code, .. }) if code == "NOSCRIPT" => run("EVAL", script.source()).await?,
            other => other?,
        };
        match <[Value; 2]>::try_from(answers) {
            Ok([answer, Value::Int(acknowledged)]) if acknowledged >= i64::from(replicas) => Ok(answer),
            Ok([_, Value::Int(acknowledged)]) => Err(OriginError::Unreplicated { acknowledged, wanted: replicas }),
            _ => Err(OriginError::BadReply),
        }
    }

    /// Runs a script by its digest. Where it is not known yet, runs its source, which also makes it known.
    pub(super) async fn script(
        &self,
        script: &Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, OriginError> {
        let command = |verb: &str, what: &str| evaluation(verb, what, keys, args);
        match self.query(&command("EVALSHA", script.hash())).await {
            Err(OriginError::Refused { code, .. }) if code == "NOSCRIPT" => {
                self.query(&command("EVAL", script.source())).await
            }
            other => other,
        }
    }

    /// Runs commands and returns their answers in the same order. If one is refused, the call fails, but all are sent.
    pub(super) async fn commands(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, OriginError> {
        let answers = match self {
            Link::Single { connection, .. } => pipelined(connection.clone(), &commands).await?,
            Link::Cluster(connection) => scattered(connection, commands).await?,
        };
        answers.into_iter().map(|answer| Ok(answer.extract_error()?)).collect()
    }

    /// A section of INFO, from the server or from every primary of the Cluster.
    pub(super) async fn info(&self, section: &str) -> Result<Vec<String>, OriginError> {
        let command = redis::cmd("INFO").arg(section).to_owned();
        let answers = match self {
            Link::Single { .. } => vec![self.query(&command).await?],
            Link::Cluster(connection) => {
                let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                match connection.clone().route_command(command, primaries).await?.extract_error()? {
                    Value::Map(answers) => answers.into_iter().map(|(_, answer)| answer).collect(),
                    _ => return Err(OriginError::BadReply),
                }
            }
        };
        let text = |answer| redis::from_redis_value(answer).map_err(|_| OriginError::BadReply);
        answers.into_iter().map(text).collect()
    }
}

fn evaluation(verb: &str, what: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(what).arg(keys.len()).arg(keys).arg(args);
    command
}

/// How many servers have slots. Each range lists its two ends and then its servers, the primary first.
fn primaries(slots: Value) -> Option<usize> {
    let Value::Array(ranges) = slots else { return None };
    let mut primaries = BTreeSet::new();
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let Value::Array(primary) = range.into_iter().nth(2)? else { return None };
        let mut fields = primary.into_iter();
        let (host, port) = (fields.next()?, fields.next()?);
        let host: Option<Vec<u8>> = redis::from_redis_value(host).ok()?;
        let port: u16 = redis::from_redis_value(port).ok()?;
        primaries.insert((host, port));
    }
    Some(primaries.len())
}

async fn pipelined(mut connection: MultiplexedConnection, commands: &[Cmd]) -> Result<Vec<Value>, OriginError> {
    let mut answers = Vec::with_capacity(commands.len());
    for some in commands.chunks(PIPELINE_COMMANDS_MAX) {
        let mut pipeline = Pipeline::with_capacity(some.len());
        for command in some {
            pipeline.add_command(command.clone());
        }
        answers.extend(connection.send_packed_commands(&pipeline, 0, some.len()).await?);
    }
    Ok(answers)
}

async fn scattered(connection: &ClusterConnection, commands: Vec<Cmd>) -> Result<Vec<Value>, OriginError> {
    let mut answers = vec![Value::Nil; commands.len()];
    let mut under_way = JoinSet::new();
    let mut commands = commands.into_iter().enumerate();
    loop {
        while under_way.len() < CLUSTER_COMMANDS_AT_A_TIME {
            let Some((place, command)) = commands.next() else { break };
            let mut connection = connection.clone();
            under_way.spawn(async move { (place, connection.req_packed_command(&command).await) });
        }
        match under_way.join_next().await {
            Some(Ok((place, answer))) => match answers.get_mut(place) {
                Some(slot) => *slot = answer?,
                None => return Err(OriginError::BadReply),
            },
            // The task was stopped with the runtime.
            Some(Err(_)) => return Err(OriginError::Down),
            None => return Ok(answers),
        }
    }
}
