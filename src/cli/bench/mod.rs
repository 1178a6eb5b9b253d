//! `tidegate bench`: how many requests per second does a server answer, how fast, and at what cost?
//!
//! It speaks to any server of `envoy.service.ratelimit.v3`. Each request costs it far less than a gRPC server's answer
//! costs, so that on the same machine the server is what limits the figures; both costs are in the report. From outside
//! in: `load` has threads, `link` connections, `http2` speaks on them, `message` and `choice` say what is
//! asked, `pace` when, and `tally` counts what came back.

mod choice;
mod http2;
mod link;
mod load;
mod message;
mod pace;
mod progress;
mod report;
mod tally;

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, value_parser};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{interval_at, sleep_until};

use crate::cli::bench::choice::Spread;
use crate::cli::bench::http2::FRAME_BYTES_MAX;
use crate::cli::bench::http2::hpack::RequestBlocks;
use crate::cli::bench::load::{LoadPhase, LoadPlan, LoadStart, LoadWorker};
use crate::cli::bench::message::{RequestShape, Template};
use crate::cli::bench::pace::{Pacer, Ticks};
use crate::cli::bench::progress::Progress;
use crate::cli::bench::report::BenchReport;
use crate::cli::bench::tally::BenchTally;
use crate::cli::client::connect::{PATH, Target};
use crate::cli::client::{ServerFlags, advice};
use crate::cli::{Exit, Output};
use crate::flag_value::duration;
use crate::observe::process::ProcessFigures;
use crate::request::VALUE_BYTES_MAX;

pub(crate) const EXAMPLES: &str = "Examples:
  tidegate bench                                          # port 8081, the example rules
  tidegate bench --keys 1000000 --zipf 1.1 --server-pid $(pidof ratelimit)
  tidegate bench --addr ratelimit:8081 --rate 20000       # latency at a given load
  tidegate bench --domain api --key api_key --descriptors 4 --output json

Verdicts depend on the server's rules; a descriptor without one is OK.
Exits with 0 if every request was answered, and with 1 otherwise.";

const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Args, Debug)]
pub struct BenchFlags {
    #[command(flatten)]
    pub server: ServerFlags,

    /// The domain that is asked for
    #[arg(long, default_value = "edge", help_heading = "Requests")]
    pub domain: String,

    /// The key of each descriptor; its value is a number
    #[arg(long, default_value = "remote_address", help_heading = "Requests")]
    pub key: String,

    /// How many different values there are
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Requests")]
    #[arg(value_parser = value_parser!(u64).range(1..=100_000_000))]
    pub keys: u64,

    /// Ask for some values far more often than others, by Zipf's law with this exponent; without it, for all alike
    #[arg(long, value_name = "EXPONENT", value_parser = exponent, help_heading = "Requests")]
    #[arg(allow_negative_numbers = true)]
    pub zipf: Option<f64>,

    /// The length of the values
    #[arg(long, value_name = "COUNT", default_value_t = 32, help_heading = "Requests")]
    #[arg(value_parser = value_parser!(u64).range(1..=VALUE_BYTES_MAX as u64))]
    pub value_bytes: u64,

    /// Descriptors in a request, each with a value of its own choice
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Requests")]
    #[arg(value_parser = value_parser!(u64).range(1..=1000))]
    pub descriptors: u64,

    /// What a request costs (hits_addend); servers take 0, the default, for 1
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true, help_heading = "Requests")]
    pub hits: u32,

    /// Connections
    #[arg(long, value_name = "COUNT", default_value_t = 4, help_heading = "Load")]
    #[arg(value_parser = value_parser!(u64).range(1..=1000))]
    pub connections: u64,

    /// Requests in flight on each connection
    #[arg(long, value_name = "COUNT", default_value_t = 32, help_heading = "Load")]
    #[arg(value_parser = value_parser!(u64).range(1..=1000))]
    pub streams: u64,

    /// Requests per second, of all connections together; latency then counts from when a request was due. Without it,
    /// as fast as answers come
    #[arg(long, value_name = "NUMBER", value_parser = rate, help_heading = "Load")]
    #[arg(allow_negative_numbers = true)]
    pub rate: Option<f64>,

    /// How long to count
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = run_time, help_heading = "Load")]
    pub duration: Duration,

    /// How long to send before that without counting
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = warm_up, help_heading = "Load")]
    pub warmup: Duration,

    /// Threads; by default 2, or 1 on a machine with fewer than four cores, where the server needs the others
    #[arg(long, value_name = "COUNT", help_heading = "Load")]
    #[arg(value_parser = value_parser!(u64).range(1..=256))]
    pub threads: Option<u64>,

    /// The server's process, if it is on this machine: the report shows its CPU per request
    #[arg(long, value_name = "PID", help_heading = "Report")]
    pub server_pid: Option<u32>,

    /// How to print
    #[arg(long, value_enum, default_value = "text", help_heading = "Report")]
    pub output: Output,
}

fn exponent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(exponent) if exponent > 0.0 && exponent <= 10.0 => Ok(exponent),
        _ => Err("write a number above 0, up to 10".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.1..=10_000_000.0).contains(&rate) => Ok(rate),
        _ => Err("write a number from 0.1 to 10000000".into()),
    }
}

fn run_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if (Duration::from_millis(10)..=DURATION_MAX).contains(&time) => Ok(time),
        _ => Err("write a duration from 10ms to 1day".into()),
    }
}

fn warm_up(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time <= DURATION_MAX => Ok(time),
        _ => Err("write a duration from 0s to 1day".into()),
    }
}

pub(crate) fn run(flags: &BenchFlags) -> anyhow::Result<Exit> {
    let plan = plan(flags)?;
    if let Some(pid) = flags.server_pid {
        anyhow::ensure!(
            ProcessFigures::of(&pid.to_string()).is_some(),
            "no process {pid} on this machine (--server-pid)"
        );
    }
    // Each connection is a file. Where the system does not allow more, opening one says so.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("can't start")?;
    let report = runtime.block_on(measure(flags, Arc::new(plan)))?;
    let is_good = report.tally.errors_total() == 0 && report.tally.answers() > 0;
    let exit = if is_good { Exit::Success } else { Exit::Failure };
    let mut out = std::io::stdout().lock();
    exit.after(match flags.output {
        Output::Json => writeln!(out, "{:#}", report.as_json()),
        Output::Text => report.print(&mut out),
    })
}

/// Checks the flags as a whole.
fn plan(flags: &BenchFlags) -> anyhow::Result<LoadPlan> {
    let digits = (flags.keys - 1).to_string().len() as u64;
    if flags.value_bytes < digits {
        bail!(
            "--value-bytes {} has no room for {} different values: write at least {digits}",
            flags.value_bytes,
            flags.keys
        );
    }
    let shape = RequestShape {
        domain: flags.domain.clone(),
        key: flags.key.clone(),
        descriptors: flags.descriptors as usize,
        hits: flags.hits,
        value_bytes: flags.value_bytes as usize,
    };
    let template = Template::new(&shape);
    if template.bytes() > FRAME_BYTES_MAX {
        bail!(
            "a request of {} bytes is too long, at most {FRAME_BYTES_MAX} go: lower --descriptors or --value-bytes",
            template.bytes()
        );
    }
    let target = Target::new(&flags.server)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = flags.threads.map_or((cores / 2).clamp(1, 2), |threads| threads as usize);
    Ok(LoadPlan {
        blocks: RequestBlocks::new(target.is_secure(), &target.place.authority(), PATH),
        target,
        template,
        spread: Spread::new(flags.keys, flags.zipf).map_err(anyhow::Error::msg)?,
        // A thread without a connection has nothing to do.
        threads: threads.min(flags.connections as usize),
        connections: flags.connections as usize,
        streams: flags.streams as usize,
        rate: flags.rate,
    })
}

async fn measure(flags: &BenchFlags, plan: Arc<LoadPlan>) -> anyhow::Result<BenchReport<'_>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (phase, watched) = watch::channel(LoadPhase::Opening);
    let start_one = |number| LoadWorker::start(plan.clone(), number, watched.clone());
    let mut workers = (0..plan.threads).map(start_one).collect::<anyhow::Result<Vec<_>>>()?;
    for worker in &mut workers {
        let opened = (&mut worker.opened).await.context("a thread of the load did not start")?;
        opened.map_err(|error| anyhow::anyhow!("{error}\n  help: {}", advice::on_connect(&error)))?;
    }
    let at = Instant::now();
    let counted_from = at + flags.warmup;
    let beat =
        |(number, worker): (usize, &LoadWorker), rate| (Ticks::new(at, rate, number, plan.threads), worker.due.clone());
    let beats = plan.rate.map(|rate| workers.iter().enumerate().map(|worker| beat(worker, rate)).collect());
    let pacer = beats.map(Pacer::start).transpose()?;
    phase.send_replace(LoadPhase::Running(LoadStart { at, counted_from }));

    let mut progress = Progress::new();
    let is_interrupted = tokio::select! {
        () = sleep_until(counted_from.into()) => false,
        _ = interrupt.recv() => true,
    };
    progress.restart();
    let before = Cpu::used(flags);
    if !is_interrupted {
        watch_over(&workers, counted_from + flags.duration, &mut progress, &mut interrupt).await?;
    }
    phase.send_replace(LoadPhase::Over);
    let lasted = Instant::now().saturating_duration_since(counted_from);
    let after = Cpu::used(flags);
    drop(pacer);
    for worker in &mut workers {
        // Nothing is ever sent on it. It closes with the thread.
        let _ = (&mut worker.ended).await;
    }
    progress.end();
    let tally = total(&workers)?;
    let used = |before: Option<Duration>, after: Option<Duration>| after?.checked_sub(before?);
    let client_cpu = used(before.client, after.client);
    let server_cpu = used(before.server, after.server);
    Ok(BenchReport { flags, threads: plan.threads, lasted, tally, client_cpu, server_cpu })
}

/// Shows progress until the end of the run, or until someone has seen enough.
async fn watch_over(
    workers: &[LoadWorker],
    end: Instant,
    progress: &mut Progress,
    interrupt: &mut Signal,
) -> anyhow::Result<()> {
    let every = progress.interval();
    let mut ticks = interval_at((Instant::now() + every).into(), every);
    loop {
        tokio::select! {
            () = sleep_until(end.into()) => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = ticks.tick() => progress.show(&total(workers)?),
        }
    }
}

fn total(workers: &[LoadWorker]) -> anyhow::Result<BenchTally> {
    let mut total = BenchTally::new()?;
    workers.iter().for_each(|worker| total.add(&worker.tally.lock()));
    Ok(total)
}

/// How much CPU both sides have used so far; `None` if it is not known.
struct Cpu {
    client: Option<Duration>,
    server: Option<Duration>,
}

impl Cpu {
    fn used(flags: &BenchFlags) -> Cpu {
        let used = |pid: &str| ProcessFigures::of(pid).map(|figures| figures.cpu);
        Cpu { client: used("self"), server: flags.server_pid.and_then(|pid| used(&pid.to_string())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: BenchFlags,
    }

    fn flags(args: &[&str]) -> Result<BenchFlags, String> {
        let parsed = Command::try_parse_from(std::iter::once("bench").chain(args.iter().copied()));
        parsed.map(|command| command.flags).map_err(|error| error.to_string())
    }

    #[test]
    fn every_flag_is_bounded() {
        for bad in [
            ["--connections", "0"],
            ["--connections", "1001"],
            ["--streams", "0"],
            ["--streams", "1001"],
            ["--keys", "0"],
            ["--keys", "100000001"],
            ["--zipf", "0"],
            ["--zipf", "-1"],
            ["--zipf", "nan"],
            ["--descriptors", "0"],
            ["--value-bytes", "0"],
            ["--value-bytes", "16385"],
            ["--threads", "0"],
            ["--rate", "0"],
            ["--rate", "inf"],
            ["--duration", "0s"],
            ["--duration", "10"],
            ["--warmup", "2d"],
        ] {
            let said = flags(&bad).map(|_| ()).expect_err(&bad.join(" "));
            assert!(said.contains(bad[0]), "{said}");
        }
    }

    #[test]
    fn values_need_room_for_their_digits() {
        let said = |args: &[&str]| plan(&flags(args).unwrap()).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(said(&["--keys", "1000", "--value-bytes", "3"]), Ok(()));
        assert!(said(&["--keys", "1001", "--value-bytes", "3"]).unwrap_err().contains("at least 4"));
    }

    #[test]
    fn a_request_fits_into_a_frame() {
        let said = |args: &[&str]| plan(&flags(args).unwrap()).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(said(&["--value-bytes", "16000"]), Ok(()));
        assert!(said(&["--value-bytes", "16384"]).unwrap_err().contains("--value-bytes"));
        assert!(said(&["--descriptors", "1000"]).unwrap_err().contains("at most 16384"));
    }

    #[test]
    fn no_thread_is_without_a_connection() {
        let plan = plan(&flags(&["--connections", "1", "--threads", "8"]).unwrap()).unwrap();
        assert_eq!(plan.threads, 1);
    }
}
