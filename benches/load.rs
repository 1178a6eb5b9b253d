//! How many requests per second, and what each costs: `tidegate serve` against a server that only ever says OK.
//!
//! The constant server is tonic as everybody uses it, on tokio's multi-thread runtime: what is left of a rate limit
//! service when nothing is limited. Both are processes of their own, and take turns under the same `tidegate bench`, so
//! that a machine that gets slower does so for both. A third one shares its counts through a Redis on the same machine,
//! whose own work is part of what it costs. The table also says whether the client was the bottleneck.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use serde_json::Value;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Many short rounds: a machine that others use too changes its speed by a fifth within seconds.
const ROUNDS: usize = 15;
const DURATION: &str = "1s";
/// One hot key, and as many as make the replays work.
const KEYS: [&str; 2] = ["1", "1000"];
const CONSTANT_SERVER: &str = "constant-server";
const RULES: &str = "\
domain: edge
descriptors:
  - {key: remote_address, rate_limit: {requests_per_unit: 4000000000, unit: year}}
";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(CONSTANT_SERVER) {
        return constant_server();
    }
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();

    let rules = rules.to_str().unwrap();
    let socket = directory.path().join("redis.sock");
    let _redis = Redis::start(socket.to_str().unwrap());
    let constant = Started::constant();
    let tidegate = Started::tidegate("tidegate serve", rules, "");
    let shared = Started::tidegate("with Redis", rules, socket.to_str().unwrap());
    let servers = [&constant, &tidegate, &shared];
    for keys in KEYS {
        take_turns(servers, keys);
    }
}

fn take_turns(servers: [&Started; 3], keys: &str) {
    let mut runs = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        // Each round the other way round, so that nobody always comes after the same.
        for turn in 0..servers.len() {
            let at = if round % 2 == 0 { turn } else { servers.len() - 1 - turn };
            eprintln!("keys: {keys}, round {} of {ROUNDS}: {}", round + 1, servers[at].name);
            runs[at].push(Figures::of(&servers[at].bench(keys)));
        }
    }
    println!(
        "{:16}{:>12}{:>16}{:>16}{:>10}   limited by",
        format!("keys: {keys}"),
        "requests/s",
        "server us/req",
        "client us/req",
        "p99 ms"
    );
    for (server, runs) in servers.into_iter().zip(&runs) {
        Figures::median(runs).print(server.name);
    }
    let [constant_runs, tidegate_runs, shared_runs] = &runs;
    Figures::compare("to constant", tidegate_runs, constant_runs);
    Figures::compare("Redis to none", shared_runs, tidegate_runs);
    println!(
        "medians of {ROUNDS} alternating rounds of {DURATION}, ratios of the same round; 4 connections x 32 streams\n"
    );
}

/// A Redis that runs until this is dropped.
struct Redis(Child);

impl Redis {
    fn start(socket: &str) -> Redis {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"]);
        let child = command.stdout(Stdio::null()).spawn().expect("redis-server is installed");
        while !std::path::Path::new(socket).exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Redis(child)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that runs until this is dropped.
struct Started {
    name: &'static str,
    child: Child,
    address: String,
}

impl Started {
    fn constant() -> Started {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg(CONSTANT_SERVER).stdout(Stdio::piped()).spawn().expect("this program starts again");
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        Started { name: "constant tonic", child, address: address.trim().to_owned() }
    }

    fn tidegate(name: &'static str, rules: &str, redis: &str) -> Started {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.env("REDIS_URL", redis);
        command.args(["serve", "--rules", rules, "--host", "127.0.0.1", "--port", "0"]);
        command.args(["--grpc-host", "127.0.0.1", "--grpc-port", "0", "--debug-port", "0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("tidegate starts");
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut addresses =
            lines.filter_map(|line| Some(line.split(" (gRPC)").next()?.rsplit_once(" on ")?.1.to_owned()));
        let address = addresses.next().expect("it says where it serves");
        Started { name, child, address }
    }

    fn bench(&self, keys: &str) -> Value {
        let pid = self.child.id().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["bench", "--addr", &self.address, "--duration", DURATION, "--server-pid", &pid]);
        let ran = command.args(["--keys", keys, "--output", "json"]).output().expect("tidegate bench runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        serde_json::from_slice(&ran.stdout).expect("JSON")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a run came to, or what several came to at their median.
struct Figures {
    requests_per_s: f64,
    server_us: f64,
    client_us: f64,
    p99_ms: f64,
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

impl Figures {
    fn of(run: &Value) -> Figures {
        let figure = |name: &str| run[name].as_f64().expect(name);
        Figures {
            requests_per_s: figure("requests_per_s"),
            server_us: figure("server_cpu_per_request_us"),
            client_us: figure("client_cpu_per_request_us"),
            p99_ms: figure("p99_us") / 1e3,
        }
    }

    fn median(runs: &[Figures]) -> Figures {
        Figures {
            requests_per_s: median(runs.iter().map(|run| run.requests_per_s)),
            server_us: median(runs.iter().map(|run| run.server_us)),
            client_us: median(runs.iter().map(|run| run.client_us)),
            p99_ms: median(runs.iter().map(|run| run.p99_ms)),
        }
    }

    /// Round by round, because only neighbours had the same machine.
    fn compare(name: &str, runs: &[Figures], to: &[Figures]) {
        let ratio = |figure: fn(&Figures) -> f64| median(runs.iter().zip(to).map(|(run, to)| figure(run) / figure(to)));
        println!(
            "{name:16}{:>12.2}{:>16.2}{:>16.2}{:>10.2}",
            ratio(|run| run.requests_per_s),
            ratio(|run| run.server_us),
            ratio(|run| run.client_us),
            ratio(|run| run.p99_ms),
        );
    }

    /// Both share the machine: whoever needs more CPU for a request is what there is not enough of.
    fn print(&self, name: &str) {
        let limited_by = if self.client_us < self.server_us { "the server" } else { "the client" };
        println!(
            "{name:16}{:>12.0}{:>16.1}{:>16.1}{:>10.2}   {limited_by}",
            self.requests_per_s, self.server_us, self.client_us, self.p99_ms
        );
    }
}

/// Decodes requests and answers OK, whatever they ask for.
fn constant_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
        println!("{}", incoming.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        let service = RateLimitServiceServer::new(Constant);
        Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
    });
}

struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        _request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        // As long as a real answer.
        let status = DescriptorStatus {
            code: Code::Ok as i32,
            current_limit: Some(RateLimit {
                requests_per_unit: 4_000_000_000,
                unit: Unit::Year as i32,
                name: String::new(),
            }),
            limit_remaining: 3_999_999_999,
            duration_until_reset: Some(Duration { seconds: 1_000_000, nanos: 0 }),
            ..DescriptorStatus::default()
        };
        let statuses = vec![status];
        Ok(Response::new(RateLimitResponse { overall_code: Code::Ok as i32, statuses, ..RateLimitResponse::default() }))
    }
}
