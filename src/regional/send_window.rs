//! How much the origin is told at a time: few messages, and only as many cells as it serves without others having to wait.
//!
//! Everything that is told is a total, so waiting loses nothing: what comes meanwhile goes with the same cells. The next message
//! goes when one is answered, so a slow origin is told more slowly, and nobody has to know how fast it is. Round trips show
//! how busy it is. While even the quickest of the last few takes much longer than the best that was seen lately, messages
//! wait for each other in the origin, and checks wait behind them: the window halves. Otherwise it grows by a step. One slow
//! round trip says nothing: the machine may have had other things to do.

/// How far a window may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowBounds {
    /// Cells that may be under way at least, however slow the origin is.
    pub least: usize,
    /// To begin with.
    pub first: usize,
    /// At most, however quick it is.
    pub most: usize,
    /// Messages that may be under way.
    pub messages: usize,
}

impl WindowBounds {
    /// One server. A cell takes it a few microseconds: all that a process has under way there keeps a check waiting for about
    /// a millisecond at most, and the least of a hundred processes together for a few.
    pub(crate) const SERVER: WindowBounds = WindowBounds { least: 16, first: 64, most: 256, messages: 4 };
    /// The nodes of a Cluster share the work. A message has the keys of one slot only, so there are more of them and most are
    /// small; and those that wait for a node that hangs leave room for others.
    pub(crate) const CLUSTER: WindowBounds = WindowBounds { least: 64, first: 256, most: 1024, messages: 64 };
}

/// The window grows by so many cells.
const STEP: usize = 16;
/// It is judged after so many answers.
const ANSWERS_PER_LOOK: u32 = 8;
/// The least round trip may be twice the best, and this much on top: a message with many cells takes longer than a small one.
const TOLERATED_US: u64 = 1000;
/// For how long a best round trip counts, at least; twice as long at most. Later the way may have become longer.
const BEST_FOR_US: u64 = 10_000_000;

/// What is under way to an origin, and how much may be.
#[derive(Clone, Debug)]
pub(crate) struct SendWindow {
    bounds: WindowBounds,
    /// How many cells may be under way.
    cells: usize,
    cells_under_way: usize,
    messages_under_way: usize,
    /// Answers since the last look, and the quickest of them.
    answers: u32,
    least_us: u64,
    best: BestTrip,
}

impl SendWindow {
    pub(crate) fn new(bounds: WindowBounds) -> SendWindow {
        SendWindow {
            bounds,
            cells: bounds.first,
            cells_under_way: 0,
            messages_under_way: 0,
            answers: 0,
            least_us: u64::MAX,
            best: BestTrip::default(),
        }
    }

    /// How many cells may go now; 0 while there is room for a few only, unless nothing is under way.
    pub(crate) fn room(&self) -> usize {
        let room = self.cells.saturating_sub(self.cells_under_way);
        let is_worth_it = room >= self.bounds.least || self.messages_under_way == 0;
        if is_worth_it && self.messages_under_way < self.bounds.messages { room } else { 0 }
    }

    /// A message with so many cells goes out.
    pub(crate) fn sent(&mut self, cells: usize) {
        self.cells_under_way += cells;
        self.messages_under_way += 1;
    }

    /// A message was answered in time.
    pub(crate) fn answered(&mut self, cells: usize, took_us: u64, now_us: u64) {
        self.gone(cells);
        self.best.see(took_us, now_us);
        self.least_us = self.least_us.min(took_us);
        self.answers += 1;
        if self.answers < ANSWERS_PER_LOOK {
            return;
        }
        let is_busy = self.least_us > self.best.us().saturating_mul(2).saturating_add(TOLERATED_US);
        let cells = if is_busy { self.cells / 2 } else { self.cells + STEP };
        self.cells = cells.clamp(self.bounds.least, self.bounds.most);
        (self.answers, self.least_us) = (0, u64::MAX);
    }

    /// The time of a message is up, and it is still under way.
    pub(crate) fn is_late(&mut self) {
        self.cells = self.bounds.least;
    }

    /// A message is not under way any more.
    pub(crate) fn gone(&mut self, cells: usize) {
        self.cells_under_way = self.cells_under_way.saturating_sub(cells);
        self.messages_under_way = self.messages_under_way.saturating_sub(1);
    }
}

/// The best round trip of the last ten to twenty seconds.
#[derive(Clone, Copy, Debug)]
struct BestTrip {
    since_us: u64,
    now_us: u64,
    before_us: u64,
}

impl Default for BestTrip {
    fn default() -> BestTrip {
        BestTrip { since_us: 0, now_us: u64::MAX, before_us: u64::MAX }
    }
}

impl BestTrip {
    fn see(&mut self, took_us: u64, now_us: u64) {
        if now_us >= self.since_us + BEST_FOR_US {
            let is_recent = now_us < self.since_us + 2 * BEST_FOR_US;
            self.before_us = if is_recent { self.now_us } else { u64::MAX };
            (self.since_us, self.now_us) = (now_us, u64::MAX);
        }
        self.now_us = self.now_us.min(took_us);
    }

    fn us(&self) -> u64 {
        self.now_us.min(self.before_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: WindowBounds = WindowBounds::SERVER;

    /// A server that takes so long for a cell, behind a way of so long, told as much as the window lets for a second. Says
    /// how many cells it was told, and how long the window is then.
    fn told_in_a_second(window: &mut SendWindow, cell_us: u64, way_us: u64, from_us: u64) -> (usize, usize) {
        let (mut told, mut busy_until_us, mut now_us) = (0, from_us, from_us);
        let mut under_way = std::collections::VecDeque::new();
        while now_us < from_us + 1_000_000 {
            while window.room() > 0 {
                let cells = window.room().min(64);
                window.sent(cells);
                busy_until_us = busy_until_us.max(now_us + way_us / 2) + cell_us * cells as u64;
                under_way.push_back((now_us, busy_until_us + way_us / 2, cells));
            }
            let Some((sent_us, back_us, cells)) = under_way.pop_front() else { unreachable!("something is under way") };
            now_us = back_us;
            window.answered(cells, back_us - sent_us, now_us);
            told += cells;
        }
        under_way.into_iter().for_each(|(_, _, cells)| window.gone(cells));
        (told, window.cells)
    }

    #[test]
    fn a_quick_origin_is_told_as_much_as_may_be_under_way() {
        let mut window = SendWindow::new(SERVER);
        let (told, cells) = told_in_a_second(&mut window, 3, 500, 0);
        assert_eq!(cells, SERVER.most);
        assert!(told > 100_000, "{told}");
    }

    #[test]
    fn a_slow_origin_never_has_much_to_do() {
        let mut window = SendWindow::new(SERVER);
        told_in_a_second(&mut window, 3, 500, 0);
        let (told, cells) = told_in_a_second(&mut window, 100, 500, 1_000_000);
        assert!(cells <= 2 * SERVER.least + STEP, "{cells}");
        assert!(told > 5_000, "it is told as fast as it takes it: {told}");
        let (_, cells) = told_in_a_second(&mut window, 3, 500, 2_000_000);
        assert_eq!(cells, SERVER.most, "it is quick again");
    }

    #[test]
    fn a_way_that_has_become_longer_is_not_taken_for_an_origin_that_is_slow() {
        let mut window = SendWindow::new(SERVER);
        told_in_a_second(&mut window, 3, 500, 0);
        let (_, cells) = told_in_a_second(&mut window, 3, 20_000, 1_000_000);
        assert!(cells < SERVER.most);
        for second in 2..40 {
            told_in_a_second(&mut window, 3, 20_000, second * 1_000_000);
        }
        assert_eq!(window.cells, SERVER.most);
    }

    #[test]
    fn what_is_late_keeps_its_place_until_it_is_gone() {
        let mut window = SendWindow::new(SERVER);
        window.sent(64);
        window.is_late();
        assert_eq!(window.room(), 0, "nothing goes to an origin that has not answered yet");
        window.gone(64);
        assert_eq!(window.room(), SERVER.least, "and then as little as can be");
    }

    #[test]
    fn no_more_than_a_few_messages_are_under_way() {
        let mut window = SendWindow::new(SERVER);
        let sent = std::iter::from_fn(|| (window.room() > 0).then(|| window.sent(1))).count();
        assert_eq!(sent, SERVER.messages);
    }
}
