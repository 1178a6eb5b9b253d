//! How long to wait before the next attempt to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);

/// Doubles from 50 ms on; the first attempt waits for nothing.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    /// The next pause. `luck`, from 0 to 1, takes away up to half, so that processes that lost Redis together do not
    /// return together.
    pub(super) fn next(&mut self, longest: Duration, luck: f64) -> Duration {
        let now = self.next.min(longest);
        self.next = (now * 2).max(FIRST);
        now.mul_f64(1.0 - luck.clamp(0.0, 1.0) / 2.0)
    }

    /// Starts over, after connections have held for a while.
    pub(super) fn reset(&mut self) {
        self.next = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let longest = Duration::from_secs(1);
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..8).map(|_| backoff.next(longest, 0.0).as_millis()).collect();
        assert_eq!(waits, [0, 50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.next(longest, 1.0), Duration::from_millis(500));
        assert_eq!(backoff.next(Duration::from_secs(5), 0.0), Duration::from_secs(2));
        backoff.reset();
        assert_eq!(backoff.next(longest, 0.5), Duration::ZERO);
    }
}
