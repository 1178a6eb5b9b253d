//! Where the counts live: a sharded table with a hard cap.
//!
//! Every [`Shard`] has one short lock. A decision locks the shards of all its keys, in ascending order, judges, charges, and
//! lets go. That makes a batch all or nothing, invisible until it is done, and never refused because of another batch that
//! was itself refused.
//!
//! The cap is a number of keys, and a number of bytes that they may take together: some keys take more than others, see
//! [`weight`](crate::engine::table::weight). At the cap, expired slots go first, then the least used. A key that is over its
//! limit, or has hits that the origin does not know of, goes only if a request finds nothing else among the slots that it
//! has the time to look at. So a key in use outlasts a flood of keys that are asked for only one time: it goes only after
//! the eviction hand has come by as often as the key was used, fifteen times at most, without a use in between. Nobody waits
//! for growth or for a sweep: shards are small, have their room from the start, and are swept a few slots at a time.
//!
//! Code outside of the engine reaches keys through verbs only: [`ledger`] has those for a store, [`foreign_ledger`] those
//! for other regions. No lock, slot or part leaves them.
//!
//! A table that is shared with other processes has a [`RegionalPart`] beside each slot, in lists of their own, so that a
//! table that is not shared pays nothing for them. Slots with something to tell a store stand in a queue.

pub mod cell;
pub mod farewell;
pub mod foreign;
pub mod foreign_ledger;
mod index;
mod key_entry;
pub mod ledger;
mod missing_counts;
mod own_counts;
pub(in crate::engine) mod pinned;
pub(in crate::engine) mod regional_part;
pub(crate) mod resend_walk;
mod room;
mod send_state;
mod shard;
pub mod weight;

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam::queue::SegQueue;
use crossbeam::utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};

use crate::engine::count::counter::Counter;
use crate::engine::key::Key;
use crate::engine::reach::Store;
use crate::engine::table::farewell::Farewells;
use crate::engine::table::missing_counts::MissingCounts;
use crate::engine::table::pinned::PinnedSlots;
use crate::engine::table::regional_part::RegionalPart;
pub use crate::engine::table::shard::SlotRef;
pub(in crate::engine) use crate::engine::table::shard::{NewKey, Shard, Slot};
use crate::engine::table::weight::{Capacity, EvictionGoal, KEY_BYTES, SHARED_KEY_BYTES};

/// Keys per shard when the table is full, at most. They fill unevenly, but never by half as much again.
const KEYS_PER_SHARD: usize = 1024;
const SHARDS_MAX: usize = 1 << 19;
/// The largest cap, in keys.
pub const KEYS_MAX: usize = SHARDS_MAX * KEYS_PER_SHARD;
/// At most one key in so many may be here only because other regions have counted it.
const UNASKED_PART: usize = 4;
/// At most four fifths of the bytes are for slots.
const SLOTS_PART: usize = 4;
const SLOTS_OF: usize = 5;
/// At most this many keys are given up for a new one: the heaviest takes as much as so many with nothing beside their slots.
const ROOM_TURNS: usize = 16;

/// Waits for a shard: looks again from time to time, and only then lets the system put the thread to sleep. A shard is
/// held for some tens of nanoseconds. A thread that looks all the time takes the cache line away from the holder; a thread
/// that sleeps has to be woken by one that has better things to do.
#[cold]
fn wait_for(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    /// Together some microseconds: a thread that holds the shard for longer has lost its processor.
    const LOOKS: usize = 16;
    const PAUSES: usize = 32;
    for _ in 0..LOOKS {
        (0..PAUSES).for_each(|_| std::hint::spin_loop());
        if let Some(guard) = shard.try_lock() {
            return guard;
        }
    }
    shard.lock()
}

/// How full the table is, and what became of its keys since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Keys that are held now.
    pub keys: usize,
    /// What the table takes, with the slots of keys that are gone.
    pub bytes: usize,
    /// Keys removed because nothing of them counted any more.
    pub expired: u64,
    /// Keys given up before they had expired, because the table was full.
    pub evicted: u64,
    /// Of those, keys that were over their limit.
    pub evicted_over_limit: u64,
    /// Hits that no store has acknowledged, because their keys were given up.
    pub lost_hits: u64,
}

/// The table of all keys.
#[derive(Debug)]
pub struct Table {
    /// Padded, so that neighbours do not slow each other down.
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    /// For each shard when a key may have expired, in whole seconds, so that a search locks no shard for nothing.
    due_s: Box<[AtomicU32]>,
    hasher: ahash::RandomState,
    keys_max: usize,
    keys: AtomicUsize,
    bytes_max: usize,
    /// Slots that were ever made: their memory is never given back.
    made: AtomicUsize,
    /// What keys take beside their slots.
    bytes_beside: AtomicUsize,
    expired: AtomicU64,
    evicted: AtomicU64,
    evicted_over_limit: AtomicU64,
    /// Where the search in other shards goes on.
    neighbour: AtomicUsize,
    lost_hits: AtomicU64,
    /// When a key last expired.
    expired_at_ms: AtomicU64,
    is_shared: bool,
    /// Keys with something to tell the origin, and the owner of strict limits.
    grown: [UnsentQueues; 2],
    regions: u32,
    /// Slots with counts that other regions should know of, each once.
    noted: SegQueue<SlotRef>,
    /// Sensitive keys that are new: they have to be compared with what other regions told by digest.
    digested: SegQueue<SlotRef>,
    /// Counts that other regions have told and that are not here.
    missing: MissingCounts,
    /// Keys that are here only because other regions have counted them.
    unasked: AtomicUsize,
    /// The second in which a search through all shards found nothing expired.
    nothing_due_s: AtomicU32,
}

/// What a store is to be told. A slot stands in `all` once at most, and in `urgent` as often as it became so.
#[derive(Debug, Default)]
pub(in crate::engine) struct UnsentQueues {
    /// Slots that are told with the next flush.
    pub all: SegQueue<SlotRef>,
    /// Those that are told at once.
    pub urgent: SegQueue<SlotRef>,
    /// What keys that were given up still had to tell.
    farewells: Farewells,
    /// Processes that share the store and are alive. 0 until that is known.
    live: AtomicU32,
}

impl Table {
    /// A table of this process alone.
    pub fn new(capacity: impl Into<Capacity>) -> Table {
        Table::with(capacity.into(), false, 1)
    }

    /// A table whose counts are shared with other processes.
    pub fn shared(capacity: impl Into<Capacity>) -> Table {
        Table::with(capacity.into(), true, 1)
    }

    /// A table whose counts are shared with other regions too.
    pub fn global(capacity: impl Into<Capacity>, regions: u32) -> Table {
        Table::with(capacity.into(), true, regions.max(1))
    }

    /// Uses a hasher that the caller chooses, so that a run can be repeated: which keys go at the cap depends on it.
    /// Only for a table that has no keys yet, and never where clients could learn the hasher's seed.
    pub fn hashed_by(self, hasher: ahash::RandomState) -> Table {
        Table { hasher, ..self }
    }

    fn with(capacity: Capacity, is_shared: bool, regions: u32) -> Table {
        let key_bytes = if is_shared { SHARED_KEY_BYTES } else { KEY_BYTES };
        // Slots that were made stay, so they are so few that there is always room for memory beside them.
        let keys_max = capacity.keys.min(capacity.bytes / SLOTS_OF * SLOTS_PART / key_bytes).clamp(1, KEYS_MAX);
        let shards = keys_max.div_ceil(KEYS_PER_SHARD);
        Table {
            shards: (0..shards).map(|_| CachePadded::new(Mutex::new(Shard::default()))).collect(),
            due_s: (0..shards).map(|_| AtomicU32::new(u32::MAX)).collect(),
            hasher: ahash::RandomState::new(),
            keys_max,
            keys: AtomicUsize::new(0),
            bytes_max: capacity.bytes,
            made: AtomicUsize::new(0),
            bytes_beside: AtomicUsize::new(0),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            evicted_over_limit: AtomicU64::new(0),
            neighbour: AtomicUsize::new(0),
            lost_hits: AtomicU64::new(0),
            expired_at_ms: AtomicU64::new(0),
            is_shared,
            grown: Default::default(),
            regions,
            noted: SegQueue::new(),
            digested: SegQueue::new(),
            missing: MissingCounts::default(),
            unasked: AtomicUsize::new(0),
            nothing_due_s: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(in crate::engine) fn hash(&self, key: &Key<'_>) -> u64 {
        key.hash(&self.hasher)
    }

    /// The shard of a hash, by its lower half: as far into the shards as that is into its range.
    #[inline]
    pub(in crate::engine) fn shard_of(&self, hash: u64) -> u32 {
        ((u64::from(hash as u32) * self.shards.len() as u64) >> 32) as u32
    }

    /// Locks a shard.
    ///
    /// The lock order keeps threads from waiting for each other in a circle: requests that wait, then a region's state, then
    /// shards; or the exchange's state, then shards. Several shards are locked in ascending order. A thread that holds a
    /// shard and looks for room elsewhere only tries to lock the others. Nothing else is locked while a shard is held.
    #[inline]
    pub(in crate::engine) fn lock(&self, shard: u32) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[shard as usize];
        shard.try_lock().unwrap_or_else(|| wait_for(shard))
    }

    /// A copy of a key's counter and of its part in the world, without marking the key as used.
    pub(in crate::engine) fn peek(&self, key: &Key<'_>) -> Option<(Counter, Option<RegionalPart>)> {
        let hash = self.hash(key);
        let mut shard = self.lock(self.shard_of(hash));
        let slot = shard.find(key, hash)?;
        let (slot, part) = shard.both(slot);
        Some((slot.counter.clone(), part.map(|part| part.clone())))
    }

    /// A key's part in the region, before anything is known of it.
    pub(in crate::engine) fn new_part(
        &self,
        counter: &Counter,
        store: Store,
        is_sensitive: bool,
        now_ms: u64,
    ) -> RegionalPart {
        // The window of a removed key is over, unless the clock goes back. A bucket has no window.
        let is_bucket = counter.is_bucket();
        let is_forgotten = match self.expired.load(Ordering::Relaxed) {
            0 => false,
            _ => is_bucket || now_ms < self.expired_at_ms.load(Ordering::Relaxed),
        };
        let is_first = !is_forgotten && self.evicted.load(Ordering::Relaxed) == 0;
        RegionalPart::new(counter, store, 0, is_sensitive, is_first)
    }

    /// Whether keys have a part in the region.
    pub(in crate::engine) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The queues of what a store is to be told.
    pub(in crate::engine) fn grown(&self, store: Store) -> &UnsentQueues {
        &self.grown[store as usize]
    }

    /// Processes that share a store and are alive.
    pub(in crate::engine) fn live(&self, store: Store) -> u32 {
        self.grown(store).live.load(Ordering::Relaxed)
    }

    /// Puts a slot of a locked shard into the queue of what its store is to be told, unless it stands there already.
    pub(in crate::engine) fn enqueue(&self, shard: u32, slot: u32, part: &mut RegionalPart, is_urgent: bool) {
        let at = SlotRef { shard, slot, generation: part.generation };
        let grown = self.grown(part.store());
        if part.sync().enqueue() {
            grown.all.push(at);
        }
        if is_urgent {
            grown.urgent.push(at);
        }
    }

    /// Puts a slot of a locked shard into the queue of what other regions should know, if there is anything to know.
    pub(in crate::engine) fn note(&self, shard: u32, at: u32, slot: &Slot, part: &mut RegionalPart) {
        if !slot.is_global || part.is_noted() {
            return;
        }
        if part.notable(&slot.counter, &slot.terms(), self.regions).iter().any(Option::is_some) {
            part.set_noted(true);
            self.noted.push(SlotRef { shard, slot: at, generation: part.generation });
        }
    }

    /// Queues a key to be compared with what other regions told, if they know it only by a digest.
    pub(in crate::engine) fn queue_digested(&self, shard: u32, at: u32, slot: &Slot, part: &RegionalPart) {
        if slot.is_global && part.is_sensitive() {
            self.digested.push(SlotRef { shard, slot: at, generation: part.generation });
        }
    }

    /// Queues a key of a locked shard to be looked up, because counts of other regions may be missing. If too many wait
    /// already, the next request on the key tries again.
    #[cold]
    pub(in crate::engine) fn seek(&self, shard: u32, at: u32, slot: &Slot, part: &mut RegionalPart) {
        let is_done = !slot.is_global || self.missing.seek(SlotRef { shard, slot: at, generation: part.generation });
        part.set_unheard(!is_done);
    }

    /// How many regions share their counts; one if none does.
    pub(in crate::engine) fn regions(&self) -> u32 {
        self.regions
    }

    /// Counts that a key which only other regions had asked for is now asked for here, or gone.
    pub(in crate::engine) fn count_asked(&self) {
        self.unasked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one more key that nobody here has asked for. False, and not counted, if there are too many of them.
    pub(in crate::engine) fn count_unasked(&self) -> bool {
        if self.unasked.load(Ordering::Relaxed) >= self.keys_max.div_ceil(UNASKED_PART) {
            return false;
        }
        self.unasked.fetch_add(1, Ordering::Relaxed);
        true
    }

    pub(crate) fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// How many keys the table holds at most, by the number and the bytes of its capacity.
    pub fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// What all keys together may take; `usize::MAX` if only their number is bounded.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// What all keys together take, with the slots of keys that are gone.
    fn bytes(&self) -> usize {
        let key_bytes = if self.is_shared { SHARED_KEY_BYTES } else { KEY_BYTES };
        self.made.load(Ordering::Relaxed) * key_bytes + self.bytes_beside.load(Ordering::Relaxed)
    }

    /// What there is too little of, `None` if the table is within its cap.
    fn need(&self) -> Option<EvictionGoal> {
        if self.keys.load(Ordering::Relaxed) > self.keys_max {
            return Some(EvictionGoal::Slot);
        }
        (self.bytes() > self.bytes_max).then_some(EvictionGoal::Bytes)
    }

    /// Takes note of what a key of a locked shard takes beside its slot. To be called where that may have changed.
    pub(in crate::engine) fn weigh(&self, slot: &mut Slot, part: Option<&RegionalPart>) {
        let (before, now) = slot.weigh(part);
        if before != now {
            self.bytes_beside.fetch_add(now.bytes(), Ordering::Relaxed);
            self.bytes_beside.fetch_sub(before.bytes(), Ordering::Relaxed);
        }
    }

    /// Adds a key to a locked shard, making room first if the table is full. `pinned` are the slots of this shard that
    /// the decision at hand still needs. `None` if there is room for none but those: then a request that names thousands of
    /// keys has met a table for a few, and its hits on the other keys are not counted.
    pub(in crate::engine) fn insert(
        &self,
        shard: &mut Shard,
        pinned: &PinnedSlots,
        entry: NewKey<'_>,
        now_ms: u64,
    ) -> Option<u32> {
        // Before room is made: a key that is given up for this one says nothing about it.
        let part = self.is_shared.then(|| self.new_part(&entry.counter, entry.store, entry.is_sensitive, now_ms));
        let number = self.shard_of(entry.hash);
        if shard.is_full() && !self.make_room_in(number, shard, pinned, now_ms) {
            return None;
        }
        self.keys.fetch_add(1, Ordering::Relaxed);
        self.bytes_beside.fetch_add(entry.weight().bytes(), Ordering::Relaxed);
        // In several turns: a request with more keys than the cap goes beyond it, and those that follow bring the table
        // back; and a key may take as much as several others.
        for _ in 0..ROOM_TURNS {
            let Some(need) = self.need() else { break };
            if !self.make_room(need, number, shard, pinned, now_ms) {
                break;
            }
        }
        let slots = shard.slots();
        let at = shard.insert(entry, part, now_ms);
        self.made.fetch_add(shard.slots() - slots, Ordering::Relaxed);
        self.note_due(number, shard);
        if let (slot, Some(part)) = shard.both(at) {
            self.queue_digested(number, at, slot, part);
            part.set_unheard(slot.is_global && self.missing.is_any(now_ms));
        }
        Some(at)
    }

    /// What keys take beside their slots.
    #[cfg(test)]
    pub fn bytes_beside(&self) -> usize {
        self.bytes_beside.load(Ordering::Relaxed)
    }

    /// Slots that were looked at to make room, since the start.
    #[cfg(test)]
    pub fn looks(&self) -> u64 {
        (0..self.shards()).map(|number| self.lock(number).looks()).sum()
    }

    /// How full the table is, and what became of its keys since the start.
    pub fn stats(&self) -> TableStats {
        TableStats {
            keys: self.keys.load(Ordering::Relaxed),
            bytes: self.bytes(),
            expired: self.expired.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            evicted_over_limit: self.evicted_over_limit.load(Ordering::Relaxed),
            lost_hits: self.lost_hits.load(Ordering::Relaxed),
        }
    }
}
