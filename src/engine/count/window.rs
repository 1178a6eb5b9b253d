//! Fixed windows, and the sliding window made of two of them.
//!
//! `effective = current + floor(previous * (D - elapsed) / D)`, in whole numbers. A burst at the end of one window and
//! another in the next, timed against the weights, can still pass up to twice the limit within an interval of length D;
//! `exact_window` never does.

/// The hits of one fixed window: two counters that only grow, so that copies of a cell merge by taking the larger of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// All that were ever charged, those that were given back too. At `u64::MAX` the cell is full and stays so.
    pub hits: u64,
    /// Hits that were given back, never more than `hits`.
    pub refunds: u64,
}

impl Cell {
    /// The hits that count.
    pub fn count(&self) -> u64 {
        self.hits - self.refunds
    }

    /// Adds hits. A cell that overflows is full and stays full; its refunds go, or a count that no longer fits could look
    /// like nothing.
    pub(crate) fn add(&mut self, hits: u64) {
        match self.hits.checked_add(hits) {
            Some(sum) => self.hits = sum,
            None => *self = Cell { hits: u64::MAX, refunds: 0 },
        }
    }

    /// Takes up to so many hits back and returns how many it could not.
    pub(crate) fn refund(&mut self, hits: u64) -> u64 {
        if self.hits == u64::MAX {
            return hits;
        }
        let taken = hits.min(self.count());
        self.refunds += taken;
        hits - taken
    }
}

/// The current and the previous cell of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cells {
    /// The number of the current window: `floor(now / window)`.
    pub sequence: u64,
    /// Hits since that window began.
    pub current: Cell,
    /// Hits of the window before. A fixed window keeps it too, but does not weigh it.
    pub previous: Cell,
}

/// Whether the previous window still weighs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreviousWeight {
    Sliding,
    Fixed,
}

impl Cells {
    pub(crate) fn new(now_ms: u64, window_ms: u64) -> Cells {
        Cells { sequence: now_ms / window_ms, ..Cells::default() }
    }

    /// Moves to the window of `now_ms` and returns the key's own time. If the clock is a little behind the key, the key
    /// waits at the start of its window. If it is behind by more than a window, it was wrong before and is right now: the
    /// key moves back with its counts.
    #[inline]
    pub(crate) fn rotate(&mut self, now_ms: u64, window_ms: u64) -> u64 {
        // It is nearly always still the same window, and a multiplication finds that out much faster than a division.
        let start_ms = self.sequence * window_ms;
        if now_ms >= start_ms && now_ms - start_ms < window_ms {
            return now_ms;
        }
        self.leave(start_ms, now_ms, window_ms)
    }

    /// Moves to another window, or stays if the clock is only a little behind.
    fn leave(&mut self, start_ms: u64, now_ms: u64, window_ms: u64) -> u64 {
        let sequence = now_ms / window_ms;
        if sequence > self.sequence {
            self.previous = if sequence == self.sequence + 1 { self.current } else { Cell::default() };
            self.current = Cell::default();
            self.sequence = sequence;
            return now_ms;
        }
        if now_ms < start_ms - window_ms {
            self.sequence = sequence;
            return now_ms;
        }
        start_ms
    }

    /// What counts against the limit at a time within the current window.
    #[inline]
    pub(crate) fn effective(&self, now_ms: u64, window_ms: u64, weighing: PreviousWeight) -> u64 {
        let current = self.current.count();
        match weighing {
            PreviousWeight::Fixed => current,
            PreviousWeight::Sliding => {
                let previous = self.previous.count();
                if previous == 0 {
                    return current;
                }
                let left_ms = window_ms - (now_ms - self.sequence * window_ms);
                current.saturating_add(weighed(previous, left_ms, window_ms))
            }
        }
    }

    /// The first moment at which so many hits are admitted if nothing else arrives; `None` if they never are.
    pub(crate) fn admits_at(
        &self,
        now_ms: u64,
        window_ms: u64,
        weighing: PreviousWeight,
        limit: u64,
        hits: u64,
    ) -> Option<u64> {
        // The most that may be counted at that moment, besides the hits.
        let room = limit.checked_sub(hits)?;
        let start_ms = self.sequence * window_ms;
        let next_ms = start_ms + window_ms;
        let (current, previous) = (self.current.count(), self.previous.count());
        match weighing {
            PreviousWeight::Fixed if current <= room => Some(now_ms),
            PreviousWeight::Fixed => Some(next_ms),
            PreviousWeight::Sliding => {
                let in_this_window = room
                    .checked_sub(current)
                    .map(|room| start_ms + fades_to(previous, room, window_ms))
                    .filter(|at_ms| *at_ms < next_ms);
                let at_ms = in_this_window.unwrap_or_else(|| next_ms + fades_to(current, room, window_ms));
                Some(at_ms.max(now_ms))
            }
        }
    }

    /// The end of the current window.
    pub(crate) fn ends_at_ms(&self, window_ms: u64) -> u64 {
        (self.sequence + 1).saturating_mul(window_ms)
    }

    pub(crate) fn add(&mut self, hits: u64) {
        self.current.add(hits);
    }

    /// Takes hits back from the current window, then from the previous one if it weighs in. Returns the excess, which is
    /// lost.
    pub(crate) fn refund(&mut self, hits: u64, weighing: PreviousWeight) -> u64 {
        let rest = self.current.refund(hits);
        if weighing == PreviousWeight::Sliding { self.previous.refund(rest) } else { rest }
    }

    /// From here on nothing in the cells counts any more.
    pub(crate) fn expires_at_ms(&self, window_ms: u64) -> u64 {
        (self.sequence + 2).saturating_mul(window_ms)
    }
}

/// `floor(count * left / window)`, exactly.
fn weighed(count: u64, left_ms: u64, window_ms: u64) -> u64 {
    match count.checked_mul(left_ms) {
        Some(product) => product / window_ms,
        // left <= window, so the quotient is at most the count.
        None => (u128::from(count) * u128::from(left_ms) / u128::from(window_ms)) as u64,
    }
}

/// How far into a window the weighed count first is at most `room`; the window's length if that is only at its end.
///
/// `floor(count * left / D) <= room` is `count * left <= (room + 1) * D - 1`, so the most that may be left is
/// `floor(((room + 1) * D - 1) / count)`.
fn fades_to(count: u64, room: u64, window_ms: u64) -> u64 {
    if count <= room {
        return 0;
    }
    let left_ms = ((u128::from(room) + 1) * u128::from(window_ms) - 1) / u128::from(count);
    window_ms - (left_ms.min(u128::from(window_ms)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW_MS: u64 = 60_000;

    fn cells(current: u64, previous: u64) -> Cells {
        let cell = |hits| Cell { hits, refunds: 0 };
        Cells { sequence: 100, current: cell(current), previous: cell(previous) }
    }

    #[test]
    fn the_previous_window_fades() {
        let effective =
            |elapsed_ms| cells(5, 10).effective(100 * WINDOW_MS + elapsed_ms, WINDOW_MS, PreviousWeight::Sliding);
        assert_eq!(effective(0), 15);
        assert_eq!(effective(30_000), 10);
        assert_eq!(effective(59_400), 5);
        assert_eq!(effective(59_999), 5);
    }

    #[test]
    fn time_does_not_run_backwards_for_a_key() {
        let mut key = cells(5, 10);
        assert_eq!(key.rotate(100 * WINDOW_MS - 1, WINDOW_MS), 100 * WINDOW_MS);
        assert_eq!(key, cells(5, 10));
        assert_eq!(key.rotate(99 * WINDOW_MS, WINDOW_MS), 100 * WINDOW_MS);
        // Behind by more than a window: the clock was wrong, the counts stay.
        assert_eq!(key.rotate(99 * WINDOW_MS - 1, WINDOW_MS), 99 * WINDOW_MS - 1);
        assert_eq!(key.sequence, 98);
        assert_eq!((key.current.hits, key.previous.hits), (5, 10));
    }

    #[test]
    fn windows_rotate_in_place() {
        let mut key = cells(5, 10);
        key.rotate(101 * WINDOW_MS, WINDOW_MS);
        assert_eq!((key.current.hits, key.previous.hits), (0, 5));
        key.rotate(103 * WINDOW_MS, WINDOW_MS);
        assert_eq!((key.current.hits, key.previous.hits), (0, 0));
    }

    #[test]
    fn refunds_take_from_the_current_window_first_and_are_never_banked() {
        let mut key = cells(5, 10);
        key.refund(8, PreviousWeight::Sliding);
        assert_eq!((key.current.count(), key.previous.count()), (0, 7));
        key.refund(100, PreviousWeight::Sliding);
        key.add(1);
        assert_eq!((key.current.count(), key.previous.count()), (1, 0));
    }

    #[test]
    fn a_full_counter_is_not_emptied_by_refunds() {
        for start in [0, 5, u64::MAX - 5] {
            let mut key = cells(start, 0);
            key.refund(start, PreviousWeight::Sliding);
            key.add(u64::MAX);
            key.refund(u64::MAX, PreviousWeight::Sliding);
            key.add(10);
            assert!(start == 0 || key.current.count() >= 10, "{key:?}");
            assert!(key.current.count() > 0, "{key:?}");
        }
    }

    proptest! {
        /// The closed form against a search: admitted at that moment, not a millisecond before.
        #[test]
        fn the_retry_time_is_the_first_that_passes(
            current in 0u64..50,
            previous in 0u64..50,
            elapsed_ms in 0u64..3000,
            limit in 0u64..40,
            hits in 0u64..45,
            fixed in any::<bool>(),
        ) {
            let window_ms = 3000;
            let weighing = if fixed { PreviousWeight::Fixed } else { PreviousWeight::Sliding };
            let key = Cells { sequence: 7, ..cells(current, previous) };
            let now_ms = 7 * window_ms + elapsed_ms;
            let admitted = |at_ms: u64| {
                let mut later = key;
                let at_ms = later.rotate(at_ms, window_ms);
                later.effective(at_ms, window_ms, weighing) + hits <= limit
            };
            let expected = (now_ms..10 * window_ms).find(|at_ms| admitted(*at_ms));
            prop_assert_eq!(key.admits_at(now_ms, window_ms, weighing, limit, hits), expected);
        }

        #[test]
        fn nothing_overflows(
            current: u64, previous: u64, elapsed_ms in 0u64..31_622_400_000, limit: u32, hits: u64,
        ) {
            let window_ms = 31_622_400_000;
            let key = Cells { sequence: 60, ..cells(current, previous) };
            let now_ms = 60 * window_ms + elapsed_ms;
            key.effective(now_ms, window_ms, PreviousWeight::Sliding);
            key.admits_at(now_ms, window_ms, PreviousWeight::Sliding, limit.into(), hits);
        }
    }
}
