//! What is known about the rules in force, and about the last attempt to put others into force.

use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;

use crate::clock::wall_time;
use crate::rules::problem::{Problem, Severity};

/// How many problems of an attempt are kept: a broken generator should not fill the memory.
const PROBLEMS_MAX: usize = 1000;

/// The state of the rules, for `/config/status`, metrics and the log.
#[derive(Debug, Default)]
pub(crate) struct ConfigStatus(Mutex<LoadReport>);

/// A copy of the state at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LoadReport {
    /// How many rulesets have come into force; 0 before the first.
    pub generation: u64,
    /// When the rules in force came into force, in seconds since the epoch. `None` before the first.
    pub loaded_at_s: Option<u64>,
    /// Of the rules in force; 0 before the first.
    pub domains: usize,
    /// In all domains together; 0 before the first.
    pub rules: usize,
    /// Attempts that put rules into force, since the start.
    pub loads_succeeded: u64,
    /// Attempts whose rules were refused, since the start. They changed nothing.
    pub loads_failed: u64,
    /// The attempt that ended last, good or not. `None` before the first.
    pub last_attempt: Option<LoadAttempt>,
}

/// One attempt to load rules.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoadAttempt {
    /// When it ended, in seconds since the epoch.
    pub at_s: u64,
    /// Whether its rules came into force.
    pub ok: bool,
    /// From the first read to its end, in whole milliseconds.
    pub took_ms: u64,
    /// All that were found, also those that `problems` has no room for.
    pub errors: usize,
    /// Counted like `errors`. There may be some even if `ok`.
    pub warnings: usize,
    /// Errors first, at most `PROBLEMS_MAX`.
    pub problems: Vec<Problem>,
}

impl ConfigStatus {
    /// Notes that rules have come into force: so many domains, and so many rules.
    pub(crate) fn succeeded(&self, (domains, rules): (usize, usize), problems: Vec<Problem>, took: Duration) {
        let mut config = self.0.lock();
        config.generation += 1;
        config.loads_succeeded += 1;
        config.loaded_at_s = Some(now_s());
        (config.domains, config.rules) = (domains, rules);
        config.last_attempt = Some(LoadAttempt::new(true, problems, took));
    }

    /// Notes that rules were refused. Those in force stay.
    pub(crate) fn failed(&self, problems: Vec<Problem>, took: Duration) {
        let mut config = self.0.lock();
        config.loads_failed += 1;
        config.last_attempt = Some(LoadAttempt::new(false, problems, took));
    }

    pub(crate) fn read(&self) -> LoadReport {
        self.0.lock().clone()
    }
}

impl LoadAttempt {
    fn new(ok: bool, mut problems: Vec<Problem>, took: Duration) -> LoadAttempt {
        let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
        let warnings = problems.len() - errors;
        problems.sort_by_key(|problem| problem.severity != Severity::Error);
        problems.truncate(PROBLEMS_MAX);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        LoadAttempt { at_s: now_s(), ok, took_ms, errors, warnings, problems }
    }
}

/// Whole seconds since the epoch.
pub(crate) fn now_s() -> u64 {
    wall_time().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
