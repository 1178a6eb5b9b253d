//! What a key that is given up for another still had to tell its store.
//!
//! Hits that are far from their limit are held back, so the keys that a full table gives up first often have some. They are
//! told after the key is gone, from a bounded queue; only what finds no room there is lost, and counted.

use crossbeam::queue::ArrayQueue;

use crate::engine::key::OwnedKey;
use crate::engine::table::ledger::KeyUpdate;
use crate::rules::limit::Terms;

/// So many keys wait at most. A flush tells about as many.
const FAREWELLS_MAX: usize = 4096;

/// A key that is not in the table any more, with what its store has not heard of.
#[derive(Clone, Debug)]
pub struct Farewell {
    /// Names the key.
    pub key: OwnedKey,
    /// What its hits were held against.
    pub terms: Terms,
    /// What to tell.
    pub update: KeyUpdate,
    /// Hits that are lost if it is never told.
    pub pending: u64,
}

/// Farewells that wait for the next flush.
#[derive(Debug)]
pub(super) struct Farewells(ArrayQueue<Box<Farewell>>);

impl Default for Farewells {
    fn default() -> Farewells {
        Farewells(ArrayQueue::new(FAREWELLS_MAX))
    }
}

impl Farewells {
    /// Has it told. Returns the hits that are lost because too many wait already.
    pub(super) fn push(&self, farewell: Farewell) -> u64 {
        self.0.push(Box::new(farewell)).err().map_or(0, |lost| lost.pending)
    }

    pub(super) fn pop(&self) -> Option<Farewell> {
        self.0.pop().map(|farewell| *farewell)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
