//! The same key more than once in a request: within it, a key counts down.
//!
//! A check sees the hits of earlier checks on its key and none of later ones, also when the request is looked at again
//! after a store was asked. By then the later ones are in the count: those that are charged whatever happens, what was
//! given back, and what the store has charged.

use crate::engine::decide::Check;
use crate::rules::limit::Terms;

/// What the checks of a request on one key mean for one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Twins {
    /// Hits of earlier checks that wait for the verdict.
    pub waiting: u64,
    /// Hits that are in the count although they come with this check or after it, less those that were given back.
    pub counted: i64,
}

impl Twins {
    /// Hits that have to fit for the check to fit.
    #[inline(always)]
    pub fn needed(&self, check: &Check<'_>) -> u64 {
        self.waiting.saturating_add(check.hits)
    }

    /// What was available before the check and those after it were counted. A window that has begun since then holds none
    /// of them: there is never more than the limit.
    #[inline(always)]
    pub fn available_before(&self, available: i64, terms: &Terms) -> i64 {
        match self.counted {
            0 => available,
            counted => available.saturating_add(counted).min(terms.capacity().into()),
        }
    }

    /// Of the hits that have to fit, those that are not in the count yet.
    #[inline(always)]
    pub fn uncounted(&self, check: &Check<'_>) -> u64 {
        match self.counted {
            0 => self.needed(check),
            counted => self.needed(check).saturating_add_signed(counted.saturating_neg()),
        }
    }
}
