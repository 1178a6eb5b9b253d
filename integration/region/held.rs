//! Hits far from their limit are held back: what Redis hears of them, and when, and what is lost with who holds them.

use std::time::Duration;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::harness::{Client, PATIENCE, answer, ask, ask_one, descriptor, descriptor_for, until, until_equal};
use crate::support::redis::{Cell, RedisServer};

const RULES: &str = "
domain: d
descriptors:
  - {key: far, rate_limit: {requests_per_unit: 1000, unit: year}}
  - {key: ten, rate_limit: {requests_per_unit: 10, unit: year, slack: 1}}
  - {key: closed, rate_limit: {requests_per_unit: 100, unit: year, slack: 0}}
  - {key: brief, rate_limit: {requests_per_unit: 1000, unit: second}}
";
/// What all processes together may admit of `far` before Redis knows.
const SLACK: u64 = 100;
/// After this long what is due has been told, and no news of a key is recent.
const QUIET: Duration = Duration::from_secs(1);

/// Processes that take their part of the slack, and a client of each.
async fn settled(count: usize, redis_url: &str, env: &[(&str, &str)]) -> (Fleet, Vec<Client>) {
    let fleet = Fleet::together(count, RULES, redis_url, &[&[PATIENT], env].concat());
    fleet.until_settled();
    let mut clients = Vec::new();
    for service in &fleet.services {
        clients.push(service.client().await);
    }
    (fleet, clients)
}

/// Requests of one hit, all of which are admitted.
async fn hits(client: &mut Client, key: &str, count: u64) {
    for number in 0..count {
        assert_eq!(answer(client, ask_one(key)).await.overall_code, 1, "{key}: {number}");
    }
}

/// Has every client spend one hit on each key, and so many more when the first is no news any more.
async fn hold(clients: &mut [Client], keys: &[(String, u64)]) {
    for client in &mut *clients {
        for (key, _) in keys {
            hits(client, key, 1).await;
        }
    }
    tokio::time::sleep(QUIET).await;
    for client in clients {
        for (key, more) in keys {
            hits(client, key, *more).await;
        }
    }
}

/// The cells that have hits.
fn charged(redis: &RedisServer) -> Vec<Cell> {
    redis.cells().into_iter().filter(|cell| cell.hits > 0).collect()
}

fn far(number: usize) -> String {
    format!("far={number}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_far_below_its_limit_is_told_once_by_each_process_and_the_rest_when_it_stops() {
    let redis = RedisServer::start();
    let (mut fleet, mut clients) = settled(2, &redis.url(), &[]).await;
    let keys = [0, 1, 2].map(|number| (far(number), 10));
    hold(&mut clients, &keys).await;
    until_equal(PATIENCE, 60, || fleet.held_hits());
    assert_eq!(redis.total_hits(), 6, "one of each process on each key");
    assert_eq!(charged(&redis).iter().map(|cell| (cell.hits, cell.fields.len())).collect::<Vec<_>>(), [(2, 2); 3]);
    fleet.stop();
    assert_eq!(redis.total_hits(), 66, "all was told before the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_are_told_apart_by_how_old_their_news_was() {
    let redis = RedisServer::start();
    let (fleet, mut clients) = settled(2, &redis.url(), &[]).await;
    let decided = |by: &str| fleet.metric(&format!("tidegate_regional_decisions_total{{by=\"{by}\"}}"));
    let all = || ["memory_cold", "memory_old", "memory", "origin", "outage"].map(decided);
    hold(&mut clients, &[("brief=0".to_owned(), 0), ("brief=1".to_owned(), 0)]).await;
    assert_eq!(all(), [4.0, 0.0, 0.0, 0.0, 0.0], "nobody has heard of the keys");
    hold(&mut clients, &[(far(0), 0), (far(1), 0)]).await;
    assert_eq!(all(), [4.0, 0.0, 0.0, 4.0, 0.0], "and these may have been spent before the processes came");
    for client in &mut clients {
        hits(client, "far=0", 3).await;
    }
    assert_eq!(all(), [4.0, 6.0, 0.0, 4.0, 0.0], "the first hits have brought news, a while ago");
    hits(&mut clients[0], "closed=x", 2).await;
    assert_eq!(all(), [4.0, 6.0, 0.0, 6.0, 0.0], "a limit that is closed asks about every hit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_loses_what_was_held_back_and_that_is_at_most_the_credit_of_each_key() {
    const CREDIT: u64 = SLACK / 3;
    let redis = RedisServer::start();
    let (mut fleet, mut clients) = settled(3, &redis.url(), &[]).await;
    let keys: Vec<(String, u64)> = (0..5).map(|number| (far(number), 15 * number as u64)).collect();
    let spent: Vec<u64> = keys.iter().map(|(_, more)| 1 + more).collect();
    hold(&mut clients[..1], &keys).await;
    tokio::time::sleep(QUIET).await;
    fleet.until_accounted(spent.iter().sum(), || redis.total_hits());
    let held = fleet.held_hits();
    assert!(held > 0, "there is something to lose");
    let mut killed = fleet.services.remove(0);
    killed.process.signal("KILL");
    killed.process.ends_within(PATIENCE).expect("it dies");
    fleet.stop();
    assert_eq!(redis.total_hits() + held, spent.iter().sum::<u64>(), "what was told is there");
    // The names of the keys are digests at Redis. If each is near what was spent on it, so is each in order of size.
    let mut told: Vec<u64> = charged(&redis).iter().map(|cell| cell.hits).collect();
    told.sort_unstable();
    assert_eq!(told.len(), spent.len());
    let is_near = |(told, spent): (&u64, &u64)| told + CREDIT >= *spent;
    assert!(told.iter().zip(&spent).all(is_near), "{told:?} of {spent:?}, and {CREDIT} may be missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_makes_the_others_tell_what_is_more_than_their_smaller_part() {
    // Below three quarters of a half of the slack, but more than a third of it.
    const MUCH: u64 = 36;
    const LITTLE: u64 = 10;
    const { assert!(MUCH * 8 < SLACK * 3 && MUCH * 3 > SLACK) };
    let redis = RedisServer::start();
    let (mut fleet, mut clients) = settled(2, &redis.url(), &[]).await;
    hold(&mut clients, &[(far(0), MUCH), (far(1), LITTLE)]).await;
    until_equal(PATIENCE, 2 * (MUCH + LITTLE), || fleet.held_hits());
    assert_eq!(redis.total_hits(), 4, "nothing is too much for two");
    fleet.add();
    until_equal(PATIENCE, 4 + 2 * MUCH, || redis.total_hits());
    until_equal(PATIENCE, 2 * LITTLE, || fleet.held_hits());
    fleet.assert_counted_once(4 + 2 * (MUCH + LITTLE), || redis.total_hits());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_table_gives_up_is_told_first() {
    const KEYS: usize = 40;
    const KEYS_MAX: usize = 20;
    const MORE: u64 = 3;
    let redis = RedisServer::start();
    let (mut fleet, mut clients) = settled(1, &redis.url(), &[("TIDEGATE_KEYS_MAX", &KEYS_MAX.to_string())]).await;
    for number in 0..KEYS {
        hits(&mut clients[0], &far(number), 1).await;
        // A process that has forgotten keys has to read a new one before it can tell anything of it.
        until(PATIENCE, "Redis has heard of the key", || (charged(&redis).len() == number + 1).then_some(()));
        // After which its news is soon not recent.
        tokio::time::sleep(Duration::from_millis(300)).await;
        hits(&mut clients[0], &far(number), MORE).await;
        if number == KEYS_MAX / 2 {
            until(PATIENCE, "there is something to forget", || (fleet.held_hits() > 0).then_some(()));
        }
    }
    let spent = KEYS as u64 * (1 + MORE);
    fleet.until_accounted(spent, || redis.total_hits());
    let held = fleet.held_hits();
    assert!(held <= KEYS_MAX as u64 * MORE, "{held} hits are held back by {KEYS_MAX} keys");
    assert_eq!(fleet.metric("tidegate_regional_lost_hits_total"), 0.0);
    fleet.assert_counted_once(spent, || redis.total_hits());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crowd_of_new_keys_pushes_out_is_told_or_counted_as_lost() {
    const ROUNDS: usize = 5;
    const KEYS: usize = 30;
    const MORE: u64 = 3;
    let redis = RedisServer::start();
    let (mut fleet, mut clients) = settled(1, &redis.url(), &[("TIDEGATE_KEYS_MAX", "50")]).await;
    for round in 0..ROUNDS {
        let keys: Vec<(String, u64)> = (0..KEYS).map(|number| (far(round * KEYS + number), MORE)).collect();
        hold(&mut clients, &keys).await;
    }
    let spent = (ROUNDS * KEYS) as u64 * (1 + MORE);
    let lost = || fleet.metric("tidegate_regional_lost_hits_total") as u64;
    fleet.until_accounted(spent, || redis.total_hits() + lost());
    let lost = lost();
    fleet.stop();
    assert_eq!(redis.total_hits() + lost, spent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_memory_can_decide_on_does_not_go_along_with_one_that_asks() {
    let redis = RedisServer::start();
    let (mut fleet, mut clients) = settled(1, &redis.url(), &[]).await;
    let client = &mut clients[0];
    // Heard of, and quiet since.
    hits(client, "far=shared", 1).await;
    until_equal(PATIENCE, 1, || redis.total_hits());
    tokio::time::sleep(QUIET).await;
    for user in 0..10 {
        let both = ask(["far=shared".to_owned(), format!("closed={user}")].iter().map(|text| descriptor(text)));
        assert_eq!(answer(client, both).await.overall_code, 1, "{user}");
    }
    assert_eq!(fleet.metric("tidegate_regional_decisions_total{by=\"origin\"}"), 11.0, "each has asked");
    until_equal(PATIENCE, 10, || fleet.held_hits());
    assert_eq!(
        charged(&redis).iter().map(|cell| cell.hits).collect::<Vec<_>>(),
        [1; 11],
        "Redis heard of the users only"
    );
    fleet.stop();
    assert_eq!(redis.total_hits(), 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_has_charged_for_a_request_that_memory_denies_is_used_up_by_the_next() {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let (mut fleet, clients) = settled(1, &proxy.url(), &[]).await;
    let [mut one, mut other] = [clients[0].clone(), clients[0].clone()];
    let both = || ask(["ten=shared", "closed=x"].map(descriptor));
    hits(&mut other, "ten=shared", 1).await;
    proxy.delay(Duration::from_secs(2));
    let denied = tokio::spawn(async move { answer(&mut one, both()).await.overall_code });
    until(PATIENCE, "Redis has charged it", || (redis.total_hits() == 2).then_some(()));
    // While the answer is under way, somebody spends all of the other limit.
    answer(&mut other, ask([descriptor_for("ten=shared", 9)])).await;
    assert_eq!(denied.await.expect("an answer"), 2, "memory denies it with the answer of Redis");
    proxy.forward();
    until_equal(PATIENCE, 11, || redis.total_hits());
    let left = |response: tidegate::proto::envoy::service::ratelimit::v3::RateLimitResponse| {
        (response.overall_code, response.statuses[0].limit_remaining)
    };
    assert_eq!(left(answer(&mut other, ask_one("closed=x")).await), (1, 99));
    until_equal(PATIENCE, 11, || redis.total_hits());
    assert_eq!(left(answer(&mut other, ask_one("closed=x")).await), (1, 98));
    fleet.assert_counted_once(12, || redis.total_hits());
}
