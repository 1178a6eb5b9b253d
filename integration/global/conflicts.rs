//! Publishers of the same rows at once: they get into each other's way, and nobody hears of it but a metric.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::global::mysql::MySql;
use tidegate::global::mysql::error::Remedy;
use tidegate::global::mysql::settings::{MysqlFlags, MysqlSettings};
use tidegate::global::publish::CHUNK_ROWS;
use tidegate::global::row::{Counts, OwnRow};
use tidegate::secret::Secret;

use crate::support::harness::{PATIENCE, Service, ask, descriptor, until_equal};
use crate::support::load::{Load, Traffic};
use crate::support::mariadb::MariaDbServer;
use crate::support::regions::{HEARD, Regions};

/// Redis knows of every hit, so that a row tells all of them: it lacks what processes hold back.
const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {requests_per_unit: 1000, unit: year, slack: 0}}
";

const KEYS: usize = 5000;
/// Of one request.
const KEYS_AT_ONCE: usize = 25;
/// The floor from which every hit is published.
const BASE: u32 = 500;
const OPPOSED: u64 = 100;

fn store(mariadb: &MariaDbServer) -> MySql {
    let flags = MysqlFlags {
        mysql_url: Some(Secret::new(mariadb.url())),
        mysql_password_file: None,
        mysql_timeout: Duration::from_secs(10),
    };
    MySql::new(&MysqlSettings::required(&flags).unwrap())
}

/// Every row of the table, by its identifier.
async fn rows(store: &MySql) -> BTreeMap<Box<[u8]>, OwnRow> {
    let mut rows = BTreeMap::new();
    let mut keep = |row: tidegate::global::row::HeardRow| {
        rows.insert(row.cell.identifier.clone(), OwnRow { cell: row.cell, counts: row.counts });
    };
    store.all_live(None, &mut keep).await.unwrap();
    rows
}

/// Publishes for the same region in the opposite order, which two statements can't both get through: for some rounds, and
/// until the others have met it or a while has passed. Says how many rounds that were.
async fn oppose(
    store: &MySql,
    known: &BTreeMap<Box<[u8]>, OwnRow>,
    conflicts: &AtomicU64,
    is_met: impl Fn() -> bool,
) -> u64 {
    let deadline = std::time::Instant::now() + 3 * PATIENCE;
    for round in 1.. {
        let counts = Counts { hits: 1, refunds: round };
        let opposed: Vec<OwnRow> = known.values().rev().map(|row| OwnRow { cell: row.cell.clone(), counts }).collect();
        for chunk in opposed.chunks(CHUNK_ROWS) {
            while let Err(error) = store.publish("a", chunk).await {
                assert_eq!(error.remedy(), Remedy::Retry, "{error}");
                conflicts.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Whether they meet is a matter of chance; nothing may be lost either way.
        if round >= OPPOSED && (is_met() || std::time::Instant::now() > deadline) {
            return round;
        }
    }
    unreachable!("there is always another round")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishers_that_oppose_each_other_lose_no_update_and_log_nothing() {
    let mut regions = Regions::start(&["a", "b"], 2, RULES);
    let store = store(&regions.mariadb);
    let groups: Vec<Vec<usize>> = (0..KEYS).collect::<Vec<_>>().chunks(KEYS_AT_ONCE).map(<[usize]>::to_vec).collect();
    let requests: Vec<_> =
        groups.iter().map(|keys| ask(keys.iter().map(|key| descriptor(&format!("k={key:04}"))))).collect();
    for request in &requests {
        let mut based = request.clone();
        based.hits_addend = BASE;
        assert!(regions.said(0, based).await.starts_with("OK"));
    }
    let count = "SELECT COUNT(*) FROM ratelimit_window_counts WHERE count = 500 AND region = 'a'";
    until_equal(HEARD, KEYS as u64, || regions.mariadb.number(count));
    let known = rows(&store).await;

    // Both processes of the region publish every key again and again.
    let addresses = regions.regions[0].fleet.addresses();
    let load = Load::start(&addresses, Traffic { requests, rate: 200, seed: 1 });
    let opponents = AtomicU64::new(0);
    let in_the_way = "tidegate_global_conflicts_total";
    let is_met = || regions.regions[0].fleet.metric(in_the_way) >= 1.0;
    let rounds = oppose(&store, &known, &opponents, is_met).await;
    let ledger = load.finish();
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));

    let expected: BTreeMap<Box<[u8]>, Counts> = known
        .keys()
        .zip(0..KEYS)
        .map(|(identifier, key)| {
            let hits = u64::from(BASE) + ledger.of_key(key / KEYS_AT_ONCE).admitted();
            (identifier.clone(), Counts { hits, refunds: rounds })
        })
        .collect();
    let deadline = std::time::Instant::now() + 3 * HEARD;
    let told = loop {
        let told: BTreeMap<_, _> = rows(&store).await.into_iter().map(|(name, row)| (name, row.counts)).collect();
        if told == expected || std::time::Instant::now() > deadline {
            break told;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(told == expected, "{:?}", told.iter().zip(&expected).find(|(told, expected)| told != expected));
    let fleet = &mut regions.regions[0].fleet;
    let [conflicts, opposed] = [fleet.metric(in_the_way) as u64, opponents.load(Ordering::Relaxed)];
    println!("{conflicts} statements of the processes and {opposed} of their opponent were tried again");
    for service in &mut fleet.services {
        assert_eq!(complaints(service), Vec::<String>::new());
    }
}

/// What a process complained about until it was stopped.
fn complaints(service: &mut Service) -> Vec<String> {
    service.process.signal("TERM");
    assert!(service.process.ends_within(PATIENCE).is_some_and(|status| status.success()));
    // On a machine that others keep busy, a server may be slow to answer: that is not about who publishes what.
    const SLOW: [&str; 5] =
        ["does not answer", "answers again", "out of reach", "within reach again", "did not answer"];
    let names = |line: &String, words: &[&str]| words.iter().any(|word| line.contains(word));
    let is_complaint = |line: &&String| names(line, &["WARN", "ERROR", "panicked"]) && !names(line, &SLOW);
    service.process.said.iter().filter(is_complaint).cloned().collect()
}
