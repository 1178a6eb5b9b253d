//! Puts the answers of stores to a request in the place of memory's verdicts.

use smallvec::SmallVec;

use crate::engine::count::counter::Counter;
use crate::engine::decide::check::ChargeMode;
use crate::engine::decide::general::{CheckState, LockedCase};
use crate::engine::decide::store_views::CheckAnswer;
use crate::engine::decide::tell_thresholds::TellThresholds;
use crate::engine::decide::turn::KeyCounts;
use crate::engine::decide::verdict::{Basis, NewsAge, Verdict};
use crate::engine::decide::{Case, Group, GroupsOver};

impl LockedCase<'_, '_> {
    /// Finds what the stores have charged. They do not charge a quota group that is over by another of its limits.
    #[cold]
    pub(super) fn find_charged(&mut self) {
        let Case { checks, groups, views, .. } = *self.case;
        let mut over: SmallVec<[bool; 8]> = SmallVec::from_elem(false, groups.len());
        for (index, check) in checks.iter().enumerate() {
            let Some(answer) = views.answer_to(check) else { continue };
            let is_last_charged = answer.is_charged && answer.is_admitted;
            let about = answer.about(index);
            self.seen[index].is_charged =
                about == CheckAnswer::Charged || (is_last_charged && about == CheckAnswer::Fits);
            over[check.group] |= is_last_charged && about == CheckAnswer::Over;
        }
        for (seen, check) in self.seen.iter_mut().zip(checks) {
            seen.is_charged &= !over[check.group];
        }
    }

    /// Whether the request is denied: by the store that decides it, otherwise by what is known here and elsewhere.
    pub(super) fn is_denied(&self, verdicts: &[Verdict], over: &GroupsOver) -> bool {
        let Case { checks, groups, views, .. } = *self.case;
        if self.is_answered && views.answers().any(|answer| !answer.is_admitted) {
            return true;
        }
        if !views.is_decided_by_owner() {
            return self.case.is_denied(over);
        }
        // The store has not judged hits that it is only told of.
        checks.iter().zip(verdicts).any(|(check, verdict)| {
            let Group { is_shadow, is_quota } = groups[check.group];
            verdict.is_over && check.charging == ChargeMode::Always && !is_shadow && !is_quota
        })
    }

    /// Puts a store's word in the place of memory's verdict. The nearer stores charge what the farthest has admitted.
    pub(super) fn settle(&mut self, index: usize, verdict: &mut Verdict) {
        let Case { checks, groups, now_ms, views, .. } = *self.case;
        let check = &checks[index];
        if check.charging != ChargeMode::Together {
            return;
        }
        let answer = views.answer_about(check, index);
        let is_charged = views.is_decided_by_owner();
        if answer == CheckAnswer::NotAsked && (groups[check.group].is_quota || !is_charged) {
            return;
        }
        verdict.basis = match (check.reach.store(), verdict.basis) {
            (Some(store), _) if answer != CheckAnswer::NotAsked => Basis::Store(store),
            // Its own store gave no answer, and its policy has let it pass.
            (_, basis @ Basis::Without(..)) if !verdict.is_over => basis,
            // Another store has decided, whatever became of its own.
            _ => Basis::Memory(NewsAge::Recent),
        };
        if is_charged && answer != CheckAnswer::Over {
            // Nobody that asks its own store knows of it before that has been told.
            self.seen[index].thresholds = TellThresholds::AT_ONCE;
        }
        let was_over = verdict.is_over;
        verdict.is_over = answer == CheckAnswer::Over;
        if was_over == verdict.is_over {
            return;
        }
        if !verdict.is_over {
            verdict.is_hopeless = false;
            verdict.reset_ms = self.reset_uncharged_ms(index);
            return;
        }
        let CheckState { guard, slot, twins, .. } = self.seen[index];
        let mut fresh = Counter::new(&check.terms, now_ms);
        let mut counts = match slot {
            Some(slot) => {
                let (slot, part) = self.guards[guard as usize].both(slot);
                KeyCounts { counter: &mut slot.counter, part }
            }
            None => KeyCounts { counter: &mut fresh, part: None },
        };
        verdict.wait_for(counts.view(check), &check.terms, twins.needed(check), now_ms);
        let paused_ms = counts.paused_for_ms(check.hits, views.mono_ms);
        verdict.reset_ms = verdict.reset_ms.max(paused_ms.unwrap_or(0)).max(1);
    }
}
