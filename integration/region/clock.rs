//! A Redis whose clock is not ours: the operator is told, and nobody else notices.

use std::time::Duration;

use crate::support::fleet::Fleet;
use crate::support::harness::{PATIENCE, Service, until};
use crate::support::load::Traffic;
use crate::support::redis::RedisServer;

/// Clocks may be apart by a twentieth of the window.
fn rules(window: &str) -> String {
    format!(
        "
domain: d
descriptors:
  - {{key: short, rate_limit: {{requests_per_unit: 1000000, window: {window}}}}}
  - {{key: asked, rate_limit: {{requests_per_unit: 1000000, unit: hour, slack: 0}}}}
"
    )
}

const WARNING: &str = "further apart than 5 % of the shortest window";
/// After this many heartbeats, whatever is said at each of them would have been said again.
const BEATS: f64 = 4.0;

/// Runs processes with this Redis for some heartbeats. Each says how far ahead its clock is, and so many warnings.
fn assert_ahead(redis: &RedisServer, window: &str, ahead_s: f64, warnings: usize) {
    let mut fleet = Fleet::together(2, &rules(window), &redis.url(), &[("TIDEGATE_DRAIN_DELAY", "0s")]);
    let mut traffic = Traffic::over("short", 10, 200);
    traffic.requests.extend(Traffic::over("asked", 10, 200).requests);
    let load = fleet.load(traffic);
    until(PATIENCE, "some heartbeats", || {
        let beats = |service: &Service| service.metric("tidegate_origin_calls_total{operation=\"beat\"}");
        fleet.services.iter().all(|service| beats(service) >= Some(BEATS)).then_some(())
    });
    for service in &fleet.services {
        // A heartbeat that was held up says less than the next one.
        until(PATIENCE, &format!("{ahead_s} s are shown"), || {
            let shown_s = service.metric("tidegate_origin_clock_offset_seconds").expect("the offset is shown");
            ((shown_s - ahead_s).abs() <= 0.25).then_some(())
        });
    }
    let ledger = load.finish();
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    fleet.assert_counted_once(ledger.admitted_hits(), || redis.total_hits());
    for service in &fleet.services {
        let said = &service.process.said;
        assert_eq!(said.iter().filter(|line| line.contains(WARNING)).count(), warnings, "{said:?}");
    }
}

#[test]
fn a_redis_whose_clock_is_ahead_is_warned_of_once() {
    assert_ahead(&RedisServer::with_clock_ahead(Duration::from_secs(3)), "10s", 3.0, 1);
}

#[test]
fn a_redis_whose_clock_is_right_is_not_warned_of() {
    // So long that a heartbeat that was held up for a second is no reason.
    assert_ahead(&RedisServer::start(), "60s", 0.0, 0);
}
