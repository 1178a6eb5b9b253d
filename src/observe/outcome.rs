//! What became of requests, as counters: decisions by what they said, and errors by their reason.

use std::time::Duration;

use crate::engine::{Decision, StatusKind};
use crate::observe::histogram::Histogram;
use crate::observe::stripes::Stripes;

/// What a decision said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    OverLimit,
    /// OK only because a rule, or everything, is in shadow.
    Shadow,
    /// OK because nothing limits it.
    NoRule,
}

impl Outcome {
    pub const ALL: [Outcome; 4] = [Outcome::Ok, Outcome::OverLimit, Outcome::Shadow, Outcome::NoRule];

    pub fn of(decision: &Decision<'_>) -> Outcome {
        let mut statuses = decision.statuses.iter();
        if decision.is_over {
            Outcome::OverLimit
        } else if decision.is_globally_shadowed || decision.statuses.iter().any(|status| status.is_shadowed) {
            Outcome::Shadow
        } else if statuses.all(|status| matches!(status.kind, StatusKind::Unmatched)) {
            Outcome::NoRule
        } else {
            Outcome::Ok
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::OverLimit => "over_limit",
            Outcome::Shadow => "shadow",
            Outcome::NoRule => "no_rule",
        }
    }
}

/// Why there was no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request breaks a bound or names no domain or descriptor.
    Invalid,
    /// It can't be decoded.
    Malformed,
    /// The client gave up before its message had arrived.
    Cancelled,
    /// No rules are loaded.
    NoRules,
    /// More requests are open than are allowed.
    Overload,
    /// The caller's deadline had passed before its request could be decided.
    Deadline,
}

impl Failure {
    pub const ALL: [Failure; 6] = [
        Failure::Invalid,
        Failure::Malformed,
        Failure::Cancelled,
        Failure::NoRules,
        Failure::Overload,
        Failure::Deadline,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Failure::Invalid => "invalid",
            Failure::Malformed => "malformed",
            Failure::Cancelled => "cancelled",
            Failure::NoRules => "no_rules",
            Failure::Overload => "overload",
            Failure::Deadline => "deadline",
        }
    }
}

const GLOBALLY_SHADOWED: usize = Outcome::ALL.len();
const UNKNOWN_DOMAIN: usize = GLOBALLY_SHADOWED + 1;

/// Everything that is counted for all requests together.
#[derive(Debug, Default)]
pub struct Outcomes {
    decisions: Stripes<{ UNKNOWN_DOMAIN + 1 }>,
    failures: Stripes<{ Failure::ALL.len() }>,
    /// From the message to its answer.
    pub decision_time: Histogram,
    /// From the arrival of a gRPC call to the end of its answer.
    pub response_time: Histogram,
}

impl Outcomes {
    pub fn record(&self, decision: &Decision<'_>, took: Duration) {
        self.decisions.add(Outcome::of(decision) as usize, 1);
        self.decisions.add(GLOBALLY_SHADOWED, u64::from(decision.is_globally_shadowed));
        self.decisions.add(UNKNOWN_DOMAIN, u64::from(decision.domain.is_none()));
        self.decision_time.record(took);
    }

    pub fn record_failure(&self, failure: Failure) {
        self.failures.add(failure as usize, 1);
    }

    pub fn decisions(&self, outcome: Outcome) -> u64 {
        self.decisions.sum(outcome as usize)
    }

    pub fn failures(&self, failure: Failure) -> u64 {
        self.failures.sum(failure as usize)
    }

    /// Requests that only the global shadow mode let pass.
    pub fn globally_shadowed(&self) -> u64 {
        self.decisions.sum(GLOBALLY_SHADOWED)
    }

    /// Requests of domains that no rules are for.
    pub fn unknown_domain(&self) -> u64 {
        self.decisions.sum(UNKNOWN_DOMAIN)
    }
}
