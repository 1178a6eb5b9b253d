//! Where the counts live: a sharded table with a hard cap.
//!
//! A shard is an [`Index`] and slots in fixed pieces, so that growing moves no slot: the longest a decision waits for
//! growth is the rehash of one shard's words. Every shard has one short lock. A decision locks the shards of all its keys,
//! in ascending order, judges, charges, and lets go: that is what makes a batch all or nothing, invisible until it is
//! done, and never refused because of another batch that was itself refused.
//!
//! At the cap, expired slots go first, then the least used; one that is over its limit, or has hits that the origin does
//! not know of, only if nothing else can be found.
//!
//! A table that is shared with other processes has a [`Shared`] beside each slot, in pieces of its own, so that one that
//! is not pays nothing for it. Slots with something to tell the origin stand in a queue.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam::queue::SegQueue;
use crossbeam::utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};

use crate::engine::abroad::{Abroad, View};
use crate::engine::counter::Counter;
use crate::engine::index::Index;
use crate::engine::key::{Key, StoredIdentifier};
use crate::engine::share::Shared;
use crate::rules::limit::{Space, Terms};
use crate::rules::policy::Algorithm;

/// Slots are allocated in pieces of this many, 32 KiB: a shard wastes half of one.
const PIECE_SLOTS: usize = 256;
/// Keys per shard when the table is full: so few that rehashing a shard takes some microseconds, so many that the
/// shards themselves stay in a processor's cache.
const KEYS_PER_SHARD: usize = 4096;
/// Enough that two requests rarely meet.
const SHARDS_MAX: usize = 1024;
/// The most that the cap can be set to: half of what the shards' indexes can number, because they fill unevenly.
pub const KEYS_MAX: usize = SHARDS_MAX * (Index::SLOTS_MAX / 2);
/// How much a key's use can outweigh others': it survives this many passes of the eviction hand.
const HEAT_MAX: u8 = 15;
/// Slots that the hand looks at before it settles for the coolest of them.
const HAND_STEPS_MAX: usize = 64;
/// Other shards that are looked at when every key of a shard is over its limit.
const NEIGHBOURS_MAX: usize = 16;
/// How long a shard in which everything is over its limit is taken to stay that way.
const BARREN_MS: u64 = 1000;
/// One key in so many may be here only because other regions have counted it.
const UNASKED_PART: usize = 4;

/// One key and its counter, on two cache lines: a decision writes to the first and only compares the second.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Slot {
    pub counter: Counter,
    /// The terms of the last decision: eviction asks whether the key is over its limit.
    limit: u32,
    burst: u32,
    heat: u8,
    is_taken: bool,
    algorithm: Algorithm,
    /// Other regions count it too.
    pub is_global: bool,
    space: Space,
    window_ms: u64,
    identifier: StoredIdentifier,
}

impl Slot {
    fn is(&self, key: &Key<'_>) -> bool {
        self.space == key.space
            && self.window_ms == key.window_ms
            && self.algorithm == key.algorithm
            && self.identifier.as_bytes() == key.identifier
    }

    pub fn key(&self) -> Key<'_> {
        let Slot { space, window_ms, algorithm, .. } = *self;
        Key { space, window_ms, algorithm, identifier: self.identifier.as_bytes() }
    }

    /// The terms of the last decision.
    pub fn terms(&self) -> Terms {
        Terms { limit: self.limit, window_ms: self.window_ms, algorithm: self.algorithm, burst: self.burst }
    }

    /// Remembers that it was used, and under which terms. True if they are others than the last time.
    pub fn touch(&mut self, terms: &Terms) -> bool {
        let is_changed = (self.limit, self.burst) != (terms.limit, terms.burst);
        self.limit = terms.limit;
        self.burst = terms.burst;
        self.heat = (self.heat + 1).min(HEAT_MAX);
        is_changed
    }

    fn expires_at_ms(&self) -> u64 {
        self.counter.expires_at_ms(&self.terms())
    }

    fn is_over(&mut self, abroad: Option<&Abroad>, now_ms: u64) -> bool {
        let terms = self.terms();
        View { counter: &mut self.counter, abroad }.look(&terms, now_ms).available < 1
    }
}

/// A key to add.
#[derive(Debug)]
pub struct Entry<'a> {
    pub key: Key<'a>,
    pub hash: u64,
    pub terms: Terms,
    pub counter: Counter,
    /// Its values are known outside of this process only by a keyed digest.
    pub is_sensitive: bool,
    /// Other regions count it too.
    pub is_global: bool,
}

/// Where a slot is, and which of the keys that it has held is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotRef {
    pub shard: u32,
    pub slot: u32,
    pub generation: u16,
}

/// One part of the table, behind its lock.
#[derive(Debug, Default)]
pub struct Shard {
    index: Index,
    pieces: Vec<Vec<Slot>>,
    /// Beside each slot, in a table that is shared; otherwise none.
    shared: Vec<Vec<Shared>>,
    /// Beside each piece, so that they grow together and nothing is ever moved.
    #[expect(clippy::vec_box, reason = "two kilobytes each: moving them when the list grows is what boxes avoid")]
    notes: Vec<Box<Notes>>,
    /// Slots that were ever used.
    slots: usize,
    /// The smallest `due_s` of all, or smaller.
    next_due_s: u32,
    free: Vec<u32>,
    hand: u64,
    barren_until_ms: u64,
}

/// What is known of the slots of a piece without touching them.
#[derive(Debug)]
struct Notes {
    /// The half of the key's hash that the index uses.
    tag: [u32; PIECE_SLOTS],
    /// When the slot may have expired, in whole seconds, rounded up. Only ever too early, because use moves the real time
    /// forward; whoever finds it passed looks at the slot and puts it right. So decisions never write here.
    due_s: [u32; PIECE_SLOTS],
}

impl Shard {
    pub fn slot(&mut self, number: u32) -> &mut Slot {
        &mut self.pieces[number as usize / PIECE_SLOTS][number as usize % PIECE_SLOTS]
    }

    /// A slot, and its part in the region if the table is shared.
    pub fn both(&mut self, number: u32) -> (&mut Slot, Option<&mut Shared>) {
        let (piece, at) = (number as usize / PIECE_SLOTS, number as usize % PIECE_SLOTS);
        (&mut self.pieces[piece][at], self.shared.get_mut(piece).map(|shared| &mut shared[at]))
    }

    /// A slot's counter as decisions see it.
    pub fn view(&mut self, number: u32) -> View<'_> {
        let (slot, shared) = self.both(number);
        View { counter: &mut slot.counter, abroad: shared.and_then(|shared| shared.abroad()) }
    }

    fn slot_ref(&self, number: u32) -> &Slot {
        &self.pieces[number as usize / PIECE_SLOTS][number as usize % PIECE_SLOTS]
    }

    /// A slot and its part, if the slot still holds the key that is meant.
    pub fn at(&mut self, at: SlotRef) -> Option<(&mut Slot, &mut Shared)> {
        let (slot, shared) = self.both(at.slot);
        let shared = shared.filter(|shared| shared.generation == at.generation)?;
        slot.is_taken.then_some((slot, shared))
    }

    pub fn find(&self, key: &Key<'_>, hash: u64) -> Option<u32> {
        self.index.find(tag(hash), |slot| self.slot_ref(slot).is(key))
    }

    /// Where a key is, if it is here and shared. The shard's own number is `shard`.
    pub fn find_ref(&mut self, key: &Key<'_>, hash: u64, shard: u32) -> Option<SlotRef> {
        let slot = self.find(key, hash)?;
        let (_, shared) = self.both(slot);
        shared.map(|shared| SlotRef { shard, slot, generation: shared.generation })
    }

    fn insert(&mut self, entry: Entry<'_>, mut shared: Option<Shared>, now_ms: u64) -> u32 {
        let Entry { key, hash, terms, counter, is_global, .. } = entry;
        let slot = Slot {
            space: key.space,
            window_ms: key.window_ms,
            counter,
            identifier: StoredIdentifier::new(key.identifier),
            limit: terms.limit,
            burst: terms.burst,
            algorithm: key.algorithm,
            heat: 0,
            is_taken: true,
            is_global,
        };
        let due_s = ceil_s(slot.expires_at_ms());
        let number = match self.free.pop() {
            Some(number) => {
                let (old, old_shared) = self.both(number);
                *old = slot;
                if let (Some(old), Some(mut new)) = (old_shared, shared.take()) {
                    new.generation = old.generation.wrapping_add(1);
                    *old = new;
                }
                number
            }
            None => {
                if self.slots.is_multiple_of(PIECE_SLOTS) {
                    self.pieces.push(Vec::with_capacity(PIECE_SLOTS));
                    self.shared.extend(shared.is_some().then(|| Vec::with_capacity(PIECE_SLOTS)));
                    self.notes.push(Box::new(Notes { tag: [0; PIECE_SLOTS], due_s: [u32::MAX; PIECE_SLOTS] }));
                }
                self.pieces[self.slots / PIECE_SLOTS].push(slot);
                if let (Some(piece), Some(shared)) = (self.shared.get_mut(self.slots / PIECE_SLOTS), shared) {
                    piece.push(shared);
                }
                self.slots += 1;
                (self.slots - 1) as u32
            }
        };
        *self.due_s(number) = due_s;
        self.next_due_s = if self.len() == 1 { due_s } else { self.next_due_s.min(due_s) };
        // Nothing of it is known from elsewhere yet.
        if !self.slot(number).is_over(None, now_ms) {
            self.barren_until_ms = 0;
        }
        let notes = &mut self.notes;
        notes[number as usize / PIECE_SLOTS].tag[number as usize % PIECE_SLOTS] = tag(hash);
        self.index.insert(number, |slot| notes[slot as usize / PIECE_SLOTS].tag[slot as usize % PIECE_SLOTS]);
        number
    }

    fn due_s(&mut self, number: u32) -> &mut u32 {
        &mut self.notes[number as usize / PIECE_SLOTS].due_s[number as usize % PIECE_SLOTS]
    }

    /// Forgets a key. True if only other regions had asked for it.
    fn remove(&mut self, number: u32) -> bool {
        let notes = &self.notes;
        self.index.remove(number, |slot| notes[slot as usize / PIECE_SLOTS].tag[slot as usize % PIECE_SLOTS]);
        let (slot, shared) = self.both(number);
        slot.is_taken = false;
        slot.identifier = StoredIdentifier::EMPTY;
        slot.counter = Counter::Windowed(Default::default());
        let mut is_unasked = false;
        if let Some(shared) = shared {
            is_unasked = shared.ask();
            let generation = shared.generation.wrapping_add(1);
            *shared = Shared::new(&slot.counter, generation, false, false);
        }
        *self.due_s(number) = u32::MAX;
        self.free.push(number);
        is_unasked
    }

    fn len(&self) -> usize {
        self.slots - self.free.len()
    }

    /// Removes what has expired, at most so many, and returns how many, and how many of them nobody here had asked for.
    fn expire(&mut self, now_ms: u64, most: usize, pinned: &[u32]) -> (usize, usize) {
        let now_s = floor_s(now_ms);
        if self.next_due_s > now_s || self.len() == 0 {
            return (0, 0);
        }
        let (mut removed, mut unasked) = (0, 0);
        let mut next_due_s = u32::MAX;
        for number in 0..self.slots as u32 {
            let due_s = *self.due_s(number);
            if due_s > now_s {
                next_due_s = next_due_s.min(due_s);
                continue;
            }
            let (slot, shared) = self.both(number);
            let abroad = shared.and_then(|shared| shared.abroad());
            let expires_at_ms =
                slot.expires_at_ms().max(abroad.map_or(0, |abroad| abroad.expires_at_ms(slot.window_ms)));
            if expires_at_ms > now_ms {
                *self.due_s(number) = ceil_s(expires_at_ms);
                next_due_s = next_due_s.min(ceil_s(expires_at_ms));
            } else if removed < most && !pinned.contains(&number) {
                unasked += usize::from(self.remove(number));
                removed += 1;
            } else {
                next_due_s = next_due_s.min(due_s);
            }
        }
        self.next_due_s = next_due_s;
        (removed, unasked)
    }

    /// The hand visits every slot once a round, in an order without neighbours: keys that came together, such as the
    /// established ones before a flood, do not lie in a row under it.
    fn next_under_hand(&mut self) -> u32 {
        // Larger than any number of slots, and prime, so that no two turns of a round meet.
        const STRIDE: u64 = 2_654_435_761;
        let slots = self.slots as u64;
        self.hand = (self.hand + 1) % slots;
        (self.hand * STRIDE % slots) as u32
    }

    /// The slot to give up: the first cool one under the hand that is not over its limit. `None` if every one is.
    fn victim(&mut self, now_ms: u64, pinned: &[u32]) -> Option<u32> {
        if now_ms < self.barren_until_ms {
            return None;
        }
        let slots = self.slots;
        let mut coolest: Option<(u8, u32)> = None;
        let mut coolest_dirty: Option<(u8, u32)> = None;
        for step in 0..slots {
            let number = self.next_under_hand();
            let (slot, shared) = self.both(number);
            let abroad = shared.as_deref().and_then(Shared::abroad);
            if !slot.is_taken || pinned.contains(&number) || slot.is_over(abroad, now_ms) {
                continue;
            }
            // Its hits would be lost: only if nothing else is found soon.
            let is_dirty = shared.is_some_and(|shared| shared.is_dirty());
            if slot.heat == 0 && !is_dirty {
                return Some(number);
            }
            slot.heat = slot.heat.saturating_sub(1);
            let candidate = if is_dirty { &mut coolest_dirty } else { &mut coolest };
            if candidate.is_none_or(|(heat, _)| slot.heat < heat) {
                *candidate = Some((slot.heat, number));
            }
            if step >= HAND_STEPS_MAX {
                break;
            }
        }
        let coolest = coolest.or(coolest_dirty);
        if coolest.is_none() {
            self.barren_until_ms = now_ms.saturating_add(BARREN_MS);
        }
        coolest.map(|(_, number)| number)
    }

    /// Any slot at all, over its limit or not: the last resort.
    fn sacrifice(&mut self, pinned: &[u32]) -> Option<u32> {
        let slots = self.slots;
        for _ in 0..slots {
            let number = self.next_under_hand();
            if self.slot(number).is_taken && !pinned.contains(&number) {
                return Some(number);
            }
        }
        None
    }
}

/// The half of the hash that the index uses; the other half chooses the shard.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// Rounded down, and up: a due time is never later than the real one by the table's own clock of seconds.
fn floor_s(at_ms: u64) -> u32 {
    u32::try_from(at_ms / 1000).unwrap_or(u32::MAX - 1)
}

fn ceil_s(at_ms: u64) -> u32 {
    u32::try_from(at_ms.div_ceil(1000)).unwrap_or(u32::MAX - 1)
}

/// What became of keys, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    pub keys: usize,
    pub expired: u64,
    /// Keys given up before they had expired, because the table was full.
    pub evicted: u64,
    /// Of those, keys that were over their limit.
    pub evicted_over_limit: u64,
    /// Hits that the origin never heard of, because their keys were given up.
    pub lost_hits: u64,
}

/// The table of all keys.
#[derive(Debug)]
pub struct Table {
    /// Padded, so that neighbours do not slow each other down.
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    hasher: ahash::RandomState,
    keys_max: usize,
    keys: AtomicUsize,
    expired: AtomicU64,
    evicted: AtomicU64,
    evicted_over_limit: AtomicU64,
    /// Where the search in other shards goes on.
    neighbour: AtomicUsize,
    lost_hits: AtomicU64,
    /// When a key last expired.
    expired_at_ms: AtomicU64,
    is_shared: bool,
    grown: Grown,
    regions: u32,
    noted: SegQueue<SlotRef>,
    hidden: SegQueue<SlotRef>,
    /// Keys that are here only because other regions have counted them.
    unasked: AtomicUsize,
    /// The second in which a search through all shards found nothing expired.
    nothing_due_s: AtomicU32,
}

/// Slots with something to tell the origin. Each stands here once at most, or twice when it is urgent.
#[derive(Debug, Default)]
pub struct Grown {
    pub all: SegQueue<SlotRef>,
    /// Pending hits have used up half of their allowance.
    pub urgent: SegQueue<SlotRef>,
}

impl Table {
    /// A table of this process alone.
    pub fn new(keys_max: usize) -> Table {
        Table::with(keys_max, false, 1)
    }

    /// A table whose counts are shared with other processes.
    pub fn shared(keys_max: usize) -> Table {
        Table::with(keys_max, true, 1)
    }

    /// A table whose counts are shared with other regions too.
    pub fn global(keys_max: usize, regions: u32) -> Table {
        Table::with(keys_max, true, regions.max(1))
    }

    fn with(keys_max: usize, is_shared: bool, regions: u32) -> Table {
        let shards = (keys_max / KEYS_PER_SHARD).next_power_of_two().clamp(1, SHARDS_MAX);
        Table {
            shards: (0..shards).map(|_| CachePadded::new(Mutex::new(Shard::default()))).collect(),
            hasher: ahash::RandomState::new(),
            keys_max: keys_max.clamp(1, KEYS_MAX),
            keys: AtomicUsize::new(0),
            expired: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            evicted_over_limit: AtomicU64::new(0),
            neighbour: AtomicUsize::new(0),
            lost_hits: AtomicU64::new(0),
            expired_at_ms: AtomicU64::new(0),
            is_shared,
            grown: Grown::default(),
            regions,
            noted: SegQueue::new(),
            hidden: SegQueue::new(),
            unasked: AtomicUsize::new(0),
            nothing_due_s: AtomicU32::new(0),
        }
    }

    pub fn hash(&self, key: &Key<'_>) -> u64 {
        key.hash(&self.hasher)
    }

    pub fn shard_of(&self, hash: u64) -> u32 {
        (hash as u32) & (self.shards.len() as u32 - 1)
    }

    pub fn lock(&self, shard: u32) -> MutexGuard<'_, Shard> {
        self.shards[shard as usize].lock()
    }

    /// A copy of a key's counter and of its part in the world, without marking the key as used.
    pub fn peek(&self, key: &Key<'_>) -> Option<(Counter, Option<Abroad>)> {
        let hash = self.hash(key);
        let mut shard = self.lock(self.shard_of(hash));
        let slot = shard.find(key, hash)?;
        let (slot, shared) = shard.both(slot);
        Some((slot.counter.clone(), shared.and_then(|shared| shared.abroad().copied())))
    }

    /// A key's part in the region, before anything is known of it.
    pub fn new_shared(&self, counter: &Counter, is_sensitive: bool, now_ms: u64) -> Shared {
        // A window that was forgotten is over, unless the clock goes back. A bucket has no window.
        let is_bucket = matches!(counter, Counter::Gcra(_));
        let is_forgotten = match self.expired.load(Ordering::Relaxed) {
            0 => false,
            _ => is_bucket || now_ms < self.expired_at_ms.load(Ordering::Relaxed),
        };
        let is_first = !is_forgotten && self.evicted.load(Ordering::Relaxed) == 0;
        Shared::new(counter, 0, is_sensitive, is_first)
    }

    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub fn grown(&self) -> &Grown {
        &self.grown
    }

    /// Puts a slot of a locked shard into the queue of what is to be told.
    pub fn enqueue(&self, shard: u32, slot: u32, shared: &mut Shared, is_urgent: bool) {
        let at = SlotRef { shard, slot, generation: shared.generation };
        if !shared.is_queued {
            shared.is_queued = true;
            self.grown.all.push(at);
        }
        if is_urgent {
            self.grown.urgent.push(at);
        }
    }

    /// Puts a slot of a locked shard into the queue of what other regions should know, if there is anything to know.
    pub fn note(&self, shard: u32, at: u32, slot: &Slot, shared: &mut Shared) {
        if !slot.is_global || shared.is_noted {
            return;
        }
        if shared.notable(&slot.counter, &slot.terms(), self.regions).iter().any(Option::is_some) {
            shared.is_noted = true;
            self.noted.push(SlotRef { shard, slot: at, generation: shared.generation });
        }
    }

    /// Slots with counts that other regions should know of, each once.
    pub fn noted(&self) -> &SegQueue<SlotRef> {
        &self.noted
    }

    /// Has a key compared with what other regions told, if they know it only by a digest.
    pub fn hide(&self, shard: u32, at: u32, slot: &Slot, shared: &Shared) {
        if slot.is_global && shared.is_sensitive {
            self.hidden.push(SlotRef { shard, slot: at, generation: shared.generation });
        }
    }

    /// Sensitive keys that were made and that nobody has compared with what other regions told.
    pub fn hidden(&self) -> &SegQueue<SlotRef> {
        &self.hidden
    }

    /// How many regions share their counts; one if none does.
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// A key that only other regions had asked for is asked for here, or gone.
    pub fn count_asked(&self) {
        self.unasked.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes room in the count of keys that nobody here has asked for; false if there are too many of them.
    pub fn count_unasked(&self) -> bool {
        if self.unasked.load(Ordering::Relaxed) >= self.keys_max.div_ceil(UNASKED_PART) {
            return false;
        }
        self.unasked.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether pending hits should be told at once.
    pub fn is_urgent(&self) -> bool {
        !self.grown.urgent.is_empty()
    }

    pub fn shards(&self) -> u32 {
        self.shards.len() as u32
    }

    /// Every slot that is taken, of a locked shard.
    pub fn slots_of(shard: &Shard) -> Vec<u32> {
        (0..shard.slots as u32).filter(|slot| shard.slot_ref(*slot).is_taken).collect()
    }

    pub fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Adds a key to a locked shard, making room first if the table is full. `pinned` are the slots of this shard that
    /// the decision at hand still needs.
    pub fn insert(&self, shard: &mut Shard, pinned: &[u32], entry: Entry<'_>, now_ms: u64) -> u32 {
        // Before there is room: whatever is given up for this key is another.
        let shared = self.is_shared.then(|| self.new_shared(&entry.counter, entry.is_sensitive, now_ms));
        if self.keys.fetch_add(1, Ordering::Relaxed) >= self.keys_max {
            self.make_room(shard, pinned, now_ms);
        }
        let number = self.shard_of(entry.hash);
        let at = shard.insert(entry, shared, now_ms);
        if let (slot, Some(shared)) = shard.both(at) {
            self.hide(number, at, slot, shared);
        }
        at
    }

    fn make_room(&self, shard: &mut Shard, pinned: &[u32], now_ms: u64) {
        if self.expire_in(shard, pinned, now_ms) > 0 || self.expire_elsewhere(now_ms) {
            return;
        }
        if let Some(victim) = shard.victim(now_ms, pinned) {
            self.evict(shard, victim, false);
            return;
        }
        // Everything here is over its limit: perhaps a neighbour has something cooler.
        let start = self.neighbour.fetch_add(1, Ordering::Relaxed);
        for offset in 0..NEIGHBOURS_MAX.min(self.shards.len()) {
            let Some(mut neighbour) = self.shards[(start + offset) % self.shards.len()].try_lock() else { continue };
            if let Some(victim) = neighbour.victim(now_ms, &[]) {
                self.evict(&mut neighbour, victim, false);
                return;
            }
        }
        if let Some(victim) = shard.sacrifice(pinned) {
            self.evict(shard, victim, true);
        }
    }

    /// Looks for an expired key in the other shards, unless nothing was due anywhere in this second already. Shards that
    /// others hold are passed over, so this can't deadlock.
    fn expire_elsewhere(&self, now_ms: u64) -> bool {
        let now_s = floor_s(now_ms);
        if self.nothing_due_s.load(Ordering::Relaxed) == now_s {
            return false;
        }
        let start = self.neighbour.load(Ordering::Relaxed);
        for offset in 0..self.shards.len() {
            let at = (start + offset) % self.shards.len();
            let Some(mut shard) = self.shards[at].try_lock() else { continue };
            if self.expire_in(&mut shard, &[], now_ms) > 0 {
                // The next search goes on here.
                self.neighbour.store(at, Ordering::Relaxed);
                return true;
            }
        }
        self.nothing_due_s.store(now_s, Ordering::Relaxed);
        false
    }

    fn evict(&self, shard: &mut Shard, victim: u32, is_over: bool) {
        if let (_, Some(shared)) = shard.both(victim) {
            self.lost_hits.fetch_add(shared.pending(), Ordering::Relaxed);
        }
        if shard.remove(victim) {
            self.count_asked();
        }
        self.keys.fetch_sub(1, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        if is_over {
            self.evicted_over_limit.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn expire_in(&self, shard: &mut Shard, pinned: &[u32], now_ms: u64) -> usize {
        /// A pause of some tens of microseconds at most for whoever waits for the shard.
        const REMOVED_MAX: usize = 256;
        let (removed, unasked) = shard.expire(now_ms, REMOVED_MAX, pinned);
        self.unasked.fetch_sub(unasked, Ordering::Relaxed);
        if removed > 0 {
            self.expired_at_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
        self.keys.fetch_sub(removed, Ordering::Relaxed);
        self.expired.fetch_add(removed as u64, Ordering::Relaxed);
        removed
    }

    /// Removes expired keys, shard by shard, each locked only for a moment.
    pub fn expire(&self, now_ms: u64) {
        for shard in &self.shards {
            while self.expire_in(&mut shard.lock(), &[], now_ms) > 0 {}
        }
    }

    pub fn stats(&self) -> TableStats {
        TableStats {
            keys: self.keys.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
            evicted_over_limit: self.evicted_over_limit.load(Ordering::Relaxed),
            lost_hits: self.lost_hits.load(Ordering::Relaxed),
        }
    }
}
