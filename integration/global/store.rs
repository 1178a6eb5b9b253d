//! The table that regions share, in a real MariaDB: what is written and read, and what a caller hears when it fails.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate::global::mysql::error::{MysqlError, Remedy};
use tidegate::global::mysql::settings::{MysqlFlags, MysqlSettings};
use tidegate::global::mysql::{MySql, statement};
use tidegate::global::row::{CellName, Counts, HeardRow, OwnRow, RuleName};
use tidegate::secret::Secret;

use crate::support::certificates::Authority;
use crate::support::harness::{PATIENCE, until};
use crate::support::mariadb::{DATABASE, MariaDbServer, PASSWORD, USER, numbers};

/// Long enough for a machine that is busy with other tests.
const WITHIN: Duration = Duration::from_secs(30);
/// A window that is far from its end, whatever the time: the rows of a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn settings(url: &str, password_file: Option<PathBuf>, timeout: Duration) -> MysqlSettings {
    let flags =
        MysqlFlags { mysql_url: Some(Secret::new(url)), mysql_password_file: password_file, mysql_timeout: timeout };
    MysqlSettings::required(&flags).unwrap()
}

fn store(server: &MariaDbServer) -> MySql {
    store_at(&server.url())
}

fn store_at(url: &str) -> MySql {
    MySql::new(&settings(url, None, WITHIN))
}

/// With the table.
async fn migrated() -> (MariaDbServer, MySql) {
    let server = MariaDbServer::start();
    let store = store(&server);
    let deadline = Instant::now() + PATIENCE;
    // A server that has just started may close its first connections.
    while let Err(error) = store.migrate().await {
        let is_starting = matches!(error, MysqlError::Unreachable(_)) && Instant::now() < deadline;
        assert!(is_starting, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (server, store)
}

fn now_ms() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// The cell of an identifier today.
fn cell(identifier: &[u8]) -> CellName {
    CellName {
        workspace: b"edge".as_slice().into(),
        namespace: b"edge.api_key".as_slice().into(),
        identifier: identifier.into(),
        duration_ms: DAY_MS,
        sequence: now_ms() / DAY_MS,
    }
}

fn row(identifier: &str, hits: u64, refunds: u64) -> OwnRow {
    OwnRow { cell: cell(identifier.as_bytes()), counts: Counts { hits, refunds } }
}

async fn all(store: &MySql) -> Vec<HeardRow> {
    let mut rows = Vec::new();
    store.all_live(None, &mut |row| rows.push(row)).await.unwrap();
    rows
}

async fn changed(store: &MySql, since_ms: u64) -> Vec<HeardRow> {
    let mut rows = Vec::new();
    store.changed_since(since_ms, &mut |row| rows.push(row)).await.unwrap();
    rows
}

/// `identifier region hits refunds` of each row.
fn in_short(rows: &[HeardRow]) -> Vec<String> {
    let name = |row: &HeardRow| String::from_utf8_lossy(&row.cell.identifier).into_owned();
    rows.iter().map(|it| format!("{} {} {} {}", name(it), it.region, it.counts.hits, it.counts.refunds)).collect()
}

#[tokio::test]
async fn rows_only_grow_and_a_repeat_is_dated_anew() {
    let (server, store) = migrated().await;
    let before_ms = store.server_now_ms().await.unwrap();
    assert!(before_ms.abs_diff(now_ms()) < 60_000, "{before_ms}");
    store.publish("eu", &[]).await.unwrap();
    store.publish("eu", &[row("a", 5, 1), row("b", 7, 0)]).await.unwrap();
    store.publish("us", &[row("a", 2, 0)]).await.unwrap();
    let first = all(&store).await;
    assert_eq!(in_short(&first), ["a eu 5 1", "a us 2 0", "b eu 7 0"]);
    assert_eq!(first[0].cell, cell(b"a"));
    assert!(first.iter().all(|row| row.updated_at_ms >= before_ms));
    let expires_at = server.number("SELECT DISTINCT expires_at FROM ratelimit_window_counts");
    assert_eq!(expires_at, cell(b"a").expires_at_ms());

    until(PATIENCE, "the clock goes on", || {
        (server.number("SELECT UNIX_TIMESTAMP(NOW(3))*1000 DIV 1") > first[2].updated_at_ms).then_some(())
    });
    // Less, and less of one with the same of the other.
    for counts in [[0, 0], [4, 1], [5, 0]] {
        store.publish("eu", &[row("a", counts[0], counts[1])]).await.unwrap();
    }
    assert_eq!(all(&store).await, first);
    // Once more: what was sent before may have been seen by nobody yet.
    store.publish("eu", &[row("a", 5, 1)]).await.unwrap();
    let again = all(&store).await;
    assert_eq!(in_short(&again), in_short(&first));
    assert!(again[0].updated_at_ms > first[0].updated_at_ms);
    // Each column grows by itself, and takes the time along.
    store.publish("eu", &[row("a", 6, 0), row("b", 1, 3)]).await.unwrap();
    let second = all(&store).await;
    assert_eq!(in_short(&second), ["a eu 6 1", "a us 2 0", "b eu 7 3"]);
    assert!(second[0].updated_at_ms > first[0].updated_at_ms && second[2].updated_at_ms > first[2].updated_at_ms);
    assert_eq!(second[1], first[1]);
}

#[tokio::test]
async fn an_import_hears_all_regions_of_a_cell_that_one_has_changed() {
    let (server, store) = migrated().await;
    for region in ["eu", "us", "ap"] {
        store.publish(region, &[row("a", 1, 0), row("b", 1, 0), row("c", 1, 0)]).await.unwrap();
    }
    server.sql("UPDATE ratelimit_window_counts SET updated_at = 1000");
    assert_eq!(changed(&store, 1001).await, []);
    assert_eq!(changed(&store, 1000).await.len(), 9);
    let mut heard = Vec::new();
    store.publish("us", &[row("b", 2, 0)]).await.unwrap();
    let clock_ms = store.changed_since(1001, &mut |row| heard.push(row)).await.unwrap();
    assert_eq!(in_short(&heard), ["b ap 1 0", "b eu 1 0", "b us 2 0"]);
    assert!(heard[2].updated_at_ms <= clock_ms && clock_ms <= store.server_now_ms().await.unwrap());
    // What has expired is not heard of any more.
    server.sql("UPDATE ratelimit_window_counts SET expires_at = 1001 WHERE identifier = 'b'");
    assert_eq!(changed(&store, 1001).await, []);
    assert_eq!(all(&store).await.len(), 6);
}

#[tokio::test]
async fn rows_of_a_cell_come_one_after_the_other() {
    let (_server, store) = migrated().await;
    let mut rows: Vec<OwnRow> = (0..700).map(|n| row(&format!("{:x}", n * 7919 % 701), n, 0)).collect();
    rows.sort_by(|a, b| a.cell.cmp(&b.cell));
    for region in ["eu", "us", "ap"] {
        store.publish(region, &rows).await.unwrap();
    }
    for heard in [all(&store).await, changed(&store, 1).await] {
        assert_eq!(heard.len(), 2100);
        // In the order in which cells are compared here, too.
        let cells: Vec<&CellName> = heard.iter().map(|row| &row.cell).collect();
        assert!(cells.is_sorted() && cells.chunks(3).all(|cells| cells.iter().all(|cell| *cell == cells[0])));
    }
}

#[tokio::test]
async fn identifiers_stay_apart_byte_by_byte() {
    let (server, store) = migrated().await;
    // As the engine hands over one of 300 characters: its digest, which is any bytes.
    let digest = [0xff, 0x00, b'\'', b'\\', 0x1a, b'\n', 0x80, b'"'];
    let names: [&[u8]; 8] = [b"User", b"user", b"user ", &digest, b"", b"\0", "é".as_bytes(), &[b'x'; 255]];
    let mut rows: Vec<OwnRow> =
        (1..).zip(names).map(|(hits, name)| OwnRow { cell: cell(name), counts: Counts { hits, refunds: 0 } }).collect();
    rows.sort_by(|a, b| a.cell.cmp(&b.cell));
    store.publish("eu", &rows).await.unwrap();
    let heard: Vec<(CellName, Counts)> = all(&store).await.into_iter().map(|row| (row.cell, row.counts)).collect();
    let told: Vec<(CellName, Counts)> = rows.into_iter().map(|row| (row.cell, row.counts)).collect();
    assert_eq!(heard, told);
    assert_eq!(server.number("SELECT COUNT(*) FROM ratelimit_window_counts WHERE identifier = 'user'"), 1);
    // What does not fit is refused, even by a server that would cut it off: two would become one.
    let long = OwnRow { cell: cell(&[b'x'; 256]), counts: Counts { hits: 1, refunds: 0 } };
    let error = store.publish("eu", &[long]).await.unwrap_err();
    assert_eq!((error.reason(), error.remedy()), ("row", Remedy::Bisect), "{error}");
}

/// One publisher of 5,000 rows. Retries what gave way to the other, and counts how often.
async fn publish_all(store: &MySql, rows: &[OwnRow], retries: &AtomicU64) {
    for chunk in rows.chunks(512) {
        while let Err(error) = store.publish("eu", chunk).await {
            assert_eq!(error.remedy(), Remedy::Retry, "{error}");
            retries.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opposing_publishers_lose_no_update() {
    const ROWS: u64 = 5000;
    const ROUNDS: u64 = 100;
    let (server, store) = migrated().await;
    let store = Arc::new(store);
    let retries = Arc::new(AtomicU64::new(0));
    let publisher = |is_rising: bool| {
        let (store, retries) = (store.clone(), retries.clone());
        tokio::spawn(async move {
            for round in 1..=ROUNDS {
                let hits = |n: u64| if is_rising { n + round } else { ROWS - n + round };
                let mut rows: Vec<OwnRow> =
                    (0..ROWS).map(|n| row(&format!("{n:05}"), hits(n), round * u64::from(is_rising))).collect();
                // As it should not be, now and then, so that there is something to retry.
                if !is_rising && round % 10 == 0 {
                    rows.reverse();
                }
                publish_all(&store, &rows, &retries).await;
            }
        })
    };
    let (rising, falling) = (publisher(true), publisher(false));
    rising.await.unwrap();
    falling.await.unwrap();
    let heard: BTreeMap<Vec<u8>, Counts> =
        all(&store).await.into_iter().map(|row| (row.cell.identifier.to_vec(), row.counts)).collect();
    let expected = (0..ROWS).map(|n| {
        let counts = Counts { hits: n.max(ROWS - n) + ROUNDS, refunds: ROUNDS };
        (format!("{n:05}").into_bytes(), counts)
    });
    assert_eq!(heard, expected.collect());
    let retries = retries.load(Ordering::Relaxed);
    println!("{retries} of {} chunks were retried", 2 * ROUNDS * ROWS.div_ceil(512));
    assert!(server.root("SHOW PROCESSLIST").len() <= 4, "at most three connections, and this one");
}

/// How each table of a statement is read, as `table type key`.
fn keys_of(server: &MariaDbServer, sql: &str) -> Vec<String> {
    let lines = server.sql(&format!("EXPLAIN {sql}"));
    let key = |line: &String| {
        let columns: Vec<&str> = line.split('\t').collect();
        // MySQL has the partitions behind the table.
        let behind = columns.len().min(11) - 10;
        format!("{} {} {}", columns[2], columns[behind + 3], columns[behind + 5])
    };
    lines.iter().map(key).collect()
}

/// How many rows a statement reads, temporary ones included.
fn reads_of(server: &MariaDbServer, sql: &str) -> u64 {
    let lines = server.sql(&format!("FLUSH STATUS; {sql}; SHOW SESSION STATUS LIKE 'Handler_read%'"));
    let reads = lines.iter().filter_map(|line| line.strip_prefix("Handler_read_")?.split_once('\t'));
    let reads: Vec<(&str, u64)> = reads.map(|(name, count)| (name, count.parse().unwrap())).collect();
    println!("{reads:?}");
    assert!(reads.len() > 5, "{reads:?}");
    reads.iter().map(|(_, count)| count).sum()
}

#[tokio::test]
async fn a_full_read_goes_on_from_any_cell() {
    let (_server, store) = migrated().await;
    let mut rows = Vec::new();
    for identifier in [b"".as_slice(), b"\0", b"a", b"a ", b"ab", b"\xff\xff"] {
        for duration_ms in [DAY_MS, 2 * DAY_MS] {
            let cell = CellName { duration_ms, sequence: now_ms() / duration_ms, ..cell(identifier) };
            let others = [
                CellName { namespace: b"edge.apj".as_slice().into(), ..cell.clone() },
                CellName { workspace: b"f".as_slice().into(), namespace: Box::default(), ..cell.clone() },
                CellName { sequence: cell.sequence + 1, ..cell.clone() },
            ];
            rows.extend(
                [cell].into_iter().chain(others).map(|cell| OwnRow { cell, counts: Counts { hits: 1, refunds: 0 } }),
            );
        }
    }
    for region in ["eu", "us"] {
        store.publish(region, &rows).await.unwrap();
    }
    let whole = all(&store).await;
    assert_eq!(whole.len(), 2 * rows.len());
    assert!(whole.is_sorted_by(|a, b| a.cell <= b.cell), "the server's order is the one here");
    for (at, from) in whole.iter().enumerate() {
        let mut rest = Vec::new();
        store.all_live(Some(&from.cell), &mut |row| rest.push(row)).await.unwrap();
        // With all rows of that cell, of which there are two.
        assert_eq!(rest, whole[at - at % 2..], "from {from:?}");
    }
}

#[tokio::test]
async fn cells_are_found_by_their_names() {
    let (_server, store) = migrated().await;
    let names = [b"".as_slice(), b"a", b"a ", b"\xff"];
    for region in ["eu", "us"] {
        let rows = names.map(|name| OwnRow { cell: cell(name), counts: Counts { hits: 3, refunds: 1 } });
        store.publish(region, &rows).await.unwrap();
    }
    let whole = all(&store).await;
    let found = async |cells: &[CellName]| {
        let mut rows = Vec::new();
        store.find(cells, &mut |row| rows.push(row)).await.unwrap();
        rows
    };
    assert_eq!(found(&[]).await, []);
    for at in 0..names.len() {
        assert_eq!(found(&[cell(names[at])]).await, whole[2 * at..2 * at + 2]);
    }
    let yesterday = CellName { sequence: cell(b"a").sequence - 1, ..cell(b"a") };
    let rule = CellName { namespace: b"edge.other".as_slice().into(), ..cell(b"a") };
    assert_eq!(found(&[yesterday, rule.clone(), cell(b"b")]).await, []);
    assert_eq!(found(&[cell(b"\xff"), rule, cell(b"")]).await, [&whole[..2], &whole[6..]].concat());
    // As many as there may be, with names as long as they may be.
    let long = |n: u64| CellName {
        workspace: [b'w'; 191].into(),
        namespace: [0xff; 255].into(),
        identifier: [n.to_be_bytes().as_slice(), &[0; 247]].concat().into(),
        ..cell(b"")
    };
    let many: Vec<CellName> = (0..512).map(long).collect();
    store.publish("eu", &[OwnRow { cell: many[511].clone(), counts: Counts { hits: 1, refunds: 0 } }]).await.unwrap();
    assert_eq!(found(&many).await.len(), 1);
}

#[tokio::test]
async fn statements_are_served_by_their_indexes_and_an_import_costs_what_has_changed() {
    let (server, store) = migrated().await;
    for part in 0..10 {
        server.sql(&format!(
            "INSERT INTO ratelimit_window_counts
             (workspace_id, namespace, identifier, duration_ms, sequence, region, count, refunds, expires_at, updated_at)
             SELECT 'edge', 'edge.api_key', LPAD(n, 7, '0'), 86400000, 4, 'eu', 10, 0, 1 << 60, 1000 + n MOD 997 FROM {}",
            numbers(part * 100_000, 5)
        ));
    }
    let changed_cell = |n: u64| CellName { sequence: 4, ..cell(format!("{:07}", n * 10_000).as_bytes()) };
    let rows: Vec<OwnRow> =
        (0..100).map(|n| OwnRow { cell: changed_cell(n), counts: Counts { hits: n, refunds: 0 } }).collect();
    store.publish("us", &rows).await.unwrap();
    server.sql("UPDATE ratelimit_window_counts SET expires_at = 1 << 60 WHERE region = 'us'");
    let now_ms = store.server_now_ms().await.unwrap();

    let changed_since = statement::changed_since(now_ms - 60_000, now_ms);
    let began = Instant::now();
    let heard = changed(&store, now_ms - 60_000).await;
    println!("import of 100 cells of 1,000,000: {:?}", began.elapsed());
    assert_eq!(heard.len(), 200);
    assert!(heard.iter().step_by(2).all(|row| &*row.region == "eu" && row.counts.hits == 10));
    // 100 by the one index, twice 100 by the other, the distinct and the sorting between them.
    let reads = reads_of(&server, &changed_since);
    assert!(reads < 1500, "{reads}");

    let keys = keys_of(&server, &changed_since);
    assert!(keys.contains(&"r ref unique_window_region".to_owned()), "{keys:?}");
    assert!(keys.contains(&"ratelimit_window_counts range updated_at_idx".to_owned()), "{keys:?}");
    let some: Vec<CellName> = (0..100).map(changed_cell).collect();
    let cells = statement::cells(&some);
    assert!(
        keys_of(&server, &cells).contains(&"r ref unique_window_region".to_owned()),
        "{:?}",
        keys_of(&server, &cells)
    );
    let reads = reads_of(&server, &cells);
    assert!(reads < 1000, "{reads}");
    let late = CellName { sequence: 4, ..cell(b"0999900") };
    for from in [None, Some(&late)] {
        let all_live = statement::all_live(from, now_ms);
        assert_eq!(keys_of(&server, &all_live), ["ratelimit_window_counts range unique_window_region"]);
        assert!(!server.sql(&format!("EXPLAIN {all_live}"))[0].contains("filesort"));
    }
    let reads = reads_of(&server, &statement::all_live(Some(&late), now_ms));
    assert!(reads < 200, "100 rows are left: {reads}");
    // Of one rule among others, whose rows are few, from its start and from a cell on, also of a rule that has none.
    let rule = |namespace: &[u8]| RuleName { workspace: b"edge".as_slice().into(), namespace: namespace.into() };
    let few = CellName { namespace: b"edge.few".as_slice().into(), ..cell(b"x") };
    store.publish("us", &[OwnRow { cell: few.clone(), counts: Counts { hits: 1, refunds: 0 } }]).await.unwrap();
    let names = [rule(b"edge.few"), rule(b"edge.none")];
    for from in [None, Some(&few), Some(&late)] {
        let live_of_rules = statement::live_of_rules(&names, from, now_ms);
        assert_eq!(keys_of(&server, &live_of_rules), ["ratelimit_window_counts range unique_window_region"]);
        assert!(!server.sql(&format!("EXPLAIN {live_of_rules}"))[0].contains("filesort"));
        let reads = reads_of(&server, &live_of_rules);
        assert!(reads < 20, "{reads}");
    }
    let reads = reads_of(&server, &statement::live_of_rules(&[rule(b"edge.api_key")], Some(&late), now_ms));
    assert!(reads < 200, "100 rows are left: {reads}");
    server.sql("DELETE FROM ratelimit_window_counts WHERE namespace = 'edge.few'");
    let delete = statement::delete_expired(now_ms, 1000);
    assert_eq!(keys_of(&server, &delete), ["ratelimit_window_counts range expires_at_idx"]);
    assert!(!server.sql(&format!("EXPLAIN {delete}"))[0].contains("filesort"));
    let count = statement::count_expired(now_ms);
    assert_eq!(keys_of(&server, &count), ["ratelimit_window_counts range expires_at_idx"]);
    assert!(server.sql(&format!("EXPLAIN {count}"))[0].contains("Using index"));

    let began = Instant::now();
    let mut count = 0;
    store.all_live(None, &mut |_| count += 1).await.unwrap();
    println!("full read of 1,000,100: {:?}", began.elapsed());
    assert_eq!(count, 1_000_100);
}

#[tokio::test]
async fn one_row_that_is_refused_can_be_found_by_halving() {
    let (server, store) = migrated().await;
    server.sql(
        "DELIMITER //
         CREATE TRIGGER bad BEFORE INSERT ON ratelimit_window_counts FOR EACH ROW
         IF NEW.identifier = '00300' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF //",
    );
    let rows: Vec<OwnRow> = (0..512).map(|n| row(&format!("{n:05}"), n, 0)).collect();
    let error = store.publish("eu", &rows).await.unwrap_err();
    assert_eq!((error.reason(), error.remedy()), ("row", Remedy::Bisect));
    assert!(error.to_string().contains("not this one"), "{error}");
    assert_eq!(all(&store).await, [], "all or none");
    let (mut halves, mut refused) = (vec![rows.as_slice()], Vec::new());
    while let Some(rows) = halves.pop() {
        match store.publish("eu", rows).await {
            Ok(()) => {}
            Err(error) if rows.len() == 1 => refused.push((error, rows[0].clone())),
            Err(error) => {
                assert_eq!(error.remedy(), Remedy::Bisect);
                let (left, right) = rows.split_at(rows.len() / 2);
                halves.extend([left, right]);
            }
        }
    }
    assert_eq!(refused.iter().map(|(_, row)| &*row.cell.identifier).collect::<Vec<_>>(), [b"00300"]);
    assert_eq!(all(&store).await.len(), 511);
    // A statement that the server finds too large is halved, too.
    server.root("SET GLOBAL max_allowed_packet = 16384");
    store.close().await;
    let error = store.publish("eu", &rows).await.unwrap_err();
    assert!(matches!(error.remedy(), Remedy::Bisect), "{error}");
    store.publish("eu", &rows[..50]).await.unwrap();
}

#[tokio::test]
async fn a_table_that_is_missing_or_different_names_what_to_run() {
    let server = MariaDbServer::start();
    let store = store(&server);
    let missing = |error: &MysqlError| {
        assert_eq!((error.reason(), error.remedy()), ("schema", Remedy::GiveUp));
        assert!(error.to_string().ends_with(": run `tidegate migrate`"), "{error}");
    };
    let said = store.check_schema().await.unwrap_err();
    missing(&said);
    assert!(said.to_string().contains("it is not there, or this user may not see it"), "{said}");
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
    server.sql("ALTER TABLE ratelimit_window_counts DROP COLUMN refunds, DROP INDEX updated_at_idx");
    let said = store.check_schema().await.unwrap_err();
    missing(&said);
    assert!(said.to_string().contains("the column refunds is missing, the index updated_at_idx is missing"), "{said}");
    missing(&store.publish("eu", &[row("a", 1, 0)]).await.unwrap_err());
    missing(&store.changed_since(1, &mut |_| ()).await.unwrap_err());
    server.sql("DROP TABLE ratelimit_window_counts");
    missing(&store.publish("eu", &[row("a", 1, 0)]).await.unwrap_err());
    missing(&store.all_live(None, &mut |_| ()).await.unwrap_err());
    // And it helps.
    store.migrate().await.unwrap();
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
}

#[tokio::test]
async fn rows_that_make_no_sense_are_left_out() {
    let (server, store) = migrated().await;
    server.sql(
        "ALTER TABLE ratelimit_window_counts MODIFY sequence BIGINT NOT NULL, MODIFY count BIGINT UNSIGNED NULL;
         INSERT INTO ratelimit_window_counts
         (workspace_id, namespace, identifier, duration_ms, sequence, region, count, refunds, expires_at, updated_at)
         VALUES ('', '', 'no text', 1, 1, x'ff', 1, 0, 1 << 60, 9), ('', '', 'no region', 1, 1, '', 1, 0, 1 << 60, 9),
         ('', '', 'no window', 0, 1, 'eu', 1, 0, 1 << 60, 9), ('', '', 'negative', 1, -1, 'eu', 1, 0, 1 << 60, 9),
         ('', '', 'no count', 1, 1, 'eu', NULL, 0, 1 << 60, 9),
         ('', '', 'large', 18446744073709551615, 9223372036854775807, 'eu',
          18446744073709551615, 18446744073709551615, 18446744073709551615, 18446744073709551615)",
    );
    let large = [format!("large eu {0} {0}", u64::MAX)];
    assert_eq!(in_short(&all(&store).await), large);
    assert_eq!(in_short(&changed(&store, 9).await), large);
    assert_eq!(all(&store).await[0].cell.sequence, i64::MAX as u64);
    // What this region knows of such a cell can be told, too.
    let cell = CellName { duration_ms: u64::MAX, sequence: i64::MAX as u64, ..cell(b"large") };
    store.publish("us", &[OwnRow { cell, counts: Counts { hits: u64::MAX, refunds: 0 } }]).await.unwrap();
    assert_eq!(all(&store).await.len(), 2);
}

#[tokio::test]
async fn a_server_that_stands_still_costs_no_more_than_the_bound() {
    const BOUND: Duration = Duration::from_millis(500);
    let (server, _) = migrated().await;
    let store = MySql::new(&settings(&server.url(), None, BOUND));
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
    server.stop();
    // With a connection, and without one.
    for _ in 0..2 {
        let began = Instant::now();
        let error = store.publish("eu", &[row("a", 2, 0)]).await.unwrap_err();
        assert_eq!(error, MysqlError::Timeout { within: BOUND });
        let took = began.elapsed();
        assert!((BOUND..WITHIN).contains(&took), "{took:?}");
    }
    // More callers than connections wait no longer either.
    let began = Instant::now();
    let mut each = |_| ();
    let (a, b, c, d) = tokio::join!(
        store.server_now_ms(),
        store.count_expired(1),
        store.check_schema(),
        store.changed_since(1, &mut each)
    );
    assert!(a.is_err() && b.is_err() && c.is_err() && d.is_err());
    assert!(began.elapsed() < WITHIN, "{:?}", began.elapsed());
    server.cont();
    store.publish("eu", &[row("a", 3, 0)]).await.unwrap();
    assert_eq!(in_short(&all(&store).await), ["a eu 3 0"]);
}

#[tokio::test]
async fn a_server_that_was_away_is_found_again() {
    let (mut server, store) = migrated().await;
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
    server.kill();
    for _ in 0..2 {
        // Refused, not waited for.
        let error = store.publish("eu", &[row("a", 2, 0)]).await.unwrap_err();
        assert_eq!((error.reason(), error.remedy()), ("unreachable", Remedy::GiveUp), "{error}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{}, database {DATABASE}", server.port())), "{error}");
    }
    server.restart();
    // A second of commits may be lost.
    store.migrate().await.unwrap();
    store.publish("eu", &[row("a", 3, 0)]).await.unwrap();
    assert_eq!(in_short(&all(&store).await), ["a eu 3 0"]);
}

#[tokio::test]
async fn a_connection_that_went_away_while_nobody_used_it_is_no_failure() {
    let (server, store) = migrated().await;
    // Refused: the connection has to be asked before it is used again.
    server.sql("RENAME TABLE ratelimit_window_counts TO t");
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap_err();
    server.sql("RENAME TABLE t TO ratelimit_window_counts");
    kill_connections(&server);
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
}

fn kill_connections(server: &MariaDbServer) {
    let ours = format!("SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE user = '{USER}'");
    server.root(&server.root(&ours).join(";"));
    until(PATIENCE, "they are gone", || server.root(&ours).is_empty().then_some(()));
}

#[tokio::test]
async fn waiting_for_a_lock_ends_in_a_retry() {
    let (server, store) = migrated().await;
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
    let holder = std::thread::spawn({
        let (socket, lock) = (server.socket(), "SELECT * FROM ratelimit_window_counts FOR UPDATE; SELECT SLEEP(6)");
        move || {
            let mut client = std::process::Command::new("mariadb");
            client.args(["--no-defaults", "--user=root", "--execute", &format!("BEGIN; {lock}"), DATABASE]);
            client.arg(format!("--socket={}", socket.display())).output().unwrap()
        }
    });
    until(PATIENCE, "the row is locked", || {
        let asleep = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
        (server.number(asleep) == 1).then_some(())
    });
    let error = store.publish("eu", &[row("a", 2, 0)]).await.unwrap_err();
    assert_eq!((error.reason(), error.remedy()), ("deadlock", Remedy::Retry), "{error}");
    // Reading does not wait.
    assert_eq!(in_short(&all(&store).await), ["a eu 1 0"]);
    holder.join().unwrap();
    store.publish("eu", &[row("a", 2, 0)]).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_said_and_not_shown() {
    let (server, _) = migrated().await;
    let store = store_at(&server.url().replace("open%20sesame", "hunter2"));
    let error = store.server_now_ms().await.unwrap_err();
    assert_eq!((error.reason(), error.remedy()), ("denied", Remedy::GiveUp));
    let said = format!("{error} {error:?}");
    assert!(
        said.contains("Access denied for user 'tidegate'") && said.contains("TIDEGATE_MYSQL_PASSWORD_FILE"),
        "{said}"
    );
    assert!(!said.contains("hunter2"), "{said}");
    let error = store_at(&server.url().replace(DATABASE, "elsewhere")).server_now_ms().await.unwrap_err();
    assert_eq!(error.reason(), "denied", "{error}");
}

#[tokio::test]
async fn a_password_that_changes_is_read_from_its_file_again() {
    let (server, _) = migrated().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let url = server.url().replace(":open%20sesame", "");
    let store = MySql::new(&settings(&url, Some(file.clone()), WITHIN));
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
    server.root(&format!("ALTER USER {USER} IDENTIFIED BY 'new ''one'"));
    // Who is logged in stays so.
    store.publish("eu", &[row("a", 2, 0)]).await.unwrap();
    kill_connections(&server);
    assert_eq!(store.publish("eu", &[row("a", 3, 0)]).await.unwrap_err().reason(), "unreachable");
    assert_eq!(store.publish("eu", &[row("a", 3, 0)]).await.unwrap_err().reason(), "denied");
    std::fs::write(&file, "new 'one").unwrap();
    store.publish("eu", &[row("a", 4, 0)]).await.unwrap();
    // A file that is gone is named, and what is open goes on.
    std::fs::remove_file(&file).unwrap();
    store.publish("eu", &[row("a", 5, 0)]).await.unwrap();
    store.close().await;
    let error = store.publish("eu", &[row("a", 6, 0)]).await.unwrap_err();
    assert!(error.reason() == "denied" && error.to_string().contains("which can't be read"), "{error}");
}

#[tokio::test]
async fn a_user_needs_no_more_than_the_documentation_says() {
    let (server, store) = migrated().await;
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
    let table = format!("{DATABASE}.ratelimit_window_counts");
    server.root(&format!(
        "CREATE USER least; GRANT SELECT, INSERT, UPDATE ON {table} TO least;
         CREATE USER sweeper; GRANT SELECT, DELETE ON {table} TO sweeper;
         CREATE USER migrator; CREATE DATABASE other;
         GRANT CREATE, ALTER, INDEX, SELECT, INSERT, UPDATE, DELETE ON other.* TO migrator"
    ));
    let at = |user: &str| store_at(&format!("mysql://{user}@127.0.0.1:{}/{DATABASE}", server.port()));
    let (least, sweeper) = (at("least"), at("sweeper"));
    least.check_schema().await.unwrap();
    least.publish("eu", &[row("a", 2, 0)]).await.unwrap();
    assert_eq!((all(&least).await.len(), changed(&least, 1).await.len()), (1, 1));
    for error in [least.delete_expired(u64::MAX, 10).await.unwrap_err(), least.migrate().await.unwrap_err()] {
        assert_eq!(error.reason(), "denied", "{error}");
    }
    let migrator = store_at(&format!("mysql://migrator@127.0.0.1:{}/other", server.port()));
    assert_eq!(migrator.migrate().await.unwrap().len(), 1);
    migrator.check_schema().await.unwrap();
    assert_eq!(sweeper.count_expired(u64::MAX).await, Ok(1));
    assert_eq!(sweeper.delete_expired(u64::MAX, 10).await, Ok(1));
    assert_eq!(sweeper.publish("eu", &[row("a", 2, 0)]).await.unwrap_err().reason(), "denied");
}

#[tokio::test]
async fn a_server_that_only_reads_says_so() {
    let (server, store) = migrated().await;
    store.publish("eu", &[row("a", 1, 0)]).await.unwrap();
    server.root("SET GLOBAL read_only = 1");
    let error = store.publish("eu", &[row("a", 2, 0)]).await.unwrap_err();
    assert_eq!((error.reason(), error.remedy()), ("readonly", Remedy::GiveUp), "{error}");
    assert_eq!(in_short(&all(&store).await), ["a eu 1 0"]);
}

#[tokio::test]
async fn tls_is_as_strict_as_the_url_says() {
    let authority = Authority::new("mysql");
    let server = MariaDbServer::with_tls(&authority);
    let ca = server.file("ca.crt");
    let other = tempfile::tempdir().unwrap();
    let stranger = other.path().join("ca.crt");
    std::fs::write(&stranger, Authority::new("stranger").pem()).unwrap();
    let stranger = stranger.to_str().unwrap();
    server.root(&format!("ALTER USER {USER} REQUIRE SSL"));
    let at = |host: &str, parameters: &str| {
        let url = format!("{}?{parameters}", server.url().replace("127.0.0.1", host));
        async move { store_at(&url).server_now_ms().await }
    };
    for (host, parameters) in [
        ("127.0.0.1", "ssl-mode=PREFERRED".to_owned()),
        ("127.0.0.1", "ssl-mode=REQUIRED".to_owned()),
        ("127.0.0.1", format!("ssl-mode=VERIFY_CA&ssl-ca={ca}")),
        ("localhost", format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")),
    ] {
        at(host, &parameters).await.unwrap_or_else(|error| panic!("{host} {parameters}: {error}"));
    }
    for (host, parameters, reason) in [
        ("127.0.0.1", "ssl-mode=DISABLED".to_owned(), "denied"),
        ("127.0.0.1", "ssl-mode=VERIFY_CA".to_owned(), "unreachable"),
        ("127.0.0.1", format!("ssl-mode=VERIFY_CA&ssl-ca={stranger}"), "unreachable"),
        ("127.0.0.1", format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"), "unreachable"),
    ] {
        let error = at(host, &parameters).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{parameters}: {error}");
        assert!(reason == "denied" || error.to_string().contains("see ssl-mode and ssl-ca in MYSQL_URL"), "{error}");
    }
    let plain = MariaDbServer::with(&["--skip-ssl"]);
    let error = store_at(&format!("{}?ssl-mode=REQUIRED", plain.url())).server_now_ms().await.unwrap_err();
    assert!(error.to_string().contains("server does not support TLS"), "{error}");
    // The socket of the same machine.
    let url = format!("{}?socket={}", server.url(), server.socket().display());
    store_at(&url).server_now_ms().await.unwrap();
}

#[tokio::test]
async fn migrating_twice_or_at_once_does_it_once() {
    let server = MariaDbServer::start();
    let stores = [store(&server), store(&server), store(&server)];
    let (a, b, c) = tokio::join!(stores[0].migrate(), stores[1].migrate(), stores[2].migrate());
    let mut applied: Vec<usize> = [a, b, c].into_iter().map(|applied| applied.unwrap().len()).collect();
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 1]);
    assert_eq!(stores[0].migrate().await, Ok(Vec::new()));
    assert_eq!(server.number("SELECT COUNT(*) FROM _tidegate_migrations WHERE success"), 1);
    // One that was cut off, as by a crash, is applied again.
    server.sql("UPDATE _tidegate_migrations SET success = FALSE");
    assert_eq!(stores[0].migrate().await.unwrap().len(), 1);
    stores[0].check_schema().await.unwrap();
    // What a newer version has applied is none of our business.
    server.sql("INSERT INTO _tidegate_migrations VALUES (99, 'later', NOW(), TRUE, x'00', 1)");
    assert_eq!(stores[0].migrate().await, Ok(Vec::new()));
}
