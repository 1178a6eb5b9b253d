//! The verdict on a check, and what it rests on.

use crate::engine::count::counter::window_end_ms;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::outage::retry_after_outage;
use crate::engine::decide::store_views::Cause;
use crate::engine::reach::Store;
use crate::engine::table::foreign::View;
pub use crate::engine::table::regional_part::NewsAge;
use crate::rules::limit::Terms;
use crate::rules::policy::OnOutage;

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// What this process knows, which is as current as its news of the key. It is recent where nobody shares the count.
    Memory(NewsAge),
    /// The store was asked and has decided.
    Store(Store),
    /// The store gave no answer, and the policy decided.
    Without(Cause, OnOutage),
}

/// The verdict on a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The hits do not fit. Whether that denies anything is for the groups to say.
    pub is_over: bool,
    /// Hits that still fit after the charge; 0 when over.
    pub remaining: u32,
    /// Milliseconds until the limit starts afresh, or, when over, until the same hits would be admitted.
    pub reset_ms: u64,
    /// The hits can never be admitted; the reset is the end of the window then.
    pub is_hopeless: bool,
    /// Hits that were counted, or given back.
    pub charged: u64,
    /// Hits that would have fit before this check; below zero when more was charged than the limit.
    pub available: i64,
    /// Memory, unless a store or the outage policy has decided.
    pub basis: Basis,
}

impl Verdict {
    #[inline(always)]
    pub(super) fn within(available: i64, reset_ms: u64) -> Verdict {
        let basis = Basis::Memory(NewsAge::Recent);
        Verdict { is_over: false, remaining: 0, reset_ms, is_hopeless: false, charged: 0, available, basis }
    }

    /// Sets the time until so many hits are admitted, by the counter as it is now: with the check's own charge, if that is
    /// done.
    #[inline(always)]
    pub(super) fn wait_for(&mut self, view: View<'_>, terms: &Terms, hits: u64, now_ms: u64) {
        (self.reset_ms, self.is_hopeless) = wait(view, terms, hits, now_ms);
    }

    /// Fills in what only the overall verdict settles. `waiting`: hits of earlier checks on the key.
    #[inline(always)]
    pub(super) fn conclude(&mut self, check: &Check<'_>, charged: u64, waiting: u64) {
        self.charged = charged;
        let own = if check.charging == ChargeMode::Refund { 0 } else { charged };
        let available = u64::try_from(self.available).unwrap_or(0);
        let left = if self.is_over { 0 } else { available.saturating_sub(waiting).saturating_sub(own) };
        self.remaining = u32::try_from(left).unwrap_or(u32::MAX);
        if self.is_hopeless {
            retry_after_outage(self, check);
        }
    }
}

/// How long until so many hits fit, and whether they never do: then it is the time to the end of the window.
///
/// Returns two words rather than write to the verdict, as other rare turns of a decision do. So a decision that takes none
/// of these turns keeps its verdict in registers.
#[cold]
pub(super) fn wait(mut view: View<'_>, terms: &Terms, hits: u64, now_ms: u64) -> (u64, bool) {
    let look = view.look(terms, now_ms);
    let admits_at_ms = view.admits_at(terms, &look, hits);
    let at_ms = admits_at_ms.unwrap_or_else(|| window_end_ms(terms, look.now_ms));
    (at_ms.saturating_sub(now_ms), admits_at_ms.is_none())
}
