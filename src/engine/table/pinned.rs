//! The slots of a shard that the decision at hand still needs: no other key may take their place.

use std::collections::BTreeSet;

use crate::engine::steps;

/// A set that a large request adds to as it goes: it may have thousands of keys in one shard.
#[derive(Debug, Default)]
pub(crate) struct PinnedSlots(BTreeSet<u32>);

impl PinnedSlots {
    pub(crate) fn none() -> &'static PinnedSlots {
        static NONE: PinnedSlots = PinnedSlots(BTreeSet::new());
        &NONE
    }

    pub(crate) fn add(&mut self, slot: u32) {
        steps::count();
        self.0.insert(slot);
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.0.contains(&slot)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
