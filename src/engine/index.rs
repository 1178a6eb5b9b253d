//! From a key's hash to its slot: open addressing over words of four bytes.
//!
//! A word holds the slot's number and twelve bits of its hash; the whole hash stands in a list beside the slots. So
//! growing and deleting never touch a slot, a lookup reads one line here and then the slot itself, and the whole index of
//! a million keys is small enough to stay in a processor's cache.

/// Finds slots by hash.
#[derive(Debug, Default)]
pub struct Index {
    /// A power of two of words, `0` is free. At most three quarters are taken.
    words: Box<[u32]>,
    taken: usize,
}

const WORDS_MIN: usize = 16;
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// Twelve bits of the hash above, the slot's number plus one below.
fn word(hash: u32, slot: u32) -> u32 {
    (hash & !SLOT_MASK) | (slot + 1)
}

fn slot_of(word: u32) -> u32 {
    (word & SLOT_MASK) - 1
}

impl Index {
    /// Slots are numbered below this, so that a word has room for the number plus one.
    pub const SLOTS_MAX: usize = SLOT_MASK as usize - 1;

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.words.len() - 1)
    }

    /// The slot with this hash that `is_it` accepts.
    #[inline]
    pub fn find(&self, hash: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.words.is_empty() {
            return None;
        }
        let mask = self.words.len() - 1;
        let mut at = self.home(hash);
        loop {
            let word = self.words[at & mask];
            if word == 0 {
                return None;
            }
            if (word ^ hash) & !SLOT_MASK == 0 && is_it(slot_of(word)) {
                return Some(slot_of(word));
            }
            at += 1;
        }
    }

    /// Adds a slot that is not there yet. `hash_of` knows the hash of every slot.
    pub fn insert(&mut self, slot: u32, hash_of: impl Fn(u32) -> u32) {
        if (self.taken + 1) * 4 > self.words.len() * 3 {
            self.grow(&hash_of);
        }
        self.place(hash_of(slot), word(hash_of(slot), slot));
        self.taken += 1;
    }

    fn place(&mut self, hash: u32, word: u32) {
        let mut at = self.home(hash);
        while self.words[at] != 0 {
            at = (at + 1) & (self.words.len() - 1);
        }
        self.words[at] = word;
    }

    fn grow(&mut self, hash_of: &impl Fn(u32) -> u32) {
        let larger = (self.words.len() * 2).max(WORDS_MIN);
        let words = std::mem::replace(&mut self.words, vec![0; larger].into_boxed_slice());
        for word in words.into_iter().filter(|word| *word != 0) {
            self.place(hash_of(slot_of(word)), word);
        }
    }

    /// Removes a slot and closes the gap, so that lookups need no tombstones.
    pub fn remove(&mut self, slot: u32, hash_of: impl Fn(u32) -> u32) {
        if self.words.is_empty() {
            return;
        }
        let hash = hash_of(slot);
        let mask = self.words.len() - 1;
        let wanted = word(hash, slot);
        let mut gap = self.home(hash);
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
            let home = self.home(hash_of(slot_of(word)));
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
        /// Against a map, with few distinct hashes, so that homes collide and gaps must be closed.
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((any::<bool>(), 0u32..12, 0usize..40), 1..400)) {
            let mut index = Index::default();
            let mut model: BTreeMap<u32, u32> = BTreeMap::new();
            let mut free: Vec<u32> = Vec::new();
            let mut slots = 0;
            for (insert, spread, which) in steps {
                if insert {
                    let slot = free.pop().unwrap_or_else(|| { slots += 1; slots - 1 });
                    let hash = spread * 7 + (spread << 28);
                    model.insert(slot, hash);
                    index.insert(slot, |slot| model[&slot]);
                } else if let Some(slot) = model.keys().nth(which).copied() {
                    index.remove(slot, |slot| model[&slot]);
                    model.remove(&slot);
                    free.push(slot);
                }
                for slot in 0..slots {
                    let hash = model.get(&slot).copied().unwrap_or(7 + (1 << 28));
                    prop_assert_eq!(index.find(hash, |found| found == slot), model.get(&slot).map(|_| slot));
                }
            }
        }
    }
}
