//! The processes of a region, with one Redis between them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::harness::{PATIENCE, Service, until, until_equal};
use crate::support::ledger::Ledger;
use crate::support::load::{Load, Traffic};

/// For tests that need Redis to answer in time: on a busy machine an answer may take much longer than the 10 ms that a request
/// waits by default. It is half of the most that can be set, because tests that stop Redis wait for that long.
pub const PATIENT: (&str, &str) = ("TIDEGATE_ORIGIN_DEADLINE", "5s");

pub struct Fleet {
    pub services: Vec<Service>,
    rules: String,
    env: Vec<(String, String)>,
}

/// Waits until a process is no newcomer to a store, which takes two seconds of heartbeats, one every second.
pub fn until_settled(service: &Service, store: &str) {
    let beats = format!("tidegate_{store}_calls_total{{operation=\"beat\"}}");
    until(PATIENCE, "some heartbeats", || service.metric(&beats).filter(|beats| *beats >= 4.0));
}

impl Fleet {
    pub fn start(count: usize, rules: &str, redis_url: &str, env: &[(&str, &str)]) -> Fleet {
        let mut all = vec![("REDIS_URL".to_owned(), redis_url.to_owned())];
        all.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let mut fleet = Fleet { services: Vec::new(), rules: rules.to_owned(), env: all };
        (0..count).for_each(|_| {
            fleet.add();
        });
        fleet
    }

    /// Starts processes and waits until each knows how many they are.
    pub fn together(count: usize, rules: &str, redis_url: &str, env: &[(&str, &str)]) -> Fleet {
        let fleet = Fleet::start(count, rules, redis_url, env);
        until(PATIENCE, "the processes know of each other", || {
            // One that has heard nothing yet takes itself for the only one.
            let heard = "tidegate_origin_duration_seconds_count{operation=\"beat\"}";
            let knows = |service: &Service| {
                service.metric("tidegate_regional_live_processes") == Some(count as f64)
                    && service.metric(heard) >= Some(1.0)
            };
            fleet.services.iter().all(knows).then_some(())
        });
        fleet
    }

    /// Waits until every process trusts its number of processes.
    pub fn until_settled(&self) {
        self.services.iter().for_each(|service| until_settled(service, "origin"));
    }

    /// Adds a process. Returns the address of its gRPC port.
    pub fn add(&mut self) -> SocketAddr {
        let service = self.another();
        let address = service.grpc;
        self.services.push(service);
        address
    }

    /// Starts a process like the others, which does not become part of the fleet.
    pub fn another(&self) -> Service {
        let env: Vec<(&str, &str)> = self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Service::start_with(&self.rules, &[], &env)
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.services.iter().map(|service| service.grpc).collect()
    }

    pub fn load(&self, traffic: Traffic) -> Load {
        Load::start(&self.addresses(), traffic)
    }

    pub fn run(&self, traffic: Traffic, time: Duration) -> Ledger {
        Load::run(&self.addresses(), traffic, time)
    }

    /// Sends this many requests, however long that takes.
    pub fn send(&self, traffic: Traffic, requests: u64) -> Ledger {
        Load::send(&self.addresses(), traffic, requests)
    }

    /// The sum of a metric over all processes. A process without it counts as 0.
    pub fn metric(&self, series: &str) -> f64 {
        self.services.iter().map(|service| service.metric(series).unwrap_or(0.0)).sum()
    }

    /// Hits that are held back, because their keys are far from their limits. Each process says how many it has found in a walk
    /// that takes a second.
    pub fn held_hits(&self) -> u64 {
        self.metric("tidegate_regional_held_hits") as u64
    }

    /// Waits until Redis knows of all of these hits but for those that are held back.
    pub fn until_accounted(&self, hits: u64, total: impl Fn() -> u64) {
        until_equal(PATIENCE, hits, || total() + self.held_hits());
    }

    /// Stops all processes, which tell what they hold back before they end.
    pub fn stop(&mut self) {
        self.services.iter().for_each(|service| service.process.signal("TERM"));
        for service in &mut self.services {
            let status = service.process.ends_within(PATIENCE).expect("it ends");
            assert_eq!(status.code(), Some(0), "{:?}", service.process.said);
        }
    }

    /// All of these hits are told or held back, none is lost, and none counted twice: when the processes have ended, Redis' total
    /// is exactly that.
    pub fn assert_counted_once(&mut self, hits: u64, total: impl Fn() -> u64) {
        self.until_accounted(hits, &total);
        self.stop();
        assert_eq!(total(), hits, "what was held back is told at the end, and nothing else");
    }

    /// Waits until every process says that the breaker is open, or that it is closed. Returns how long that took.
    pub fn until_breaker(&self, limit: Duration, breaker: &str, is_open: bool) -> Duration {
        let began = Instant::now();
        let series = format!("tidegate_origin_breaker_open{{breaker=\"{breaker}\"}}");
        until(limit, &series, || {
            let agrees = |service: &Service| service.metric(&series) == Some(f64::from(u8::from(is_open)));
            self.services.iter().all(agrees).then_some(())
        });
        began.elapsed()
    }
}

mod tests {
    use super::*;
    use crate::support::harness::tidegate;
    use crate::support::redis::RedisServer;

    const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 100, unit: second}}
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
";

    #[test]
    fn no_window_of_one_process_admits_more_than_the_limit() {
        let service = Service::start(RULES, &[]);
        let window = Duration::from_secs(1);
        let ledger = Load::run(&[service.grpc], Traffic::on("a=x", 1000), Duration::from_millis(2500));
        assert_eq!(ledger.failed(), 0);
        assert!(ledger.worst_window(100, window) <= 1.0, "{:?}", ledger.windows(window));
        println!("{} admitted, {} by one exact limiter", ledger.admitted_hits(), ledger.exact(100, window));
        assert!(ledger.admitted() > 0);
    }

    #[test]
    fn the_load_keeps_its_ledger() {
        let services: Vec<Service> = (0..5).map(|_| Service::start(RULES, &[])).collect();
        let addresses: Vec<SocketAddr> = services.iter().map(|service| service.grpc).collect();
        let mut traffic = Traffic::over("far", 10, 10_000);
        traffic.requests[3].hits_addend = 7;
        let ledger = Load::send(&addresses, traffic, 10_000);
        println!("{:.0} requests/s, p50 {:?}, p99 {:?}", ledger.pace(), ledger.latency(0.5), ledger.latency(0.99));
        assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
        for process in 0..5 {
            let share = ledger.only(|entry| entry.process == process).entries.len() * 5;
            assert!((0.8..1.2).contains(&(share as f64 / ledger.entries.len() as f64)), "routing is even: {share}");
        }
        let counted: f64 = services
            .iter()
            .map(|service| service.metric("tidegate_decisions_total{outcome=\"ok\"}").expect("decisions are counted"))
            .sum();
        assert_eq!(counted as u64, ledger.admitted());
        assert!(ledger.admitted_hits() > ledger.admitted(), "some cost more");
    }

    #[test]
    fn a_process_that_dies_fails_what_is_open_and_one_that_is_left_fails_nothing() {
        let services: Vec<Service> = (0..3).map(|_| Service::start(RULES, &[])).collect();
        let load = Load::start(&[services[0].grpc, services[1].grpc], Traffic::on("far=x", 1000));
        load.goes_on(100);
        assert_eq!(load.add(services[2].grpc), 2);
        load.goes_on(100);
        load.leave(1);
        load.settled(1);
        services[1].process.signal("KILL");
        load.goes_on(100);
        services[0].process.signal("KILL");
        until(PATIENCE, "the end of the connections is noticed", || (!load.routes_to(0)).then_some(()));
        // Lets the requests go out that were being sent at that moment.
        load.goes_on(100);
        let since_us = load.now_us();
        load.goes_on(100);
        let ledger = load.finish();
        assert!(ledger.only(|entry| entry.process != 0).failed() == 0);
        assert!(ledger.only(|entry| entry.process == 2).admitted() > 0);
        let failed = ledger.only(|entry| entry.process == 0 && entry.sent_us > since_us);
        assert_eq!(failed.entries.len(), 0, "nothing is sent to where nobody is");
    }

    #[test]
    fn a_fleet_is_started_with_its_settings() {
        let redis = RedisServer::start();
        let fleet = Fleet::start(2, RULES, &redis.url(), &[PATIENT]);
        assert_ne!(fleet.addresses()[0], fleet.addresses()[1]);
        let ledger = fleet.send(Traffic::on("far=x", 100), 20);
        assert!(ledger.admitted() > 0 && ledger.failed() == 0);
        assert!(tidegate(&["serve"]).get_envs().all(|(name, _)| name != "REDIS_URL"), "only fleets have a Redis");
    }
}
