//! Sorting: what a Cluster is to be told, put in order by the slot that its message goes to.
//!
//! A [`TagQueue`] says which tags go with a flush. Urgent keys do not wait for that: a message goes at once, and takes along what
//! waits in the same slot. Keys that were given up go first, so that one that comes back finds its field as it left it. What
//! the Cluster may have lost waits apart, until there is enough of a slot for a message.

use crate::clock::Now;
use crate::engine::table::SlotRef;
use crate::regional::call::{CallKey, OriginKey};
use crate::regional::region::healing::{Healing, LOOKS_MAX};
use crate::regional::region::{BreakerKind, Region, RegionState};
use crate::regional::replay::{ReplayBatch, ToldKey};
use crate::regional::tag_queue::TagQueue;

/// How many keys are sorted in one go: requests need the state, and a key takes half a microsecond.
const SORTED_AT_ONCE: usize = 256;
/// Keys that were given up and wait here, at most. As many may wait in the table's queue.
const FAREWELLS_MAX: usize = 4096;

/// What a Cluster is to be told, by tag.
#[derive(Debug)]
pub(super) struct Sorted {
    /// Keys with something new.
    unsent: TagQueue<(OriginKey, ToldKey)>,
    /// Of those, keys that were given up.
    farewells: usize,
    /// Keys that a walk has found, and that the Cluster may have lost.
    lost: TagQueue<(OriginKey, SlotRef)>,
}

impl Sorted {
    pub(super) fn new() -> Sorted {
        Sorted { unsent: TagQueue::new(), farewells: 0, lost: TagQueue::new() }
    }

    /// Chooses what goes with a flush: in a clean stop everything.
    pub(super) fn begin_flush(&mut self, is_leaving: bool) {
        if is_leaving { self.unsent.release() } else { self.unsent.begin_flush() }
    }

    /// Something is still to go with this flush.
    pub(super) fn is_going(&self) -> bool {
        self.unsent.is_going()
    }

    /// Something new waits to be told.
    pub(super) fn is_any_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Since when.
    pub(super) fn waits_since_us(&self) -> Option<u64> {
        self.unsent.since_us()
    }

    /// Keys that may be lost, and are still to be told again.
    pub(super) fn lost_keys(&self) -> usize {
        self.lost.len()
    }

    /// Keys of the table that wait, or did.
    pub(super) fn keys_here(&self) -> Vec<SlotRef> {
        let here = |(_, key): &(OriginKey, ToldKey)| match key {
            ToldKey::Here(at) => Some(*at),
            ToldKey::Gone(_) => None,
        };
        self.unsent.iter().filter_map(here).collect()
    }
}

impl Region {
    /// Sorts all that waits to be told to a Cluster by now, a few keys at a time.
    pub(super) fn sort_all(&self, now: Now) {
        if !self.options.is_cluster {
            return;
        }
        for _ in 0..=self.ledger().unsent_keys() / SORTED_AT_ONCE {
            let state = &mut *self.state.lock();
            if state.nodes.are_all_given_up(BreakerKind::Replays) {
                return;
            }
            self.sort_some(state, now);
        }
    }

    /// Sorts some of what waits to be told, if it is to a Cluster.
    pub(super) fn sort_some(&self, state: &mut RegionState, now: Now) {
        let (ledger, Some(sorted)) = (self.ledger(), &mut state.telling.sorted) else { return };
        while sorted.farewells < FAREWELLS_MAX {
            let Some(farewell) = ledger.next_farewell() else { break };
            let origin = self.origin_key(&farewell.key.as_key(), farewell.key.is_sensitive);
            let key = ToldKey::Gone(Box::new(farewell));
            sorted.unsent.enter_first(origin.tag(), (origin, key), now.mono_us);
            sorted.farewells += 1;
        }
        for _ in 0..SORTED_AT_ONCE {
            let Some(at) = ledger.next_unsent() else { break };
            let Some(key) = ledger.key_at(at) else { continue };
            let origin = self.origin_key(&key.as_key(), key.is_sensitive);
            sorted.unsent.enter(origin.tag(), (origin, ToldKey::Here(at)), now.mono_us);
        }
    }

    /// A message for one slot of a Cluster: about what is urgent, or else about a tag that goes with this flush.
    pub(super) fn news_of_a_tag(&self, state: &mut RegionState, cells: usize, now: Now) -> ReplayBatch {
        let (ledger, telling) = (self.ledger(), &mut state.telling);
        let mut batch = ReplayBatch::default();
        let Some(sorted) = &mut telling.sorted else { return batch };
        while batch.is_empty() {
            let urgent = telling.urgent.pop_front().or_else(|| ledger.next_urgent());
            let (tag, is_going) = match urgent {
                Some(at) => {
                    let Some(unsent) = ledger.tell(at, now) else { continue };
                    telling.pending_hits += self.push(&mut batch, unsent);
                    (batch.parts[0].key.tag(), false)
                }
                None => match sorted.unsent.next_going() {
                    Some(tag) => (tag, true),
                    None => break,
                },
            };
            telling.pending_hits += self.take_along(sorted, tag, &mut batch, cells, now);
            if is_going && batch.is_full(cells) {
                sorted.unsent.goes_on(tag);
            }
        }
        batch
    }

    /// Adds what waits under a tag to a message, as far as there is room. Says how many hits that brings.
    fn take_along(&self, sorted: &mut Sorted, tag: u8, batch: &mut ReplayBatch, cells: usize, now: Now) -> u64 {
        let (ledger, mut hits) = (self.ledger(), 0);
        while !batch.is_full(cells) {
            let Some((origin, key)) = sorted.unsent.take(tag) else { break };
            let is_there = batch.has(&origin);
            match key {
                // It became urgent, and has been told.
                ToldKey::Here(at) if is_there && !ledger.is_unsent(at) => {}
                // A key that was given up and has come back, or was given up twice: no call names a key twice.
                key if is_there => {
                    sorted.unsent.enter_first(tag, (origin, key), now.mono_us);
                    break;
                }
                ToldKey::Here(at) => {
                    hits += ledger.tell(at, now).map_or(0, |unsent| Self::push_as(batch, origin, unsent));
                }
                ToldKey::Gone(farewell) => {
                    sorted.farewells -= 1;
                    hits += farewell.pending;
                    let part = CallKey::new(origin, &farewell.terms, farewell.update.clone());
                    batch.push(ToldKey::Gone(farewell), part);
                }
            }
        }
        hits
    }

    /// What a Cluster has lost, of one slot: enough for a message, or the rest when the walk is over.
    pub(super) fn lost_of_a_tag(
        &self,
        sorted: &mut Sorted,
        healing: &mut Healing,
        cells: usize,
        now: Now,
    ) -> ReplayBatch {
        let (ledger, mut batch, mut looks) = (self.ledger(), ReplayBatch::default(), 0);
        loop {
            let Some(tag) = sorted.lost.worth_a_message(healing.walk.is_over()) else {
                if healing.walk.is_over() || looks == LOOKS_MAX {
                    return batch;
                }
                looks += 1;
                if let Some((at, key)) = ledger.next_to_resend(&mut healing.walk) {
                    let origin = self.origin_key(&key.as_key(), key.is_sensitive);
                    sorted.lost.enter(origin.tag(), (origin, at), now.mono_us);
                }
                continue;
            };
            while !batch.is_full(cells) {
                let Some((origin, at)) = sorted.lost.take(tag) else { break };
                if let Some(unsent) = ledger.resend(at, now) {
                    Self::push_as(&mut batch, origin, unsent);
                }
            }
            if !batch.is_empty() {
                return batch;
            }
        }
    }
}
