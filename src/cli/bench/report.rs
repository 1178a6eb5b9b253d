//! The result of a run, for people and programs.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::bench::BenchFlags;
use crate::cli::bench::tally::BenchTally;
use crate::cli::check::plural;

pub(super) struct BenchReport<'a> {
    /// What was asked for; the report repeats it.
    pub flags: &'a BenchFlags,
    /// As many as ran: the default filled in, and never more than connections.
    pub threads: usize,
    /// How long requests were counted.
    pub lasted: Duration,
    /// Of all threads together, without the warm-up.
    pub tally: BenchTally,
    /// CPU that this process used in that time. `None` if the system does not tell.
    pub client_cpu: Option<Duration>,
    /// CPU that the server used in that time. `None` without `--server-pid` too.
    pub server_cpu: Option<Duration>,
}

impl BenchReport<'_> {
    fn per_second(&self) -> f64 {
        self.tally.answers() as f64 / self.lasted.as_secs_f64().max(1e-9)
    }

    /// Microseconds of CPU per answered request.
    fn cpu_us(&self, used: Option<Duration>) -> Option<f64> {
        let answers = self.tally.answers();
        used.filter(|_| answers > 0).map(|used| used.as_secs_f64() * 1e6 / answers as f64)
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let tally = &self.tally;
        writeln!(out, "{}", self.title())?;
        let seconds = self.lasted.as_secs_f64();
        writeln!(out, "requests  {} in {seconds:.2} s: {:.0}/s", tally.answers(), self.per_second())?;
        if let Some(latency) = tally.latency.describe() {
            writeln!(out, "latency   {latency}")?;
        }
        write!(out, "verdicts  ok {}, over_limit {}", tally.ok, tally.over_limit)?;
        writeln!(out, "{}", if tally.unknown > 0 { format!(", unknown {}", tally.unknown) } else { String::new() })?;
        let errors: Vec<String> = tally.errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        writeln!(out, "errors    {}", if errors.is_empty() { "none".into() } else { errors.join(", ") })?;
        let mut cpu = vec![self.cpu("client", self.client_cpu)];
        if self.flags.server_pid.is_some() {
            cpu.push(self.cpu("server", self.server_cpu));
        }
        writeln!(out, "CPU       {}", cpu.join("; "))?;
        if self.is_client_busy() {
            writeln!(
                out,
                "note      the client's threads were nearly always busy: with more --threads there may be more"
            )?;
        }
        Ok(())
    }

    fn title(&self) -> String {
        let flags = self.flags;
        let pace = flags.rate.map_or_else(|| "as fast as answers come".into(), |rate| format!("{rate} requests/s"));
        let skew = flags.zipf.map_or_else(String::new, |skew| format!(" (zipf {skew})"));
        format!(
            "{}: domain {}, {} of {} with {}{skew}; {} x {}, {pace}",
            flags.server.addr.place,
            flags.domain,
            plural(flags.descriptors as usize, "descriptor"),
            flags.key,
            plural(flags.keys as usize, "value"),
            plural(flags.connections as usize, "connection"),
            plural(flags.streams as usize, "stream"),
        )
    }

    fn cpu(&self, whose: &str, used: Option<Duration>) -> String {
        match (used, self.cpu_us(used)) {
            (Some(used), Some(micros)) => {
                let share = 100.0 * used.as_secs_f64() / self.lasted.as_secs_f64().max(1e-9);
                format!("{whose} {micros:.1} us per request, {share:.0} % of a core")
            }
            _ => format!("{whose} unknown"),
        }
    }

    /// Whether the client used more than nine tenths of its threads: then it may be what limits the throughput.
    fn is_client_busy(&self) -> bool {
        let available = self.lasted.as_secs_f64() * self.threads as f64;
        self.client_cpu.is_some_and(|used| used.as_secs_f64() > 0.9 * available)
    }

    pub(super) fn as_json(&self) -> Value {
        let (flags, tally) = (self.flags, &self.tally);
        let tenth = |figure: f64| (figure * 10.0).round() / 10.0;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut document = json!({
            "addr": flags.server.addr.place.to_string(),
            "domain": flags.domain,
            "key": flags.key,
            "keys": flags.keys,
            "zipf": flags.zipf,
            "descriptors": flags.descriptors,
            "connections": flags.connections,
            "streams": flags.streams,
            "threads": self.threads,
            "rate": flags.rate,
            "duration_ms": millis(self.lasted),
            "requests": tally.answers(),
            "requests_per_s": tenth(self.per_second()),
            "ok": tally.ok,
            "over_limit": tally.over_limit,
            "unknown": tally.unknown,
            "errors": tally.errors,
            "errors_total": tally.errors_total(),
            "client_cpu_ms": self.client_cpu.map(millis),
            "client_cpu_per_request_us": self.cpu_us(self.client_cpu).map(tenth),
            "server_cpu_ms": self.server_cpu.map(millis),
            "server_cpu_per_request_us": self.cpu_us(self.server_cpu).map(tenth),
        });
        if let Value::Object(fields) = &mut document {
            fields.extend(tally.latency.as_json());
        }
        document
    }
}
