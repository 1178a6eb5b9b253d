//! What a key takes in memory: what the cap in bytes, the injected sidecar and the documents go by.
//!
//! A key takes its slot, and for some keys more beside it: an identifier that is too long for the slot, the sub-cells of an
//! exact window that counts to more than a few, what other regions have counted. The slot's part is a figure that
//! `cargo bench --bench memory` confirms; what is beside it is added up as it comes and goes.

/// What a key takes that has nothing beside its slot: resident bytes in a full table, rounded up.
pub const KEY_BYTES: usize = 150;
/// That of a key whose counts are shared through Redis or MySQL.
pub const SHARED_KEY_BYTES: usize = 250;

/// What is beside a slot is noted in a byte: in steps of this.
const STEP_BYTES: usize = 16;

/// What the allocator takes for a piece of so many bytes: its own word, and whole steps.
pub const fn heap_bytes(bytes: usize) -> usize {
    (bytes + size_of::<usize>()).next_multiple_of(STEP_BYTES)
}

/// What a key takes beside its slot.
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

    /// Whether giving it up is of use.
    pub fn serves(self, need: EvictionGoal) -> bool {
        need == EvictionGoal::Slot || self != Weight::NONE
    }
}

/// What a key is given up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionGoal {
    /// Its slot.
    Slot,
    /// What it takes beside the slot, which stays: only keys that take something there are of use.
    Bytes,
}

/// How much a table may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub keys: usize,
    /// Of all keys together.
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
