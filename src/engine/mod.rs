//! Does it fit: the rules that a request meets, the keys they count, and one decision over all of them.
//!
//! Pure and synchronous; `now` is an argument. [`Engine::attempt`] is the whole request: find the rules, drop what is
//! replaced, name the keys, and let a [`Case`] judge and charge them.

pub(crate) mod count;
pub mod decide;
mod decision;
pub(crate) mod headroom;
pub mod key;
mod matching;
pub(crate) mod peek;
pub(crate) mod quota;
pub mod reach;
pub(crate) mod reason;
pub(crate) mod steps;
mod store_request;
pub mod table;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::engine::decide::{Case, ChargeMode, Check, Group, StoreViews};
pub use crate::engine::decision::{Decision, LimitStatus, Status, StatusKind};
use crate::engine::key::IdentifierBuffer;
use crate::engine::matching::{Match, ReplacedLimits};
use crate::engine::reach::{Layers, Store};
pub use crate::engine::store_request::{QuestionKind, StoreQuestion, StoreRequest};
use crate::engine::table::weight::Capacity;
use crate::engine::table::{Table, TableStats};
use crate::request::{Hits, Request};
use crate::rules::limit::{Limit, Rule, Space};
use crate::rules::policy::Charge;
use crate::rules::{Domain, Ruleset};

/// Modes that an operator sets for all rules at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Nothing is denied, everything is counted.
    pub shadow: bool,
    /// Every descriptor is a quota descriptor.
    pub quota: bool,
}

/// Decides requests by the counts in its table.
#[derive(Debug)]
pub struct Engine {
    table: Table,
    layers: Layers,
}

/// The result of [`Engine::attempt`].
#[derive(Clone, Debug)]
pub enum Attempt<'r> {
    Decided(Decision<'r>),
    /// A store has to be asked first.
    Asks(StoreRequest),
}

impl Engine {
    /// An engine that shares its counts with nobody.
    pub fn new(capacity: impl Into<Capacity>) -> Engine {
        Engine::with(capacity, Layers::ALONE)
    }

    /// An engine that shares its counts as the layers say.
    pub fn with(capacity: impl Into<Capacity>, layers: Layers) -> Engine {
        let capacity = capacity.into();
        let table = match layers {
            Layers { is_global: true, place, .. } => Table::global(capacity, place.regions),
            Layers { is_regional: false, owner: None, .. } => Table::new(capacity),
            _ => Table::shared(capacity),
        };
        Engine { table, layers }
    }

    /// Uses a hasher that the caller chooses, see [`Table::hashed_by`].
    pub fn hashed_by(self, hasher: ahash::RandomState) -> Engine {
        Engine { table: self.table.hashed_by(hasher), ..self }
    }

    /// Decides a request from memory and charges its hits.
    pub fn decide<'r>(&self, ruleset: &'r Ruleset, request: &Request<'_>, modes: Modes, now_ms: u64) -> Decision<'r> {
        match self.attempt(ruleset, request, modes, now_ms, &StoreViews::ALONE) {
            Attempt::Decided(decision) => decision,
            Attempt::Asks(_) => unreachable!("StoreViews::ALONE never asks"),
        }
    }

    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Decides a request and charges its hits, or says what to ask a store first.
    pub fn attempt<'r>(
        &self,
        ruleset: &'r Ruleset,
        request: &Request<'_>,
        modes: Modes,
        now_ms: u64,
        views: &StoreViews<'_>,
    ) -> Attempt<'r> {
        let domain = ruleset.domain(request.domain());
        let is_sensitive = domain.is_some_and(Domain::has_sensitive_keys);
        let mut identifiers = IdentifierBuffer::default();
        let matches: SmallVec<[Match<'r>; 2]> =
            request.descriptors().iter().map(|descriptor| Match::find(domain, descriptor, &mut identifiers)).collect();
        let replaced = ReplacedLimits::by(&matches);
        let mut checks: SmallVec<[Check<'_>; 4]> = SmallVec::new();
        let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
        for (found, descriptor) in matches.iter().zip(request.descriptors()) {
            let identifier = found.identifier(&identifiers);
            let before = checks.len();
            for met in found.limits().filter(|met| !replaced.contains(met)) {
                let held = self.layers.enforce(&met.terms, met.policy, views.is_cut_off);
                let (hits, charging) = charging(descriptor.hits, met.charge);
                checks.push(Check {
                    hits,
                    charging,
                    group: groups.len(),
                    limit_index: met.index,
                    is_sensitive,
                    ..Check::of(met.key(identifier), &held)
                });
            }
            groups.push(found.group(checks.len() > before, modes));
        }
        let (checks, groups) = (&checks[..], &groups[..]);
        let case = Case { table: &self.table, checks, groups, is_shadow: modes.shadow, now_ms, views };
        let outcome = case.decide();
        if outcome.questions.is_empty() {
            Attempt::Decided(Decision::new(domain, &matches, &case, &outcome))
        } else {
            Attempt::Asks(StoreRequest::new(&case, outcome))
        }
    }

    /// Moves keys, after rules have changed, whose limits another store shares from now on: it hears of what was accepted
    /// here.
    pub fn rehome(&self, ruleset: &Ruleset) {
        if self.layers.owner != Some(Store::Owner) {
            return;
        }
        let of_rule = |rule: &Rule| {
            let space = rule.space;
            let home = move |limit: &Limit| {
                Some(((space, limit.terms.window_ms), self.layers.enforce_limit(limit).reach.store()?))
            };
            rule.limits().iter().filter_map(home).collect::<Vec<_>>()
        };
        let homes: HashMap<(Space, u64), Store> = ruleset.domains().flat_map(Domain::rules).flat_map(of_rule).collect();
        self.table.rehome(|key| homes.get(&(key.space, key.window_ms)).copied());
    }

    /// Removes expired keys, then others while the rest still takes more than it may. Call it about once a second.
    pub fn expire(&self, now_ms: u64) {
        self.table.expire(now_ms);
        self.table.trim(now_ms);
    }

    pub fn stats(&self) -> TableStats {
        self.table.stats()
    }

    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// How many hits a descriptor asks for, and how they are charged.
fn charging(hits: Hits, charge: Charge) -> (u64, ChargeMode) {
    match (hits, charge) {
        (Hits::Refund(hits), _) => (hits, ChargeMode::Refund),
        (Hits::OfRequest(hits), Charge::Always) => (hits, ChargeMode::Always),
        (Hits::OfRequest(hits), Charge::Auto | Charge::Accepted) => (hits, ChargeMode::Together),
        (Hits::Own(hits), Charge::Accepted) => (hits, ChargeMode::Together),
        (Hits::Own(hits), Charge::Auto | Charge::Always) => (hits, ChargeMode::Always),
    }
}
