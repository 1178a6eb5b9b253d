//! Rows on their way from the table: the rows of a cell come one after the other and make one sum.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::table::cell::COUNT_MAX;
use crate::global::row::{CellName, Counts, HeardRow, RuleName};
use crate::rules::limit::{WINDOW_MS_MAX, WINDOW_MS_MIN};

/// How many regions' last changes are remembered: many more than anybody has.
const SEEN_MAX: usize = 256;

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadScope {
    /// Everything that has not expired, from this cell on if there is one: what comes before it has been read.
    All { from: Option<CellName> },
    /// Likewise of these rules alone, of which there is at least one, sorted.
    Rules { names: Arc<[RuleName]>, from: Option<CellName> },
    /// All rows of cells in which one has changed since then, by the server's clock.
    Since { ms: u64 },
}

/// All rows of one cell, summed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CellSum {
    /// The cell that all of these rows name.
    pub cell: CellName,
    /// The sum of the other regions' rows.
    pub others: Counts,
    /// This region's row.
    pub row: Counts,
    /// When this region's row was last sent, by the server's clock; 0 if there is none.
    pub row_updated_at_ms: u64,
    /// When another region last changed the cell, by the server's clock; 0 if none has.
    pub updated_at_ms: u64,
}

/// Sums rows up, cell by cell.
#[derive(Debug)]
pub(crate) struct Import {
    /// This region, whose rows are kept apart.
    region: Box<str>,
    /// The cell whose rows are coming in.
    at_hand: Option<CellSum>,
    /// Rows taken so far, absurd ones and this region's own included.
    pub rows: u64,
    /// Rows with values that no region publishes.
    pub absurd: u64,
    /// When each region last changed a row, as far as this import has seen.
    pub seen: BTreeMap<Box<str>, u64>,
}

impl Import {
    pub(crate) fn new(region: &str) -> Import {
        Import { region: region.into(), at_hand: None, rows: 0, absurd: 0, seen: BTreeMap::new() }
    }

    /// Takes a row. If it begins another cell, returns the sum of the one before.
    pub(crate) fn hear(&mut self, heard: HeardRow) -> Option<CellSum> {
        self.rows += 1;
        let HeardRow { cell, region, counts, updated_at_ms } = heard;
        let is_window = (WINDOW_MS_MIN..=WINDOW_MS_MAX).contains(&cell.duration_ms);
        let is_sane = counts.hits <= COUNT_MAX && counts.refunds <= counts.hits && is_window;
        if !is_sane {
            self.absurd += 1;
            return None;
        }
        if self.seen.len() < SEEN_MAX || self.seen.contains_key(&region) {
            let seen = self.seen.entry(region.clone()).or_default();
            *seen = updated_at_ms.max(*seen);
        }
        let mut complete = None;
        if self.at_hand.as_ref().is_none_or(|sum| sum.cell != cell) {
            let none = Counts::default();
            let sum = CellSum { cell, others: none, row: none, row_updated_at_ms: 0, updated_at_ms: 0 };
            complete = self.at_hand.replace(sum);
        }
        if let Some(sum) = &mut self.at_hand {
            if region == self.region {
                (sum.row, sum.row_updated_at_ms) = (counts, updated_at_ms);
            } else {
                sum.others = sum.others.plus(counts);
                sum.updated_at_ms = sum.updated_at_ms.max(updated_at_ms);
            }
        }
        complete
    }

    /// The cell of the last row. More rows of it may follow.
    pub(crate) fn reached(&self) -> Option<&CellName> {
        self.at_hand.as_ref().map(|sum| &sum.cell)
    }

    /// Takes note that there are no more rows, and returns the last cell's sum.
    pub(crate) fn end(&mut self) -> Option<CellSum> {
        self.at_hand.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(identifier: &str, region: &str, hits: u64) -> HeardRow {
        let cell = CellName {
            workspace: (*b"d").into(),
            namespace: (*b"k").into(),
            identifier: identifier.as_bytes().into(),
            duration_ms: 60_000,
            sequence: 7,
        };
        HeardRow { cell, region: region.into(), counts: Counts { hits, refunds: 1 }, updated_at_ms: hits }
    }

    #[test]
    fn rows_of_a_cell_are_summed_but_for_the_own_one() {
        let mut import = Import::new("a");
        assert_eq!(import.hear(heard("x", "a", 5)), None);
        assert_eq!(import.hear(heard("x", "b", 7)), None);
        assert_eq!(import.hear(heard("x", "c", 9)), None);
        let sum = import.hear(heard("y", "b", 2)).unwrap();
        assert_eq!(sum.row, Counts { hits: 5, refunds: 1 });
        assert_eq!((sum.others, sum.updated_at_ms), (Counts { hits: 16, refunds: 2 }, 9));
        assert_eq!(import.end().unwrap().others.hits, 2);
        assert_eq!((import.end(), import.rows), (None, 4));
        assert_eq!(import.seen[&*Box::<str>::from("b")], 7);
    }

    #[test]
    fn absurd_rows_are_left_out() {
        let mut import = Import::new("a");
        import.hear(heard("x", "b", u64::MAX));
        import.hear(HeardRow { counts: Counts { hits: 1, refunds: 2 }, ..heard("x", "b", 1) });
        import.hear(HeardRow { cell: CellName { duration_ms: 0, ..heard("x", "b", 1).cell }, ..heard("x", "b", 1) });
        assert_eq!((import.end(), import.absurd), (None, 3));
    }
}
