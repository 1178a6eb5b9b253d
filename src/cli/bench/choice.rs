//! Which key is asked for next: always the same, all alike, or some far more often than others.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

/// Draws numbers from 0, each of which stands for a key.
pub(super) struct KeyChoice {
    random: SmallRng,
    spread: Spread,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Spread {
    One,
    Uniform {
        keys: u64,
    },
    /// Key n is asked for in proportion to `1 / (n + 1)^s`.
    Zipf(Zipf<f64>),
}

impl Spread {
    pub(super) fn new(keys: u64, skew: Option<f64>) -> Result<Spread, String> {
        match skew {
            _ if keys == 1 => Ok(Spread::One),
            None => Ok(Spread::Uniform { keys }),
            Some(skew) => Zipf::new(keys as f64, skew).map(Spread::Zipf).map_err(|error| error.to_string()),
        }
    }
}

impl KeyChoice {
    pub(super) fn new(spread: Spread, seed: u64) -> KeyChoice {
        KeyChoice { random: SmallRng::seed_from_u64(seed), spread }
    }

    pub(super) fn next(&mut self) -> u64 {
        match self.spread {
            Spread::One => 0,
            Spread::Uniform { keys } => self.random.random_range(0..keys),
            // Ranks start at 1.
            Spread::Zipf(zipf) => zipf.sample(&mut self.random) as u64 - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(keys: u64, skew: Option<f64>) -> Vec<u32> {
        let mut choice = KeyChoice::new(Spread::new(keys, skew).unwrap(), 7);
        let mut counts = vec![0; keys as usize];
        for _ in 0..100_000 {
            counts[choice.next() as usize] += 1;
        }
        counts
    }

    #[test]
    fn without_skew_all_keys_are_alike() {
        assert_eq!(counts(1, None), [100_000]);
        for count in counts(10, None) {
            assert!((9_000..11_000).contains(&count), "{count} of 10000");
        }
    }

    #[test]
    fn skew_favours_the_first_keys() {
        let counts = counts(1000, Some(1.0));
        // The sum of 1/n up to 1000 is 7.49.
        for (rank, share) in [(1, 0.1336), (2, 0.0668), (10, 0.01336)] {
            let count = f64::from(counts[rank - 1]);
            let expected = share * 100_000.0;
            assert!((count - expected).abs() < 0.15 * expected, "rank {rank}: {count}, not {expected}");
        }
    }
}
