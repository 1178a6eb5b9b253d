//! A connection to a server that is up, and what can be asked over it.
//!
//! Nothing here has a time limit: callers give up their calls, and a dropped call leaves the connection whole.

use std::future::Future;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::regional::redis::error::OriginError;
use crate::regional::redis::script::Script;
use crate::regional::redis::signs_of_life::SignsOfLife;

/// How many commands a pipeline has at most: the client library holds their replies until the last is there.
const PIPELINE_COMMANDS_MAX: usize = 1000;

/// A connection that is up.
pub(super) struct Link {
    connection: MultiplexedConnection,
    driver: Driver,
    signs: SignsOfLife,
}

/// The task that reads and writes a connection. Both end together.
struct Driver {
    task: AbortHandle,
    /// Ends when the task does, which holds the other end.
    gone: watch::Receiver<()>,
}

impl Driver {
    fn spawn(driver: impl Future<Output = ()> + Send + 'static) -> Driver {
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
    pub(super) fn new(
        connection: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
        signs: SignsOfLife,
    ) -> Link {
        Link { connection, driver: Driver::spawn(driver), signs }
    }

    /// What is known of the connection's life.
    pub(super) fn signs(&self) -> &SignsOfLife {
        &self.signs
    }

    /// Ends when the connection is gone.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut gone = self.driver.gone.clone();
        async move {
            // Nothing is ever sent: this ends with the sender.
            while gone.changed().await.is_ok() {}
        }
    }

    /// Closes the connection: calls on it end, and what they have sent is read no more, but for what has arrived.
    pub(super) fn close(&self) {
        self.driver.task.abort();
    }

    /// Runs one command.
    pub(super) async fn query(&self, command: &Cmd) -> Result<Value, OriginError> {
        self.signs.asks();
        Ok(self.connection.clone().send_packed_command(command).await?.extract_error()?)
    }

    /// Asks for a sign of life.
    pub(super) async fn ping(&self) -> Result<(), OriginError> {
        self.query(&redis::cmd("PING")).await.map(drop)
    }

    /// Runs a script whose slot is just being moved to this server.
    pub(super) async fn asking_script(
        &self,
        script: &Script,
        keys: &[Vec<u8>],
        args: &[Vec<u8>],
    ) -> Result<Value, OriginError> {
        let run =
            |verb: &str, what: &str| self.commands(vec![redis::cmd("ASKING"), evaluation(verb, what, keys, args)]);
        let answers = match run("EVALSHA", script.hash()).await {
            Err(OriginError::Refused { code, .. }) if code == "NOSCRIPT" => run("EVAL", script.source()).await?,
            other => other?,
        };
        answers.into_iter().nth(1).ok_or(OriginError::BadReply)
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
        let mut connection = self.connection.clone();
        let mut answers = Vec::with_capacity(commands.len());
        for some in commands.chunks(PIPELINE_COMMANDS_MAX) {
            let mut pipeline = Pipeline::with_capacity(some.len());
            for command in some {
                pipeline.add_command(command.clone());
            }
            self.signs.asks();
            answers.extend(connection.send_packed_commands(&pipeline, 0, some.len()).await?);
        }
        answers.into_iter().map(|answer| Ok(answer.extract_error()?)).collect()
    }

    /// A section of INFO.
    pub(super) async fn info(&self, section: &str) -> Result<String, OriginError> {
        let answer = self.query(&redis::cmd("INFO").arg(section).to_owned()).await?;
        redis::from_redis_value(answer).map_err(|_| OriginError::BadReply)
    }
}

fn evaluation(verb: &str, what: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(what).arg(keys.len()).arg(keys).arg(args);
    command
}
