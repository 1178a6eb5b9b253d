//! Reads the counts behind a descriptor without changing them, for people who ask why it was answered as it was.

use crate::engine::count::counter::Counter;
use crate::engine::count::fits;
use crate::engine::key::{IdentifierBuffer, Key};
use crate::engine::matching::{Match, MatchedLimit};
use crate::engine::reach::Enforcement;
use crate::engine::table::foreign::View;
use crate::engine::table::regional_part::RegionalPart;
use crate::engine::{Engine, Modes};
use crate::request::{Hits, Request};
use crate::rules::Ruleset;
use crate::rules::limit::{Limit, Terms};
use crate::rules::policy::Charge;

/// One limit of a descriptor, as it stands.
#[derive(Clone, Copy, Debug)]
pub struct Peek<'r> {
    /// `None` for a request override.
    pub limit: Option<&'r Limit>,
    /// How far it reaches, and what an outage means for it.
    pub held: Enforcement,
    /// With this region's part of the limit, if it has only that.
    pub terms: Terms,
    /// The key has been counted before and is still held.
    pub is_known: bool,
    /// What counts against the limit now.
    pub counted: u64,
    /// Of that, what this process knows only from the table of the regions: hits of other regions, and hits of this one that
    /// it has not heard of otherwise.
    pub foreign: u64,
    /// Hits that this process has admitted, and of which the store that shares the count has not heard.
    pub pending: u64,
    /// The store that shares the count has never told of the key, on which hits of this age may count. `None` if it has.
    pub unknown_for_ms: Option<u64>,
    /// Hits of the limit never ask whether they fit: its rule is in shadow, or they are charged always.
    pub is_exempt: bool,
    /// How many hits fit now.
    pub remaining: u64,
    /// Whether the hits that were asked about fit.
    pub fits: bool,
    /// Milliseconds until they fit: 0 if they do, `None` if they never will.
    pub frees_in_ms: Option<u64>,
    /// Milliseconds until the limit starts afresh.
    pub resets_in_ms: u64,
}

impl Engine {
    /// The limits that each descriptor of a request meets. Limits that another rule of the request replaces are there too.
    /// `is_cut_off`: other regions can't be heard.
    pub fn peek<'r>(
        &self,
        ruleset: &'r Ruleset,
        request: &Request<'_>,
        is_cut_off: bool,
        now_ms: u64,
    ) -> Vec<Vec<Peek<'r>>> {
        let domain = ruleset.domain(request.domain());
        let mut identifiers = IdentifierBuffer::default();
        request
            .descriptors()
            .iter()
            .map(|descriptor| {
                let found = Match::find(domain, descriptor, &mut identifiers);
                let identifier = found.identifier(&identifiers);
                let hits = match descriptor.hits {
                    Hits::OfRequest(hits) | Hits::Own(hits) => hits,
                    Hits::Refund(_) => 0,
                };
                let is_shadow = found.group(true, Modes::default()).is_shadow;
                let peek = |met: MatchedLimit<'r>| {
                    let held = self.layers().enforce(&met.terms, met.policy, is_cut_off);
                    let peek = self.peek_key(&met.key(identifier), held, met.limit, hits, now_ms);
                    Peek { is_exempt: is_shadow || met.charge == Charge::Always, ..peek }
                };
                found.limits().map(peek).collect()
            })
            .collect()
    }

    fn peek_key<'r>(
        &self,
        key: &Key<'_>,
        held: Enforcement,
        limit: Option<&'r Limit>,
        hits: u64,
        now_ms: u64,
    ) -> Peek<'r> {
        let terms = held.terms;
        let known = self.table.peek(key);
        let is_known = known.is_some();
        // A copy: bringing a counter up to date must not touch the one that decisions use.
        let (mut counter, mut part) = known.unwrap_or_else(|| (Counter::new(&terms, now_ms), None));
        let here = match &mut part {
            Some(part) => part.look(&mut counter, &terms, now_ms),
            None => counter.look(&terms, now_ms),
        };
        let pending = part.as_ref().map_or(0, |part| part.pending_in(counter.cells_that_count(&terms)));
        let is_heard = part.as_ref().is_some_and(|part| part.holders() > 0);
        let unknown_for_ms = (!is_heard).then(|| counter.counts_since_ms(&terms, now_ms));
        let foreign = part.as_ref().and_then(RegionalPart::foreign);
        let mut counter = View { counter: &mut counter, foreign, is_cut_off: held.is_cut_off };
        let look = counter.look(&terms, now_ms);
        let fits = fits(look.available, hits);
        let admits_at_ms = if fits { Some(now_ms) } else { counter.admits_at(&terms, &look, hits) };
        Peek {
            limit,
            held,
            terms,
            is_known,
            counted: u64::try_from(i64::from(terms.capacity()).saturating_sub(look.available)).unwrap_or(0),
            foreign: u64::try_from(here.available.saturating_sub(look.available)).unwrap_or(0),
            pending,
            unknown_for_ms,
            is_exempt: false,
            remaining: u64::try_from(look.available).unwrap_or(0),
            fits,
            frees_in_ms: admits_at_ms.map(|at_ms| at_ms.saturating_sub(now_ms)),
            resets_in_ms: counter.resets_at_ms(&terms, &look, 0).saturating_sub(now_ms),
        }
    }
}
