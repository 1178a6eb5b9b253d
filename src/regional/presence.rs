//! Does this process know how many processes are alive? Not right after it has started or was away.
//!
//! Every process sends a heartbeat a second, and the origin counts them. A process that has just started hears only
//! with its first heartbeats of those that start with it, and one that was silent is no longer counted by the others.
//! Until its heartbeats have been acknowledged for two seconds, a process takes no part of the slack.

/// How long heartbeats have to be acknowledged before a process is not new any more.
const NEW_FOR_US: u64 = 2_000_000;
/// After this long without a heartbeat the others take a process for gone.
const GONE_AFTER_US: u64 = 3_000_000;
/// How many live processes a stranger assumes at least.
pub(crate) const LIVE_ASSUMED: u32 = 8;

/// How long this process's heartbeats have been acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Presence {
    /// Since when heartbeats have been acknowledged without a gap.
    since_us: Option<u64>,
    /// When the last one was acknowledged.
    last_us: u64,
    /// Heartbeats were acknowledged for long enough at least once.
    has_settled: bool,
}

impl Presence {
    /// Takes note of a heartbeat that was answered.
    pub(crate) fn acknowledged(&mut self, now_us: u64) {
        if self.is_gone(now_us) {
            self.since_us = None;
        }
        let since_us = *self.since_us.get_or_insert(now_us);
        self.last_us = now_us;
        self.has_settled |= now_us.saturating_sub(since_us) >= NEW_FOR_US;
    }

    fn is_gone(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.last_us) > GONE_AFTER_US
    }

    /// Whether others may not count it yet, or it may not know all of them.
    pub(crate) fn is_new(&self, now_us: u64) -> bool {
        let has_lasted = |since_us: u64| self.last_us.saturating_sub(since_us) >= NEW_FOR_US;
        self.is_gone(now_us) || !self.since_us.is_some_and(has_lasted)
    }

    /// Whether it has never known how many processes are alive.
    pub(crate) fn is_stranger(&self) -> bool {
        !self.has_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn after(beats_s: &[u64]) -> Presence {
        let mut presence = Presence::default();
        beats_s.iter().for_each(|at_s| presence.acknowledged(at_s * SECOND_US));
        presence
    }

    #[test]
    fn who_has_just_started_is_new_for_two_seconds() {
        assert!(after(&[]).is_new(10 * SECOND_US) && after(&[]).is_stranger());
        assert!(after(&[10, 11]).is_new(11 * SECOND_US) && after(&[10, 11]).is_stranger());
        assert!(!after(&[10, 11, 12]).is_new(12 * SECOND_US) && !after(&[10, 11, 12]).is_stranger());
    }

    #[test]
    fn who_missed_three_is_new_again_but_no_stranger() {
        let presence = after(&[10, 11, 12]);
        assert!(!presence.is_new(15 * SECOND_US) && presence.is_new(15 * SECOND_US + 1));
        assert!(!after(&[10, 11, 12, 15]).is_new(15 * SECOND_US));
        let back = after(&[10, 11, 12, 20, 21]);
        assert!(back.is_new(21 * SECOND_US) && !back.is_stranger());
        assert!(!after(&[10, 11, 12, 20, 21, 22]).is_new(22 * SECOND_US));
    }
}
