//! How rarely everything is read: not after a reload, not after a server that stood still for a while.

use std::time::{Duration, Instant};

use crate::support::harness::{PATIENCE, Service, until, until_equal};
use crate::support::regions::{Regions, cost, said};

const ONE: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {requests_per_unit: 100, unit: year}}
";
const BOTH: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {requests_per_unit: 100, unit: year}}
  - {key: o, rate_limit: {requests_per_unit: 100, unit: year}}
";

/// From then on whatever was to be read because of something has begun: reads are spread over half a minute.
const SPREAD: Duration = Duration::from_secs(31);

fn full_reads(service: &Service) -> Option<f64> {
    service.metric("tidegate_global_full_reads_total")
}

fn rule_reads(service: &Service) -> Option<f64> {
    service.metric("tidegate_global_rule_reads_total")
}

/// Has rules loaded, and waits until they are in force.
fn reload(service: &Service) {
    let loaded = || service.metric("ratelimit_service_config_load_success").expect("it is counted");
    let before = loaded();
    service.process.signal("HUP");
    until(PATIENCE, "it is loaded", || (loaded() > before).then_some(()));
}

fn all(regions: &Regions) -> impl Iterator<Item = &Service> {
    regions.regions.iter().flat_map(|region| &region.fleet.services)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_read_nothing_but_the_rows_of_rules_that_become_known() {
    let regions = Regions::start(&["a", "b"], 2, BOTH);
    all(&regions).for_each(|service| until_equal(PATIENCE, Some(1.0), || full_reads(service)));
    let of_b = || regions.regions[1].fleet.services.iter();
    for service in of_b() {
        service.write_rules(ONE);
        reload(service);
    }
    for key in ["k=z", "o=x", "o=y"] {
        assert!(regions.said(0, cost(key, 60)).await.starts_with("OK"));
    }
    let left_out = "tidegate_global_ignored_rows_total{reason=\"no_rule\"}";
    for (number, service) in of_b().enumerate() {
        regions.until_counted(1, number, "k=z", 60);
        until(PATIENCE, "rows are left out", || service.metric(left_out).filter(|rows| *rows >= 2.0));
    }
    for _ in 0..40 {
        all(&regions).for_each(reload);
    }
    let reloaded = Instant::now();

    for service in of_b() {
        assert_eq!((full_reads(service), rule_reads(service)), (Some(1.0), Some(0.0)));
        service.write_rules(BOTH);
        reload(service);
    }
    // Asked for before its rule is read, or after it: it is heard of either way.
    said(regions.service(1, 0), cost("o=x", 1)).await;
    regions.until_counted(1, 0, "o=x", 61);
    for (number, service) in of_b().enumerate() {
        regions.until_counted(1, number, "o=y", 60);
        until_equal(PATIENCE, Some(1.0), || rule_reads(service));
    }
    until(2 * SPREAD, "what else was to be read is read", || (reloaded.elapsed() > SPREAD).then_some(()));
    let reads: Vec<_> = all(&regions).map(|service| (full_reads(service), rule_reads(service))).collect();
    let [of_a, of_b] = [0.0, 1.0].map(|rules| (Some(1.0), Some(rules)));
    assert_eq!(reads, [of_a, of_a, of_b, of_b]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_is_caught_up_with_and_not_read_in_full() {
    const KEYS: u32 = 20;
    let regions = Regions::start(&["a", "b"], 3, ONE);
    for key in 0..KEYS {
        assert!(regions.said(0, cost(&format!("k={key}"), 50)).await.starts_with("OK"));
    }
    for key in 0..KEYS {
        (0..3).for_each(|process| regions.until_counted(1, process, &format!("k={key}"), 50));
    }
    regions.mariadb.stop();
    let stopped = Instant::now();
    for key in 0..KEYS {
        assert!(regions.said(0, cost(&format!("k={key}"), 1 + key)).await.starts_with("OK"));
    }
    let failed = "tidegate_global_errors_total{turn=\"import\",reason=\"timeout\"}";
    for service in all(&regions) {
        until(PATIENCE, "an import has failed", || service.metric(failed).filter(|errors| *errors >= 1.0));
    }
    until(PATIENCE, "it stood still for a while", || (stopped.elapsed() > Duration::from_millis(3500)).then_some(()));
    regions.mariadb.cont();
    let (went_on, stood) = (Instant::now(), stopped.elapsed());
    for key in 0..KEYS {
        (0..3).for_each(|process| regions.until_counted(1, process, &format!("k={key}"), 51 + u64::from(key)));
    }
    until(2 * SPREAD, "what was to be read is read", || (went_on.elapsed() > SPREAD).then_some(()));
    // After a minute everything would have been.
    if stood < Duration::from_secs(50) {
        assert_eq!(all(&regions).map(full_reads).collect::<Vec<_>>(), [Some(1.0); 6]);
    }
}
