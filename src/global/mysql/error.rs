//! Why MySQL did not do what it was asked to.
//!
//! Publishing and importing ask two things of a failure: what to call it in a metric ([`MysqlError::reason`]), and what
//! to do now ([`MysqlError::remedy`]). Texts come from the server and the system; a password is in none of them.

use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::mysql::MySqlDatabaseError;
use thiserror::Error;

/// Longer texts are cut: they repeat the statement.
const TEXT_CHARS_MAX: usize = 300;

/// A statement that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MysqlError {
    /// No connection, or it broke.
    #[error("MySQL can't be reached: {0}")]
    Unreachable(String),
    #[error("MySQL did not answer within {}", humantime::format_duration(*.within))]
    Timeout { within: Duration },
    /// Somebody else held a lock.
    #[error("MySQL gave way to another statement: {0}")]
    Contended(String),
    /// The failure is about the rows, or about one of them.
    #[error("MySQL refuses a row: {0}")]
    RowRefused(String),
    #[error("the table ratelimit_window_counts is not as it has to be: {0}: run `tidegate migrate`")]
    Schema(String),
    #[error(
        "MySQL does not let us: {0}: see MYSQL_URL and TIDEGATE_MYSQL_PASSWORD_FILE for the user and its password, \
         and grant it SELECT, INSERT and UPDATE on ratelimit_window_counts (cleanup: DELETE; migrate: CREATE, ALTER, \
         INDEX)"
    )]
    Denied(String),
    #[error("MySQL only reads at the moment: {0}: MYSQL_URL has to name the server that is written to")]
    ReadOnly(String),
    /// The failure is about the server, or the table as a whole: no row fares better than another.
    #[error("MySQL is not able to: {0}")]
    Unable(String),
    /// Nobody knows what the failure is about; perhaps it is one row.
    #[error("MySQL failed: {0}")]
    Other(String),
}

/// What to do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Send the statement again at once.
    Retry,
    /// Send the rows in halves: those that are not refused go through.
    Bisect,
    /// Leave the server alone for a while.
    GiveUp,
}

impl MysqlError {
    /// One word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            MysqlError::Unreachable(_) => "unreachable",
            MysqlError::Timeout { .. } => "timeout",
            MysqlError::Contended(_) => "deadlock",
            MysqlError::RowRefused(_) => "row",
            MysqlError::Schema(_) => "schema",
            MysqlError::Denied(_) => "denied",
            MysqlError::ReadOnly(_) => "readonly",
            MysqlError::Unable(_) => "unable",
            MysqlError::Other(_) => "other",
        }
    }

    /// What to do now. Only a failure that is known to be about more than one row ends a turn: otherwise one bad row
    /// would keep the others waiting for good.
    pub fn remedy(&self) -> Remedy {
        match self {
            MysqlError::Contended(_) => Remedy::Retry,
            MysqlError::RowRefused(_) | MysqlError::Other(_) => Remedy::Bisect,
            MysqlError::Unreachable(_)
            | MysqlError::Timeout { .. }
            | MysqlError::Schema(_)
            | MysqlError::Denied(_)
            | MysqlError::ReadOnly(_)
            | MysqlError::Unable(_) => Remedy::GiveUp,
        }
    }

    /// Whether the connection may be used again. If not, the next one may reach another server, or log in with another
    /// password.
    pub(super) fn spares_connection(&self) -> bool {
        match self {
            MysqlError::Contended(_)
            | MysqlError::RowRefused(_)
            | MysqlError::Schema(_)
            | MysqlError::Unable(_)
            | MysqlError::Other(_) => true,
            MysqlError::Unreachable(_)
            | MysqlError::Timeout { .. }
            | MysqlError::Denied(_)
            | MysqlError::ReadOnly(_) => false,
        }
    }

    /// Names the server that a failure is about.
    pub(super) fn at(self, place: &str) -> MysqlError {
        match self {
            MysqlError::Unreachable(text) => MysqlError::Unreachable(format!("{text} ({place})")),
            MysqlError::Denied(text) => MysqlError::Denied(format!("{text} ({place})")),
            other => other,
        }
    }

    fn tls(fault: &dyn std::fmt::Display) -> MysqlError {
        MysqlError::Unreachable(format!("TLS: {}; see ssl-mode and ssl-ca in MYSQL_URL", shown(&fault.to_string())))
    }

    /// Sorts a failure by the number and the SQLSTATE of the server's answer. Numbers are the same in MySQL and MariaDB
    /// where both have them; the few that only one has are marked.
    fn answered(number: u16, state: &str, text: String) -> MysqlError {
        match number {
            // Deadlock, lock wait timeout, lock table full, (MariaDB) record changed since it was read.
            1213 | 1205 | 1206 | 1020 => MysqlError::Contended(text),
            1049 => MysqlError::Schema(format!("{text}, which has to be created first")),
            // No such table, column, index, table of a view; a column that nobody fills.
            1146 | 1054 | 1176 | 1356 | 1364 => MysqlError::Schema(text),
            // No access to the database, as this user, to the table, to the column, from this host; password has to be
            // changed, has expired; account locked (MySQL, MariaDB); login method not known or not taken; no privilege
            // in general; no password needed but none allowed.
            1044 | 1045 | 1142 | 1143 | 1129 | 1130 | 1820 | 1862 | 3118 | 4151 | 1251 | 1524 | 1227 | 1370 | 1698 => {
                MysqlError::Denied(text)
            }
            // Read-only by option, by transaction, by super_read_only; InnoDB forced to.
            1290 | 1792 | 1836 | 1874 => MysqlError::ReadOnly(text),
            // Too many connections, of all or of this user; shutting down; killed; resources used up; the packet errors; a
            // node that has left its Galera cluster.
            1040 | 1203 | 1226 | 1053 | 1927 | 1317 | 1152 | 1158..=1161 | 1047 => MysqlError::Unreachable(text),
            // A statement that takes too long for the server: MySQL, MariaDB.
            3024 | 1969 => MysqlError::Unable(text),
            // Disk full, table full, no file written or read; no memory, no thread; a table that is broken, locked, or has to
            // be upgraded; an engine in trouble, too many transactions; no commit, no log of it, no group of replicas.
            1021 | 1114 | 1026 | 1016 | 1017 | 1037 | 1038 | 1041 | 1135 | 1034 | 1035 | 1194 | 1195 | 1099 | 1223
            | 1459 | 1030 | 1296 | 1637 | 1815 | 1180 | 1598 | 3100 | 3101 => MysqlError::Unable(text),
            // A statement that it does not understand.
            1064 | 1149 | 1235 => MysqlError::Unable(text),
            // The statement is larger than max_allowed_packet: half of it may not be.
            1153 => MysqlError::RowRefused(text),
            // Too long, out of range, duplicate, a constraint; or whatever a trigger says.
            _ if ["22", "23", "45"].iter().any(|class| state.starts_with(class)) => MysqlError::RowRefused(text),
            _ => MysqlError::Other(text),
        }
    }
}

impl From<sqlx::Error> for MysqlError {
    fn from(error: sqlx::Error) -> MysqlError {
        match error {
            sqlx::Error::Database(error) => match error.try_downcast_ref::<MySqlDatabaseError>() {
                Some(error) => {
                    let state = error.code().unwrap_or_default();
                    MysqlError::answered(error.number(), state, shown(&error.to_string()))
                }
                None => MysqlError::Other(shown(error.message())),
            },
            // A certificate that is refused comes as invalid data.
            sqlx::Error::Io(fault) if fault.kind() == std::io::ErrorKind::InvalidData => MysqlError::tls(&fault),
            sqlx::Error::Io(fault) => MysqlError::Unreachable(shown(&fault.to_string())),
            sqlx::Error::Tls(fault) => MysqlError::tls(&fault),
            sqlx::Error::Protocol(text) => MysqlError::Unreachable(shown(&text)),
            // Settings have been checked; what is left is a login that would send the password in the clear.
            sqlx::Error::Configuration(_) => MysqlError::Denied(
                "this user logs in by caching_sha2_password, which needs TLS: write ssl-mode=REQUIRED or more into MYSQL_URL"
                    .into(),
            ),
            other => MysqlError::Other(shown(&other.to_string())),
        }
    }
}

impl From<MigrateError> for MysqlError {
    fn from(error: MigrateError) -> MysqlError {
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => MysqlError::from(error),
            other => MysqlError::Other(shown(&other.to_string())),
        }
    }
}

/// The text on one line, and cut if it is too long.
fn shown(text: &str) -> String {
    let line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = line.take(TEXT_CHARS_MAX).collect();
    if text.chars().nth(TEXT_CHARS_MAX).is_some() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_server_have_a_word_and_a_remedy() {
        for (number, state, reason, remedy) in [
            (1213, "40001", "deadlock", Remedy::Retry),
            (1205, "HY000", "deadlock", Remedy::Retry),
            (1644, "45000", "row", Remedy::Bisect),
            (1406, "22001", "row", Remedy::Bisect),
            (1264, "22003", "row", Remedy::Bisect),
            (4025, "23000", "row", Remedy::Bisect),
            (3819, "HY000", "other", Remedy::Bisect),
            (1242, "21000", "other", Remedy::Bisect),
            (9999, "XX000", "other", Remedy::Bisect),
            (1114, "HY000", "unable", Remedy::GiveUp),
            (1030, "HY000", "unable", Remedy::GiveUp),
            (1047, "08S01", "unreachable", Remedy::GiveUp),
            (1364, "HY000", "schema", Remedy::GiveUp),
            (1153, "08S01", "row", Remedy::Bisect),
            (1049, "42000", "schema", Remedy::GiveUp),
            (1146, "42S02", "schema", Remedy::GiveUp),
            (1054, "42S22", "schema", Remedy::GiveUp),
            (1176, "42000", "schema", Remedy::GiveUp),
            (1045, "28000", "denied", Remedy::GiveUp),
            (1142, "42000", "denied", Remedy::GiveUp),
            (1290, "HY000", "readonly", Remedy::GiveUp),
            (1040, "08004", "unreachable", Remedy::GiveUp),
            (1053, "08S01", "unreachable", Remedy::GiveUp),
            (1969, "70100", "unable", Remedy::GiveUp),
            (1064, "42000", "unable", Remedy::GiveUp),
        ] {
            let error = MysqlError::answered(number, state, "because".into());
            assert_eq!((error.reason(), error.remedy()), (reason, remedy), "{number}");
        }
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let missing = MysqlError::answered(1146, "42S02", "Table 'tide.x' doesn't exist".into()).to_string();
        assert!(missing.contains("Table 'tide.x' doesn't exist: run `tidegate migrate`"), "{missing}");
        let denied =
            MysqlError::answered(1045, "28000", "Access denied".into()).at("db:3306, database tide").to_string();
        assert!(denied.contains("Access denied (db:3306, database tide): see MYSQL_URL"), "{denied}");
        let slow = MysqlError::Timeout { within: Duration::from_secs(2) };
        assert_eq!((slow.to_string().as_str(), slow.reason()), ("MySQL did not answer within 2s", "timeout"));
        let io = sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into());
        assert_eq!(MysqlError::from(io).at("h:1").to_string(), "MySQL can't be reached: connection refused (h:1)");
        let tls = MysqlError::from(sqlx::Error::Tls("bad".into()));
        assert_eq!(tls.to_string(), "MySQL can't be reached: TLS: bad; see ssl-mode and ssl-ca in MYSQL_URL");
    }

    #[test]
    fn texts_are_short_and_on_one_line() {
        assert_eq!(shown("a\n\tb"), "a  b");
        assert_eq!(shown(&"é".repeat(300)), "é".repeat(300));
        assert_eq!(shown(&"é".repeat(301)), format!("{}...", "é".repeat(300)));
    }
}
