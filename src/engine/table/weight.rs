//! How much memory a key takes. The cap in bytes, the injected sidecar and the documents go by these figures.
//!
//! A key takes its slot. Some keys take more beside it: an identifier that is too long for the slot, the sub-cells of an
//! exact window that counts to more than a few, what other regions have counted. The slot's part is a figure that
//! `cargo bench --bench memory` confirms; the memory beside slots is added up as it comes and goes.

/// Resident bytes of a key with nothing beside its slot, in a full table, rounded up.
pub const KEY_BYTES: usize = 150;
/// Resident bytes of such a key if its counts are shared through Redis or MySQL.
pub const SHARED_KEY_BYTES: usize = 250;

/// A [`Weight`] is one byte, in steps of this.
const STEP_BYTES: usize = 16;

/// How many bytes the allocator takes for a piece of so many: a word of its own on top, rounded up to whole steps.
pub const fn heap_bytes(bytes: usize) -> usize {
    (bytes + size_of::<usize>()).next_multiple_of(STEP_BYTES)
}

/// The memory that a key takes beside its slot, rounded up to whole steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight(u8);

impl Weight {
    pub const NONE: Weight = Weight(0);

    pub fn new(bytes: usize) -> Weight {
        Weight(u8::try_from(bytes.div_ceil(STEP_BYTES)).unwrap_or(u8::MAX))
    }

    pub fn bytes(self) -> usize {
        usize::from(self.0) * STEP_BYTES
    }

    /// Whether giving up a key of this weight is of use.
    pub fn serves(self, need: EvictionGoal) -> bool {
        need == EvictionGoal::Slot || self != Weight::NONE
    }
}

/// The reason to give a key up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionGoal {
    /// Its slot.
    Slot,
    /// The memory beside its slot, which stays: only keys that take some there are of use.
    Bytes,
}

/// How much a table may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// How many at most. The table takes at least 1 and at most [`KEYS_MAX`](crate::engine::table::KEYS_MAX).
    pub keys: usize,
    /// The memory that all keys together may take; `usize::MAX` if only their number is bounded.
    pub bytes: usize,
}

impl From<usize> for Capacity {
    /// So many keys, whatever they take.
    fn from(keys: usize) -> Capacity {
        Capacity { keys, bytes: usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_never_less_than_what_it_stands_for() {
        for bytes in [0, 1, 16, 17, 272, 4080] {
            assert!((bytes..bytes + STEP_BYTES).contains(&Weight::new(bytes).bytes()), "{bytes}");
        }
        assert_eq!(Weight::new(usize::MAX).bytes(), 4080);
        assert_eq!([1, 24, 25, 40, 272].map(heap_bytes), [16, 32, 48, 48, 288]);
    }
}
