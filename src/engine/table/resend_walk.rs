//! A walk through all keys after a store has lost its data: each is told again, one after the other.
//!
//! It keeps its place, so that whoever walks may stop after each key: there is no hurry, and the store has others to serve.
//! Keys that come meanwhile are told anyway.

use crate::engine::table::Table;
use crate::engine::table::key_entry::KeyEntry;

/// How far a walk has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResendWalk {
    /// The shard to go on with.
    shard: u32,
    /// The slot in it to go on with.
    slot: u32,
    shards: u32,
}

impl ResendWalk {
    /// A walk through a whole table.
    pub(crate) fn through(table: &Table) -> ResendWalk {
        ResendWalk { shard: 0, slot: 0, shards: table.shards() }
    }

    /// It has come to the end.
    pub(crate) fn is_over(&self) -> bool {
        self.shard >= self.shards
    }

    /// How many of a table's keys are still ahead, about: all shards hold much the same.
    pub(crate) fn keys_ahead(&self, keys: usize) -> u64 {
        let ahead = u64::from(self.shards.saturating_sub(self.shard));
        (keys as u64).saturating_mul(ahead).div_ceil(u64::from(self.shards.max(1)))
    }

    /// Visits the next key. `None` if the shard has no more: the walk goes on with the next one.
    pub(super) fn step<T>(&mut self, table: &Table, visit: impl FnOnce(KeyEntry<'_>) -> T) -> Option<T> {
        if self.is_over() {
            return None;
        }
        match table.with_first_from(self.shard, self.slot, visit) {
            Some((slot, visited)) => {
                self.slot = slot + 1;
                Some(visited)
            }
            None => {
                (self.shard, self.slot) = (self.shard + 1, 0);
                None
            }
        }
    }
}
