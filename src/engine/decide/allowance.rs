//! The headroom rule: how many hits a process may admit on a key before the origin knows of them.
//!
//! Each process may use its part of half of what is left, and never more than its part of the slack. So nobody asks far from
//! the limit, and everybody asks near it. In whatever order the processes admit hits, they exceed the limit by the slack at
//! most.
//!
//! There are as many parts as processes that hold the key; the origin tells how many. In a fleet larger than
//! [`HOLDERS_ASSUMED`] that number may still be growing: if a hundred processes came to a key at the same time, each would
//! take an eighth. So until a process has heard the number twice without much growth, it assumes that every live process
//! holds the key.

/// The figures that the headroom rule goes by, besides what is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headroom {
    /// Hits that fit on a fresh key: the limit, or the burst of a bucket.
    pub limit: u32,
    /// Thousandths of the limit that all processes together may admit before the origin knows.
    pub slack_permille: u16,
    /// Processes that hold the key, as the store last told.
    pub holders: u32,
    /// Their number was told twice, some time apart, and had hardly grown.
    pub is_settled: bool,
    /// Processes of the region that are alive.
    pub live: u32,
}

/// A key is assumed to have this many holders until the origin tells of more: enough that a burst over all of them stays
/// within the slack, few enough that a large fleet does not ask for every hit of a key that only some of it sees.
const HOLDERS_ASSUMED: u32 = 8;

impl Headroom {
    /// How many processes divide what is left.
    fn processes(&self) -> u32 {
        let live = self.live.max(1);
        if self.is_settled { self.holders.clamp(live.min(HOLDERS_ASSUMED), live) } else { live }
    }

    /// Hits that may be pending on the key while so many are available.
    pub(super) fn allowance(&self, available: i64) -> u64 {
        let slack = u64::from(self.limit) * u64::from(self.slack_permille) / 1000;
        let half = available.max(0).unsigned_abs() / 2;
        slack.min(half) / u64::from(self.processes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowance(limit: u32, available: i64, holders: u32, live: u32) -> u64 {
        Headroom { limit, slack_permille: 100, holders, is_settled: true, live }.allowance(available)
    }

    #[test]
    fn it_is_a_part_of_the_slack_far_from_the_limit_and_of_half_the_rest_near_it() {
        assert_eq!(allowance(1000, 1000, 5, 5), 20);
        assert_eq!(allowance(1000, 100, 5, 5), 10);
        assert_eq!(allowance(1000, 9, 5, 5), 0);
        assert_eq!(allowance(1000, -50, 5, 5), 0);
    }

    #[test]
    fn holders_count_from_eight_up_to_all_that_live() {
        assert_eq!(allowance(8000, 8000, 0, 100), 100, "eight are assumed");
        assert_eq!(allowance(8000, 8000, 40, 100), 20);
        assert_eq!(allowance(8000, 8000, 40, 4), 200, "those that are gone do not count");
        assert_eq!(allowance(8000, 8000, 0, 0), 800, "one is alive: this one");
    }

    #[test]
    fn a_small_limit_leaves_nothing_to_guess() {
        assert_eq!(allowance(10, 10, 1, 2), 0);
        let none = Headroom { limit: 1000, slack_permille: 0, holders: 1, is_settled: true, live: 1 };
        assert_eq!(none.allowance(1000), 0);
    }

    #[test]
    fn a_number_that_may_be_growing_is_not_relied_on() {
        let unsettled = |live| Headroom { limit: 8000, slack_permille: 100, holders: 2, is_settled: false, live };
        assert_eq!(unsettled(100).allowance(8000), 8);
        assert_eq!(unsettled(8).allowance(8000), 100, "no more than all that live can come");
    }
}
