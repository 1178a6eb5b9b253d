//! One decision over a few keys with nothing special about any of them, as in most requests with several limits.
//!
//! Every key is known and in a shard of its own, memory decides them all, and all hits wait for the verdict. Then there is
//! no bookkeeping: lock, find, judge, charge. [`Case::decide_all`] gives the same answer, and decides all other requests; a
//! property test holds the two against each other.

use parking_lot::MutexGuard;

use crate::engine::decide::check::{ChargeMode, Check};
use crate::engine::decide::decider::Decider;
use crate::engine::decide::spot::Spot;
use crate::engine::decide::tell_thresholds::TellThresholds;
use crate::engine::decide::turn::CheckTurn;
use crate::engine::decide::twins::Twins;
use crate::engine::decide::{Case, Outcome};
use crate::engine::table::{Shard, Table};

type Guards<'t, const N: usize> = [Option<MutexGuard<'t, Shard>>; N];

/// A key that was found, under the lock of its shard.
struct FoundKey<'s> {
    spot: Spot<'s>,
    /// When its store hears of what is charged.
    thresholds: TellThresholds,
}

impl Case<'_> {
    /// Decides at most `N` checks. False if one of them is special: then nothing is charged, and the outcome means
    /// nothing. `ALONE`: nobody shares the counts, as in [`Case::decide_one`].
    pub(super) fn decide_few<const N: usize, const ALONE: bool>(&self, outcome: &mut Outcome) -> bool {
        let Case { table, checks, views, .. } = *self;
        if !ALONE && views.answers().next().is_some() {
            return false;
        }
        let mut guards: Guards<'_, N> = [const { None }; N];
        let mut held: [Option<FoundKey<'_>>; N] = [const { None }; N];
        if !lock_and_find::<N, ALONE>(table, checks, &mut guards, &mut held) {
            return false;
        }
        let mut is_any_over = false;
        for (index, check) in checks.iter().enumerate() {
            let Some(FoundKey { spot, thresholds }) = &mut held[index % N] else { return false };
            spot.touch(table, check);
            // Keys in shards of their own are different keys.
            let turn = CheckTurn { check, index, twins: Twins::default(), is_quiet: self.is_quiet(check) };
            let (mut verdict, decider) = self.assess::<ALONE>(&turn, spot.counts());
            let Decider::Memory(decided) = decider else { return false };
            *thresholds = decided;
            is_any_over |= verdict.is_over;
            // As if the request is admitted; otherwise it is concluded again.
            verdict.conclude(check, check.hits, 0);
            outcome.verdicts.push(verdict);
        }
        if is_any_over {
            return self.charge_some(&mut held, outcome);
        }
        for (index, check) in checks.iter().enumerate() {
            let Some(FoundKey { spot, thresholds }) = &mut held[index % N] else { return false };
            spot.charge(table, check, false, *thresholds, 0);
            spot.tell_others(table, check, false, views);
        }
        true
    }

    /// Ends a decision in which a check is over: the groups say what is charged.
    #[cold]
    fn charge_some(&self, held: &mut [Option<FoundKey<'_>>], outcome: &mut Outcome) -> bool {
        let Case { table, checks, now_ms, views, .. } = *self;
        let over = self.groups_over(&outcome.verdicts);
        let is_over = !self.is_shadow && self.is_denied(&over);
        outcome.is_over = is_over;
        for (index, (held, check)) in held.iter_mut().zip(checks).enumerate() {
            let is_charged = !is_over && self.is_charged(&self.groups[check.group], over.contains(check.group));
            let verdict = &mut outcome.verdicts[index];
            let Some(FoundKey { spot, thresholds }) = held else { return false };
            if is_charged {
                spot.charge(table, check, false, *thresholds, 0);
                if verdict.is_over {
                    spot.wait_longer(verdict, check, check.hits, now_ms);
                }
            } else if !verdict.is_over {
                verdict.reset_ms = spot.reset_ms(check, now_ms);
            }
            verdict.conclude(check, if is_charged { check.hits } else { 0 }, 0);
            spot.tell_others(table, check, verdict.is_over, views);
        }
        true
    }
}

/// Locks the shards of all keys, in ascending order as every decision does, and only then finds the keys, so that reading
/// one does not wait for the lock of another. False if two keys share a shard, one is not there, or a check has no hits or
/// does not wait for the verdict.
///
/// Places are numbered modulo `N`, a power of two that is no less than the number of checks: so they need no bounds check.
#[inline(always)]
fn lock_and_find<'s, 't, const N: usize, const ALONE: bool>(
    table: &'t Table,
    checks: &[Check<'_>],
    guards: &'s mut Guards<'t, N>,
    held: &mut [Option<FoundKey<'s>>; N],
) -> bool {
    let mut hashes = [0; N];
    // In the high half the shard's number, in the low half the check's.
    let mut order = [u64::MAX; N];
    for (index, check) in checks.iter().enumerate() {
        if check.charging != ChargeMode::Together || check.hits == 0 {
            return false;
        }
        let hash = table.hash(&check.key);
        hashes[index % N] = hash;
        order[index % N] = u64::from(table.shard_of(hash)) << 32 | index as u64;
    }
    sort(&mut order);
    let mut last = u64::MAX;
    for entry in order.iter().take(checks.len()) {
        let (shard, index) = (entry >> 32, *entry as u32 as usize % N);
        if shard == last {
            return false;
        }
        last = shard;
        guards[index] = Some(table.lock(shard as u32));
    }
    for (index, (guard, check)) in guards.iter_mut().zip(checks).enumerate() {
        let (hash, Some(shard)) = (hashes[index % N], guard) else { return false };
        let Some(at) = shard.find(&check.key, hash) else { return false };
        let spot = Spot::new::<ALONE>(shard, table.shard_of(hash), at);
        held[index % N] = Some(FoundKey { spot, thresholds: TellThresholds::WITH_FLUSH });
    }
    true
}

/// A fixed network: for so few entries, a general sort spends more on finding out how few they are.
#[inline(always)]
fn sort<const N: usize>(entries: &mut [u64; N]) {
    let mut order = |low: usize, high: usize| {
        let (one, other) = (entries[low % N], entries[high % N]);
        (entries[low % N], entries[high % N]) = (one.min(other), one.max(other));
    };
    if N == 4 {
        [(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)].into_iter().for_each(|(low, high)| order(low, high));
        return;
    }
    for end in 1..N {
        (1..=end).rev().for_each(|at| order(at - 1, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Locks that are taken in any other order end in a deadlock.
        #[test]
        fn entries_are_sorted(four: [u64; 4], eight: [u64; 8]) {
            let mut sorted = (four, eight);
            sort(&mut sorted.0);
            sort(&mut sorted.1);
            let mut expected = (four, eight);
            expected.0.sort_unstable();
            expected.1.sort_unstable();
            prop_assert_eq!(sorted, expected);
        }
    }
}
