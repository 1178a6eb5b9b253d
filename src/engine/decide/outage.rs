//! The policy of a rule in an outage: it changes memory's verdict while the store that should decide gives no answer.
//!
//! Memory's own denial stands, except under `allow`. `share` also holds this process to its part of the limit: however
//! requests spread over the live processes, together these admit no more than the limit in a window. A part is at least one
//! hit, so more processes than the limit has hits may admit one each.

use crate::engine::count::counter::{Counter, rate, window_end_ms};
use crate::engine::count::gcra::Bucket;
use crate::engine::count::{fits, signed};
use crate::engine::decide::Case;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::turn::{CheckTurn, KeyCounts};
use crate::engine::decide::verdict::Verdict;
use crate::engine::table::foreign::View;
use crate::engine::table::regional_part::{MS_NS, RegionalPart};
use crate::rules::limit::Terms;
use crate::rules::policy::OnOutage;

/// `allow` admits this many times the limit and no more: a last resort against a flood that would never end.
const ALLOWED_TIMES: u32 = 10;
/// How long a client should wait that is refused without a count to go by.
const RETRY_MS: u64 = 1000;

/// Decides a check without the store that should.
pub(super) struct OutageDecision<'a> {
    /// The request that the check is part of.
    pub(super) case: &'a Case<'a>,
    /// The check to decide.
    pub(super) turn: &'a CheckTurn<'a>,
    /// Live processes that share the store, as it last told.
    pub(super) live: u32,
}

/// Hits that are too many for the region's part of the limit, but not for the whole, are not hopeless: they fit after the
/// outage.
#[cold]
pub(super) fn retry_after_outage(verdict: &mut Verdict, check: &Check<'_>) {
    if check.is_cut_off {
        verdict.retry_if_within(check.hits, check.usual_limit);
    }
}

impl Verdict {
    /// Lets a client try again if its hits never fit now, but would fit into the usual limit.
    fn retry_if_within(&mut self, hits: u64, usual_limit: u32) {
        if self.is_hopeless && hits <= u64::from(usual_limit) {
            self.is_hopeless = false;
            self.reset_ms = RETRY_MS;
        }
    }

    /// Of two denials, keeps the wait of the one that lasts longer.
    fn wait_as_long_as(&mut self, other: &Verdict) {
        if other.is_over {
            self.reset_ms = self.reset_ms.max(other.reset_ms);
            self.is_hopeless |= other.is_hopeless;
        }
    }
}

impl OutageDecision<'_> {
    /// Puts the policy's verdict in the place of memory's.
    pub(super) fn judge(&self, mut counts: KeyCounts<'_>, verdict: &mut Verdict) {
        match self.turn.check.on_outage {
            OnOutage::Local => self.recall_pause(&mut counts, verdict),
            OnOutage::Share => {
                self.recall_pause(&mut counts, verdict);
                self.hold_to_share(&counts, verdict);
            }
            OnOutage::Allow => self.allow(&mut counts, verdict),
            OnOutage::Deny => {
                self.recall_pause(&mut counts, verdict);
                // Memory may know of a longer wait.
                verdict.reset_ms = if verdict.is_over { verdict.reset_ms.max(RETRY_MS) } else { RETRY_MS };
                verdict.is_hopeless &= verdict.is_over;
                verdict.is_over = true;
            }
        }
    }

    /// Denies what the store denied a moment ago: it would deny it again.
    fn recall_pause(&self, counts: &mut KeyCounts<'_>, verdict: &mut Verdict) {
        let check = self.turn.check;
        let is_together = check.charging == ChargeMode::Together && check.hits > 0;
        let Some(wait_ms) = counts.paused_for_ms(check.hits, self.case.views.mono_ms) else { return };
        if is_together {
            verdict.is_over = true;
            verdict.wait_for(counts.view(check), &check.terms, self.turn.needed(), self.case.now_ms);
            verdict.reset_ms = verdict.reset_ms.max(wait_ms);
        }
    }

    fn hold_to_share(&self, counts: &KeyCounts<'_>, verdict: &mut Verdict) {
        match &*counts.counter {
            Counter::Gcra(bucket) => self.hold_bucket_to_share(bucket, counts.part.as_deref(), verdict),
            Counter::Windowed(_) | Counter::Exact(_) => self.hold_window_to_share(counts, verdict),
        }
    }

    /// A process knows its own hits in a window. It admits as many as its part of the limit.
    fn hold_window_to_share(&self, counts: &KeyCounts<'_>, verdict: &mut Verdict) {
        let (CheckTurn { check, twins, .. }, now_ms) = (self.turn, self.case.now_ms);
        let terms = Terms { limit: (check.terms.limit / self.live.max(1)).max(1), ..check.terms };
        let mut own = match counts.part.as_deref() {
            Some(part) => part.own_counts(counts.counter),
            None => Counter::new(&terms, now_ms),
        };
        let mut view = View { counter: &mut own, foreign: None, is_cut_off: false };
        let available = twins.available_before(view.look(&terms, now_ms).available, &terms);
        verdict.available = verdict.available.min(available);
        let needed = self.turn.needed();
        if !fits(available, needed) {
            let by_memory = std::mem::replace(verdict, Verdict { is_over: true, ..*verdict });
            verdict.wait_for(view, &terms, needed, now_ms);
            verdict.retry_if_within(needed, check.usual_limit);
            verdict.wait_as_long_as(&by_memory);
        }
    }

    /// Assumes that the other processes do as much as this one, so that the bucket fills as many times as fast.
    fn hold_bucket_to_share(&self, bucket: &Bucket, part: Option<&RegionalPart>, verdict: &mut Verdict) {
        let CheckTurn { check, twins, .. } = self.turn;
        let (rate, live) = (rate(&check.terms), u64::from(self.live.max(1)));
        let empty_ns =
            bucket.empty_at_ms(&rate, 0).saturating_mul(MS_NS).max(part.map_or(0, RegionalPart::held_until_ns));
        let level_ns = empty_ns.saturating_sub(self.case.now_ms.saturating_mul(MS_NS));
        let counted = u64::try_from(twins.counted).unwrap_or(0);
        let level_ns = level_ns.saturating_sub(rate.drains_in_ns(counted.saturating_mul(live)));
        let (whole_ns, hit_ns) = (rate.drains_in_ns(rate.burst.into()), rate.drains_in_ns(1).max(1));
        let available = whole_ns.saturating_sub(level_ns) / hit_ns / live;
        verdict.available = verdict.available.min(signed(available));
        // Never more than the whole: an empty bucket admits the request, however many the others are.
        let needed_ns = rate.drains_in_ns(self.turn.needed().saturating_mul(live)).min(whole_ns);
        let over_ns = level_ns.saturating_add(needed_ns).saturating_sub(whole_ns);
        if over_ns > 0 {
            let by_memory = std::mem::replace(verdict, Verdict { is_over: true, is_hopeless: false, ..*verdict });
            verdict.reset_ms = over_ns.div_ceil(MS_NS);
            verdict.wait_as_long_as(&by_memory);
        }
    }

    /// Hits that the other processes are assumed to admit when this one admits a check. A bucket does not know who filled
    /// it, so only this assumption keeps the processes together within its rate.
    pub(super) fn assumed(check: &Check<'_>, live: u32) -> u64 {
        let is_shared = check.on_outage == OnOutage::Share && check.charging != ChargeMode::Refund;
        if check.terms.algorithm.is_bucket() && is_shared {
            check.hits.saturating_mul(u64::from(live.max(1)) - 1)
        } else {
            0
        }
    }

    fn allow(&self, counts: &mut KeyCounts<'_>, verdict: &mut Verdict) {
        if !verdict.is_over {
            return;
        }
        let (CheckTurn { check, twins, .. }, now_ms) = (self.turn, self.case.now_ms);
        let times = |whole: u32| whole.saturating_mul(ALLOWED_TIMES);
        let Terms { limit, burst, algorithm, .. } = check.terms;
        // Of a bucket only the burst is raised: it drains at its rate, however full it may be.
        let limit = if algorithm.is_bucket() { limit } else { times(limit) };
        let terms = Terms { limit, burst: times(burst), ..check.terms };
        let mut view = counts.view(check);
        let look = view.look(&terms, now_ms);
        let available = twins.available_before(look.available, &terms);
        let needed = self.turn.needed();
        if !fits(available, needed) {
            verdict.wait_for(view, &terms, needed, now_ms);
            return;
        }
        verdict.is_over = false;
        verdict.is_hopeless = false;
        verdict.reset_ms = window_end_ms(&terms, look.now_ms).saturating_sub(now_ms);
    }
}
