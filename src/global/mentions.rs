//! What a process tells the region's speaker of: cells that other regions should know of.
//!
//! A mention names the cell as a row does, so a sensitive value is a keyed digest here too, and the key as the origin does,
//! so that the speaker can read the cell there. [`SpokenFor`] keeps mentions rare: what was mentioned just now, or what the
//! speaker has just published, is not mentioned again. The key waits all the same, until the row is known to have what the
//! process knows; so a mention that gets lost is made again.

use std::collections::HashMap;

use crate::global::packing::{Packer, Unpacker};
use crate::global::row::{CellName, Counts};
use crate::regional::call::OriginKey;

/// How long a cell is left to the speaker after it was mentioned, or after its row was handed on.
pub(crate) const SPOKEN_FOR_US: u64 = 3_000_000;
/// How many cells are known to be left to the speaker. Others are mentioned again.
const SPOKEN_FOR_MAX: usize = 65_536;

/// A cell that other regions should know of, as a process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    /// The cell, as its row names it.
    pub cell: CellName,
    /// The key, as the origin names it.
    pub key: OriginKey,
    /// The key's limit, of which half makes every hit worth telling.
    pub limit: u32,
    /// Other regions count the key too.
    pub is_contested: bool,
    /// What the process knows that the region has counted.
    pub counts: Counts,
    /// What the process knows that the table has of that.
    pub told: Counts,
}

impl Mention {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut packer = Packer::default();
        packer.cell(&self.cell);
        packer.bytes.extend_from_slice(&self.key.0);
        packer.number(u64::from(self.limit) << 1 | u64::from(self.is_contested));
        packer.counts(self.counts);
        packer.counts(self.told);
        packer.bytes
    }

    /// `None` if these bytes are no mention.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Mention> {
        let mut unpacker = Unpacker::new(bytes);
        let cell = unpacker.cell()?;
        let key = OriginKey(unpacker.bytes(20)?.try_into().ok()?);
        let packed = unpacker.number()?;
        let (limit, is_contested) = (u32::try_from(packed >> 1).ok()?, packed & 1 == 1);
        let (counts, told) = (unpacker.counts()?, unpacker.counts()?);
        unpacker.is_at_end().then_some(Mention { cell, key, limit, is_contested, counts, told })
    }
}

/// Cells that are left to the speaker, and until when.
#[derive(Debug, Default)]
pub(crate) struct SpokenFor {
    until_us: HashMap<CellName, u64>,
}

impl SpokenFor {
    /// Leaves a cell to the speaker for a while.
    pub(crate) fn leave(&mut self, cell: CellName, now_us: u64) {
        if self.until_us.len() >= SPOKEN_FOR_MAX {
            self.until_us.retain(|_, until_us| *until_us > now_us);
        }
        if self.until_us.len() < SPOKEN_FOR_MAX || self.until_us.contains_key(&cell) {
            self.until_us.insert(cell, now_us + SPOKEN_FOR_US);
        }
    }

    pub(crate) fn has(&self, cell: &CellName, now_us: u64) -> bool {
        self.until_us.get(cell).is_some_and(|until_us| *until_us > now_us)
    }

    /// Leaves nothing to a speaker that is gone.
    pub(crate) fn clear(&mut self) {
        self.until_us.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(number: usize) -> CellName {
        CellName {
            workspace: (*b"edge").into(),
            namespace: (*b"remote_address").into(),
            identifier: format!("{number}").into_bytes().into(),
            duration_ms: 60_000,
            sequence: 29_000_000,
        }
    }

    #[test]
    fn mentions_are_read_as_they_were_made() {
        let counts = |hits| Counts { hits, refunds: 3 };
        let mention = Mention {
            cell: cell(1),
            key: OriginKey([7; 20]),
            limit: u32::MAX,
            is_contested: true,
            counts: counts(900),
            told: counts(4),
        };
        let bytes = mention.encode();
        assert!(bytes.len() <= 70, "{}", bytes.len());
        assert_eq!(Mention::decode(&bytes), Some(mention));
        assert_eq!((0..bytes.len()).find_map(|length| Mention::decode(&bytes[..length])), None);
    }

    #[test]
    fn cells_are_left_to_the_speaker_for_a_while_and_not_without_bound() {
        let mut spoken_for = SpokenFor::default();
        for number in 0..=SPOKEN_FOR_MAX {
            spoken_for.leave(cell(number), 0);
        }
        assert!(spoken_for.has(&cell(0), SPOKEN_FOR_US - 1) && !spoken_for.has(&cell(0), SPOKEN_FOR_US));
        assert!(!spoken_for.has(&cell(SPOKEN_FOR_MAX), 0), "no room");
        spoken_for.leave(cell(SPOKEN_FOR_MAX), SPOKEN_FOR_US);
        assert!(spoken_for.has(&cell(SPOKEN_FOR_MAX), SPOKEN_FOR_US));
    }
}
