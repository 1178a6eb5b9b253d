//! A process of `tidegate serve` on free ports. It says itself whether its layers are up.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::process::Process;

const CONNECTS_WITHIN: Duration = Duration::from_secs(30);

pub struct TidegateServer {
    process: Process,
    /// The address of its gRPC port.
    address: String,
    /// The address of its HTTP port.
    http: String,
    /// The address of its admin port.
    admin: String,
    /// Those that have to be up.
    layers: &'static [&'static str],
}

impl TidegateServer {
    /// Starts Tidegate with all defaults, except for these settings and free ports. Returns when the layers are up.
    pub fn start(
        rules: &Path,
        settings: &[(&str, String)],
        layers: &'static [&'static str],
    ) -> anyhow::Result<TidegateServer> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["serve", "--host", "127.0.0.1", "--port", "0", "--grpc-host", "127.0.0.1", "--grpc-port", "0"]);
        command.args(["--debug-port", "0", "--rules"]).arg(rules).env_clear().stderr(Stdio::piped());
        let mut process = Process::start(command.envs(settings.iter().map(|(name, value)| (name, value))))?;
        let (address, http, admin) = process.first_on_stderr(addresses)?;
        let server = TidegateServer { process, address, http, admin, layers };
        server.wait_for_layers()?;
        Ok(server)
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What the server says about a layer that is not up; `None` if all that it should have are up.
    pub fn lost_layer(&self) -> anyhow::Result<Option<String>> {
        if self.layers.is_empty() {
            return Ok(None);
        }
        let said = get(&self.http, "/readyz?verbose")?;
        let is_lost = |layer: &&&str| !said.contains(&format!("[+] {layer}: up"));
        let line = |layer: &&str| said.lines().find(|line| line.contains(layer)).unwrap_or(layer).to_owned();
        Ok(self.layers.iter().find(is_lost).map(line))
    }

    /// What the server has counted so far under this name, labels included: `name_total{label="word"}`.
    pub fn counter(&self, name: &str) -> anyhow::Result<u64> {
        let said = get(&self.admin, "/metrics")?;
        let figure = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        figure.and_then(|figure| figure.parse().ok()).with_context(|| format!("{} does not count {name}", self.admin))
    }

    fn wait_for_layers(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        while let Some(lost) = self.lost_layer()? {
            ensure!(began.elapsed() < CONNECTS_WITHIN, "{} does not reach its stores: {lost}", self.address);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// Asks for a page, and answers it with its head.
fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

/// Reads the addresses in `serving ... on 127.0.0.1:1 (gRPC), 127.0.0.1:2 (HTTP) and 127.0.0.1:3 (admin)`.
fn addresses(line: &str) -> Option<(String, String, String)> {
    let before = |mark: &str| line.split_once(mark)?.0.rsplit(' ').next().map(str::to_owned);
    Some((before(" (gRPC)")?, before(" (HTTP)")?, before(" (admin)")?))
}
