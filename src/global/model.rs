//! The table that regions share, in memory. It does what the statements do on the real one.
//!
//! A statement dates its rows when it begins. Others see them when it is committed, which may be much later.

use std::collections::BTreeMap;

use crate::global::import::ReadScope;
use crate::global::row::{CellName, Counts, HeardRow, OwnRow, RuleName};

#[derive(Clone, Copy, Debug, Default)]
struct StoredRow {
    counts: Counts,
    updated_at_ms: u64,
}

fn heard<'a>(cells: impl Iterator<Item = (&'a CellName, &'a BTreeMap<Box<str>, StoredRow>)>) -> Vec<HeardRow> {
    let rows = cells.flat_map(|(cell, regions)| regions.iter().map(move |(region, held)| (cell, region, held)));
    rows.map(|(cell, region, held)| HeardRow {
        cell: cell.clone(),
        region: region.clone(),
        counts: held.counts,
        updated_at_ms: held.updated_at_ms,
    })
    .collect()
}

/// The rows of all regions.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    cells: BTreeMap<CellName, BTreeMap<Box<str>, StoredRow>>,
    /// Rows that were made or grew.
    pub changed: u64,
}

impl Rows {
    /// Commits a region's rows with their date: each counter becomes the larger one. Rows that grow, or stay as they
    /// are, take the new date; rows that were ahead already keep theirs.
    pub fn commit(&mut self, region: &str, rows: &[OwnRow], dated_ms: u64) {
        for row in rows {
            let held = self.cells.entry(row.cell.clone()).or_default().entry(region.into()).or_default();
            let counts = held.counts.max(row.counts);
            if counts != held.counts || counts == row.counts {
                self.changed += u64::from(counts != held.counts);
                *held = StoredRow { counts, updated_at_ms: dated_ms };
            }
        }
    }

    /// The rows that a reading hears, all rows of a cell one after the other.
    pub fn read(&self, reading: &ReadScope, now_ms: u64) -> Vec<HeardRow> {
        let is_behind = |from: &Option<CellName>, cell: &CellName| from.as_ref().is_none_or(|from| cell >= from);
        let is_of =
            |name: &RuleName, cell: &CellName| (&name.workspace, &name.namespace) == (&cell.workspace, &cell.namespace);
        let is_read = |cell: &CellName, regions: &BTreeMap<Box<str>, StoredRow>| match reading {
            ReadScope::All { from } => is_behind(from, cell),
            ReadScope::Rules { names, from } => names.iter().any(|name| is_of(name, cell)) && is_behind(from, cell),
            ReadScope::Since { ms } => regions.values().any(|held| held.updated_at_ms >= *ms),
        };
        let live = self.cells.iter().filter(|(cell, _)| cell.expires_at_ms() > now_ms);
        heard(live.filter(|(cell, regions)| is_read(cell, regions)))
    }

    /// All rows of some cells.
    pub fn find(&self, cells: &[CellName]) -> Vec<HeardRow> {
        heard(cells.iter().filter_map(|cell| self.cells.get_key_value(cell)))
    }

    /// The sum of a region's rows.
    pub fn total(&self, region: &str) -> Counts {
        let of_region = self.cells.values().filter_map(|regions| regions.get(region));
        of_region.fold(Counts::default(), |sum, held| sum.plus(held.counts))
    }

    pub fn rows(&self) -> usize {
        self.cells.values().map(BTreeMap::len).sum()
    }
}
