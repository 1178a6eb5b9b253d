//! A Redis that is slow and not down: figures only.

use std::time::Duration;

use crate::region::nodes::{KEYS, RATE, RULES};
use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::Fleet;
use crate::support::load::Traffic;
use crate::support::promise::Promise;
use crate::support::redis::RedisServer;

/// How a process does whose Redis takes so long for each answer.
pub fn slow() -> Vec<Promise> {
    const LASTS: Duration = Duration::from_secs(20);
    let mut promises = Vec::new();
    // At about the deadline half of the answers come in time; beyond it none does.
    for (delay_us, most_opened) in [(9_000, 1.0), (12_000, 2.0)] {
        let redis = RedisServer::start();
        let proxy = CuttingProxy::before(redis.address());
        let fleet = Fleet::together(1, RULES, &proxy.url(), &[]);
        // A younger connection is never doubted.
        fleet.run(Traffic::over("asked", KEYS, RATE), Duration::from_secs(6));
        let connections = || fleet.metric("tidegate_origin_connections_total");
        let opened = || fleet.metric("tidegate_origin_breaker_opened_total{breaker=\"checks\"}");
        let (connections_before, opened_before) = (connections(), opened());
        proxy.delay(Duration::from_micros(delay_us));
        let ledger = fleet.run(Traffic::over("asked", KEYS, RATE), LASTS);
        assert_eq!(ledger.failed(), 0);
        let at = format!("while answers take {} ms", delay_us / 1000);
        let connected = (connections() - connections_before) / LASTS.as_secs_f64();
        promises.push(Promise::at_most(format!("new connections a second {at}"), 0.1, connected));
        promises.push(Promise::at_most(
            format!("how often the breaker opens {at}"),
            most_opened,
            opened() - opened_before,
        ));
    }
    promises
}
