//! Remembers the hits that a request gave back before it asked a store.

use smallvec::SmallVec;

/// How much each refund of a request has raised what was available, in the request's first attempt. Kept only if a key comes
/// more than once; sorted by check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenBack(SmallVec<[(u32, u64); 2]>);

impl GivenBack {
    pub(super) fn push(&mut self, check: usize, hits: u64) {
        self.0.push((check as u32, hits));
    }

    /// How many hits a check has given back.
    pub(super) fn by(&self, check: usize) -> u64 {
        let place = self.0.binary_search_by_key(&(check as u32), |(check, _)| *check);
        place.map_or(0, |place| self.0[place].1)
    }
}
