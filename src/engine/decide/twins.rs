//! The same key more than once in a request: it counts down from one check to the next.
//!
//! A check sees the hits of earlier checks on its key and none of later ones, also in a second attempt, after a store was
//! asked. By then hits of later checks are in the count: those that are charged whatever happens, refunds, and what the
//! store has charged. [`TwinSums`] finds the checks that are twins and keeps the sums that a check's [`Twins`] are made of.

use smallvec::SmallVec;

use crate::engine::decide::check::Check;
use crate::engine::steps;
use crate::rules::limit::Terms;

/// What the checks on one key mean for one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Twins {
    /// Hits of earlier checks that wait for the verdict.
    pub(super) waiting: u64,
    /// Hits of this check and later ones that are in the count already, less those that were given back.
    pub(super) counted: i64,
}

impl Twins {
    /// Hits that have to fit for the check to fit.
    #[inline(always)]
    pub(super) fn needed(&self, check: &Check<'_>) -> u64 {
        self.waiting.saturating_add(check.hits)
    }

    /// How much was available before this check and later ones were counted. Never more than the limit: a window that has
    /// begun since then holds none of them.
    #[inline(always)]
    pub(super) fn available_before(&self, available: i64, terms: &Terms) -> i64 {
        match self.counted {
            0 => available,
            counted => available.saturating_add(counted).min(terms.capacity().into()),
        }
    }

    /// Of the hits that have to fit, those that are not in the count yet.
    #[inline(always)]
    pub(super) fn uncounted(&self, check: &Check<'_>) -> u64 {
        match self.counted {
            0 => self.needed(check),
            counted => self.needed(check).saturating_add_signed(counted.saturating_neg()),
        }
    }
}

/// The sums of one key, while the checks of a request are looked at from the first to the last.
#[derive(Clone, Copy, Debug, Default)]
struct TwinTally {
    /// Hits of earlier checks that wait for the verdict.
    waiting: u64,
    /// Hits of checks still to come that are in the count already, less those that were given back.
    counted: i128,
}

/// Which checks of a request have the same key, and what they add up to.
#[derive(Debug)]
pub(super) struct TwinSums {
    /// For each check the first one with its key, often itself.
    first: Vec<u32>,
    /// At the place of that first check.
    tallies: Vec<TwinTally>,
}

impl TwinSums {
    /// Finds twins by sorting: the largest request has thousands of checks. `None` if all keys are different.
    #[cold]
    pub(super) fn find(checks: &[Check<'_>], hash: impl Fn(usize) -> u64) -> Option<TwinSums> {
        let mut order: SmallVec<[(u64, u32); 16]> =
            (0..checks.len()).map(|check| (hash(check), check as u32)).collect();
        order.sort_unstable_by(|one, other| {
            steps::count();
            one.cmp(other)
        });
        if !order.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let mut first: Vec<u32> = (0..checks.len() as u32).collect();
        for alike in order.chunk_by(|one, other| one.0 == other.0) {
            // Hardly ever more than one: different keys seldom have the same hash.
            let mut firsts: SmallVec<[u32; 2]> = SmallVec::new();
            for (_, check) in alike {
                let is_same = |first: &&u32| {
                    steps::count();
                    checks[**first as usize].key == checks[*check as usize].key
                };
                match firsts.iter().find(is_same) {
                    Some(found) => first[*check as usize] = *found,
                    None => firsts.push(*check),
                }
            }
        }
        let tallies = vec![TwinTally::default(); checks.len()];
        Some(TwinSums { first, tallies })
    }

    fn tally(&mut self, check: usize) -> &mut TwinTally {
        &mut self.tallies[self.first[check] as usize]
    }

    /// Adds what is in the count already of a check. To be called for all checks before the first [`TwinSums::look`].
    pub(super) fn count(&mut self, check: usize, counted: i64) {
        self.tally(check).counted += i128::from(counted);
    }

    /// What the others mean for a check of which `counted` is in the count. A refund sees what it has given back itself.
    pub(super) fn look(&mut self, check: usize, counted: i64, is_refund: bool) -> Twins {
        let tally = self.tally(check);
        let with_own = tally.counted;
        tally.counted -= i128::from(counted);
        let counted = if is_refund { tally.counted } else { with_own };
        Twins { waiting: tally.waiting, counted: clamped(counted) }
    }

    /// Adds the hits of a check that wait for the verdict: later checks come after them.
    pub(super) fn wait(&mut self, check: usize, hits: u64) {
        let tally = self.tally(check);
        tally.waiting = tally.waiting.saturating_add(hits);
    }

    /// For each check, what a store has to add to its limit to judge it by earlier checks only: what is in the count already
    /// of later ones, less the hits of earlier ones that wait too and that the store is not asked about.
    pub(super) fn after(&self, counted: impl Fn(usize) -> i64, unasked: impl Fn(usize) -> u64) -> Vec<i64> {
        let mut sums = vec![0i128; self.first.len()];
        for (check, first) in self.first.iter().enumerate() {
            steps::count();
            sums[*first as usize] += i128::from(counted(check));
        }
        let after = |(check, first): (usize, &u32)| {
            steps::count();
            let sum = &mut sums[*first as usize];
            *sum -= i128::from(counted(check));
            let after = clamped(*sum);
            *sum -= i128::from(unasked(check));
            after
        };
        self.first.iter().enumerate().map(after).collect()
    }
}

fn clamped(counted: i128) -> i64 {
    i64::try_from(counted).unwrap_or(if counted < 0 { i64::MIN } else { i64::MAX })
}
