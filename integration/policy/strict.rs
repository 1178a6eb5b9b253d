//! `scope: strict`: one owner decides for everybody, exactly, while processes die, when the owner itself is replaced, and
//! never later than the caller waits.

use std::time::{Duration, Instant};

use prost::Message;

use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::frames::{Connection, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, call_headers, header};
use crate::support::harness::{Client, PATIENCE, Service, ask_one, until, until_equal};
use crate::support::load::{Load, Traffic};
use crate::support::promise::{Promise, print};
use crate::support::redis::{RedisServer, replica_of};
use crate::support::verdict::{TELLING, Verdict, until_layer};

const LIMIT: u64 = 2000;
const SMALL: u64 = 100;
const RULES: &str = "
domain: d
descriptors:
  - {key: many, rate_limit: {requests_per_unit: 2000, unit: year, scope: strict, on_outage: deny}}
  - {key: few, rate_limit: {requests_per_unit: 100, unit: year, scope: strict, on_outage: deny}}
";

const REGIONS: [&str; 3] = ["a", "b", "c"];

/// Processes in three regions, with a Redis for each region and one owner for all.
struct Strict {
    regions: Vec<(RedisServer, Fleet)>,
}

impl Strict {
    fn start(owner_url: &str, processes: usize, env: &[(&str, &str)]) -> Strict {
        let start = |region: &str| {
            let redis = RedisServer::start();
            let own = [("REGION", region), ("TIDEGATE_REGIONS", "a,b,c"), ("STRICT_REDIS_URL", owner_url)];
            let env: Vec<(&str, &str)> = own.into_iter().chain(TELLING).chain(env.iter().copied()).collect();
            let fleet = Fleet::start(processes, RULES, &redis.url(), &env);
            (redis, fleet)
        };
        let regions = REGIONS.map(start).into();
        let strict = Strict { regions };
        until_layer(strict.services(), "strict", true);
        strict
    }

    fn services(&self) -> impl Iterator<Item = &Service> + Clone {
        self.regions.iter().flat_map(|(_, fleet)| &fleet.services)
    }

    /// One process dies, and another one takes its place.
    fn replace(&mut self, region: usize, load: &Load, rate: u64) {
        let fleet = &mut self.regions[region].1;
        fleet.services[0].process.signal("KILL");
        // What can be admitted is not to be used up by then, however long a start takes.
        load.set_rate(0);
        fleet.services[0] = fleet.another();
        load.add(fleet.services[0].grpc);
        load.set_rate(rate);
    }
}

#[test]
fn nine_processes_that_die_and_come_back_admit_the_limit_and_not_one_more() {
    let owner = RedisServer::start();
    // Nobody gives up on a busy machine: what the owner has counted is what was admitted.
    let mut strict = Strict::start(&owner.url(), 3, &[("TIDEGATE_STRICT_TIMEOUT", "5s")]);
    let addresses: Vec<_> = strict.services().map(|service| service.grpc).collect();
    // So slow that the limit is not spent before the last is replaced, whatever holds this thread up.
    const RATE: u64 = 250;
    const RUSH: u64 = 6000;
    let load = Load::start(&addresses, Traffic::on("many=x", RATE));
    for region in 0..REGIONS.len() {
        load.goes_on(250);
        strict.replace(region, &load, RATE);
    }
    // Those who were open at a kill have heard of it by then.
    load.goes_on(100);
    let spent_when_killed = load.so_far().admitted();
    load.set_rate(RUSH);
    load.goes_on(6 * LIMIT);
    // By now there is nothing left, and who starts now does not know.
    strict.replace(0, &load, RUSH);
    load.goes_on(4 * LIMIT);
    let ledger = load.finish();
    let (admitted, lost) = (ledger.admitted(), ledger.failed());
    eprintln!("{} asked, {admitted} admitted, {lost} without an answer, {:.0}/s", ledger.entries.len(), ledger.pace());
    assert!(ledger.entries.len() as u64 >= 10 * LIMIT, "ten times the load");
    assert!((100..LIMIT).contains(&spent_when_killed), "{spent_when_killed} admitted when the last one was killed");
    assert!(admitted <= LIMIT, "{admitted} admitted");
    // The owner may have counted those that were open at a kill.
    assert!(admitted + lost >= LIMIT, "{admitted} admitted, {lost} without an answer");
    let replaced = ledger.only(|entry| entry.process >= addresses.len());
    assert!(replaced.admitted() > 0, "who came later takes part");
}

/// An owner with a replica that can be made to lag, and a name that follows whoever is the master.
struct Owner {
    master: RedisServer,
    link: CuttingProxy,
    replica: RedisServer,
    name: CuttingProxy,
}

impl Owner {
    fn start() -> Owner {
        let master = RedisServer::start();
        let link = CuttingProxy::before(master.address());
        let replica = replica_of(link.address());
        let name = CuttingProxy::before(master.address());
        Owner { master, link, replica, name }
    }

    /// The replica has all that the master has.
    fn until_carried(&self) {
        until(PATIENCE, "the replica has it all", || {
            let written = self.master.info("replication", "master_repl_offset")?;
            (self.replica.info("replication", "slave_repl_offset")? == written).then_some(())
        });
    }

    /// The master dies, and the replica takes its place as it is.
    fn fail_over(&mut self) {
        self.master.kill();
        let _: String = self.replica.query(&["REPLICAOF", "NO", "ONE"]);
        self.name.retarget(self.replica.address());
    }
}

/// Asks so often, and says how many were admitted. Denials are for this reason.
async fn admitted(client: &mut Client, requests: u64, denied_as: &str) -> u64 {
    let mut admitted = 0;
    for _ in 0..requests {
        let verdict = Verdict::on(client, "few=x").await;
        assert!(verdict.is_ok || verdict.reason == denied_as, "{verdict:?}");
        assert!(!verdict.is_ok || verdict.reason == "within_limit", "{verdict:?}");
        admitted += u64::from(verdict.is_ok);
    }
    admitted
}

/// Waits until the owner decides what a process asks, on a key that does not matter. That it is gone, or back, is noticed by
/// those who ask.
async fn until_decided(service: &Service) {
    let mut client = service.client().await;
    let until = Instant::now() + PATIENCE;
    let mut in_a_row = 0;
    while in_a_row < 3 {
        assert!(Instant::now() < until, "the owner is not asked");
        let is_decided = Verdict::on(&mut client, "few=other").await.by == "owner";
        in_a_row = if is_decided { in_a_row + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until_layer([service], "strict", true);
}

/// Waits until a process has an owner again, and asks for more than is left.
async fn rest(service: &Service) -> u64 {
    until_decided(service).await;
    let mut client = service.client().await;
    admitted(&mut client, SMALL + 5, "over_limit").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_at_most_that_is_forgotten_which_was_not_replicated() {
    for dies_too in [false, true] {
        let mut owner = Owner::start();
        let mut strict = Strict::start(&owner.name.url(), 1, &[("TIDEGATE_STRICT_TIMEOUT", "2s")]);
        let mut clients = Vec::new();
        for service in strict.services() {
            clients.push(service.client().await);
        }
        let mut total = 0;
        for client in &mut clients {
            total += admitted(client, 10, "none").await;
        }
        owner.until_carried();
        owner.link.freeze();
        let lagging = admitted(&mut clients[0], 40, "none").await;
        assert_eq!((total, lagging), (30, 40));
        if dies_too {
            // Nobody is left who could tell.
            strict.regions[0].1.services.clear();
        }
        owner.fail_over();
        for service in strict.services() {
            total += rest(service).await;
        }
        eprintln!("{} admitted, {lagging} of them not replicated, they are forgotten: {dies_too}", total + lagging);
        assert!((SMALL..=SMALL + lagging).contains(&(total + lagging)), "{total} and {lagging}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_replica_that_must_acknowledge_a_failover_forgets_nothing() {
    let mut owner = Owner::start();
    let settings = [("TIDEGATE_STRICT_TIMEOUT", "1s"), ("TIDEGATE_STRICT_REPLICAS", "1")];
    let strict = Strict::start(&owner.name.url(), 1, &settings);
    owner.until_carried();
    let mut total = 0;
    for service in strict.services() {
        // The connections on which replicas are waited for are made beside the others.
        until_decided(service).await;
        total += admitted(&mut service.client().await, 10, "none").await;
    }
    assert_eq!(total, 30);
    owner.link.freeze();
    let mut client = strict.services().next().unwrap().client().await;
    assert_eq!(admitted(&mut client, 10, "outage_deny").await, 0, "nobody but the master knows of them");
    // As slow as it is, a replica that follows is enough.
    owner.link.forward();
    for service in strict.services() {
        until_decided(service).await;
    }
    let healed = admitted(&mut client, 10, "none").await;
    assert_eq!(healed, 10);
    total += healed;
    owner.link.freeze();
    assert_eq!(admitted(&mut client, 10, "outage_deny").await, 0);
    owner.fail_over();
    // The new master has nobody who could acknowledge, until it has.
    assert_eq!(admitted(&mut client, 3, "outage_deny").await, 0);
    let _second = replica_of(owner.replica.address());
    for service in strict.services() {
        total += rest(service).await;
    }
    eprintln!("{total} admitted");
    // What was refused may have been counted by the first master, and a process may have told the second.
    assert!((SMALL - 23..=SMALL).contains(&total), "{total} admitted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_stands_still_is_an_outage_for_who_does_not_wait_long() {
    print(&hasty_callers().await);
}

/// Callers that wait for less than the owner may take.
pub async fn hasty_callers() -> Vec<Promise> {
    const CALLER: Duration = Duration::from_millis(20);
    const ROUNDS: usize = 6;
    let owner = RedisServer::start();
    let proxy = CuttingProxy::before(owner.address());
    // Far more than the callers have.
    let strict = Strict::start(&proxy.url(), 1, &[("TIDEGATE_STRICT_TIMEOUT", PATIENT.1)]);
    let service = strict.services().next().unwrap();
    let mut client = service.client().await;
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        assert!(Verdict::on(&mut client, &format!("few={round}")).await.is_ok);
        proxy.freeze();
        let mut request = tonic::Request::new(ask_one(&format!("few={round}")));
        request.set_timeout(CALLER);
        let sent = Instant::now();
        // Who is late gets an error from its own end of the call.
        match Verdict::to(&mut client, request).await {
            Ok(verdict) => {
                assert_eq!((verdict.is_ok, verdict.reason.as_str()), (false, "outage_deny"), "{verdict:?}");
                times.push(sent.elapsed());
            }
            Err(error) => eprintln!("{:?}: {error}", sent.elapsed()),
        }
        proxy.forward();
        until_layer([service], "strict", true);
    }
    eprintln!("{times:?}");
    let answered = times.len() as f64 / ROUNDS as f64;
    let waited_s = times.iter().max().map_or(0.0, Duration::as_secs_f64);
    vec![
        Promise::at_least("answered in time for a caller that waits for 20 ms, of all", 0.5, answered),
        Promise::at_least(
            "the longest that the owner was waited for, in seconds",
            CALLER.as_secs_f64() / 2.0,
            waited_s,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_waiting_for_the_owner_is_counted() {
    const CALLERS: usize = 5;
    let owner = RedisServer::start();
    let proxy = CuttingProxy::before(owner.address());
    let strict = Strict::start(&proxy.url(), 1, &[("TIDEGATE_STRICT_TIMEOUT", "5s")]);
    let service = strict.services().next().unwrap();
    let client = service.client().await;
    assert!(Verdict::on(&mut client.clone(), "few=first").await.is_ok);
    proxy.freeze();
    for n in 0..CALLERS {
        let (mut client, entries) = (client.clone(), format!("few={n}"));
        let call = tokio::spawn(async move { Verdict::on(&mut client, &entries).await });
        until(PATIENCE, "it waits", || (service.metric("tidegate_in_flight")? >= 1.0).then_some(()));
        call.abort();
        until(PATIENCE, "it waits no longer", || (service.metric("tidegate_in_flight")? == 0.0).then_some(()));
    }
    let cancelled = "tidegate_errors_total{reason=\"cancelled\"}";
    until_equal(PATIENCE, Some(CALLERS as f64), || service.metric(cancelled));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_far_away_decides_if_it_is_given_the_time() {
    let owner = RedisServer::start();
    let proxy = CuttingProxy::before(owner.address());
    let (far, further) = (Duration::from_millis(100), Duration::from_secs(10));
    for (timeout, away, is_decided) in [("5s", far, true), ("80ms", further, false)] {
        proxy.forward();
        let strict = Strict::start(&proxy.url(), 1, &[("TIDEGATE_STRICT_TIMEOUT", timeout)]);
        let service = strict.services().next().unwrap();
        let mut client = service.client().await;
        let key = format!("few={timeout}");
        Verdict::on(&mut client, &key).await;
        proxy.delay(away);
        let sent = Instant::now();
        let verdict = Verdict::on(&mut client, &key).await;
        let (reason, by) = if is_decided { ("within_limit", "owner") } else { ("outage_deny", "outage") };
        assert_eq!((verdict.reason.as_str(), verdict.by.as_str()), (reason, by), "{timeout}: {verdict:?}");
        assert!(!is_decided || sent.elapsed() >= away, "{timeout}: {:?}", sent.elapsed());
        let waited = service.metric("tidegate_strict_duration_seconds_sum").expect("it is measured");
        assert!(waited >= 0.07, "{timeout}: {waited} s");
    }
}

/// Every exchange takes longer than a heartbeat is waited for at an origin, from the first on: making a connection takes several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_was_always_far_away_is_usable() {
    let owner = RedisServer::with_password("open-sesame");
    let proxy = CuttingProxy::before(owner.address());
    proxy.delay(Duration::from_millis(600));
    let url = format!("redis://:open-sesame@{}", proxy.url());
    let strict = Strict::start(&url, 1, &[("TIDEGATE_STRICT_TIMEOUT", "5s")]);
    let service = strict.services().next().unwrap();
    let mut client = service.client().await;
    until(PATIENCE, "it is connected", || (service.metric("tidegate_owner_connected")? == 1.0).then_some(()));
    until_layer(strict.services(), "strict", true);
    let verdict = Verdict::on(&mut client, "few=far").await;
    assert_eq!((verdict.reason.as_str(), verdict.by.as_str()), ("within_limit", "owner"), "{verdict:?}");
}

#[test]
fn a_message_that_comes_after_its_headers_is_decided_by_its_policy_before_its_call_ends() {
    let owner = RedisServer::start();
    let proxy = CuttingProxy::before(owner.address());
    let patient = [("TIDEGATE_STRICT_TIMEOUT", "10s"), ("TIDEGATE_ORIGIN_OUTAGE_AFTER", "1m")];
    let strict = Strict::start(&proxy.url(), 1, &patient);
    let service = strict.services().next().unwrap();
    proxy.freeze();
    let mut connection = Connection::greeted(service.grpc);
    let headers = [call_headers(), header("grpc-timeout", "3S")].concat();
    assert!(connection.send(&Frame::new(HEADERS, END_HEADERS, 1, headers).bytes()));
    // What comes after it on the connection has been read, so the headers have been, too.
    assert!(connection.send(&Frame::ping().bytes()));
    connection.read_to(PING).expect("a pong");
    // So far the message lags behind.
    std::thread::sleep(Duration::from_millis(100));
    assert!(connection.send(&Frame::message(1, &ask_one("few=late").encode_to_vec()).bytes()));
    let head = connection.read_to(HEADERS).expect("an answer");
    assert!(head.flags & END_STREAM == 0, "an answer, not an error: {head:?}");
    let answer = connection.read_to(DATA).expect("a message");
    assert_eq!(answer.payload[5..7], [8, 2], "denied by on_outage: the overall code is OVER_LIMIT");
}
