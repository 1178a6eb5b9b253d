//! What counts against a limit if nobody ever lacks news: the log that a run is held against, hit by hit.

use std::collections::BTreeMap;

use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;
use crate::simulate::oracle::{Oracle, RequestedHits};
use crate::simulate::world::START_MS;

/// An exact window has so many sub-cells.
const PARTS: u64 = 16;

/// A bucket is charged when the origin hears of hits: so long after they came at most, a flush and a round trip and some more.
const TOLD_WITHIN_MS: u64 = 100;

/// The exact count of one key. Moments come in order.
#[derive(Debug)]
pub(super) struct ExactCount {
    terms: Terms,
    /// Hits by cell, or by sub-cell of an exact window.
    cells: BTreeMap<u64, u64>,
    /// Of a bucket, in hits times milliseconds of the window.
    level: u128,
    drained_ms: u64,
}

/// How a key fared in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyOutcome {
    /// The most that counted at any admission.
    pub(super) worst: u64,
    /// Requests, those that waited for the origin, and those that were denied.
    pub(super) requests: u64,
    pub(super) waited: u64,
    pub(super) denied: u64,
    /// Requests that were denied although an exact limiter denies none of the key's.
    pub(super) wrongly_denied: u64,
}

impl ExactCount {
    pub(super) fn new(terms: Terms) -> ExactCount {
        ExactCount { terms, cells: BTreeMap::new(), level: 0, drained_ms: START_MS }
    }

    fn is_bucket(&self) -> bool {
        self.terms.algorithm == Algorithm::Gcra
    }

    fn cell_at(&self, at_ms: u64) -> u64 {
        let parts = if self.terms.algorithm == Algorithm::ExactWindow { PARTS } else { 1 };
        at_ms * parts / self.terms.window_ms
    }

    fn drain(&mut self, at_ms: u64) {
        let drained = u128::from(at_ms.saturating_sub(self.drained_ms)) * u128::from(self.terms.limit);
        self.level = self.level.saturating_sub(drained);
        self.drained_ms = self.drained_ms.max(at_ms);
    }

    /// What counts against the limit.
    pub(super) fn effective(&mut self, at_us: u64) -> u64 {
        let (at_ms, window_ms) = (START_MS + at_us / 1000, self.terms.window_ms);
        let newest = self.cell_at(at_ms);
        let hits = |cell: u64| self.cells.get(&cell).copied().unwrap_or(0);
        match self.terms.algorithm {
            Algorithm::SlidingWindow => {
                let left_ms = window_ms - at_ms % window_ms;
                hits(newest) + hits(newest - 1) * left_ms / window_ms
            }
            Algorithm::FixedWindow => hits(newest),
            Algorithm::ExactWindow => (newest - PARTS..=newest).map(hits).sum(),
            Algorithm::Gcra => {
                self.drain(at_ms);
                self.level.div_ceil(u128::from(window_ms)) as u64
            }
        }
    }

    pub(super) fn add(&mut self, at_us: u64, hits: u64) {
        let at_ms = START_MS + at_us / 1000;
        if self.is_bucket() {
            self.drain(at_ms);
            self.level += u128::from(hits) * u128::from(self.terms.window_ms);
        } else {
            *self.cells.entry(self.cell_at(at_ms)).or_default() += hits;
        }
    }

    /// Takes hits that are in the newest cell, or in the bucket.
    pub(super) fn give_back(&mut self, at_us: u64, hits: u64) {
        let at_ms = START_MS + at_us / 1000;
        if self.is_bucket() {
            self.drain(at_ms);
            self.level = self.level.saturating_sub(u128::from(hits) * u128::from(self.terms.window_ms));
        } else {
            let newest = self.cells.entry(self.cell_at(at_ms)).or_default();
            *newest = newest.saturating_sub(hits);
        }
    }

    /// How much more a bucket may hold than if hits had been charged when they came: what drains until the origin hears of them.
    fn charged_late(&self) -> u64 {
        let Terms { limit, window_ms, .. } = self.terms;
        if self.is_bucket() { (u64::from(limit) * TOLD_WITHIN_MS).div_ceil(window_ms) } else { 0 }
    }

    /// Adds hits if they fit.
    fn takes(&mut self, at_us: u64, hits: u64) -> bool {
        let counted = self.effective(at_us) + self.charged_late();
        let fits = counted + hits <= u64::from(self.terms.capacity());
        if fits {
            self.add(at_us, hits);
        }
        fits
    }
}

/// How each key fared that counts by these terms.
pub(super) fn outcomes(oracle: &Oracle, terms: Terms) -> BTreeMap<usize, KeyOutcome> {
    let mut logs: BTreeMap<usize, [Vec<RequestedHits>; 3]> = BTreeMap::new();
    for (log, all) in [&oracle.admitted, &oracle.denials, &oracle.refunds].into_iter().enumerate() {
        for requested in all {
            logs.entry(requested.key).or_default()[log].push(*requested);
        }
    }
    let outcome = |[admitted, denials, refunds]: &[Vec<RequestedHits>; 3]| KeyOutcome {
        worst: worst(admitted, refunds, terms),
        requests: (admitted.len() + denials.len()) as u64,
        waited: admitted.iter().chain(denials).filter(|requested| requested.has_waited).count() as u64,
        denied: denials.len() as u64,
        wrongly_denied: if all_fit(admitted, denials, refunds, terms) { denials.len() as u64 } else { 0 },
    };
    logs.iter().map(|(key, logs)| (*key, outcome(logs))).collect()
}

/// The most that counted at any admission.
fn worst(admitted: &[RequestedHits], refunds: &[RequestedHits], terms: Terms) -> u64 {
    let mut exact = ExactCount::new(terms);
    let mut changes: Vec<(RequestedHits, bool)> = admitted.iter().map(|it| (*it, false)).collect();
    changes.extend(refunds.iter().map(|it| (*it, true)));
    // What happens in the same moment stays in order: hits are there before they are given back.
    changes.sort_by_key(|(requested, _)| requested.at_us);
    let mut worst = 0;
    for (RequestedHits { at_us, hits, .. }, is_refund) in changes {
        match is_refund {
            true => exact.give_back(at_us, hits),
            false => {
                exact.add(at_us, hits);
                worst = worst.max(exact.effective(at_us));
            }
        }
    }
    worst
}

/// Whether an exact limiter admits all of these, even if it charges buckets late. With refunds nobody can say: they may come back too late.
fn all_fit(admitted: &[RequestedHits], denials: &[RequestedHits], refunds: &[RequestedHits], terms: Terms) -> bool {
    if denials.is_empty() || !refunds.is_empty() {
        return false;
    }
    // By when they came and by when they were decided: a window may end while a request waits.
    let moments: [fn(&RequestedHits) -> u64; 2] = [|requested| requested.arrived_us, |requested| requested.at_us];
    moments.iter().all(|moment| {
        let mut exact = ExactCount::new(terms);
        let mut requests: Vec<&RequestedHits> = admitted.iter().chain(denials).collect();
        requests.sort_by_key(|requested| moment(requested));
        requests.iter().all(|requested| exact.takes(moment(requested), requested.hits))
    })
}
