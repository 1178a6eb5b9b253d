//! The model of the table that the simulator uses, and MariaDB: whatever is published, both tell the same of it.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::global::import::ReadScope;
use tidegate::global::model::Rows;
use tidegate::global::mysql::MySql;
use tidegate::global::mysql::settings::{MysqlFlags, MysqlSettings};
use tidegate::global::row::{CellName, Counts, HeardRow, OwnRow, RuleName};
use tidegate::secret::Secret;

use crate::support::harness::PATIENCE;
use crate::support::mariadb::MariaDbServer;
use crate::support::regions::migrate;

const REGIONS: [&str; 3] = ["a", "b", "B "];
/// Names that a server with other collations would mix up, or order otherwise.
const NAMES: [&[u8]; 7] = [b"", b"a", b"A", b"a ", b"ab", b"\xff\0", b"b'\\"];
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn one<'n>(random: &mut StdRng, of: &[&'n [u8]]) -> &'n [u8] {
    of[random.random_range(0..of.len())]
}

fn any_rule(random: &mut StdRng) -> RuleName {
    RuleName { workspace: one(random, &NAMES[1..4]).into(), namespace: one(random, &NAMES[1..]).into() }
}

/// A cell that counts now, or one that counts no more.
fn any_cell(random: &mut StdRng, now_ms: u64) -> CellName {
    let RuleName { workspace, namespace } = any_rule(random);
    let duration_ms = DAY_MS * random.random_range(1..=2);
    let back = if random.random_ratio(1, 10) { 3 } else { random.random_range(0..=1) };
    let sequence = now_ms / duration_ms - back;
    CellName { workspace, namespace, identifier: one(random, &NAMES).into(), duration_ms, sequence }
}

fn any_rows(random: &mut StdRng, now_ms: u64) -> Vec<OwnRow> {
    let mut rows: Vec<OwnRow> = (0..random.random_range(1..20))
        .map(|_| {
            let hits = random.random_range(0..6);
            let counts = Counts { hits, refunds: random.random_range(0..=hits) };
            OwnRow { cell: any_cell(random, now_ms), counts }
        })
        .collect();
    rows.sort_by(|a, b| a.cell.cmp(&b.cell));
    rows.dedup_by(|a, b| a.cell == b.cell);
    rows
}

fn any_reading(random: &mut StdRng, dates_ms: &[u64], now_ms: u64) -> ReadScope {
    let from = random.random_bool(0.5).then(|| any_cell(random, now_ms));
    match random.random_range(0..3) {
        0 => ReadScope::All { from },
        1 => {
            let mut names: Vec<RuleName> = (0..random.random_range(1..5)).map(|_| any_rule(random)).collect();
            names.sort_unstable();
            names.dedup();
            ReadScope::Rules { names: names.into(), from }
        }
        _ => ReadScope::Since { ms: dates_ms[random.random_range(0..dates_ms.len())] },
    }
}

/// All but the dates, of which the model has those of the moment before.
fn undated(rows: Vec<HeardRow>) -> Vec<HeardRow> {
    rows.into_iter().map(|row| HeardRow { updated_at_ms: 0, ..row }).collect()
}

#[tokio::test]
async fn whatever_is_published_the_model_and_the_server_tell_the_same_of_it() {
    let seed = std::env::var("TIDEGATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("TIDEGATE_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = MariaDbServer::start();
    migrate(&server);
    let flags =
        MysqlFlags { mysql_url: Some(Secret::new(server.url())), mysql_password_file: None, mysql_timeout: PATIENCE };
    let store = MySql::new(&MysqlSettings::required(&flags).unwrap());
    let mut model = Rows::default();
    let mut dates_ms: Vec<u64> = Vec::new();
    for round in 0..300 {
        // Each publish has dates of its own.
        let now_ms = loop {
            let now_ms = store.server_now_ms().await.unwrap();
            if dates_ms.last().is_none_or(|last_ms| now_ms > last_ms + 1) {
                break now_ms;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let rows = any_rows(&mut random, now_ms);
        let region = REGIONS[random.random_range(0..REGIONS.len())];
        store.publish(region, &rows).await.unwrap();
        model.commit(region, &rows, now_ms);
        // What is dated from here on is of a later publish.
        let mut end_ms = store.server_now_ms().await.unwrap();
        while end_ms <= now_ms {
            end_ms = store.server_now_ms().await.unwrap();
        }
        dates_ms.push(end_ms + 1);
        if dates_ms.len() == 1 {
            dates_ms.insert(0, now_ms);
        }

        let reading = any_reading(&mut random, &dates_ms, now_ms);
        let mut heard = Vec::new();
        let mut each = |row| heard.push(row);
        match &reading {
            ReadScope::All { from } => store.all_live(from.as_ref(), &mut each).await,
            ReadScope::Rules { names, from } => store.live_of_rules(names, from.as_ref(), &mut each).await,
            ReadScope::Since { ms } => store.changed_since(*ms, &mut each).await,
        }
        .unwrap();
        assert_eq!(undated(heard), undated(model.read(&reading, now_ms)), "round {round}: {reading:?}");

        let mut cells: Vec<CellName> = (0..10).map(|_| any_cell(&mut random, now_ms)).collect();
        cells.sort_unstable();
        cells.dedup();
        let mut found = Vec::new();
        store.find(&cells, &mut |row| found.push(row)).await.unwrap();
        assert_eq!(undated(found), undated(model.find(&cells)), "round {round}: {cells:?}");
    }
    assert!(model.rows() > 100, "{}", model.rows());
}
