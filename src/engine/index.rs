//! From a key's hash to its slot: open addressing over plain words.
//!
//! A word holds 32 bits of the hash and the slot's number. Growing or deleting therefore never touches a slot, and a
//! lookup touches one line here and then the slot itself.

/// Finds slots by hash.
#[derive(Debug, Default)]
pub struct Index {
    /// A power of two of words, `0` is free. At most three quarters are taken.
    words: Box<[u64]>,
    taken: usize,
}

const WORDS_MIN: usize = 16;

/// The half of the hash that the index uses; the other half chooses the shard.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

fn word(tag: u32, slot: u32) -> u64 {
    (u64::from(tag) << 32) | (u64::from(slot) + 1)
}

fn slot_of(word: u64) -> u32 {
    (word as u32) - 1
}

impl Index {
    /// Slots are numbered below this, so that a word has room for the number plus one.
    pub const SLOTS_MAX: u32 = u32::MAX - 1;

    fn home(&self, tag: u32) -> usize {
        tag as usize & (self.words.len() - 1)
    }

    /// The slot with this hash that `is_it` accepts.
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.words.is_empty() {
            return None;
        }
        let tag = tag(hash);
        let mut at = self.home(tag);
        loop {
            let word = self.words[at];
            if word == 0 {
                return None;
            }
            if (word >> 32) as u32 == tag && is_it(slot_of(word)) {
                return Some(slot_of(word));
            }
            at = (at + 1) & (self.words.len() - 1);
        }
    }

    /// Adds a slot that is not there yet.
    pub fn insert(&mut self, hash: u64, slot: u32) {
        if (self.taken + 1) * 4 > self.words.len() * 3 {
            self.grow();
        }
        self.place(word(tag(hash), slot));
        self.taken += 1;
    }

    fn place(&mut self, word: u64) {
        let mut at = self.home((word >> 32) as u32);
        while self.words[at] != 0 {
            at = (at + 1) & (self.words.len() - 1);
        }
        self.words[at] = word;
    }

    fn grow(&mut self) {
        let larger = (self.words.len() * 2).max(WORDS_MIN);
        let words = std::mem::replace(&mut self.words, vec![0; larger].into_boxed_slice());
        for word in words.into_iter().filter(|word| *word != 0) {
            self.place(word);
        }
    }

    /// Removes a slot and closes the gap, so that lookups need no tombstones.
    pub fn remove(&mut self, hash: u64, slot: u32) {
        if self.words.is_empty() {
            return;
        }
        let mask = self.words.len() - 1;
        let wanted = word(tag(hash), slot);
        let mut gap = self.home(tag(hash));
        while self.words[gap] != wanted {
            if self.words[gap] == 0 {
                return;
            }
            gap = (gap + 1) & mask;
        }
        self.taken -= 1;
        let mut next = gap;
        loop {
            next = (next + 1) & mask;
            let word = self.words[next];
            if word == 0 {
                break;
            }
            // A word may move into the gap unless its home lies behind the gap.
            let home = self.home((word >> 32) as u32);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(gap) & mask) {
                self.words[gap] = word;
                gap = next;
            }
        }
        self.words[gap] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a map, with few distinct tags, so that homes collide and gaps must be closed.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..12, 0u32..40), 1..400)) {
            let mut index = Index::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (insert, spread, slot) in steps {
                if insert {
                    if let std::collections::btree_map::Entry::Vacant(vacant) = model.entry(slot) {
                        let hash = (spread * 7) << 32;
                        vacant.insert(hash);
                        index.insert(hash, slot);
                    }
                } else if let Some(hash) = model.remove(&slot) {
                    index.remove(hash, slot);
                }
                for slot in 0..40 {
                    let hash = model.get(&slot).copied().unwrap_or(7 << 32);
                    prop_assert_eq!(index.find(hash, |found| found == slot), model.get(&slot).map(|_| slot));
                }
            }
        }
    }
}
