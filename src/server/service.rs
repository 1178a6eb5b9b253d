//! The service behind every port: from a message to its answer, without waiting, unless the origin has to be asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use prost::Message;
use thiserror::Error;

use crate::engine::decide::{Asking, Cause, Consult, Reach, Store, StoreAnswer, StoreView};
use crate::engine::{Attempt, Decision, Engine, Modes, StoreRequest};
use crate::global::driver::Global;
use crate::measure::histogram::Histogram;
use crate::observe::hits::HitMetrics;
use crate::observe::outcome::{Failure, Outcomes};
use crate::regional::driver::Regional;
use crate::regional::wait_queue::AskOutcome;
use crate::request::{Bounds, Refused, Request};
use crate::rules::Ruleset;
use crate::rules::policy::Class;
use crate::server::grpc::incomplete_calls::Arrivals;
use crate::server::http::json_outline::Announced;
#[cfg(test)]
use crate::server::rls::ReasonHeader;
use crate::server::rls::metadata;
use crate::server::rls::protobuf::Malformed;
use crate::server::rls::write::Answer;
use crate::server::rls::{self, AnswerOptions};

/// How requests are read, decided and answered.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    pub bounds: Bounds,
    pub modes: Modes,
    pub answers: AnswerOptions,
    pub in_flight_max: usize,
    /// What messages that have not arrived may take together.
    pub arriving_bytes_max: usize,
    /// How long a request waits for the owner of strict limits.
    pub strict_timeout: Duration,
    /// The share of a limit from which on hits count as near it.
    pub near_limit_ratio: f32,
}

/// Places beyond the bound, where there is a Redis to wait for: those who wait may take up all the others, and a burst has to
/// be read before anyone is told to wait or not to. As many as one connection may have open.
const SPARE: usize = 1024;

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
    /// What moments are counted from.
    began: Instant,
    in_flight: AtomicUsize,
    /// Of those, requests that wait for Redis.
    waiting: AtomicUsize,
    arrivals: Arrivals,
    /// Calls of Watch and reflection that are open.
    lasting: Arc<AtomicUsize>,
    outcomes: Outcomes,
    /// Set once, when counts are shared with other processes.
    regional: OnceLock<Arc<Regional>>,
    /// Set once, when strict limits have an owner of their own.
    owner: OnceLock<Arc<Regional>>,
    /// How long requests have waited for the owner of strict limits.
    strict_time: Histogram,
    /// Set once, when counts are shared with other regions.
    global: OnceLock<Arc<Global>>,
}

/// Why there is no answer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoAnswer {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error("{max} requests are open, which is the most that is allowed (TIDEGATE_MAX_IN_FLIGHT)")]
    Overload { max: usize },
    #[error(
        "there is no room for this message: those that are arriving may take {max} bytes together, and the longest wait \
         gives way first (TIDEGATE_MAX_ARRIVING_BYTES)"
    )]
    ArrivingBytes { max: usize },
    #[error("the deadline of the call had passed before it could be decided")]
    Deadline,
}

impl NoAnswer {
    pub fn failure(&self) -> Failure {
        match self {
            NoAnswer::Refused(_) => Failure::Invalid,
            NoAnswer::Malformed(_) => Failure::Malformed,
            NoAnswer::NoRules => Failure::NoRules,
            NoAnswer::Overload { .. } | NoAnswer::ArrivingBytes { .. } => Failure::Overload,
            NoAnswer::Deadline => Failure::Deadline,
        }
    }
}

/// What a first look at a request came to.
#[derive(Debug)]
pub enum Answered {
    Now {
        answer: Answer,
        finished: Instant,
    },
    /// The origin has to be asked.
    Later(Box<Later>),
}

/// A request that has to ask.
#[derive(Debug)]
pub struct Later {
    rules: Arc<InForce>,
    inquiry: StoreRequest,
    /// What the stores have said so far.
    heard: [Heard; 2],
    began: Instant,
    _place: WaitingPlace,
}

/// What a request knows of a store. It keeps to its first view of what it can't ask.
#[derive(Clone, Debug)]
struct Heard {
    /// Limits that are not strict do without it, and those that are.
    is_out: bool,
    is_strictly_out: bool,
    /// It was asked for keys that were not known here.
    has_read: bool,
    said: Said,
}

/// What a store has said to a request.
#[derive(Clone, Debug)]
enum Said {
    Nothing,
    Answered(StoreAnswer),
    NoAnswer,
}

impl Heard {
    fn at_first(view: &StoreView<'_>) -> Heard {
        let is_out = |asking| matches!(asking, Asking::Never(_));
        let (is_out, is_strictly_out) = (is_out(view.asking), is_out(view.strict));
        Heard { is_out, is_strictly_out, has_read: false, said: Said::Nothing }
    }

    /// Takes what a store has answered, in time or not. Keys that were read are looked at in memory, once: a table that is
    /// too small to keep them would have the store asked for them without end. Then the answer itself decides, but for
    /// strict limits, of which others may have taken the rest meanwhile.
    fn hear(&mut self, outcome: AskOutcome, is_in_time: bool, is_strict: bool) {
        let had_read = self.has_read;
        self.has_read |= matches!(outcome, AskOutcome::Read(_));
        self.said = match outcome {
            AskOutcome::Answered(settled) => Said::Answered(settled),
            AskOutcome::Again if is_in_time => Said::Nothing,
            AskOutcome::Read(_) if is_in_time && !had_read => Said::Nothing,
            AskOutcome::Read(Some(settled)) if is_in_time && !is_strict => Said::Answered(settled),
            AskOutcome::Again | AskOutcome::Read(_) | AskOutcome::NoAnswer => Said::NoAnswer,
        };
    }

    fn view<'a>(&'a self, now: StoreView<'a>) -> StoreView<'a> {
        let asking = |is_out: bool, now: Asking<'a>| match &self.said {
            _ if is_out => Asking::Never(Cause::Outage),
            Said::Nothing => now,
            Said::Answered(settled) => Asking::Answered(settled),
            Said::NoAnswer => Asking::Never(Cause::Outage),
        };
        let (asking, strict) = (asking(self.is_out, now.asking), asking(self.is_strictly_out, now.strict));
        StoreView { asking, strict, ..now }
    }
}

/// A place among those that wait for Redis, for as long as this lives.
#[derive(Debug)]
struct WaitingPlace(Arc<Service>);

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many percent of the open requests may be waiting for Redis before one of its class is not let wait any more.
fn waiting_percent_max(class: Class) -> usize {
    match class {
        Class::Comfort => 90,
        Class::Cost => 95,
        Class::Security => 100,
    }
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
            began: Instant::now(),
            in_flight: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            arrivals: Arrivals::default(),
            lasting: Arc::default(),
            outcomes: Outcomes::default(),
            regional: OnceLock::new(),
            owner: OnceLock::new(),
            strict_time: Histogram::default(),
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

    /// Has strict limits decided by their owner from now on.
    pub fn join_owner(&self, owner: Arc<Regional>) {
        let shortest = self.in_force().and_then(|in_force| in_force.ruleset.shortest_window_ms());
        owner.set_shortest_window(shortest);
        // Once at most.
        let _ = self.owner.set(owner);
    }

    pub fn owner(&self) -> Option<&Arc<Regional>> {
        self.owner.get()
    }

    fn store(&self, store: Store) -> Option<&Arc<Regional>> {
        match store {
            Store::Origin => self.regional.get(),
            Store::Owner => self.owner.get(),
        }
    }

    /// How long requests have waited for the owner of strict limits.
    pub fn strict_time(&self) -> &Histogram {
        &self.strict_time
    }

    /// The store that should decide gives no answer, so that the policy does.
    pub fn is_out(&self, reach: Reach) -> bool {
        let regional = reach.store().and_then(|store| self.store(store));
        regional.is_some_and(|regional| matches!(regional.view().asking(reach), Asking::Never(_)))
    }

    /// Other regions can't be heard.
    pub fn is_cut_off(&self) -> bool {
        self.global.get().is_some_and(|global| global.is_down())
    }

    /// What a request may know of the stores.
    fn consult(&self, at: Instant) -> Consult<'static> {
        let any = self.regional.get().or_else(|| self.owner.get());
        let view = |store: Store| self.store(store).map_or(Consult::ALONE.origin, |regional| regional.view());
        Consult {
            mono_ms: any.map_or(0, |regional| regional.mono_ms(at)),
            origin: view(Store::Origin),
            owner: view(Store::Owner),
            is_cut_off: self.is_cut_off(),
            is_again: false,
            given_back: None,
        }
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
        for regional in [&self.regional, &self.owner].into_iter().filter_map(OnceLock::get) {
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
        let in_force = Arc::new(InForce { ruleset, hits });
        self.in_force.store(Some(in_force.clone()));
        // Also what nobody asks for any more: its hits count where the rules say now.
        self.engine.rehome(&in_force.ruleset);
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

    pub fn began(&self) -> Instant {
        self.began
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

    /// Requests that wait for Redis now.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A place among those that wait, unless too many do for a request of this class.
    fn place_to_wait(self: &Arc<Self>, class: Class) -> Option<WaitingPlace> {
        let places = (self.options.in_flight_max.saturating_mul(waiting_percent_max(class)) / 100).max(1);
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let place = WaitingPlace(self.clone());
        (before < places).then_some(place)
    }

    /// Requests of which not all has arrived.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// How many calls of Watch and reflection are open.
    pub fn lasting(&self) -> &Arc<AtomicUsize> {
        &self.lasting
    }

    /// Admits a request to be read and decided, unless too many are open.
    pub fn enter_if_room(self: &Arc<Self>) -> Option<InFlight> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight(self.clone());
        (before < self.options.in_flight_max || self.has_spare_room(before)).then_some(in_flight)
    }

    /// Admits a request to be read and decided; when too many are open, ends the call that has waited longest for it.
    pub fn enter(self: &Arc<Self>) -> Result<InFlight, NoAnswer> {
        let in_flight = self.enter_if_room();
        if in_flight.is_none() && self.arrivals.end_longest() {
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            return Ok(InFlight(self.clone()));
        }
        in_flight.ok_or_else(|| self.overload())
    }

    /// Those who wait for Redis do not keep others from being read: these are decided by memory, or answered at once.
    fn has_spare_room(&self, in_flight: usize) -> bool {
        let can_wait = self.regional.get().is_some() || self.owner.get().is_some();
        can_wait && in_flight < self.options.in_flight_max.saturating_add(SPARE)
    }

    /// There is no room for a request.
    pub fn overload(&self) -> NoAnswer {
        NoAnswer::Overload { max: self.options.in_flight_max }
    }

    /// There is no room for a message.
    pub fn too_many_bytes(&self) -> NoAnswer {
        NoAnswer::ArrivingBytes { max: self.options.arriving_bytes_max }
    }

    /// Counts why there is no answer.
    fn fail(&self, reason: NoAnswer) -> NoAnswer {
        self.outcomes.record_failure(reason.failure());
        reason
    }

    /// Refuses a text that announces more than a request may have.
    pub fn skim(&self, announced: Announced) -> Result<(), NoAnswer> {
        announced.check(&self.options.bounds).map_err(|refused| self.fail(refused.into()))
    }

    /// Answers a request, if memory can. The message is the encoded RateLimitRequest.
    pub fn answer(self: &Arc<Self>, message: &[u8], at: Moment) -> Result<Answered, NoAnswer> {
        let request = self.read(message)?;
        let in_force = self.in_force.load();
        let Some(rules) = in_force.as_ref() else { return Err(self.fail(NoAnswer::NoRules)) };
        let consult = self.consult(at.instant);
        let attempt = |consult: &Consult<'_>| {
            self.engine.attempt(&rules.ruleset, &request, self.options.modes, at.wall_ms, consult)
        };
        let inquiry = match attempt(&consult) {
            Attempt::Decided(decision) => {
                let (answer, finished) = self.conclude(message, &request, rules, &decision, at.instant);
                return Ok(Answered::Now { answer, finished });
            }
            Attempt::Asks(inquiry) => inquiry,
        };
        if let Some(place) = self.place_to_wait(inquiry.class) {
            let heard = [&consult.origin, &consult.owner].map(Heard::at_first);
            let later = Later { rules: rules.clone(), inquiry, heard, began: at.instant, _place: place };
            return Ok(Answered::Later(Box::new(later)));
        }
        self.outcomes.record_shed(inquiry.class);
        let at_once = |asking: Asking<'static>| match asking {
            Asking::Allowed => Asking::Never(Cause::Overload),
            Asking::Never(_) | Asking::Answered(_) => asking,
        };
        let hurried = |view: StoreView<'static>| {
            let (asking, strict) = (at_once(view.asking), at_once(view.strict));
            StoreView { asking, strict, ..view }
        };
        let (origin, owner) = (hurried(consult.origin), hurried(consult.owner));
        let given_back = inquiry.given_back.as_deref();
        let consult = Consult { origin, owner, is_again: true, given_back, ..consult };
        match attempt(&consult) {
            Attempt::Decided(decision) => {
                let (answer, finished) = self.conclude(message, &request, rules, &decision, at.instant);
                Ok(Answered::Now { answer, finished })
            }
            Attempt::Asks(_) => Err(self.fail(self.overload())),
        }
    }

    fn read<'a>(&self, message: &'a [u8]) -> Result<Request<'a>, NoAnswer> {
        rls::read::request(message, &self.options.bounds).map_err(|reason| self.fail(reason))
    }

    /// Answers a request that has to ask first, by the same rules as its first look: the nearer store, then the farther.
    /// It is answered before its call ends, if that is to end at some time.
    pub async fn answer_later(
        &self,
        message: &[u8],
        later: Later,
        call_ends: Option<Instant>,
    ) -> Result<Answer, NoAnswer> {
        let Later { rules, mut inquiry, mut heard, began, _place } = later;
        let request = self.read(message)?;
        let given_back = inquiry.given_back.take();
        loop {
            let of_store = &mut heard[inquiry.store as usize];
            self.ask(inquiry, began, call_ends, of_store).await;
            let now = self.consult(Instant::now());
            let [origin, owner] = &heard;
            let (origin, owner) = (origin.view(now.origin), owner.view(now.owner));
            let consult = Consult { origin, owner, is_again: true, given_back: given_back.as_deref(), ..now };
            match self.engine.attempt(&rules.ruleset, &request, self.options.modes, wall_ms(), &consult) {
                Attempt::Decided(decision) => return Ok(self.conclude(message, &request, &rules, &decision, began).0),
                Attempt::Asks(again) => inquiry = again,
            }
        }
    }

    /// Asks a store, for as long as there is time.
    async fn ask(&self, inquiry: StoreRequest, began: Instant, call_ends: Option<Instant>, heard: &mut Heard) {
        let Some(regional) = self.store(inquiry.store) else { return heard.said = Said::NoAnswer };
        let is_strict = inquiry.is_strict;
        let patience = if is_strict { self.options.strict_timeout } else { regional.patience() };
        let deadline = Regional::deadline(began, patience, call_ends);
        let asked = Instant::now();
        let outcome = regional.ask(inquiry, deadline).await;
        if is_strict {
            self.strict_time.record(asked.elapsed());
        }
        heard.hear(outcome, Instant::now() < deadline, is_strict);
    }

    fn conclude(
        &self,
        message: &[u8],
        request: &Request<'_>,
        InForce { ruleset, hits }: &InForce,
        decision: &Decision<'_>,
        began: Instant,
    ) -> (Answer, Instant) {
        let options = &self.options;
        let metadata = options.answers.dynamic_metadata.then(|| {
            // What was read once is read again as a whole: the metadata repeats the request as it was written.
            let message = RateLimitRequest::decode(message).unwrap_or_default();
            metadata::dynamic_metadata(&message, request, decision, ruleset, self.is_cut_off()).encode_to_vec()
        });
        let answer = Answer::write(decision, &options.answers, metadata.as_deref());
        if let Some(metrics) = self.regional.get().or_else(|| self.owner.get()).map(|regional| &regional.metrics) {
            metrics.decided(decision.decided_by());
        }
        for regional in [&self.regional, &self.owner].into_iter().filter_map(OnceLock::get) {
            regional.decided(&self.engine);
        }
        hits.record(request, decision, options.near_limit_ratio);
        if let Some(global) = self.global.get() {
            global.decided();
        }
        let finished = Instant::now();
        self.outcomes.record(decision, finished.duration_since(began));
        (answer, finished)
    }
}

fn is_seen_by_others(rules: &Arc<InForce>) -> bool {
    Arc::strong_count(rules) > 1
}

/// When a request is decided, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub instant: Instant,
    pub wall_ms: u64,
}

impl Moment {
    pub fn now() -> Moment {
        Moment { instant: Instant::now(), wall_ms: wall_ms() }
    }
}

/// Wall time in whole milliseconds since the epoch. A clock before the epoch reads as the epoch.
pub fn wall_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// A service without rules, for tests of what surrounds it.
#[cfg(test)]
pub fn idle() -> Arc<Service> {
    let answers = AnswerOptions {
        headers: None,
        request_headers: None,
        retry_after: true,
        reason_header: ReasonHeader::Denied,
        problem_body: false,
        dynamic_metadata: false,
    };
    let options = ServiceOptions {
        bounds: Bounds::default(),
        modes: Modes::default(),
        answers,
        in_flight_max: 10,
        arriving_bytes_max: 1000,
        strict_timeout: Duration::from_millis(80),
        near_limit_ratio: 0.8,
    };
    Arc::new(Service::new(Engine::new(1), options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_a_tiny_table_does_not_keep_are_asked_for_twice_and_then_the_answer_decides() {
        let settled = StoreAnswer { is_admitted: false, is_charged: false, checks: Default::default() };
        let read = || AskOutcome::Read(Some(settled.clone()));
        let view = StoreView::new(1, Asking::Allowed);
        let mut heard = Heard::at_first(&view);
        heard.hear(AskOutcome::Again, true, false);
        assert!(matches!(heard.said, Said::Nothing), "somebody else has asked: memory knows");
        heard.hear(read(), true, false);
        assert!(matches!(heard.said, Said::Nothing), "memory should know by now");
        heard.hear(read(), true, false);
        assert!(matches!(&heard.said, Said::Answered(said) if *said == settled));

        let mut strictly = Heard::at_first(&view);
        strictly.hear(read(), true, true);
        strictly.hear(read(), true, true);
        assert!(matches!(strictly.said, Said::NoAnswer), "a strict limit is never decided by what was read");
        let mut late = Heard::at_first(&view);
        late.hear(read(), false, false);
        assert!(matches!(late.said, Said::NoAnswer));
    }
}
