//! Quota descriptors deny only together, also if nobody but the process knows of all of them.

use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{PATIENCE, ask, descriptor, said, until_equal};
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;

const RULES: &str = "
domain: d
descriptors:
  - {key: here, quota_mode: true, rate_limit: {requests_per_unit: 100, unit: day, scope: local}}
  - {key: three, quota_mode: true, rate_limit: {requests_per_unit: 3, unit: day, slack: 0}}
  - {key: trois, quota_mode: true, rate_limit: {requests_per_unit: 3, unit: day, slack: 0}}
  - {key: many, quota_mode: true, rate_limit: {requests_per_unit: 100, unit: day, slack: 0}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_the_origin_is_not_asked_about_admits_all() {
    let redis = RedisServer::start();
    let fleet = Fleet::together(2, RULES, &redis.url(), &[PATIENT]);
    let [mut one, mut other] = [fleet.services[0].client().await, fleet.services[1].client().await];
    let both = || ask(["here=x", "three=x"].map(descriptor));
    assert_eq!(said(&mut one, both()).await, "OK: OK 99, OK 2");
    assert_eq!(said(&mut other, both()).await, "OK: OK 99, OK 1");
    assert_eq!(said(&mut one, both()).await, "OK: OK 98, OK 0");
    // This process has to be told that nothing is left, the first time.
    for left in (92..=98).rev() {
        assert_eq!(said(&mut other, both()).await, format!("OK: OK {left}, OVER 0"));
    }
    until_equal(PATIENCE, 3, || redis.total_hits());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_in_several_slots_of_a_cluster_deny_only_together() {
    let cluster = RedisCluster::start();
    let fleet = Fleet::together(2, RULES, &cluster.url(), &[("REDIS_TYPE", "cluster"), PATIENT]);
    let [mut one, mut other] = [fleet.services[0].client().await, fleet.services[1].client().await];
    let slots = || {
        let charged = cluster.cells().into_iter().filter(|cell| cell.hits > 0);
        let mut slots: Vec<u16> = charged.map(|cell| cluster.slot_of(&cell.name)).collect();
        slots.sort_unstable();
        slots.dedup();
        slots.len()
    };

    // One that is over, one that is not.
    for number in 0..10 {
        let of_three = if number < 3 { format!("OK {}", 2 - number) } else { "OVER 0".into() };
        let answer = said(&mut one, ask(["many=x", "three=x"].map(descriptor))).await;
        assert_eq!(answer, format!("OK: OK {}, {of_three}", 99 - number));
    }
    until_equal(PATIENCE, 10 + 3, || cluster.total_hits());
    assert_eq!(slots(), 2, "their keys are in different slots");

    // Both over, but for one that no slot knows of.
    for key in ["three=y", "trois=y"] {
        for left in (0..3).rev() {
            assert_eq!(said(&mut other, ask([descriptor(key)])).await, format!("OK: OK {left}"));
        }
    }
    for left in (90..=99).rev() {
        let answer = said(&mut one, ask(["here=y", "three=y", "trois=y"].map(descriptor))).await;
        assert_eq!(answer, format!("OK: OK {left}, OVER 0, OVER 0"));
    }
    until_equal(PATIENCE, 13 + 6, || cluster.total_hits());

    // Both over, and nothing else.
    let both = || ask(["three=z", "trois=z"].map(descriptor));
    for left in (0..3).rev() {
        assert_eq!(said(&mut one, both()).await, format!("OK: OK {left}, OK {left}"));
    }
    until_equal(PATIENCE, 19 + 6, || cluster.total_hits());
    for client in [&mut one, &mut other] {
        assert_eq!(said(client, both()).await, "OVER: OVER 0, OVER 0");
    }
    // A replay interval, and much more.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(cluster.total_hits(), 25, "nothing more is counted");
}
