//! A Redis of the bench's own: what it is sent, and the CPU that it takes for that.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use redis::{ConnectionLike, Value};
use tempfile::TempDir;

const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

pub struct Server {
    process: Process,
    connection: redis::Connection,
    /// Of Redis.
    pub version: String,
    _directory: TempDir,
}

/// Ends when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail for a process that has ended, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    pub fn start() -> anyhow::Result<Server> {
        let directory = tempfile::tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process(command.spawn().context("can't start redis-server")?);
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        let until = Instant::now() + ANSWERS_WITHIN;
        let mut connection = loop {
            match client.get_connection() {
                Ok(connection) => break connection,
                Err(error) => ensure!(Instant::now() < until, "Redis does not answer: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?").to_owned();
        Ok(Server { process, connection, version, _directory: directory })
    }

    pub fn load(&mut self, script: &str) -> anyhow::Result<String> {
        Ok(redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut self.connection)?)
    }

    /// Sends commands that are packed already, and waits for as many answers.
    pub fn send(&mut self, packed: &[u8], answers: usize) -> anyhow::Result<Vec<Value>> {
        let said = self.connection.req_packed_commands(packed, 0, answers)?;
        said.into_iter().map(|value| value.extract_error().context("Redis refuses")).collect()
    }

    /// The CPU time that the server has taken so far.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let path = format!("/proc/{}/schedstat", self.process.0.id());
        let said = std::fs::read_to_string(&path).with_context(|| format!("can't read {path}"))?;
        let ns = said.split(' ').next().and_then(|ns| ns.parse().ok()).with_context(|| format!("no time in {path}"))?;
        Ok(Duration::from_nanos(ns))
    }
}
