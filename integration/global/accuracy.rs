//! How near regions stay to a limit together: real processes, one run.

use std::time::Duration;

use crate::support::ledger::wall_us;
use crate::support::load::{Load, Traffic};
use crate::support::machine::machine;
use crate::support::regions::{HEARD, Regions, cost, said};

const LIMIT: u64 = 600;
const WINDOW: Duration = Duration::from_secs(60);

/// Ten times the load, evenly over three regions of two processes: what they hear of each other late is what they admit
/// too much.
#[test]
fn three_regions_stay_near_a_limit_under_ten_times_the_load() {
    let _machine = machine();
    let rules =
        format!("{{domain: d, descriptors: [{{key: k, rate_limit: {{requests_per_unit: {LIMIT}, unit: minute}}}}]}}");
    let regions = Regions::start(&["a", "b", "c"], 2, &rules);
    let addresses: Vec<_> = regions.regions.iter().flat_map(|region| region.fleet.addresses()).collect();
    let window_us = WINDOW.as_micros() as u64;
    let into_window = || Duration::from_micros(wall_us() % window_us);
    // The first window needs some time in which the limit is reached.
    let latest = Duration::from_secs(30);
    if into_window() > latest {
        std::thread::sleep(WINDOW - into_window());
    }
    let first = wall_us() / window_us;
    let left = WINDOW - into_window();
    let ledger = Load::run(&addresses, Traffic::on("k=x", LIMIT / 6), left + WINDOW);
    assert_eq!(ledger.failed(), 0);
    let share = |window: u64| ledger.windows(WINDOW).get(&window).copied().unwrap_or(0) as f64 / LIMIT as f64;
    let (begun, later) = (share(first), share(first + 1));
    println!("{begun:.3} of the limit in the first window, {later:.3} in the next");
    assert!(begun <= 1.20 && later <= 1.10, "{begun:.3} in the first window, {later:.3} in the next");
    assert!(begun >= 0.95 && later >= 0.95, "{begun:.3} in the first window, {later:.3} in the next");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_regions_converge() {
    const RULES: &str = "{domain: d, descriptors: [{key: k, rate_limit: {requests_per_unit: 100, unit: year}}]}";
    let regions = Regions::start(&["a", "b", "c", "d"], 1, RULES);
    for region in 0..4 {
        assert!(regions.said(region, cost("k=x", 20)).await.starts_with("OK"));
    }
    for region in 0..4 {
        regions.until_counted(region, 0, "k=x", 80);
        assert!(said(regions.service(region, 0), cost("k=x", 21)).await.starts_with("OVER"));
    }
    assert_eq!(regions.said(2, cost("k=x", 20)).await, "OK: OK 0");
    for region in 0..4 {
        regions.until_counted(region, 0, "k=x", 100);
        assert!(regions.said(region, cost("k=x", 1)).await.starts_with("OVER"));
    }
    let age = regions.service(0, 0).metric("tidegate_global_success_age_seconds{turn=\"import\"}");
    assert!(age.is_some_and(|age| age < HEARD.as_secs_f64()), "{age:?}");
}
