//! A MySQL that stands still, dies, loses its table, refuses a row or holds nonsense: decisions go on as before, and what
//! was to be told is told when it can be.

use std::time::Duration;

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, Service, until, until_equal};
use crate::support::ledger::{Entry, Ledger};
use crate::support::load::{Load, Traffic};
use crate::support::mariadb::MariaDbServer;
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;
use crate::support::regions::{HEARD, Regions, cost, migrate, said};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {requests_per_unit: 1000000, unit: year}}
  - {key: small, rate_limit: {requests_per_unit: 100, unit: year}}
";

const KEYS: u64 = 10;
/// The presence mark of two regions.
const PRESENT: u32 = 125_000;
/// What two cores that clients and services share can cost one process and not its neighbour: some requests, and all of them.
const NOISE: Duration = Duration::from_millis(20);
const NOISE_OF_ALL: Duration = Duration::from_millis(5);

/// Two regions under load, and beside them a process that has no MySQL: what it feels is not MySQL's doing.
struct Scene {
    regions: Regions,
    load: Load,
    broken_us: u64,
    _bystander: (RedisServer, Fleet),
}

impl Scene {
    /// Every hit matters to the other region, because both count the keys.
    fn start() -> Scene {
        let regions = Regions::start(&["a", "b"], 1, RULES);
        let redis = RedisServer::start();
        let bystander = Fleet::together(1, RULES, &redis.url(), &[PATIENT]);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for (region, key) in (0..2).flat_map(|region| (0..KEYS).map(move |key| (region, key))) {
            let said = runtime.block_on(regions.said(region, cost(&format!("k={key}"), PRESENT)));
            assert!(said.starts_with("OK"), "{said}");
        }
        // Both know of the other, so that from now on every hit is published.
        for region in 0..2 {
            until_equal(3 * HEARD, 2 * KEYS * u64::from(PRESENT), || counted(regions.service(region, 0)));
        }
        let fleets = regions.regions.iter().map(|region| &region.fleet).chain([&bystander]);
        let addresses: Vec<_> = fleets.flat_map(Fleet::addresses).collect();
        let load = Load::start(&addresses, Traffic::over("k", KEYS as usize, 450));
        load.goes_on(300);
        Scene { regions, load, broken_us: u64::MAX, _bystander: (redis, bystander) }
    }

    fn mariadb(&mut self) -> &mut MariaDbServer {
        &mut self.regions.mariadb
    }

    /// From here on something is wrong.
    fn breaks(&mut self) {
        self.broken_us = self.load.now_us();
    }

    /// Ends the load: no call has failed, and MySQL's trouble should have made none slower.
    fn finish(self) -> (Regions, Ledger, Vec<Promise>) {
        let ledger = self.load.finish();
        assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
        let since = ledger.sent_in(self.broken_us..u64::MAX);
        let is_bystander = |entry: &Entry| entry.process == 2;
        let (troubled, usual) = (since.only(|entry| !is_bystander(entry)), since.only(is_bystander));
        let slower = |(part, quantile, noise): (&str, f64, Duration)| {
            let bound = (2 * usual.latency(quantile)).max(noise);
            let what = format!("{part} of the calls are answered, in twice the time of a process without MySQL");
            Promise::within(what, bound, troubled.latency(quantile))
        };
        let promises = [("half", 0.5, NOISE_OF_ALL), ("99 %", 0.99, NOISE)].map(slower).to_vec();
        (self.regions, ledger, promises)
    }
}

/// What a region has admitted.
fn of_region(ledger: &Ledger, region: usize) -> u64 {
    KEYS * u64::from(PRESENT) + ledger.only(|entry| entry.process == region).admitted_hits()
}

fn published(mariadb: &MariaDbServer, region: &str) -> u64 {
    let sum = "SELECT COALESCE(SUM(count), 0) FROM ratelimit_window_counts";
    mariadb.number(&format!("{sum} WHERE region = '{region}' AND namespace = 'k'"))
}

/// In the end the table holds what was admitted, and both regions have heard of all of it.
fn assert_told(regions: &Regions, ledger: &Ledger) {
    for (number, region) in ["a", "b"].into_iter().enumerate() {
        until_equal(3 * HEARD, of_region(ledger, number), || published(&regions.mariadb, region));
    }
    let total = of_region(ledger, 0) + of_region(ledger, 1);
    for region in 0..2 {
        until_equal(3 * HEARD, total, || counted(regions.service(region, 0)));
    }
}

/// Breaks MySQL until both turns of a region have failed, and for a while after, and heals it: no client notices.
fn survives(
    break_it: impl FnOnce(&mut MariaDbServer),
    heal: impl FnOnce(&mut MariaDbServer),
    reason: &str,
) -> Vec<Promise> {
    let mut scene = Scene::start();
    break_it(scene.mariadb());
    scene.breaks();
    for turn in ["publish", "import"] {
        let series = format!("tidegate_global_errors_total{{turn=\"{turn}\",reason=\"{reason}\"}}");
        let service = scene.regions.service(0, 0);
        until(PATIENCE, &series, || service.metric(&series).filter(|errors| *errors > 0.0));
    }
    scene.load.goes_on(900);
    heal(scene.mariadb());
    scene.load.goes_on(300);
    let (regions, ledger, promises) = scene.finish();
    assert_told(&regions, &ledger);
    promises
}

/// What a process counts on all keys.
fn counted(service: &Service) -> u64 {
    let of_key = |key: u64| {
        let page = service.page_json(&format!("/explain?domain=d&output=json&descriptor=k={key}"));
        let text = page.to_string();
        let after = text.split("\"counted\":").nth(1).expect("a count");
        after.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().expect("a number")
    };
    (0..KEYS).map(of_key).sum()
}

#[test]
fn a_mysql_that_stands_still_fails_no_call_and_is_told_later() {
    print(&stands_still());
}

pub fn stands_still() -> Vec<Promise> {
    survives(|mariadb| mariadb.stop(), |mariadb| mariadb.cont(), "timeout")
}

#[test]
fn a_mysql_that_dies_fails_no_call_and_is_told_later() {
    print(&dies());
}

pub fn dies() -> Vec<Promise> {
    survives(MariaDbServer::kill, MariaDbServer::restart, "unreachable")
}

#[test]
fn a_table_that_is_gone_is_filled_again() {
    // What was published before is gone with it, and is told again.
    let mut scene = Scene::start();
    drop_tables(scene.mariadb());
    scene.breaks();
    // Both notice: who does not finds out with the next full reading, after ten minutes.
    for region in &mut scene.regions.regions {
        region.fleet.services[0].process.line_with("tidegate migrate");
    }
    migrate(scene.mariadb());
    scene.load.goes_on(300);
    let (regions, ledger, _) = scene.finish();
    assert_told(&regions, &ledger);
}

fn drop_tables(mariadb: &MariaDbServer) {
    for table in mariadb.sql("SHOW TABLES") {
        mariadb.sql(&format!("DROP TABLE `{table}`"));
    }
}

#[test]
fn a_row_that_is_refused_stops_only_itself() {
    let mut scene = Scene::start();
    scene.mariadb().sql(
        "DELIMITER //
         CREATE TRIGGER refuses BEFORE INSERT ON ratelimit_window_counts FOR EACH ROW
         BEGIN
         IF NEW.identifier = UNHEX('03626164') THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF;
         IF NEW.identifier = UNHEX('036f6464') THEN SET @odd = (SELECT 1 UNION SELECT 2); END IF;
         END //",
    );
    scene.breaks();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // For a reason that is meant for it, and for one that nobody has thought of.
    for key in ["small=bad", "small=odd", "small=x", "small=y", "small=z"] {
        assert!(runtime.block_on(scene.regions.said(0, cost(key, 60))).starts_with("OK"));
    }
    let good = vec!["a x 60 0".to_owned(), "a y 60 0".into(), "a z 60 0".into()];
    until_equal(HEARD, good, || of_small(&scene.regions));
    scene.regions.regions[0].fleet.services[0].process.line_with("not this one");
    let service = scene.regions.service(0, 0);
    until(HEARD, "both count", || service.metric("tidegate_global_refused_rows_total").filter(|rows| *rows >= 2.0));
    let said = runtime.block_on(scene.regions.said(0, cost("small=bad", 30)));
    assert!(said.starts_with("OK"), "decisions do not depend on it: {said}");
    // It is refused again and again, while the others go on.
    scene.load.goes_on(1000);
    let (regions, ledger, _) = scene.finish();
    assert_told(&regions, &ledger);
    assert_eq!(of_small(&regions).len(), 3);
    // When the server takes it, it is told, though nothing happens to it any more.
    regions.mariadb.sql("DROP TRIGGER refuses");
    until(3 * HEARD, "it is published", || of_small(&regions).contains(&"a bad 90 0".to_owned()).then_some(()));
}

/// A commit waits for longer than imports look back, as for a replica that is gone or a disk that stands still.
#[test]
fn a_row_that_is_committed_late_is_imported_all_the_same() {
    let regions = Regions::start(&["a", "b"], 1, RULES);
    // Only the first statement waits: the others raise the row that it has made.
    regions.mariadb.sql("CREATE TRIGGER waits AFTER INSERT ON ratelimit_window_counts FOR EACH ROW DO SLEEP(9)");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert!(runtime.block_on(regions.said(0, cost("small=x", 60))).starts_with("OK"));
    until(HEARD, "it is committed", || (!of_small(&regions).is_empty()).then_some(()));
    regions.until_counted(1, 0, "small=x", 60);
}

/// The rows of the rule that the load does not meet.
fn of_small(regions: &Regions) -> Vec<String> {
    regions.rows_where("namespace = 'small'")
}

#[test]
fn rows_that_make_no_sense_change_nothing() {
    let mut scene = Scene::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert!(runtime.block_on(scene.regions.said(0, cost("small=x", 60))).starts_with("OK"));
    scene.regions.until_counted(1, 0, "small=x", 60);
    let now_ms = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)";
    // Beside every sound row of one region.
    let row = |values: &str| {
        scene.regions.mariadb.sql(&format!(
            "INSERT INTO ratelimit_window_counts (workspace_id, namespace, identifier, duration_ms, sequence, region, \
             count, refunds, expires_at, updated_at) SELECT workspace_id, namespace, {values} {now_ms} FROM \
             ratelimit_window_counts WHERE region = 'a'"
        ));
    };
    let max = u64::MAX;
    // More than anybody counts; more refunds than hits; no window; a window that is far away; a name that is no text.
    row(&format!("identifier, duration_ms, sequence, 'c', {max}, 0, expires_at,"));
    row("identifier, duration_ms, sequence, 'd', 5, 9, expires_at,");
    row("identifier, 0, sequence, 'e', 99, 0, expires_at,");
    row(&format!("identifier, duration_ms, {max}, 'f', 99, 0, {max},"));
    row("identifier, duration_ms, sequence + 1000, 'g', 99, 0, expires_at * 2,");
    row("identifier, duration_ms, sequence, 0xff, 99, 0, expires_at,");
    row("CONCAT(identifier, REPEAT('x', 200)), duration_ms, sequence, 'h', 99, 0, expires_at,");
    scene.breaks();
    let ignored = "tidegate_global_ignored_rows_total{reason=\"absurd\"}";
    until(HEARD, "some are left out", || scene.regions.service(1, 0).metric(ignored).filter(|rows| *rows >= 2.0));
    scene.load.goes_on(1000);
    let (regions, ledger, _) = scene.finish();
    assert_told(&regions, &ledger);
    regions.until_counted(1, 0, "small=x", 60);
    assert_eq!(runtime.block_on(regions.said(1, cost("small=x", 40))), "OK: OK 0");
    regions.until_counted(0, 0, "small=x", 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_and_serves_while_mysql_is_down_and_tells_it_later() {
    let mut regions = Regions::start(&["a", "b"], 1, RULES);
    regions.mariadb.kill();
    let newcomer = regions.regions[0].fleet.another();
    assert!(said(&newcomer, cost("small=x", 60)).await.starts_with("OK"));
    let errors = "tidegate_global_errors_total{turn=\"publish\",reason=\"unreachable\"}";
    until(PATIENCE, "it has tried", || newcomer.metric(errors).filter(|errors| *errors > 0.0));
    regions.mariadb.restart();
    until(3 * HEARD, "it is published", || regions.rows().contains(&"a x 60 0".to_owned()).then_some(()));
    crate::support::regions::until_counted(regions.service(1, 0), "small=x", 60);
}
