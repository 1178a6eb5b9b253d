//! How much work MySQL has for a region, which does not follow its number of processes.

use std::time::{Duration, Instant};

use crate::global::voice::until_one_speaks;
use crate::support::fleet::Fleet;
use crate::support::load::Traffic;
use crate::support::mariadb::MariaDbServer;
use crate::support::promise::Promise;
use crate::support::redis::RedisServer;
use crate::support::regions::{migrate, settings};

const RULES: &str = "
domain: d
descriptors:
  - {key: hot, rate_limit: {requests_per_unit: 700, unit: minute}}
";

/// Rows that MySQL takes and gives in a second, and connections to it, with so many processes in a region and one in
/// another, and the same traffic.
fn work_of(processes: usize, time: Duration) -> [f64; 3] {
    let mariadb = MariaDbServer::start();
    migrate(&mariadb);
    let redis = [RedisServer::start(), RedisServer::start()];
    let fleet = |region: &str, redis: &RedisServer, count: usize| {
        let settings = settings(&mariadb, region, "a,b");
        let env: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Fleet::together(count, RULES, &redis.url(), &env)
    };
    let fleets = [fleet("a", &redis[0], processes), fleet("b", &redis[1], 1)];
    fleets.iter().for_each(|fleet| {
        until_one_speaks(&fleet.services);
    });
    // The same keys in both regions, so that each is contested.
    let loads = fleets.each_ref().map(|fleet| fleet.load(Traffic::over("hot", 100, 500)));
    // Until both regions have told of every key.
    std::thread::sleep(Duration::from_secs(30));
    let series = ["tidegate_global_published_rows_total", "tidegate_global_imported_rows_total"];
    let work = || series.map(|series| fleets[0].metric(series));
    let (before, began) = (work(), Instant::now());
    std::thread::sleep(time);
    let (after, took) = (work(), began.elapsed().as_secs_f64());
    // Without the one that asks.
    let connections = mariadb.number("SELECT COUNT(*) - 1 FROM information_schema.PROCESSLIST WHERE DB IS NOT NULL");
    loads.into_iter().for_each(|load| drop(load.finish()));
    [(after[0] - before[0]) / took, (after[1] - before[1]) / took, connections as f64]
}

/// What MySQL has to do for 1, 4 and 16 processes with the same traffic.
pub fn rows_of_many() -> Vec<Promise> {
    let alone = work_of(1, Duration::from_secs(20));
    let mut promises = Vec::new();
    for processes in [4, 16] {
        let many = work_of(processes, Duration::from_secs(20));
        for (what, (many, alone)) in ["published", "imported"].into_iter().zip(many.into_iter().zip(alone)) {
            promises.push(Promise::at_most(
                format!("rows/s {what} by {processes} processes against one ({many:.0} and {alone:.0})"),
                1.3,
                many / alone.max(1.0),
            ));
        }
        eprintln!("{processes} processes: {many:?}, one: {alone:?} (rows/s published, imported; connections)");
    }
    promises
}
