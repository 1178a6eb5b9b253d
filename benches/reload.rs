//! How much a reload of 10,000 rules slows calls, how soon its rules are in force, and how long a cold start takes.
//!
//! Calls are made at a steady rate, and each is timed from the moment it was due. Rounds without and with reloads alternate in
//! one run of one process, so that the ratio of their p99 shows the cost of reloads, whatever else the machine does.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::time::sleep_until;
use tonic::transport::Channel;

const RULES: usize = 10_000;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(3);
const CALLS_PER_S: u64 = 2_000;
/// Much more often than anybody edits rules.
const RELOAD_EVERY: Duration = Duration::from_millis(500);
const STARTS: usize = 15;

type Client = RateLimitServiceClient<Channel>;

struct Served {
    child: Child,
    grpc: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start(rules: &Path) -> Served {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1", "--grpc-port", "0"]);
        command.args(["--debug-port", "0", "--rules"]).arg(rules).env_clear().stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains("serving"))).expect("it serves");
        let grpc = line.split(" (gRPC)").next().unwrap().rsplit(' ').next().unwrap().to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Served { child, grpc }
    }

    async fn client(&self) -> Client {
        Client::connect(format!("http://{}", self.grpc)).await.unwrap()
    }
}

/// Ten thousand rules, half of them with two levels. The limit of the first one tells versions apart.
fn rules(version: u32) -> String {
    let mut text = format!(
        "domain: d\ndescriptors:\n- {{key: version, rate_limit: {{requests_per_unit: {version}, unit: year}}}}\n"
    );
    for number in 1..RULES / 2 {
        let _ = write!(
            text,
            "- key: path\n  value: /service-{number}/*\n  rate_limit: {{requests_per_unit: {number}, unit: minute}}\n  \
             descriptors:\n  - {{key: method, value: POST, rate_limit: {{requests_per_unit: 5, unit: second}}}}\n"
        );
    }
    text + "- {key: user, rate_limit: {requests_per_unit: 4000000000, unit: year}}\n"
}

fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, file).unwrap();
}

fn ask(key: &str, value: String) -> RateLimitRequest {
    let entries = vec![Entry { key: key.into(), value }];
    let descriptors = vec![RateLimitDescriptor { entries, ..Default::default() }];
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}

async fn version(client: &mut Client) -> u32 {
    let response = client.should_rate_limit(ask("version", "x".into())).await.unwrap().into_inner();
    response.statuses[0].current_limit.as_ref().unwrap().requests_per_unit
}

/// Calls at a steady rate for a round. Returns the times in microseconds.
async fn calls(client: &Client) -> Histogram<u64> {
    let began = tokio::time::Instant::now();
    let count = CALLS_PER_S * ROUND.as_secs();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..count {
        let due = began + Duration::from_nanos(1_000_000_000 / CALLS_PER_S * number);
        sleep_until(due).await;
        let mut client = client.clone();
        calls.spawn(async move {
            client.should_rate_limit(ask("user", format!("{}", number % 1000))).await.expect("no call fails");
            due.elapsed()
        });
    }
    let mut times = Histogram::new(3).unwrap();
    while let Some(took) = calls.join_next().await {
        times.record(took.unwrap().as_micros() as u64).unwrap();
    }
    times
}

async fn reloads(file: &Path, texts: &[String; 2]) {
    for turn in 0..(ROUND.as_millis() / RELOAD_EVERY.as_millis()) as usize {
        // A slow disk must not hold up the calls, which are made on this thread.
        let (file, text) = (file.to_owned(), texts[turn % 2].clone());
        tokio::task::spawn_blocking(move || replace(&file, &text)).await.unwrap();
        tokio::time::sleep(RELOAD_EVERY).await;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yaml");
    let texts = [rules(4_000_000_000), rules(4_000_000_001)];
    replace(&file, &texts[0]);

    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let served = Served::start(&file);
        version(&mut served.client().await).await;
        starts.push(began.elapsed().as_secs_f64() * 1e3);
    }
    println!(
        "cold start to the first answer, {RULES} rules: {:.0} ms (median of {STARTS}; aim <= 300)",
        median(starts)
    );

    let served = Served::start(&file);
    let mut client = served.client().await;
    let mut lives = Vec::new();
    for turn in 1..=10u32 {
        let wanted = 4_000_000_000 + turn % 2;
        let began = Instant::now();
        replace(&file, &texts[(turn % 2) as usize]);
        while version(&mut client).await != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        lives.push(began.elapsed().as_secs_f64() * 1e3);
    }
    println!("from the change of the file to its rules in force: {:.0} ms (median of 10; aim <= 2000)", median(lives));

    let mut p99s = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let quiet = calls(&client).await;
        let (busy, ()) = tokio::join!(calls(&client), reloads(&file, &texts));
        let p99 = |times: &Histogram<u64>| times.value_at_quantile(0.99) as f64;
        println!(
            "round {round}: p99 {:.0} us without, {:.0} us with a reload every {} ms",
            p99(&quiet),
            p99(&busy),
            RELOAD_EVERY.as_millis()
        );
        p99s[0].push(p99(&quiet));
        p99s[1].push(p99(&busy));
    }
    let [quiet, busy] = p99s.map(median);
    println!(
        "p99 at {CALLS_PER_S} calls/s: {quiet:.0} us without, {busy:.0} us with reloads of {RULES} rules, ratio {:.2} (aim <= 2)",
        busy / quiet
    );
}
