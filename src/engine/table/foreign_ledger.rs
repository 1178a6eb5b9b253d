//! The books that this process keeps on other regions: the only door to the table for the exchange between them.
//!
//! It has verbs, each done under the shard's lock before it returns, as in [`ledger`](crate::engine::table::ledger).

use smallvec::SmallVec;

use crate::engine::count::counter::Counter;
use crate::engine::key::{Key, OwnedKey};
use crate::engine::reach::Store;
use crate::engine::table::foreign::{CellStanding, Counts};
use crate::engine::table::{NewKey, SlotRef, Table};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// A queue no longer than this is never swept.
const NOTED_MIN: usize = 4096;

/// A table's books on other regions.
#[derive(Clone, Copy, Debug)]
pub struct ForeignLedger<'t> {
    table: &'t Table,
}

/// What the table of the regions says about a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignSum {
    /// The cell's number.
    pub sequence: u64,
    /// The sum of the other regions' rows.
    pub others: Counts,
    /// This region's row.
    pub row: Counts,
    /// What of it the other regions can be taken to have found.
    pub told: Counts,
}

/// What became of a cell that other regions told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportResult {
    /// It is counted, in these slots: several if a rule has changed its algorithm. `is_news`: other regions have counted
    /// more than was known. `is_created`: the key was not here before.
    Counted { slots: SmallVec<[SlotRef; 2]>, is_news: bool, is_created: bool },
    /// There is no room for the key, or there are too many keys already that only other regions ask for.
    NoRoom,
}

/// A key, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct KeyAt {
    /// For verbs that come back to the key: by then its slot may hold another.
    pub at: SlotRef,
    /// Its name, as it was when it was read.
    pub key: OwnedKey,
}

/// A key with counts that other regions should know of.
#[derive(Clone, Debug)]
pub(crate) struct PublishableKey {
    /// For [`ForeignLedger::published`].
    pub at: SlotRef,
    /// What the row is published under.
    pub key: OwnedKey,
    /// The older first. May be empty: then nothing is worth publishing any more.
    pub cells: SmallVec<[PublishableCell; 2]>,
}

/// A cell that other regions should know of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishableCell {
    /// The cell's number.
    pub sequence: u64,
    /// What they should know.
    pub counts: Counts,
    /// What they know already, and why they should know more.
    pub standing: CellStanding,
}

/// The keys to publish now. Keys that come in meanwhile are left for the next turn.
#[derive(Debug)]
pub(crate) struct PublishableKeys<'t> {
    table: &'t Table,
    left: usize,
    now_ms: u64,
}

impl Table {
    /// The books on other regions.
    pub fn foreign_ledger(&self) -> ForeignLedger<'_> {
        ForeignLedger { table: self }
    }
}

impl<'t> ForeignLedger<'t> {
    /// How many places the queue of keys to publish has; some keys may be gone.
    pub(crate) fn noted(&self) -> usize {
        self.table.noted.len()
    }

    /// The keys to publish now.
    pub(crate) fn publishable(&self, now_ms: u64) -> PublishableKeys<'t> {
        PublishableKeys { table: self.table, left: self.noted(), now_ms }
    }

    /// The other regions have been told this about a cell.
    pub(crate) fn published(&self, at: SlotRef, sequence: u64, counts: Counts) {
        self.table.with_at(at, |mut entry| {
            let current = entry.slot.counter.sequence();
            entry.part.foreign_mut(current).published(sequence, current, counts);
            entry.weigh();
        });
    }

    /// Queues a key to be published, if there is anything that others should know and do not.
    pub(crate) fn note(&self, at: SlotRef) {
        self.table.with_at(at, |mut entry| entry.note());
    }

    /// Queues every key to be published of which others should know more.
    pub(crate) fn note_all(&self) {
        self.table.each(|mut entry| entry.note());
    }

    /// Keys that were given up leave their places in the queue behind. While nothing can be published, this removes such
    /// places before they outnumber the keys that there are.
    pub(crate) fn sweep_noted(&self) {
        let noted = &self.table.noted;
        let length = noted.len();
        if length <= NOTED_MIN + 2 * self.table.stats().keys {
            return;
        }
        for _ in 0..length {
            let Some(at) = noted.pop() else { break };
            if self.table.with_at(at, |entry| entry.part.is_noted()) == Some(true) {
                noted.push(at);
            }
        }
    }

    /// Forgets what the other regions were told, because they may have lost it.
    pub(crate) fn forget_told(&self) {
        self.table.each(|entry| {
            if let Some(foreign) = entry.part.known_foreign() {
                foreign.forget_told();
            }
        });
    }

    /// Takes over what other regions have counted in a cell of a key. Makes the key if it is not here and there is room.
    pub fn import(&self, key: &Key<'_>, terms: &Terms, sum: &ForeignSum, now_ms: u64) -> ImportResult {
        let mut slots = SmallVec::new();
        let mut is_news = false;
        // A rule may have changed its algorithm: the cells are the same.
        for algorithm in Algorithm::windowed() {
            self.table.with_key(&Key { algorithm, ..*key }, |mut entry| {
                is_news |= entry.import(sum, now_ms);
                slots.push(entry.at);
            });
        }
        match slots.is_empty() {
            true => self.import_new(key, terms, sum, now_ms),
            false => ImportResult::Counted { slots, is_news, is_created: false },
        }
    }

    fn import_new(&self, key: &Key<'_>, terms: &Terms, sum: &ForeignSum, now_ms: u64) -> ImportResult {
        if !self.table.count_unasked() {
            return ImportResult::NoRoom;
        }
        let make = |hash: u64| {
            let (counter, store) = (Counter::new(terms, now_ms), Store::Origin);
            NewKey { key: *key, hash, terms: *terms, counter, store, is_sensitive: false, is_global: true }
        };
        let imported = self.table.with_new_key(key, make, now_ms, |mut entry, is_created| {
            if is_created {
                entry.part.foreign_mut(entry.slot.counter.sequence());
                entry.part.set_unasked();
            } else {
                // A request has made the key in between.
                self.table.count_asked();
            }
            let is_news = entry.import(sum, now_ms);
            ImportResult::Counted { slots: SmallVec::from_iter([entry.at]), is_news, is_created }
        });
        imported.unwrap_or_else(|| {
            self.table.count_asked();
            ImportResult::NoRoom
        })
    }

    /// Takes over what other regions have counted in a cell of the key at a place, and says whether that was news. `None`
    /// if the key there is not the one that is meant.
    pub(crate) fn import_at(
        &self,
        at: SlotRef,
        is_meant: impl FnOnce(&Key<'_>) -> bool,
        sum: &ForeignSum,
        now_ms: u64,
    ) -> Option<bool> {
        let imported =
            self.table.with_at(at, |mut entry| is_meant(&entry.slot.key()).then(|| entry.import(sum, now_ms)));
        imported.flatten()
    }

    /// Whether a key is still where it was.
    pub(crate) fn holds(&self, at: SlotRef) -> bool {
        self.table.with_at(at, |_| ()).is_some()
    }

    /// Whether there are new sensitive keys, to be compared with what other regions told by digest.
    pub(crate) fn is_any_digested(&self) -> bool {
        !self.table.digested.is_empty()
    }

    /// The next new sensitive key, to be compared with what other regions told by digest.
    pub(crate) fn next_digested(&self) -> Option<KeyAt> {
        self.next_of(|| self.table.digested.pop(), |_| true)
    }

    /// Something is going to be read that was not before: until it was, these keys lack counts of other regions, and so
    /// may any new key.
    pub(crate) fn expect_reading(&self, lacks: impl Fn(&Key<'_>) -> bool) {
        self.table.missing.expect_reading();
        self.table.each(|entry| {
            if lacks(&entry.slot.key()) {
                entry.part.set_unheard(true);
            }
        });
    }

    /// A full read begins: until it ends, any key may lack counts of other regions.
    pub(crate) fn begin_reading(&self) {
        self.table.missing.begin_reading();
    }

    /// Notes that counts which matter until then found no room.
    pub(crate) fn leave_out(&self, until_ms: u64) {
        self.table.missing.leave_out(until_ms);
    }

    /// All that was to be read was heard. Unless something was left out meanwhile, no key lacks anything.
    pub(crate) fn end_reading(&self, now_ms: u64) {
        let missing = &self.table.missing;
        missing.end_reading();
        if missing.is_any(now_ms) {
            return;
        }
        self.table.each(|entry| {
            if !missing.is_any(now_ms) {
                entry.part.set_unheard(false);
            }
        });
        while !missing.is_any(now_ms) && missing.next().is_some() {}
    }

    /// Whether keys wait to be looked up.
    pub(crate) fn is_any_sought(&self) -> bool {
        self.table.missing.sought() > 0
    }

    /// The next key of which counts of other regions may be missing.
    pub(crate) fn next_sought(&self) -> Option<KeyAt> {
        self.next_of(|| self.table.missing.next(), |key| key.is_global)
    }

    /// A key could not be looked up: it waits again.
    pub(crate) fn seek_again(&self, at: SlotRef) {
        self.table.with_at(at, |mut entry| {
            entry.part.set_unheard(true);
            entry.seek();
        });
    }

    /// The first key of a queue that is still here and is meant.
    fn next_of(&self, pop: impl Fn() -> Option<SlotRef>, is_meant: impl Fn(&OwnedKey) -> bool) -> Option<KeyAt> {
        loop {
            let at = pop()?;
            if let Some(key) = self.table.with_at(at, |entry| entry.key()).filter(&is_meant) {
                return Some(KeyAt { at, key });
            }
        }
    }
}

impl Iterator for PublishableKeys<'_> {
    type Item = PublishableKey;

    fn next(&mut self) -> Option<PublishableKey> {
        while self.left > 0 {
            self.left -= 1;
            let at = self.table.noted.pop()?;
            let publishable = self.table.with_at(at, |entry| {
                entry.part.set_noted(false);
                let terms = entry.slot.terms();
                entry.slot.counter.look(&terms, self.now_ms);
                let regions = self.table.regions();
                let cells = entry.part.notable(&entry.slot.counter, &terms, regions);
                let cells = cells.into_iter().flatten().map(|(sequence, counts)| {
                    let standing = entry.part.standing(sequence, &terms, regions);
                    PublishableCell { sequence, counts, standing }
                });
                PublishableKey { at, key: entry.key(), cells: cells.collect() }
            });
            if publishable.is_some() {
                return publishable;
            }
        }
        None
    }
}
