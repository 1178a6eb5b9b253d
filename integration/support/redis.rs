//! A real Redis: a server of its own for each test, what it holds, and the ways in which it can fail.
//!
//! Tests look at what Tidegate has written, with a plain client on a port that no fault touches.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ::redis::{Cmd, Connection, FromRedisValue, RedisResult, Value, cmd};
use tempfile::TempDir;

use crate::support::certificates::{Authority, Files, SERVER};
use crate::support::harness::{PATIENCE, Process, free_port, run, until};

/// A server that keeps nothing on disk unless it is told to.
pub struct RedisServer {
    process: Option<Process>,
    port: u16,
    args: Vec<String>,
    password: Option<String>,
    /// How much its clock is ahead of everyone else's.
    ahead: Duration,
    directory: TempDir,
}

/// Keys that make loading slow. Redis answers between them, because each is longer than what it reads in one go.
const FILLERS: u32 = 200;
const FILLER_BYTES: usize = 1100;

/// A cell as the origin holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Under which it is held.
    pub name: String,
    pub key: String,
    pub sequence: u64,
    pub hits: u64,
    pub refunds: u64,
    /// The hits and refunds that each process has told, by its name.
    pub fields: BTreeMap<String, (u64, u64)>,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        RedisServer::with(&[])
    }

    /// Starts a server with more flags, such as `--replicaof`.
    pub fn with(args: &[&str]) -> RedisServer {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        RedisServer::launch(args, None)
    }

    /// Starts a server that hears nobody without the password.
    pub fn with_password(password: &str) -> RedisServer {
        RedisServer::launch(vec!["--requirepass".into(), password.into()], Some(password.into()))
    }

    /// Starts a server with a second port over TLS. Clients need no certificate, but if they show one, the authority has to have
    /// issued it.
    pub fn with_tls(authority: &Authority) -> RedisServer {
        let directory = tempfile::tempdir().unwrap();
        Files::in_directory(directory.path(), &authority.issue(&[SERVER, "localhost"]), authority);
        let path = |name: &str| directory.path().join(name).display().to_string();
        let mut args: Vec<String> = vec!["--tls-port".into(), free_port().to_string()];
        for (flag, file) in
            [("--tls-cert-file", "tls.crt"), ("--tls-key-file", "tls.key"), ("--tls-ca-cert-file", "ca.crt")]
        {
            args.extend([flag.to_owned(), path(file)]);
        }
        args.extend(["--tls-auth-clients".into(), "optional".into()]);
        RedisServer::launch_in(directory, args, None)
    }

    /// Starts a server with a clock that is ahead of everyone else's.
    pub fn with_clock_ahead(ahead: Duration) -> RedisServer {
        let mut server = RedisServer::stopped(tempfile::tempdir().unwrap(), Vec::new(), None);
        server.ahead = ahead;
        server.run();
        server
    }

    fn launch(args: Vec<String>, password: Option<String>) -> RedisServer {
        RedisServer::launch_in(tempfile::tempdir().unwrap(), args, password)
    }

    fn launch_in(directory: TempDir, args: Vec<String>, password: Option<String>) -> RedisServer {
        let mut server = RedisServer::stopped(directory, args, password);
        server.run();
        server
    }

    fn stopped(directory: TempDir, args: Vec<String>, password: Option<String>) -> RedisServer {
        RedisServer { process: None, port: free_port(), args, password, ahead: Duration::ZERO, directory }
    }

    /// Starts the process, with flags for this time only.
    fn spawn(&mut self, flags: &[&str]) {
        let mut command = Command::new("redis-server");
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.arg("--dir").arg(self.directory.path()).arg("--logfile").arg(self.directory.path().join("log"));
        command.arg("--unixsocket").arg(self.socket()).args(["--repl-diskless-sync-delay", "0"]).args(&self.args);
        if !self.ahead.is_zero() {
            // Redis' own allocator looks at the clock before libfaketime is ready, so it gets that of the C library.
            command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1:libc.so.6");
            command.env("FAKETIME", format!("+{}s", self.ahead.as_secs_f64())).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.args(flags);
        self.process = Some(Process::start(command));
    }

    fn run(&mut self) {
        self.spawn(&[]);
        until(PATIENCE, "Redis answers", || {
            let pong: RedisResult<String> = cmd("PING").query(&mut self.connect().ok()?);
            if pong.is_err() && self.process.as_mut()?.ends_within(Duration::ZERO).is_some() {
                panic!("Redis ended: {}", self.log());
            }
            pong.ok()
        });
    }

    fn connect(&self) -> RedisResult<Connection> {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        let client = ::redis::Client::open(format!("redis://{password}127.0.0.1:{}", self.port))?;
        let connection = client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// The value of `REDIS_URL` that leads here.
    pub fn url(&self) -> String {
        self.address().to_string()
    }

    pub fn tls_port(&self) -> u16 {
        let place = self.args.iter().position(|arg| arg == "--tls-port").expect("it was started with TLS");
        self.args[place + 1].parse().unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    /// The path of one of its files, such as those of TLS.
    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// The answer to a command.
    pub fn query<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_query(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub fn try_query<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        command(words).query(&mut self.connect()?)
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("it has been started")
    }

    /// Stops the process, with all connections open.
    pub fn stop(&self) {
        self.process().signal("STOP");
    }

    pub fn cont(&self) {
        self.process().signal("CONT");
    }

    /// Kills the process. Everything that it held is lost.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("it has been started");
        process.signal("KILL");
        process.ends_within(PATIENCE).expect("it dies");
    }

    /// Starts again on the same port, without anything that it held.
    pub fn restart_empty(&mut self) {
        if self.process.is_some() {
            self.kill();
        }
        self.run();
    }

    /// Saves everything that it holds to disk.
    pub fn save(&self) {
        for number in 0..FILLERS {
            let _: String = self.query(&["SET", &format!("filler:{number}"), &"x".repeat(FILLER_BYTES)]);
        }
        // Keeps fillers as long on disk as they are in memory.
        let _: String = self.query(&["CONFIG", "SET", "rdbcompression", "no"]);
        let _: String = self.query(&["SAVE"]);
    }

    /// Kills the process, and starts it on the same port with what it has saved. It loads for about `time`, and still does on
    /// return.
    pub fn restart_loading(&mut self, time: Duration) {
        self.kill();
        let key_us = (time / FILLERS).as_micros().to_string();
        self.spawn(&["--key-load-delay", &key_us, "--loading-process-events-interval-bytes", "1024"]);
        until(PATIENCE, "Redis loads", || self.is_loading().then_some(()));
    }

    /// Whether it answers every command with an error because it is loading.
    pub fn is_loading(&self) -> bool {
        self.try_query::<String>(&["PING"]).is_err_and(|error| error.code() == Some("LOADING"))
    }

    /// A line of INFO.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        // Sentinels cut the connections of a server that they promote.
        let info: String = self.try_query(&["INFO", section]).ok()?;
        info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::to_owned)
    }

    /// How many commands it has processed, including those of scripts.
    pub fn commands_processed(&self) -> u64 {
        self.info("stats", "total_commands_processed").and_then(|count| count.parse().ok()).expect("a number")
    }

    pub fn calls_of(&self, command: &str) -> u64 {
        let Some(stat) = self.info("commandstats", &format!("cmdstat_{command}")) else { return 0 };
        let calls = stat.split(',').find_map(|part| part.strip_prefix("calls=")).expect("calls are counted");
        calls.parse().expect("a number")
    }

    fn keys(&self, connection: &mut Connection, pattern: &str) -> Vec<Vec<u8>> {
        let (mut cursor, mut keys) = (0, Vec::new());
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1000);
            let (next, some): (u64, Vec<Vec<u8>>) = scan.query(connection).expect("Redis answers");
            keys.extend(some);
            cursor = next;
            if cursor == 0 {
                // A scan may name a key twice.
                keys.sort();
                keys.dedup();
                return keys;
            }
        }
    }

    /// All cells, in the order of their keys.
    pub fn cells(&self) -> Vec<Cell> {
        let mut connection = self.connect().expect("Redis answers");
        let keys = self.keys(&mut connection, "tidegate:3:{??}:*:*");
        if keys.is_empty() {
            return Vec::new();
        }
        let held: Vec<Option<Vec<u8>>> = if self.args.iter().any(|arg| arg == "--cluster-enabled") {
            keys.iter().map(|key| read_in_cluster(&mut connection, key)).collect()
        } else {
            // What is no string, a bucket, is left out.
            cmd("MGET").arg(&keys).query(&mut connection).expect("Redis answers")
        };
        // One that ended between the two is empty.
        keys.iter().zip(held).filter_map(|(key, held)| Some(Cell::all_of(key, &held?))).flatten().collect()
    }

    /// The hits of all cells, minus refunds.
    pub fn total_hits(&self) -> u64 {
        self.cells().iter().map(|cell| cell.hits - cell.refunds).sum()
    }

    /// Whether the bytes are in any key or value that it holds.
    pub fn grep(&self, part: &[u8]) -> bool {
        let mut connection = self.connect().expect("Redis answers");
        let keys = self.keys(&mut connection, "*");
        keys.iter().any(|key| {
            let kind: String = cmd("TYPE").arg(key).query(&mut connection).expect("Redis answers");
            let (name, args): (&str, &[&str]) = match kind.as_str() {
                "string" => ("GET", &[]),
                "hash" => ("HGETALL", &[]),
                "list" => ("LRANGE", &["0", "-1"]),
                "set" => ("SMEMBERS", &[]),
                "zset" => ("ZRANGE", &["0", "-1", "WITHSCORES"]),
                "stream" => ("XRANGE", &["-", "+"]),
                "none" => return false,
                other => panic!("a key of type {other}"),
            };
            let held: Value = cmd(name).arg(key).arg(args).query(&mut connection).expect("Redis answers");
            has_part(key, part) || value_has_part(&held, part)
        })
    }
}

/// Reads a cell at a node to which its slot may just be moving. One that has moved on is not here.
fn read_in_cluster(connection: &mut Connection, key: &[u8]) -> Option<Vec<u8>> {
    let _: String = cmd("ASKING").query(connection).expect("Redis answers");
    cmd("MGET").arg(key).query::<Vec<Option<Vec<u8>>>>(connection).ok()?.remove(0)
}

/// Takes so many bytes from the front.
fn front<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    taken
}

/// The next number of seven bytes, the lowest first.
fn number(bytes: &mut &[u8]) -> u64 {
    front(bytes, 7).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Cell {
    /// Those that are held under one name: one, or of an exact window the sixteen of a block.
    fn all_of(name: &[u8], mut held: &[u8]) -> Vec<Cell> {
        let name = std::str::from_utf8(name).expect("names of cells are text");
        let (key, place) = name.rsplit_once(':').expect("a cell has a sequence");
        let (first, size): (u64, u64) = match place.strip_prefix('x') {
            Some(block) => (16 * block.parse::<u64>().expect("a number"), 16),
            None => (place.parse().expect("a number"), 1),
        };
        let is_long = front(&mut held, 1) == [2];
        let _epoch = number(&mut held);
        let mut cells: Vec<Cell> = (first..first + size)
            .map(|sequence| {
                let mut counts = || number(&mut held);
                let (hits, refunds) = if is_long {
                    let [floor, added, told, refunds, known, given_back] = std::array::from_fn(|_| counts());
                    ((floor + added).max(told).max(known), refunds.max(given_back))
                } else {
                    (counts(), 0)
                };
                let key = key.rsplit(':').next().expect("the last part").to_owned();
                Cell { name: name.to_owned(), key, sequence, hits, refunds, fields: BTreeMap::new() }
            })
            .collect();
        while !held.is_empty() {
            let process: String = front(&mut held, 8).iter().map(|byte| format!("{byte:02x}")).collect();
            for cell in &mut cells {
                let (own, asked) = (number(&mut held), if is_long { number(&mut held) } else { 0 });
                if (own, asked) != (0, 0) {
                    cell.fields.insert(process.clone(), (own, asked));
                }
            }
        }
        cells.retain(|cell| size == 1 || cell.hits > 0);
        cells
    }
}

pub fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

fn has_part(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn value_has_part(value: &Value, part: &[u8]) -> bool {
    match value {
        Value::BulkString(bytes) => has_part(bytes, part),
        Value::SimpleString(text) => has_part(text.as_bytes(), part),
        Value::Array(values) | Value::Set(values) => values.iter().any(|value| value_has_part(value, part)),
        Value::Map(pairs) => {
            pairs.iter().any(|(name, value)| value_has_part(name, part) || value_has_part(value, part))
        }
        other => has_part(format!("{other:?}").as_bytes(), part),
    }
}

/// Starts a replica of a master, and waits until it has caught up.
pub fn replica_of(master: SocketAddr) -> RedisServer {
    let replica = RedisServer::with(&["--replicaof", &master.ip().to_string(), &master.port().to_string()]);
    until(PATIENCE, "the replica follows", || {
        (replica.info("replication", "master_link_status")? == "up").then_some(())
    });
    replica
}

#[test]
fn cells_are_read_as_they_were_written() {
    let redis = RedisServer::start();
    // Epochs, and what is below, begin with a letter and end with six bytes of 0.
    let counts = |letters: &str| letters.chars().map(|letter| format!("{letter}\0\0\0\0\0\0")).collect::<String>();
    let long = format!("\x02{}PROCESS1{}", counts("e\x0a\x05\x0f\x03\0\0"), counts("\x09\x02"));
    let _: String = redis.query(&["SET", "tidegate:3:{ab}:abc_-:17", &long]);
    let short = format!("\x01{}", counts("e\x07"));
    let _: String = redis.query(&["SET", "tidegate:3:{ab}:abc_-:18", &short]);
    let block = format!("\x01{}PROCESS2{}", counts(&format!("e{}\x04", "\0".repeat(15))), counts(&"\x01".repeat(16)));
    let _: String = redis.query(&["SET", "tidegate:3:{ab}:abc_-:x2", &block]);
    let cells = redis.cells();
    assert_eq!((cells[0].key.as_str(), cells[0].sequence, cells[0].hits, cells[0].refunds), ("abc_-", 17, 15, 3));
    assert_eq!(cells[0].fields, BTreeMap::from([("50524f4345535331".to_owned(), (9, 2))]));
    assert_eq!((cells.len(), cells[2].sequence, cells[2].hits, cells[2].fields.len()), (3, 47, 4, 1));
    assert_eq!(redis.total_hits(), 23);
    assert!(redis.calls_of("set") == 3 && redis.calls_of("evalsha") == 0);
    assert!(redis.commands_processed() > 2);
}

#[test]
fn a_grep_looks_into_every_kind_of_value() {
    let redis = RedisServer::start();
    let writes: [&[&str]; 6] = [
        &["SET", "a-plum", "x"],
        &["HSET", "h", "pear", "fig"],
        &["RPUSH", "l", "x", "apple"],
        &["SADD", "s", "lemon"],
        &["ZADD", "z", "1", "cherry"],
        &["XADD", "x", "*", "grape", "quince"],
    ];
    for words in writes {
        let _: Value = redis.query(words);
    }
    for part in ["plum", "pear", "fig", "apple", "lemon", "cherry", "grape", "quince"] {
        assert!(redis.grep(part.as_bytes()), "{part}");
    }
    assert!(!redis.grep(b"melon"));
}

#[test]
fn a_server_stands_still_goes_on_and_comes_back_empty() {
    let mut redis = RedisServer::with_password("open sesame");
    let _: String = redis.query(&["SET", "k", "v"]);
    redis.stop();
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", redis.process().pid())).unwrap();
    until(PATIENCE, "Redis stands still", || state().contains(") T ").then_some(()));
    redis.cont();
    assert_eq!(redis.query::<String>(&["GET", "k"]), "v");
    let port = redis.port();
    redis.restart_empty();
    assert_eq!(redis.port(), port);
    assert_eq!(redis.query::<Option<String>>(&["GET", "k"]), None);
}

#[test]
fn a_server_loads_what_it_has_saved() {
    let mut redis = RedisServer::start();
    let _: String = redis.query(&["SET", "k", "saved"]);
    redis.save();
    let _: String = redis.query(&["SET", "k", "lost"]);
    redis.restart_loading(Duration::from_secs(2));
    let cli = || run(Command::new("redis-cli").args(["-p", &redis.port().to_string(), "GET", "k"])).stdout;
    assert!(cli().starts_with("LOADING"), "{}", redis.log());
    until(PATIENCE, "Redis has loaded", || (!redis.is_loading()).then_some(()));
    assert_eq!(cli().trim(), "saved");
}

#[test]
fn a_clock_that_is_ahead_stays_ahead() {
    let (ahead, right) = (RedisServer::with_clock_ahead(Duration::from_secs(3)), RedisServer::start());
    let time = |redis: &RedisServer| redis.query::<(f64, f64)>(&["TIME"]).0;
    // Whole seconds, one after the other.
    let (before, then, after) = (time(&right), time(&ahead), time(&right));
    assert!(then >= before + 2.0 && then <= after + 4.0, "{then} between {before} and {after}");
}

#[test]
fn a_replica_has_what_its_master_has() {
    let master = RedisServer::start();
    let _: String = master.query(&["SET", "k", "v"]);
    let replica = replica_of(master.address());
    assert_eq!(replica.query::<String>(&["GET", "k"]), "v");
    let _: String = replica.query(&["REPLICAOF", "NO", "ONE"]);
    let _: String = replica.query(&["SET", "k", "w"]);
}

#[test]
fn a_server_answers_over_tls_and_on_its_socket() {
    let redis = RedisServer::with_tls(&Authority::new("redis"));
    let asked = |args: &[&str]| run(Command::new("redis-cli").args(args).arg("PING")).stdout.trim().to_owned();
    let port = redis.tls_port().to_string();
    let [ca, certificate, key, socket] = ["ca.crt", "tls.crt", "tls.key", "redis.sock"].map(|name| redis.file(name));
    let tls = ["-h", "localhost", "-p", &port, "--tls", "--cacert", &ca];
    assert_eq!(asked(&tls), "PONG");
    assert_eq!(asked(&["-s", &socket]), "PONG");
    let _: String = redis.query(&["CONFIG", "SET", "tls-auth-clients", "yes"]);
    assert_ne!(asked(&tls), "PONG", "clients need a certificate now");
    assert_eq!(asked(&[&tls[..], &["--cert", &certificate, "--key", &key]].concat()), "PONG");
}
