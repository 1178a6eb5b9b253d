//! What a process tells its store about the cells of a key.

use smallvec::SmallVec;

use crate::engine::count::counter::{Counter, rate};
use crate::engine::count::exact::PARTS;
use crate::engine::count::window::Cell;
use crate::engine::table::cell::{BucketUpdate, CellShape, CellUpdate, WindowUpdate};
use crate::engine::table::foreign::Counts;
use crate::engine::table::own_counts::OwnCount;
use crate::engine::table::regional_part::{CELLS_SETTLED, Refunds, RegionalPart};
use crate::rules::limit::Terms;

/// Clocks differ, so a store keeps a cell for one more window after it has stopped counting, but not for longer than this.
const GRACE_MS_MAX: u64 = 60_000;

impl RegionalPart {
    /// What is told about all cells that count against the limit, the newest first. Of an exact window those that this process
    /// has something in, or does not know.
    pub(crate) fn judged_cells(&self, counter: &Counter, terms: &Terms, now_ms: u64) -> SmallVec<[CellUpdate; 2]> {
        let counting = counter.cells_that_count(terms);
        self.updates(counter, terms, counting, now_ms, |at| self.is_told(at) || !self.own.get(at).is_seated())
    }

    /// What is told about the cells that have something to say: from the newest down to the oldest with something
    /// pending. After a rollover the one before comes along once more, for what others had pending then. All of them if
    /// the origin may have lost them. Of an exact window only those with something pending: the origin answers all of its
    /// sub-cells anyway.
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
        let is_all = is_wanted || self.pending_refunds() || !self.is_seated();
        let least = match is_all {
            true => counting,
            false if self.marks & CELLS_SETTLED != 0 => 1,
            false => counting.min(2),
        };
        let is_known = |at: usize| self.is_told(at) || counter.has_hits(at);
        self.updates(
            counter,
            terms,
            least.max(oldest + 1),
            now_ms,
            |at| if is_all { is_known(at) } else { has_news(at) },
        )
    }

    /// Whether the process has told, or is still to tell, anything of a cell.
    fn is_told(&self, at: usize) -> bool {
        self.own.get(at).own > 0 || self.refunds().is_some_and(|all| all[at].asked > 0)
    }

    /// Of an exact window only the newest sub-cell and those that are worth it.
    fn updates(
        &self,
        counter: &Counter,
        terms: &Terms,
        cells: usize,
        now_ms: u64,
        is_worth_it: impl Fn(usize) -> bool,
    ) -> SmallVec<[CellUpdate; 2]> {
        let is_divided = counter.is_divided();
        let of_cell = |(at, count): (usize, OwnCount)| {
            let Refunds { asked, acked: asked_acked, .. } = self.refunds().map_or(Refunds::default(), |all| all[at]);
            let (floor, shape) = self.known(counter, terms, at, &count, now_ms);
            let (own, acked, epoch) = (count.own, count.acked(), count.epoch);
            CellUpdate { is_seated: count.is_seated(), own, acked, epoch, floor, asked, asked_acked, shape }
        };
        let all = self.own.all().enumerate().take(cells);
        all.filter(|(at, _)| *at == 0 || !is_divided || is_worth_it(*at)).map(of_cell).collect()
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
                // The block of a sub-cell is kept as long as the last one in it.
                let last = sequence | (PARTS - 1);
                of_window(&cells.cell(sequence), cells.cell_expires_at_ms(last, terms.window_ms))
            }
            Counter::Gcra(bucket) => {
                let rate = rate(terms);
                let (floor, floor_rest) = bucket.level_without(count.pending(), &rate);
                (
                    floor,
                    CellShape::Bucket(BucketUpdate {
                        floor_rest,
                        level: bucket.hits_to_tell(&rate, self.pending_for_ms(bucket)),
                    }),
                )
            }
        }
    }
}
