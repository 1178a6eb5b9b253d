//! One process of a region speaks with MySQL for all of it: between real processes, a real Redis and a real MariaDB.

use crate::support::fleet::{Fleet, until_settled};
use crate::support::harness::{PATIENCE, Service, until, until_equal};
use crate::support::mariadb::MariaDbServer;
use crate::support::redis::RedisServer;
use crate::support::regions::{HEARD, Regions, cost, migrate, said, settings, until_counted};
use std::io::Read;
use std::process::{Command, Stdio};

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {requests_per_unit: 1000, unit: year}}
";

fn has_role(service: &Service, role: &str) -> bool {
    service.metric(&format!("tidegate_global_role{{role=\"{role}\"}}")) == Some(1.0)
}

/// Waits until one of these speaks and all others follow, and says which one speaks.
pub fn until_one_speaks(services: &[Service]) -> usize {
    until(HEARD, "one process speaks, and the others follow", || {
        let speaker = services.iter().position(|service| has_role(service, "speaking"))?;
        let followers = services.iter().filter(|service| has_role(service, "following")).count();
        (followers + 1 == services.len()).then_some(speaker)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_speaks_and_counts_reach_all() {
    let regions = Regions::start(&["a", "b"], 3, RULES);
    let speakers = [0, 1].map(|region| until_one_speaks(&regions.regions[region].fleet.services));
    // Every process of the one region counts something, which every process of the other one hears.
    for process in 0..3 {
        let service = regions.service(0, process);
        assert!(said(service, cost(&format!("k=of{process}"), 600)).await.starts_with("OK"));
        assert!(said(service, cost("k=together", 200)).await.starts_with("OK"));
    }
    for process in 0..3 {
        for key in ["k=of0", "k=of1", "k=of2", "k=together"] {
            regions.until_counted(1, process, key, 600);
        }
    }
    let expected: Vec<String> = ["of0", "of1", "of2", "together"].map(|key| format!("a {key} 600 0")).into();
    until_equal(HEARD, expected, || regions.rows());
    for (region, speaker) in speakers.into_iter().enumerate() {
        for (process, service) in regions.regions[region].fleet.services.iter().enumerate() {
            let published = service.metric("tidegate_global_published_rows_total").unwrap();
            assert!(process == speaker || published == 0.0, "a process that follows has published {published} rows");
            assert_eq!(service.metric("tidegate_layer_up{layer=\"global\"}"), Some(1.0));
        }
    }
    let page = regions.service(0, 0).page_json("/stats");
    assert!(page.to_string().contains("\"speaker\":\""), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_speaker_that_is_killed_is_replaced_and_nothing_is_lost() {
    let mut regions = Regions::start(&["a", "b"], 3, RULES);
    let speaker = until_one_speaks(&regions.regions[0].fleet.services);
    let other = (speaker + 1) % 3;
    assert!(said(regions.service(0, other), cost("k=before", 700)).await.starts_with("OK"));
    regions.until_counted(1, 0, "k=before", 700);
    let killed = regions.regions[0].fleet.services.remove(speaker);
    killed.process.signal("KILL");
    // Told to nobody who speaks.
    let service = regions.service(0, 0);
    assert!(said(service, cost("k=meanwhile", 600)).await.starts_with("OK"));
    assert!(said(service, cost("k=before", 100)).await.starts_with("OK"));
    until_one_speaks(&regions.regions[0].fleet.services);
    for process in 0..3 {
        regions.until_counted(1, process, "k=meanwhile", 600);
        regions.until_counted(1, process, "k=before", 800);
    }
    assert!(said(regions.service(1, 1), cost("k=after", 600)).await.starts_with("OK"));
    for process in 0..2 {
        regions.until_counted(0, process, "k=after", 600);
    }
    until_equal(HEARD, vec!["a before 800 0".to_owned(), "a meanwhile 600 0".into(), "b after 600 0".into()], || {
        regions.rows()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_everybody_speaks_for_itself() {
    let mut regions = Regions::start(&["a", "b"], 3, RULES);
    until_one_speaks(&regions.regions[0].fleet.services);
    assert!(said(regions.service(0, 0), cost("k=x", 600)).await.starts_with("OK"));
    regions.until_counted(1, 0, "k=x", 600);
    regions.regions[0].redis.kill();
    until(HEARD, "all are alone", || {
        regions.regions[0].fleet.services.iter().all(|service| has_role(service, "alone")).then_some(())
    });
    assert!(said(regions.service(1, 0), cost("k=y", 600)).await.starts_with("OK"));
    for process in 0..3 {
        regions.until_counted(0, process, "k=y", 600);
        assert!(said(regions.service(0, process), cost(&format!("k=z{process}"), 600)).await.starts_with("OK"));
    }
    for process in 0..3 {
        regions.until_counted(1, 2, &format!("k=z{process}"), 600);
    }
    regions.regions[0].redis.restart_empty();
    until_one_speaks(&regions.regions[0].fleet.services);
    assert!(said(regions.service(1, 0), cost("k=y", 200)).await.starts_with("OK"));
    for process in 0..3 {
        regions.until_counted(0, process, "k=y", 800);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_speaker_that_stops_hands_its_office_over() {
    let mut regions = Regions::start(&["a", "b"], 2, RULES);
    let speaker = until_one_speaks(&regions.regions[0].fleet.services);
    assert!(said(regions.service(0, speaker), cost("k=x", 600)).await.starts_with("OK"));
    let mut stopped = regions.regions[0].fleet.services.remove(speaker);
    stopped.process.signal("TERM");
    stopped.process.ends_within(PATIENCE).expect("it ends");
    regions.until_counted(1, 0, "k=x", 600);
    assert_eq!(until_one_speaks(&regions.regions[0].fleet.services), 0);
    assert!(said(regions.service(0, 0), cost("k=x", 100)).await.starts_with("OK"));
    regions.until_counted(1, 1, "k=x", 700);
}

/// A Redis user from before there was a speaker: it may do what counting takes, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_rights_to_share_speaks_for_itself() {
    let mariadb = MariaDbServer::start();
    migrate(&mariadb);
    let redis = RedisServer::start();
    let user = "ACL SETUSER counts on >word resetkeys ~tidegate:* -@all +ping +info +eval +evalsha +mget +set +setrange \
                +hmget +hset +hdel +pexpire +rename +time +zadd +zrem +zremrangebyscore +zcard";
    let _: String = redis.query(&user.split_whitespace().collect::<Vec<_>>());
    let settings = settings(&mariadb, "a", "a,b");
    let mut env: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    env.push(("REDIS_AUTH", "counts:word"));
    let mut fleet = Fleet::together(2, RULES, &redis.url(), &env);
    until(HEARD, "both are alone", || fleet.services.iter().all(|service| has_role(service, "alone")).then_some(()));
    fleet.services[0].process.line_with("publishes and imports for itself");
    until_settled(&fleet.services[0], "origin");
    assert!(said(&fleet.services[0], cost("k=x", 600)).await.starts_with("OK"));
    until_equal(HEARD, 600, || {
        mariadb.number("SELECT COALESCE(MAX(count), 0) FROM ratelimit_window_counts WHERE region = 'a'")
    });
    until_counted(&fleet.services[1], "k=x", 600);
}

/// Everything that anybody says to a Redis, as it shows that itself.
pub struct Eavesdropper(std::process::Child);

impl Eavesdropper {
    pub fn start(redis: &RedisServer) -> Eavesdropper {
        let port = redis.port().to_string();
        let mut command = Command::new("redis-cli");
        let child = command.args(["-p", &port, "monitor"]).stdout(Stdio::piped()).spawn().expect("redis-cli starts");
        until(PATIENCE, "it listens", || {
            redis.query::<String>(&["CLIENT", "LIST"]).contains("cmd=monitor").then_some(())
        });
        Eavesdropper(child)
    }

    /// All that was said until now.
    pub fn end(mut self) -> String {
        let _ = self.0.kill();
        let mut said = Vec::new();
        self.0.stdout.take().expect("it is piped").read_to_end(&mut said).expect("it can be read");
        let _ = self.0.wait();
        String::from_utf8_lossy(&said).into_owned()
    }
}
