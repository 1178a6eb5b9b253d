//! The count of one key, whatever the algorithm: how much fits, when more will, charge, refund.
//!
//! Pure: the time and the limit's terms are arguments. A decision calls [`Counter::look`] once and then adds or not.

use crate::engine::count::exact::{self, CELLS as EXACT_CELLS, SubCells};
use crate::engine::count::gcra::{Bucket, Rate};
use crate::engine::count::signed;
use crate::engine::count::window::{Cells, PreviousWeight};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// The state of one key.
#[derive(Clone, Debug)]
pub(crate) enum Counter {
    /// Sliding and fixed windows.
    Windowed(Cells),
    Exact(SubCells),
    Gcra(Bucket),
}

/// What a counter says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// How many hits fit now; below zero when more was charged than the limit.
    pub available: i64,
    /// The key's own time, at or after the caller's.
    pub now_ms: u64,
}

pub(crate) fn rate(terms: &Terms) -> Rate {
    Rate { limit: terms.limit, window_ms: terms.window_ms, burst: terms.burst }
}

pub(crate) fn weighing(terms: &Terms) -> PreviousWeight {
    match terms.algorithm {
        Algorithm::FixedWindow => PreviousWeight::Fixed,
        Algorithm::SlidingWindow => PreviousWeight::Sliding,
        // Means nothing here: these have no previous window.
        Algorithm::ExactWindow | Algorithm::Gcra => PreviousWeight::Sliding,
    }
}

fn available(limit: u32, effective: u64) -> i64 {
    i64::from(limit) - signed(effective)
}

// Functions of their own, so that the look at a window, the usual one, is small enough to be inlined into the decision.
fn look_exact(cells: &mut SubCells, terms: &Terms, now_ms: u64) -> Look {
    let now_ms = cells.rotate(now_ms, terms.window_ms);
    Look { available: available(terms.limit, cells.effective()), now_ms }
}

fn look_gcra(bucket: &mut Bucket, terms: &Terms, now_ms: u64) -> Look {
    let rate = rate(terms);
    let now_ms = bucket.drain(now_ms, &rate);
    Look { available: bucket.available(&rate), now_ms }
}

/// Nanoseconds in a millisecond.
const MS_NS: u64 = 1_000_000;

impl Counter {
    pub(crate) fn new(terms: &Terms, now_ms: u64) -> Counter {
        match terms.algorithm {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => Counter::Windowed(Cells::new(now_ms, terms.window_ms)),
            Algorithm::ExactWindow => Counter::Exact(SubCells::new(now_ms, terms.window_ms)),
            Algorithm::Gcra => Counter::Gcra(Bucket::new(now_ms)),
        }
    }

    /// Brings the counter up to `now` and reads it.
    #[inline(always)]
    pub(crate) fn look(&mut self, terms: &Terms, now_ms: u64) -> Look {
        match self {
            Counter::Windowed(cells) => {
                let now_ms = cells.rotate(now_ms, terms.window_ms);
                let effective = cells.effective(now_ms, terms.window_ms, weighing(terms));
                Look { available: available(terms.limit, effective), now_ms }
            }
            Counter::Exact(cells) => look_exact(cells, terms, now_ms),
            Counter::Gcra(bucket) => look_gcra(bucket, terms, now_ms),
        }
    }

    /// The first moment at which so many hits are admitted if nothing else arrives; `None` if they never are.
    pub(crate) fn admits_at(&self, terms: &Terms, look: &Look, hits: u64) -> Option<u64> {
        let limit = u64::from(terms.limit);
        match self {
            Counter::Windowed(cells) => cells.admits_at(look.now_ms, terms.window_ms, weighing(terms), limit, hits),
            Counter::Exact(cells) => cells.admits_at(look.now_ms, terms.window_ms, limit, hits),
            Counter::Gcra(bucket) => bucket.admits_at(&rate(terms), hits),
        }
    }

    /// When an admitted request's limit starts afresh: at the end of the fixed window, or when the bucket, with so many more
    /// hits in it, is empty again.
    #[inline]
    pub(crate) fn resets_at_ms(&self, terms: &Terms, look: &Look, more_hits: u64) -> u64 {
        match self {
            Counter::Windowed(cells) => cells.ends_at_ms(terms.window_ms),
            Counter::Exact(_) => window_end_ms(terms, look.now_ms),
            Counter::Gcra(bucket) => bucket.empty_at_ms(&rate(terms), more_hits),
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, terms: &Terms, hits: u64) {
        match self {
            Counter::Windowed(cells) => cells.add(hits),
            Counter::Exact(cells) => cells.add(hits),
            Counter::Gcra(bucket) => bucket.add(&rate(terms), hits),
        }
    }

    /// Gives hits back, and returns how many of them were not there.
    pub(crate) fn refund(&mut self, terms: &Terms, hits: u64) -> u64 {
        match self {
            Counter::Windowed(cells) => cells.refund(hits, weighing(terms)),
            Counter::Exact(cells) => cells.refund(hits),
            Counter::Gcra(bucket) => {
                let missing = hits.saturating_sub(bucket.hits_within(&rate(terms)));
                bucket.refund(&rate(terms), hits);
                missing
            }
        }
    }

    /// The number of the newest cell. A bucket has only one.
    pub(crate) fn sequence(&self) -> u64 {
        match self {
            Counter::Windowed(cells) => cells.sequence,
            Counter::Exact(cells) => cells.newest(),
            Counter::Gcra(_) => 0,
        }
    }

    /// Numbers the window that a cell is in: the sub-cells of an exact one have numbers of their own.
    pub(crate) fn window_of(&self, sequence: u64) -> u64 {
        match self {
            Counter::Windowed(_) | Counter::Gcra(_) => sequence,
            Counter::Exact(_) => exact::window_of(sequence),
        }
    }

    /// How many cells back the cell with this number is, if it still counts.
    pub(crate) fn place_of(&self, sequence: u64) -> Option<usize> {
        let back = usize::try_from(self.sequence().checked_sub(sequence)?).ok()?;
        let cells = match self {
            Counter::Windowed(_) => 2,
            Counter::Exact(_) => EXACT_CELLS,
            Counter::Gcra(_) => 1,
        };
        (back < cells).then_some(back)
    }

    /// Whether anything is known of a cell, counted back from the newest.
    pub(crate) fn has_hits(&self, back: usize) -> bool {
        match self {
            Counter::Windowed(_) | Counter::Gcra(_) => true,
            Counter::Exact(cells) => cells.cell(self.sequence().saturating_sub(back as u64)).hits > 0,
        }
    }

    /// How many cells a decision takes into account.
    pub(crate) fn cells_that_count(&self, terms: &Terms) -> usize {
        match (self, weighing(terms)) {
            (Counter::Windowed(_), PreviousWeight::Sliding) => 2,
            (Counter::Windowed(_), PreviousWeight::Fixed) | (Counter::Gcra(_), _) => 1,
            (Counter::Exact(_), _) => EXACT_CELLS,
        }
    }

    /// How long ago the newest cell began.
    pub(crate) fn elapsed_ms(&self, terms: &Terms, now_ms: u64) -> u64 {
        let began_ms = match self {
            Counter::Windowed(cells) => cells.sequence.saturating_mul(terms.window_ms),
            Counter::Exact(cells) => cells.newest_began_ms(terms.window_ms),
            Counter::Gcra(_) => 0,
        };
        now_ms.saturating_sub(began_ms)
    }

    /// How long ago the oldest hits may have come that still count.
    pub(crate) fn counts_since_ms(&self, terms: &Terms, now_ms: u64) -> u64 {
        match (self, weighing(terms)) {
            (Counter::Windowed(_), PreviousWeight::Fixed) => self.elapsed_ms(terms, now_ms),
            (Counter::Windowed(_), PreviousWeight::Sliding) | (Counter::Exact(_), _) => {
                self.elapsed_ms(terms, now_ms).saturating_add(terms.window_ms)
            }
            (Counter::Gcra(_), _) => rate(terms).drains_in_ns(terms.burst.into()) / MS_NS,
        }
    }

    /// Takes hits out of the newest cell that were counted by mistake. A refund, which counts them, is something else.
    pub(crate) fn take_back(&mut self, terms: &Terms, hits: u64) {
        match self {
            Counter::Windowed(cells) => cells.current.hits = cells.current.hits.saturating_sub(hits),
            Counter::Exact(cells) => cells.merge(0, |cell| cell.hits = cell.hits.saturating_sub(hits)),
            Counter::Gcra(bucket) => {
                bucket.refund(&rate(terms), hits);
            }
        }
    }

    /// The two windows, which regions exchange. `None` if the algorithm does not count in whole windows.
    #[inline]
    pub(crate) fn windows(&self) -> Option<&Cells> {
        match self {
            Counter::Windowed(cells) => Some(cells),
            Counter::Exact(_) | Counter::Gcra(_) => None,
        }
    }

    /// It is a bucket: it has no window, and drains.
    pub(crate) fn is_bucket(&self) -> bool {
        match self {
            Counter::Gcra(_) => true,
            Counter::Windowed(_) | Counter::Exact(_) => false,
        }
    }

    #[inline]
    pub(crate) fn bucket_mut(&mut self) -> Option<&mut Bucket> {
        match self {
            Counter::Gcra(bucket) => Some(bucket),
            Counter::Windowed(_) | Counter::Exact(_) => None,
        }
    }

    /// It counts in sub-cells, which may take more memory with every hit.
    #[inline(always)]
    pub(crate) fn is_divided(&self) -> bool {
        match self {
            Counter::Exact(_) => true,
            Counter::Windowed(_) | Counter::Gcra(_) => false,
        }
    }

    /// How many bytes it takes on the heap.
    #[inline]
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Counter::Exact(cells) => cells.heap_bytes(),
            Counter::Windowed(_) | Counter::Gcra(_) => 0,
        }
    }

    /// From here on the counter is as good as a fresh one.
    pub(crate) fn expires_at_ms(&self, terms: &Terms) -> u64 {
        match self {
            Counter::Windowed(cells) => cells.expires_at_ms(terms.window_ms),
            Counter::Exact(cells) => cells.expires_at_ms(terms.window_ms),
            // Without a rate it never drains, and denies whatever its level: there is nothing to remember.
            Counter::Gcra(bucket) if terms.limit == 0 => bucket.at_ms().saturating_add(terms.window_ms),
            Counter::Gcra(bucket) => bucket.empty_at_ms(&rate(terms), 0),
        }
    }
}

/// The end of the fixed window that a moment is in.
pub(crate) fn window_end_ms(terms: &Terms, now_ms: u64) -> u64 {
    (now_ms / terms.window_ms + 1).saturating_mul(terms.window_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::count::window::Cell;

    const MINUTE_MS: u64 = 60_000;

    fn terms(limit: u32) -> Terms {
        Terms { limit, window_ms: MINUTE_MS, algorithm: Algorithm::SlidingWindow, burst: limit }
    }

    /// (current, previous, elapsed, hits) with limit 10 -> what is left after the charge, `None` when over.
    fn decide(current: u64, previous: u64, elapsed_ms: u64, hits: u64) -> Option<i64> {
        let cell = |hits| Cell { hits, refunds: 0 };
        let cells = Cells { sequence: 1000, current: cell(current), previous: cell(previous) };
        let mut counter = Counter::Windowed(cells);
        let look = counter.look(&terms(10), 1000 * MINUTE_MS + elapsed_ms);
        (look.available >= hits as i64).then(|| look.available - hits as i64)
    }

    #[test]
    fn the_worked_examples() {
        assert_eq!(decide(0, 0, 0, 1), Some(9));
        assert_eq!(decide(9, 0, 0, 1), Some(0));
        assert_eq!(decide(10, 0, 0, 0), Some(0));
        assert_eq!(decide(10, 0, 0, 1), None);
        assert_eq!(decide(5, 10, 30_000, 1), None);
        assert_eq!(decide(5, 10, 59_400, 1), Some(4));
        assert_eq!(decide(0, 10, 54_000, 1), Some(8));
        assert_eq!(decide(0, 0, 0, 100), None);
    }

    #[test]
    fn a_counter_takes_forty_eight_bytes() {
        assert_eq!(std::mem::size_of::<Counter>(), 48);
    }

    #[test]
    fn the_reset_of_an_admitted_request_is_the_end_of_the_window() {
        let mut counter = Counter::new(&terms(10), 1000 * MINUTE_MS + 1);
        let look = counter.look(&terms(10), 1000 * MINUTE_MS + 1);
        assert_eq!(counter.resets_at_ms(&terms(10), &look, 0), 1001 * MINUTE_MS);
    }
}
