//! Is it worth asking: a breaker that opens when most calls fail, and closes when a probe succeeds.
//!
//! While it is open nobody asks and nobody waits. Probes are made in the background, never on behalf of a request, so
//! that an origin that is down costs requests nothing. Time is an argument.

/// Outcomes older than this do not count.
const REMEMBERED_US: u64 = 1_000_000;
/// How many outcomes are remembered at most.
const OUTCOMES_MAX: usize = 64;
/// The share of failures counts only when there are at least this many failures.
const OUTCOMES_MIN: usize = 3;
/// The longest time between probes that relapses lead to: each doubles it. A longer configured time stands.
const PROBE_INTERVAL_US_MAX: u64 = 1_000_000;
/// A breaker that opens again within this time has relapsed: a probe had closed it too early.
const RELAPSE_US: u64 = 500_000;

/// How long a breaker waits: before it opens, and between probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// After this long without any answer, a second failure opens the breaker.
    pub outage_after_us: u64,
    /// The time from opening, and from each failed probe, to the next probe.
    pub probe_interval_us: u64,
}

impl Default for BreakerOptions {
    fn default() -> BreakerOptions {
        BreakerOptions { outage_after_us: 500_000, probe_interval_us: 200_000 }
    }
}

/// Says whether a store is worth asking.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breaker {
    options: BreakerOptions,
    /// When recent calls ended and whether they succeeded, the oldest first. Cleared when the breaker opens.
    outcomes: std::collections::VecDeque<(u64, bool)>,
    /// When the first call failed since the last answer.
    unanswered_us: Option<u64>,
    /// `None` while the breaker is closed.
    open: Option<OpenSince>,
    /// When a probe last closed it.
    closed_at_us: Option<u64>,
    /// The time between probes since it last opened.
    interval_us: u64,
    /// How often it has opened.
    pub opened: u64,
}

#[derive(Clone, Copy, Debug)]
struct OpenSince {
    since_us: u64,
    probe_at_us: u64,
    is_probing: bool,
}

impl Breaker {
    pub(crate) fn new(options: BreakerOptions) -> Breaker {
        Breaker { options, ..Breaker::default() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// How long it has been open; `None` while it is closed.
    pub(crate) fn open_for_us(&self, now_us: u64) -> Option<u64> {
        self.open.map(|open| now_us.saturating_sub(open.since_us))
    }

    /// Takes note of how a call ended. True if that opens the breaker: at least half of the recent calls have failed,
    /// or none was answered for too long.
    pub(crate) fn record(&mut self, is_success: bool, now_us: u64) -> bool {
        if self.open.is_some() {
            return false;
        }
        self.outcomes.push_back((now_us, is_success));
        while self.outcomes.len() > OUTCOMES_MAX
            || self.outcomes.front().is_some_and(|(at_us, _)| at_us + REMEMBERED_US < now_us)
        {
            self.outcomes.pop_front();
        }
        if is_success {
            self.answered();
        } else {
            self.unanswered_us.get_or_insert(now_us);
        }
        let failed = self.outcomes.iter().filter(|(_, is_success)| !is_success).count();
        let is_most = failed >= OUTCOMES_MIN && failed * 2 >= self.outcomes.len();
        let is_silence =
            self.unanswered_us.is_some_and(|since_us| now_us.saturating_sub(since_us) >= self.options.outage_after_us);
        if is_success || !(is_most || is_silence) {
            return false;
        }
        self.outcomes.clear();
        self.opened += 1;
        let is_relapse = self.closed_at_us.is_some_and(|closed_us| now_us < closed_us + RELAPSE_US);
        let interval_us = if is_relapse { self.interval_us.saturating_mul(2) } else { 0 };
        self.interval_us = interval_us.min(PROBE_INTERVAL_US_MAX).max(self.options.probe_interval_us);
        self.open = Some(OpenSince { since_us: now_us, probe_at_us: now_us + self.interval_us, is_probing: false });
        true
    }

    /// Takes note of an answer to something else: the store is not silent.
    pub(crate) fn answered(&mut self) {
        self.unanswered_us = None;
    }

    /// True if a probe is due. The caller then makes it and reports with [`Breaker::probed`].
    pub(crate) fn wants_probe(&mut self, now_us: u64) -> bool {
        match &mut self.open {
            Some(open) if !open.is_probing && now_us >= open.probe_at_us => {
                open.is_probing = true;
                true
            }
            _ => false,
        }
    }

    /// Takes note of a probe's end. True if that closes the breaker.
    pub(crate) fn probed(&mut self, is_success: bool, now_us: u64) -> bool {
        let Some(open) = &mut self.open else { return false };
        if is_success {
            self.open = None;
            self.unanswered_us = None;
            self.closed_at_us = Some(now_us);
            return true;
        }
        open.is_probing = false;
        open.probe_at_us = now_us + self.interval_us;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_when_half_of_the_calls_fail() {
        let mut breaker = Breaker::default();
        assert!(!breaker.record(false, 0) && !breaker.record(false, 1));
        assert!(breaker.record(false, 2));
        let mut breaker = Breaker::default();
        for at_us in 0..1000 {
            breaker.record(at_us % 3 != 0, at_us);
        }
        assert!(!breaker.is_open(), "a third of them does not open it");
    }

    #[test]
    fn old_failures_are_forgotten() {
        let mut breaker = Breaker::default();
        for second in 0..10 {
            assert!(!breaker.record(false, second * 600_000));
            breaker.answered();
        }
    }

    #[test]
    fn silence_opens_it_too() {
        let mut breaker = Breaker::default();
        assert!(!breaker.record(false, 0) && breaker.record(false, 600_000), "nothing was answered for half a second");
        let mut breaker = Breaker::default();
        breaker.record(true, 0);
        assert!(!breaker.record(false, 100_000));
        breaker.record(true, 400_000);
        assert!(!breaker.record(false, 700_000), "something was");
        let mut breaker = Breaker::new(BreakerOptions { outage_after_us: 3_000_000, ..BreakerOptions::default() });
        assert!(!breaker.record(false, 0) && !breaker.record(false, 2_000_000) && breaker.record(false, 4_000_000));
    }

    #[test]
    fn only_a_probe_closes_it() {
        let mut breaker = Breaker::default();
        (0..3).for_each(|at_us| assert_eq!(breaker.record(false, at_us), at_us == 2));
        breaker.record(true, 10);
        assert!(breaker.is_open() && !breaker.wants_probe(100));
        assert!(breaker.wants_probe(300_000));
        assert!(!breaker.wants_probe(300_001), "one probe at a time");
        assert!(!breaker.probed(false, 400_000) && breaker.is_open());
        assert!(breaker.wants_probe(700_000));
        assert!(breaker.probed(true, 700_001) && !breaker.is_open());
        assert_eq!(breaker.opened, 1);
        // It relapses: the next probe is due later.
        (0..3).for_each(|at_us| assert_eq!(breaker.record(false, 700_002 + at_us), at_us == 2));
        assert!(!breaker.wants_probe(1_000_000) && breaker.wants_probe(1_200_000));
    }
}
