//! What this process has added to a counter, cell by cell, and what the store knows of it.
//!
//! A cell is *seated* when the process knows its own field at the origin: because it was told, or because it has never
//! held the key before. A key that was given up and comes back is not seated: the process has to read its field before its
//! totals mean anything.

use smallvec::SmallVec;

use crate::engine::count::counter::Counter;
use crate::engine::count::exact::CELLS as EXACT_CELLS;
use crate::engine::table::cell::COUNT_MAX;
use crate::engine::table::weight::heap_bytes;

/// Stands in `acked` of a cell that is not seated. Above any count.
const UNSEATED: u64 = u64::MAX;

/// What this process has added to one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnCount {
    /// All hits that this process has accepted in the cell; while it is not seated, those that the origin has not heard of.
    pub own: u64,
    /// The highest total that the origin has answered with. Above `own` when a check arrived whose caller had given up.
    pub acked: u64,
    /// The cell's epoch at the origin, 0 if it is not known.
    pub epoch: u64,
}

impl OwnCount {
    /// A cell that this process may have held before, and forgotten.
    pub(super) const UNKNOWN: OwnCount = OwnCount { own: 0, acked: UNSEATED, epoch: 0 };
    /// A cell that this process has added nothing to: its field can't be there yet.
    pub(super) const BEGUN: OwnCount = OwnCount { own: 0, acked: 0, epoch: 0 };

    pub(super) fn is_seated(&self) -> bool {
        self.acked != UNSEATED
    }

    pub(super) fn acked(&self) -> u64 {
        if self.is_seated() { self.acked } else { 0 }
    }

    pub(super) fn pending(&self) -> u64 {
        self.own.saturating_sub(self.acked())
    }

    pub(super) fn add(&mut self, hits: u64) {
        self.own = self.own.saturating_add(hits).min(COUNT_MAX);
    }
}

/// What this process has added to each of a counter's cells, the newest first.
#[derive(Clone, Debug)]
pub(super) enum OwnCounts {
    Windows([OwnCount; 2]),
    Exact(SubCellCounts),
    Bucket {
        count: OwnCount,
        /// Everything that was ever added at the origin, as it last told: tells a late answer from a new one.
        version: u64,
        /// When the bucket would be empty if all other processes had done as this one since the origin last answered. 0 if
        /// that is not assumed.
        held_until_ns: u64,
        /// When the first of its pending hits came.
        pending_since_ms: u64,
    },
}

impl OwnCounts {
    /// `is_first`: this process has certainly never held the key before, so it has no field at the origin.
    pub(super) fn new(counter: &Counter, is_first: bool) -> OwnCounts {
        let count = if is_first { OwnCount::BEGUN } else { OwnCount::UNKNOWN };
        match counter {
            Counter::Windowed(_) => OwnCounts::Windows([count; 2]),
            Counter::Exact(_) => OwnCounts::Exact(SubCellCounts::new(is_first)),
            Counter::Gcra(_) => OwnCounts::Bucket { count, version: 0, held_until_ns: 0, pending_since_ms: 0 },
        }
    }

    pub(super) fn cells(&self) -> usize {
        match self {
            OwnCounts::Windows(_) => 2,
            OwnCounts::Exact(_) => EXACT_CELLS,
            OwnCounts::Bucket { .. } => 1,
        }
    }

    pub(super) fn get(&self, at: usize) -> OwnCount {
        match self {
            OwnCounts::Windows(counts) => counts[at],
            OwnCounts::Exact(counts) => counts.get(at),
            OwnCounts::Bucket { count, .. } => *count,
        }
    }

    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = OwnCount> + ExactSizeIterator {
        (0..self.cells()).map(|at| self.get(at))
    }

    #[inline]
    pub(super) fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut OwnCount) -> T) -> T {
        match self {
            OwnCounts::Windows(counts) => change(&mut counts[at]),
            OwnCounts::Exact(counts) => counts.change(at, change),
            OwnCounts::Bucket { count, .. } => change(count),
        }
    }

    pub(super) fn change_all(&mut self, mut change: impl FnMut(usize, &mut OwnCount)) {
        (0..self.cells()).for_each(|at| self.change(at, |count| change(at, count)));
    }

    /// Moves on by so many cells. Those that begin now are seated, since this process has added nothing to them.
    pub(super) fn advance(&mut self, steps: usize) {
        let steps = steps.min(self.cells());
        match self {
            OwnCounts::Windows(counts) => {
                counts.rotate_right(steps);
                counts[..steps].fill(OwnCount::BEGUN);
            }
            OwnCounts::Exact(counts) => counts.advance(steps),
            OwnCounts::Bucket { count, .. } => *count = if steps > 0 { OwnCount::BEGUN } else { *count },
        }
    }

    /// Hits that the origin does not know of.
    #[inline]
    pub(super) fn pending(&self) -> u64 {
        match self {
            OwnCounts::Windows([newest, before]) => newest.pending().saturating_add(before.pending()),
            OwnCounts::Exact(counts) => counts.pending(),
            OwnCounts::Bucket { count, .. } => count.pending(),
        }
    }

    /// Of those, the hits in so many of the newest cells.
    #[inline]
    pub(super) fn pending_in(&self, cells: usize) -> u64 {
        match self {
            OwnCounts::Windows([newest, _]) if cells == 1 => newest.pending(),
            OwnCounts::Windows(_) | OwnCounts::Exact(_) | OwnCounts::Bucket { .. } => self.pending(),
        }
    }

    #[inline]
    pub(super) fn are_seated(&self) -> bool {
        match self {
            OwnCounts::Windows(counts) => counts.iter().all(OwnCount::is_seated),
            OwnCounts::Exact(counts) => counts.are_seated(),
            OwnCounts::Bucket { count, .. } => count.is_seated(),
        }
    }

    /// How many bytes they take on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            OwnCounts::Exact(counts) => counts.heap_bytes(),
            OwnCounts::Windows(_) | OwnCounts::Bucket { .. } => 0,
        }
    }
}

/// What this process has added to each of seventeen sub-cells. Few keys are used in all of them, so only counts that say
/// something are kept.
#[derive(Clone, Debug)]
pub(super) struct SubCellCounts {
    /// A bit for each sub-cell whose count is kept, the newest lowest; the counts stand in this order.
    kept: u32,
    /// A bit for each other sub-cell that is [`OwnCount::UNKNOWN`]; the rest are [`OwnCount::BEGUN`].
    unknown: u32,
    counts: SmallVec<[OwnCount; 1]>,
}

impl SubCellCounts {
    const ALL: u32 = (1 << EXACT_CELLS) - 1;
    /// How many places are added when there is none left: seventeen counts then fill the room exactly.
    const GROWTH: usize = 4;

    fn new(is_first: bool) -> SubCellCounts {
        SubCellCounts { kept: 0, unknown: if is_first { 0 } else { SubCellCounts::ALL }, counts: SmallVec::new() }
    }

    /// Where the count of a sub-cell stands, or would stand.
    fn place(&self, at: usize) -> usize {
        (self.kept & ((1 << at) - 1)).count_ones() as usize
    }

    fn get(&self, at: usize) -> OwnCount {
        match (self.kept >> at & 1, self.unknown >> at & 1) {
            (1, _) => self.counts[self.place(at)],
            (_, 1) => OwnCount::UNKNOWN,
            _ => OwnCount::BEGUN,
        }
    }

    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut OwnCount) -> T) -> T {
        let mut count = self.get(at);
        let changed = change(&mut count);
        self.set(at, count);
        changed
    }

    fn set(&mut self, at: usize, count: OwnCount) {
        let (bit, place) = (1 << at, self.place(at));
        let was_kept = self.kept & bit != 0;
        let is_kept = count != OwnCount::BEGUN && count != OwnCount::UNKNOWN;
        self.kept = self.kept & !bit | if is_kept { bit } else { 0 };
        self.unknown = self.unknown & !bit | if count == OwnCount::UNKNOWN { bit } else { 0 };
        match (was_kept, is_kept) {
            (true, true) => self.counts[place] = count,
            (true, false) => {
                self.counts.remove(place);
            }
            (false, true) => {
                if self.counts.len() == self.counts.capacity() {
                    self.counts.reserve_exact(SubCellCounts::GROWTH);
                }
                self.counts.insert(place, count);
            }
            (false, false) => {}
        }
    }

    fn advance(&mut self, steps: usize) {
        self.kept = self.kept << steps & SubCellCounts::ALL;
        self.unknown = self.unknown << steps & SubCellCounts::ALL;
        self.counts.truncate(self.kept.count_ones() as usize);
        if self.counts.spilled() && self.counts.len() <= self.counts.inline_size() {
            self.counts.shrink_to_fit();
        }
    }

    fn pending(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(count.pending()))
    }

    fn are_seated(&self) -> bool {
        self.unknown == 0 && self.counts.iter().all(OwnCount::is_seated)
    }

    fn heap_bytes(&self) -> usize {
        if self.counts.spilled() { heap_bytes(self.counts.capacity() * size_of::<OwnCount>()) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count() -> impl Strategy<Value = OwnCount> {
        let some = (0u64..3, prop_oneof![Just(UNSEATED), 0u64..3], 0u64..3);
        prop_oneof![
            Just(OwnCount::BEGUN),
            Just(OwnCount::UNKNOWN),
            some.prop_map(|(own, acked, epoch)| OwnCount { own, acked, epoch }),
        ]
    }

    #[test]
    fn a_count_of_one_sub_cell_takes_no_room_of_its_own() {
        assert!(size_of::<SubCellCounts>() <= size_of::<[OwnCount; 2]>());
        let mut counts = SubCellCounts::new(false);
        counts.change(0, |count| count.own = 5);
        assert_eq!(counts.heap_bytes(), 0);
        (0..EXACT_CELLS).for_each(|at| counts.change(at, |count| count.own = 5));
        assert_eq!(counts.heap_bytes(), heap_bytes(EXACT_CELLS * size_of::<OwnCount>()));
        counts.advance(EXACT_CELLS - 1);
        assert_eq!((counts.heap_bytes(), counts.pending()), (0, 5));
    }

    proptest! {
        /// Behaves as if all seventeen were kept one after the other.
        #[test]
        fn sub_cells_that_have_nothing_to_say_are_there_all_the_same(
            is_first: bool,
            steps in prop::collection::vec((0usize..EXACT_CELLS, count(), 0usize..3, 0usize..30), 1..60),
        ) {
            let mut plain = [if is_first { OwnCount::BEGUN } else { OwnCount::UNKNOWN }; EXACT_CELLS];
            let mut counts = SubCellCounts::new(is_first);
            for (at, count, turn, steps) in steps {
                if turn == 0 {
                    let steps = steps.min(EXACT_CELLS);
                    plain.rotate_right(steps);
                    plain[..steps].fill(OwnCount::BEGUN);
                    counts.advance(steps);
                } else {
                    plain[at] = count;
                    counts.change(at, |kept| *kept = count);
                }
                let all: Vec<OwnCount> = (0..EXACT_CELLS).map(|at| counts.get(at)).collect();
                prop_assert_eq!(&all[..], &plain[..]);
                prop_assert_eq!(counts.pending(), plain.iter().map(OwnCount::pending).sum::<u64>());
                prop_assert_eq!(counts.are_seated(), plain.iter().all(OwnCount::is_seated));
                prop_assert!(counts.heap_bytes() <= heap_bytes(EXACT_CELLS * size_of::<OwnCount>()));
            }
        }
    }
}
