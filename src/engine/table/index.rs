//! From a key's hash to its slot: open addressing over words of two bytes.
//!
//! A word holds the number of a slot and five bits of its hash. From its first key on a shard has all the words that it ever
//! needs: nothing is ever rehashed, so nobody waits for that, and the whole index of a million keys is four megabytes. The
//! part of the hash that the index uses stands in a list beside the slots, so that removing a key touches no slot either.

/// A power of two, so that a hash finds its word without a division.
const WORDS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 11;
const SLOT_MASK: u16 = (1 << SLOT_BITS) - 1;

/// The part of a hash that the index uses: in the low bits its home, and above them five bits that tell it from others that
/// live there.
pub(super) type IndexTag = u16;

/// Finds slots by hash.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// `0` is free. At most three quarters are taken, so that a search ends soon.
    words: Option<Box<[u16; WORDS]>>,
}

/// Five bits of the hash in the high bits, the slot's number plus one in the low ones.
fn word(tag: IndexTag, slot: u32) -> u16 {
    (tag & !SLOT_MASK) | (slot as u16 + 1)
}

fn slot_of(word: u16) -> u32 {
    u32::from(word & SLOT_MASK) - 1
}

fn home(tag: IndexTag) -> usize {
    usize::from(tag) % WORDS
}

impl Index {
    /// All numbers of slots are below this.
    pub(super) const SLOTS_MAX: usize = WORDS / 4 * 3;

    /// The slot with this hash that `is_it` accepts.
    #[inline(always)]
    pub(super) fn find(&self, tag: IndexTag, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let words = self.words.as_deref()?;
        let mut at = home(tag);
        loop {
            let word = words[at % WORDS];
            if word == 0 {
                return None;
            }
            if (word ^ tag) & !SLOT_MASK == 0 && is_it(slot_of(word)) {
                return Some(slot_of(word));
            }
            at += 1;
        }
    }

    /// Adds a slot that is not there yet.
    pub(super) fn insert(&mut self, slot: u32, tag: IndexTag) {
        assert!((slot as usize) < Index::SLOTS_MAX, "a full index would be searched for ever");
        let words = self.words.get_or_insert_with(|| Box::new([0; WORDS]));
        let mut at = home(tag);
        while words[at] != 0 {
            at = (at + 1) % WORDS;
        }
        words[at] = word(tag, slot);
    }

    /// Removes a slot and closes the gap, so that lookups need no tombstones. `tag_of` knows the tag of every slot.
    pub(super) fn remove(&mut self, slot: u32, tag_of: impl Fn(u32) -> IndexTag) {
        let Some(words) = self.words.as_deref_mut() else { return };
        let wanted = word(tag_of(slot), slot);
        let mut gap = home(tag_of(slot));
        while words[gap] != wanted {
            if words[gap] == 0 {
                return;
            }
            gap = (gap + 1) % WORDS;
        }
        let mut next = gap;
        loop {
            next = (next + 1) % WORDS;
            let word = words[next];
            if word == 0 {
                break;
            }
            // A word may move into the gap unless its home lies behind the gap.
            let home = home(tag_of(slot_of(word)));
            if next.wrapping_sub(home) % WORDS >= next.wrapping_sub(gap) % WORDS {
                words[gap] = word;
                gap = next;
            }
        }
        words[gap] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a map, with few distinct tags, so that homes collide and gaps must be closed, also around the end.
        #[test]
        fn behaves_like_a_map(
            start in prop::sample::select(vec![0u16, 1000, 2040]),
            steps in prop::collection::vec((any::<bool>(), 0u16..12, 0usize..40), 1..400),
        ) {
            let tag = |spread: u16| ((start + spread) & SLOT_MASK) | (spread << 13);
            let mut index = Index::default();
            let mut model: BTreeMap<u32, IndexTag> = BTreeMap::new();
            let mut free: Vec<u32> = Vec::new();
            let mut slots = 0;
            for (insert, spread, which) in steps {
                if insert {
                    let slot = free.pop().unwrap_or_else(|| { slots += 1; slots - 1 });
                    model.insert(slot, tag(spread));
                    index.insert(slot, tag(spread));
                } else if let Some(slot) = model.keys().nth(which).copied() {
                    index.remove(slot, |slot| model[&slot]);
                    model.remove(&slot);
                    free.push(slot);
                }
                for slot in 0..slots {
                    let tag = model.get(&slot).copied().unwrap_or_else(|| tag(1));
                    prop_assert_eq!(index.find(tag, |found| found == slot), model.get(&slot).map(|_| slot));
                }
            }
        }
    }

    #[test]
    fn it_is_found_when_there_is_room_for_no_other() {
        let mut index = Index::default();
        let tag_of = |slot: u32| (slot.wrapping_mul(2_654_435_761) >> 16) as IndexTag;
        (0..Index::SLOTS_MAX as u32).for_each(|slot| index.insert(slot, tag_of(slot)));
        for slot in 0..Index::SLOTS_MAX as u32 {
            assert_eq!(index.find(tag_of(slot), |found| found == slot), Some(slot));
        }
        assert_eq!(index.find(0, |_| false), None);
    }
}
