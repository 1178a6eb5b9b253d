//! A key's part in the world: what other regions have counted, and what this one has told them.
//!
//! For each cell of a key it keeps the sum of the other regions' rows, this region's own row, and what this process last
//! published. The rows of other regions count on top of the region's count. The own row is only a lower bound of that count,
//! for a process that has lost its origin: it never becomes part of what is told or published. Hits that the process has
//! accepted since it first saw the row can't be in it, and count on top of that bound.

use std::num::NonZeroU64;

use crate::engine::count::counter::{Counter, Look};
use crate::engine::count::window::{Cell, Cells, PreviousWeight};
use crate::engine::table::weight::heap_bytes;
use crate::rules::limit::Terms;

/// How many cells are kept: the newest may be one ahead of this process's clock.
const CELLS: usize = 3;

/// Two counters that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All that were ever charged, those that were given back too.
    pub hits: u64,
    /// Hits that were given back. May exceed `hits` for a moment, because each counter is merged for itself.
    pub refunds: u64,
}

impl Counts {
    /// The larger of both, each for itself.
    pub fn max(self, other: Counts) -> Counts {
        Counts { hits: self.hits.max(other.hits), refunds: self.refunds.max(other.refunds) }
    }

    pub fn plus(self, other: Counts) -> Counts {
        Counts { hits: self.hits.saturating_add(other.hits), refunds: self.refunds.saturating_add(other.refunds) }
    }

    /// The hits that count.
    pub fn count(self) -> u64 {
        self.hits.saturating_sub(self.refunds)
    }

    /// The hits that count if at least so many were given back, as is known from elsewhere.
    pub fn without(self, refunds: u64) -> u64 {
        self.hits.saturating_sub(self.refunds.max(refunds))
    }
}

impl From<Cell> for Counts {
    fn from(cell: Cell) -> Counts {
        Counts { hits: cell.hits, refunds: cell.refunds }
    }
}

/// What is known of one cell from the table that regions share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ForeignCell {
    /// The sum of the other regions' rows.
    others: Counts,
    /// This region's row, at its largest.
    row: Counts,
    /// What the table is known to hold of this region: what was read there, and what was published since.
    told: Counts,
    /// Hits that this process has accepted since it first saw the row as it is.
    since: u64,
}

/// The hits of a cell, or its refunds: of others, of the row, told, and accepted since the row was seen.
type Column = [u64; 4];

/// See [`Foreign::after_newest`].
fn after(sequence: u64) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(sequence)
}

/// A key's part in the world.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Foreign {
    /// The sequence of the newest cell, plus one; the newest cell stands first. Never 0, so that a key without any of this
    /// needs no word to say so.
    after_newest: NonZeroU64,
    hits: [Column; CELLS],
    /// `None` until there is a refund: few keys ever have one.
    refunds: Option<Box<[Column; CELLS]>>,
}

impl Foreign {
    pub(crate) fn new(sequence: u64) -> Foreign {
        Foreign { after_newest: after(sequence), hits: [Column::default(); CELLS], refunds: None }
    }

    fn newest(&self) -> u64 {
        self.after_newest.get() - 1
    }

    /// How many bytes it takes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.refunds.as_ref().map_or(0, |_| heap_bytes(size_of::<[Column; CELLS]>()))
    }

    fn cell(&self, sequence: u64) -> ForeignCell {
        let back = self.newest().checked_sub(sequence).and_then(|back| usize::try_from(back).ok());
        back.filter(|back| *back < CELLS).map_or(ForeignCell::default(), |back| self.cell_at(back))
    }

    fn cell_at(&self, back: usize) -> ForeignCell {
        let refunds = self.refunds.as_ref().map_or(Column::default(), |refunds| refunds[back]);
        let [others, row, told] = [0, 1, 2].map(|at| Counts { hits: self.hits[back][at], refunds: refunds[at] });
        ForeignCell { others, row, told, since: self.hits[back][3] }
    }

    fn set_cell_at(&mut self, back: usize, ForeignCell { others, row, told, since }: ForeignCell) {
        self.hits[back] = [others.hits, row.hits, told.hits, since];
        let refunds = [others.refunds, row.refunds, told.refunds, 0];
        if self.refunds.is_some() || refunds != Column::default() {
            self.refunds.get_or_insert_default()[back] = refunds;
        }
    }

    /// The place of a cell; makes room for a new one. `None` if it is too old, or not of this time: clocks of regions
    /// differ, but by less than a window.
    fn place_of(&mut self, sequence: u64, current: u64) -> Option<usize> {
        if sequence > current.saturating_add(1) || sequence.saturating_add(1) < current {
            return None;
        }
        if self.newest() > current.saturating_add(1) {
            // The clock was wrong, and is right again.
            *self = Foreign::new(current);
        }
        if let Some(steps) = sequence.checked_sub(self.newest()).filter(|steps| *steps > 0) {
            let steps = usize::try_from(steps).map_or(CELLS, |steps| steps.min(CELLS));
            for columns in [Some(&mut self.hits), self.refunds.as_deref_mut()].into_iter().flatten() {
                columns.rotate_right(steps);
                columns[..steps].fill(Column::default());
            }
            self.after_newest = after(sequence);
        }
        usize::try_from(self.newest() - sequence).ok().filter(|back| *back < CELLS)
    }

    /// Takes over what the table says about a cell. True if others have told more than was known.
    pub(crate) fn import(&mut self, sequence: u64, current: u64, others: Counts, row: Counts) -> bool {
        let Some(back) = self.place_of(sequence, current) else { return false };
        let before = self.cell_at(back);
        let after = ForeignCell {
            others: before.others.max(others),
            row: before.row.max(row),
            told: before.told,
            since: if row.hits > before.row.hits { 0 } else { before.since },
        };
        self.set_cell_at(back, after);
        after.others != before.others
    }

    /// Notes what the table was told about a cell.
    pub(crate) fn published(&mut self, sequence: u64, current: u64, counts: Counts) {
        if let Some(back) = self.place_of(sequence, current) {
            let cell = self.cell_at(back);
            self.set_cell_at(back, ForeignCell { told: cell.told.max(counts), ..cell });
        }
    }

    /// The other regions' count of a cell.
    pub(crate) fn others(&self, sequence: u64) -> u64 {
        self.cell(sequence).others.count()
    }

    /// Notes hits that this process has accepted in a cell.
    pub(crate) fn accept(&mut self, sequence: u64, hits: u64) {
        let back = self.newest().checked_sub(sequence).and_then(|back| usize::try_from(back).ok());
        if let Some([.., since]) = back.and_then(|back| self.hits.get_mut(back)) {
            *since = since.saturating_add(hits);
        }
    }

    /// What the region has counted in a cell at least: its row, and hits that are too new to be in it.
    pub(crate) fn row(&self, sequence: u64) -> Counts {
        let ForeignCell { row, since, .. } = self.cell(sequence);
        if row.hits == 0 { row } else { Counts { hits: row.hits.saturating_add(since), ..row } }
    }

    /// From here on none of these counts matter any more.
    pub(crate) fn expires_at_ms(&self, window_ms: u64) -> u64 {
        self.newest().saturating_add(2).saturating_mul(window_ms)
    }

    /// From here on no count of other regions matters any more; 0 if they have counted nothing.
    pub(crate) fn others_until_ms(&self, window_ms: u64) -> u64 {
        let newest = (0..CELLS).find(|back| self.hits[*back][0] > 0);
        newest.map_or(0, |back| self.newest().saturating_add(2).saturating_sub(back as u64).saturating_mul(window_ms))
    }

    /// Another region has counted in this cell or in the one before.
    pub(crate) fn is_contested(&self, sequence: u64) -> bool {
        let is_present = |sequence: u64| self.cell(sequence).others.hits > 0;
        is_present(sequence) || sequence.checked_sub(1).is_some_and(is_present)
    }

    /// Forgets what the table was told, because it may have lost it.
    pub(crate) fn forget_told(&mut self) {
        for back in 0..CELLS {
            self.set_cell_at(back, ForeignCell { told: Counts::default(), ..self.cell_at(back) });
        }
    }

    /// A key's own cells, raised to what is known from the table: see the top of this file.
    fn lift(&self, cells: &Cells, is_cut_off: bool) -> Cells {
        let lifted = |cell: &Cell, sequence: u64| {
            let region = cell.count().max(self.row(sequence).without(cell.refunds));
            let others = if is_cut_off { 0 } else { self.others(sequence) };
            Cell { hits: region.saturating_add(others), refunds: 0 }
        };
        Cells {
            sequence: cells.sequence,
            current: lifted(&cells.current, cells.sequence),
            previous: lifted(&cells.previous, cells.sequence.saturating_sub(1)),
        }
    }
}

/// What decides whether other regions should know of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellStanding {
    /// The key's limit.
    pub limit: u32,
    /// How many regions there are.
    pub regions: u32,
    /// What the table is known to hold of this region.
    pub told: Counts,
    /// Another region has counted in this cell or in the one before.
    pub is_contested: bool,
}

impl CellStanding {
    /// Whether others should know of these counts and do not: hits that they know of were given back; or the counts grew, and
    /// the region has used half of the limit, or another region counts here too, or others have not heard of the region in
    /// this window and its count is no small part of the limit (a quarter of the region's part).
    pub(crate) fn is_notable(&self, counts: Counts) -> bool {
        let told = self.told;
        if counts.hits <= told.hits && counts.refunds <= told.refunds {
            return false;
        }
        let is_shrunk = told.hits > 0 && counts.refunds > told.refunds;
        let is_present = u128::from(counts.count()) * 4 * u128::from(self.regions) >= u128::from(self.limit);
        is_shrunk || self.is_followed(counts) || (told.hits == 0 && is_present)
    }

    /// Whether others should know whenever these counts grow.
    pub(crate) fn is_followed(&self, counts: Counts) -> bool {
        self.is_contested || u128::from(counts.count()) * 2 >= u128::from(self.limit)
    }
}

/// Which of a key's cells are worth publishing.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublishRule {
    /// The key's limit: half of it, or a smaller part if no other region knows, makes a cell worth publishing.
    pub limit: u32,
    /// How many regions there are.
    pub regions: u32,
    /// Whether the previous cell still weighs in; if not, only the current one is published.
    pub weighing: PreviousWeight,
    /// Publishes refunds too. False while the origin has not answered for all: they may still come to less.
    pub with_refunds: bool,
}

impl PublishRule {
    /// The counts of a cell, if others should know of them and do not.
    fn of_cell(&self, cell: &Cell, sequence: u64, foreign: Option<&Foreign>) -> Option<Counts> {
        let standing = self.standing(sequence, foreign);
        let mut counts = Counts::from(*cell);
        if !self.with_refunds {
            counts.refunds = counts.refunds.min(standing.told.refunds);
        }
        standing.is_notable(counts).then_some(counts)
    }

    /// What others know of a cell, and how much it matters to them.
    pub(super) fn standing(&self, sequence: u64, foreign: Option<&Foreign>) -> CellStanding {
        CellStanding {
            limit: self.limit,
            regions: self.regions,
            told: foreign.map_or(Counts::default(), |foreign| foreign.cell(sequence).told),
            is_contested: foreign.is_some_and(|foreign| foreign.is_contested(sequence)),
        }
    }

    /// The cells to publish, by their sequences.
    pub(super) fn cells(&self, cells: &Cells, foreign: Option<&Foreign>) -> [Option<(u64, Counts)>; 2] {
        let of_cell = |cell: &Cell, sequence: u64| Some((sequence, self.of_cell(cell, sequence, foreign)?));
        let previous = match (self.weighing, cells.sequence.checked_sub(1)) {
            (PreviousWeight::Sliding, Some(before)) => of_cell(&cells.previous, before),
            _ => None,
        };
        [previous, of_cell(&cells.current, cells.sequence)]
    }

    #[cfg(test)]
    fn is_any(&self, cells: &Cells, foreign: Option<&Foreign>) -> bool {
        self.cells(cells, foreign).iter().any(Option::is_some)
    }
}

/// A counter as decisions see it: with what other regions have counted, and at least what this one has published.
#[derive(Debug)]
pub(in crate::engine) struct View<'a> {
    /// A look brings it up to date, but never adds foreign counts to it.
    pub counter: &'a mut Counter,
    /// `None` if nothing is known of the key from the table of the regions.
    pub foreign: Option<&'a Foreign>,
    /// The key is held to the region's own part of the limit: hits of other regions count against theirs.
    pub is_cut_off: bool,
}

impl View<'_> {
    /// All counts in one counter; `None` if nothing comes from outside.
    fn lifted(&self) -> Option<Counter> {
        let (cells, foreign) = (self.counter.windows()?, self.foreign?);
        Some(Counter::Windowed(foreign.lift(cells, self.is_cut_off)))
    }

    #[inline(always)]
    pub(crate) fn look(&mut self, terms: &Terms, now_ms: u64) -> Look {
        let look = self.counter.look(terms, now_ms);
        if self.foreign.is_none() { look } else { self.look_foreign(look, terms) }
    }

    /// A look that takes counts from outside in.
    fn look_foreign(&self, look: Look, terms: &Terms) -> Look {
        // The look has brought the counter to this window already.
        self.lifted().map_or(look, |mut lifted| lifted.look(terms, look.now_ms))
    }

    pub(crate) fn admits_at(&self, terms: &Terms, look: &Look, hits: u64) -> Option<u64> {
        match self.lifted() {
            Some(lifted) => lifted.admits_at(terms, look, hits),
            None => self.counter.admits_at(terms, look, hits),
        }
    }

    #[inline]
    pub(crate) fn resets_at_ms(&self, terms: &Terms, look: &Look, more_hits: u64) -> u64 {
        self.counter.resets_at_ms(terms, look, more_hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::policy::Algorithm;

    const WINDOW_MS: u64 = 60_000;

    fn counts(hits: u64) -> Counts {
        Counts { hits, refunds: 0 }
    }

    fn cells(current: u64, previous: u64) -> Cells {
        let cell = |hits| Cell { hits, refunds: 0 };
        Cells { sequence: 100, current: cell(current), previous: cell(previous) }
    }

    fn notable(limit: u32, regions: u32) -> PublishRule {
        PublishRule { limit, regions, weighing: PreviousWeight::Sliding, with_refunds: true }
    }

    #[test]
    fn others_count_on_top_and_the_own_row_is_a_lower_bound() {
        let mut foreign = Foreign::new(100);
        assert!(foreign.import(100, 100, counts(3), counts(8)));
        assert!(foreign.import(99, 100, counts(10), counts(2)));
        assert!(!foreign.import(100, 100, counts(2), counts(1)), "counts only grow");
        let mut counter = Counter::Windowed(cells(5, 4));
        let terms = Terms { limit: 100, window_ms: WINDOW_MS, algorithm: Algorithm::SlidingWindow, burst: 100 };
        let mut view = View { counter: &mut counter, foreign: Some(&foreign), is_cut_off: false };
        // 8 of the own row and 3; half of 4 and 10.
        assert_eq!(view.look(&terms, 100 * WINDOW_MS + 30_000).available, 100 - 11 - 7);
        assert_eq!(view.look(&terms, 101 * WINDOW_MS).available, 100 - 11, "the cells move on together");
    }

    #[test]
    fn the_own_row_bounds_what_is_left_after_refunds() {
        let mut foreign = Foreign::new(100);
        foreign.import(100, 100, counts(0), Counts { hits: 80, refunds: 50 });
        let lifted = |hits, refunds| {
            let known = Cells { current: Cell { hits, refunds }, ..cells(0, 0) };
            foreign.lift(&known, false).current.count()
        };
        assert_eq!(lifted(10, 0), 30);
        assert_eq!(lifted(90, 70), 20, "a refund that the row has not heard of");
        assert_eq!(lifted(60, 0), 60, "never below what is known here");
    }

    #[test]
    fn what_was_accepted_since_the_row_was_seen_is_not_in_it() {
        let mut foreign = Foreign::new(100);
        foreign.accept(100, 9);
        assert_eq!(foreign.row(100), counts(0), "there is no row");
        foreign.import(100, 100, counts(0), counts(15));
        foreign.accept(100, 4);
        foreign.accept(99, 1);
        foreign.accept(3, 7);
        assert_eq!((foreign.row(100), foreign.row(99)), (counts(19), counts(0)));
        foreign.import(100, 100, counts(2), counts(15));
        assert_eq!(foreign.row(100), counts(19), "the same row");
        foreign.import(100, 100, counts(2), counts(17));
        assert_eq!(foreign.row(100), counts(17), "some of it may be in this one");
        assert_eq!(foreign.lift(&cells(5, 0), true).current.count(), 17);
        foreign.accept(100, 2);
        assert_eq!(foreign.lift(&cells(7, 0), false).current.count(), 17 + 2 + 2);
    }

    #[test]
    fn a_cell_of_another_time_finds_no_place() {
        let mut foreign = Foreign::new(100);
        assert!(!foreign.import(102, 100, counts(5), counts(0)));
        assert!(!foreign.import(98, 100, counts(5), counts(0)));
        assert!(foreign.import(101, 100, counts(5), counts(0)), "a clock that is a little ahead");
        assert!(foreign.import(99, 100, counts(7), counts(0)));
        assert_eq!((foreign.others(101), foreign.others(100), foreign.others(99)), (5, 0, 7));
        // This clock was a day ahead for a while.
        assert!(foreign.import(2000, 2000, counts(1), counts(0)));
        assert!(foreign.import(100, 100, counts(9), counts(0)));
        assert_eq!(foreign.others(100), 9);
    }

    #[test]
    fn what_others_counted_matters_until_their_last_cell_has_expired() {
        let mut foreign = Foreign::new(100);
        foreign.import(100, 100, counts(0), counts(8));
        assert_eq!(foreign.others_until_ms(WINDOW_MS), 0, "what the region itself has published is no other's");
        foreign.import(99, 100, counts(5), counts(0));
        assert_eq!(foreign.others_until_ms(WINDOW_MS), 101 * WINDOW_MS);
        foreign.import(100, 100, counts(5), counts(8));
        assert_eq!(foreign.others_until_ms(WINDOW_MS), 102 * WINDOW_MS);
    }

    #[test]
    fn only_what_matters_to_others_is_notable() {
        let is_notable = |hits: u64, limit: u32| notable(limit, 3).is_any(&cells(hits, 0), None);
        assert!(!is_notable(1, 100), "below the presence mark");
        assert!(!is_notable(8, 100) && is_notable(9, 100), "a twelfth of the limit");
        assert!(is_notable(1, 10) && !is_notable(0, 10));

        let mut foreign = Foreign::new(100);
        foreign.published(100, 100, counts(9));
        let mark = |hits: u64, foreign: &Foreign| notable(100, 3).is_any(&cells(hits, 0), Some(foreign));
        assert!(!mark(10, &foreign), "others know that the region is there");
        assert!(!mark(49, &foreign) && mark(50, &foreign), "half of the limit");
        foreign.import(99, 100, counts(1), counts(0));
        assert!(mark(10, &foreign), "another region was there in the window before");
        assert!(!mark(9, &foreign), "nothing new");
        foreign.import(100, 100, counts(0), counts(12));
        assert!(mark(12, &foreign), "others may not have found the row");
        foreign.published(100, 100, counts(12));
        assert!(!mark(12, &foreign), "another process of the region has published it");
        foreign.forget_told();
        assert!(mark(12, &foreign), "the table may have lost it");
    }

    #[test]
    fn refunds_are_told_once_they_are_settled() {
        let mut foreign = Foreign::new(100);
        foreign.published(100, 100, counts(60));
        let refunded = Cells { current: Cell { hits: 60, refunds: 50 }, ..cells(0, 0) };
        assert!(notable(100, 3).is_any(&refunded, Some(&foreign)));
        let unsettled = PublishRule { with_refunds: false, ..notable(100, 3) };
        assert!(!unsettled.is_any(&refunded, Some(&foreign)));
    }

    #[test]
    fn the_previous_window_is_published_too_unless_it_no_longer_weighs() {
        let late = notable(100, 3).cells(&cells(0, 60), None);
        assert_eq!(late, [Some((99, counts(60))), None]);
        let fixed = PublishRule { weighing: PreviousWeight::Fixed, ..notable(100, 3) };
        assert!(!fixed.is_any(&cells(0, 60), None));
    }
}
