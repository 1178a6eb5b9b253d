//! Who decides a check: memory, the store that shares its count, or, when that gives no answer, the rule's policy.
//!
//! Memory does while what is pending stays within the [`Headroom`], whether it has ever heard of the key or not. It asks when
//! more would be pending, and about every request of a limit that is too small for the fleet, or while this process is new.
//! What the origin has just denied, memory denies too. A strict limit is always asked about, unless memory already denies.

use crate::engine::decide::Case;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::question::Why;
use crate::engine::decide::store_views::{Cause, CheckAnswer, StoreAccess};
use crate::engine::decide::tell_thresholds::TellThresholds;
use crate::engine::decide::turn::{CheckTurn, KeyCounts};
use crate::engine::decide::verdict::Verdict;
use crate::engine::headroom::Headroom;
use crate::engine::reach::{Reach, Store};
use crate::engine::table::regional_part::{Freshness, NewsAge};

/// Who decides a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    Memory(TellThresholds),
    /// Memory answers a check without hits, and has the key read with the next flush.
    MemoryReads,
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
    pub(super) const AT_LEISURE: Decider = Decider::Memory(TellThresholds::WITH_FLUSH);

    /// When the store hears of what is charged.
    #[inline]
    pub(super) fn thresholds(&self) -> TellThresholds {
        if let Decider::Memory(thresholds) = self { *thresholds } else { TellThresholds::WITH_FLUSH }
    }
}

impl Case<'_> {
    /// Finds out who decides. When too many requests wait already, nobody asks, nor does a request whose store has not answered
    /// in time: memory decides what it can, and the policy the rest.
    #[inline]
    pub(super) fn decider(&self, turn: &CheckTurn<'_>, verdict: &Verdict, counts: &mut KeyCounts<'_>) -> Decider {
        // Nobody shares it, so memory decides.
        let Some(store) = turn.check.reach.store() else { return Decider::AT_LEISURE };
        match self.decider_if_reachable(store, turn, verdict, counts) {
            Decider::Asks(why) => {
                let obstacle = self.views.of(store).asking(turn.check.reach).obstacle();
                obstacle.map_or(Decider::Asks(why), Decider::Without)
            }
            decider => decider,
        }
    }

    /// Who decides, or would if the store were not overloaded or silent.
    fn decider_if_reachable(
        &self,
        store: Store,
        turn: &CheckTurn<'_>,
        verdict: &Verdict,
        counts: &mut KeyCounts<'_>,
    ) -> Decider {
        let check = turn.check;
        if check.charging == ChargeMode::Refund {
            return Decider::AT_LEISURE;
        }
        if self.views.answer_about(check, turn.index) != CheckAnswer::NotAsked {
            return Decider::AT_LEISURE;
        }
        let access = self.views.of(store).asking(check.reach);
        if turn.is_quiet {
            return match (check.reach, access) {
                (Reach::Region { slack_permille }, StoreAccess::Allowed) if !verdict.is_over => {
                    let allowance = self.headroom(check, slack_permille).allowance(verdict.available);
                    Decider::Memory(self.thresholds(check, allowance, counts).with_flush())
                }
                _ => Decider::AT_LEISURE,
            };
        }
        match access {
            StoreAccess::Never(Cause::Outage) => return Decider::Without(Cause::Outage),
            // Hits that are charged whatever happens need no leave, but the owner should hear of them at once.
            _ if matches!(check.reach, Reach::Strict(_)) && check.charging == ChargeMode::Always && check.hits > 0 => {
                return Decider::Memory(TellThresholds::AT_ONCE);
            }
            _ if verdict.is_over => return Decider::AT_LEISURE,
            StoreAccess::Allowed | StoreAccess::Silent | StoreAccess::Never(Cause::Overload) => {}
        }
        match check.reach {
            Reach::Region { slack_permille } => self.decider_in_region(slack_permille, turn, verdict, counts),
            Reach::Process | Reach::Strict(_) => Decider::Asks(Why::Strict),
        }
    }

    /// Who decides hits that fit, as far as memory knows.
    fn decider_in_region(
        &self,
        slack_permille: u16,
        turn: &CheckTurn<'_>,
        verdict: &Verdict,
        counts: &mut KeyCounts<'_>,
    ) -> Decider {
        let (check, mono_ms) = (turn.check, self.views.mono_ms);
        let headroom = self.headroom(check, slack_permille);
        let allowance = headroom.allowance(verdict.available);
        let thresholds = self.thresholds(check, allowance, counts);
        if check.charging == ChargeMode::Always {
            return Decider::Memory(thresholds);
        }
        let freshness = counts.part.as_deref().map_or(Freshness::Cold, |part| part.freshness(mono_ms));
        let is_new = self.views.of(Store::Origin).is_new;
        if check.hits == 0 {
            let is_heard = counts.part.as_deref().is_some_and(|part| part.news(mono_ms) != NewsAge::None);
            return match freshness {
                Freshness::Unreadable => Decider::Without(Cause::Outage),
                Freshness::Fresh => Decider::AT_LEISURE,
                Freshness::Cold | Freshness::Stale if is_new || !headroom.is_open() => Decider::Asks(Why::Cold),
                Freshness::Cold | Freshness::Stale if is_heard => Decider::AT_LEISURE,
                Freshness::Cold | Freshness::Stale => Decider::MemoryReads,
            };
        }
        if let Some(wait_ms) = counts.part.as_deref().and_then(|part| part.paused_for_ms(check.hits, mono_ms)) {
            return Decider::Paused { wait_ms };
        }
        let cells = counts.counter.cells_that_count(&check.terms);
        let (pending, spare) = counts.part.as_deref().map_or((0, 0), |part| (part.pending_in(cells), part.spare()));
        let wanted = turn.twins.waiting.saturating_add(check.hits).saturating_sub(spare).saturating_add(pending);
        let may_be_spent = freshness == Freshness::Cold && self.is_younger_than_counts(check, counts);
        if !is_new && !may_be_spent && wanted <= allowance {
            return Decider::Memory(thresholds);
        }
        match freshness {
            Freshness::Unreadable => Decider::Without(Cause::Outage),
            Freshness::Cold | Freshness::Stale => Decider::Asks(Why::Cold),
            Freshness::Fresh => Decider::Asks(Why::Headroom),
        }
    }

    /// Something may count on a key that this process has never heard of, of processes that were gone when it came: then it asks
    /// before it takes a credit, lest each new process of a fleet that is replaced takes one more.
    fn is_younger_than_counts(&self, check: &Check<'_>, counts: &KeyCounts<'_>) -> bool {
        let Some(joined_ms) = self.views.of(Store::Origin).joined_ms else { return false };
        let age_ms = self.views.mono_ms.saturating_sub(joined_ms);
        age_ms < counts.counter.counts_since_ms(&check.terms, self.now_ms)
    }

    fn headroom(&self, check: &Check<'_>, slack_permille: u16) -> Headroom {
        Headroom { limit: check.terms.capacity(), slack_permille, live: self.views.of(Store::Origin).live }
    }

    /// When the store hears of the check's hits. Brings the part up to its counter.
    fn thresholds(&self, check: &Check<'_>, allowance: u64, counts: &mut KeyCounts<'_>) -> TellThresholds {
        if let Some(part) = counts.part.as_deref_mut() {
            part.follow(counts.counter);
        }
        let is_bucket = check.terms.algorithm.is_bucket();
        TellThresholds::new(counts.part.as_deref(), is_bucket, allowance, self.views.mono_ms)
    }
}
