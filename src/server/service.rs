//! The service behind every port: takes a request to its decision, and waits only if it has to ask a store.
//!
//! It knows no bytes. A protocol reads its message into a [`Request`], has it decided here, writes the answer, and calls
//! [`Service::conclude`], which does everything that follows from a decision.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::clock::{Moment, wall_ms};
use crate::engine::decide::{Reach, Store, StoreAccess, StoreViews};
use crate::engine::{Attempt, Decision, Engine, Modes, StoreRequest};
use crate::global::driver::GlobalDriver;
use crate::measure::histogram::Histogram;
use crate::observe::outcome::Outcomes;
use crate::regional::consultation::Consultation;
use crate::regional::driver::RegionalDriver;
use crate::regional::wait_queue::AskOutcome;
use crate::request::{Bounds, Request};
use crate::rules::Ruleset;
use crate::server::admission::{Admission, WaitingPlace};
use crate::server::answer_options::AnswerOptions;
#[cfg(test)]
use crate::server::answer_options::ReasonHeader;
use crate::server::in_force::{InForce, RulesInForce, RulesLook};
use crate::server::no_answer::NoAnswer;

/// How requests are read, decided and answered.
#[derive(Clone, Debug)]
pub(crate) struct ServiceOptions {
    /// How many descriptors and entries a request may have.
    pub bounds: Bounds,
    /// What the operator sets for all rules at once: shadow mode, quota mode.
    pub modes: Modes,
    /// Which headers, body and metadata an answer has besides its verdict.
    pub answers: AnswerOptions,
    /// How many requests may be open.
    pub in_flight_max: usize,
    /// How many bytes messages may take together while they arrive.
    pub arriving_bytes_max: usize,
    /// How long a request waits for the owner of strict limits.
    pub strict_timeout: Duration,
    /// Hits beyond this share of their limit count as near it: 0.8 is 80 %.
    pub near_limit_ratio: f32,
}

/// Everything that a request needs, shared by all ports.
#[derive(Debug)]
pub(crate) struct Service {
    engine: Arc<Engine>,
    rules: RulesInForce,
    options: ServiceOptions,
    /// Drivers count monotonic time from here.
    began: Instant,
    admission: Arc<Admission>,
    outcomes: Outcomes,
    /// The region's Redis. Set at most once, if counts are shared with other processes.
    regional: OnceLock<Arc<RegionalDriver>>,
    /// Set at most once, if strict limits have an owner of their own.
    owner: OnceLock<Arc<RegionalDriver>>,
    /// How long requests have waited for the owner of strict limits.
    strict_time: Histogram,
    /// Set at most once, if counts are shared with other regions.
    global: OnceLock<Arc<GlobalDriver>>,
}

/// The outcome of a first look at a request.
#[derive(Debug)]
pub(crate) enum FirstLook<'r> {
    Decided(Decision<'r>),
    /// A store has to be asked.
    Waits(Box<StoreWait>),
}

/// Everything that a request holds while it waits for a store.
#[derive(Debug)]
pub(crate) struct StoreWait {
    question: StoreRequest,
    consultation: Consultation,
    began: Instant,
    _place: WaitingPlace,
}

impl Service {
    pub(crate) fn new(engine: Engine, options: ServiceOptions) -> Service {
        Service {
            engine: Arc::new(engine),
            rules: RulesInForce::default(),
            began: Instant::now(),
            admission: Arc::new(Admission::new(options.in_flight_max, options.arriving_bytes_max)),
            options,
            outcomes: Outcomes::default(),
            regional: OnceLock::new(),
            owner: OnceLock::new(),
            strict_time: Histogram::default(),
            global: OnceLock::new(),
        }
    }

    /// Shares counts with the other processes of the region from now on.
    pub(crate) fn join(&self, regional: Arc<RegionalDriver>) {
        self.join_store(&self.regional, regional);
    }

    pub(crate) fn regional(&self) -> Option<&Arc<RegionalDriver>> {
        self.regional.get()
    }

    /// Lets the owner decide strict limits from now on.
    pub(crate) fn join_owner(&self, owner: Arc<RegionalDriver>) {
        self.join_store(&self.owner, owner);
    }

    pub(crate) fn owner(&self) -> Option<&Arc<RegionalDriver>> {
        self.owner.get()
    }

    fn join_store(&self, place: &OnceLock<Arc<RegionalDriver>>, store: Arc<RegionalDriver>) {
        store.set_shortest_window(self.in_force().and_then(|in_force| in_force.ruleset.shortest_window_ms()));
        // Called at most once.
        let _ = place.set(store);
        self.admission.expect_waits();
    }

    fn store(&self, store: Store) -> Option<&Arc<RegionalDriver>> {
        match store {
            Store::Origin => self.regional.get(),
            Store::Owner => self.owner.get(),
        }
    }

    fn stores(&self) -> impl Iterator<Item = &Arc<RegionalDriver>> {
        [&self.regional, &self.owner].into_iter().filter_map(OnceLock::get)
    }

    /// How long requests have waited for the owner of strict limits.
    pub(crate) fn strict_time(&self) -> &Histogram {
        &self.strict_time
    }

    /// Whether the store that should decide gives no answer, so that the policy decides.
    pub(crate) fn is_out(&self, reach: Reach) -> bool {
        let regional = reach.store().and_then(|store| self.store(store));
        regional.is_some_and(|regional| matches!(regional.view().asking(reach), StoreAccess::Never(_)))
    }

    /// Whether this region can't hear the others, or they can't hear it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.global.get().is_some_and(|global| global.is_down())
    }

    /// Exchanges counts with other regions from now on.
    pub(crate) fn join_others(&self, global: Arc<GlobalDriver>) {
        if let Some(in_force) = self.in_force() {
            global.set_rules(&in_force.ruleset);
        }
        // Called at most once.
        let _ = self.global.set(global);
    }

    pub(crate) fn global(&self) -> Option<&Arc<GlobalDriver>> {
        self.global.get()
    }

    /// Puts rules into force. Requests in progress finish under the rules they began with.
    pub(crate) fn install(&self, ruleset: Ruleset) {
        for regional in self.stores() {
            regional.set_shortest_window(ruleset.shortest_window_ms());
        }
        if let Some(global) = self.global.get() {
            global.set_rules(&ruleset);
        }
        // Moves keys that nobody asks for any more as well: the store that shares them now has to hear of their hits.
        self.rules.install(ruleset, |installed| self.engine.rehome(installed));
    }

    /// Forgets expired keys, and rules that no request sees any more. Call it about once a second.
    pub(crate) fn tidy(&self) {
        self.engine.expire(wall_ms());
        self.rules.tidy();
    }

    /// The rules in force, for readers other than requests.
    pub(crate) fn in_force(&self) -> Option<Arc<InForce>> {
        self.rules.get()
    }

    pub(crate) fn has_rules(&self) -> bool {
        self.rules.look().is_some()
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn options(&self) -> &ServiceOptions {
        &self.options
    }

    pub(crate) fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// The places for requests that are open and that wait.
    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// Counts a request that gets no answer, and hands the reason back.
    pub(crate) fn fail(&self, reason: NoAnswer) -> NoAnswer {
        self.outcomes.record_failure(reason.failure());
        reason
    }

    /// The rules that a request keeps to until it is answered.
    #[inline]
    pub(crate) fn rules(&self) -> RulesLook {
        self.rules.look()
    }

    /// How the stores stand now. The first look at a request goes by this.
    fn views(&self, at: Instant) -> StoreViews<'static> {
        let any = self.regional.get().or_else(|| self.owner.get());
        let view = |store: Store| self.store(store).map_or(StoreViews::ALONE.origin, |regional| regional.view());
        StoreViews {
            mono_ms: any.map_or(0, |regional| regional.mono_ms(at)),
            origin: view(Store::Origin),
            owner: view(Store::Owner),
            is_cut_off: self.is_cut_off(),
            is_again: false,
            given_back: None,
        }
    }

    /// Decides a request if memory can, or if too many wait for a store already. Otherwise it has to wait.
    #[inline]
    pub(crate) fn decide<'r>(
        &self,
        rules: &'r InForce,
        request: &Request<'_>,
        at: Moment,
    ) -> Result<FirstLook<'r>, NoAnswer> {
        let views = self.views(at.instant);
        match self.engine.attempt(&rules.ruleset, request, self.options.modes, at.wall_ms, &views) {
            Attempt::Decided(decision) => Ok(FirstLook::Decided(decision)),
            Attempt::Asks(question) => self.wait_or_shed(rules, request, at, &views, question),
        }
    }

    fn wait_or_shed<'r>(
        &self,
        rules: &'r InForce,
        request: &Request<'_>,
        at: Moment,
        views: &StoreViews<'static>,
        mut question: StoreRequest,
    ) -> Result<FirstLook<'r>, NoAnswer> {
        let mut consultation = Consultation::first(views, &mut question);
        if let Some(place) = self.admission.place_to_wait(question.class) {
            let wait = StoreWait { question, consultation, began: at.instant, _place: place };
            return Ok(FirstLook::Waits(Box::new(wait)));
        }
        self.outcomes.record_shed(question.class);
        consultation.shed();
        let views = consultation.views(views);
        match self.engine.attempt(&rules.ruleset, request, self.options.modes, at.wall_ms, &views) {
            Attempt::Decided(decision) => Ok(FirstLook::Decided(decision)),
            Attempt::Asks(_) => Err(self.fail(self.admission.overload())),
        }
    }

    /// Asks the stores, the nearer one first, and decides the request by the rules of its first look. It decides before
    /// `call_ends`, if that is given.
    pub(crate) async fn decide_after<'r>(
        &self,
        wait: Box<StoreWait>,
        rules: &'r InForce,
        request: &Request<'_>,
        call_ends: Option<Instant>,
    ) -> Decision<'r> {
        let StoreWait { mut question, mut consultation, began, _place } = *wait;
        loop {
            let (store, is_strict) = (question.store, question.is_strict);
            let (outcome, is_in_time) = self.ask(question, began, call_ends).await;
            consultation.hear(store, outcome, is_in_time, is_strict);
            let views = self.views(Instant::now());
            let views = consultation.views(&views);
            match self.engine.attempt(&rules.ruleset, request, self.options.modes, wall_ms(), &views) {
                Attempt::Decided(decision) => return decision,
                Attempt::Asks(again) => question = again,
            }
        }
    }

    /// Asks a store for as long as there is time, and says whether any is left.
    async fn ask(&self, question: StoreRequest, began: Instant, call_ends: Option<Instant>) -> (AskOutcome, bool) {
        let Some(regional) = self.store(question.store) else { return (AskOutcome::NoAnswer, false) };
        let is_strict = question.is_strict;
        let patience = if is_strict { self.options.strict_timeout } else { regional.patience() };
        let deadline = RegionalDriver::deadline(began, patience, call_ends);
        let asked = Instant::now();
        let outcome = regional.ask(question, deadline).await;
        if is_strict {
            self.strict_time.record(asked.elapsed());
        }
        (outcome, Instant::now() < deadline)
    }

    /// Does everything that follows from a decision, after its answer is written. Returns the time at which it was done.
    pub(crate) fn conclude(
        &self,
        InForce { hits, .. }: &InForce,
        request: &Request<'_>,
        decision: &Decision<'_>,
        began: Instant,
    ) -> Instant {
        if let Some(metrics) = self.regional.get().or_else(|| self.owner.get()).map(|regional| &regional.metrics) {
            metrics.decided(decision.decided_by());
        }
        for regional in self.stores() {
            regional.wake_if_urgent(&self.engine);
        }
        hits.record(request, decision, self.options.near_limit_ratio);
        if let Some(global) = self.global.get() {
            global.decided();
        }
        let finished = Instant::now();
        self.outcomes.record(decision, finished.duration_since(began));
        finished
    }
}

impl StoreWait {
    /// When the request was looked at first.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }
}

/// A service without rules, for tests of the code around it.
#[cfg(test)]
pub(crate) fn idle() -> Arc<Service> {
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
