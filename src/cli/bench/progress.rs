//! How it goes, while it goes: a line that is rewritten every second on a terminal, or a line every few seconds.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::cli::bench::tally::BenchTally;
use crate::cli::latency::millis;

pub(super) struct Progress {
    is_terminal: bool,
    /// When it was last shown, and how many answers there were then.
    last: (Instant, u64),
    /// How many characters the line on the terminal has, to write over them.
    width: usize,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress { is_terminal: stderr().is_terminal(), last: (Instant::now(), 0), width: 0 }
    }

    /// How often to show it.
    pub(super) fn interval(&self) -> Duration {
        Duration::from_secs(if self.is_terminal { 1 } else { 5 })
    }

    /// Shows what has been counted so far.
    pub(super) fn show(&mut self, tally: &BenchTally) {
        let now = Instant::now();
        let (before, answers) = self.last;
        let per_s = (tally.answers() - answers) as f64 / (now - before).as_secs_f64().max(1e-9);
        self.last = (now, tally.answers());
        let p99 = millis(tally.latency.quantile(0.99));
        self.write(&format!("{per_s:.0} requests/s, p99 {p99}, {} errors", tally.errors_total()));
    }

    /// Counting starts afresh.
    pub(super) fn restart(&mut self) {
        self.last = (Instant::now(), 0);
    }

    /// Clears the line for the report.
    pub(super) fn end(&mut self) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r{:width$}\r", "", width = self.width);
        }
    }

    /// If standard error is gone, there is nobody to tell, which is no reason to stop.
    fn write(&mut self, text: &str) {
        if self.is_terminal {
            let _ = write!(stderr(), "\r{text:width$}", width = self.width);
            self.width = text.chars().count();
        } else {
            let _ = writeln!(stderr(), "{text}");
        }
    }
}
