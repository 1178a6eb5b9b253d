//! What regions tell each other: counts and not verdicts, only those that matter, each once.

use std::time::{Duration, Instant};

use crate::global::voice::Eavesdropper;
use crate::support::fleet::{Fleet, until_settled};
use crate::support::harness::{PATIENCE, Service, ask, descriptor, refund, run, tidegate, until, until_equal};
use crate::support::mariadb::MariaDbServer;
use crate::support::redis::RedisServer;
use crate::support::regions::{HEARD, Regions, cost, migrate, said, settings, until_counted};

const RULES: &str = "
domain: d
descriptors:
  - {key: twenty, rate_limit: {requests_per_unit: 20, unit: year}}
  - {key: hundred, rate_limit: {requests_per_unit: 100, unit: year}}
  - {key: one, rate_limit: {requests_per_unit: 1, unit: year}}
  - {key: fixed, rate_limit: {requests_per_unit: 20, unit: year, algorithm: fixed_window}}
  - {key: here, rate_limit: {requests_per_unit: 20, unit: year, scope: regional}}
  - {key: short, rate_limit: {requests_per_unit: 20, window: 9s}}
  - {key: asked, rate_limit: {requests_per_unit: 100, unit: year, slack: 0}}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_regions_used_is_denied_in_the_third() {
    let regions = Regions::start(&["a", "b", "c"], 2, RULES);
    for key in ["twenty=x", "fixed=x", "here=x", "short=x"] {
        assert!(regions.said(0, cost(key, 12)).await.starts_with("OK"));
        assert!(regions.said(1, cost(key, 11)).await.starts_with("OK"));
    }
    for process in [0, 1] {
        regions.until_counted(2, process, "twenty=x", 23);
        regions.until_counted(2, process, "fixed=x", 23);
        let service = regions.service(2, process);
        assert!(said(service, cost("twenty=x", 1)).await.starts_with("OVER"));
        assert!(said(service, cost("fixed=x", 1)).await.starts_with("OVER"));
    }
    // What is regional, or too short to be heard of in time, stays where it is.
    assert_eq!(regions.said(2, cost("here=x", 1)).await, "OK: OK 19");
    assert_eq!(regions.said(2, cost("short=x", 1)).await, "OK: OK 19");
    let mut expected = vec!["a x 12 0"; 2];
    expected.extend(vec!["b x 11 0"; 2]);
    assert_eq!(regions.rows(), expected, "the third region has nothing to tell");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_matters_is_published_and_once() {
    let regions = Regions::start(&["a", "b"], 2, RULES);
    assert!(regions.said(0, cost("hundred=quiet", 1)).await.starts_with("OK"), "below the presence mark");
    assert!(regions.said(0, cost("hundred=large", 101)).await.starts_with("OVER"));
    // Denied by another descriptor: nothing of it counts, here or elsewhere.
    assert!(regions.said(0, cost("one=full", 1)).await.starts_with("OK"));
    let both = || {
        let mut request = ask([descriptor("one=full"), descriptor("hundred=beside")]);
        request.hits_addend = 60;
        request
    };
    assert_eq!(regions.said(0, both()).await, "OVER: OVER 0, OK 100");
    assert!(regions.said(0, cost("hundred=loud", 60)).await.starts_with("OK"));
    regions.until_counted(1, 0, "hundred=loud", 60);
    regions.until_counted(1, 1, "hundred=loud", 60);
    let expected = ["a full 1 0", "a loud 60 0"];
    assert_eq!(regions.rows(), expected);

    // Nothing happens: nothing is written, not even again, and an imported count is nobody's own.
    let all = || regions.mariadb.sql("SELECT * FROM ratelimit_window_counts");
    let written = || {
        regions
            .mariadb
            .number("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_INSERT'")
    };
    let before = (all(), written());
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!((all(), written()), before);
    // The other region's own hits are told with the first that matters, because the key is contested.
    assert!(regions.said(1, cost("hundred=loud", 1)).await.starts_with("OK"));
    until_equal(HEARD, vec!["a full 1 0".to_owned(), "a loud 60 0".into(), "b loud 1 0".into()], || regions.rows());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_reach_other_regions() {
    let regions = Regions::start(&["a", "b"], 2, RULES);
    assert!(regions.said(0, cost("hundred=x", 90)).await.starts_with("OK"));
    regions.until_counted(1, 0, "hundred=x", 90);
    assert!(said(regions.service(0, 1), ask([refund("hundred=x", 50)])).await.starts_with("OK"));
    regions.until_counted(1, 0, "hundred=x", 40);
    assert!(regions.said(1, cost("hundred=x", 60)).await.starts_with("OK"));
    // Where the refund was asked for, and where nobody has heard of it from Redis yet.
    regions.until_counted(0, 1, "hundred=x", 100);
    assert_eq!(regions.rows(), ["a x 90 50", "b x 60 0"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identifiers_that_look_alike_stay_apart() {
    let regions = Regions::start(&["a", "b"], 1, RULES);
    let long = "x".repeat(300);
    let values = ["User", "user", "user ", &long];
    for (number, value) in values.iter().enumerate() {
        let hits = 10 + number as u32;
        assert!(regions.said(0, cost(&format!("twenty={value}"), hits)).await.starts_with("OK"));
    }
    for (number, value) in values.iter().enumerate() {
        regions.until_counted(1, 0, &format!("twenty={value}"), 10 + number as u64);
    }
    assert_eq!(regions.mariadb.number("SELECT COUNT(*) FROM ratelimit_window_counts"), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sensitive_values_are_shared_without_being_told() {
    const SECRET_RULES: &str = "
domain: d
descriptors:
  - {key: token, sensitive: true, rate_limit: {requests_per_unit: 20, unit: year}}
";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef").unwrap();
    let secret = ("TIDEGATE_SECRET_FILE", file.to_str().unwrap());
    let regions = Regions::with(&["a", "b"], 2, SECRET_RULES, &[secret]);
    let heard = regions.regions.iter().map(|region| Eavesdropper::start(&region.redis)).collect::<Vec<_>>();
    // One is here before the other region tells of it, the other comes after.
    assert!(regions.said(1, cost("token=hunter2", 1)).await.starts_with("OK"));
    assert!(regions.said(0, cost("token=hunter2", 19)).await.starts_with("OK"));
    assert!(regions.said(0, cost("token=correcthorse", 20)).await.starts_with("OK"));
    regions.until_counted(1, 0, "token=hunter2", 20);
    std::thread::sleep(Duration::from_secs(3));
    let service = regions.service(1, 0);
    // The first look at a key that is new here may come before it was compared with what others told.
    until(HEARD, "it is denied", || {
        let shown = run(&mut tidegate(&[
            "call",
            "--addr",
            &service.grpc.to_string(),
            "--domain",
            "d",
            "--hits",
            "1",
            "token=correcthorse",
        ]));
        shown.stdout.contains("OVER_LIMIT").then_some(())
    });
    // The other process hears of both through Redis, by their digests.
    for value in ["token=hunter2", "token=correcthorse"] {
        let deadline = Instant::now() + HEARD;
        while !said(regions.service(1, 1), cost(value, 1)).await.starts_with("OVER") {
            assert!(Instant::now() < deadline, "{value} is not denied");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    for (region, eavesdropper) in regions.regions.iter().zip(heard) {
        let said = eavesdropper.end();
        assert!(said.contains("token"), "rules are named");
        for value in ["hunter2", "correcthorse"] {
            assert!(!said.contains(value) && !region.redis.grep(value.as_bytes()), "{value} was told to Redis");
        }
    }
    let found = |value: &str| {
        let all = "CONCAT(workspace_id, namespace, identifier, region)";
        regions
            .mariadb
            .number(&format!("SELECT COUNT(*) FROM ratelimit_window_counts WHERE LOCATE('{value}', {all}) > 0"))
    };
    assert!(found("token") >= 3, "the rules are named");
    assert_eq!((found("hunter2"), found("correcthorse")), (0, 0));
}

/// A region with many keys, and one that has no room for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_whose_counts_found_no_room_get_them_when_they_are_asked_for() {
    const KEYS: usize = 100;
    let mariadb = MariaDbServer::start();
    migrate(&mariadb);
    let start = |name: &str, keys_max: &str| {
        let env = settings(&mariadb, name, "a,b");
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Service::start_with(RULES, &["--keys-max", keys_max], &env)
    };
    // The small one keeps 50 keys that nobody there has asked for, and has room for all that are asked for here.
    let (large, small) = (start("a", "1000"), start("b", "200"));
    let descriptors: Vec<String> = (0..KEYS).map(|key| format!("hundred=k{key}")).collect();
    for descriptor in &descriptors {
        assert!(said(&large, cost(descriptor, 90)).await.starts_with("OK"));
    }
    let left_out = "tidegate_global_ignored_rows_total{reason=\"no_room\"}";
    until(HEARD, "some find no room", || small.metric(left_out).filter(|count| *count >= 50.0));
    until_equal(HEARD, KEYS as u64, || mariadb.number("SELECT COUNT(*) FROM ratelimit_window_counts"));
    // Rows are read again for some seconds after they have changed; from then on, imports do not tell of them.
    until_equal(HEARD, Some(0.0), || small.metric("tidegate_global_last_import_rows"));
    // The first answer may come before it is known what others counted.
    for descriptor in &descriptors {
        assert!(said(&small, cost(descriptor, 1)).await.starts_with("OK"));
    }
    for descriptor in &descriptors {
        until_counted(&small, descriptor, 91);
        assert!(said(&small, cost(descriptor, 10)).await.starts_with("OVER"));
    }
    assert!(small.metric("tidegate_global_sought_keys_total").unwrap() >= 50.0);
    assert_eq!(large.metric("tidegate_global_sought_keys_total"), Some(0.0), "nothing is missing there");
}

/// Started without Redis: the region is this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_of_one_process_needs_no_redis() {
    let mariadb = MariaDbServer::start();
    migrate(&mariadb);
    let start = |name: &str| {
        let env = settings(&mariadb, name, "a,b");
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        Service::start_with(RULES, &[], &env)
    };
    let (a, b) = (start("a"), start("b"));
    assert!(said(&a, cost("twenty=x", 15)).await.starts_with("OK"));
    until_counted(&b, "twenty=x", 15);
    assert!(said(&b, ask([refund("twenty=x", 5)])).await.starts_with("OK"));
    assert_eq!(said(&b, cost("twenty=x", 6)).await, "OVER: OVER 0", "what others counted is theirs to give back");
    assert!(said(&a, ask([refund("twenty=x", 5)])).await.starts_with("OK"));
    until_counted(&b, "twenty=x", 10);
    assert!(said(&b, cost("twenty=x", 6)).await.starts_with("OK"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_lost_its_redis_is_held_by_its_own_row() {
    let mut regions = Regions::start(&["a", "b"], 1, RULES);
    assert!(regions.said(0, cost("hundred=x", 90)).await.starts_with("OK"));
    until_equal(HEARD, vec!["a x 90 0".to_owned()], || regions.rows());
    regions.regions[0].redis.kill();
    // It has never seen the key, and can't ask.
    let newcomer = regions.regions[0].fleet.another();
    until_counted(&newcomer, "hundred=x", 90);
    assert!(said(&newcomer, cost("hundred=x", 11)).await.starts_with("OVER"));
    assert!(said(&newcomer, cost("hundred=x", 10)).await.starts_with("OK"));
    let metric = "tidegate_regional_decisions_total{by=\"origin\"}";
    assert_eq!(newcomer.metric(metric), Some(0.0), "the row makes no key fresh");
    // Redis comes back with nothing, while the row is known: each tells its own, and the row is nobody's.
    let redis = &mut regions.regions[0].redis;
    redis.restart_empty();
    until_equal(HEARD, 100, || redis.total_hits());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(redis.total_hits(), 100);
    until_equal(HEARD, vec!["a x 100 0".to_owned()], || regions.rows());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_known_from_the_own_row_only_is_no_news_when_redis_is_back() {
    let regions = Regions::start(&["a", "b"], 1, RULES);
    for key in ["hundred=x", "asked=x"] {
        assert!(regions.said(0, cost(key, 50)).await.starts_with("OK"));
    }
    until_equal(HEARD, vec!["a x 50 0".to_owned(); 2], || regions.rows());
    regions.regions[0].redis.stop();
    let newcomer = regions.regions[0].fleet.another();
    until_counted(&newcomer, "hundred=x", 50);
    until_counted(&newcomer, "asked=x", 50);
    // Nobody asks for it meanwhile: a key that was denied is read in the background, which makes it fresh too.
    regions.regions[0].redis.cont();
    let open = "tidegate_origin_breaker_open{breaker=\"checks\"}";
    let live = "tidegate_regional_live_processes";
    until(PATIENCE, "Redis has answered, and is asked again", || {
        (newcomer.metric(live) == Some(2.0) && newcomer.metric(open) == Some(0.0)).then_some(())
    });
    until_settled(&newcomer, "origin");
    let decided = |by: &str| newcomer.metric(&format!("tidegate_regional_decisions_total{{by=\"{by}\"}}"));
    let asked = || decided("origin");
    assert_eq!((asked(), decided("memory_cold")), (Some(0.0), Some(0.0)));
    // The row says how much it is at least, not that nothing has happened since: a process that has come since then asks, and
    // its answer is news for those after it.
    assert!(said(&newcomer, cost("hundred=x", 1)).await.starts_with("OK"));
    assert_eq!((asked(), decided("memory_cold")), (Some(1.0), Some(0.0)));
    assert!(said(&newcomer, cost("hundred=x", 1)).await.starts_with("OK"));
    assert_eq!((asked(), decided("memory_cold")), (Some(1.0), Some(0.0)));
    // A limit that is closed asks, whatever the row says.
    for count in 1..=3 {
        assert!(said(&newcomer, cost("asked=x", 1)).await.starts_with("OK"));
        assert_eq!(asked(), Some(1.0 + f64::from(count)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_stop_publishes_what_is_left() {
    let regions = Regions::start(&["a", "b"], 1, RULES);
    let service = regions.service(0, 0);
    assert!(said(service, cost("hundred=x", 50)).await.starts_with("OK"));
    until_equal(HEARD, vec!["a x 50 0".to_owned()], || regions.rows());
    assert!(said(service, cost("hundred=x", 7)).await.starts_with("OK"));
    service.process.signal("TERM");
    until_equal(HEARD, vec!["a x 57 0".to_owned()], || regions.rows());
}

#[test]
fn a_start_says_what_to_run_and_migrates_when_told_to() {
    let mariadb = MariaDbServer::start();
    let redis = RedisServer::start();
    let env = settings(&mariadb, "a", "a,b");
    let mut env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut fleet = Fleet::start(1, RULES, &redis.url(), &env);
    let process = &mut fleet.services[0].process;
    let before = process.said.iter().find(|line| line.contains("run `tidegate migrate`")).cloned();
    let line = before.unwrap_or_else(|| process.line_with("run `tidegate migrate`"));
    assert!(line.contains("ratelimit_window_counts"), "{line}");
    let tables = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_NAME = 'ratelimit_window_counts'";
    assert_eq!(mariadb.number(tables), 0, "it never migrates by itself");
    env.push(("TIDEGATE_MIGRATE", "true"));
    let _migrating = Fleet::start(1, RULES, &redis.url(), &env);
    until_equal(HEARD, 1, || mariadb.number(tables));
    // The first one finds the table by itself.
    let import = "tidegate_global_success_age_seconds{turn=\"import\"}";
    until(HEARD, "the first one imports", || fleet.services[0].metric(import));
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let refused = |env: &[(&str, &str)]| {
        let mut command = tidegate(&["serve", "--rules", "config", "--grpc-port", "0", "--port", "0"]);
        let ran = run(command.env("MYSQL_URL", "mysql://u:p@127.0.0.1:1/d").envs(env.iter().copied()));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        ran.stderr
    };
    assert!(refused(&[]).contains("REGION"));
    assert!(refused(&[("REGION", "a")]).contains("TIDEGATE_REGIONS"));
    assert!(refused(&[("REGION", "c"), ("TIDEGATE_REGIONS", "a,b")]).contains("'c'"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_regions_seen_and_missing() {
    let regions = Regions::start(&["a", "b", "c"], 1, RULES);
    assert!(regions.said(0, cost("hundred=x", 60)).await.starts_with("OK"));
    assert!(regions.said(1, cost("hundred=x", 20)).await.starts_with("OK"));
    regions.until_counted(0, 0, "hundred=x", 80);
    let admin = regions.service(0, 0).admin.to_string();
    let shown = until(HEARD, "both are seen", || {
        let ran = run(&mut tidegate(&["status", "--addr", &admin]));
        (ran.stdout.contains("b (") && ran.stdout.contains("a (")).then_some(ran)
    });
    assert_eq!(shown.code, Some(0), "{shown:?}");
    for part in
        ["3 configured, this one is a", "missing   c", "contested 1 keys", "last success", "mysql     127.0.0.1"]
    {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    assert!(!shown.stdout.contains(crate::support::mariadb::PASSWORD), "no password is shown");
}
