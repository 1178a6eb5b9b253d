//! What the speaker hands on: the sums of cells that it has read in the table, in entries of the region's feed.
//!
//! Each turn of importing ends with an entry that says for which time the turn speaks, by the table's clock: `from` where
//! the turn before ended `to` where this one began to read. Who has heard everything up to `from` has then heard
//! everything up to `to`. Who has not, because entries were lost or because it came later, knows what it lacks, and reads
//! that in the table itself. A large turn has several entries, which are numbered. A sign of life says nothing of the sort.

use std::collections::HashMap;
use std::mem;

use crate::global::import::CellSum;
use crate::global::packing::{Packer, Unpacker};
use crate::global::row::{CellName, Counts};

/// What is written here, so that a later version can say that it writes something else.
const FORMAT: u64 = 1;
/// How large an entry may grow before another one begins.
const ENTRY_BYTES: usize = 32 * 1024;
/// What a cell takes at most beside its names.
const CELL_BYTES: usize = 64;
/// How many cells are remembered, so as not to hand the same on again.
const RECENT_MAX: usize = 65_536;
/// How long they are: for longer than imports look back.
const RECENT_US: u64 = 60_000_000;

/// For which time a turn speaks, by the table's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    /// Whatever changed before was handed on, or is known otherwise.
    pub from_ms: u64,
    /// Whatever changed before was handed on with this turn at the latest.
    pub to_ms: u64,
}

/// An entry of the feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeedEntry {
    /// The speaker gives up its office: another one should take it at once.
    pub is_farewell: bool,
    /// The place of the entry among those of its turn.
    pub part: u64,
    /// Ends a turn. `None`: more follows, or nothing could be read.
    pub covered: Option<Covered>,
    /// The speaker can't publish.
    pub is_stuck: bool,
    /// How long ago the table last took rows of the speaker, or answered it, in milliseconds; `None`: it never has.
    pub published_ago_ms: Option<u64>,
    /// When regions last changed a row, by the table's clock, as far as the turn has seen.
    pub seen: Vec<(Box<str>, u64)>,
    /// What the turn has read.
    pub sums: Vec<CellSum>,
}

impl FeedEntry {
    /// The entries of a turn: several if it has much to hand on.
    pub(crate) fn into_parts(self) -> Vec<Vec<u8>> {
        let FeedEntry { covered, sums, .. } = self;
        let mut bodies = Vec::new();
        let mut at_hand = FeedEntry { covered: None, sums: Vec::new(), ..self };
        let mut bytes = 0;
        for sum in sums {
            bytes += sum.cell.workspace.len() + sum.cell.namespace.len() + sum.cell.identifier.len() + CELL_BYTES;
            at_hand.sums.push(sum);
            if bytes >= ENTRY_BYTES {
                bytes = 0;
                let next = FeedEntry { part: at_hand.part + 1, seen: Vec::new(), sums: Vec::new(), ..at_hand };
                bodies.push(mem::replace(&mut at_hand, next).encode());
            }
        }
        bodies.push(FeedEntry { covered, ..at_hand }.encode());
        bodies
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut packer = Packer::default();
        packer.number(FORMAT);
        packer.number(
            u64::from(self.is_farewell) | u64::from(self.covered.is_some()) << 1 | u64::from(self.is_stuck) << 2,
        );
        packer.number(self.part);
        if let Some(Covered { from_ms, to_ms }) = self.covered {
            packer.number(from_ms);
            packer.number(to_ms);
        }
        packer.number(self.published_ago_ms.map_or(0, |ago_ms| ago_ms.saturating_add(1)));
        packer.number(self.seen.len() as u64);
        for (region, at_ms) in &self.seen {
            packer.text(region.as_bytes());
            packer.number(*at_ms);
        }
        let newest_ms = self.sums.iter().map(|sum| sum.updated_at_ms.max(sum.row_updated_at_ms)).max().unwrap_or(0);
        packer.number(newest_ms);
        // Most are about as old as the newest.
        let age = |at_ms: u64| if at_ms == 0 { 0 } else { newest_ms - at_ms + 1 };
        for CellSum { cell, others, row, row_updated_at_ms, updated_at_ms } in &self.sums {
            packer.cell(cell);
            packer.counts(*others);
            packer.counts(*row);
            packer.number(age(*updated_at_ms));
            packer.number(age(*row_updated_at_ms));
        }
        packer.bytes
    }

    /// `None` if these bytes are no entry.
    pub(crate) fn decode(bytes: &[u8]) -> Option<FeedEntry> {
        let mut unpacker = Unpacker::new(bytes);
        if unpacker.number()? != FORMAT {
            return None;
        }
        let flags = unpacker.number().filter(|flags| *flags < 8)?;
        let part = unpacker.number()?;
        let covered = match flags & 2 {
            0 => None,
            _ => Some(Covered { from_ms: unpacker.number()?, to_ms: unpacker.number()? }),
        };
        let published_ago_ms = unpacker.number()?.checked_sub(1);
        let mut seen = Vec::new();
        for _ in 0..unpacker.number()? {
            let region = std::str::from_utf8(unpacker.text()?).ok()?;
            seen.push((region.into(), unpacker.number()?));
        }
        let newest_ms = unpacker.number()?;
        let mut sums = Vec::new();
        while !unpacker.is_at_end() {
            let (cell, others, row) = (unpacker.cell()?, unpacker.counts()?, unpacker.counts()?);
            let mut date = || match unpacker.number()? {
                0 => Some(0),
                age => newest_ms.checked_sub(age - 1),
            };
            let (updated_at_ms, row_updated_at_ms) = (date()?, date()?);
            sums.push(CellSum { cell, others, row, row_updated_at_ms, updated_at_ms });
        }
        let (is_farewell, is_stuck) = (flags & 1 > 0, flags & 4 > 0);
        Some(FeedEntry { is_farewell, part, covered, is_stuck, published_ago_ms, seen, sums })
    }
}

/// What was handed on lately, or heard from the speaker: it need not be handed on again.
#[derive(Debug, Default)]
pub(crate) struct RecentSums {
    /// With the time at which it was last noted.
    sums: HashMap<CellName, (CellSum, u64)>,
}

impl RecentSums {
    /// Takes note of a sum. True if it was not known lately.
    pub(crate) fn note(&mut self, sum: &CellSum, now_us: u64) -> bool {
        if let Some((before, at_us)) = self.sums.get_mut(&sum.cell) {
            let is_news = *before != *sum;
            (*before, *at_us) = (sum.clone(), now_us);
            return is_news;
        }
        if self.sums.len() >= RECENT_MAX {
            self.sums.retain(|_, (_, at_us)| *at_us + RECENT_US > now_us);
        }
        if self.sums.len() < RECENT_MAX {
            self.sums.insert(sum.cell.clone(), (sum.clone(), now_us));
        }
        true
    }

    /// This region's row of a cell, if it is known lately.
    pub(crate) fn row(&self, cell: &CellName) -> Counts {
        self.sums.get(cell).map_or(Counts::default(), |(sum, _)| sum.row)
    }

    /// Forgets everything: what was noted may not have been handed on.
    pub(crate) fn clear(&mut self) {
        self.sums.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(number: u64, others: u64, row: u64) -> CellSum {
        let cell = CellName {
            workspace: (*b"edge").into(),
            namespace: (*b"api_key").into(),
            identifier: format!("{number:032}").into_bytes().into(),
            duration_ms: 60_000,
            sequence: 29_000_000,
        };
        let counts = |hits| Counts { hits, refunds: 0 };
        let updated_at_ms = 1_750_000_000_000 - number;
        CellSum { cell, others: counts(others), row: counts(row), row_updated_at_ms: updated_at_ms, updated_at_ms }
    }

    #[test]
    fn a_cell_costs_few_bytes_beside_its_identifier() {
        let sums: Vec<CellSum> = (0..400).map(|number| sum(number, 120_000, 90_000)).collect();
        let bodies = FeedEntry { sums, published_ago_ms: Some(5), ..FeedEntry::default() }.into_parts();
        let bytes: usize = bodies.iter().map(Vec::len).sum();
        assert!(bytes / 400 <= 32 + 20, "{} bytes for a cell", bytes / 400);
    }

    #[test]
    fn large_turns_have_several_entries_and_the_last_one_ends_them() {
        let sums: Vec<CellSum> = (0..3000).map(|number| sum(number, 1, 2)).collect();
        let covered = Covered { from_ms: 7, to_ms: 1007 };
        let seen = vec![("eu".into(), 9)];
        let turn = FeedEntry { sums: sums.clone(), seen: seen.clone(), covered: Some(covered), ..FeedEntry::default() };
        let bodies = turn.into_parts();
        assert!(bodies.len() > 3 && bodies.iter().all(|body| body.len() <= ENTRY_BYTES + 1024));
        let entries: Vec<FeedEntry> = bodies.iter().map(|body| FeedEntry::decode(body).unwrap()).collect();
        assert!(entries.iter().zip(0..).all(|(entry, part)| entry.part == part));
        let (last, before) = entries.split_last().unwrap();
        assert_eq!(last.covered, Some(covered));
        assert!(before.iter().all(|entry| entry.covered.is_none()));
        assert_eq!(entries[0].seen, seen);
        assert_eq!(entries.into_iter().flat_map(|entry| entry.sums).collect::<Vec<_>>(), sums);
    }

    proptest! {
        #[test]
        fn entries_are_read_as_they_were_written(
            is_farewell: bool, is_stuck: bool, part in 0u64..9, covered in proptest::option::of((any::<u64>(), any::<u64>())),
            ago in proptest::option::of(0..u64::MAX), numbers in proptest::collection::vec((0u64..99, 0u64..1 << 53, any::<bool>()), 0..9),
        ) {
            let sums = numbers.iter().map(|(number, hits, is_dated)| {
                let sum = sum(*number, *hits, hits / 2);
                CellSum { updated_at_ms: if *is_dated { sum.updated_at_ms } else { 0 }, ..sum }
            });
            let entry = FeedEntry {
                is_farewell, is_stuck, part, covered: covered.map(|(from_ms, to_ms)| Covered { from_ms, to_ms }),
                published_ago_ms: ago, seen: vec![("ü".into(), 3)], sums: sums.collect(),
            };
            prop_assert_eq!(FeedEntry::decode(&entry.encode()), Some(entry));
        }

        #[test]
        fn any_bytes_are_an_entry_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = FeedEntry::decode(&bytes);
            let _ = FeedEntry::decode(&[&[1], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn what_was_handed_on_lately_is_no_news() {
        let mut recent = RecentSums::default();
        assert!(recent.note(&sum(1, 1, 1), 0) && !recent.note(&sum(1, 1, 1), 1));
        assert!(recent.note(&sum(1, 2, 1), 2) && recent.note(&sum(1, 2, 2), 3));
        assert!(recent.note(&CellSum { row_updated_at_ms: 9, ..sum(1, 2, 2) }, 3), "it was sent again");
        assert_eq!((recent.row(&sum(1, 0, 0).cell).hits, recent.row(&sum(2, 0, 0).cell).hits), (2, 0));
        for number in 0..=RECENT_MAX as u64 {
            recent.note(&sum(number, 1, 1), 4);
        }
        assert!(recent.sums.len() <= RECENT_MAX);
        assert!(recent.note(&sum(RECENT_MAX as u64 + 9, 1, 1), RECENT_US + 4));
        assert_eq!(recent.sums.len(), 1, "old ones make room");
    }
}
