//! What a request has given back before a store was asked about it.

use smallvec::SmallVec;

/// By how much each refund of a request raised what was available, at its first look. Kept only where a key comes more than
/// once; sorted by check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenBack(SmallVec<[(u32, u64); 2]>);

impl GivenBack {
    pub(super) fn push(&mut self, check: usize, hits: u64) {
        self.0.push((check as u32, hits));
    }

    pub(super) fn by(&self, check: usize) -> u64 {
        let place = self.0.binary_search_by_key(&(check as u32), |(check, _)| *check);
        place.map_or(0, |place| self.0[place].1)
    }
}
