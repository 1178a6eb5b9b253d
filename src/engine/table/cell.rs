//! What a process and its store tell each other about one cell of a key.
//!
//! The table makes updates and takes states over; a call carries both as they are.

use crate::engine::table::foreign::Counts;

/// The largest count at a store: a script's numbers are exact up to here. A cell that reaches it is over any limit.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

/// What a process says about one cell of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellUpdate {
    /// The process knows its own field at the store.
    pub is_seated: bool,
    /// All hits that the process has accepted in the cell; if it is not seated, only those that the store has not heard of.
    pub own: u64,
    /// The highest field that the store has answered with.
    pub acked: u64,
    /// The cell's epoch as the process knows it, 0 if it does not.
    pub epoch: u64,
    /// The cell's hits as the process knows them, without those that the store has not heard of. For a bucket, the level in
    /// whole hits, drained up to the moment of the call.
    pub floor: u64,
    /// Every refund that the process was asked for in the cell.
    pub asked: u64,
    /// The highest total of such refunds that the store has answered with.
    pub asked_acked: u64,
    /// What only a cell of a window has, or only a bucket.
    pub shape: CellShape,
}

impl CellUpdate {
    /// The cell's number. A bucket has only one cell.
    pub fn sequence(&self) -> u64 {
        match self.shape {
            CellShape::Window(window) => window.sequence,
            CellShape::Bucket(_) => 0,
        }
    }

    /// The process knows of nothing in the cell, so a store that has lost it need not hear of it.
    pub(super) fn says_nothing(&self) -> bool {
        let has_refunds = self.asked > 0 || matches!(self.shape, CellShape::Window(window) if window.refunds_floor > 0);
        let is_window = matches!(self.shape, CellShape::Window(_));
        is_window && self.is_seated && self.own.max(self.acked).max(self.floor) == 0 && !has_refunds
    }

    /// Leaves out what other regions have counted.
    pub(super) fn leave_foreign_out(&mut self) {
        if let CellShape::Window(window) = &mut self.shape {
            window.foreign = 0;
        }
    }
}

/// Where a store holds what a process has told of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldAt {
    /// The cell of a window, by its number.
    Cell(u64),
    /// So many sub-cells of an exact window as a window has, by the number of the block.
    Block(u64),
    Bucket,
}

/// What kind of cell an update is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellShape {
    Window(WindowUpdate),
    Bucket(BucketUpdate),
}

impl Default for CellShape {
    fn default() -> CellShape {
        CellShape::Window(WindowUpdate::default())
    }
}

/// What only a cell of a window has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowUpdate {
    /// The cell's number.
    pub sequence: u64,
    /// The cell's refunds as the process knows them.
    pub refunds_floor: u64,
    /// How long the store keeps the cell.
    pub ttl_ms: u64,
    /// What the region has counted in the cell at least: what it has published, and what the process has accepted since it
    /// saw that. The store takes it into account when it is asked, and does not keep it.
    pub row: Counts,
    /// What all other regions have counted in the cell. The store takes it into account when it is asked, and does not keep
    /// it.
    pub foreign: u64,
}

/// What only a bucket has. The store keeps it until a minute after it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketUpdate {
    /// What the level has beyond the whole hits of the floor, in parts of a hit: `1 / window_ms`.
    pub floor_rest: u64,
    /// The level by the process's own view, in whole hits, rounded up, with what drains in the time that it may have taken to
    /// tell. Of the hits that it has not told, no more than this plus those it has given back can still be in the bucket.
    pub level: u64,
}

/// What a store holds of a cell, after a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellState {
    /// The cell's number, 0 for a bucket.
    pub sequence: u64,
    /// Made with the cell. If it is not the one from before, the cell was lost and made anew.
    pub epoch: u64,
    /// The cell's hits: floor plus added. For a bucket, everything that was ever added, which tells old answers from new.
    pub sum: u64,
    /// The process's field: the highest total that it has told.
    pub field: u64,
    /// The process's total of refunds that it asked for.
    pub asked: u64,
    /// The cell's refunds, of all processes. 0 for a bucket, whose level is without them.
    pub refunds: u64,
    /// Processes that have told anything of the cell, or of its block.
    pub holders: u32,
    /// The level of a bucket, all zero for a window's cell.
    pub level: BucketLevel,
}

/// The level of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketLevel {
    /// 0, unless the store's clock was set back: then the bucket does not drain until so much time has passed.
    pub ahead_ms: u64,
    /// Whole hits.
    pub whole: u64,
    /// Below the window's milliseconds: parts of a hit.
    pub rest: u64,
}
