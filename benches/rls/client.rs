//! The clients: `tidegate bench`, and h2load as a check by a client that is not ours.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use prost::Message;
use serde_json::Value;
use tempfile::NamedTempFile;
use tidegate::observe::process::ProcessFigures;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;

use crate::figures::Run;
use crate::scenario::{Load, Rule, Scenario};
use crate::servers::Server;

const STREAMS: u64 = 32;
/// The only error that is forgiven: at the end of a paced run a few requests may still be due.
const UNSENT: &str = "unsent";
/// The least bytes of an answer. An error has no message at all.
const ANSWER_BYTES_MIN: u64 = 10;

/// One turn of a client.
pub struct Ask<'a> {
    pub scenario: &'a Scenario,
    pub rule: &'a Rule,
    pub descriptors: u64,
    pub rate: Option<f64>,
    pub warmup: Duration,
    pub duration: Duration,
}

impl Ask<'_> {
    pub fn run(&self, server: &Server) -> anyhow::Result<Run> {
        let stores_before = stores_cpu(server);
        let began = Instant::now();
        let run = match self.scenario.load {
            Load::H2load => self.h2load(server),
            Load::Full | Load::HalfOfTonic => self.bench(server),
        };
        let mut run = run.with_context(|| format!("{} under '{}'", server.name, self.scenario.name))?;
        let used = stores_cpu(server).zip(stores_before).and_then(|(after, before)| after.checked_sub(before));
        run.stores_cores = used.map(|used| used.as_secs_f64() / began.elapsed().as_secs_f64());
        run.lost = server.lost_store()?;
        Ok(run)
    }

    /// The command as one would type it.
    pub fn command_line(&self, server: &Server) -> String {
        let (program, command) = match self.scenario.load {
            Load::H2load => ("h2load", self.h2load_command(server, "request.bin")),
            Load::Full | Load::HalfOfTonic => ("tidegate", self.bench_command(server)),
        };
        let quoted = |arg: &str| if arg.contains(' ') { format!("'{arg}'") } else { arg.to_owned() };
        let args = command.get_args().map(|arg| quoted(&arg.to_string_lossy()));
        std::iter::once(program.to_owned()).chain(args).collect::<Vec<_>>().join(" ")
    }

    fn bench_command(&self, server: &Server) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("bench").env_clear();
        let mut option = |name: &str, value: String| {
            command.arg(format!("--{name}")).arg(value);
        };
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        option("addr", server.address.clone());
        option("key", self.rule.key.clone());
        option("keys", self.scenario.keys.to_string());
        option("descriptors", self.descriptors.to_string());
        option("connections", self.scenario.connections.to_string());
        option("streams", STREAMS.to_string());
        option("warmup", millis(self.warmup));
        option("duration", millis(self.duration));
        option("output", "json".into());
        if let Some(zipf) = self.scenario.zipf {
            option("zipf", zipf.to_string());
        }
        if let Some(rate) = self.rate {
            option("rate", format!("{rate:.0}"));
        }
        if let Some(pid) = server.pid {
            option("server-pid", pid.to_string());
        }
        command
    }

    fn bench(&self, server: &Server) -> anyhow::Result<Run> {
        let ran = self.bench_command(server).output().context("can't start tidegate bench")?;
        let report: Value = serde_json::from_slice(&ran.stdout)
            .with_context(|| format!("tidegate bench: {}", String::from_utf8_lossy(&ran.stderr)))?;
        let count = |name: &str| report[name].as_u64().with_context(|| format!("no {name} in {report}"));
        let unsent = report["errors"][UNSENT].as_u64().unwrap_or(0);
        ensure!(count("errors_total")? == unsent && count("unknown")? == 0, "not every answer is right: {report}");
        let requests = count("requests")?;
        ensure!(requests > 0, "no answers: {report}");
        let per_request_us = |name: &str| report[name].as_f64().map(|millis| millis * 1e3 / requests as f64);
        let millis = |name: &str| report[name].as_f64().map(|micros| micros / 1e3);
        Ok(Run {
            requests,
            requests_per_s: report["requests_per_s"].as_f64().context("no requests_per_s")?,
            server_us: per_request_us("server_cpu_ms"),
            client_us: per_request_us("client_cpu_ms"),
            p50_ms: millis("p50_us"),
            p99_ms: millis("p99_us"),
            passed: Some(count("ok")? as f64 / requests as f64),
            client_threads: count("threads")?,
            unsent,
            ..Run::default()
        })
    }

    fn h2load_command(&self, server: &Server, body: &str) -> Command {
        let mut command = Command::new("h2load");
        command.args(["-c", &self.scenario.connections.to_string(), "-m", &STREAMS.to_string()]);
        // h2load takes whole seconds, and does not count what it does before them.
        command.args(["-D", &self.duration.as_secs().max(1).to_string(), "-d", body]);
        command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
        command.arg(format!("http://{}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", server.address));
        command
    }

    fn h2load(&self, server: &Server) -> anyhow::Result<Run> {
        let mut body = NamedTempFile::new()?;
        body.write_all(&framed_request(&self.rule.key))?;
        let mut command = self.h2load_command(server, &body.path().to_string_lossy());
        let cpu = |pid: Option<u32>| ProcessFigures::of(&pid?.to_string()).map(|figures| figures.cpu);
        let before = cpu(server.pid);
        let mut child = command.stdout(Stdio::piped()).spawn().context("can't start h2load")?;
        let mut said = String::new();
        if let Some(stdout) = &mut child.stdout {
            stdout.read_to_string(&mut said)?;
        }
        let server_cpu = cpu(server.pid).zip(before).and_then(|(after, before)| after.checked_sub(before));
        // h2load has ended, but the system knows its figures until somebody waits for it.
        let client_cpu = cpu(Some(child.id()));
        ensure!(child.wait()?.success(), "h2load failed: {said}");
        let (requests, requests_per_s) = read_h2load(&said)?;
        let per_request_us = |used: Duration| used.as_secs_f64() * 1e6 / requests as f64;
        Ok(Run {
            requests,
            requests_per_s,
            server_us: server_cpu.map(per_request_us),
            client_us: client_cpu.map(per_request_us),
            client_threads: 1,
            ..Run::default()
        })
    }
}

fn stores_cpu(server: &Server) -> Option<Duration> {
    let pids = server.stores.as_ref()?.pids();
    pids.into_iter().map(|pid| ProcessFigures::of(&pid.to_string()).map(|figures| figures.cpu)).sum()
}

fn framed_request(key: &str) -> Vec<u8> {
    let entries = vec![Entry { key: key.into(), value: "0".repeat(32) }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    let request = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 };
    let mut framed = vec![0];
    framed.extend((request.encoded_len() as u32).to_be_bytes());
    framed.extend(request.encode_to_vec());
    framed
}

/// How many requests h2load made, and how many a second. An error if not all of them went well.
fn read_h2load(said: &str) -> anyhow::Result<(u64, f64)> {
    let line = |start: &str| {
        said.lines().find_map(|line| line.strip_prefix(start)).with_context(|| format!("no '{start}' in {said}"))
    };
    // `1.00s, 51234.00 req/s, 6.75MB/s`
    let per_second = line("finished in ")?.split(", ").find_map(|part| part.strip_suffix(" req/s"));
    // `51234 total, 51362 started, 51234 done, 51234 succeeded, 0 failed, 0 errored, 0 timeout`
    let requests = line("requests: ")?;
    let count = |what: &str| {
        let found = requests.split(", ").find_map(|part| part.strip_suffix(what)?.trim().parse::<u64>().ok());
        found.with_context(|| format!("no '{what}' in {requests}"))
    };
    let done = count(" done")?;
    if done == 0 || done != count(" succeeded")? {
        bail!("h2load: {requests}");
    }
    // `traffic: 6.75MB (7081234) total, ... 1.71MB (1793190) data`: h2load takes a gRPC error for a success.
    let data = line("traffic: ")?.strip_suffix(") data").and_then(|rest| rest.rsplit('(').next()?.parse::<u64>().ok());
    ensure!(data.context("no data")? >= done * ANSWER_BYTES_MIN, "answers without a message: {said}");
    Ok((done, per_second.context("no requests per second")?.parse()?))
}

/// Asks for many keys at once, until nearly all of them have been asked for.
pub fn fill(server: &Server, scenario: &Scenario) -> anyhow::Result<()> {
    /// As many descriptors as a request may have by default.
    const DESCRIPTORS: u64 = 32;
    /// At random, this meets 1 - e^-4 of all keys: 98 %.
    const EACH_KEY_TIMES: u64 = 4;
    // All keys alike, even if the load itself favours some.
    let scenario = &Scenario { zipf: None, ..*scenario };
    let (warmup, duration) = (Duration::ZERO, Duration::from_secs(1));
    let rule = &Rule::far();
    let ask = Ask { scenario, rule, descriptors: DESCRIPTORS, rate: None, warmup, duration };
    let mut asked = 0;
    while asked < EACH_KEY_TIMES * scenario.keys {
        asked += DESCRIPTORS * ask.run(server)?.requests;
    }
    Ok(())
}
