//! The connection to Redis, with real servers: how it is made, lost and found again, and what a caller sees meanwhile.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use redis::Value;
use tempfile::TempDir;
use tidegate::regional::node_map::NodeId;
use tidegate::regional::redis::settings::{RedisFlags, RedisSettings};
use tidegate::regional::redis::{Identity, Lane, OriginError, Redis, Script};

use crate::support::certificates::{Authority, Pair};
use crate::support::harness::{PATIENCE, free_port};

static ADD: Script = Script::new("return redis.call('INCRBY', KEYS[1], ARGV[1])");
/// Long enough for a machine that is busy with other tests.
pub const WITHIN: Duration = Duration::from_secs(30);

/// A server of its own directory, gone when the test ends.
pub struct Server {
    pub port: u16,
    args: Vec<String>,
    directory: TempDir,
    child: Child,
}

impl Server {
    pub fn start(args: &[&str]) -> Server {
        let port = free_port();
        let port_text = port.to_string();
        let all: Vec<String> = ["--port", &port_text, "--save", "", "--bind", "127.0.0.1"]
            .iter()
            .chain(args)
            .map(|&arg| arg.into())
            .collect();
        Server::with(port, all, tempfile::tempdir().unwrap())
    }

    fn sentinel(config: &str) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let file = directory.path().join("sentinel.conf");
        std::fs::write(&file, format!("port {port}\nbind 127.0.0.1\n{config}")).unwrap();
        Server::with(port, vec![file.display().to_string(), "--sentinel".into()], directory)
    }

    pub fn with(port: u16, args: Vec<String>, directory: TempDir) -> Server {
        let child = Server::spawn(&args, directory.path());
        let server = Server { port, args, directory, child };
        let began = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < PATIENCE, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn spawn(args: &[String], directory: &Path) -> Child {
        let mut command = Command::new("redis-server");
        command.args(args).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("redis-server is installed")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn url(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.child = Server::spawn(&self.args, self.directory.path());
    }

    pub fn cli(&self, args: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    redis: RedisFlags,
}

fn settings(args: &[&str]) -> RedisSettings {
    let flags = Flags::try_parse_from(std::iter::once("serve").chain(args.iter().copied())).unwrap();
    RedisSettings::new(&flags.redis).unwrap().unwrap()
}

pub fn started(args: &[&str]) -> Redis {
    Redis::start(settings(args))
}

pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn until_connected(redis: &Redis) {
    eventually("connected", async || redis.status().connected_since.is_some()).await;
}

/// Every server behind it, one after the other.
pub async fn identities(redis: &Redis) -> Vec<Result<Identity, OriginError>> {
    let nodes: Vec<NodeId> = redis.maps().borrow().nodes().iter().map(|node| node.id).collect();
    redis.identities(&nodes, WITHIN).await.into_iter().map(|(_, identity)| identity).collect()
}

async fn identity(redis: &Redis) -> Result<Identity, OriginError> {
    identities(redis).await.pop().expect("a server")
}

pub async fn add(redis: &Redis, lane: Lane, key: &str, hits: u32) -> Result<i64, OriginError> {
    add_within(redis, lane, key, hits, WITHIN).await
}

pub async fn add_within(redis: &Redis, lane: Lane, key: &str, hits: u32, within: Duration) -> Result<i64, OriginError> {
    let (keys, args) = ([key.as_bytes().to_vec()], [hits.to_string().into_bytes()]);
    match redis.script(lane, &ADD, &keys, &args, within).await? {
        Value::Int(count) => Ok(count),
        other => panic!("{other:?}"),
    }
}

/// Never connects, and says so.
pub async fn refused(args: &[&str], reason: &str) -> String {
    let redis = started(args);
    eventually("a failure", async || redis.status().last_error.is_some()).await;
    let status = redis.status();
    assert_eq!(status.connected_since, None);
    let error = status.last_error.unwrap();
    assert_eq!(error.reason, reason, "{}", error.text);
    error.text
}

#[tokio::test]
async fn scripts_run_on_a_single_server() {
    let server = Server::start(&[]);
    let redis = started(&["--redis-url", &format!("redis://{}/3", server.url())]);
    until_connected(&redis).await;
    assert_eq!(add(&redis, Lane::Checks, "a", 2).await, Ok(2));
    assert_eq!(add(&redis, Lane::Replays, "a", 3).await, Ok(5));
    assert_eq!(server.cli(&["-n", "3", "GET", "a"]), "5");
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(add(&redis, Lane::Checks, "a", 1).await, Ok(6));
    assert_eq!(server.cli(&["SCRIPT", "EXISTS", ADD.hash()]), "1");

    let policy = async || identity(&redis).await.unwrap().evicting_policy().map(str::to_owned);
    assert_eq!(policy().await, None);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    assert_eq!(policy().await.as_deref(), Some("allkeys-lru"));
    assert!(!redis.is_cluster());
    assert_eq!(redis.status().connections, 3);

    let clients = || server.cli(&["CLIENT", "LIST"]).lines().count();
    assert_eq!(clients(), 4);
    drop(redis);
    eventually("closed with the last clone", async || clients() == 1).await;
}

#[tokio::test]
async fn a_server_that_is_down_is_no_wait_and_is_found_when_it_comes() {
    let mut server = Server::start(&[]);
    server.kill();
    let redis = started(&["--redis-url", &server.url()]);
    let began = Instant::now();
    assert_eq!(add(&redis, Lane::Checks, "a", 1).await, Err(OriginError::Down));
    assert_eq!(identity(&redis).await, Err(OriginError::Down));
    assert!(began.elapsed() < WITHIN, "nobody is waited for");
    eventually("a failure", async || redis.status().last_error.is_some()).await;
    let status = redis.status();
    assert_eq!((status.address.as_str(), status.connected_since), (server.url().as_str(), None));
    assert!(status.last_error.unwrap().text.contains(&server.url()));
    server.restart();
    until_connected(&redis).await;
    assert_eq!(add(&redis, Lane::Checks, "a", 1).await, Ok(1));
}

#[tokio::test]
async fn a_restart_is_noticed_without_a_call_and_has_another_identity() {
    let mut server = Server::start(&[]);
    let redis = started(&["--redis-url", &server.url()]);
    until_connected(&redis).await;
    let before = identity(&redis).await.unwrap();
    server.kill();
    eventually("noticed", async || redis.status().connected_since.is_none()).await;
    assert_eq!(add(&redis, Lane::Replays, "a", 1).await, Err(OriginError::Down));
    server.restart();
    until_connected(&redis).await;
    assert_ne!(identity(&redis).await.unwrap().run_id, before.run_id);
    assert_eq!(add(&redis, Lane::Checks, "a", 1).await, Ok(1));
}

#[tokio::test]
async fn a_server_that_hangs_costs_no_more_than_the_callers_time() {
    let server = Server::start(&[]);
    let redis = started(&["--redis-url", &server.url(), "--redis-timeout", "200ms"]);
    until_connected(&redis).await;
    server.signal("STOP");
    let within = Duration::from_millis(50);
    for _ in 0..20 {
        let began = Instant::now();
        let answer = add_within(&redis, Lane::Checks, "a", 1, within).await;
        assert_eq!(answer, Err(OriginError::Timeout { within }));
        assert!((within..WITHIN).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
    server.signal("CONT");
    // The connection was kept: what was sent is answered, late, and nothing mixes up.
    eventually("answers", async || add(&redis, Lane::Checks, "b", 7).await.is_ok_and(|count| count % 7 == 0)).await;
    assert_eq!(redis.status().connections, 3);
}

/// It owes answers, and says nothing: another connection is sought, and taken when there is one.
#[tokio::test]
async fn a_connection_over_which_nothing_comes_is_replaced() {
    let server = Server::start(&[]);
    let redis = started(&["--redis-url", &server.url(), "--redis-timeout", "200ms"]);
    until_connected(&redis).await;
    server.signal("STOP");
    let within = Duration::from_millis(50);
    eventually("doubted", async || {
        assert!(add_within(&redis, Lane::Checks, "a", 1, within).await.is_err());
        redis.status().is_doubted
    })
    .await;
    server.signal("CONT");
    eventually("not doubted any more", async || {
        add(&redis, Lane::Checks, "a", 1).await.is_ok() && !redis.status().is_doubted
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock").display().to_string();
    let _server = Server::start(&["--unixsocket", &socket]);
    let url = format!("unix://{socket}");
    for args in [&["--redis-url", &socket][..], &["--redis-url", &url]] {
        let redis = started(args);
        until_connected(&redis).await;
        assert!(add(&redis, Lane::Checks, "a", 1).await.is_ok());
    }
    let missing = directory.path().join("missing").display().to_string();
    assert!(refused(&["--redis-url", &missing], "io").await.contains(&missing));
}

#[tokio::test]
async fn a_user_logs_in_and_a_wrong_password_is_named_but_not_shown() {
    let server = Server::start(&["--requirepass", "hunter2"]);
    let admin = ["-a", "hunter2", "--no-auth-warning"];
    server.cli(&[&admin[..], &["ACL", "SETUSER", "edge", "on", ">secret:1", "~*", "+@all"]].concat());
    let url = server.url();
    for args in [
        &["--redis-url", &url, "--redis-auth", "hunter2"][..],
        &["--redis-url", &url, "--redis-auth", "edge:secret:1"],
        &["--redis-url", &format!("redis://edge:secret%3A1@{url}")],
    ] {
        let redis = started(args);
        until_connected(&redis).await;
        assert!(add(&redis, Lane::Checks, "a", 1).await.is_ok());
        assert!(!format!("{:?}", redis.status()).contains("secret"));
    }
    let text = refused(&["--redis-url", &url, "--redis-auth", "edge:wr0ng"], "auth").await;
    assert!(text.contains("WRONGPASS") && text.contains(&url) && !text.contains("wr0ng"), "{text}");
    assert!(refused(&["--redis-url", &url], "auth").await.contains("NOAUTH"));
}

#[tokio::test]
async fn a_password_that_changes_is_read_again() {
    let mut server = Server::start(&["--requirepass", "first"]);
    let file = server.path("password");
    std::fs::write(&file, "first\n").unwrap();
    let redis = started(&["--redis-url", &server.url(), "--redis-auth-file", &file.display().to_string()]);
    until_connected(&redis).await;
    server.kill();
    let place = server.args.iter().position(|arg| arg == "first").unwrap();
    server.args[place] = "second".into();
    server.restart();
    eventually("refused", async || redis.status().last_error.is_some_and(|error| error.reason == "auth")).await;
    std::fs::write(&file, "second\n").unwrap();
    until_connected(&redis).await;
    assert_eq!(add(&redis, Lane::Checks, "a", 1).await, Ok(1));
}

/// An authority, and the file of its certificate.
pub fn authority(directory: &Path, name: &str) -> (Authority, String) {
    let authority = Authority::new(name);
    let file = directory.join(format!("{name}.pem"));
    std::fs::write(&file, authority.pem()).unwrap();
    (authority, file.display().to_string())
}

/// Writes PEM files beside the server's and says where.
pub fn files(directory: &Path, name: &str, pair: &Pair) -> [String; 2] {
    let [certificate, key] = ["crt", "key"].map(|end| directory.join(format!("{name}.{end}")));
    std::fs::write(&certificate, &pair.certificate).unwrap();
    std::fs::write(&key, &pair.key).unwrap();
    [certificate, key].map(|file| file.display().to_string())
}

#[tokio::test]
async fn tls_verifies_the_chain_always_and_the_name_unless_told_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let (own, ca) = authority(directory.path(), "own");
    let (_, other_ca) = authority(directory.path(), "other");
    let start = |names: &[&str], clients: &str| {
        let [certificate, key] = files(directory.path(), names[0], &own.issue(names));
        let port = free_port();
        let text = port.to_string();
        let args = ["--port", "0", "--tls-port", &text, "--save", "", "--bind", "127.0.0.1"];
        let tls = ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let clients = ["--tls-auth-clients", clients];
        let all = args.iter().chain(&tls).chain(&clients).map(|&arg| arg.to_owned()).collect();
        Server::with(port, all, tempfile::tempdir().unwrap())
    };
    let named = start(&["localhost"], "no");
    let misnamed = start(&["elsewhere.test"], "no");
    let mutual = start(&["localhost", "mutual.test"], "yes");
    let url = |server: &Server| format!("rediss://localhost:{}", server.port);
    let skip = "--redis-tls-skip-hostname-verification";

    let good = started(&["--redis-url", &url(&named), "--redis-tls-cacert", &ca]);
    until_connected(&good).await;
    assert_eq!(add(&good, Lane::Checks, "a", 1).await, Ok(1));
    let by_flag = format!("localhost:{}", named.port);
    until_connected(&started(&["--redis-url", &by_flag, "--redis-tls", "--redis-tls-cacert", &ca])).await;
    until_connected(&started(&["--redis-url", &url(&misnamed), "--redis-tls-cacert", &ca, skip])).await;

    let text = refused(&["--redis-url", &url(&misnamed), "--redis-tls-cacert", &ca], "io").await;
    assert!(text.contains("not valid for name"), "{text}");
    let text = refused(&["--redis-url", &url(&named), "--redis-tls-cacert", &other_ca, skip], "io").await;
    assert!(text.contains("UnknownIssuer"), "{text}");
    refused(&["--redis-url", &url(&misnamed), "--redis-tls-cacert", &other_ca, skip], "io").await;

    let [certificate, key] = files(directory.path(), "client", &own.issue(&["client.test"]));
    let with_ca = ["--redis-url", &url(&mutual), "--redis-tls-cacert", &ca];
    let pair = ["--redis-tls-client-cert", &certificate, "--redis-tls-client-key", &key];
    let mutually = started(&[&with_ca[..], &pair].concat());
    until_connected(&mutually).await;
    assert_eq!(add(&mutually, Lane::Replays, "a", 1).await, Ok(1));
    refused(&with_ca, "io").await;
}

#[tokio::test]
async fn the_sentinels_say_where_the_master_is_after_a_failover() {
    let master = Server::start(&[]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    eventually("synchronised", async || replica.cli(&["INFO", "replication"]).contains("master_link_status:up")).await;
    let sentinel = Server::sentinel(&format!(
        "requirepass watch\nsentinel monitor main 127.0.0.1 {} 1\nsentinel down-after-milliseconds main 300\n\
         sentinel failover-timeout main 3000\n",
        master.port
    ));
    // The first is not there: that costs nothing.
    let url = format!("main,127.0.0.1:1,{}", sentinel.url());
    let args = ["--redis-url", &url, "--redis-type", "sentinel", "--redis-sentinel-auth", "watch"];
    let redis = started(&args);
    until_connected(&redis).await;
    assert_eq!(add(&redis, Lane::Checks, "a", 1).await, Ok(1));
    eventually("known to the sentinel", async || {
        sentinel.cli(&["-a", "watch", "--no-auth-warning", "SENTINEL", "REPLICAS", "main"]).contains("slave")
    })
    .await;
    master.signal("STOP");
    let within = Duration::from_millis(500);
    let went_on = async || add_within(&redis, Lane::Checks, "b", 1, within).await.is_ok();
    eventually("found again, though the old one only hangs", went_on).await;
    assert!(replica.cli(&["ROLE"]).starts_with("master"));

    let wrong = format!("other,{}", sentinel.url());
    let args = ["--redis-url", &wrong, "--redis-type", "sentinel", "--redis-sentinel-auth", "watch"];
    assert!(refused(&args, "other").await.contains("knows no master 'other'"));
}

#[tokio::test]
async fn a_master_that_becomes_a_replica_is_left() {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    let redis = started(&["--redis-url", &server.url()]);
    until_connected(&redis).await;
    server.cli(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
    let refused = add(&redis, Lane::Checks, "a", 1).await.unwrap_err();
    assert_eq!(refused.reason(), "readonly");
    eventually("another connection", async || redis.status().connections > 3).await;
}
