//! How exactly one limit is kept under ten times the load, and how little is said for it: figures only, for minutes.

use std::time::Duration;

use crate::region::accuracy::{RULES, exactness};
use crate::support::cutting_proxy::CuttingProxy;
use crate::support::fleet::{Fleet, PATIENT};
use crate::support::ledger::wall_us;
use crate::support::load::{Load, Traffic};
use crate::support::promise::Promise;
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;
use crate::support::regions::Regions;

/// The pace at which commands are counted.
const PACE: f64 = 10_000.0;

/// Hits of `told` are never held back.
const TOLD_RULES: &str = "
domain: d
descriptors:
  - {key: far, rate_limit: {requests_per_unit: 1000000000, unit: hour}}
  - {key: told, rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: gcra}}
";

/// Three fleets at once, because each needs little of the machine, and two windows take a while.
pub fn one_limit() -> Vec<Promise> {
    // Wherever in a window of 10 s it starts, it sees a whole one and the beginning of the next.
    const TWO_WINDOWS: Duration = Duration::from_secs(21);
    let redis: [RedisServer; 3] = std::array::from_fn(|_| RedisServer::start());
    let fleet = |count, redis: &RedisServer| Fleet::together(count, RULES, &redis.url(), &[PATIENT]);
    let (five, nine, below) = (fleet(5, &redis[0]), fleet(9, &redis[1]), fleet(9, &redis[2]));
    // Processes that have just come ask about every hit.
    below.until_settled();
    let loads = [
        five.load(Traffic { seed: 5, ..Traffic::on("a=x", 1000) }),
        nine.load(Traffic { seed: 9, ..Traffic::on("a=x", 1000) }),
        below.load(Traffic { seed: 90, ..Traffic::on("a=x", 90) }),
    ];
    std::thread::sleep(TWO_WINDOWS);
    let [by_five, by_nine, by_all_below] = loads.map(Load::finish);
    assert_eq!(by_all_below.failed(), 0);
    let denied = by_all_below.denied() as f64;
    let mut promises = exactness(&by_five, 1.01, "5 processes");
    promises.extend(exactness(&by_nine, 1.01, "9 processes"));
    promises.push(Promise::at_most("requests that are denied at 0.9 of the limit", 0.0, denied));
    promises.push(Promise::at_most("the share that asks Redis at 0.9 of the limit", 0.02, asked_share(&below)));
    promises
}

/// The part of all decisions for which Redis was asked.
fn asked_share(fleet: &Fleet) -> f64 {
    let by = |who: &str| fleet.metric(&format!("tidegate_regional_decisions_total{{by=\"{who}\"}}"));
    let all = ["origin", "memory", "memory_old", "memory_cold", "outage"].map(by);
    all[0] / all.iter().sum::<f64>()
}

/// Far from the limit, a hundred requests make less than one command.
pub fn commands_of_one_key() -> Vec<Promise> {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let fleet = Fleet::together(2, RULES, &proxy.url(), &[PATIENT]);
    // Processes that have just come ask about every hit.
    fleet.until_settled();
    let before = proxy.commands();
    let ledger = fleet.run(Traffic::on("far=x", PACE as u64), Duration::from_secs(3));
    let commands = (proxy.commands() - before) as f64;
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    fleet.until_accounted(ledger.admitted_hits(), || redis.total_hits());
    // A machine that gives less has the same number of flushes for fewer requests.
    let share = commands / ledger.admitted() as f64 * (ledger.pace() / PACE).min(1.0);
    vec![Promise::at_most("commands for a request at 10,000 a second, far from the limit", 0.01, share)]
}

/// Spread over a thousand keys, a message takes many of them along, and no request makes more than one cell of work.
pub fn commands_of_a_thousand_keys() -> Vec<Promise> {
    let redis = RedisServer::start();
    let proxy = CuttingProxy::before(redis.address());
    let fleet = Fleet::together(2, RULES, &proxy.url(), &[PATIENT]);
    // Every process reads every key once.
    let first = fleet.run(Traffic::over("far", 1000, PACE as u64), Duration::from_secs(2));
    fleet.until_accounted(first.admitted_hits(), || redis.total_hits());
    let cells = || fleet.metric("tidegate_regional_replayed_cells_total");
    let (before, cells_before) = (proxy.commands(), cells());
    let ledger = fleet.run(Traffic::over("far", 1000, PACE as u64), Duration::from_secs(3));
    assert_eq!((ledger.failed(), ledger.denied()), (0, 0));
    let requests = ledger.admitted() as f64;
    let commands = (proxy.commands() - before) as f64 / requests * (ledger.pace() / PACE).min(1.0);
    vec![
        Promise::at_most("commands for a request, over a thousand keys", 0.05, commands),
        Promise::at_most("cells that are told for a request", 1.02, (cells() - cells_before) / requests),
    ]
}

/// In a Cluster a message is for one slot, so keys of a slot wait for each other.
pub fn commands_of_a_thousand_keys_in_a_cluster() -> Vec<Promise> {
    /// All that a process sends: checks, replays, heartbeats and probes, and what its client asks about the Cluster.
    const COMMANDS: &[&str] = &["evalsha", "eval", "info", "ping", "asking", "client|setinfo", "cluster|slots", "wait"];
    let cluster = RedisCluster::start();
    let fleet = Fleet::together(2, TOLD_RULES, &cluster.url(), &[PATIENT, ("REDIS_TYPE", "cluster")]);
    let of_node = |node: &RedisServer| COMMANDS.iter().map(|command| node.calls_of(command)).sum::<u64>();
    let served = || cluster.nodes.iter().map(of_node).sum::<u64>();
    let cells = || fleet.metric("tidegate_regional_replayed_cells_total");
    let mut promises = Vec::new();
    for (key, of) in [("far", "windows"), ("told", "buckets, where it hears of every hit")] {
        // Every process reads every key once.
        let first = fleet.run(Traffic::over(key, 1000, PACE as u64), Duration::from_secs(3));
        let (before, cells_before) = (served(), cells());
        let ledger = fleet.run(Traffic::over(key, 1000, PACE as u64), Duration::from_secs(10));
        assert_eq!((first.failed(), ledger.failed(), ledger.denied()), (0, 0, 0));
        let requests = ledger.admitted() as f64;
        let commands = (served() - before) as f64 / requests * (ledger.pace() / PACE).min(1.0);
        let told = (cells() - cells_before) / requests;
        promises.push(Promise::at_most(format!("commands for a request on a thousand {of}"), 0.05, commands));
        promises.push(Promise::at_most(format!("cells told for a request on a thousand {of}"), 1.02, told));
    }
    promises
}

/// Ten times the load, evenly over three regions of two processes: what they hear of each other late is what they admit
/// too much.
pub fn three_regions() -> Vec<Promise> {
    const LIMIT: u64 = 600;
    const WINDOW: Duration = Duration::from_secs(60);
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
    vec![
        Promise::at_most("three regions in the first window, as a part of the limit", 1.20, begun),
        Promise::at_least("three regions in the first window, as a part of the limit", 0.95, begun),
        Promise::at_most("three regions in the next window, as a part of the limit", 1.10, later),
        Promise::at_least("three regions in the next window, as a part of the limit", 0.95, later),
    ]
}
