//! Is it worth asking: a breaker that opens when asking is in vain, and closes when probes find that it is not.
//!
//! While it is open nobody asks and nobody waits. Probes are made in the background, never on behalf of a request, so
//! that an origin that is down costs requests nothing. Time is an argument.
//!
//! Slow is not down. A call that is not answered in its time is *late*: nobody knows whether the answer is lost or still on
//! its way. Whatever comes over the connection is a sign of life, also an answer that comes too late. So the breaker opens for
//! one of three reasons:
//!
//! - **Broken.** At least three calls of the last second have failed for good (refused, or the connection broke), and half of
//!   all.
//! - **Silent.** Calls are late, and there has been no sign of life since: at least three calls and a tenth of a second, or
//!   two calls and [`BreakerOptions::outage_after_us`].
//! - **In vain.** Of at least eight calls of the last second, fewer than one in ten was answered in time. Whoever asks would
//!   wait for nothing.
//!
//! A store of which half of the answers come in time stays in use, however it came to be so slow. It closes again only when
//! several calls in a row are answered in time, so that a store between the two neither opens nor closes anything. Probes are
//! made less often the longer they fail, and after a relapse.

/// Outcomes older than this do not count.
const REMEMBERED_US: u64 = 1_000_000;
/// How many outcomes are remembered at most.
const OUTCOMES_MAX: usize = 64;
/// Fewer calls say nothing, if they are broken or if nothing is heard for [`SILENCE_US`].
const FAILURES_MIN: usize = 3;
/// Fewer calls do not show that asking is in vain.
const IN_VAIN_MIN: usize = 8;
/// One call of so many has to be answered in time.
const IN_TIME_ONE_OF: usize = 10;
/// A store that serves anything says something within this time.
const SILENCE_US: u64 = 100_000;
/// The longest time between probes that failing probes or relapses lead to: each doubles it. A longer configured time stands.
/// Short enough that totals are right again two seconds after a store is back.
const PROBE_INTERVAL_US_MAX: u64 = 500_000;
/// A breaker that opens again within this time has relapsed: probes had closed it too early.
const RELAPSE_US: u64 = 1_000_000;
/// Relapses are forgiven when it has been closed for this long.
const FORGIVEN_US: u64 = 10_000_000;

/// How long a breaker waits: before it opens, and between probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// After this long without any answer, a second late call opens the breaker.
    pub outage_after_us: u64,
    /// The time from opening to the first probe; between later ones it doubles.
    pub probe_interval_us: u64,
}

impl Default for BreakerOptions {
    fn default() -> BreakerOptions {
        BreakerOptions { outage_after_us: 500_000, probe_interval_us: 200_000 }
    }
}

/// How a call ended, as far as the store's health goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallEnd {
    /// It was answered in time.
    InTime,
    /// Its time was up before an answer came.
    Late {
        /// When anything last came over its connection, in monotonic time; `None`: never, or nobody knows.
        heard_us: Option<u64>,
    },
    /// It will have no answer, or was refused.
    Failed,
}

/// Says whether a store is worth asking.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breaker {
    options: BreakerOptions,
    /// When recent calls ended and how, the oldest first. Cleared when the breaker opens.
    outcomes: std::collections::VecDeque<(u64, CallEnd)>,
    /// When the first call went without an answer since the last sign of life.
    unanswered_us: Option<u64>,
    /// `None` while the breaker is closed.
    open: Option<OpenSince>,
    /// When probes last closed it.
    closed_at_us: Option<u64>,
    /// How often it has relapsed without being forgiven.
    relapses: u32,
    /// Spreads the probes of processes that lost the store together.
    luck: u64,
    /// How often it has opened.
    pub opened: u64,
}

#[derive(Clone, Copy, Debug)]
struct OpenSince {
    since_us: u64,
    probe_at_us: u64,
    /// The time to the next probe, before luck has taken its part.
    interval_us: u64,
    is_probing: bool,
}

impl Breaker {
    /// `seed` should differ between processes.
    pub(crate) fn new(options: BreakerOptions, seed: u64) -> Breaker {
        Breaker { options, luck: seed | 1, ..Breaker::default() }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// How long it has been open; `None` while it is closed.
    pub(crate) fn open_for_us(&self, now_us: u64) -> Option<u64> {
        self.open.map(|open| now_us.saturating_sub(open.since_us))
    }

    /// Takes note of how a call ended. True if that opens the breaker.
    pub(crate) fn record(&mut self, end: CallEnd, now_us: u64) -> bool {
        if self.open.is_some() {
            return false;
        }
        self.outcomes.push_back((now_us, end));
        while self.outcomes.len() > OUTCOMES_MAX
            || self.outcomes.front().is_some_and(|(at_us, _)| at_us + REMEMBERED_US < now_us)
        {
            self.outcomes.pop_front();
        }
        match end {
            CallEnd::InTime => {
                self.answered();
                return false;
            }
            CallEnd::Late { heard_us: Some(heard_us) } if self.unanswered_us.is_some_and(|since| heard_us >= since) => {
                self.unanswered_us = Some(now_us);
            }
            CallEnd::Late { .. } | CallEnd::Failed => {
                self.unanswered_us.get_or_insert(now_us);
            }
        }
        if !(self.is_broken() || self.is_silent(now_us) || self.is_in_vain()) {
            return false;
        }
        self.open(now_us);
        true
    }

    fn is_broken(&self) -> bool {
        let failed = self.outcomes.iter().filter(|(_, end)| *end == CallEnd::Failed).count();
        failed >= FAILURES_MIN && failed * 2 >= self.outcomes.len()
    }

    fn is_silent(&self, now_us: u64) -> bool {
        let Some(since_us) = self.unanswered_us else { return false };
        let silence_us = now_us.saturating_sub(since_us);
        let calls = self.outcomes.iter().rev().take_while(|(at_us, _)| *at_us >= since_us).count();
        let is_long = silence_us > 0 && silence_us >= self.options.outage_after_us;
        is_long || silence_us >= SILENCE_US && calls >= FAILURES_MIN
    }

    fn is_in_vain(&self) -> bool {
        let in_time = self.outcomes.iter().filter(|(_, end)| *end == CallEnd::InTime).count();
        self.outcomes.len() >= IN_VAIN_MIN && in_time * IN_TIME_ONE_OF < self.outcomes.len()
    }

    fn open(&mut self, now_us: u64) {
        self.outcomes.clear();
        self.opened += 1;
        let closed_for_us = self.closed_at_us.map(|closed_us| now_us.saturating_sub(closed_us));
        self.relapses = match closed_for_us {
            Some(closed_for_us) if closed_for_us < RELAPSE_US => self.relapses.saturating_add(1).min(16),
            Some(closed_for_us) if closed_for_us < FORGIVEN_US => self.relapses,
            _ => 0,
        };
        let configured_us = self.options.probe_interval_us;
        let interval_us = (configured_us << self.relapses).min(PROBE_INTERVAL_US_MAX).max(configured_us);
        let probe_at_us = now_us + self.spread(interval_us);
        self.open = Some(OpenSince { since_us: now_us, probe_at_us, interval_us, is_probing: false });
    }

    /// Takes up to a quarter away. xorshift64: it need not be unpredictable, but it has to be repeatable.
    fn spread(&mut self, interval_us: u64) -> u64 {
        self.luck ^= self.luck << 13;
        self.luck ^= self.luck >> 7;
        self.luck ^= self.luck << 17;
        interval_us - (self.luck >> 32) % (interval_us / 4).max(1)
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

    /// Takes note of a probe's end: whether several calls in a row were answered in time. True if that closes the breaker.
    pub(crate) fn probed(&mut self, is_success: bool, now_us: u64) -> bool {
        let Some(OpenSince { interval_us, .. }) = self.open else { return false };
        if is_success {
            self.open = None;
            self.unanswered_us = None;
            self.closed_at_us = Some(now_us);
            return true;
        }
        let interval_us = interval_us.max((interval_us * 2).min(PROBE_INTERVAL_US_MAX));
        let probe_at_us = now_us + self.spread(interval_us);
        if let Some(open) = &mut self.open {
            (open.is_probing, open.interval_us, open.probe_at_us) = (false, interval_us, probe_at_us);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: CallEnd = CallEnd::Late { heard_us: None };
    const MS: u64 = 1000;

    #[test]
    fn it_opens_when_half_of_the_calls_fail() {
        let mut breaker = Breaker::default();
        assert!(!breaker.record(CallEnd::Failed, 0) && !breaker.record(CallEnd::Failed, 1));
        assert!(breaker.record(CallEnd::Failed, 2));
        let mut breaker = Breaker::default();
        for at_us in 0..1000 {
            breaker.record(if at_us % 3 != 0 { CallEnd::InTime } else { CallEnd::Failed }, at_us);
        }
        assert!(!breaker.is_open(), "a third of them does not open it");
    }

    #[test]
    fn old_failures_are_forgotten() {
        let mut breaker = Breaker::default();
        for second in 0..10 {
            assert!(!breaker.record(CallEnd::Failed, second * 600_000));
            breaker.answered();
        }
    }

    #[test]
    fn silence_opens_it_too() {
        let mut breaker = Breaker::default();
        assert!(!breaker.record(LATE, 0) && breaker.record(LATE, 600_000), "nothing was answered for half a second");
        let mut breaker = Breaker::default();
        breaker.record(CallEnd::InTime, 0);
        assert!(!breaker.record(LATE, 100_000));
        breaker.record(CallEnd::InTime, 400_000);
        assert!(!breaker.record(LATE, 700_000), "something was");
        let options = BreakerOptions { outage_after_us: 3_000_000, ..BreakerOptions::default() };
        let mut breaker = Breaker::new(options, 1);
        assert!(!breaker.record(LATE, 0) && !breaker.record(LATE, 2_000_000) && breaker.record(LATE, 4_000_000));
        // Many calls show it sooner.
        let mut breaker = Breaker::default();
        (0..64).for_each(|at| assert!(!breaker.record(CallEnd::InTime, at * MS)));
        assert!(!breaker.record(LATE, 100 * MS) && !breaker.record(LATE, 150 * MS) && breaker.record(LATE, 200 * MS));
    }

    #[test]
    fn late_answers_are_signs_of_life() {
        // Two in three are late, and what comes late is heard before the next call is.
        let mut breaker = Breaker::default();
        for call in 0..10_000u64 {
            let at_us = call * 15 * MS;
            let late = CallEnd::Late { heard_us: Some(at_us.saturating_sub(13 * MS)) };
            let end = if call % 3 == 0 { CallEnd::InTime } else { late };
            assert!(!breaker.record(end, at_us), "call {call}");
        }
        // Few calls, none in time: each is answered before the next.
        let mut breaker = Breaker::default();
        for call in 0..100u64 {
            let heard_us = Some((call * 1000 * MS).saturating_sub(998 * MS));
            assert!(!breaker.record(CallEnd::Late { heard_us }, call * 1000 * MS), "call {call}");
        }
    }

    #[test]
    fn answers_that_never_come_in_time_are_in_vain() {
        let mut breaker = Breaker::default();
        let opened = (1..100u64).find(|call| {
            let at_us = call * 5 * MS;
            breaker.record(CallEnd::Late { heard_us: Some(at_us - MS) }, at_us)
        });
        assert_eq!(opened, Some(IN_VAIN_MIN as u64));
    }

    #[test]
    fn only_a_probe_closes_it() {
        let mut breaker = Breaker::default();
        (0..3).for_each(|at_us| assert_eq!(breaker.record(CallEnd::Failed, at_us), at_us == 2));
        breaker.record(CallEnd::InTime, 10);
        assert!(breaker.is_open() && !breaker.wants_probe(100));
        assert!(breaker.wants_probe(300_000));
        assert!(!breaker.wants_probe(300_001), "one probe at a time");
        assert!(!breaker.probed(false, 400_000) && breaker.is_open());
        assert!(!breaker.wants_probe(650_000) && breaker.wants_probe(800_000));
        assert!(breaker.probed(true, 800_001) && !breaker.is_open());
        assert_eq!(breaker.opened, 1);
        // It relapses: the next probe is due later.
        (0..3).for_each(|at_us| assert_eq!(breaker.record(CallEnd::Failed, 800_002 + at_us), at_us == 2));
        assert!(!breaker.wants_probe(1_050_000) && breaker.wants_probe(1_250_000));
    }

    #[test]
    fn failing_probes_become_rare_but_stay_frequent_enough_to_find_a_store_that_is_back() {
        let mut breaker = Breaker::new(BreakerOptions::default(), 7);
        (0..3).for_each(|_| _ = breaker.record(CallEnd::Failed, 0));
        let mut probes = Vec::new();
        for at_us in (0..60_000_000).step_by(10_000) {
            if breaker.wants_probe(at_us) {
                probes.push(at_us);
                breaker.probed(false, at_us);
            }
        }
        assert!(probes.len() < 170, "{}", probes.len());
        let pauses = || probes.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(pauses().all(|pause_us| pause_us <= PROBE_INTERVAL_US_MAX + 10_000));
        assert!(pauses().skip(5).any(|pause_us| pause_us < 450_000), "they are not in step with others");
    }

    #[test]
    fn relapses_make_it_wait_longer_until_they_are_forgiven() {
        let mut breaker = Breaker::new(BreakerOptions::default(), 3);
        let mut now_us = 0;
        let mut pause_us = |closed_for_us: u64| {
            now_us += closed_for_us;
            (0..3).for_each(|_| _ = breaker.record(CallEnd::Failed, now_us));
            let opened_us = now_us;
            while !breaker.wants_probe(now_us) {
                now_us += MS;
            }
            breaker.probed(true, now_us);
            now_us - opened_us
        };
        let pauses: Vec<u64> = (0..7).map(|_| pause_us(MS)).collect();
        assert!(pauses.windows(2).take(2).all(|pair| pair[0] < pair[1]), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= PROBE_INTERVAL_US_MAX), "{pauses:?}");
        assert!(pause_us(FORGIVEN_US) <= 200 * MS);
    }
}
