//! The service behind every port: from a message to its answer, without waiting, unless the origin has to be asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use parking_lot::Mutex;
use thiserror::Error;

use crate::engine::decide::{Asking, Consult};
use crate::engine::{Attempt, Decision, Engine, Inquiry, Modes};
use crate::observe::hits::HitMetrics;
use crate::observe::outcome::{Failure, Outcomes};
use crate::observe::regional::DecidedBy;
use crate::regional::asks::AskOutcome;
use crate::request::{Bounds, Refused, Request};
use crate::rules::Ruleset;
use crate::server::arrival::Arrivals;
use crate::server::global::Global;
use crate::server::regional::Regional;
use crate::server::skim::Announced;
use crate::server::wire::{self, AnswerOptions};

/// How requests are read, decided and answered.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    pub bounds: Bounds,
    pub modes: Modes,
    pub answers: AnswerOptions,
    pub in_flight_max: usize,
    /// The share of a limit from which on hits count as near it.
    pub near_limit_ratio: f32,
}

/// Rules, and the counters that belong to them.
#[derive(Debug)]
pub struct InForce {
    pub ruleset: Ruleset,
    pub hits: HitMetrics,
}

/// Everything that a request needs, shared by all ports.
#[derive(Debug)]
pub struct Service {
    engine: Arc<Engine>,
    /// The rules in force. A request takes one look and keeps to what it saw.
    in_force: ArcSwapOption<InForce>,
    /// Rules that were replaced and may still be seen by a request. Dropped here, because a large ruleset takes
    /// milliseconds to drop, which no request should pay.
    retired: Mutex<Vec<Arc<InForce>>>,
    options: ServiceOptions,
    in_flight: AtomicUsize,
    arrivals: Arrivals,
    outcomes: Outcomes,
    /// Set once, when counts are shared with other processes.
    regional: OnceLock<Arc<Regional>>,
    /// Set once, when counts are shared with other regions.
    global: OnceLock<Arc<Global>>,
}

/// Why there is no answer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoAnswer {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error("{max} requests are open, which is the most that is allowed (TIDEGATE_MAX_IN_FLIGHT)")]
    Overload { max: usize },
    #[error("the deadline of the call had passed before it could be decided")]
    Deadline,
}

impl NoAnswer {
    pub fn failure(&self) -> Failure {
        match self {
            NoAnswer::Refused(_) => Failure::Invalid,
            NoAnswer::NoRules => Failure::NoRules,
            NoAnswer::Overload { .. } => Failure::Overload,
            NoAnswer::Deadline => Failure::Deadline,
        }
    }
}

/// An answer and what goes around it.
#[derive(Debug)]
pub struct Answer {
    pub response: RateLimitResponse,
    /// What `Retry-After` says, for ports that say it in their own way.
    pub retry_after_s: Option<u64>,
}

/// What a first look at a request came to.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every answer is there at once, and needs no heap for it")]
pub enum Answered {
    Now(Answer),
    /// The origin has to be asked.
    Later(Box<Later>),
}

/// A request that has to ask.
#[derive(Debug)]
pub struct Later {
    rules: Arc<InForce>,
    inquiry: Inquiry,
    began: Instant,
}

/// A request that is open, for as long as this lives.
#[derive(Debug)]
pub struct InFlight(Arc<Service>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    pub fn new(engine: Engine, options: ServiceOptions) -> Service {
        Service {
            engine: Arc::new(engine),
            in_force: ArcSwapOption::empty(),
            retired: Mutex::default(),
            options,
            in_flight: AtomicUsize::new(0),
            arrivals: Arrivals::default(),
            outcomes: Outcomes::default(),
            regional: OnceLock::new(),
            global: OnceLock::new(),
        }
    }

    /// Takes part in a region from now on.
    pub fn join(&self, regional: Arc<Regional>) {
        let shortest = self.in_force().and_then(|in_force| in_force.ruleset.shortest_window_ms());
        regional.set_shortest_window(shortest);
        // Once at most.
        let _ = self.regional.set(regional);
    }

    pub fn regional(&self) -> Option<&Arc<Regional>> {
        self.regional.get()
    }

    /// Takes part in the exchange between regions from now on.
    pub fn join_others(&self, global: Arc<Global>) {
        if let Some(in_force) = self.in_force() {
            global.set_rules(&in_force.ruleset);
        }
        // Once at most.
        let _ = self.global.set(global);
    }

    pub fn global(&self) -> Option<&Arc<Global>> {
        self.global.get()
    }

    /// Puts rules into force. Requests that are being decided finish with those they began with.
    pub fn install(&self, ruleset: Ruleset) {
        if let Some(regional) = self.regional.get() {
            regional.set_shortest_window(ruleset.shortest_window_ms());
        }
        if let Some(global) = self.global.get() {
            global.set_rules(&ruleset);
        }
        let mut retired = self.retired.lock();
        let before = self.in_force.load_full();
        let hits = match &before {
            Some(before) => HitMetrics::new(&ruleset, &before.hits),
            None => HitMetrics::new(&ruleset, &HitMetrics::default()),
        };
        self.in_force.store(Some(Arc::new(InForce { ruleset, hits })));
        retired.extend(before);
        retired.retain(is_seen_by_others);
    }

    /// Forgets what has expired: keys, and rules that no request sees any more. To be called about once a second.
    pub fn tidy(&self) {
        self.engine.expire(wall_ms());
        self.retired.lock().retain(is_seen_by_others);
    }

    /// The rules in force, for those who look rather than ask.
    pub fn in_force(&self) -> Option<Arc<InForce>> {
        self.in_force.load_full()
    }

    pub fn has_rules(&self) -> bool {
        self.in_force.load().is_some()
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub fn options(&self) -> &ServiceOptions {
        &self.options
    }

    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// Requests that are open now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests of which not all has arrived.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// Admits a request to be read and decided, unless too many are open and none of them can be ended for it.
    pub fn enter(self: &Arc<Self>) -> Result<InFlight, NoAnswer> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight(self.clone());
        if before < self.options.in_flight_max || self.arrivals.end_longest() {
            return Ok(in_flight);
        }
        Err(self.overload())
    }

    /// There is no room for a request.
    pub fn overload(&self) -> NoAnswer {
        NoAnswer::Overload { max: self.options.in_flight_max }
    }

    /// Counts why there is no answer.
    fn fail(&self, reason: NoAnswer) -> NoAnswer {
        self.outcomes.record_failure(reason.failure());
        reason
    }

    /// Refuses a message that announces more than a request may have.
    pub fn skim(&self, announced: Announced) -> Result<(), NoAnswer> {
        announced.check(&self.options.bounds).map_err(|refused| self.fail(refused.into()))
    }

    /// Answers a request, if memory can.
    pub fn answer(&self, message: &RateLimitRequest) -> Result<Answered, NoAnswer> {
        let began = Instant::now();
        let request = wire::request(message, &self.options.bounds).map_err(|refused| self.fail(refused.into()))?;
        let in_force = self.in_force.load();
        let Some(rules) = in_force.as_ref() else { return Err(self.fail(NoAnswer::NoRules)) };
        let consult = self.regional.get().map(|regional| (regional, regional.consult(began)));
        let may_know = consult.as_ref().map_or(&Consult::ALONE, |(_, consult)| consult);
        match self.engine.attempt(&rules.ruleset, &request, self.options.modes, wall_ms(), may_know) {
            Attempt::Decided(decision) => {
                let by = consult.as_ref().map(|(regional, consult)| regional.decided(consult, &self.engine));
                Ok(Answered::Now(self.conclude(message, &request, rules, (&decision, by), began)))
            }
            Attempt::Asks(inquiry) => Ok(Answered::Later(Box::new(Later { rules: rules.clone(), inquiry, began }))),
        }
    }

    /// Answers a request that has to ask the origin first, by the same rules as its first look.
    pub async fn answer_later(
        &self,
        message: &RateLimitRequest,
        later: Later,
        grpc_timeout: Option<Duration>,
    ) -> Result<Answer, NoAnswer> {
        let Later { rules, mut inquiry, began } = later;
        let request = wire::request(message, &self.options.bounds).map_err(|refused| self.fail(refused.into()))?;
        let Some(regional) = self.regional.get() else { return Err(self.fail(NoAnswer::NoRules)) };
        let deadline = regional.deadline(began, grpc_timeout);
        loop {
            let outcome = regional.ask(inquiry, deadline).await;
            let (asking, by) = match &outcome {
                AskOutcome::Settled(settled) => (Asking::Settled(settled), DecidedBy::Origin),
                AskOutcome::Again if Instant::now() < deadline => (regional.region().asking(), DecidedBy::Memory),
                AskOutcome::Again | AskOutcome::NoAnswer => (Asking::Never, DecidedBy::Outage),
            };
            let consult = Consult { asking, is_again: true, ..regional.consult(Instant::now()) };
            match self.engine.attempt(&rules.ruleset, &request, self.options.modes, wall_ms(), &consult) {
                Attempt::Decided(decision) => {
                    regional.metrics.decided(by);
                    return Ok(self.conclude(message, &request, &rules, (&decision, Some(by)), began));
                }
                Attempt::Asks(again) => inquiry = again,
            }
        }
    }

    fn conclude(
        &self,
        message: &RateLimitRequest,
        request: &Request<'_>,
        InForce { ruleset, hits }: &InForce,
        (decision, by): (&Decision<'_>, Option<DecidedBy>),
        began: Instant,
    ) -> Answer {
        let options = &self.options;
        let response = wire::response(message, request, decision, ruleset, by, &options.answers);
        hits.record(request, decision, options.near_limit_ratio);
        if let Some(global) = self.global.get() {
            global.decided();
        }
        let answer = Answer { response, retry_after_s: wire::retry_after_s(decision, &options.answers) };
        self.outcomes.record(decision, began.elapsed());
        answer
    }
}

fn is_seen_by_others(rules: &Arc<InForce>) -> bool {
    Arc::strong_count(rules) > 1
}

/// Wall time in whole milliseconds since the epoch. A clock before the epoch reads as the epoch.
pub fn wall_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// A service without rules, for tests of what surrounds it.
#[cfg(test)]
pub fn idle() -> Arc<Service> {
    let answers = AnswerOptions { headers: None, retry_after: true, problem_body: false, dynamic_metadata: false };
    let options = ServiceOptions {
        bounds: Bounds::default(),
        modes: Modes::default(),
        answers,
        in_flight_max: 10,
        near_limit_ratio: 0.8,
    };
    Arc::new(Service::new(Engine::new(1), options))
}
