//! What became of requests, as counters: decisions by what they said, and errors by their reason.

use std::time::Duration;

use crate::engine::reason::Reason;
use crate::engine::{Decision, StatusKind};
use crate::measure::histogram::Histogram;
use crate::measure::stripes::Stripes;
use crate::rules::policy::{Class, OnOutage, Word};

/// What a decision said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    Ok,
    OverLimit,
    /// OK only because a rule, or everything, is in shadow.
    Shadow,
    /// OK because nothing limits it.
    NoRule,
    /// Denied by `on_outage: deny` or `share`: Redis gave no answer, or other regions could not be heard.
    Outage,
    /// Denied because too many requests waited for Redis.
    Overload,
}

impl RequestOutcome {
    pub const ALL: [RequestOutcome; 6] = [
        RequestOutcome::Ok,
        RequestOutcome::OverLimit,
        RequestOutcome::Shadow,
        RequestOutcome::NoRule,
        RequestOutcome::Outage,
        RequestOutcome::Overload,
    ];

    pub fn of(decision: &Decision<'_>) -> RequestOutcome {
        let mut statuses = decision.statuses.iter();
        if decision.is_over {
            match decision.reason() {
                Reason::Overload => RequestOutcome::Overload,
                Reason::Outage(OnOutage::Deny | OnOutage::Share) => RequestOutcome::Outage,
                _ => RequestOutcome::OverLimit,
            }
        } else if decision.is_globally_shadowed || decision.statuses.iter().any(|status| status.is_shadowed) {
            RequestOutcome::Shadow
        } else if statuses.all(|status| matches!(status.kind, StatusKind::Unmatched)) {
            RequestOutcome::NoRule
        } else {
            RequestOutcome::Ok
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            RequestOutcome::Ok => "ok",
            RequestOutcome::OverLimit => "over_limit",
            RequestOutcome::Shadow => "shadow",
            RequestOutcome::NoRule => "no_rule",
            RequestOutcome::Outage => "outage",
            RequestOutcome::Overload => "overload",
        }
    }
}

/// Why there was no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDecision {
    /// The request breaks a bound, names no domain or descriptor, or overrides a limit with an unknown unit.
    Invalid,
    /// It can't be decoded, or is no call of gRPC.
    Malformed,
    /// Its headers break HTTP/2, so that its call was reset before it could be read.
    Protocol,
    /// The client gave up, or its connection ended, before its request was decided.
    Cancelled,
    /// No rules are loaded.
    NoRules,
    /// More requests are open, or more bytes of messages arrive, than are allowed.
    Overload,
    /// The caller's deadline had passed before its request was decided, or its message took too long to arrive.
    Deadline,
}

impl NoDecision {
    pub const ALL: [NoDecision; 7] = [
        NoDecision::Invalid,
        NoDecision::Malformed,
        NoDecision::Protocol,
        NoDecision::Cancelled,
        NoDecision::NoRules,
        NoDecision::Overload,
        NoDecision::Deadline,
    ];

    pub fn word(self) -> &'static str {
        match self {
            NoDecision::Invalid => "invalid",
            NoDecision::Malformed => "malformed",
            NoDecision::Protocol => "protocol",
            NoDecision::Cancelled => "cancelled",
            NoDecision::NoRules => "no_rules",
            NoDecision::Overload => "overload",
            NoDecision::Deadline => "deadline",
        }
    }
}

const GLOBALLY_SHADOWED: usize = RequestOutcome::ALL.len();
const UNKNOWN_DOMAIN: usize = GLOBALLY_SHADOWED + 1;
/// From here on, two counters for each policy: OK and denied.
const OUTAGES: usize = UNKNOWN_DOMAIN + 1;
const SHED: usize = OUTAGES + 2 * OnOutage::ALL.len();
const ALL: usize = SHED + Class::ALL.len();

/// Everything that is counted for all requests together.
#[derive(Debug, Default)]
pub struct Outcomes {
    /// Indexed by [`RequestOutcome`], and after those as the constants above say.
    decisions: Stripes<ALL>,
    failures: Stripes<{ NoDecision::ALL.len() }>,
    /// From the message to its answer, waiting for Redis included.
    pub decision_time: Histogram,
    /// From the arrival of a gRPC call until its answer was there to be sent.
    pub response_time: Histogram,
}

impl Outcomes {
    pub fn record(&self, decision: &Decision<'_>, took: Duration) {
        self.decisions.add(RequestOutcome::of(decision) as usize, 1);
        self.decisions.add(GLOBALLY_SHADOWED, u64::from(decision.is_globally_shadowed));
        self.decisions.add(UNKNOWN_DOMAIN, u64::from(decision.domain.is_none()));
        if let Some(policy) = decision.outage_policy {
            self.decisions.add(OUTAGES + 2 * policy as usize + usize::from(decision.is_over), 1);
        }
        self.decision_time.record(took);
    }

    /// Counts a request that was not let wait for Redis, because too many did.
    pub fn record_shed(&self, class: Class) {
        self.decisions.add(SHED + class as usize, 1);
    }

    /// How many requests a policy has answered in an outage, with OK or denied.
    pub fn outages(&self, policy: OnOutage, is_over: bool) -> u64 {
        self.decisions.sum(OUTAGES + 2 * policy as usize + usize::from(is_over))
    }

    pub fn shed(&self, class: Class) -> u64 {
        self.decisions.sum(SHED + class as usize)
    }

    pub fn record_failure(&self, failure: NoDecision) {
        self.failures.add(failure as usize, 1);
    }

    pub fn decisions(&self, outcome: RequestOutcome) -> u64 {
        self.decisions.sum(outcome as usize)
    }

    pub fn failures(&self, failure: NoDecision) -> u64 {
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
