//! What one region counts, all others hear: real processes. How near regions stay to a limit under load is measured by
//! `make drill`.

use crate::support::regions::{HEARD, Regions, cost, said};

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
