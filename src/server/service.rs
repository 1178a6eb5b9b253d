//! The service behind every port: from a message to its answer, without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use thiserror::Error;

use crate::engine::{Engine, Modes};
use crate::request::{Bounds, Refused};
use crate::rules::Ruleset;
use crate::server::wire::{self, AnswerOptions};

/// Everything that a request needs, shared by all ports.
#[derive(Debug)]
pub struct Service {
    engine: Engine,
    /// The rules in force. A request takes one look and keeps to what it saw.
    ruleset: ArcSwapOption<Ruleset>,
    bounds: Bounds,
    modes: Modes,
    answers: AnswerOptions,
    in_flight: AtomicUsize,
    in_flight_max: usize,
}

/// Why there is no answer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoAnswer {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error("{max} requests are being decided, which is the most that is allowed")]
    Overload { max: usize },
}

/// An answer and what goes around it.
#[derive(Debug)]
pub struct Answer {
    pub response: RateLimitResponse,
    /// What `Retry-After` says, for ports that say it in their own way.
    pub retry_after_s: Option<u64>,
}

/// Takes part in the count of requests being decided for as long as it lives.
struct InFlight<'s>(&'s AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    pub fn new(engine: Engine, bounds: Bounds, modes: Modes, answers: AnswerOptions, in_flight_max: usize) -> Service {
        Service {
            engine,
            ruleset: ArcSwapOption::empty(),
            bounds,
            modes,
            answers,
            in_flight: AtomicUsize::new(0),
            in_flight_max,
        }
    }

    /// Puts rules into force. Requests that are being decided finish with those they began with.
    pub fn install(&self, ruleset: Ruleset) {
        self.ruleset.store(Some(Arc::new(ruleset)));
    }

    pub fn has_rules(&self) -> bool {
        self.ruleset.load().is_some()
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Answers a request.
    pub fn answer(&self, message: &RateLimitRequest) -> Result<Answer, NoAnswer> {
        let _in_flight = self.enter()?;
        let request = wire::request(message, &self.bounds)?;
        let ruleset = self.ruleset.load();
        let ruleset = ruleset.as_ref().ok_or(NoAnswer::NoRules)?;
        let decision = self.engine.decide(ruleset, &request, self.modes, wall_ms());
        let response = wire::response(message, &request, &decision, ruleset, &self.answers);
        Ok(Answer { response, retry_after_s: wire::retry_after_s(&decision, &self.answers) })
    }

    fn enter(&self) -> Result<InFlight<'_>, NoAnswer> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight(&self.in_flight);
        if before >= self.in_flight_max {
            return Err(NoAnswer::Overload { max: self.in_flight_max });
        }
        Ok(in_flight)
    }
}

/// Wall time in whole milliseconds since the epoch. A clock before the epoch reads as the epoch.
pub fn wall_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}
