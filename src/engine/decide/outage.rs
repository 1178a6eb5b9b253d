//! What a rule's policy makes of memory's verdict while the store that should decide gives no answer.
//!
//! Memory's own denial stands, but for `allow`. `share` holds this process besides to its part of the limit: however the
//! processes that live are spread, they admit no more than the limit in a window together.

use crate::engine::count::counter::{Counter, rate, window_end_ms};
use crate::engine::count::gcra::Bucket;
use crate::engine::decide::twins::Twins;
use crate::engine::decide::{Charging, Check, Verdict};
use crate::engine::table::foreign::View;
use crate::engine::table::regional_part::{MS_NS, RegionalPart};
use crate::rules::limit::Terms;
use crate::rules::policy::{Algorithm, OnOutage};

/// How far above the limit `allow` goes: a last resort against what would never end.
const ALLOWED_TIMES: u32 = 10;
/// When a client that is refused without a count to go by may try again.
const RETRY_MS: u64 = 1000;

/// What is known at the moment of a decision without its store.
pub struct Endured<'a> {
    pub check: &'a Check<'a>,
    pub twins: Twins,
    /// Processes that share the store, as it last told.
    pub live: u32,
    pub mono_ms: u64,
    pub now_ms: u64,
}

/// Hits that never fit into a part of the limit, but into all of it, are not hopeless: who comes again after the outage is
/// admitted.
#[cold]
pub fn raise_hopes(verdict: &mut Verdict, check: &Check<'_>) {
    if check.is_cut_off {
        verdict.hope_for(check.hits, check.usual_limit);
    }
}

impl Verdict {
    fn hope_for(&mut self, hits: u64, usual_limit: u32) {
        if self.is_hopeless && hits <= u64::from(usual_limit) {
            self.is_hopeless = false;
            self.reset_ms = RETRY_MS;
        }
    }

    /// Of two denials, the one that lasts longer counts.
    fn wait_as_long_as(&mut self, other: &Verdict) {
        if other.is_over {
            self.reset_ms = self.reset_ms.max(other.reset_ms);
            self.is_hopeless |= other.is_hopeless;
        }
    }
}

impl Endured<'_> {
    /// Puts the policy's verdict in the place of memory's.
    pub(in crate::engine) fn judge(&self, counter: &mut Counter, shared: Option<&RegionalPart>, verdict: &mut Verdict) {
        match self.check.on_outage {
            OnOutage::Local => self.recall_pause(counter, shared, verdict),
            OnOutage::Share => {
                self.recall_pause(counter, shared, verdict);
                self.hold_to_share(counter, shared, verdict);
            }
            OnOutage::Allow => self.allow(counter, shared, verdict),
            OnOutage::Deny => {
                self.recall_pause(counter, shared, verdict);
                // Memory may know of a longer wait.
                verdict.reset_ms = if verdict.is_over { verdict.reset_ms.max(RETRY_MS) } else { RETRY_MS };
                verdict.is_hopeless &= verdict.is_over;
                verdict.is_over = true;
            }
        }
    }

    fn needed(&self) -> u64 {
        self.twins.needed(self.check)
    }

    /// What the store denied a moment ago, it would deny again.
    fn recall_pause(&self, counter: &mut Counter, shared: Option<&RegionalPart>, verdict: &mut Verdict) {
        let Check { charging, hits, terms, .. } = self.check;
        let is_together = *charging == Charging::Together && *hits > 0;
        let Some(wait_ms) = shared.and_then(|shared| shared.paused_for_ms(*hits, self.mono_ms)) else { return };
        if is_together {
            verdict.is_over = true;
            verdict.wait_for(self.check.view(counter, shared), terms, self.needed(), self.now_ms);
            verdict.reset_ms = verdict.reset_ms.max(wait_ms);
        }
    }

    fn hold_to_share(&self, counter: &mut Counter, shared: Option<&RegionalPart>, verdict: &mut Verdict) {
        if let Counter::Gcra(bucket) = counter {
            return self.hold_bucket_to_share(bucket, shared, verdict);
        }
        let Check { terms, .. } = self.check;
        let terms = Terms { limit: (terms.limit / self.live.max(1)).max(1), ..*terms };
        let mut own = match shared {
            Some(shared) => shared.own_counts(counter),
            None => Counter::new(&terms, self.now_ms),
        };
        let mut view = View { counter: &mut own, foreign: None, is_cut_off: false };
        let available = self.twins.available_before(view.look(&terms, self.now_ms).available, &terms);
        verdict.available = verdict.available.min(available);
        if i128::from(available) < i128::from(self.needed()) {
            let by_memory = std::mem::replace(verdict, Verdict { is_over: true, ..*verdict });
            verdict.wait_for(view, &terms, self.needed(), self.now_ms);
            verdict.hope_for(self.needed(), self.check.usual_limit);
            verdict.wait_as_long_as(&by_memory);
        }
    }

    /// The others are taken to do as much as this process, which fills the bucket so many times as fast.
    fn hold_bucket_to_share(&self, bucket: &Bucket, shared: Option<&RegionalPart>, verdict: &mut Verdict) {
        let (rate, live) = (rate(&self.check.terms), u64::from(self.live.max(1)));
        let empty_ns =
            bucket.empty_at_ms(&rate, 0).saturating_mul(MS_NS).max(shared.map_or(0, RegionalPart::held_until_ns));
        let level_ns = empty_ns.saturating_sub(self.now_ms.saturating_mul(MS_NS));
        let counted = u64::try_from(self.twins.counted).unwrap_or(0);
        let level_ns = level_ns.saturating_sub(rate.drains_in_ns(counted.saturating_mul(live)));
        let (whole_ns, hit_ns) = (rate.drains_in_ns(rate.burst.into()), rate.drains_in_ns(1).max(1));
        let available = whole_ns.saturating_sub(level_ns) / hit_ns / live;
        verdict.available = verdict.available.min(i64::try_from(available).unwrap_or(i64::MAX));
        // One at a time is admitted, however many the others are.
        let needed_ns = rate.drains_in_ns(self.needed().saturating_mul(live)).min(whole_ns);
        let over_ns = level_ns.saturating_add(needed_ns).saturating_sub(whole_ns);
        if over_ns > 0 {
            let by_memory = std::mem::replace(verdict, Verdict { is_over: true, is_hopeless: false, ..*verdict });
            verdict.reset_ms = over_ns.div_ceil(MS_NS);
            verdict.wait_as_long_as(&by_memory);
        }
    }

    /// Hits that other processes are taken to have admitted when this one has: a bucket does not know who filled it, so
    /// only this keeps the processes together within its rate.
    pub fn assumed(check: &Check<'_>, live: u32) -> u64 {
        match check.terms.algorithm {
            Algorithm::Gcra if check.on_outage == OnOutage::Share && check.charging != Charging::Refund => {
                check.hits.saturating_mul(u64::from(live.max(1)) - 1)
            }
            _ => 0,
        }
    }

    fn allow(&self, counter: &mut Counter, shared: Option<&RegionalPart>, verdict: &mut Verdict) {
        if !verdict.is_over {
            return;
        }
        let times = |whole: u32| whole.saturating_mul(ALLOWED_TIMES);
        let Terms { limit, burst, algorithm, .. } = self.check.terms;
        // A bucket drains at its rate, however full it may be.
        let limit = if algorithm == Algorithm::Gcra { limit } else { times(limit) };
        let terms = Terms { limit, burst: times(burst), ..self.check.terms };
        let mut view = self.check.view(counter, shared);
        let look = view.look(&terms, self.now_ms);
        let available = self.twins.available_before(look.available, &terms);
        if i128::from(available) < i128::from(self.needed()) {
            verdict.wait_for(view, &terms, self.needed(), self.now_ms);
            return;
        }
        verdict.is_over = false;
        verdict.is_hopeless = false;
        verdict.reset_ms = window_end_ms(&terms, look.now_ms).saturating_sub(self.now_ms);
    }
}
