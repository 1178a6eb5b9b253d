//! Redis comes back empty while processes hold very many keys: it is told all of them again, and goes on to decide meanwhile.

use std::time::Duration;

use tokio::runtime::Runtime;

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, Service, answer, ask, descriptor, until};
use crate::support::ledger::Outcome;
use crate::support::load::Traffic;
use crate::support::promise::{Promise, print};
use crate::support::redis::RedisServer;

/// Nobody asks for the `far` ones when Redis is back. Each `probe` has to ask, and is denied while it gets no answer.
const RULES: &str = "
domain: d
descriptors:
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
  - {key: probe, rate_limit: {requests_per_unit: 1000000000, unit: hour, slack: 0, on_outage: deny}}
";
const PROCESSES: usize = 3;
/// Probes a second.
const PACE: u64 = 500;
/// Keys of one request, as many as it may have.
const KEYS_PER_REQUEST: usize = 32;
/// What a check takes on a machine that does nothing else, at least: below, a few times as long says nothing.
const CHECK: Duration = Duration::from_millis(2);

/// Has a process count one hit on each of so many keys of its own.
async fn fill(service: &Service, process: usize, keys: usize) {
    let mut client = service.client().await;
    for first in (0..keys).step_by(KEYS_PER_REQUEST) {
        let of = (first..keys.min(first + KEYS_PER_REQUEST)).map(|key| descriptor(&format!("far={process}-{key}")));
        assert_eq!(answer(&mut client, ask(of)).await.overall_code, 1);
    }
}

#[test]
fn a_redis_that_comes_back_empty_is_told_of_every_key_while_it_decides() {
    print(&back_empty(4_000, &[PATIENT]));
}

/// Processes with so many keys each.
pub fn back_empty(keys: usize, env: &[(&str, &str)]) -> Vec<Promise> {
    let mut redis = RedisServer::start();
    let mut fleet = Fleet::together(PROCESSES, RULES, &redis.url(), env);
    fleet.until_settled();
    let filling = async {
        for (process, service) in fleet.services.iter().enumerate() {
            fill(service, process, keys).await;
        }
    };
    Runtime::new().expect("a runtime").block_on(filling);
    let filled = (PROCESSES * keys) as u64;
    fleet.until_accounted(filled, || redis.total_hits());

    let load = fleet.load(Traffic::over("probe", 100, PACE));
    load.goes_on(2 * PACE);
    let before = load.so_far();
    redis.kill();
    load.goes_on(PACE / 10);
    redis.restart_empty();
    let back_us = load.now_us();
    until(PATIENCE, "everybody has noticed", || {
        let has_noticed = |service: &Service| service.metric("tidegate_regional_heals_total") >= Some(1.0);
        fleet.services.iter().all(has_noticed).then_some(())
    });
    let noticed_us = load.now_us();
    until(4 * PATIENCE, "everything is told", || (fleet.metric("tidegate_regional_keys_to_heal") == 0.0).then_some(()));
    let told_us = load.now_us();
    load.goes_on(3 * PACE);
    let ledger = load.finish();
    assert_eq!(ledger.failed(), 0);

    let after = |from_s: u64, to_s: u64| ledger.sent_in(back_us + from_s * 1_000_000..back_us + to_s * 1_000_000);
    let second = after(1, 2);
    let denied = ledger.only(|entry| entry.outcome == Outcome::Denied);
    let last_denied_us = denied.entries.last().map(|entry| entry.sent_us);
    let denied_for = Duration::from_micros(last_denied_us.unwrap_or(back_us).saturating_sub(back_us));
    // Every key has one cell. A heartbeat notices the loss, and the last may wait for another process.
    let cells = PROCESSES * keys;
    let told_in = Duration::from_secs(2) + Duration::from_micros(25 * cells as u64) * 5 / 4;
    let (usual, meanwhile) = (before.latency(0.99), ledger.sent_in(noticed_us..told_us).latency(0.99));
    let promises = vec![
        Promise::within("the last request is denied after Redis is back", Duration::from_secs(2), denied_for),
        Promise::at_most(
            "the share that is denied in the second after the first",
            0.05,
            second.denied() as f64 / second.entries.len().max(1) as f64,
        ),
        Promise::within(
            "99 % of checks while all is told again, three times as usual",
            3 * usual.max(CHECK),
            meanwhile,
        ),
        Promise::within(
            format!("{cells} keys are told again"),
            told_in,
            Duration::from_micros(told_us.saturating_sub(back_us)),
        ),
    ];

    // Nothing is missing. A check whose answer was lost with the connection may be there although its client was denied, and hits
    // that were on their way may be there twice.
    let truth = filled + ledger.admitted_hits();
    until(PATIENCE, "the totals are whole", || {
        Some(redis.total_hits() + fleet.held_hits()).filter(|hits| *hits >= truth)
    });
    fleet.stop();
    let (total, probes) = (redis.total_hits(), ledger.entries.len() as u64);
    assert!((truth..=truth + probes).contains(&total), "{total} of {truth}, with {probes} probes");
    promises
}
