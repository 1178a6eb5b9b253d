//! A row of the table that regions share: one region's count of one cell.

pub use crate::engine::table::foreign::Counts;

/// Names a cell in every region alike. Ordered as the table's unique key is, so that whoever writes several rows takes
/// their locks in the same order as everybody else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellName {
    /// The domain; its digest when it is too long.
    pub workspace: Box<[u8]>,
    /// The rule id; its digest when it is too long.
    pub namespace: Box<[u8]>,
    /// At most 255 bytes, whatever they are: a keyed digest for sensitive values.
    pub identifier: Box<[u8]>,
    pub duration_ms: u64,
    pub sequence: u64,
}

impl CellName {
    /// From here on the cell counts nowhere any more.
    pub fn expires_at_ms(&self) -> u64 {
        self.sequence.saturating_add(2).saturating_mul(self.duration_ms)
    }
}

/// What this region publishes about a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRow {
    pub cell: CellName,
    pub counts: Counts,
}

/// What a region, this one included, has published about a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeardRow {
    pub cell: CellName,
    pub region: Box<str>,
    pub counts: Counts,
    /// When it last changed, by the server's clock.
    pub updated_at_ms: u64,
}
