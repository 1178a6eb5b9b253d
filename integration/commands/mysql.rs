//! `tidegate migrate` and `tidegate cleanup`, as operators and cron jobs run them.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::harness::{PATIENCE, Ran, Running, free_port, run, tidegate, until};
use crate::support::mariadb::{MariaDbServer, numbers};

fn command(server: &MariaDbServer, args: &[&str]) -> Command {
    let mut command = tidegate(args);
    command.env("MYSQL_URL", server.url());
    command
}

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// Rows that expired long ago, 10 to the power of `digits`, and as many that never will.
fn fill(server: &MariaDbServer, digits: u32) {
    server.sql(&format!(
        "INSERT INTO ratelimit_window_counts
         (workspace_id, namespace, identifier, duration_ms, sequence, region, count, refunds, expires_at, updated_at)
         SELECT 'edge', 'edge.api_key', n, 60000, 1, region, 1, 0, expires_at + n, 1
         FROM (SELECT 'eu' AS region, 1000 AS expires_at UNION ALL SELECT 'us', 1 << 60) AS both_kinds, {}",
        numbers(0, digits)
    ));
}

#[test]
fn migrate_says_what_it_applied() {
    let server = MariaDbServer::start();
    let ran = run(&mut command(&server, &["migrate"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let place = format!("127.0.0.1:{}, database tide", server.port());
    let expected = format!("applied: 0001 ratelimit_window_counts\ndone: {place} has the table as it has to be\n");
    assert_eq!(ran.stdout, expected);
    let again = run(&mut command(&server, &["migrate"]));
    assert_eq!(
        (again.code, again.stdout),
        (Some(0), format!("nothing to apply: {place} has the table as it has to be\n"))
    );
    server.sql("DROP TABLE ratelimit_window_counts");
    // Two at once, for a table that somebody has dropped.
    let both = [0, 1].map(|_| Running::start(&mut command(&server, &["migrate", "--output", "json"])));
    let mut applied: Vec<Value> = both
        .into_iter()
        .map(|running| {
            let ran = running.end();
            assert_eq!((ran.code, json_of(&ran)["ok"].clone()), (Some(0), json!(true)), "{ran:?}");
            json_of(&ran)["applied"].clone()
        })
        .collect();
    applied.sort_by_key(|applied| applied.as_array().map(Vec::len));
    assert_eq!(applied, [json!([]), json!([{"version": 1, "name": "ratelimit_window_counts"}])]);
}

#[test]
fn migrate_says_what_is_wrong_with_a_table_that_it_did_not_make() {
    let server = MariaDbServer::start();
    server.sql("CREATE TABLE ratelimit_window_counts (pk BIGINT UNSIGNED PRIMARY KEY, count INT)");
    let ran = run(&mut command(&server, &["migrate"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("the column workspace_id is missing"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("the column count is int") && ran.stderr.contains(", not BIGINT UNSIGNED"),
        "{}",
        ran.stderr
    );
}

#[test]
fn commands_say_why_they_can_not() {
    for name in ["migrate", "cleanup"] {
        let ran = run(&mut tidegate(&[name]));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
        assert!(
            ran.stderr.starts_with("tidegate: --mysql-url (MYSQL_URL) is not set: write mysql://"),
            "{}",
            ran.stderr
        );
        let nobody = format!("mysql://u:hunter2@127.0.0.1:{}/d", free_port());
        let ran = run(tidegate(&[name]).env("MYSQL_URL", &nobody));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
        assert!(ran.stderr.starts_with("tidegate: MySQL can't be reached: "), "{}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
        let ran = run(tidegate(&[name, "--output", "json"]).env("MYSQL_URL", &nobody));
        assert_eq!((ran.code, json_of(&ran)["error"]["reason"].clone()), (Some(2), json!("unreachable")));
    }
    let server = MariaDbServer::start();
    for args in [["cleanup", "--batch=5"], ["cleanup", "--dry-run"]] {
        let ran = run(&mut command(&server, &args));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
        assert!(ran.stderr.contains("run `tidegate migrate`"), "{}", ran.stderr);
    }
    let ran = run(&mut command(&server, &["cleanup", "--batch", "0"]));
    assert!(ran.code != Some(0) && ran.stderr.contains("--batch"), "{ran:?}");
}

#[test]
fn cleanup_deletes_what_has_expired_in_batches() {
    let server = MariaDbServer::start();
    assert_eq!(run(&mut command(&server, &["migrate"])).code, Some(0));
    let ran = run(&mut command(&server, &["cleanup"]));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "deleted 0 expired rows\n", ""));
    fill(&server, 3);
    let ran = run(&mut command(&server, &["cleanup", "--dry-run"]));
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (Some(0), "1000 expired rows would be deleted\n", "")
    );
    let ran = run(&mut command(&server, &["cleanup", "--dry-run", "--output", "json"]));
    assert_eq!(json_of(&ran), json!({"dry_run": true, "expired": 1000}));
    let rows = || server.number("SELECT COUNT(*) FROM ratelimit_window_counts");
    assert_eq!(rows(), 2000);
    let deletes = || {
        let line = server.root("SHOW GLOBAL STATUS LIKE 'Com_delete'");
        line[0].split('\t').nth(1).and_then(|count| count.parse::<u64>().ok()).unwrap()
    };
    let before = deletes();
    let ran = run(&mut command(&server, &["cleanup", "--batch", "400", "--output", "json"]));
    assert_eq!(json_of(&ran), json!({"dry_run": false, "deleted": 1000, "batches": 3, "finished": true}));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), "deleted 400 expired rows so far\n"));
    assert_eq!((rows(), deletes() - before), (1000, 3));
    assert_eq!(server.number("SELECT COUNT(*) FROM ratelimit_window_counts WHERE region = 'us'"), 1000);
    // What has expired for less long than that stays.
    server.sql("UPDATE ratelimit_window_counts SET expires_at = UNIX_TIMESTAMP() * 1000 - 1800000");
    for (older_than, left) in [("1h", 1000), ("29m", 0)] {
        assert_eq!(run(&mut command(&server, &["cleanup", "--older-than", older_than])).code, Some(0));
        assert_eq!(rows(), left);
    }
}

#[test]
fn cleanup_stops_after_a_batch_when_it_is_told_to() {
    let server = MariaDbServer::start();
    assert_eq!(run(&mut command(&server, &["migrate"])).code, Some(0));
    fill(&server, 4);
    let rows = || server.number("SELECT COUNT(*) FROM ratelimit_window_counts WHERE region = 'eu'");
    let running = Running::start(&mut command(&server, &["cleanup", "--batch", "10"]));
    until(PATIENCE, "it deletes", || (rows() < 10_000).then_some(()));
    running.interrupt();
    let ran = running.end();
    let left = rows();
    assert!(left > 0 && left % 10 == 0, "{left}");
    assert_eq!(
        (ran.code, ran.stdout),
        (Some(0), format!("deleted {} expired rows; stopped, there may be more\n", 10_000 - left))
    );
    assert!(ran.stderr.starts_with("deleted 10 expired rows so far\n"), "{}", ran.stderr);
}
