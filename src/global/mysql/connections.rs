//! The connections to MySQL: few, made when they are needed, and never waited for without a bound.
//!
//! They are not in the client library's pool, for three reasons. It keeps the password that it began with. While a
//! server refuses connections, it goes on trying until the time is up, and then says only that. And it takes back a
//! connection whose statement was given up halfway. Here every connection starts from the settings and their files, a
//! failure to connect is told at once, and a connection comes back only when its statement has ended.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, MySqlConnection};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::global::mysql::error::MysqlError;
use crate::global::mysql::settings::MysqlSettings;
use crate::global::mysql::statement;

/// One for the publisher, one for the importer, and one for checking and migrating the table.
const CONNECTIONS_MAX: usize = 3;
/// Servers, and the network between them and us, close idle connections. One that was idle for longer is asked before
/// it is used.
const TRUSTED_IDLE: Duration = Duration::from_secs(5);
/// One that nobody has used for so long is closed.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// No lock is worth waiting for longer.
const LOCK_WAIT_MAX_S: u64 = 2;

pub(super) struct Connections {
    settings: MysqlSettings,
    slots: Semaphore,
    /// The one used last is taken first, so that those that are not needed grow old.
    idle: Mutex<Vec<Idle>>,
    /// After this long the server gives up a statement, even if somebody still waits for it.
    statement_max: Duration,
}

struct Idle {
    connection: MySqlConnection,
    /// When it was used last.
    used_at: Instant,
    /// When its last statement ended well. `None` after one that failed: it is asked before it is used.
    trusted_at: Option<Instant>,
}

/// A connection in use. Dropped, it is closed; [`Lease::end`] gives it back.
pub(super) struct Lease<'a> {
    connections: &'a Connections,
    /// Set up by `sql/session.sql`, and with no statement under way.
    pub connection: MySqlConnection,
    _slot: SemaphorePermit<'a>,
}

impl Connections {
    pub(super) fn new(settings: MysqlSettings, statement_max: Duration) -> Connections {
        // The client library looks for the process' own cryptography to verify with. Fails only if it is set already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Connections { settings, slots: Semaphore::new(CONNECTIONS_MAX), idle: Mutex::default(), statement_max }
    }

    /// How long connecting, and an ordinary statement, may take.
    pub(super) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// A connection that works, within the time for connecting.
    pub(super) async fn lease(&self) -> Result<Lease<'_>, MysqlError> {
        let within = self.settings.timeout;
        let leasing = async {
            // The semaphore is never closed, so this can't fail.
            let slot = self.slots.acquire().await.map_err(|fault| MysqlError::Other(fault.to_string()))?;
            let connection = match self.reused().await {
                Some(connection) => connection,
                None => self.connect().await.map_err(|error| error.at(&self.settings.place))?,
            };
            Ok(Lease { connections: self, connection, _slot: slot })
        };
        timeout(within, leasing).await.unwrap_or(Err(MysqlError::Timeout { within }))
    }

    async fn reused(&self) -> Option<MySqlConnection> {
        loop {
            let Idle { mut connection, trusted_at, .. } = self.idle.lock().pop()?;
            if trusted_at.is_some_and(|at| at.elapsed() < TRUSTED_IDLE) || connection.ping().await.is_ok() {
                return Some(connection);
            }
        }
    }

    async fn connect(&self) -> Result<MySqlConnection, MysqlError> {
        let settings = self.settings.clone();
        // Reads the files off the runtime's own threads, because files may take their time.
        let options = tokio::task::spawn_blocking(move || settings.connect_options()).await;
        // The task does not panic, so it can only have been stopped with the runtime.
        let options = options.map_err(|fault| MysqlError::Unreachable(fault.to_string()))?;
        let options = options.map_err(|fault| MysqlError::Denied(fault.to_string()))?;
        let mut connection = options.connect().await?;
        let lock_wait_s = (self.settings.timeout.as_secs() / 2).clamp(1, LOCK_WAIT_MAX_S);
        let session = statement::session(lock_wait_s, self.statement_max.as_secs());
        sqlx::raw_sql(AssertSqlSafe(session)).execute(&mut connection).await?;
        Ok(connection)
    }

    /// Closes the connections that nobody has used for a while. The server notices.
    pub(super) fn close_idle(&self) {
        let mut idle = self.idle.lock();
        // The one used last stands last.
        let old = idle.iter().take_while(|idle| idle.used_at.elapsed() >= IDLE_MAX).count();
        idle.drain(..old);
    }

    /// Closes all connections that nobody uses, and tells the server.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for Idle { connection, .. } in idle {
            // A server that does not hear it notices anyway.
            let _ = timeout(self.settings.timeout, connection.close()).await;
        }
    }
}

impl Lease<'_> {
    /// Ends the use of the connection, with its outcome: `None` if the time was up.
    pub(super) fn end<T>(self, outcome: Option<Result<T, MysqlError>>, within: Duration) -> Result<T, MysqlError> {
        let Lease { connections, connection, _slot } = self;
        // Halfway through an answer, nobody knows what the next bytes belong to.
        let outcome = outcome.unwrap_or(Err(MysqlError::Timeout { within }));
        match outcome {
            Ok(value) => {
                connections.idle.lock().push(Idle {
                    connection,
                    used_at: Instant::now(),
                    trusted_at: Some(Instant::now()),
                });
                Ok(value)
            }
            Err(error) if error.spares_connection() => {
                // Some refusals end the connection too.
                connections.idle.lock().push(Idle { connection, used_at: Instant::now(), trusted_at: None });
                Err(error)
            }
            Err(error) => {
                // The idle connections have met the same fate.
                connections.idle.lock().clear();
                Err(error.at(&connections.settings.place))
            }
        }
    }
}
