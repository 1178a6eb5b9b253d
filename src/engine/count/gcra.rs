//! GCRA: a steady rate with a burst on top, as a bucket that drains.
//!
//! The level is kept in hits times milliseconds of the window: one hit raises it by D, the window's length, and one
//! millisecond lowers it by the limit. So it is exact in whole numbers for every rate, and a changed limit changes how fast
//! it drains, not how full it is.

/// A bucket holds at most this many times its burst and its limit. Anything beyond that is forgiven, so that one report of
/// nonsense does not deny a key for years; a window forgives after two windows. The origin's buckets hold as much.
pub(crate) const DEBT_TIMES: u64 = 10;

/// A store hears of hits this soon after they came, if it answers: four flushes. What a process has drained by itself meanwhile, all
/// others have drained too, so it must not be taken from what each of them tells.
const TOLD_WITHIN_MS: u64 = 200;

/// The bucket of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// When the level was last brought up to date.
    at_ms: u64,
    // Two halves of a u128, whose alignment would widen every slot.
    level_high: u64,
    level_low: u64,
}

/// How fast a bucket drains and how much fits into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Hits that drain in one window. With 0 the bucket never drains.
    pub limit: u32,
    /// Also what one hit adds to the level.
    pub window_ms: u64,
    /// Hits that fit into an empty bucket.
    pub burst: u32,
}

impl Rate {
    fn capacity(&self) -> u128 {
        u128::from(self.burst) * u128::from(self.window_ms)
    }

    /// How long so many hits take to drain, `u64::MAX` if they never do.
    pub(crate) fn drains_in_ns(&self, hits: u64) -> u64 {
        const MS_NS: u128 = 1_000_000;
        let time_ns = (self.cost(hits) * MS_NS).checked_div(self.limit.into());
        time_ns.and_then(|time_ns| u64::try_from(time_ns).ok()).unwrap_or(u64::MAX)
    }

    /// How many hits it holds at most.
    pub(crate) fn most(&self) -> u64 {
        DEBT_TIMES * (u64::from(self.burst) + u64::from(self.limit))
    }

    fn cost(&self, hits: u64) -> u128 {
        u128::from(hits) * u128::from(self.window_ms)
    }
}

impl Bucket {
    pub(crate) fn new(now_ms: u64) -> Bucket {
        Bucket { at_ms: now_ms, level_high: 0, level_low: 0 }
    }

    /// When the level was last brought up to date.
    pub(crate) fn at_ms(&self) -> u64 {
        self.at_ms
    }

    fn level(&self) -> u128 {
        (u128::from(self.level_high) << 64) | u128::from(self.level_low)
    }

    fn set_level(&mut self, level: u128) {
        self.level_high = (level >> 64) as u64;
        self.level_low = level as u64;
    }

    /// Drains up to `now_ms` and returns the key's own time, which does not follow a clock that goes back a little. A clock
    /// that is behind the key by more than a window was wrong before: the key moves back, and the level stays.
    pub(crate) fn drain(&mut self, now_ms: u64, rate: &Rate) -> u64 {
        if now_ms < self.at_ms {
            if now_ms.saturating_add(rate.window_ms) < self.at_ms {
                self.at_ms = now_ms;
            }
            return self.at_ms;
        }
        let drained = u128::from(now_ms - self.at_ms) * u128::from(rate.limit);
        self.set_level(self.level().saturating_sub(drained));
        self.at_ms = now_ms;
        now_ms
    }

    /// How many hits fit now; below zero when more was charged than fits.
    pub(crate) fn available(&self, rate: &Rate) -> i64 {
        let window_ms = u128::from(rate.window_ms);
        let (level, capacity) = (self.level(), rate.capacity());
        if level <= capacity {
            return i64::try_from((capacity - level) / window_ms).unwrap_or(i64::MAX);
        }
        i64::try_from((level - capacity).div_ceil(window_ms)).map_or(i64::MIN, |debt| -debt)
    }

    /// The first moment at which so many hits fit if nothing else arrives; `None` if they never do.
    pub(crate) fn admits_at(&self, rate: &Rate, hits: u64) -> Option<u64> {
        let needed = self.level() + rate.cost(hits);
        if needed <= rate.capacity() {
            return Some(self.at_ms);
        }
        if rate.cost(hits) > rate.capacity() || rate.limit == 0 {
            return None;
        }
        Some(self.after(needed - rate.capacity(), rate))
    }

    /// When the bucket is empty again, if so many hits are added.
    pub(crate) fn empty_at_ms(&self, rate: &Rate, hits: u64) -> u64 {
        self.after(self.level().saturating_add(rate.cost(hits)), rate)
    }

    /// When the bucket would be empty again without so many of its hits.
    pub(crate) fn empty_without_at_ms(&self, rate: &Rate, hits: u64) -> u64 {
        self.after(self.level().saturating_sub(rate.cost(hits)), rate)
    }

    fn after(&self, level: u128, rate: &Rate) -> u64 {
        let wait_ms = level
            .checked_div_euclid(u128::from(rate.limit))
            .map_or(u128::MAX, |whole| whole + u128::from(!level.is_multiple_of(u128::from(rate.limit))));
        self.at_ms.saturating_add(u64::try_from(wait_ms).unwrap_or(u64::MAX))
    }

    /// Takes over a level, in whole hits and parts of a hit (`1 / window_ms`), that drains from a moment on.
    pub(crate) fn set(&mut self, from_ms: u64, (whole, rest): (u64, u64), rate: &Rate) {
        self.at_ms = from_ms;
        self.set_level(rate.cost(whole).saturating_add(rest.into()));
    }

    /// The level in whole hits, rounded up.
    pub(crate) fn hits_within(&self, rate: &Rate) -> u64 {
        u64::try_from(self.level().div_ceil(u128::from(rate.window_ms))).unwrap_or(u64::MAX)
    }

    /// How many of its hits a store may still add that is told of them now, so long after the first of them came: those in it, and
    /// what has drained since. Of hits that have waited for longer than usual, what has drained is no more.
    pub(crate) fn hits_to_tell(&self, rate: &Rate, after_ms: u64) -> u64 {
        let drained = match after_ms {
            ..=TOLD_WITHIN_MS => u128::from(rate.limit) * u128::from(after_ms),
            _ => 0,
        };
        u64::try_from((self.level() + drained).div_ceil(u128::from(rate.window_ms))).unwrap_or(u64::MAX)
    }

    /// The level without so many of its hits, in whole hits and parts of a hit (`1 / window_ms`).
    pub(crate) fn level_without(&self, hits: u64, rate: &Rate) -> (u64, u64) {
        let level = self.level().saturating_sub(rate.cost(hits));
        let window_ms = u128::from(rate.window_ms);
        (u64::try_from(level / window_ms).unwrap_or(u64::MAX), (level % window_ms) as u64)
    }

    /// Adds hits, up to ten windows' worth and ten bursts. A level that is above that already stays as it is.
    pub(crate) fn add(&mut self, rate: &Rate, hits: u64) {
        let before = self.level();
        let most = rate.cost(rate.most());
        self.set_level(before.saturating_add(rate.cost(hits)).min(most.max(before)));
    }

    pub(crate) fn refund(&mut self, rate: &Rate, hits: u64) {
        self.set_level(self.level().saturating_sub(rate.cost(hits)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: Rate = Rate { limit: 10, window_ms: 60_000, burst: 5 };

    #[test]
    fn a_fresh_key_admits_its_burst_at_once() {
        let mut bucket = Bucket::new(1000);
        assert_eq!(bucket.available(&RATE), 5);
        bucket.add(&RATE, 5);
        assert_eq!(bucket.available(&RATE), 0);
        assert_eq!(bucket.admits_at(&RATE, 1), Some(7000));
        assert_eq!(bucket.admits_at(&RATE, 6), None);
        assert_eq!(bucket.empty_at_ms(&RATE, 0), 31_000);
    }

    #[test]
    fn debt_shows_until_it_has_drained() {
        let mut bucket = Bucket::new(0);
        bucket.add(&RATE, 8);
        assert_eq!(bucket.available(&RATE), -3);
        bucket.drain(18_000, &RATE);
        assert_eq!(bucket.available(&RATE), 0);
        bucket.refund(&RATE, 100);
        assert_eq!(bucket.available(&RATE), 5, "a refund is never banked");
    }

    #[test]
    fn a_report_of_nonsense_is_forgiven_after_some_windows() {
        let mut bucket = Bucket::new(0);
        (0..3).for_each(|_| bucket.add(&RATE, u64::MAX));
        assert_eq!(bucket.available(&RATE), 5 - 150);
        assert_eq!(bucket.admits_at(&RATE, 1), Some(146 * 6_000));
    }

    #[test]
    fn a_clock_that_was_wrong_keeps_the_level() {
        let mut bucket = Bucket::new(10_000_000);
        bucket.add(&RATE, 5);
        assert_eq!(bucket.drain(9_990_000, &RATE), 10_000_000, "a little behind: the key waits");
        assert_eq!(bucket.drain(1_000_000, &RATE), 1_000_000);
        assert_eq!(bucket.available(&RATE), 0);
        bucket.drain(1_006_000, &RATE);
        assert_eq!(bucket.available(&RATE), 1);
    }

    #[test]
    fn nothing_overflows() {
        let rate = Rate { limit: u32::MAX, window_ms: 31_622_400_000, burst: u32::MAX };
        let mut bucket = Bucket::new(0);
        for _ in 0..3 {
            bucket.add(&rate, u64::MAX);
        }
        assert!(bucket.available(&rate) < 0);
        assert!(bucket.admits_at(&rate, 1).is_some());
        let blocked = Rate { limit: 0, ..rate };
        assert_eq!(bucket.admits_at(&blocked, 0), None);
        assert_eq!(bucket.empty_at_ms(&blocked, 0), u64::MAX);
    }

    proptest! {
        #[test]
        fn the_retry_time_is_the_first_that_passes(
            limit in 1u32..20, window_ms in 1000u64..5000, burst in 1u32..20, used in 0u64..30, hits in 0u64..25,
        ) {
            let rate = Rate { limit, window_ms, burst };
            let mut bucket = Bucket::new(0);
            bucket.add(&rate, used);
            let admitted = |at_ms: u64| {
                let mut later = bucket;
                later.drain(at_ms, &rate);
                later.available(&rate) >= hits as i64
            };
            let expected = (hits <= u64::from(burst)).then(|| (0..).find(|at_ms| admitted(*at_ms))).flatten();
            prop_assert_eq!(bucket.admits_at(&rate, hits), expected);
        }

        /// Over any stretch of time, no more passes than the burst and what the rate lets in meanwhile.
        #[test]
        fn the_rate_holds(
            limit in 1u32..20, burst in 1u32..20, steps in prop::collection::vec((0u64..400, 0u64..4), 1..100),
        ) {
            let rate = Rate { limit, window_ms: 1000, burst };
            let mut bucket = Bucket::new(0);
            let mut now_ms = 0;
            let mut log: Vec<(u64, u64)> = Vec::new();
            for (wait_ms, hits) in steps {
                now_ms += wait_ms;
                bucket.drain(now_ms, &rate);
                if bucket.available(&rate) >= hits as i64 {
                    bucket.add(&rate, hits);
                    log.push((now_ms, hits));
                }
            }
            for (first, (start_ms, _)) in log.iter().enumerate() {
                let mut sum = 0;
                for (at_ms, hits) in &log[first..] {
                    sum += hits;
                    let refilled = (at_ms - start_ms) * u64::from(limit) / 1000;
                    prop_assert!(sum <= u64::from(burst) + refilled);
                }
            }
        }
    }
}
