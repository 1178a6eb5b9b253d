//! A row of the table that regions share: one region's count of one cell.

pub use crate::engine::table::foreign::Counts;

/// Names a rule in the same way in every region: what rows of all of its keys have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// The domain; its digest when it is too long.
    pub workspace: Box<[u8]>,
    /// The rule id; its digest when it is too long.
    pub namespace: Box<[u8]>,
}

/// Names a cell in the same way in every region. Ordered as the table's unique key is, so that all who write several
/// rows take their locks in the same order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName {
    /// The domain; its digest when it is too long.
    pub workspace: Box<[u8]>,
    /// The rule id; its digest when it is too long.
    pub namespace: Box<[u8]>,
    /// Any bytes, at most 255: a keyed digest for sensitive values.
    pub identifier: Box<[u8]>,
    /// The length of the window.
    pub duration_ms: u64,
    /// The number of the window: `floor(now / duration_ms)`.
    pub sequence: u64,
}

impl CellName {
    /// From this time on the cell counts nowhere any more.
    pub fn expires_at_ms(&self) -> u64 {
        self.sequence.saturating_add(2).saturating_mul(self.duration_ms)
    }
}

/// A row that this region publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRow {
    /// Which cell the counts are of.
    pub cell: CellName,
    /// The region's totals in the cell, as far as this process knows them. They replace smaller ones: they are not
    /// added.
    pub counts: Counts,
}

/// A row that a region, this one included, has published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardRow {
    /// Which cell the counts are of.
    pub cell: CellName,
    /// Who published the row; it may be a region that is not configured here.
    pub region: Box<str>,
    /// That region's totals in the cell.
    pub counts: Counts,
    /// When it last changed, by the server's clock.
    pub updated_at_ms: u64,
}
