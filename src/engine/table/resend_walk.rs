//! A walk through all keys after a store has lost its data: each is told again, one after the other.
//!
//! It keeps its place, so that whoever walks may stop after each key: there is no hurry, and the store has others to serve.
//! Keys that come meanwhile are told anyway.

use crate::clock::Now;
use crate::engine::key::OwnedKey;
use crate::engine::table::cell::CellUpdate;
use crate::engine::table::key_entry::KeyEntry;
use crate::engine::table::ledger::{Ledger, UnsentKey, tell};
use crate::engine::table::{SlotRef, Table};

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
    fn step<T>(&mut self, table: &Table, visit: impl FnOnce(KeyEntry<'_>) -> T) -> Option<T> {
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

impl Ledger<'_> {
    /// Goes on with a walk by one slot. If its key has to be told again, and neither waits to be told nor has a message under
    /// way, returns what to tell.
    pub(crate) fn resend_next(&self, walk: &mut ResendWalk, now: Now) -> Option<UnsentKey> {
        let visit = |mut entry: KeyEntry<'_>| if self.wants_again(&mut entry) { tell(entry, now) } else { None };
        walk.step(self.table, visit).flatten().map(without_silence)
    }

    /// Goes on with a walk by one slot. If its key has to be told again, and neither waits to be told nor has a message under
    /// way, returns the key: [`Ledger::resend`] tells of it when it is its turn.
    pub(crate) fn next_to_resend(&self, walk: &mut ResendWalk) -> Option<(SlotRef, OwnedKey)> {
        let visit = |mut entry: KeyEntry<'_>| self.wants_again(&mut entry).then(|| (entry.at, entry.key()));
        walk.step(self.table, visit).flatten()
    }

    /// What to tell of a key that a walk has found. `None` if another message has told everything since, or will.
    pub(crate) fn resend(&self, at: SlotRef, now: Now) -> Option<UnsentKey> {
        let visit = |entry: KeyEntry<'_>| if is_to_be_told_again(&entry) { tell(entry, now) } else { None };
        self.table.with_at(at, visit).flatten().map(without_silence)
    }

    /// Has a key told again with its next message. True if that has to be made.
    fn wants_again(&self, entry: &mut KeyEntry<'_>) -> bool {
        if entry.part.holders() == 0 || entry.part.store() != self.store {
            return false;
        }
        entry.part.want();
        is_to_be_told_again(entry)
    }
}

/// A key that waits, or is under way, is told everything with its next message.
fn is_to_be_told_again(entry: &KeyEntry<'_>) -> bool {
    entry.part.is_wanted() && !entry.part.is_queued() && !entry.part.is_sent()
}

/// Leaves out the older cells that say nothing.
fn without_silence(mut unsent: UnsentKey) -> UnsentKey {
    let cells = &mut unsent.update.cells;
    while cells.len() > 1 && cells.last().is_some_and(CellUpdate::says_nothing) {
        cells.pop();
    }
    unsent
}
