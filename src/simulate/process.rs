//! One process: the production engine, its side of the stores, and the walk of its requests, with a clock of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::Now;
use crate::engine::decide::StoreViews;
use crate::engine::reach::{Layers, RegionIndex, Store};
use crate::engine::{Attempt, Engine, Modes, StoreRequest};
use crate::global::exchange::{Exchange, ExchangeOptions};
use crate::regional::breaker::BreakerOptions;
use crate::regional::call::ProcessId;
use crate::regional::consultation::{Consultation, waiting_max};
use crate::regional::key_names::KeyNames;
use crate::regional::map_watch::MapWatch;
use crate::regional::node_map::{NodeId, NodeMap};
use crate::regional::region::{Effects, Region, RegionOptions};
use crate::regional::wait_queue::{AskOutcome, WaitId};
use crate::regional::witness::Witness;
use crate::request::{Bounds, Descriptor, DescriptorEntry, Hits, Request};
use crate::rules::Ruleset;
use crate::secret::Secret;
use crate::simulate::random::Random;

/// What a descriptor asks for: a key by number, and how many hits; negative ones are refunds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHits {
    /// Of the rule `k`, or, from [`OTHER_KEYS`] on, of the rule `o`.
    pub key: usize,
    /// The cost of the request; below 0 it gives back.
    pub hits: i64,
}

/// Keys from here on are those of the second rule, if there is one.
pub const OTHER_KEYS: usize = 1_000_000;

/// The descriptors of a request.
pub type KeysHits = SmallVec<[KeyHits; 2]>;

/// Names a question to a store, while a request waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskPlace {
    /// Who is asked.
    pub store: Store,
    /// The request's name on the process's side of that store.
    pub id: WaitId,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    Admitted,
    Denied,
    /// Too many requests waited already, so that its policy decided.
    Shed {
        is_admitted: bool,
    },
    /// It waits for a store, until `until_us` at most.
    Waits {
        place: AskPlace,
        until_us: u64,
    },
}

/// A request that waits for a store.
#[derive(Clone, Debug)]
pub struct SimulatedWait {
    /// What the request is about: every later look needs it again.
    pub asked: KeysHits,
    consultation: Consultation,
    /// When it arrived.
    pub(super) began_us: u64,
    /// The deadline of its question, counted from when the request arrived.
    until_us: u64,
    is_strict: bool,
}

impl SimulatedWait {
    /// Hits that a store may count although nobody waits for them any more.
    pub fn hits(&self) -> u64 {
        self.asked.iter().map(|asked| asked.hits.max(0).unsigned_abs()).sum()
    }
}

/// One simulated process, with its real engine.
#[derive(Debug)]
pub struct Process {
    /// The production engine, with a table that hashes by the seed.
    pub engine: Arc<Engine>,
    /// Its side of the region's origin.
    pub region: Region,
    /// Its side of the owner of strict limits; `None` if there is none beside the origin.
    pub owner: Option<Region>,
    /// What it remembers of its origin, to notice that data is lost.
    pub witness: Witness,
    /// The runs of its origin's servers, as they last told.
    pub(super) run_ids: BTreeMap<NodeId, u64>,
    /// Plans when it asks who has which slot.
    pub(super) map_watch: MapWatch,
    /// Its part in the exchange between regions, if there are several.
    pub exchange: Option<Exchange>,
    /// Requests without a decision, by the question that they wait for.
    pub waiting: BTreeMap<AskPlace, SimulatedWait>,
    /// How far its wall clock is ahead of the true time.
    pub skew_ms: i64,
    /// Tells this process from the one that had its place before.
    pub generation: u64,
    /// To know deadlines and bounds.
    pub(super) start: ProcessStart,
}

/// What a process is started with.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStart {
    /// Keys that its table holds at most.
    pub keys_max: usize,
    /// The slack, in thousandths of a limit.
    pub slack_permille: u16,
    /// How long a request waits for a store, unless it is about strict limits.
    pub deadline_us: u64,
    /// How long a request about strict limits waits for the store that decides them.
    pub strict_deadline_us: u64,
    /// Strict limits have an owner that all regions ask.
    pub has_owner: bool,
    /// The stores are Clusters.
    pub is_cluster: bool,
    /// How many requests may be open, which bounds those that wait.
    pub in_flight_max: usize,
    /// Seeds its random choices, and is its name at the stores.
    pub seed: u64,
    /// Becomes [`Process::generation`].
    pub generation: u64,
    /// Which region it is in, from 0.
    pub region: usize,
    /// How many regions there are; counts are exchanged if more than one.
    pub regions: usize,
}

impl ProcessStart {
    fn layers(&self) -> Layers {
        let is_global = self.regions > 1;
        let owner = if self.has_owner { Some(Store::Owner) } else { (!is_global).then_some(Store::Origin) };
        let place = RegionIndex { region: self.region as u32, regions: self.regions as u32 };
        Layers { is_regional: true, is_global, owner, place, slack_permille: self.slack_permille }
    }

    fn region(&self, engine: &Arc<Engine>, key_names: &KeyNames, map: &Arc<NodeMap>, store: Store) -> Region {
        let options = RegionOptions {
            store,
            process: ProcessId(self.seed),
            key_names: key_names.clone(),
            is_cluster: self.is_cluster,
            nodes: match store {
                Store::Origin => map.clone(),
                Store::Owner => Arc::new(NodeMap::undivided("owner")),
            },
            deadline_us: self.deadline_us,
            breaker: BreakerOptions::default(),
            seed: self.seed,
        };
        Region::new(engine.clone(), options)
    }
}

/// A region's name.
pub fn region_name(region: usize) -> Box<str> {
    format!("region-{region}").into()
}

impl Process {
    pub fn new(start: ProcessStart, map: Arc<NodeMap>, ruleset: &Ruleset, now: Now) -> Process {
        let ProcessStart { keys_max, seed, generation, region, regions, .. } = start;
        let engine = Arc::new(Engine::with(keys_max, start.layers()).hashed_by(Random::new(seed).hasher()));
        let key_names = KeyNames::new(Secret::new("simulated"));
        let exchange = (regions > 1).then(|| {
            let (region, regions) = (region_name(region), (0..regions).map(region_name).collect());
            let options = ExchangeOptions {
                region,
                regions,
                key_names: key_names.clone(),
                timeout_ms: 2000,
                seed,
                process: Some(ProcessId(seed)),
            };
            let exchange = Exchange::new(engine.clone(), options, now);
            exchange.set_rules(ruleset, now);
            exchange
        });
        Process {
            region: start.region(&engine, &key_names, &map, Store::Origin),
            owner: start.has_owner.then(|| start.region(&engine, &key_names, &map, Store::Owner)),
            engine,
            witness: Witness::default(),
            run_ids: BTreeMap::new(),
            map_watch: MapWatch::default(),
            exchange,
            waiting: BTreeMap::new(),
            skew_ms: 0,
            generation,
            start,
        }
    }

    /// Its side of a store.
    pub fn store(&self, store: Store) -> Option<&Region> {
        match store {
            Store::Origin => Some(&self.region),
            Store::Owner => self.owner.as_ref(),
        }
    }

    /// Its sides of all stores.
    pub fn stores(&self) -> impl Iterator<Item = &Region> {
        [Some(&self.region), self.owner.as_ref()].into_iter().flatten()
    }

    fn views(&self, now: Now) -> StoreViews<'static> {
        let owner = self.owner.as_ref().map_or(StoreViews::ALONE.owner, Region::view);
        StoreViews { mono_ms: now.mono_ms(), origin: self.region.view(), owner, ..StoreViews::ALONE }
    }

    /// Whether a request is admitted, or what to ask first.
    fn attempt(
        &self,
        ruleset: &Ruleset,
        asked: &[KeyHits],
        now: Now,
        views: &StoreViews<'_>,
    ) -> Result<bool, Box<StoreRequest>> {
        with_request(asked, |request| {
            match self.engine.attempt(ruleset, request, Modes::default(), now.wall_ms, views) {
                Attempt::Decided(decision) => Ok(!decision.is_over),
                Attempt::Asks(question) => Err(Box::new(question)),
            }
        })
    }

    /// The slot of a key. Only for a process that has just come, because that asks about every key.
    pub(super) fn slot_of(&self, ruleset: &Ruleset, key: usize, now: Now) -> u16 {
        match self.attempt(ruleset, &[KeyHits { key, hits: 1 }], now, &self.views(now)) {
            Err(question) => self.region.slot_of(&question.questions[0].key),
            Ok(_) => unreachable!("who has just come asks"),
        }
    }

    /// Has a request arrive. Says what became of it, and what the process wants done.
    pub fn request(&mut self, ruleset: &Ruleset, asked: KeysHits, now: Now) -> (Became, Effects) {
        let views = self.views(now);
        let mut question = match self.attempt(ruleset, &asked, now, &views) {
            Ok(is_admitted) => return (became(is_admitted), Effects::default()),
            Err(question) => question,
        };
        let mut consultation = Consultation::first(&views, &mut question);
        if self.waiting.len() < waiting_max(self.start.in_flight_max, question.class) {
            return self.ask(asked, consultation, *question, now.mono_us, now);
        }
        consultation.shed();
        match self.attempt(ruleset, &asked, now, &consultation.views(&views)) {
            Ok(is_admitted) => (Became::Shed { is_admitted }, Effects::default()),
            Err(question) => unreachable!("who is shed asks nobody: {question:?}"),
        }
    }

    /// Has a request wait for what a store says.
    fn ask(
        &mut self,
        asked: KeysHits,
        consultation: Consultation,
        question: StoreRequest,
        began_us: u64,
        now: Now,
    ) -> (Became, Effects) {
        let (store, is_strict) = (question.store, question.is_strict);
        let until_us = began_us + if is_strict { self.start.strict_deadline_us } else { self.start.deadline_us };
        let Some(region) = self.store(store) else { unreachable!("a store that is not there is never asked") };
        let (id, effects) = region.ask(question, until_us, now);
        let place = AskPlace { store, id };
        self.waiting.insert(place, SimulatedWait { asked, consultation, began_us, until_us, is_strict });
        (Became::Waits { place, until_us }, effects)
    }

    /// Tells a request that waited what its store has said, and has it look again.
    pub fn told(
        &mut self,
        ruleset: &Ruleset,
        store: Store,
        waiting: SimulatedWait,
        outcome: AskOutcome,
        now: Now,
    ) -> (Became, Effects) {
        let SimulatedWait { asked, mut consultation, began_us, until_us, is_strict } = waiting;
        consultation.hear(store, outcome, now.mono_us < until_us, is_strict);
        match self.attempt(ruleset, &asked, now, &consultation.views(&self.views(now))) {
            Ok(is_admitted) => (became(is_admitted), Effects::default()),
            Err(question) => self.ask(asked, consultation, *question, began_us, now),
        }
    }
}

fn became(is_admitted: bool) -> Became {
    if is_admitted { Became::Admitted } else { Became::Denied }
}

/// Does something with a request for these keys.
pub(super) fn with_request<T>(asked: &[KeyHits], use_it: impl FnOnce(&Request<'_>) -> T) -> T {
    let values: SmallVec<[String; 2]> = asked.iter().map(|asked| asked.key.to_string()).collect();
    let descriptors = asked.iter().zip(&values).map(|(asked, value)| {
        let key = if asked.key < OTHER_KEYS { "k" } else { "o" };
        let hits = match u64::try_from(asked.hits) {
            Ok(hits) => Hits::OfRequest(hits),
            Err(_) => Hits::Refund(asked.hits.unsigned_abs()),
        };
        Descriptor { entries: [DescriptorEntry { key, value }].into_iter().collect(), hits, limit: None }
    });
    let Ok(request) = Request::new("d", descriptors.collect(), &Bounds::default()) else {
        unreachable!("the simulator's own requests are well formed")
    };
    use_it(&request)
}
