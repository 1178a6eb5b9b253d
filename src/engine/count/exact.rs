//! The exact window: sixteenths of the window, the current one and the sixteen before counted in full.
//!
//! Together they cover the interval of length D that ends now, so no such interval ever holds more than the limit. The price
//! is that a hit counts for up to D/16 longer than D, and that a key has seventeen counters. Most keys count only to a few
//! in each: a byte a counter is enough for them, which takes no more room than two windows do.

use crate::engine::count::window::Cell;
use crate::engine::table::weight::heap_bytes;

/// Sub-cells in a window.
pub(crate) const PARTS: u64 = 16;
/// Sub-cells that count: the current one and a whole window before it.
pub(crate) const CELLS: usize = PARTS as usize + 1;

/// The sub-cells of a key. Cell `i`, counted from the epoch, lives at `i % 17`; those from `newest - 16` on are live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubCells {
    newest: u64,
    counts: SubCounts,
}

/// The counts of the sub-cells, in as little room as they fit into.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SubCounts {
    /// Hits alone: up to 255 in each sub-cell, and nothing was given back.
    Few([u8; CELLS]),
    Many(Box<[Cell; CELLS]>),
}

impl SubCounts {
    const NONE: SubCounts = SubCounts::Few([0; CELLS]);

    fn get(&self, slot: usize) -> Cell {
        match self {
            SubCounts::Few(hits) => Cell { hits: hits[slot].into(), refunds: 0 },
            SubCounts::Many(cells) => cells[slot],
        }
    }

    fn all(&self) -> impl Iterator<Item = Cell> {
        (0..CELLS).map(|slot| self.get(slot))
    }

    fn set(&mut self, slot: usize, cell: Cell) {
        match (&mut *self, few(&cell)) {
            (SubCounts::Few(all), Some(hits)) => all[slot] = hits,
            (SubCounts::Few(_), None) => {
                let mut cells = Box::new(std::array::from_fn(|slot| self.get(slot)));
                cells[slot] = cell;
                *self = SubCounts::Many(cells);
            }
            (SubCounts::Many(cells), _) => cells[slot] = cell,
        }
    }

    /// Goes back to bytes, if all counts fit into them again.
    fn shrink(&mut self) {
        let SubCounts::Many(cells) = self else { return };
        let mut all = [0; CELLS];
        for (hits, cell) in all.iter_mut().zip(cells.iter()) {
            let Some(few) = few(cell) else { return };
            *hits = few;
        }
        *self = SubCounts::Few(all);
    }
}

/// A sub-cell in a byte, if it fits.
fn few(cell: &Cell) -> Option<u8> {
    u8::try_from(cell.hits).ok().filter(|_| cell.refunds == 0)
}

/// The window that a sub-cell is in, counted as windows are, from the epoch.
pub(crate) fn window_of(sub_cell: u64) -> u64 {
    sub_cell.saturating_sub(CELLS as u64) / PARTS
}

/// The number of the sub-cell that a moment is in. Windows need not divide by sixteen: `floor(16 t / D)` is exact. Numbers
/// start at 17, so that the sixteen before the first have numbers too.
fn cell_at(now_ms: u64, window_ms: u64) -> u64 {
    (u128::from(now_ms) * u128::from(PARTS) / u128::from(window_ms)) as u64 + CELLS as u64
}

/// The first moment of a sub-cell.
fn starts_at_ms(cell: u64, window_ms: u64) -> u64 {
    let product = u128::from(cell.saturating_sub(CELLS as u64)) * u128::from(window_ms);
    u64::try_from(product.div_ceil(u128::from(PARTS))).unwrap_or(u64::MAX)
}

/// Where a sub-cell stands in the list.
fn slot(cell: u64) -> usize {
    (cell % CELLS as u64) as usize
}

impl SubCells {
    pub(crate) fn new(now_ms: u64, window_ms: u64) -> SubCells {
        SubCells { newest: cell_at(now_ms, window_ms), counts: SubCounts::NONE }
    }

    /// Moves to the sub-cell of `now_ms` and returns the key's own time. Treats a clock that goes back as
    /// [`super::window::Cells::rotate`] does.
    pub(crate) fn rotate(&mut self, now_ms: u64, window_ms: u64) -> u64 {
        let cell = cell_at(now_ms, window_ms);
        if cell < self.newest {
            let start_ms = starts_at_ms(self.newest, window_ms);
            if now_ms.saturating_add(window_ms) >= start_ms {
                return start_ms;
            }
            // The clock was wrong and is right now: every count keeps its age.
            let ages: [Cell; CELLS] = std::array::from_fn(|age| self.cell(self.newest - age as u64));
            for (age, aged) in ages.into_iter().enumerate() {
                self.counts.set(slot(cell - age as u64), aged);
            }
            self.newest = cell;
            return now_ms;
        }
        if cell - self.newest >= CELLS as u64 {
            self.counts = SubCounts::NONE;
        } else if cell > self.newest {
            (self.newest + 1..=cell).for_each(|gone| self.counts.set(slot(gone), Cell::default()));
            self.counts.shrink();
        }
        self.newest = cell;
        now_ms
    }

    /// The number of the current sub-cell.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    pub(crate) fn newest_began_ms(&self, window_ms: u64) -> u64 {
        starts_at_ms(self.newest, window_ms)
    }

    /// The sub-cell with this number, which must be live.
    pub(crate) fn cell(&self, cell: u64) -> Cell {
        self.counts.get(slot(cell))
    }

    /// Changes the sub-cell that is so many places before the newest.
    pub(crate) fn merge<T>(&mut self, back: usize, change: impl FnOnce(&mut Cell) -> T) -> T {
        let slot = slot(self.newest - back as u64);
        let mut cell = self.counts.get(slot);
        let changed = change(&mut cell);
        self.counts.set(slot, cell);
        changed
    }

    /// What counts against the limit: all live sub-cells in full.
    pub(crate) fn effective(&self) -> u64 {
        match &self.counts {
            SubCounts::Few(hits) => hits.iter().map(|hits| u64::from(*hits)).sum(),
            SubCounts::Many(cells) => cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(cell.count())),
        }
    }

    /// How many bytes it takes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match &self.counts {
            SubCounts::Few(_) => 0,
            SubCounts::Many(_) => heap_bytes(size_of::<[Cell; CELLS]>()),
        }
    }

    /// The first moment at which so many hits are admitted if nothing else arrives; `None` if they never are.
    pub(crate) fn admits_at(&self, now_ms: u64, window_ms: u64, limit: u64, hits: u64) -> Option<u64> {
        let room = limit.checked_sub(hits)?;
        let mut left = self.counts.all().fold(0u128, |sum, cell| sum + u128::from(cell.count()));
        if left <= u128::from(room) {
            return Some(now_ms);
        }
        // The oldest goes first; the newest is gone 17 sub-cells after it began.
        for age in (0..CELLS as u64).rev() {
            let cell = self.newest - age;
            left -= u128::from(self.cell(cell).count());
            if left <= u128::from(room) {
                return Some(starts_at_ms(cell + CELLS as u64, window_ms).max(now_ms));
            }
        }
        None
    }

    pub(crate) fn add(&mut self, hits: u64) {
        self.merge(0, |cell| cell.add(hits));
    }

    /// Takes hits back, from the newest sub-cell backwards. Returns the excess, which is lost.
    pub(crate) fn refund(&mut self, mut hits: u64) -> u64 {
        for back in 0..CELLS {
            hits = self.merge(back, |cell| cell.refund(hits));
        }
        hits
    }

    pub(crate) fn expires_at_ms(&self, window_ms: u64) -> u64 {
        self.cell_expires_at_ms(self.newest, window_ms)
    }

    /// From here on a sub-cell does not count any more.
    pub(crate) fn cell_expires_at_ms(&self, cell: u64, window_ms: u64) -> u64 {
        starts_at_ms(cell + CELLS as u64, window_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cells_next_to_the_epoch_do_not_collide() {
        let mut key = SubCells::new(0, 1600);
        key.add(3);
        assert_eq!(key.rotate(1599, 1600), 1599);
        assert_eq!(key.effective(), 3);
        assert_eq!(key.admits_at(1599, 1600, 3, 1), Some(1700));
    }

    #[test]
    fn a_clock_that_was_wrong_keeps_the_counts() {
        let mut key = SubCells::new(10_000_000, 16_000);
        key.add(5);
        key.rotate(10_001_000, 16_000);
        key.add(2);
        assert_eq!(key.rotate(9_990_000, 16_000), 10_001_000, "a little behind: the key waits");
        assert_eq!(key.rotate(5_000_000, 16_000), 5_000_000);
        assert_eq!(key.effective(), 7);
        key.rotate(5_016_000, 16_000);
        assert_eq!(key.effective(), 2, "the older five leave first");
    }

    #[test]
    fn a_key_of_few_hits_takes_no_room_of_its_own() {
        assert_eq!(size_of::<SubCells>(), 32);
        let mut key = SubCells::new(1_000_000, 16_000);
        key.add(255);
        assert_eq!((key.heap_bytes(), key.effective()), (0, 255));
        key.add(1);
        assert!(key.heap_bytes() > size_of::<[Cell; CELLS]>());
        key.rotate(1_001_000, 16_000);
        key.add(1);
        assert_eq!(key.refund(1), 0);
        assert_eq!(key.effective(), 256);
        // The hits that were too many, and those that were given back, count no more.
        key.rotate(1_018_000, 16_000);
        assert_eq!((key.heap_bytes(), key.effective()), (0, 0));
    }

    proptest! {
        /// No interval of length D holds more than the limit, and the retry time is the first that passes.
        #[test]
        fn no_interval_exceeds_the_limit(
            steps in prop::collection::vec((0u64..900, 0u64..4), 1..120),
            limit in 1u64..12,
            window_ms in 1000u64..3000,
            start_ms in 0u64..100_000,
        ) {
            let mut key = SubCells::new(start_ms, window_ms);
            let mut log: Vec<(u64, u64)> = Vec::new();
            let mut now_ms = start_ms;
            for (wait_ms, hits) in steps {
                now_ms += wait_ms;
                key.rotate(now_ms, window_ms);
                if key.effective() + hits <= limit {
                    key.add(hits);
                    log.push((now_ms, hits));
                    let inside: u64 = log.iter().filter(|(at, _)| at + window_ms > now_ms).map(|(_, hits)| hits).sum();
                    prop_assert!(inside <= limit);
                }
                let admitted = |at_ms: u64| {
                    let mut later = key.clone();
                    later.rotate(at_ms, window_ms);
                    later.effective() + hits <= limit
                };
                let expected = (hits <= limit).then(|| (now_ms..).find(|at_ms| admitted(*at_ms))).flatten();
                prop_assert_eq!(key.admits_at(now_ms, window_ms, limit, hits), expected);
            }
        }
    }
}
