//! A fixed table of texts: where does this one lead? One probe tells, however many there are.
//!
//! Hash and displace: the hash names a bucket, the bucket says by how much its texts are moved, and that names the slot.
//! The displacements are sought once, when the table is built, so that no two texts share a slot. A request reads one
//! displacement, which takes half a byte for each text and stays in the cache, and one slot: a cache line with the text to
//! compare and what it leads to.

/// Texts of a bucket, on average. More take longer to place, fewer make more displacements.
const BUCKET_TEXTS: usize = 4;

/// The scope of an empty slot. Nobody asks for it.
const VACANT: u32 = u32::MAX;

/// From a scope and a text to a target. Texts of up to `SHORT` bytes stand in the slot itself.
#[derive(Debug)]
pub(crate) struct Lookup<T, const SHORT: usize> {
    /// By bucket.
    displacements: Vec<u16>,
    slots: Vec<LookupSlot<T, SHORT>>,
}

#[derive(Debug)]
#[repr(align(64))]
struct LookupSlot<T, const SHORT: usize> {
    text: StoredText<SHORT>,
    scope: u32,
    target: T,
}

#[derive(Debug)]
enum StoredText<const SHORT: usize> {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

/// A text to be filed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupEntry<'t, T> {
    /// Tells equal texts apart. Never `VACANT`.
    pub scope: u32,
    /// At most once in a scope.
    pub text: &'t str,
    /// Of scope and text together, good in all of its bits. `find` is called with the same.
    pub hash: u64,
    /// What `find` returns.
    pub target: T,
}

impl<T, const SHORT: usize> Default for Lookup<T, SHORT> {
    fn default() -> Self {
        Lookup { displacements: Vec::new(), slots: Vec::new() }
    }
}

impl<T: Copy, const SHORT: usize> Lookup<T, SHORT> {
    /// `None` if two hashes are equal, or nearly so: another hash function will do.
    pub(crate) fn new(filed: &[LookupEntry<'_, T>]) -> Option<Lookup<T, SHORT>> {
        let Some(first) = filed.first() else { return Some(Lookup::default()) };
        // A few slots stay free, or the search for the last texts' places would take too long.
        let slots = filed.len() + filed.len() / 16 + 1;
        let mut buckets: Vec<Vec<&LookupEntry<'_, T>>> = vec![Vec::new(); filed.len().div_ceil(BUCKET_TEXTS)];
        for it in filed {
            let bucket = bucket_of(it.hash, buckets.len());
            buckets[bucket].push(it);
        }
        let mut order: Vec<usize> = (0..buckets.len()).collect();
        order.sort_by_key(|bucket| usize::MAX - buckets[*bucket].len());
        let mut placed: Vec<Option<&LookupEntry<'_, T>>> = vec![None; slots];
        let mut displacements = vec![0; buckets.len()];
        for bucket in order {
            displacements[bucket] = place(&buckets[bucket], &mut placed)?;
        }
        let vacant = |target| LookupSlot { text: StoredText::new(""), scope: VACANT, target };
        let slots = placed.into_iter().map(|filed| match filed {
            Some(it) => LookupSlot { text: StoredText::new(it.text), scope: it.scope, target: it.target },
            None => vacant(first.target),
        });
        Some(Lookup { displacements, slots: slots.collect() })
    }

    #[inline]
    pub(crate) fn find(&self, scope: u32, text: &str, hash: u64) -> Option<&T> {
        let displacement = *self.displacements.get(bucket_of(hash, self.displacements.len()))?;
        let slot = self.slots.get(slot_of(hash, displacement, self.slots.len()))?;
        (slot.scope == scope && slot.text.as_bytes() == text.as_bytes()).then_some(&slot.target)
    }
}

/// Puts a bucket's texts into free slots and returns their displacement; `None` if there is none at which all fit.
fn place<'p, 't, T>(bucket: &[&'p LookupEntry<'t, T>], placed: &mut [Option<&'p LookupEntry<'t, T>>]) -> Option<u16> {
    (0..=u16::MAX).find(|displacement| {
        for (at, filed) in bucket.iter().enumerate() {
            let slot = slot_of(filed.hash, *displacement, placed.len());
            if placed[slot].is_some() {
                for undone in &bucket[..at] {
                    placed[slot_of(undone.hash, *displacement, placed.len())] = None;
                }
                return false;
            }
            placed[slot] = Some(filed);
        }
        true
    })
}

/// From the lower half of the hash, evenly.
#[inline]
fn bucket_of(hash: u64, buckets: usize) -> usize {
    (((hash & 0xffff_ffff) * buckets as u64) >> 32) as usize
}

/// From the whole of the hash, evenly, and for each displacement as if the hash were another one.
#[inline]
fn slot_of(hash: u64, displacement: u16, slots: usize) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    const MIX: u64 = 0xd6e8_feb8_6659_fd93;
    let wide = u128::from(hash ^ u64::from(displacement).wrapping_mul(SPREAD)) * u128::from(MIX);
    let mixed = (wide >> 64) as u64 ^ wide as u64;
    ((u128::from(mixed) * slots as u128) >> 64) as usize
}

impl<const SHORT: usize> StoredText<SHORT> {
    fn new(text: &str) -> StoredText<SHORT> {
        match u8::try_from(text.len()) {
            Ok(length) if text.len() <= SHORT => {
                let mut bytes = [0; SHORT];
                bytes[..text.len()].copy_from_slice(text.as_bytes());
                StoredText::Short { length, bytes }
            }
            _ => StoredText::Long(text.as_bytes().into()),
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            StoredText::Short { length, bytes } => &bytes[..usize::from(*length)],
            StoredText::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn filed(texts: &BTreeMap<(u32, String), usize>, state: &ahash::RandomState) -> Vec<(u32, String, u64, usize)> {
        let hash = |scope: u32, text: &str| state.hash_one((scope, text));
        texts.iter().map(|((scope, text), at)| (*scope, text.clone(), hash(*scope, text), *at)).collect()
    }

    fn lookup(texts: &[(u32, String, u64, usize)]) -> Option<Lookup<usize, 4>> {
        let filed: Vec<_> = texts
            .iter()
            .map(|(scope, text, hash, target)| LookupEntry { scope: *scope, text, hash: *hash, target: *target })
            .collect();
        Lookup::new(&filed)
    }

    #[test]
    fn every_one_of_many_is_found_where_it_was_put() {
        let state = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let texts = (0..100_000).map(|n| ((n as u32 % 7, format!("text-{n}")), n)).collect();
        let texts = filed(&texts, &state);
        let lookup = lookup(&texts).unwrap();
        for (scope, text, hash, target) in &texts {
            assert_eq!(lookup.find(*scope, text, *hash), Some(target));
            assert_eq!(lookup.find(scope + 1, text, *hash), None, "the same text elsewhere");
            assert_eq!(lookup.find(*scope, "text", *hash), None, "another text with the same hash");
        }
    }

    #[test]
    fn equal_hashes_are_refused() {
        let texts = ["a", "b"].map(|text| LookupEntry { scope: 0, text, hash: 7, target: () });
        assert!(Lookup::<(), 4>::new(&texts).is_none());
    }

    /// For the sizes in use.
    #[test]
    fn a_slot_is_a_cache_line() {
        assert_eq!(size_of::<LookupSlot<[u32; 4], 38>>(), 64);
        assert_eq!(size_of::<LookupSlot<[u32; 6], 30>>(), 64);
    }

    #[test]
    fn nothing_is_found_where_nothing_was_put() {
        assert_eq!(Lookup::<u8, 4>::default().find(0, "", 0), None);
    }

    proptest! {
        #[test]
        fn finds_what_a_map_finds(
            texts in prop::collection::btree_map((0..3u32, "[ab]{0,6}"), 0..100usize, 0..60),
            asked in prop::collection::vec((0..3u32, "[ab]{0,6}"), 0..60),
        ) {
            let state = ahash::RandomState::with_seeds(1, 2, 3, 4);
            let lookup = lookup(&filed(&texts, &state)).unwrap();
            for (scope, text) in asked {
                let hash = state.hash_one((scope, text.as_str()));
                prop_assert_eq!(lookup.find(scope, &text, hash), texts.get(&(scope, text.clone())));
            }
        }
    }
}
