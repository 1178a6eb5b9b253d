//! A histogram at one moment, for those who show it.

use crate::measure::histogram::{BUCKETS, Histogram};

/// A histogram as it was at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    buckets: [(f64, u64); BUCKETS],
    sum_s: f64,
}

impl Times {
    pub(crate) fn of(histogram: &Histogram) -> Times {
        let (buckets, sum_s) = histogram.read();
        Times { buckets, sum_s }
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// So many of all took at most this long, in seconds: the upper bound of a bucket, infinite for the last. `None` if
    /// nothing was recorded.
    pub(crate) fn quantile_s(&self, quantile: f64) -> Option<f64> {
        let rank = (self.count() as f64 * quantile).ceil().max(1.0) as u64;
        let mut so_far = 0;
        let holds = |(_, count): &&(f64, u64)| {
            so_far += count;
            so_far >= rank
        };
        self.buckets.iter().find(holds).map(|(upper_s, _)| *upper_s)
    }

    /// The upper bound of each bucket and what it holds.
    pub(crate) fn buckets(&self) -> &[(f64, u64); BUCKETS] {
        &self.buckets
    }

    /// All of them together.
    pub(crate) fn sum_s(&self) -> f64 {
        self.sum_s
    }

    /// Every time multiplied, as for another unit.
    pub(crate) fn scaled(mut self, factor: f64) -> Times {
        self.buckets.iter_mut().for_each(|(upper, _)| *upper *= factor);
        self.sum_s *= factor;
        self
    }
}
