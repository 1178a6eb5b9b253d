//! The books that a store and this process keep on each other: the only door to the table for code that talks to a store.
//!
//! It has verbs, each done under the shard's lock before it returns: no lock, slot or part ever leaves. A [`SlotRef`], which
//! means nothing outside, names the key that a message is about. If the key is gone by the time the answer comes, the verb
//! does nothing.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::clock::Now;
use crate::engine::count::counter::Counter;
use crate::engine::count::exact::PARTS;
use crate::engine::key::{Key, OwnedKey};
use crate::engine::reach::Store;
use crate::engine::table::cell::{CellState, CellUpdate, HeldAt};
use crate::engine::table::farewell::Farewell;
use crate::engine::table::foreign::View;
use crate::engine::table::key_entry::KeyEntry;
use crate::engine::table::regional_part::Heard;
use crate::engine::table::{NewKey, SlotRef, Table};
use crate::rules::limit::Terms;

/// A table's books with one store.
#[derive(Clone, Copy, Debug)]
pub struct Ledger<'t> {
    /// What they are about.
    pub(super) table: &'t Table,
    /// Whose counts they are.
    pub(super) store: Store,
}

/// What a store is to be told about a key.
#[derive(Clone, Debug)]
pub struct KeyUpdate {
    /// The newest first.
    pub cells: SmallVec<[CellUpdate; 2]>,
    /// The key's own time, at or after the caller's.
    pub now_ms: u64,
    /// Hits that the store may charge ahead if it admits what this process asks for.
    pub ahead: u16,
}

/// A key of which the store has not heard everything.
#[derive(Clone, Debug)]
pub struct UnsentKey {
    /// Names the key to the verbs that take the answer.
    pub at: SlotRef,
    /// Names the key to the store.
    pub key: OwnedKey,
    /// Those of the last decision on it.
    pub terms: Terms,
    /// What to tell. If the process does not know its own field at the store, its totals mean nothing yet: the store adds none
    /// of them, and its answer brings the field.
    pub update: KeyUpdate,
}

/// A store's answer to a check of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeyAnswer<'a> {
    /// The cells as the store holds them, the newest first.
    pub cells: &'a [CellState],
    /// Hits that it has admitted, and charged.
    pub admitted: u64,
    /// The fewest hits that it has denied, `None` if it has denied none.
    pub denied: Option<u64>,
    /// A denial does not count for later requests: the store is asked each time.
    pub is_strict: bool,
    /// The key is held to the region's own part of the limit.
    pub is_cut_off: bool,
    /// Any number: it spreads pauses, so that keys that were denied together do not come back together.
    pub jitter: u64,
}

/// How a key stands after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyView {
    /// Processes that hold the key.
    pub holders: u32,
    /// How many hits fit now; below zero when more was charged than the limit.
    pub available: i64,
}

impl Table {
    /// The books with a store.
    pub fn ledger(&self, store: Store) -> Ledger<'_> {
        Ledger { table: self, store }
    }

    /// Moves keys to the stores that share them from now on, so that those hear of what was accepted here.
    pub(in crate::engine) fn rehome(&self, home: impl Fn(&Key<'_>) -> Option<Store>) {
        self.each(|mut entry| {
            let Some(home) = home(&entry.slot.key()).filter(|home| *home != entry.part.store()) else { return };
            entry.part.follow(&entry.slot.counter);
            entry.part.move_to(home);
            entry.weigh();
            if entry.part.is_dirty() {
                entry.enqueue(false);
            }
        });
    }

    /// Hits that no store has acknowledged.
    pub(crate) fn pending_hits(&self) -> u64 {
        let mut pending = 0;
        self.each(|entry| pending += entry.part.pending());
        pending
    }
}

impl<'t> Ledger<'t> {
    /// Whether a key waits to be told, here or given up.
    pub(crate) fn is_any_unsent(&self) -> bool {
        let grown = self.table.grown(self.store);
        !grown.all.is_empty() || !grown.farewells.is_empty()
    }

    /// Whether a key waits to be told at once.
    pub(crate) fn is_any_urgent(&self) -> bool {
        !self.table.grown(self.store).urgent.is_empty()
    }

    /// Makes all urgent keys wait to be told with the rest.
    pub(crate) fn forget_urgent(&self) {
        while self.next_urgent().is_some() {}
    }

    /// The next key that is urgent: it leaves the queue of those, and still waits with the rest.
    pub(crate) fn next_urgent(&self) -> Option<SlotRef> {
        self.table.grown(self.store).urgent.pop()
    }

    /// How many keys wait to be told, about: some may have been told since, or be gone.
    pub(crate) fn unsent_keys(&self) -> usize {
        self.table.grown(self.store).all.len()
    }

    /// The key that has waited longest. It leaves the queue, so it has to be told now.
    pub(crate) fn next_unsent(&self) -> Option<SlotRef> {
        self.table.grown(self.store).all.pop()
    }

    /// The key that is meant, if it is still there.
    pub(crate) fn key_at(&self, at: SlotRef) -> Option<OwnedKey> {
        self.table.with_at(at, |entry| entry.key())
    }

    /// Whether a key still waits to be told.
    pub(crate) fn is_unsent(&self, at: SlotRef) -> bool {
        self.table.with_at(at, |entry| entry.part.is_queued()).unwrap_or(false)
    }

    /// Hits of a key that waits to be told; `None` if it does not wait any more.
    pub(crate) fn unsent_hits_at(&self, at: SlotRef) -> Option<u64> {
        self.table.with_at(at, |entry| entry.part.is_queued().then(|| entry.part.pending())).flatten()
    }

    /// What to tell of a key that waited. `None` if there is nothing, or a message about it is under way.
    pub(crate) fn tell(&self, at: SlotRef, now: Now) -> Option<UnsentKey> {
        self.table.with_at(at, |entry| if entry.part.sync().dequeue() { tell(entry, now) } else { None }).flatten()
    }

    /// All keys that wait to be told now, each once. Keys that come in meanwhile are left for the next time.
    pub fn unsent(&self, now: Now) -> impl Iterator<Item = UnsentKey> + use<'t> {
        let ledger = *self;
        (0..self.unsent_keys()).map_while(move |_| ledger.next_unsent()).filter_map(move |at| ledger.tell(at, now))
    }

    /// How many keys that were given up still have something to tell.
    pub(crate) fn farewells(&self) -> usize {
        self.table.grown(self.store).farewells.len()
    }

    /// What a key that was given up still has to tell.
    pub(crate) fn next_farewell(&self) -> Option<Farewell> {
        self.table.grown(self.store).farewells.pop()
    }

    /// The store was not told: it hears of it with the next flush, if there is room.
    pub(crate) fn put_farewell_back(&self, farewell: Farewell) {
        let lost = self.table.grown(self.store).farewells.push(farewell);
        self.table.lost_hits.fetch_add(lost, Ordering::Relaxed);
    }

    /// Takes over how many processes are alive.
    pub(crate) fn set_live(&self, live: u32) {
        self.table.grown(self.store).live.store(live, Ordering::Relaxed);
    }

    /// Goes through a shard: has told at once what is held back and is more than may be pending by now. Returns the hits
    /// that stay held back.
    pub(crate) fn patrol(&self, shard: u32, now: Now) -> u64 {
        let mut held: u64 = 0;
        self.table.each_in(shard, |mut entry| {
            if entry.part.store() != self.store {
                return;
            }
            match entry.is_beyond_allowance(now.wall_ms) {
                true => entry.enqueue(true),
                false => held = held.saturating_add(entry.held_hits()),
            }
        });
        held
    }

    /// Has everything told that is held back: what is the largest part of its limit first.
    pub(crate) fn release_held(&self) {
        /// Parts are compared in millionths.
        const WHOLE: u64 = 1_000_000;
        let mut held: Vec<(u64, SlotRef)> = Vec::new();
        self.table.each(|entry| {
            let hits = entry.held_hits();
            if hits > 0 && entry.part.store() == self.store {
                let capacity = u64::from(entry.slot.terms().capacity().max(1));
                held.push((hits.saturating_mul(WHOLE) / capacity, entry.at));
            }
        });
        held.sort_unstable_by_key(|(part, _)| std::cmp::Reverse(*part));
        for (_, at) in held {
            self.table.with_at(at, |mut entry| entry.enqueue(false));
        }
    }

    /// A message about a key was answered, while a check of it was under way or not.
    pub(crate) fn acknowledged(&self, at: SlotRef, cells: &[CellState], is_checking: bool, now: Now) {
        self.table.with_at(at, |mut entry| {
            entry.part.sync().end();
            let terms = entry.slot.terms();
            let is_dirty = entry.part.absorb(&mut entry.slot.counter, &terms, cells, Heard::Told { is_checking }, now);
            entry.weigh();
            if is_dirty || entry.part.is_wanted() {
                entry.enqueue(false);
            }
            entry.note();
        });
    }

    /// A message about a key was not answered: the next one says everything.
    pub(crate) fn unacknowledged(&self, at: SlotRef) {
        self.table.with_at(at, |mut entry| {
            entry.part.sync().end();
            entry.part.want();
            entry.enqueue(false);
        });
    }

    /// Pending hits of the keys that wait to be told. Takes keys that are gone out of the queue.
    pub(crate) fn unsent_hits(&self) -> u64 {
        let queue = &self.table.grown(self.store).all;
        let mut hits: u64 = 0;
        for _ in 0..queue.len() {
            let Some(at) = queue.pop() else { break };
            let Some(pending) = self.unsent_hits_at(at) else { continue };
            hits = hits.saturating_add(pending);
            queue.push(at);
        }
        hits
    }

    /// What to say about a key in a check, whether the key is here or not.
    pub(crate) fn update_of(&self, key: &OwnedKey, terms: &Terms, is_cut_off: bool, now: Now) -> KeyUpdate {
        let known = |mut entry: KeyEntry<'_>| {
            if entry.part.store() != self.store {
                return None;
            }
            let now_ms = entry.look(terms, now.wall_ms).now_ms;
            let mut cells = entry.part.judged_cells(&entry.slot.counter, terms, now.wall_ms);
            if is_cut_off {
                cells.iter_mut().for_each(CellUpdate::leave_foreign_out);
            }
            entry.part.leave_spare();
            Some(KeyUpdate { cells, now_ms, ahead: entry.part.ahead(terms) })
        };
        self.table.with_key(&key.as_key(), known).flatten().unwrap_or_else(|| {
            let counter = Counter::new(terms, now.wall_ms);
            let part = self.table.new_part(&counter, self.store, key.is_sensitive, now.wall_ms);
            let cells = part.judged_cells(&counter, terms, now.wall_ms);
            KeyUpdate { cells, now_ms: now.wall_ms, ahead: 0 }
        })
    }

    /// Whether requests of so many hits are denied without asking, because the store has just denied as many.
    pub(crate) fn is_paused(&self, key: &OwnedKey, hits: u64, now: Now) -> bool {
        let is_paused = |entry: KeyEntry<'_>| entry.part.paused_for_ms(hits, now.mono_ms()).is_some();
        self.table.with_key(&key.as_key(), is_paused).unwrap_or(false)
    }

    /// Takes an answer over. `None` if there is no room for the key, or another store shares it by now.
    pub fn settle(&self, key: &OwnedKey, terms: &Terms, answer: KeyAnswer<'_>, now: Now) -> Option<KeyView> {
        let KeyAnswer { cells, admitted, denied, is_strict, is_cut_off, jitter } = answer;
        self.with_key(key, terms, now, |entry| {
            let is_dirty = entry.part.absorb(&mut entry.slot.counter, terms, cells, Heard::Admitted(admitted), now);
            entry.weigh();
            let (counter, foreign) = (&mut entry.slot.counter, entry.part.foreign());
            let mut view = View { counter, foreign, is_cut_off };
            let available = view.look(terms, now.wall_ms).available;
            // No pause for a strict limit: the owner is asked again as soon as memory does not deny any more.
            if let Some(hits) = denied.filter(|_| !is_strict) {
                let denial = Denial { hits, holders: entry.part.holders(), jitter };
                let for_ms = pause_ms(view, terms, denial, now.wall_ms);
                entry.part.pause(hits, for_ms, now.mono_ms());
            }
            if is_dirty || entry.part.is_wanted() {
                entry.enqueue(false);
            }
            KeyView { holders: entry.part.holders(), available }
        })
    }

    /// Charges hits that the store has admitted but not charged. It hears of them at once.
    pub(crate) fn charge(&self, key: &OwnedKey, terms: &Terms, hits: u64, now: Now) {
        self.with_key(key, terms, now, |entry| {
            entry.look(terms, now.wall_ms);
            entry.slot.counter.add(terms, hits);
            if let Some(bucket) = entry.slot.counter.bucket_mut() {
                entry.part.pend_from(bucket.at_ms());
            }
            entry.part.add(entry.slot.counter.sequence(), hits);
            entry.enqueue(true);
        });
    }

    /// The store did not answer about a key: the rule's `on_outage` decides on it for a moment.
    pub(crate) fn unreadable(&self, key: &OwnedKey, terms: &Terms, now: Now) {
        self.with_key(key, terms, now, |entry| entry.part.unreadable(now.mono_ms()));
    }

    /// Visits every key that this process has told its store of, with each place where that may hold it.
    pub(crate) fn each_field(&self, mut visit: impl FnMut(&OwnedKey, HeldAt)) {
        self.table.each(|entry| {
            if entry.part.holders() == 0 || entry.part.store() != self.store {
                return;
            }
            let (key, counter) = (entry.key(), &entry.slot.counter);
            let newest = counter.sequence();
            match counter {
                Counter::Gcra(_) => visit(&key, HeldAt::Bucket),
                Counter::Exact(_) => {
                    let block = newest / PARTS;
                    visit(&key, HeldAt::Block(block));
                    visit(&key, HeldAt::Block(block.saturating_sub(1)));
                }
                Counter::Windowed(_) => {
                    let cells = counter.cells_that_count(&entry.slot.terms()) as u64;
                    (0..cells).for_each(|back| visit(&key, HeldAt::Cell(newest.saturating_sub(back))));
                }
            }
        });
    }

    /// Finds or makes a key, and works on it. `None` if there is no room, or new rules have another store share it by now.
    fn with_key<T>(
        &self,
        key: &OwnedKey,
        terms: &Terms,
        now: Now,
        work: impl FnOnce(&mut KeyEntry<'_>) -> T,
    ) -> Option<T> {
        let OwnedKey { is_sensitive, is_global, .. } = *key;
        let make = |hash: u64| {
            let counter = Counter::new(terms, now.wall_ms);
            NewKey { key: key.as_key(), hash, terms: *terms, counter, store: self.store, is_sensitive, is_global }
        };
        let work = |mut entry: KeyEntry<'_>, _| {
            if entry.part.store() != self.store {
                return None;
            }
            let done = work(&mut entry);
            entry.note();
            Some(done)
        };
        self.table.with_new_key(&key.as_key(), make, now.wall_ms, work).flatten()
    }
}

/// What to tell about a key that stands in no queue.
pub(super) fn tell(mut entry: KeyEntry<'_>, now: Now) -> Option<UnsentKey> {
    let terms = entry.slot.terms();
    let now_ms = entry.look(&terms, now.wall_ms).now_ms;
    let (at, key) = (entry.at, entry.key());
    let part = entry.part;
    if part.sync().is_sent() || !(part.is_dirty() || part.is_wanted()) {
        return None;
    }
    let is_wanted = part.sync().send();
    let cells = part.pending_cells(&entry.slot.counter, &terms, is_wanted, now.wall_ms);
    let update = KeyUpdate { cells, now_ms, ahead: 0 };
    Some(UnsentKey { at, key, terms, update })
}

/// What a store has denied, and what decides how soon it is asked again.
#[derive(Clone, Copy, Debug)]
struct Denial {
    /// The fewest hits that it has denied.
    hits: u64,
    /// Processes that hold the key: all of them wait for what comes free.
    holders: u32,
    /// See [`KeyAnswer::jitter`].
    jitter: u64,
}

/// How long a key denies without asking after a denial: until about a hundredth of the limit has come free for every two processes
/// that hold the key, because they take turns, but never past the second that `Retry-After` names.
fn pause_ms(mut view: View<'_>, terms: &Terms, denial: Denial, now_ms: u64) -> u64 {
    let Denial { hits, holders, jitter } = denial;
    let look = view.look(terms, now_ms);
    let wait_ms = |hits: u64| view.admits_at(terms, &look, hits).map(|at_ms| at_ms.saturating_sub(now_ms));
    let hundredths = u64::from(terms.limit) * u64::from(holders.div_ceil(2).min(100)) / 100;
    let for_hundredths_ms = wait_ms(hits.max(hundredths)).or_else(|| wait_ms(hits)).unwrap_or(1000);
    // Between three quarters and five quarters of it.
    let jittered_ms = for_hundredths_ms.saturating_mul(768 + jitter % 512) / 1024;
    let named_ms = wait_ms(hits).map_or(1000, |wait_ms| wait_ms.div_ceil(1000) * 1000);
    jittered_ms.min(named_ms)
}
