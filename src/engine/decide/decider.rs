//! Who decides a check: memory, the store that shares its count, or, when that gives no answer, the rule's policy.
//!
//! Memory decides, unless the key is cold or stale, or more hits would be pending than may be. It denies again what the
//! origin has just denied. A strict limit is always asked about, unless memory already denies.

use crate::engine::decide::Case;
use crate::engine::decide::allowance::Headroom;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::question::Why;
use crate::engine::decide::store_views::{Cause, StoreAccess};
use crate::engine::decide::turn::{CheckTurn, KeyCounts};
use crate::engine::decide::verdict::Verdict;
use crate::engine::reach::{Reach, Store};
use crate::engine::table::regional_part::{Freshness, RegionalPart};

/// On a view that is not quite new, only one part in so many of the allowance may be used.
const OLD_VIEW_PART: u64 = 4;

/// Who decides a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    Memory {
        /// From this many pending hits on, the store is told at once: about half of what may be pending.
        urgent_at: u64,
    },
    /// The origin has just denied as many hits.
    Paused {
        /// Until the pause ends.
        wait_ms: u64,
    },
    /// The store has to be asked.
    Asks(Why),
    /// The store gives no answer: the rule's policy decides.
    Without(Cause),
}

impl Decider {
    /// Memory decides, and what it adds can wait for the next flush.
    pub(super) const AT_LEISURE: Decider = Decider::Memory { urgent_at: u64::MAX };

    /// See [`Decider::Memory`]; `u64::MAX` if nothing is told at once.
    pub(super) fn urgent_at(&self) -> u64 {
        if let Decider::Memory { urgent_at } = self { *urgent_at } else { u64::MAX }
    }
}

impl Case<'_> {
    /// Finds out who decides. When too many requests wait already, nobody asks: memory decides what it can, and the policy
    /// the rest.
    #[inline]
    pub(super) fn decider(&self, turn: &CheckTurn<'_>, verdict: &Verdict, counts: &mut KeyCounts<'_>) -> Decider {
        // Nobody shares it, so memory decides.
        let Some(store) = turn.check.reach.store() else { return Decider::AT_LEISURE };
        match self.decider_without_overload(store, turn, verdict, counts) {
            Decider::Asks(_) if matches!(self.views.asking(turn.check), Some(StoreAccess::Never(Cause::Overload))) => {
                Decider::Without(Cause::Overload)
            }
            decider => decider,
        }
    }

    /// Finds out who decides, as if there were always room to wait for the store.
    fn decider_without_overload(
        &self,
        store: Store,
        turn: &CheckTurn<'_>,
        verdict: &Verdict,
        counts: &mut KeyCounts<'_>,
    ) -> Decider {
        let check = turn.check;
        if turn.is_quiet || check.charging == ChargeMode::Refund {
            return Decider::AT_LEISURE;
        }
        let view = self.views.of(store);
        match view.asking(check.reach) {
            StoreAccess::Answered(_) => return Decider::AT_LEISURE,
            StoreAccess::Never(Cause::Outage) => return Decider::Without(Cause::Outage),
            // Hits that are charged whatever happens need no leave, but the owner should hear of them at once.
            StoreAccess::Allowed | StoreAccess::Never(Cause::Overload)
                if matches!(check.reach, Reach::Strict(_))
                    && check.charging == ChargeMode::Always
                    && check.hits > 0 =>
            {
                return Decider::Memory { urgent_at: 1 };
            }
            StoreAccess::Allowed | StoreAccess::Never(Cause::Overload) if verdict.is_over => {
                return Decider::AT_LEISURE;
            }
            StoreAccess::Allowed | StoreAccess::Never(Cause::Overload) => {}
        }
        let Reach::Region { slack_permille } = check.reach else { return Decider::Asks(Why::Strict) };
        let Some(part) = counts.part.as_deref_mut() else { return Decider::Asks(Why::Cold) };
        part.follow(counts.counter);
        let mono_ms = self.views.mono_ms;
        let is_together = check.charging == ChargeMode::Together && check.hits > 0;
        if is_together && let Some(wait_ms) = part.paused_for_ms(check.hits, mono_ms) {
            return Decider::Paused { wait_ms };
        }
        match part.freshness(mono_ms) {
            Freshness::Unreadable => return Decider::Without(Cause::Outage),
            Freshness::Cold | Freshness::Stale => return Decider::Asks(Why::Cold),
            Freshness::Fresh => {}
        }
        let pending = part.pending().saturating_add(turn.twins.waiting);
        let wanted = pending.saturating_add(check.hits);
        let allowance = headroom(check, slack_permille, part, view.live).allowance(verdict.available);
        if is_together && (view.is_new || wanted > allowance) {
            return Decider::Asks(Why::Headroom);
        }
        if !is_together || !part.is_view_old(mono_ms) {
            return Decider::Memory { urgent_at: allowance / 2 };
        }
        // On a view that is not quite new, memory admits a fraction of the allowance, or one larger request, and tells the
        // store sooner.
        let fraction = allowance / OLD_VIEW_PART;
        if wanted > fraction && pending > 0 {
            return Decider::Asks(Why::Headroom);
        }
        Decider::Memory { urgent_at: (fraction / 2).max(1) }
    }
}

fn headroom(check: &Check<'_>, slack_permille: u16, part: &RegionalPart, live: u32) -> Headroom {
    // A bucket is full at its burst, whatever its rate.
    let limit = check.terms.capacity();
    Headroom { limit, slack_permille, holders: part.holders(), is_settled: part.are_holders_settled(), live }
}
