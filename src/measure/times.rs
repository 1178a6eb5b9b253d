//! A histogram read at one moment, for whoever shows it.

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

    /// The time that a share of all, such as 0.99, stayed within, in seconds. It is the upper bound of a bucket, infinite
    /// for the last one. `None` if nothing was recorded.
    pub(crate) fn quantile_s(&self, quantile: f64) -> Option<f64> {
        let rank = (self.count() as f64 * quantile).ceil().max(1.0) as u64;
        let mut so_far = 0;
        let holds = |(_, count): &&(f64, u64)| {
            so_far += count;
            so_far >= rank
        };
        self.buckets.iter().find(holds).map(|(upper_s, _)| *upper_s)
    }

    /// For each bucket its upper bound and how many times fell into it.
    pub(crate) fn buckets(&self) -> &[(f64, u64); BUCKETS] {
        &self.buckets
    }

    /// All times together.
    pub(crate) fn sum_s(&self) -> f64 {
        self.sum_s
    }

    /// Multiplies every time, to show it in another unit.
    pub(crate) fn scaled(mut self, factor: f64) -> Times {
        self.buckets.iter_mut().for_each(|(upper, _)| *upper *= factor);
        self.sum_s *= factor;
        self
    }
}
