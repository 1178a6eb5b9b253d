//! One process: the production engine and its side of the region, with a clock of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Now;
use crate::engine::decide::{Asking, Cause, Consult, StoreView};
use crate::engine::reach::{Layers, RegionIndex, Store};
use crate::engine::{Attempt, Engine, Modes, StoreRequest};
use crate::global::exchange::{Exchange, ExchangeOptions};
use crate::regional::breaker::BreakerOptions;
use crate::regional::call::ProcessId;
use crate::regional::key_names::KeyNames;
use crate::regional::region::{Effects, Region, RegionOptions};
use crate::regional::wait_queue::{AskId, AskOutcome};
use crate::regional::witness::Witness;
use crate::request::{Bounds, Descriptor, Entry, Hits, Request};
use crate::rules::Ruleset;
use crate::secret::Secret;
use crate::simulate::random::Random;

/// What a request asks for: a key of the rule `k`, by number, and how many hits; negative ones are refunds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHits {
    pub key: usize,
    pub hits: i64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Became {
    Admitted,
    Denied,
    /// It waits for the origin.
    Waits(AskId),
}

#[derive(Debug)]
pub struct Process {
    pub engine: Arc<Engine>,
    pub region: Region,
    /// What it remembers of its origin.
    pub witness: Witness,
    /// Its part in the exchange between regions, if there are several.
    pub exchange: Option<Exchange>,
    /// Requests that wait, with the process's part in the simulation.
    pub waiting: BTreeMap<AskId, KeyHits>,
    /// How far the wall clock is ahead of the true time.
    pub skew_ms: i64,
    /// Tells this process from the one that had its place before.
    pub generation: u64,
}

/// What a process is started with.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub keys_max: usize,
    pub slack_permille: u16,
    pub deadline_us: u64,
    pub seed: u64,
    pub generation: u64,
    /// Which region it is in, and of how many.
    pub region: usize,
    pub regions: usize,
}

/// A region's name.
pub fn region_name(region: usize) -> Box<str> {
    format!("region-{region}").into()
}

impl Process {
    pub fn new(start: Start, ruleset: &Ruleset, now: Now) -> Process {
        let Start { keys_max, slack_permille, deadline_us, seed, generation, region, regions } = start;
        let is_global = regions > 1;
        let place = RegionIndex { region: region as u32, regions: regions as u32 };
        let owner = (!is_global).then_some(Store::Origin);
        let layers = Layers { is_regional: true, is_global, owner, place, slack_permille };
        let engine = Arc::new(Engine::with(keys_max, layers).hashed_by(Random::new(seed).hasher()));
        let key_names = KeyNames::new(Secret::new("simulated"));
        let exchange = is_global.then(|| {
            let (region, regions) = (region_name(region), (0..regions).map(region_name).collect());
            let options = ExchangeOptions { region, regions, key_names: key_names.clone(), timeout_ms: 2000, seed };
            let exchange = Exchange::new(engine.clone(), options, now);
            exchange.set_rules(ruleset, now);
            exchange
        });
        let options = RegionOptions {
            store: Store::Origin,
            process: ProcessId(seed),
            key_names,
            is_cluster: false,
            deadline_us,
            breaker: BreakerOptions::default(),
            seed,
        };
        let region = Region::new(engine.clone(), options);
        let witness = Witness::default();
        Process { engine, region, witness, exchange, waiting: BTreeMap::new(), skew_ms: 0, generation }
    }

    fn consult<'a>(&self, now: Now, asking: Asking<'a>, is_again: bool) -> Consult<'a> {
        let origin = StoreView { asking, strict: asking, ..self.region.view() };
        Consult { mono_ms: now.mono_ms(), origin, is_again, ..Consult::ALONE }
    }

    fn attempt(
        &self,
        ruleset: &Ruleset,
        asked: KeyHits,
        now: Now,
        consult: &Consult<'_>,
    ) -> Result<bool, Box<StoreRequest>> {
        let value = asked.key.to_string();
        let entries = [Entry { key: "k", value: &value }].into_iter().collect();
        let hits = match u64::try_from(asked.hits) {
            Ok(hits) => Hits::OfRequest(hits),
            Err(_) => Hits::Refund(asked.hits.unsigned_abs()),
        };
        let descriptors = [Descriptor { entries, hits, limit: None }].into_iter().collect();
        let Ok(request) = Request::new("d", descriptors, &Bounds::default()) else {
            unreachable!("the simulator's own requests are well formed")
        };
        match self.engine.attempt(ruleset, &request, Modes::default(), now.wall_ms, consult) {
            Attempt::Decided(decision) => Ok(!decision.is_over),
            Attempt::Asks(inquiry) => Err(Box::new(inquiry)),
        }
    }

    /// A request arrives.
    pub fn request(&mut self, ruleset: &Ruleset, asked: KeyHits, until_us: u64, now: Now) -> (Became, Effects) {
        let consult = self.consult(now, self.region.view().asking, false);
        match self.attempt(ruleset, asked, now, &consult) {
            Ok(is_admitted) => (became(is_admitted), Effects::default()),
            Err(inquiry) => self.wait(asked, *inquiry, until_us, now),
        }
    }

    fn wait(&mut self, asked: KeyHits, inquiry: StoreRequest, until_us: u64, now: Now) -> (Became, Effects) {
        let (id, effects) = self.region.ask(inquiry, until_us, now);
        self.waiting.insert(id, asked);
        (Became::Waits(id), effects)
    }

    /// A request that waited is told something.
    pub fn told(
        &mut self,
        ruleset: &Ruleset,
        asked: KeyHits,
        outcome: &AskOutcome,
        until_us: u64,
        now: Now,
    ) -> (Became, Effects) {
        let asking = match outcome {
            AskOutcome::Answered(settled) => Asking::Answered(settled),
            AskOutcome::Again | AskOutcome::Read(_) => self.region.view().asking,
            AskOutcome::NoAnswer => Asking::Never(Cause::Outage),
        };
        let consult = self.consult(now, asking, true);
        match self.attempt(ruleset, asked, now, &consult) {
            Ok(is_admitted) => (became(is_admitted), Effects::default()),
            Err(inquiry) => self.wait(asked, *inquiry, until_us, now),
        }
    }
}

fn became(is_admitted: bool) -> Became {
    if is_admitted { Became::Admitted } else { Became::Denied }
}
