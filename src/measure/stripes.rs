//! Counters that cost a request nothing: every thread adds to a stripe of its own, and a scrape sums the stripes.
//!
//! One shared counter would move its cache line between the cores on every request; a stripe stays where it is.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam::utils::CachePadded;

/// More stripes than this only cost memory: threads that share one rarely meet.
const STRIPES_MAX: usize = 8;

/// One request adds at most this much to a counter, so that no counter wraps around: that would look like a restart.
const ADDED_MAX: u64 = 1 << 40;

/// `N` counters that belong together, on one cache line of each stripe.
#[derive(Debug)]
pub(crate) struct Stripes<const N: usize> {
    stripes: Box<[CachePadded<[AtomicU64; N]>]>,
}

impl<const N: usize> Default for Stripes<N> {
    fn default() -> Self {
        let stripe = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Stripes { stripes: (0..stripes_count()).map(|_| stripe()).collect() }
    }
}

impl<const N: usize> Stripes<N> {
    pub(crate) fn add(&self, counter: usize, count: u64) {
        if count > 0 {
            self.stripes[own_stripe() & (self.stripes.len() - 1)][counter]
                .fetch_add(count.min(ADDED_MAX), Ordering::Relaxed);
        }
    }

    pub(crate) fn sum(&self, counter: usize) -> u64 {
        let counts = self.stripes.iter().map(|stripe| stripe[counter].load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }
}

/// A power of two, about as many as there are cores.
fn stripes_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        cores.next_power_of_two().min(STRIPES_MAX)
    })
}

/// The number of this thread. Threads get theirs in turn.
fn own_stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_add_is_summed() {
        let stripes = Stripes::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..9 {
                scope.spawn(|| (0..1000).for_each(|_| stripes.add(1, 2)));
            }
        });
        assert_eq!((stripes.sum(0), stripes.sum(1)), (0, 18_000));
    }

    #[test]
    fn one_absurd_request_does_not_wrap_a_counter() {
        let stripes = Stripes::<1>::default();
        (0..1000).for_each(|_| stripes.add(0, u64::MAX));
        assert_eq!(stripes.sum(0), 1000 * ADDED_MAX);
    }
}
