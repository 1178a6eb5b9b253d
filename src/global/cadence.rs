//! Says when a turn is due: a rhythm with jitter that does not drift, and a breaker for when turns do no good.
//!
//! Targets are absolute, so a slow turn delays only itself. Each is jittered anew: regions that started together do not
//! come together. After several failures in a row turns become rare; the next one tells whether the store is back.

/// How late jitter makes a turn at most, in thousandths of the interval.
const JITTER_PERMILLE: u64 = 200;
/// How many failures in a row open the breaker.
const FAILURES_MAX: u32 = 3;
/// How many intervals there are between turns at most, while the breaker is open.
const BACKOFF_MAX: u64 = 8;

/// One rhythm.
#[derive(Clone, Debug)]
pub(crate) struct Cadence {
    interval_us: u64,
    /// The next target without jitter.
    target_us: u64,
    /// When the next turn is due: the target with jitter.
    next_us: u64,
    /// When the last turn ended.
    ended_us: u64,
    /// Failures in a row, up to now.
    failures: u32,
    /// When the first of these ended.
    failing_from_us: u64,
    random: u64,
    /// How often the breaker has opened.
    pub opened: u64,
}

impl Cadence {
    /// The first turn is due at once, with jitter.
    pub(crate) fn new(interval_us: u64, now_us: u64, seed: u64) -> Cadence {
        let mut cadence = Cadence {
            interval_us,
            target_us: now_us,
            next_us: 0,
            ended_us: 0,
            failures: 0,
            failing_from_us: 0,
            random: seed | 1,
            opened: 0,
        };
        cadence.next_us = cadence.jittered(now_us);
        cadence
    }

    fn jittered(&mut self, target_us: u64) -> u64 {
        // Xorshift: any bits will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        target_us + self.random % (self.interval_us * JITTER_PERMILLE / 1000).max(1)
    }

    pub(crate) fn next_us(&self) -> u64 {
        self.next_us
    }

    #[cfg(test)]
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.next_us
    }

    /// A turn soon, but not right after the last one, however often somebody asks for it.
    pub(crate) fn hasten(&mut self, now_us: u64) {
        self.target_us = self.target_us.min(now_us);
        self.next_us = self.next_us.min(now_us.max(self.ended_us + self.interval_us / 2));
    }

    /// The store is known to be well, without a turn.
    pub(crate) fn recovered(&mut self) {
        self.failures = 0;
    }

    /// Ends a turn that had nothing to do, which says nothing about the store.
    pub(crate) fn passed(&mut self, now_us: u64) {
        self.advance(1, now_us);
    }

    fn advance(&mut self, intervals: u64, now_us: u64) {
        self.ended_us = now_us;
        // Missed targets are left out.
        let passed = now_us.saturating_sub(self.target_us) / self.interval_us;
        self.target_us += self.interval_us * (passed + intervals);
        let target_us = self.target_us;
        self.next_us = self.jittered(target_us);
    }

    /// Whether the breaker is open: several turns in a row have failed.
    pub(crate) fn is_open(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// For how long every turn has failed; 0 if the last one has not.
    pub(crate) fn failing_us(&self, now_us: u64) -> u64 {
        if self.failures == 0 { 0 } else { now_us.saturating_sub(self.failing_from_us) }
    }

    /// Ends a turn. True if that opens or closes the breaker.
    pub(crate) fn ended(&mut self, is_success: bool, now_us: u64) -> bool {
        let was_open = self.is_open();
        if self.failures == 0 {
            self.failing_from_us = now_us;
        }
        self.failures = if is_success { 0 } else { self.failures.saturating_add(1) };
        let intervals = match self.failures.checked_sub(FAILURES_MAX) {
            None => 1,
            Some(more) => 2u64.saturating_pow(more.saturating_add(1)).min(BACKOFF_MAX),
        };
        self.advance(intervals, now_us);
        self.opened += u64::from(!was_open && self.is_open());
        was_open != self.is_open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    #[test]
    fn slow_turns_do_not_make_it_drift() {
        let mut cadence = Cadence::new(SECOND_US, 0, 7);
        let mut now_us = 0;
        for turn in 0..100 {
            now_us = cadence.next_us().max(now_us);
            let into_us = now_us - turn * SECOND_US;
            assert!(into_us < SECOND_US / 5, "turn {turn} at {now_us}");
            cadence.ended(true, now_us + 700_000);
        }
        // A turn takes three intervals and a half: the next target is the fourth.
        cadence.ended(true, 103_500_000);
        assert!((104 * SECOND_US..104_200_000).contains(&cadence.next_us()), "{}", cadence.next_us());
    }

    #[test]
    fn hastening_it_over_and_over_does_not_move_it_away() {
        let mut cadence = Cadence::new(SECOND_US, 0, 7);
        let (mut now_us, mut turns) = (0, 0);
        while now_us < 60 * SECOND_US {
            cadence.hasten(now_us);
            if cadence.is_due(now_us) {
                turns += 1;
                cadence.ended(true, now_us);
            }
            now_us += 10_000;
        }
        assert!((100..=121).contains(&turns), "{turns} turns in a minute");
        assert!(cadence.next_us() <= now_us + 2 * SECOND_US);
    }

    #[test]
    fn turns_are_jittered_anew() {
        let mut cadence = Cadence::new(SECOND_US, 0, 7);
        let mut offsets = Vec::new();
        for turn in 0..20 {
            offsets.push(cadence.next_us() - turn * SECOND_US);
            cadence.ended(true, cadence.next_us());
        }
        offsets.sort_unstable();
        offsets.dedup();
        assert!(offsets.len() > 15, "{offsets:?}");
    }

    #[test]
    fn failures_make_turns_rare_until_one_succeeds() {
        let mut cadence = Cadence::new(SECOND_US, 0, 7);
        let mut waits = Vec::new();
        let mut now_of_last_us = 0;
        for _ in 0..7 {
            let now_us = cadence.next_us();
            cadence.ended(false, now_us);
            now_of_last_us = now_us;
            waits.push((cadence.next_us() - now_us + SECOND_US / 2) / SECOND_US);
        }
        assert_eq!((cadence.failing_us(now_of_last_us) + SECOND_US / 2) / SECOND_US, 24);
        assert_eq!(waits, [1, 1, 2, 4, 8, 8, 8]);
        assert_eq!(cadence.opened, 1);
        assert!(cadence.is_open() && cadence.ended(true, cadence.next_us()));
        assert!(!cadence.is_open());
        assert_eq!(cadence.failing_us(cadence.next_us()), 0);
    }
}
