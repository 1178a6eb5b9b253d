//! Judges one check when its turn comes: memory's verdict by the counts of its key, and who decides it.

use crate::engine::count::counter::Counter;
use crate::engine::count::fits;
use crate::engine::decide::Case;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::decider::Decider;
use crate::engine::decide::outage::OutageDecision;
use crate::engine::decide::twins::Twins;
use crate::engine::decide::verdict::{Basis, Verdict, wait};
use crate::engine::table::foreign::View;
use crate::engine::table::regional_part::RegionalPart;

/// A check, and what the rest of its request means for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckTurn<'c> {
    /// One of the case's checks.
    pub(super) check: &'c Check<'c>,
    /// Its place among the checks.
    pub(super) index: usize,
    /// What the other checks on its key mean for it; of its own hits, those that are in the count already.
    pub(super) twins: Twins,
    /// In shadow: it denies nothing.
    pub(super) is_quiet: bool,
}

impl CheckTurn<'_> {
    /// Hits that have to fit for the check to fit.
    #[inline(always)]
    pub(super) fn needed(&self) -> u64 {
        self.twins.needed(self.check)
    }
}

/// The counts of a key: here, and for the region.
#[derive(Debug)]
pub(super) struct KeyCounts<'k> {
    /// The count that decisions go by: own hits, and those of other processes as the store last told.
    pub(super) counter: &'k mut Counter,
    /// `None` if nobody shares the table, or the key is not in it.
    pub(super) part: Option<&'k mut RegionalPart>,
}

impl KeyCounts<'_> {
    /// The counts as a check sees them.
    #[inline(always)]
    pub(super) fn view(&mut self, check: &Check<'_>) -> View<'_> {
        check.view(self.counter, self.part.as_deref())
    }

    /// How long the store is not asked again about so many hits, because it has just denied as many.
    pub(super) fn paused_for_ms(&self, hits: u64, mono_ms: u64) -> Option<u64> {
        self.part.as_deref()?.paused_for_ms(hits, mono_ms)
    }
}

impl Case<'_> {
    /// Judges a check by the counts of its key, and says who decides it.
    #[inline(always)]
    pub(super) fn assess<const ALONE: bool>(
        &self,
        turn: &CheckTurn<'_>,
        mut counts: KeyCounts<'_>,
    ) -> (Verdict, Decider) {
        let mut verdict = self.judge(turn, counts.view(turn.check));
        if ALONE {
            return (verdict, Decider::AT_LEISURE);
        }
        let decider = self.decider(turn, &verdict, &mut counts);
        if let Decider::Memory(thresholds) = decider {
            verdict.basis = Basis::Memory(thresholds.news);
        }
        if let Decider::Paused { .. } | Decider::Without(_) = decider {
            self.apply_decider(&decider, turn, counts, &mut verdict);
        }
        (verdict, decider)
    }

    /// Assesses a check on a key that is not in the table.
    #[cold]
    pub(super) fn assess_unknown<const ALONE: bool>(&self, turn: &CheckTurn<'_>) -> (Verdict, Decider) {
        let mut counter = Counter::new(&turn.check.terms, self.now_ms);
        self.assess::<ALONE>(turn, KeyCounts { counter: &mut counter, part: None })
    }

    /// Changes the verdict if a pause or the outage policy decides.
    fn apply_decider(&self, decider: &Decider, turn: &CheckTurn<'_>, mut counts: KeyCounts<'_>, verdict: &mut Verdict) {
        let check = turn.check;
        match *decider {
            Decider::Memory(_) | Decider::MemoryReads | Decider::Asks(_) => {}
            Decider::Paused { wait_ms } => {
                verdict.is_over = true;
                verdict.wait_for(counts.view(check), &check.terms, turn.needed(), self.now_ms);
                verdict.reset_ms = verdict.reset_ms.max(wait_ms);
            }
            Decider::Without(cause) => {
                if let Some(part) = counts.part.as_deref_mut() {
                    part.follow(counts.counter);
                }
                OutageDecision { case: self, turn, live: self.live(check) }.judge(counts, verdict);
                verdict.basis = Basis::Without(cause, check.on_outage);
            }
        }
    }

    /// Processes that share a check's count, as its store last told.
    fn live(&self, check: &Check<'_>) -> u32 {
        check.reach.store().map_or(1, |store| self.views.of(store).live)
    }

    /// Hits that other processes are assumed to have admitted along with this check's.
    #[inline]
    pub(super) fn assumed(&self, check: &Check<'_>, verdict: &Verdict) -> u64 {
        match verdict.basis {
            Basis::Without(..) => OutageDecision::assumed(check, self.live(check)),
            Basis::Memory(_) | Basis::Store(_) => 0,
        }
    }

    /// Memory's verdict on a check.
    #[inline(always)]
    fn judge(&self, turn: &CheckTurn<'_>, mut view: View<'_>) -> Verdict {
        let (twins, now_ms) = (turn.twins, self.now_ms);
        let Check { terms, charging, .. } = turn.check;
        if *charging == ChargeMode::Refund {
            let (available, reset_ms) = self.refunded(turn, view);
            return Verdict::within(available, reset_ms);
        }
        let mut look = view.look(terms, now_ms);
        look.available = twins.available_before(look.available, terms);
        let needed = turn.needed();
        let is_over = !fits(look.available, needed);
        let (reset_ms, is_hopeless) = match is_over {
            false => (view.resets_at_ms(terms, &look, twins.uncounted(turn.check)).saturating_sub(now_ms), false),
            true => wait(view, terms, needed, now_ms),
        };
        Verdict { is_over, is_hopeless, ..Verdict::within(look.available, reset_ms) }
    }

    /// What is available after a refund, and the milliseconds until the limit starts afresh. The refund itself follows right
    /// after.
    #[cold]
    fn refunded(&self, turn: &CheckTurn<'_>, mut view: View<'_>) -> (i64, u64) {
        let (twins, now_ms) = (turn.twins, self.now_ms);
        let Check { terms, hits, .. } = turn.check;
        view.look(terms, now_ms);
        let mut refunded = view.counter.clone();
        if !self.views.is_again {
            refunded.refund(terms, *hits);
        }
        let mut refunded = View { counter: &mut refunded, ..view };
        let look = refunded.look(terms, now_ms);
        let available = twins.available_before(look.available, terms);
        (available, refunded.resets_at_ms(terms, &look, twins.waiting).saturating_sub(now_ms))
    }
}
