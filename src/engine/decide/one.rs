//! One decision over a single key, as in most requests: nothing to sort, and no other check to wait for.

use smallvec::{SmallVec, smallvec};

use crate::engine::count::signed;
use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::decider::Decider;
use crate::engine::decide::question::{Question, is_judged};
use crate::engine::decide::spot::{Spot, insert, is_kept};
use crate::engine::decide::turn::CheckTurn;
use crate::engine::decide::twins::Twins;
use crate::engine::decide::{Case, Outcome};
use crate::engine::reach::Store;
use crate::engine::table::pinned::PinnedSlots;

impl Case<'_> {
    /// Decides the only check.
    ///
    /// `ALONE`: nobody shares the counts. Because that is known at compile time, code for shared counts is left out, which
    /// is half of the instructions.
    pub(super) fn decide_one<const ALONE: bool>(&self, check: &Check<'_>) -> Outcome {
        let (table, views, group) = (self.table, self.views, &self.groups[check.group]);
        let hash = table.hash(&check.key);
        let number = table.shard_of(hash);
        let is_quiet = self.is_shadow || group.is_shadow;
        // There is no second attempt for a count that nobody shares.
        let is_in_count = !ALONE && views.is_again && check.charging == ChargeMode::Always;
        let counted = if is_in_count { signed(check.hits) } else { 0 };
        let turn = CheckTurn { check, index: 0, twins: Twins { waiting: 0, counted }, is_quiet };
        let mut shard = table.lock(number);
        let known = shard.find(&check.key, hash);
        let (mut verdict, decider) = match known {
            Some(at) => {
                let mut spot = Spot::new::<ALONE>(&mut shard, number, at);
                spot.touch(table, check);
                self.assess::<ALONE>(&turn, spot.counts())
            }
            None => self.assess_unknown::<ALONE>(&turn),
        };
        let is_over = !self.is_shadow && verdict.is_over && self.is_denied_by(|group| group == check.group);
        let asks = match decider {
            Decider::Asks(why) if !is_over => Some(why),
            Decider::Asks(_)
            | Decider::Memory(_)
            | Decider::MemoryReads
            | Decider::Paused { .. }
            | Decider::Without(_) => None,
        };
        let is_charged = match check.charging {
            ChargeMode::Together => asks.is_none() && !is_over && self.is_charged(group, verdict.is_over),
            ChargeMode::Always | ChargeMode::Refund => !views.is_again,
        };
        let is_counted = is_charged && check.hits > 0;
        let at = match known {
            None if (is_counted && is_kept(table, check)) || decider == Decider::MemoryReads => {
                insert(table, &mut shard, PinnedSlots::none(), check, hash, self.now_ms)
            }
            known => known,
        };
        if let Some(at) = at {
            let mut spot = Spot::new::<ALONE>(&mut shard, number, at);
            if is_counted {
                let assumed = self.assumed(check, &verdict);
                spot.charge(table, check, known.is_none(), decider.thresholds(), assumed);
                if verdict.is_over {
                    spot.wait_longer(&mut verdict, check, check.hits, self.now_ms);
                }
            }
            if decider == Decider::MemoryReads {
                spot.read_behind(table);
            }
            spot.tell_others(table, check, verdict.is_over, views);
        }
        drop(shard);
        let charged = if is_charged || check.charging != ChargeMode::Together { check.hits } else { 0 };
        verdict.conclude(check, charged, 0);
        let mut questions = SmallVec::new();
        if let Some(why) = asks {
            let store = check.reach.store().unwrap_or(Store::Origin);
            questions.push(Question { check: 0, store, is_judged: is_judged(check, is_quiet), counted_after: 0, why });
        }
        Outcome { is_over, verdicts: smallvec![verdict], questions, given_back: None }
    }
}
