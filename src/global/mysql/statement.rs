//! The statements as they are sent: the files of `sql/`, with their places filled.
//!
//! They go as text, in one round trip: a prepared statement takes two, and one with the places of 512 rows is answered
//! with thousands of packets that describe them. Only numbers, and bytes in hexadecimal, are filled in, so nothing that
//! anybody sends can be read as SQL.

use std::fmt::Write;

use crate::global::row::{CellName, OwnRow, RuleName};

const SESSION: &str = include_str!("../sql/session.sql");
const PUBLISH: &str = include_str!("../sql/publish.sql");
const CHANGED_SINCE: &str = include_str!("../sql/changed_since.sql");
const ALL_LIVE: &str = include_str!("../sql/all_live.sql");
const LIVE_OF_RULES: &str = include_str!("../sql/live_of_rules.sql");
const CELLS: &str = include_str!("../sql/cells.sql");
const DELETE_EXPIRED: &str = include_str!("../sql/delete_expired.sql");
const COUNT_EXPIRED: &str = include_str!("../sql/count_expired.sql");
const CLOCK: &str = include_str!("../sql/clock.sql");
const COLUMNS: &str = include_str!("../sql/columns.sql");
const INDEXES: &str = include_str!("../sql/indexes.sql");

/// Sets up a connection. The server gives up a statement after `statement_s`, and waiting for a lock after
/// `lock_wait_s`.
pub fn session(lock_wait_s: u64, statement_s: u64) -> String {
    let places = [(":lock_wait_s", lock_wait_s), (":statement_ms", statement_s * 1000), (":statement_s", statement_s)];
    filled(SESSION, &places)
}

/// Raises the rows of a region.
pub fn publish(region: &str, rows: &[OwnRow]) -> String {
    let mut values = String::new();
    let region = hex(region.as_bytes());
    for (place, OwnRow { cell, counts }) in rows.iter().enumerate() {
        let CellName { workspace, namespace, identifier, duration_ms, sequence } = cell;
        let (workspace, namespace, identifier) = (hex(workspace), hex(namespace), hex(identifier));
        // Writing into a string can't fail.
        let _ = write!(
            values,
            "{}(x'{workspace}',x'{namespace}',x'{identifier}',{duration_ms},{sequence},x'{region}',{},{},{},\
             UNIX_TIMESTAMP(SYSDATE(3))*1000)",
            if place == 0 { "" } else { "," },
            counts.hits,
            counts.refunds,
            cell.expires_at_ms(),
        );
    }
    text(PUBLISH).replace(":rows", &values)
}

/// All rows of cells in which a row has changed.
pub fn changed_since(since_ms: u64, now_ms: u64) -> String {
    filled(CHANGED_SINCE, &[(":since_ms", since_ms), (":now_ms", now_ms)])
}

/// All rows that have not expired, from a cell on if one is given.
pub fn all_live(from: Option<&CellName>, now_ms: u64) -> String {
    let [workspace, namespace, identifier] = match from {
        Some(from) => [&from.workspace, &from.namespace, &from.identifier].map(|name| hex(name)),
        None => Default::default(),
    };
    let numbers = [
        (":now_ms", now_ms),
        (":duration_ms", from.map_or(0, |from| from.duration_ms)),
        (":sequence", from.map_or(0, |from| from.sequence)),
    ];
    let names = [(":workspace_id", workspace), (":namespace", namespace), (":identifier", identifier)];
    names.iter().fold(filled(ALL_LIVE, &numbers), |sql, (place, hex)| sql.replace(place, &format!("x'{hex}'")))
}

/// All rows of some rules, which are sorted, that have not expired, from a cell on if one is given.
pub fn live_of_rules(names: &[RuleName], from: Option<&CellName>, now_ms: u64) -> String {
    let place = |cell: &CellName| RuleName { workspace: cell.workspace.clone(), namespace: cell.namespace.clone() };
    let first = from.map(place);
    let mut ranges = String::new();
    for name in names.iter().filter(|name| first.as_ref().is_none_or(|first| *name >= first)) {
        let or = if ranges.is_empty() { "" } else { " OR " };
        let RuleName { workspace, namespace } = name;
        // Writing into a string can't fail.
        let _ = write!(ranges, "{or}(workspace_id=x'{}' AND namespace=x'{}'", hex(workspace), hex(namespace));
        if let Some(CellName { identifier, duration_ms, sequence, .. }) = from.filter(|_| first.as_ref() == Some(name))
        {
            let identifier = hex(identifier);
            let _ = write!(
                ranges,
                " AND (identifier>x'{identifier}' OR (identifier=x'{identifier}' AND (duration_ms>{duration_ms} OR \
                 (duration_ms={duration_ms} AND sequence>={sequence}))))"
            );
        }
        ranges.push(')');
    }
    let ranges = if ranges.is_empty() { "FALSE" } else { &ranges };
    filled(LIVE_OF_RULES, &[(":now_ms", now_ms)]).replace(":rules", ranges)
}

/// All rows of some cells, at least one.
pub fn cells(cells: &[CellName]) -> String {
    let mut constants = String::new();
    for (place, cell) in cells.iter().enumerate() {
        let CellName { workspace, namespace, identifier, duration_ms, sequence } = cell;
        let (workspace, namespace, identifier) = (hex(workspace), hex(namespace), hex(identifier));
        // Writing into a string can't fail.
        let _ = match place {
            0 => write!(
                constants,
                "SELECT x'{workspace}' AS workspace_id,x'{namespace}' AS namespace,x'{identifier}' AS identifier,\
                 {duration_ms} AS duration_ms,{sequence} AS sequence"
            ),
            _ => write!(
                constants,
                " UNION ALL SELECT x'{workspace}',x'{namespace}',x'{identifier}',{duration_ms},{sequence}"
            ),
        };
    }
    text(CELLS).replace(":cells", &constants)
}

/// Deletes rows that expired before this time.
pub fn delete_expired(before_ms: u64, at_most: u64) -> String {
    filled(DELETE_EXPIRED, &[(":before_ms", before_ms), (":at_most", at_most)])
}

/// Counts rows that expired before this time.
pub fn count_expired(before_ms: u64) -> String {
    filled(COUNT_EXPIRED, &[(":before_ms", before_ms)])
}

/// The server's clock.
pub fn clock() -> String {
    text(CLOCK)
}

/// The table's columns.
pub fn columns() -> String {
    text(COLUMNS)
}

/// The table's indexes.
pub fn indexes() -> String {
    text(INDEXES)
}

/// The statement of a file without the header, which is for readers.
fn text(file: &str) -> String {
    let lines: Vec<&str> = file.lines().filter(|line| !line.starts_with("--")).collect();
    lines.join("\n")
}

fn filled(file: &str, places: &[(&str, u64)]) -> String {
    places.iter().fold(text(file), |sql, (place, value)| sql.replace(place, &value.to_string()))
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::global::row::Counts;

    #[test]
    fn every_place_is_filled() {
        let cell = CellName {
            workspace: b"edge".as_slice().into(),
            namespace: Box::default(),
            identifier: b"'; DROP\0\xff".as_slice().into(),
            duration_ms: 60_000,
            sequence: u64::MAX,
        };
        let row = OwnRow { cell, counts: Counts { hits: 7, refunds: 2 } };
        let publish = publish("eu", &[row.clone(), row.clone()]);
        let value = format!(
            "(x'65646765',x'',x'273b2044524f5000ff',60000,{max},x'6575',7,2,{max},UNIX_TIMESTAMP(SYSDATE(3))*1000)",
            max = u64::MAX
        );
        assert!(publish.contains(&format!("VALUES {value},{value}\nON DUPLICATE")), "{publish}");
        assert!(session(1, 60).contains("innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"), "{}", session(1, 60));
        assert!(session(1, 60).contains("max_execution_time = 60000 */ /*M!100101 , max_statement_time = 60 */;"));
        let all = [
            publish,
            session(1, 60),
            changed_since(1, 2),
            all_live(None, 3),
            all_live(Some(&row.cell), 3),
            cells(&[row.cell.clone(), row.cell.clone()]),
            delete_expired(4, 5),
            count_expired(6),
            clock(),
        ];
        for sql in all {
            assert!(!sql.contains("--") && !sql.contains(" :"), "{sql}");
        }
        assert!(changed_since(17, 18).contains("updated_at >= 17 AND expires_at > 18"));
        assert!(all_live(None, 3).contains("workspace_id = x'' AND namespace = x'' AND identifier > x''"));
        assert!(all_live(Some(&row.cell), 3).contains("AND duration_ms = 60000 AND sequence >= 18446744073709551615"));
        assert!(delete_expired(4, 5).ends_with("< 4\nORDER BY expires_at, pk\nLIMIT 5"));
    }
}
