//! What of a counter's cells this process has added, cell by cell, and what the origin knows of it.
//!
//! A cell is *seated* when the process knows its own field at the origin: because it was told, or because it has never
//! held the key before. A key that was given up and comes back is not: it has to read its field before its totals mean
//! anything.

use smallvec::SmallVec;

use crate::engine::count::counter::Counter;
use crate::engine::count::exact::CELLS as EXACT_CELLS;
use crate::engine::table::weight::heap_bytes;

/// The largest count that is told: scripts at the origin count exactly up to here.
pub const COUNT_MAX: u64 = (1 << 53) - 1;

/// Stands in `acked` of a cell that is not seated. Above any count.
const UNSEATED: u64 = u64::MAX;

/// What this process has added to one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// All that this process has accepted in the cell; while it is not seated, what the origin has not heard of.
    pub own: u64,
    /// The highest total that the origin has answered with. Above `own` when a check arrived whose caller had given up.
    pub acked: u64,
    /// The cell's epoch at the origin, 0 if it is not known.
    pub epoch: u64,
}

impl Share {
    /// A cell that this process may have held before, and forgotten.
    pub const UNKNOWN: Share = Share { own: 0, acked: UNSEATED, epoch: 0 };
    /// A cell that this process has added nothing to: its field can't be there yet.
    pub const BEGUN: Share = Share { own: 0, acked: 0, epoch: 0 };

    pub fn is_seated(&self) -> bool {
        self.acked != UNSEATED
    }

    pub fn acked(&self) -> u64 {
        if self.is_seated() { self.acked } else { 0 }
    }

    pub fn pending(&self) -> u64 {
        self.own.saturating_sub(self.acked())
    }

    pub fn add(&mut self, hits: u64) {
        self.own = self.own.saturating_add(hits).min(COUNT_MAX);
    }
}

/// The parts of a counter's cells, the newest first.
#[derive(Clone, Debug)]
pub enum Shares {
    Windows([Share; 2]),
    Exact(SubShares),
    /// `version` is everything that was ever added at the origin: it tells a late answer from a new one.
    Bucket {
        share: Share,
        version: u64,
        /// When it would be empty if all other processes had done as this one since the origin last answered. 0: nobody
        /// has asked.
        held_until_ns: u64,
    },
}

impl Shares {
    /// `is_first`: this process has certainly never held the key before, so it has no field at the origin.
    pub fn new(counter: &Counter, is_first: bool) -> Shares {
        let share = if is_first { Share::BEGUN } else { Share::UNKNOWN };
        match counter {
            Counter::Windowed(_) => Shares::Windows([share; 2]),
            Counter::Exact(_) => Shares::Exact(SubShares::new(is_first)),
            Counter::Gcra(_) => Shares::Bucket { share, version: 0, held_until_ns: 0 },
        }
    }

    pub fn cells(&self) -> usize {
        match self {
            Shares::Windows(_) => 2,
            Shares::Exact(_) => EXACT_CELLS,
            Shares::Bucket { .. } => 1,
        }
    }

    pub fn get(&self, at: usize) -> Share {
        match self {
            Shares::Windows(shares) => shares[at],
            Shares::Exact(shares) => shares.get(at),
            Shares::Bucket { share, .. } => *share,
        }
    }

    pub fn all(&self) -> impl DoubleEndedIterator<Item = Share> + ExactSizeIterator {
        (0..self.cells()).map(|at| self.get(at))
    }

    #[inline]
    pub fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut Share) -> T) -> T {
        match self {
            Shares::Windows(shares) => change(&mut shares[at]),
            Shares::Exact(shares) => shares.change(at, change),
            Shares::Bucket { share, .. } => change(share),
        }
    }

    pub fn change_all(&mut self, mut change: impl FnMut(usize, &mut Share)) {
        (0..self.cells()).for_each(|at| self.change(at, |share| change(at, share)));
    }

    /// Moves on by so many cells: those that begin now are seated, since this process has added nothing to them.
    pub fn advance(&mut self, steps: usize) {
        let steps = steps.min(self.cells());
        match self {
            Shares::Windows(shares) => {
                shares.rotate_right(steps);
                shares[..steps].fill(Share::BEGUN);
            }
            Shares::Exact(shares) => shares.advance(steps),
            Shares::Bucket { share, .. } => *share = if steps > 0 { Share::BEGUN } else { *share },
        }
    }

    /// Hits that the origin does not know of.
    #[inline]
    pub fn pending(&self) -> u64 {
        match self {
            Shares::Windows([newest, before]) => newest.pending().saturating_add(before.pending()),
            Shares::Exact(shares) => shares.pending(),
            Shares::Bucket { share, .. } => share.pending(),
        }
    }

    #[inline]
    pub fn are_seated(&self) -> bool {
        match self {
            Shares::Windows(shares) => shares.iter().all(Share::is_seated),
            Shares::Exact(shares) => shares.are_seated(),
            Shares::Bucket { share, .. } => share.is_seated(),
        }
    }

    /// What they take beside what they are part of.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Shares::Exact(shares) => shares.heap_bytes(),
            Shares::Windows(_) | Shares::Bucket { .. } => 0,
        }
    }
}

/// The parts of seventeen sub-cells. Few keys are used in all of them: only those are kept that have something to say.
#[derive(Clone, Debug)]
pub struct SubShares {
    /// A bit for each sub-cell that is kept, the newest lowest; their parts stand in this order.
    kept: u32,
    /// A bit for each of the others that is [`Share::UNKNOWN`]; the rest is [`Share::BEGUN`].
    unknown: u32,
    shares: SmallVec<[Share; 1]>,
}

impl SubShares {
    const ALL: u32 = (1 << EXACT_CELLS) - 1;
    /// So many more are made room for when there is none: seventeen fill the last one to the end.
    const GROWTH: usize = 4;

    fn new(is_first: bool) -> SubShares {
        SubShares { kept: 0, unknown: if is_first { 0 } else { SubShares::ALL }, shares: SmallVec::new() }
    }

    /// Where the part of a sub-cell stands, or would stand.
    fn place(&self, at: usize) -> usize {
        (self.kept & ((1 << at) - 1)).count_ones() as usize
    }

    fn get(&self, at: usize) -> Share {
        match (self.kept >> at & 1, self.unknown >> at & 1) {
            (1, _) => self.shares[self.place(at)],
            (_, 1) => Share::UNKNOWN,
            _ => Share::BEGUN,
        }
    }

    fn change<T>(&mut self, at: usize, change: impl FnOnce(&mut Share) -> T) -> T {
        let mut share = self.get(at);
        let changed = change(&mut share);
        self.set(at, share);
        changed
    }

    fn set(&mut self, at: usize, share: Share) {
        let (bit, place) = (1 << at, self.place(at));
        let was_kept = self.kept & bit != 0;
        let is_kept = share != Share::BEGUN && share != Share::UNKNOWN;
        self.kept = self.kept & !bit | if is_kept { bit } else { 0 };
        self.unknown = self.unknown & !bit | if share == Share::UNKNOWN { bit } else { 0 };
        match (was_kept, is_kept) {
            (true, true) => self.shares[place] = share,
            (true, false) => {
                self.shares.remove(place);
            }
            (false, true) => {
                if self.shares.len() == self.shares.capacity() {
                    self.shares.reserve_exact(SubShares::GROWTH);
                }
                self.shares.insert(place, share);
            }
            (false, false) => {}
        }
    }

    fn advance(&mut self, steps: usize) {
        self.kept = self.kept << steps & SubShares::ALL;
        self.unknown = self.unknown << steps & SubShares::ALL;
        self.shares.truncate(self.kept.count_ones() as usize);
        if self.shares.spilled() && self.shares.len() <= self.shares.inline_size() {
            self.shares.shrink_to_fit();
        }
    }

    fn pending(&self) -> u64 {
        self.shares.iter().fold(0, |sum, share| sum.saturating_add(share.pending()))
    }

    fn are_seated(&self) -> bool {
        self.unknown == 0 && self.shares.iter().all(Share::is_seated)
    }

    fn heap_bytes(&self) -> usize {
        if self.shares.spilled() { heap_bytes(self.shares.capacity() * size_of::<Share>()) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share() -> impl Strategy<Value = Share> {
        let some = (0u64..3, prop_oneof![Just(UNSEATED), 0u64..3], 0u64..3);
        prop_oneof![
            Just(Share::BEGUN),
            Just(Share::UNKNOWN),
            some.prop_map(|(own, acked, epoch)| Share { own, acked, epoch }),
        ]
    }

    #[test]
    fn parts_of_one_sub_cell_take_no_room_of_their_own() {
        assert!(size_of::<SubShares>() <= size_of::<[Share; 2]>());
        let mut shares = SubShares::new(false);
        shares.change(0, |share| share.own = 5);
        assert_eq!(shares.heap_bytes(), 0);
        (0..EXACT_CELLS).for_each(|at| shares.change(at, |share| share.own = 5));
        assert_eq!(shares.heap_bytes(), heap_bytes(EXACT_CELLS * size_of::<Share>()));
        shares.advance(EXACT_CELLS - 1);
        assert_eq!((shares.heap_bytes(), shares.pending()), (0, 5));
    }

    proptest! {
        /// As if all seventeen were kept one after the other.
        #[test]
        fn sub_cells_that_have_nothing_to_say_are_there_all_the_same(
            is_first: bool,
            steps in prop::collection::vec((0usize..EXACT_CELLS, share(), 0usize..3, 0usize..30), 1..60),
        ) {
            let mut plain = [if is_first { Share::BEGUN } else { Share::UNKNOWN }; EXACT_CELLS];
            let mut shares = SubShares::new(is_first);
            for (at, share, turn, steps) in steps {
                if turn == 0 {
                    let steps = steps.min(EXACT_CELLS);
                    plain.rotate_right(steps);
                    plain[..steps].fill(Share::BEGUN);
                    shares.advance(steps);
                } else {
                    plain[at] = share;
                    shares.change(at, |kept| *kept = share);
                }
                let all: Vec<Share> = (0..EXACT_CELLS).map(|at| shares.get(at)).collect();
                prop_assert_eq!(&all[..], &plain[..]);
                prop_assert_eq!(shares.pending(), plain.iter().map(Share::pending).sum::<u64>());
                prop_assert_eq!(shares.are_seated(), plain.iter().all(Share::is_seated));
                prop_assert!(shares.heap_bytes() <= heap_bytes(EXACT_CELLS * size_of::<Share>()));
            }
        }
    }
}
