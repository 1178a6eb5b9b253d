//! What a process tells its store about the cells of a key.

use smallvec::SmallVec;

use crate::engine::count::counter::{Counter, rate};
use crate::engine::count::window::Cell;
use crate::engine::table::cell::{BucketUpdate, CellShape, CellUpdate, WindowUpdate};
use crate::engine::table::foreign::Counts;
use crate::engine::table::own_counts::OwnCount;
use crate::engine::table::regional_part::{CELLS_SETTLED, Refunds, RegionalPart};
use crate::rules::limit::Terms;

/// Clocks differ, so a store keeps a cell for one more window after it has stopped counting, but not for longer than this.
const GRACE_MS_MAX: u64 = 60_000;

impl RegionalPart {
    /// What to tell about all cells that count against the limit, the newest first.
    pub(crate) fn judged_cells(&self, counter: &Counter, terms: &Terms, now_ms: u64) -> SmallVec<[CellUpdate; 2]> {
        self.updates(counter, terms, counter.cells_that_count(terms), now_ms)
    }

    /// What to tell about the cells that have news: from the newest down to the oldest with something pending. After a
    /// rollover the cell before comes along once more, for what others had pending then. All cells come along if the origin
    /// may have lost them, and always all sub-cells of an exact window: hits of others count just as much in those that this
    /// process has no news of.
    pub(crate) fn pending_cells(
        &self,
        counter: &Counter,
        terms: &Terms,
        is_wanted: bool,
        now_ms: u64,
    ) -> SmallVec<[CellUpdate; 2]> {
        let has_refund = |at: usize| self.refunds().is_some_and(|all| all[at].asked > all[at].acked);
        let has_news = |at: usize| self.own.get(at).pending() > 0 || has_refund(at);
        let oldest = (0..self.own.cells()).rev().find(|at| has_news(*at)).unwrap_or(0);
        let counting = counter.cells_that_count(terms);
        let least = match is_wanted || counter.is_divided() || self.pending_refunds() || !self.is_seated() {
            true => counting,
            false if self.marks & CELLS_SETTLED != 0 => 1,
            false => counting.min(2),
        };
        self.updates(counter, terms, least.max(oldest + 1), now_ms)
    }

    fn updates(&self, counter: &Counter, terms: &Terms, cells: usize, now_ms: u64) -> SmallVec<[CellUpdate; 2]> {
        let of_cell = |(at, count): (usize, OwnCount)| {
            let Refunds { asked, acked: asked_acked, .. } = self.refunds().map_or(Refunds::default(), |all| all[at]);
            let (floor, shape) = self.known(counter, terms, at, &count, now_ms);
            let (own, acked, epoch) = (count.own, count.acked(), count.epoch);
            CellUpdate { is_seated: count.is_seated(), own, acked, epoch, floor, asked, asked_acked, shape }
        };
        self.own.all().enumerate().take(cells).map(of_cell).collect()
    }

    /// What is known of a cell without this process's pending hits: its floor, and what only a window or a bucket has.
    fn known(&self, counter: &Counter, terms: &Terms, back: usize, count: &OwnCount, now_ms: u64) -> (u64, CellShape) {
        let sequence = counter.sequence().saturating_sub(back as u64);
        let of_window = |cell: &Cell, ends_at_ms: u64| {
            let foreign = self.foreign();
            let window = WindowUpdate {
                sequence,
                refunds_floor: cell.refunds,
                ttl_ms: ends_at_ms.saturating_sub(now_ms).saturating_add(terms.window_ms.min(GRACE_MS_MAX)),
                row: foreign.map_or(Counts::default(), |foreign| foreign.row(sequence)),
                foreign: foreign.map_or(0, |foreign| foreign.others(sequence)),
            };
            let floor = cell.hits.saturating_sub(count.own).saturating_add(count.acked());
            (floor, CellShape::Window(window))
        };
        match counter {
            Counter::Windowed(cells) => {
                let cell = if back == 0 { &cells.current } else { &cells.previous };
                of_window(cell, sequence.saturating_add(2).saturating_mul(terms.window_ms))
            }
            Counter::Exact(cells) => {
                of_window(&cells.cell(sequence), cells.cell_expires_at_ms(sequence, terms.window_ms))
            }
            Counter::Gcra(bucket) => {
                let rate = rate(terms);
                let (floor, floor_rest) = bucket.level_without(count.pending(), &rate);
                (floor, CellShape::Bucket(BucketUpdate { floor_rest, level: bucket.hits_within(&rate) }))
            }
        }
    }
}
