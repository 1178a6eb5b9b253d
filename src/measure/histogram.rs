//! How long things take, in buckets that double from a microsecond on, so that finding the bucket is counting bits.

use std::time::Duration;

use crate::measure::stripes::Stripes;

/// The buckets end at 1 us, 2 us, 4 us, and so on to about a second; the last one takes the rest.
pub(crate) const BUCKETS: usize = 22;
/// The counter that sums all nanoseconds.
const SUM: usize = BUCKETS;

/// Counts how long something took, each time it was done.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: Stripes<{ BUCKETS + 1 }>,
}

impl Histogram {
    pub fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts.add(bucket(ns), 1);
        self.counts.add(SUM, ns);
    }

    /// For each bucket its upper bound in seconds and how many times fell into it; then the sum of all times in seconds.
    pub fn read(&self) -> ([(f64, u64); BUCKETS], f64) {
        let buckets = std::array::from_fn(|bucket| (upper_s(bucket), self.counts.sum(bucket)));
        (buckets, self.counts.sum(SUM) as f64 / 1e9)
    }
}

fn bucket(ns: u64) -> usize {
    let us = ns.div_ceil(1000).max(1);
    let bucket = us.next_power_of_two().trailing_zeros() as usize;
    bucket.min(BUCKETS - 1)
}

fn upper_s(bucket: usize) -> f64 {
    if bucket == BUCKETS - 1 { f64::INFINITY } else { (1u64 << bucket) as f64 / 1e6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_first_bucket_that_holds_it() {
        for ns in [0, 1, 999, 1000, 1001, 2000, 2001, 1_000_000, 900_000_000, 5_000_000_000] {
            let bucket = bucket(ns);
            assert!(ns as f64 / 1e9 <= upper_s(bucket), "{ns} in {bucket}");
            assert!(bucket == 0 || ns as f64 / 1e9 > upper_s(bucket - 1), "{ns} in {bucket}");
        }
    }

    #[test]
    fn counts_and_sum_are_read_back() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(3));
        histogram.record(Duration::from_secs(2));
        let (buckets, sum_s) = histogram.read();
        assert_eq!((buckets[2].1, buckets[BUCKETS - 1].1), (1, 1));
        assert!((sum_s - 2.000_003).abs() < 1e-9);
    }
}
