//! The headroom rule: how many hits a process may admit on a key before the origin knows of them.
//!
//! Every live process of the region may have its part of half of what is left pending, and never more than its part of the
//! slack. So far from the limit nobody asks, near it everybody does, and however the processes take turns, and however old
//! their views are, they admit at most the slack too much:
//!
//! - The origin admits a check only if what it knows stays within the limit. Telling moves hits there, and adds none.
//! - While the origin knows of no more than the limit, what is pending comes on top: the credit of each process.
//! - Who tells more than that hears so, and denies. So everyone adds what is left of one credit at most.
//!
//! Nobody has to have heard of a key for this to hold, so nobody waits because a key is cold or a view is old. It takes two
//! things: what is pending is summed over all cells that still count, and all that live are counted, which a process that has
//! just come does not know yet.

/// What the rule takes into account besides the key's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Headroom {
    /// The limit; of a bucket its burst: it is full at that, whatever its rate.
    pub limit: u32,
    /// Thousandths of the limit that all processes together may admit before the origin knows.
    pub slack_permille: u16,
    /// Processes of the region that are alive.
    pub live: u32,
}

impl Headroom {
    fn slack(&self) -> u64 {
        u64::from(self.limit) * u64::from(self.slack_permille) / 1000
    }

    /// The most hits that a process may ever have pending on a key. 0: every request that memory does not deny has to ask.
    pub(crate) fn credit(&self) -> u64 {
        self.slack() / u64::from(self.live.max(1))
    }

    /// Memory decides far from the limit. Otherwise the limit is closed, and every request has to ask.
    pub(crate) fn is_open(&self) -> bool {
        self.credit() > 0
    }

    /// Hits that may be pending on the key while so many are available.
    pub(crate) fn allowance(&self, available: i64) -> u64 {
        let half = available.max(0).unsigned_abs() / 2;
        self.slack().min(half) / u64::from(self.live.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headroom(limit: u32, live: u32) -> Headroom {
        Headroom { limit, slack_permille: 100, live }
    }

    fn allowance(limit: u32, available: i64, live: u32) -> u64 {
        headroom(limit, live).allowance(available)
    }

    #[test]
    fn it_is_a_part_of_the_slack_far_from_the_limit_and_of_half_the_rest_near_it() {
        assert_eq!(allowance(1000, 1000, 5), 20);
        assert_eq!(allowance(1000, 100, 5), 10);
        assert_eq!(allowance(1000, 9, 5), 0);
        assert_eq!(allowance(1000, -50, 5), 0);
    }

    #[test]
    fn all_that_live_share_it() {
        assert_eq!(allowance(8000, 8000, 100), 8);
        assert_eq!(allowance(8000, 8000, 4), 200);
        assert_eq!(allowance(8000, 8000, 0), 800, "one is alive: this one");
    }

    #[test]
    fn a_limit_of_which_nobody_has_a_whole_hit_is_closed() {
        let is_open = |limit, live| headroom(limit, live).is_open();
        assert!(is_open(100, 9) && is_open(100, 10) && !is_open(100, 11));
        assert!(is_open(10, 1) && !is_open(10, 2) && !is_open(9, 1));
        assert!(!Headroom { slack_permille: 0, ..headroom(1000, 1) }.is_open());
        assert_eq!(headroom(1000, 9).credit(), 11);
    }
}
