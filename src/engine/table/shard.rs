//! One part of the table, behind one lock: slots, and how they are found, given up and removed.
//!
//! A shard holds so few keys that whatever is done with all of them is done soon. Its lists are reserved whole with the
//! first key, as address space that costs nothing until it is used, so that growing moves no slot. A search for expired keys
//! looks at a few slots at a time: a thread that waits for the shard waits for those few, never for a whole sweep.

use std::mem;

use crate::engine::count::counter::Counter;
use crate::engine::count::window::{Cell, Cells};
use crate::engine::key::{Key, StoredIdentifier};
use crate::engine::reach::Store;
use crate::engine::table::foreign::{Foreign, View};
use crate::engine::table::index::{Index, IndexTag};
use crate::engine::table::pinned::PinnedSlots;
use crate::engine::table::regional_part::RegionalPart;
use crate::engine::table::weight::{EvictionGoal, Weight};
use crate::rules::limit::{Space, Terms};
use crate::rules::policy::Algorithm;

/// The most heat that a key has from its use: it survives this many passes of the eviction hand.
const HEAT_MAX: u8 = 15;
/// Slots that the hand looks at before it settles for the coolest of them.
const HAND_STEPS_MAX: usize = 64;
/// Slots that it looks at before it gives up one whose store has not heard of all its hits, and is told of them then.
const UNTOLD_STEPS_MIN: usize = 16;
/// Slots of the page that a shard begins with.
const PAGE_SLOTS: usize = 4096 / size_of::<Slot>();
/// How long a shard in which everything is over its limit is taken to stay that way.
const BARREN_MS: u64 = 1000;

/// One key and its counter, on two cache lines: a decision writes to the first and only compares the second.
#[derive(Debug)]
#[repr(C, align(128))]
pub(in crate::engine) struct Slot {
    /// The count that decisions go by, with hits of other processes as the store last told.
    pub counter: Counter,
    /// The terms of the last decision: eviction asks whether the key is over its limit.
    limit: u32,
    burst: u32,
    /// Grows with every use and shrinks with every pass of the eviction hand, which gives up the coolest keys first.
    heat: u8,
    is_taken: bool,
    algorithm: Algorithm,
    /// Other regions count it too.
    pub is_global: bool,
    /// What the key was last found to take beside the slot.
    weight: Weight,
    space: Space,
    window_ms: u64,
    identifier: StoredIdentifier,
}

impl Slot {
    const EMPTY: Slot = Slot {
        counter: Counter::Windowed(Cells {
            sequence: 0,
            current: Cell { hits: 0, refunds: 0 },
            previous: Cell { hits: 0, refunds: 0 },
        }),
        limit: 0,
        burst: 0,
        heat: 0,
        is_taken: false,
        algorithm: Algorithm::SlidingWindow,
        is_global: false,
        space: Space::NONE,
        weight: Weight::NONE,
        window_ms: 1,
        identifier: StoredIdentifier::EMPTY,
    };

    #[inline(always)]
    fn is(&self, key: &Key<'_>) -> bool {
        self.space == key.space
            && self.window_ms == key.window_ms
            && self.algorithm == key.algorithm
            && self.identifier.as_bytes() == key.identifier
    }

    pub(crate) fn key(&self) -> Key<'_> {
        let Slot { space, window_ms, algorithm, .. } = *self;
        Key { space, window_ms, algorithm, identifier: self.identifier.as_bytes() }
    }

    /// The terms of the last decision.
    pub(crate) fn terms(&self) -> Terms {
        Terms { limit: self.limit, window_ms: self.window_ms, algorithm: self.algorithm, burst: self.burst }
    }

    /// Remembers that the key was used, and under which terms. True if they differ from the last ones.
    #[inline(always)]
    pub(crate) fn touch(&mut self, terms: &Terms) -> bool {
        let is_changed = (self.limit, self.burst) != (terms.limit, terms.burst);
        self.limit = terms.limit;
        self.burst = terms.burst;
        self.heat = (self.heat + 1).min(HEAT_MAX);
        is_changed
    }

    /// Finds out anew what the key takes beside the slot. Returns what that was before and what it is now.
    pub(super) fn weigh(&mut self, part: Option<&RegionalPart>) -> (Weight, Weight) {
        let beside =
            self.identifier.heap_bytes() + self.counter.heap_bytes() + part.map_or(0, RegionalPart::heap_bytes);
        let weight = Weight::new(beside);
        (std::mem::replace(&mut self.weight, weight), weight)
    }

    fn expires_at_ms(&self) -> u64 {
        self.counter.expires_at_ms(&self.terms())
    }

    fn is_over(&mut self, foreign: Option<&Foreign>, now_ms: u64) -> bool {
        let terms = self.terms();
        View { counter: &mut self.counter, foreign, is_cut_off: false }.look(&terms, now_ms).available < 1
    }
}

/// A key to add.
#[derive(Debug)]
pub(in crate::engine) struct NewKey<'a> {
    /// Must not be in the shard already.
    pub key: Key<'a>,
    /// Of the key, by the table's hasher.
    pub hash: u64,
    /// Those that the key is made under; the next decision may bring others.
    pub terms: Terms,
    /// A decision puts the first hits in, so that the table knows a key that is over its limit from the start.
    pub counter: Counter,
    /// Where its counts are shared.
    pub store: Store,
    /// Its values leave the process only as a keyed digest.
    pub is_sensitive: bool,
    /// Other regions count it too.
    pub is_global: bool,
}

impl NewKey<'_> {
    /// What the key will take beside its slot.
    pub(super) fn weight(&self) -> Weight {
        Weight::new(StoredIdentifier::heap_bytes_of(self.key.identifier) + self.counter.heap_bytes())
    }
}

/// Where a slot is, and which of the keys that it has held is meant. Opaque outside of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotRef {
    /// Its number in the table.
    pub(super) shard: u32,
    /// Its number in the shard.
    pub(super) slot: u32,
    /// The part's generation when this was made: if it is another by now, so is the key.
    pub(super) generation: u16,
}

impl SlotRef {
    /// A reference that is not of any table.
    #[cfg(test)]
    pub(crate) fn of(slot: u32) -> SlotRef {
        SlotRef { shard: 0, slot, generation: 0 }
    }
}

/// One part of the table, behind its lock.
#[derive(Debug)]
#[repr(C)] // What every lookup reads comes first, on the line of the lock.
pub(in crate::engine) struct Shard {
    index: Index,
    /// Slots that are taken, and free ones between them.
    slots: Vec<Slot>,
    /// One for each slot if the table is shared, otherwise none.
    parts: Vec<RegionalPart>,
    /// Apart, so that the locks of a table lie close to each other.
    notes: Box<Notes>,
}

/// What is only needed when keys come and go.
#[derive(Debug)]
struct Notes {
    /// For each slot, what the index knows it by.
    tags: Vec<IndexTag>,
    /// For each slot, when it may have expired, in whole seconds, rounded up; `u32::MAX` if it is free. The time may be too
    /// early, because use puts the real one off: a sweep that finds it passed looks at the slot and puts it right. So
    /// decisions never write here. If the clock is set back, or hits of a bucket are given back, the key stays for as long
    /// as it would have otherwise.
    due_s: Vec<u32>,
    /// Slots that are not taken; the last one is taken next.
    free: Vec<u32>,
    /// The smallest `due_s` of all, or smaller.
    next_due_s: u32,
    sweep: Sweep,
    /// The slot that the eviction hand came to last.
    hand: u32,
    /// The slot of the key that came last.
    newest: u32,
    /// Until then every key here is taken to be over its limit; 0 if that is not known.
    barren_until_ms: u64,
    /// Slots that the hand has come to: what making room has cost.
    #[cfg(test)]
    looks: u64,
}

/// What a store has not heard of a key that may be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Untold {
    Nothing,
    /// Hits that it is told of when the key is gone.
    Hits,
    /// Hits that would be lost: this process does not know its field at the store.
    HitsOfNoField,
}

/// What goes first: never a key whose hits would be lost while there is another, then the cooler one, and of two that are equally
/// cool the one that has nothing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VictimRank {
    would_lose: bool,
    heat: u8,
    untold: Untold,
}

impl VictimRank {
    fn new(heat: u8, untold: Untold) -> VictimRank {
        VictimRank { would_lose: untold == Untold::HitsOfNoField, heat, untold }
    }
}

/// How far a search for expired keys has come.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// The slot to look at next.
    at: usize,
    /// The smallest `due_s` of the slots before, or smaller.
    next_due_s: u32,
}

impl Sweep {
    const START: Sweep = Sweep { at: 0, next_due_s: u32::MAX };
}

/// What a removed key leaves to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemovedKey {
    /// Only other regions had asked for it.
    pub is_unasked: bool,
    /// What it took beside its slot.
    pub bytes: usize,
}

/// What a part of a sweep has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SweepOutcome {
    /// Keys that had expired.
    pub removed: usize,
    /// Of those, keys that nobody here had asked for.
    pub unasked: usize,
    /// What those keys took beside their slots.
    pub bytes: usize,
    /// The sweep has come to the last slot, or nothing was due.
    pub is_whole: bool,
}

impl Default for Shard {
    fn default() -> Shard {
        let notes = Notes {
            tags: Vec::new(),
            due_s: Vec::new(),
            free: Vec::new(),
            next_due_s: u32::MAX,
            sweep: Sweep::START,
            hand: 0,
            newest: 0,
            barren_until_ms: 0,
            #[cfg(test)]
            looks: 0,
        };
        Shard { index: Index::default(), slots: Vec::new(), parts: Vec::new(), notes: Box::new(notes) }
    }
}

impl Shard {
    #[inline(always)]
    pub(crate) fn slot(&mut self, number: u32) -> &mut Slot {
        &mut self.slots[number as usize]
    }

    /// A slot, and its part in the region if the table is shared.
    #[inline(always)]
    pub(crate) fn both(&mut self, number: u32) -> (&mut Slot, Option<&mut RegionalPart>) {
        (&mut self.slots[number as usize], self.parts.get_mut(number as usize))
    }

    /// A slot and its part, if the slot still holds the key that is meant.
    pub(crate) fn at(&mut self, at: SlotRef) -> Option<(&mut Slot, &mut RegionalPart)> {
        let (slot, part) = self.both(at.slot);
        let part = part.filter(|part| part.generation == at.generation)?;
        slot.is_taken.then_some((slot, part))
    }

    #[inline(always)]
    pub(crate) fn find(&self, key: &Key<'_>, hash: u64) -> Option<u32> {
        self.index.find(tag(hash), |slot| self.slots[slot as usize].is(key))
    }

    /// How many slots there are, taken or not.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether a key is over its limit.
    pub(crate) fn is_over(&mut self, number: u32, now_ms: u64) -> bool {
        let (slot, part) = self.both(number);
        slot.is_over(part.and_then(|part| part.foreign()), now_ms)
    }

    /// Every slot that is taken.
    pub(crate) fn taken(&self) -> Vec<u32> {
        (0..self.slots.len() as u32).filter(|slot| self.slots[*slot as usize].is_taken).collect()
    }

    /// The first slot that is taken, from this one on.
    pub(crate) fn first_taken_from(&self, from: u32) -> Option<u32> {
        let behind = self.slots.iter().skip(from as usize);
        behind.zip(from..).find_map(|(slot, number)| slot.is_taken.then_some(number))
    }

    /// The shard has no room for another key, however few the table has.
    pub(crate) fn is_full(&self) -> bool {
        self.notes.free.is_empty() && self.slots.len() == Index::SLOTS_MAX
    }

    /// When a key may have expired, in whole seconds.
    pub(crate) fn next_due_s(&self) -> u32 {
        self.notes.next_due_s
    }

    /// Adds a key. The shard must not be full.
    pub(crate) fn insert(&mut self, entry: NewKey<'_>, part: Option<RegionalPart>, now_ms: u64) -> u32 {
        let weight = entry.weight();
        let NewKey { key, hash, terms, counter, is_global, .. } = entry;
        let slot = Slot {
            space: key.space,
            weight,
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
        if self.slots.is_empty() {
            self.open(part.is_some(), tag(hash));
        }
        let number = self.place(slot, part);
        self.notes.tags[number as usize] = tag(hash);
        self.notes.due_s[number as usize] = due_s;
        self.notes.next_due_s = self.notes.next_due_s.min(due_s);
        self.notes.sweep.next_due_s = self.notes.sweep.next_due_s.min(due_s);
        // Nothing is known of it from other regions yet.
        if !self.slot(number).is_over(None, now_ms) {
            self.notes.barren_until_ms = 0;
        }
        self.index.insert(number, tag(hash));
        self.notes.newest = number;
        number
    }

    /// Reserves room for all slots, and makes those of the first page. The first keys of different shards take different
    /// slots of it: as every shard begins with a page, they would otherwise all compete for the same lines of the caches.
    #[cold]
    fn open(&mut self, is_shared: bool, first: IndexTag) {
        self.slots.reserve_exact(Index::SLOTS_MAX);
        self.slots.extend((0..PAGE_SLOTS).map(|_| Slot::EMPTY));
        if is_shared {
            let part = RegionalPart::new(&Slot::EMPTY.counter, Store::Origin, 0, false, false);
            self.parts.reserve_exact(Index::SLOTS_MAX);
            self.parts.resize(PAGE_SLOTS, part);
        }
        self.notes.tags.resize(PAGE_SLOTS, 0);
        self.notes.due_s.resize(PAGE_SLOTS, u32::MAX);
        self.notes.free.extend((0..PAGE_SLOTS).map(|n| ((n + usize::from(first)) % PAGE_SLOTS) as u32));
    }

    fn place(&mut self, slot: Slot, part: Option<RegionalPart>) -> u32 {
        if let Some(number) = self.notes.free.pop() {
            let (old, old_part) = self.both(number);
            *old = slot;
            if let (Some(old), Some(mut new)) = (old_part, part) {
                new.generation = old.generation.wrapping_add(1);
                *old = new;
            }
            return number;
        }
        self.slots.push(slot);
        self.parts.extend(part);
        self.notes.tags.push(0);
        self.notes.due_s.push(u32::MAX);
        (self.slots.len() - 1) as u32
    }

    /// Removes a key and frees its slot.
    pub(crate) fn remove(&mut self, number: u32) -> RemovedKey {
        let tags = &self.notes.tags;
        self.index.remove(number, |slot| tags[slot as usize]);
        let (slot, part) = self.both(number);
        let bytes = std::mem::replace(slot, Slot::EMPTY).weight.bytes();
        let mut is_unasked = false;
        if let Some(part) = part {
            is_unasked = part.mark_asked();
            let generation = part.generation.wrapping_add(1);
            *part = RegionalPart::new(&slot.counter, Store::Origin, generation, false, false);
        }
        self.notes.due_s[number as usize] = u32::MAX;
        self.notes.free.push(number);
        RemovedKey { is_unasked, bytes }
    }

    /// Removes expired keys, but looks at `looks_max` slots at most that are due, and goes on from there the next time.
    pub(crate) fn expire(&mut self, now_ms: u64, looks_max: usize, pinned: &PinnedSlots) -> SweepOutcome {
        let now_s = floor_s(now_ms);
        let mut swept = SweepOutcome::default();
        if self.notes.next_due_s > now_s {
            swept.is_whole = true;
            return swept;
        }
        let mut looks = 0;
        while let Some(&due_s) = self.notes.due_s.get(self.notes.sweep.at) {
            if due_s > now_s {
                self.notes.sweep.next_due_s = self.notes.sweep.next_due_s.min(due_s);
                self.notes.sweep.at += 1;
                continue;
            }
            if looks == looks_max {
                return swept;
            }
            looks += 1;
            let number = self.notes.sweep.at as u32;
            let (slot, part) = self.both(number);
            let foreign = part.and_then(|part| part.foreign());
            let expires_at_ms =
                slot.expires_at_ms().max(foreign.map_or(0, |foreign| foreign.expires_at_ms(slot.window_ms)));
            if expires_at_ms > now_ms {
                self.notes.due_s[self.notes.sweep.at] = ceil_s(expires_at_ms);
                self.notes.sweep.next_due_s = self.notes.sweep.next_due_s.min(ceil_s(expires_at_ms));
            } else if pinned.contains(number) {
                self.notes.sweep.next_due_s = self.notes.sweep.next_due_s.min(due_s);
            } else {
                let RemovedKey { is_unasked, bytes } = self.remove(number);
                swept.unasked += usize::from(is_unasked);
                swept.bytes += bytes;
                swept.removed += 1;
            }
            self.notes.sweep.at += 1;
        }
        self.notes.next_due_s = mem::replace(&mut self.notes.sweep, Sweep::START).next_due_s;
        swept.is_whole = true;
        swept
    }

    /// Nothing here can be given up: every key was over its limit a moment ago.
    pub(crate) fn is_barren(&self, now_ms: u64) -> bool {
        // If more is left than it lasts, the clock was set back since.
        (1..=BARREN_MS).contains(&self.notes.barren_until_ms.saturating_sub(now_ms))
    }

    /// Moves the eviction hand to its next slot.
    ///
    /// It visits every slot once a round, in an order without neighbours: keys that came together, such as the established
    /// ones before a flood, lie in a row, and the hand must not meet them in a row. Steps of the golden part of a round
    /// leave no stretch of slots out for long, however many slots there are. A round is a power of two, so that steps of an
    /// odd length reach all of it. Numbers without a slot are passed over; there are fewer of them than slots.
    fn next_under_hand(&mut self) -> u32 {
        /// The golden part of 2^32.
        const GOLDEN: u32 = 0x9E37_79B9;
        #[cfg(test)]
        {
            self.notes.looks += 1;
        }
        let slots = self.slots.len() as u32;
        let round = slots.next_power_of_two().max(2);
        let step = (GOLDEN >> (u32::BITS - round.ilog2())) | 1;
        loop {
            self.notes.hand = (self.notes.hand + step) & (round - 1);
            if self.notes.hand < slots {
                return self.notes.hand;
            }
        }
    }

    /// How hot a key is and what would become of its hits, if it can be given up at all.
    fn heat_of(&mut self, number: u32, now_ms: u64, pinned: &PinnedSlots, need: EvictionGoal) -> Option<(u8, Untold)> {
        let (slot, part) = self.both(number);
        let foreign = part.as_deref().and_then(RegionalPart::foreign);
        if !slot.is_taken || !slot.weight.serves(need) || pinned.contains(number) || slot.is_over(foreign, now_ms) {
            return None;
        }
        let untold = match part {
            Some(part) if part.is_dirty() && part.is_seated() => Untold::Hits,
            Some(part) if part.is_dirty() => Untold::HitsOfNoField,
            Some(_) | None => Untold::Nothing,
        };
        Some((slot.heat, untold))
    }

    /// Chooses the slot to give up: the first cold one under the hand whose key is not over its limit, or the coolest of
    /// those that the hand comes to. `None` if there is none, as when every key is over its limit.
    ///
    /// If all keys that the hand comes to are in use, the key that came last goes if it is cooler than they are: strangers
    /// replace each other rather than keys in use.
    pub(crate) fn victim(&mut self, now_ms: u64, pinned: &PinnedSlots, need: EvictionGoal) -> Option<u32> {
        if self.is_barren(now_ms) || self.are_all(pinned) {
            return None;
        }
        let slots = self.slots.len();
        let mut coolest: Option<(VictimRank, u32)> = None;
        for step in 0..slots {
            let number = self.next_under_hand();
            let Some((heat, untold)) = self.heat_of(number, now_ms, pinned, need) else { continue };
            let is_good = match untold {
                Untold::Nothing => true,
                Untold::Hits => step >= UNTOLD_STEPS_MIN,
                Untold::HitsOfNoField => false,
            };
            if heat == 0 && is_good {
                return Some(number);
            }
            let heat = heat.saturating_sub(1);
            self.slot(number).heat = heat;
            let rank = VictimRank::new(heat, untold);
            if coolest.is_none_or(|(coolest, _)| rank < coolest) {
                coolest = Some((rank, number));
            }
            if step >= HAND_STEPS_MAX {
                break;
            }
        }
        let Some((rank, number)) = coolest else {
            if need == EvictionGoal::Slot {
                self.notes.barren_until_ms = now_ms.saturating_add(BARREN_MS);
            }
            return None;
        };
        let newest = self.notes.newest;
        let is_cooler = |(heat, untold): (u8, Untold)| VictimRank::new(heat, untold) < rank;
        Some(if self.heat_of(newest, now_ms, pinned, need).is_some_and(is_cooler) { newest } else { number })
    }

    /// Whether every key here is pinned.
    fn are_all(&self, pinned: &PinnedSlots) -> bool {
        pinned.len() == self.slots.len() - self.notes.free.len()
    }

    /// Chooses any slot at all, over its limit or not: the last resort.
    pub(crate) fn sacrifice(&mut self, pinned: &PinnedSlots, need: EvictionGoal) -> Option<u32> {
        if self.are_all(pinned) {
            return None;
        }
        let slots = self.slots.len();
        for _ in 0..slots {
            let number = self.next_under_hand();
            let slot = self.slot(number);
            if slot.is_taken && slot.weight.serves(need) && !pinned.contains(number) {
                return Some(number);
            }
        }
        None
    }

    /// Slots that the hand has come to since the start.
    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.notes.looks
    }
}

/// The part of the hash that the index uses; another part chooses the shard.
fn tag(hash: u64) -> IndexTag {
    (hash >> 48) as IndexTag
}

/// Now, in whole seconds, is rounded down and a due time up ([`ceil_s`]): so a key that is due has really reached that time.
pub(super) fn floor_s(at_ms: u64) -> u32 {
    u32::try_from(at_ms / 1000).unwrap_or(u32::MAX - 1)
}

fn ceil_s(at_ms: u64) -> u32 {
    u32::try_from(at_ms.div_ceil(1000)).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_makes_nothing_barren_for_longer() {
        let mut shard = Shard::default();
        shard.notes.barren_until_ms = 1_000_000;
        assert!(shard.is_barren(1_000_000 - 1) && shard.is_barren(1_000_000 - BARREN_MS));
        assert!(!shard.is_barren(1_000_000) && !shard.is_barren(1_000));
    }
}
