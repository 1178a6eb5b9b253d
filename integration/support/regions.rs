//! Several regions: each with a Redis and processes of its own, and one MariaDB between them.

use std::time::Duration;

use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, Service, answer, ask_one, in_short, run, tidegate, until};
use crate::support::mariadb::MariaDbServer;
use crate::support::redis::RedisServer;

/// How long a region may take on a busy machine to hear what another one has published.
pub const HEARD: Duration = PATIENCE;

pub struct RegionUnderTest {
    pub redis: RedisServer,
    pub fleet: Fleet,
}

pub struct Regions {
    pub mariadb: MariaDbServer,
    pub regions: Vec<RegionUnderTest>,
}

/// The settings that make a process part of a region.
pub fn settings(mariadb: &MariaDbServer, region: &str, regions: &str) -> Vec<(String, String)> {
    let settings = [("MYSQL_URL", mariadb.url().as_str()), ("REGION", region), ("TIDEGATE_REGIONS", regions), PATIENT]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    settings.to_vec()
}

pub fn migrate(mariadb: &MariaDbServer) {
    let ran = run(tidegate(&["migrate"]).env("MYSQL_URL", mariadb.url()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

fn borrowed(env: &[(String, String)]) -> Vec<(&str, &str)> {
    env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

impl Regions {
    /// Starts regions with this many processes each.
    pub fn start(names: &[&str], processes: usize, rules: &str) -> Regions {
        Regions::with(names, processes, rules, &[])
    }

    pub fn with(names: &[&str], processes: usize, rules: &str, env: &[(&str, &str)]) -> Regions {
        let mariadb = MariaDbServer::start();
        migrate(&mariadb);
        let start = |name: &&str| {
            let redis = RedisServer::start();
            let settings = settings(&mariadb, name, &names.join(","));
            let all: Vec<(&str, &str)> = borrowed(&settings).into_iter().chain(env.iter().copied()).collect();
            let fleet = Fleet::together(processes, rules, &redis.url(), &all);
            RegionUnderTest { redis, fleet }
        };
        let regions = names.iter().map(start).collect();
        Regions { mariadb, regions }
    }

    pub fn service(&self, region: usize, process: usize) -> &Service {
        &self.regions[region].fleet.services[process]
    }

    /// What a region answers.
    pub async fn said(&self, region: usize, request: RateLimitRequest) -> String {
        said(self.service(region, 0), request).await
    }

    /// Waits until a process knows of this many hits on a key, whoever counted them.
    pub fn until_counted(&self, region: usize, process: usize, descriptor: &str, counted: u64) {
        until_counted(self.service(region, process), descriptor, counted);
    }

    /// The rows, as `region identifier count refunds`. Identifiers lack their first byte, the length of the first value.
    pub fn rows(&self) -> Vec<String> {
        self.rows_where("TRUE")
    }

    pub fn rows_where(&self, condition: &str) -> Vec<String> {
        self.mariadb.sql(&format!(
            "SELECT CONCAT_WS(' ', region, SUBSTRING(identifier, 2), count, refunds) FROM ratelimit_window_counts \
             WHERE {condition} ORDER BY region, identifier"
        ))
    }
}

pub async fn said(service: &Service, request: RateLimitRequest) -> String {
    in_short(&answer(&mut service.client().await, request).await)
}

/// Waits until `/explain` says that this many hits count against the first limit.
pub fn until_counted(service: &Service, descriptor: &str, counted: u64) {
    let page = format!("/explain?domain=d&output=json&descriptor={}", descriptor.replace(' ', "%20"));
    let what = format!("{counted} are counted on {descriptor}");
    until(HEARD, &what, || (find(&service.page_json(&page), "counted") == Some(counted)).then_some(()));
}

/// The first number with this name, at any depth.
fn find(value: &serde_json::Value, name: &str) -> Option<u64> {
    match value {
        serde_json::Value::Object(map) => map
            .get(name)
            .and_then(serde_json::Value::as_u64)
            .or_else(|| map.values().find_map(|value| find(value, name))),
        serde_json::Value::Array(list) => list.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

/// A request of this many hits, which are charged only if it is admitted.
pub fn cost(descriptor: &str, hits: u32) -> RateLimitRequest {
    RateLimitRequest { hits_addend: hits, ..ask_one(descriptor) }
}
