//! Checks whether the table is as the statements need it, and makes it so.
//!
//! Nothing here changes a table without being asked: a start checks and says what to run, `tidegate migrate` does it.

use std::collections::BTreeMap;

use sqlx::migrate::{Migrate, Migration, MigrationType};
use sqlx::{AssertSqlSafe, MySqlConnection, Row, SqlSafeStr};

use crate::global::mysql::error::MysqlError;
use crate::global::mysql::statement;

/// Where applied migrations are noted. It has a name of its own, so that nobody else's migrations in the same database
/// are mistaken for ours.
const APPLIED_TABLE: &str = "_tidegate_migrations";
/// How long to wait for another process that is migrating.
const MIGRATING_WAIT_S: u64 = 30;

/// A migration, as it is named in `migrations/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedMigration {
    /// The number that its file name begins with; migrations run in this order.
    pub version: i64,
    /// The rest of its file name, without `.sql`.
    pub name: String,
}

/// What each column has to be: a number, or bytes that are compared as such, with room for at least so many.
const COLUMNS: [(&str, Requirement); 11] = [
    ("pk", Requirement::Number),
    ("workspace_id", Requirement::Bytes(191)),
    ("namespace", Requirement::Bytes(255)),
    ("identifier", Requirement::Bytes(255)),
    ("duration_ms", Requirement::Number),
    ("sequence", Requirement::Number),
    ("region", Requirement::Bytes(48)),
    ("count", Requirement::Number),
    ("refunds", Requirement::Number),
    ("expires_at", Requirement::Number),
    ("updated_at", Requirement::Number),
];

/// The indexes that statements name, by the columns they begin with.
const INDEXES: [(&str, &[&str]); 3] = [
    ("unique_window_region", &["workspace_id", "namespace", "identifier", "duration_ms", "sequence", "region"]),
    ("expires_at_idx", &["expires_at"]),
    ("updated_at_idx", &["updated_at"]),
];

#[derive(Clone, Copy)]
enum Requirement {
    Number,
    Bytes(u64),
}

/// A column as it is: its type, and how many bytes it holds.
type Columns = BTreeMap<String, (String, u64)>;
/// An index as it is: its columns, and whether it is unique.
type Indexes = BTreeMap<String, (Vec<String>, bool)>;

/// Fails with everything that is wrong with the table.
pub(crate) async fn check(connection: &mut MySqlConnection) -> Result<(), MysqlError> {
    let (mut columns, mut indexes) = (Columns::new(), Indexes::new());
    for [name, kind, bytes] in texts(connection, statement::columns()).await? {
        columns.insert(name, (kind, bytes.parse().unwrap_or(0)));
    }
    for [index, column, non_unique] in texts(connection, statement::indexes()).await? {
        let (columns, is_unique) = indexes.entry(index).or_default();
        columns.push(column);
        *is_unique = non_unique == "0";
    }
    let faults = faults(&columns, &indexes);
    if faults.is_empty() { Ok(()) } else { Err(MysqlError::Schema(faults.join(", "))) }
}

fn faults(columns: &Columns, indexes: &Indexes) -> Vec<String> {
    if columns.is_empty() {
        return vec!["it is not there, or this user may not see it".into()];
    }
    let mut faults = Vec::new();
    for (name, needed) in COLUMNS {
        let Some((kind, bytes)) = columns.get(name) else {
            faults.push(format!("the column {name} is missing"));
            continue;
        };
        match needed {
            Requirement::Number if !(kind.starts_with("bigint") && kind.contains("unsigned")) => {
                faults.push(format!("the column {name} is {kind}, not BIGINT UNSIGNED"));
            }
            Requirement::Bytes(least) if !kind.starts_with("varbinary") || *bytes < least => {
                faults.push(format!("the column {name} is {kind}, not VARBINARY({least})"));
            }
            Requirement::Number | Requirement::Bytes(_) => {}
        }
    }
    for (name, needed) in INDEXES {
        let must_be_unique = name == "unique_window_region";
        match indexes.get(name) {
            None => faults.push(format!("the index {name} is missing")),
            // A longer unique key would let a region have several rows for a cell.
            Some((columns, is_unique)) if must_be_unique && (!is_unique || columns != needed) => {
                faults.push(format!("the index {name} is not unique by {}", needed.join(", ")));
            }
            Some((columns, _)) if !columns.iter().zip(needed).all(|(is, needed)| is == needed) => {
                faults.push(format!("the index {name} does not begin with {}", needed.join(", ")));
            }
            Some(_) => {}
        }
    }
    faults
}

/// Rows of three values, each as the server prints it.
async fn texts(connection: &mut MySqlConnection, sql: String) -> Result<Vec<[String; 3]>, MysqlError> {
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
    let value = |row: &sqlx::mysql::MySqlRow, place: usize| -> Result<String, sqlx::Error> {
        let bytes: &[u8] = row.try_get_unchecked(place)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let row = |row| Ok([value(row, 0)?, value(row, 1)?, value(row, 2)?]);
    rows.iter().map(row).collect::<Result<_, sqlx::Error>>().map_err(MysqlError::from)
}

/// Applies the migrations that are missing, and returns them. If several processes migrate at once, one does it and the
/// others wait.
pub(crate) async fn migrate(connection: &mut MySqlConnection) -> Result<Vec<AppliedMigration>, MysqlError> {
    // Whatever happens from here on, the lock goes with the connection.
    let lock = format!("SELECT GET_LOCK(CONCAT('tidegate.', LEFT(SHA1(DATABASE()), 32)), {MIGRATING_WAIT_S})");
    let is_locked: Option<i64> = sqlx::raw_sql(AssertSqlSafe(lock)).fetch_one(&mut *connection).await?.try_get(0)?;
    if is_locked != Some(1) {
        return Err(MysqlError::Contended(format!(
            "another process has been migrating for {MIGRATING_WAIT_S} s: see that it ends, and try again"
        )));
    }
    // Changing a large table may take as long as it takes.
    sqlx::raw_sql("SET SESSION lock_wait_timeout = 30 /*M!100101 , max_statement_time = 0 */")
        .execute(&mut *connection)
        .await?;
    connection.ensure_migrations_table(APPLIED_TABLE).await?;
    // Forgets migrations that were begun and not ended, by a process or a server that died over them: nobody else is at
    // them, and each can be applied twice. If somebody has dropped the table, forgets all.
    let is_there = !texts(connection, statement::columns()).await?.is_empty();
    let which = if is_there { " WHERE success = FALSE" } else { "" };
    let forget = format!("DELETE FROM {APPLIED_TABLE}{which}");
    sqlx::raw_sql(AssertSqlSafe(forget)).execute(&mut *connection).await?;
    let before = connection.list_applied_migrations(APPLIED_TABLE).await?;
    // Migrations of a newer version are fine for this one.
    let is_missing = |migration: &Migration| before.iter().all(|applied| applied.version != migration.version);
    let mut applied = Vec::new();
    for migration in migrations().into_iter().filter(is_missing) {
        connection.apply(APPLIED_TABLE, &migration).await?;
        applied.push(AppliedMigration { version: migration.version, name: migration.description.into_owned() });
    }
    Ok(applied)
}

/// The files of `migrations/`, in their order.
fn migrations() -> Vec<Migration> {
    let migration = |version, name: &'static str, sql: &'static str| {
        Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    vec![migration(1, "ratelimit_window_counts", include_str!("../../../migrations/0001_ratelimit_window_counts.sql"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> (Columns, Indexes) {
        let column = |(name, needed): (&str, Requirement)| match needed {
            Requirement::Number => (name.to_owned(), ("bigint(20) unsigned".to_owned(), 0)),
            Requirement::Bytes(bytes) => (name.to_owned(), (format!("varbinary({bytes})"), bytes)),
        };
        let index = |(name, columns): (&str, &[&str])| {
            let columns = columns.iter().map(|column| (*column).to_owned()).collect();
            (name.to_owned(), (columns, name == "unique_window_region"))
        };
        (COLUMNS.into_iter().map(column).collect(), INDEXES.into_iter().map(index).collect())
    }

    #[test]
    fn everything_that_is_missing_is_said_at_once() {
        let (mut columns, mut indexes) = good();
        assert_eq!(faults(&columns, &indexes), Vec::<String>::new());
        columns.remove("refunds");
        columns.insert("sequence".into(), ("bigint(20)".into(), 0));
        columns.insert("identifier".into(), ("varchar(255)".into(), 1020));
        columns.insert("region".into(), ("varbinary(32)".into(), 32));
        indexes.remove("updated_at_idx");
        if let Some((_, is_unique)) = indexes.get_mut("unique_window_region") {
            *is_unique = false;
        }
        indexes.insert("expires_at_idx".into(), (vec!["pk".into(), "expires_at".into()], false));
        assert_eq!(
            faults(&columns, &indexes),
            [
                "the column identifier is varchar(255), not VARBINARY(255)",
                "the column sequence is bigint(20), not BIGINT UNSIGNED",
                "the column region is varbinary(32), not VARBINARY(48)",
                "the column refunds is missing",
                "the index unique_window_region is not unique by workspace_id, namespace, identifier, duration_ms, \
                 sequence, region",
                "the index expires_at_idx does not begin with expires_at",
                "the index updated_at_idx is missing",
            ]
        );
        assert_eq!(faults(&Columns::new(), &indexes), ["it is not there, or this user may not see it"]);
    }

    #[test]
    fn migrations_are_those_of_their_directory() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let named: Vec<String> =
            migrations().iter().map(|it| format!("{:04}_{}.sql", it.version, it.description)).collect();
        assert_eq!(named, files);
    }
}
