//! The table that regions share: what is written to it and read from it.
//!
//! Every call ends within its bound, or fails: the time for connecting, and then that for the statement. None retries.
//! The server may still do later what a caller has given up. That changes nothing, because rows only grow.

mod connections;
pub mod error;
pub(crate) mod schema;
pub mod settings;
pub mod statement;

use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySqlConnection, Row};
use tokio::time::timeout;

use crate::global::mysql::connections::Connections;
use crate::global::mysql::error::MysqlError;
use crate::global::mysql::schema::AppliedMigration;
use crate::global::mysql::settings::MysqlSettings;
use crate::global::row::{CellName, Counts, HeardRow, OwnRow, RuleName};

/// The time for a statement that goes through the whole table: a full read, a batch of a cleanup, a count.
const LONG: Duration = Duration::from_secs(60);
/// The time for changing the table.
const MIGRATING: Duration = Duration::from_secs(60 * 60);

/// A store of rows, in MySQL 8 or MariaDB.
pub struct MySql {
    connections: Connections,
}

/// Is told every row that is read.
pub type EachRow<'a> = &'a mut (dyn FnMut(HeardRow) + Send);

impl MySql {
    /// Does not connect yet: the first call that needs a connection does.
    pub fn new(settings: &MysqlSettings) -> MySql {
        MySql { connections: Connections::new(settings.clone(), LONG) }
    }

    /// Raises this region's rows to what they are here, all or none. The caller sorts them by cell, so that several
    /// processes take locks in the same order, and keeps them few (512). A row that the table has with the same counts
    /// only gets a new date; one that it has with larger counts stays as it is.
    pub async fn publish(&self, region: &str, rows: &[OwnRow]) -> Result<(), MysqlError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.execute(statement::publish(region, rows), self.connections.timeout()).await?;
        Ok(())
    }

    /// All rows, of all regions, of cells in which a row has changed since and which have not expired; the rows of a
    /// cell come one after the other. Returns the server's clock from before the read, for the next time.
    ///
    /// A row carries the time at which its statement began. Others see it only when that has ended, which may take as
    /// long as [`MysqlSettings::timeout`], and longer if the publisher has given up. So the next `since_ms` has to be
    /// earlier than what is returned here, by more than that.
    ///
    /// Rows that make no sense are left out.
    pub async fn changed_since(&self, since_ms: u64, each: EachRow<'_>) -> Result<u64, MysqlError> {
        self.read(self.connections.timeout(), |now_ms| statement::changed_since(since_ms, now_ms), each).await
    }

    /// All rows that have not expired, from a cell on if one is given, in the order of cells. Otherwise like
    /// [`MySql::changed_since`].
    pub async fn all_live(&self, from: Option<&CellName>, each: EachRow<'_>) -> Result<u64, MysqlError> {
        self.read(LONG, |now_ms| statement::all_live(from, now_ms), each).await
    }

    /// All rows of some rules, which are sorted, that have not expired, from a cell on if one is given. Otherwise like
    /// [`MySql::all_live`].
    pub async fn live_of_rules(
        &self,
        names: &[RuleName],
        from: Option<&CellName>,
        each: EachRow<'_>,
    ) -> Result<u64, MysqlError> {
        self.read(LONG, |now_ms| statement::live_of_rules(names, from, now_ms), each).await
    }

    /// All rows of some cells, the rows of a cell one after the other. At most 252 cells, see
    /// `exchange/lookup_turn.rs`.
    pub async fn find(&self, cells: &[CellName], each: EachRow<'_>) -> Result<(), MysqlError> {
        if cells.is_empty() {
            return Ok(());
        }
        let within = self.connections.timeout();
        let mut lease = self.connections.lease().await?;
        let outcome = timeout(within, each_row(&mut lease.connection, statement::cells(cells), each)).await.ok();
        lease.end(outcome, within)
    }

    /// Fails unless the table has what the statements need.
    pub async fn check_schema(&self) -> Result<(), MysqlError> {
        let within = self.connections.timeout();
        let mut lease = self.connections.lease().await?;
        let outcome = timeout(within, schema::check(&mut lease.connection)).await.ok();
        lease.end(outcome, within)
    }

    /// Makes the table what this version needs, and returns the migrations that took.
    pub async fn migrate(&self) -> Result<Vec<AppliedMigration>, MysqlError> {
        let mut lease = self.connections.lease().await?;
        let outcome = timeout(MIGRATING, schema::migrate(&mut lease.connection)).await;
        // The connection is not given back: it holds the lock, and waits longer than others.
        outcome.unwrap_or(Err(MysqlError::Timeout { within: MIGRATING }))
    }

    /// Deletes rows that expired before this time, the oldest first, and returns how many. Fewer than `at_most` means
    /// that none is left.
    pub async fn delete_expired(&self, before_ms: u64, at_most: u64) -> Result<u64, MysqlError> {
        self.execute(statement::delete_expired(before_ms, at_most), LONG).await
    }

    /// How many rows expired before this time.
    pub async fn count_expired(&self, before_ms: u64) -> Result<u64, MysqlError> {
        self.number(statement::count_expired(before_ms), LONG).await
    }

    /// The server's clock, in ms since 1970.
    pub async fn server_now_ms(&self) -> Result<u64, MysqlError> {
        self.number(statement::clock(), self.connections.timeout()).await
    }

    /// Closes the connections that nobody uses. A later call connects anew.
    pub async fn close(&self) {
        self.connections.close().await;
    }

    /// Closes connections that nobody has used for a while: a process that only hears others needs none.
    pub(crate) fn close_idle(&self) {
        self.connections.close_idle();
    }

    /// Runs a statement, and returns how many rows it changed.
    async fn execute(&self, sql: String, within: Duration) -> Result<u64, MysqlError> {
        let mut lease = self.connections.lease().await?;
        let executing = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut lease.connection);
        let outcome = timeout(within, executing).await.ok();
        let outcome = outcome.map(|done| done.map(|done| done.rows_affected()).map_err(MysqlError::from));
        lease.end(outcome, within)
    }

    async fn number(&self, sql: String, within: Duration) -> Result<u64, MysqlError> {
        let mut lease = self.connections.lease().await?;
        let outcome = timeout(within, number(&mut lease.connection, sql)).await.ok();
        lease.end(outcome, within)
    }

    /// Reads the clock, and then the rows.
    async fn read(
        &self,
        within: Duration,
        sql: impl FnOnce(u64) -> String,
        each: EachRow<'_>,
    ) -> Result<u64, MysqlError> {
        let mut lease = self.connections.lease().await?;
        let reading = async {
            let now_ms = number(&mut lease.connection, statement::clock()).await?;
            each_row(&mut lease.connection, sql(now_ms), each).await?;
            Ok(now_ms)
        };
        let outcome = timeout(within, reading).await.ok();
        lease.end(outcome, within)
    }
}

/// Tells every row that a statement reads, unless it makes no sense.
async fn each_row(connection: &mut MySqlConnection, sql: String, each: EachRow<'_>) -> Result<(), MysqlError> {
    let mut rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch(connection);
    while let Some(row) = rows.try_next().await? {
        if let Some(row) = heard(&row) {
            each(row);
        }
    }
    Ok(())
}

/// The first value of the first row.
async fn number(connection: &mut MySqlConnection, sql: String) -> Result<u64, MysqlError> {
    let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await?;
    unsigned(&row, 0).ok_or_else(|| MysqlError::Other("it answered with something else than a number".into()))
}

/// A row as it was read; `None` if it makes no sense, whoever wrote it.
fn heard(row: &MySqlRow) -> Option<HeardRow> {
    let cell = CellName {
        workspace: bytes(row, 0)?.into(),
        namespace: bytes(row, 1)?.into(),
        identifier: bytes(row, 2)?.into(),
        duration_ms: unsigned(row, 3).filter(|duration_ms| *duration_ms > 0)?,
        sequence: unsigned(row, 4)?,
    };
    let region = std::str::from_utf8(bytes(row, 5)?).ok().filter(|region| !region.is_empty())?;
    let counts = Counts { hits: unsigned(row, 6)?, refunds: unsigned(row, 7)? };
    Some(HeardRow { cell, region: region.into(), counts, updated_at_ms: unsigned(row, 8)? })
}

/// A value as it was sent, whatever type the column has.
fn bytes(row: &MySqlRow, place: usize) -> Option<&[u8]> {
    row.try_get_unchecked(place).ok()
}

fn unsigned(row: &MySqlRow, place: usize) -> Option<u64> {
    std::str::from_utf8(bytes(row, place)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails to compile if a call can't move between threads: the driver runs calls on any thread.
    #[allow(dead_code)]
    fn calls_can_be_spawned(store: &MySql) {
        fn spawned(_: impl Future + Send) {}
        spawned(store.publish("eu", &[]));
        spawned(store.changed_since(0, &mut |_| ()));
        spawned(store.all_live(None, &mut |_| ()));
        spawned(store.live_of_rules(&[], None, &mut |_| ()));
        spawned(store.find(&[], &mut |_| ()));
        spawned(store.check_schema());
        spawned(store.migrate());
        spawned(store.delete_expired(0, 1));
        spawned(store.close());
    }
}
