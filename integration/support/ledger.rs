//! What a client remembers of its own requests: the oracle that every count is compared with.
//!
//! Times are the machine's wall time, which all processes share, so that each request can be assigned to a window.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use tidegate::clock::wall_time;

/// How a request ended, as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Admitted,
    Denied,
    /// Not answered, or answered with an error.
    Failed,
}

#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Index into the requests of the traffic.
    pub key: usize,
    /// The number of the process, in the order in which processes were added.
    pub process: usize,
    pub hits: u64,
    pub outcome: Outcome,
    pub sent_us: u64,
    pub answered_us: u64,
}

/// All requests, in the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub entries: Vec<Entry>,
}

pub fn wall_us() -> u64 {
    let since = wall_time().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(since.as_micros()).expect("and before the year 500,000")
}

impl Ledger {
    pub fn of(mut entries: Vec<Entry>) -> Ledger {
        entries.sort_by_key(|entry| entry.sent_us);
        Ledger { entries }
    }

    /// The entries that the condition picks.
    pub fn only(&self, pick: impl Fn(&Entry) -> bool) -> Ledger {
        Ledger { entries: self.entries.iter().filter(|entry| pick(entry)).copied().collect() }
    }

    pub fn of_key(&self, key: usize) -> Ledger {
        self.only(|entry| entry.key == key)
    }

    /// The entries that were sent at these times.
    pub fn sent_in(&self, times_us: Range<u64>) -> Ledger {
        self.only(|entry| times_us.contains(&entry.sent_us))
    }

    /// The most requests that waited for an answer at one moment of these times.
    pub fn under_way_max(&self, times_us: Range<u64>) -> u64 {
        let is_under_way = |entry: &&Entry, at_us: u64| entry.sent_us <= at_us && entry.answered_us >= at_us;
        let at = |at_us: u64| self.entries.iter().filter(|entry| is_under_way(entry, at_us)).count() as u64;
        // The number grows only when a request is sent.
        let sent = self.entries.iter().map(|entry| entry.sent_us).filter(|sent_us| times_us.contains(sent_us));
        sent.chain([times_us.start]).map(at).max().unwrap_or(0)
    }

    pub fn count(&self, outcome: Outcome) -> u64 {
        self.entries.iter().filter(|entry| entry.outcome == outcome).count() as u64
    }

    pub fn admitted(&self) -> u64 {
        self.count(Outcome::Admitted)
    }

    pub fn admitted_hits(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.outcome == Outcome::Admitted).map(|entry| entry.hits).sum()
    }

    pub fn denied(&self) -> u64 {
        self.count(Outcome::Denied)
    }

    pub fn failed(&self) -> u64 {
        self.count(Outcome::Failed)
    }

    /// Requests per second that were answered.
    pub fn pace(&self) -> f64 {
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else { return 0.0 };
        let answered = self.entries.len() as u64 - self.failed();
        answered as f64 * 1e6 / (last.sent_us - first.sent_us).max(1) as f64
    }

    /// Hits admitted in each window. A request that was sent in one window and answered in the next could belong to either, and
    /// is counted in neither: a test that finds too many is right, whatever the clocks did.
    pub fn windows(&self, window: Duration) -> BTreeMap<u64, u64> {
        let window_us = micros(window);
        let mut windows = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.outcome == Outcome::Admitted) {
            let sequence = entry.sent_us / window_us;
            if entry.answered_us / window_us == sequence {
                *windows.entry(sequence).or_default() += entry.hits;
            }
        }
        windows
    }

    /// The most hits that a window admitted, divided by the limit.
    pub fn worst_window(&self, limit: u64, window: Duration) -> f64 {
        self.windows(window).into_values().max().unwrap_or(0) as f64 / limit as f64
    }

    /// How many hits of one key a single limiter for all processes would have admitted, deciding each request when it was sent.
    pub fn exact(&self, limit: u64, window: Duration) -> u64 {
        let window_us = micros(window);
        let (mut at, mut current, mut previous, mut admitted) = (0, 0, 0, 0);
        for entry in &self.entries {
            let sequence = entry.sent_us / window_us;
            if sequence != at {
                previous = if sequence == at + 1 { current } else { 0 };
                (at, current) = (sequence, 0);
            }
            let left_us = window_us - entry.sent_us % window_us;
            let weighted = u128::from(previous) * u128::from(left_us) / u128::from(window_us);
            let effective = current + u64::try_from(weighted).expect("a part of a count");
            if effective + entry.hits <= limit {
                current += entry.hits;
                admitted += entry.hits;
            }
        }
        admitted
    }

    /// How long answers took, at a quantile from 0 to 1.
    pub fn latency(&self, quantile: f64) -> Duration {
        let mut took_us: Vec<u64> = self.entries.iter().map(|entry| entry.answered_us - entry.sent_us).collect();
        took_us.sort_unstable();
        let place = ((took_us.len() as f64 * quantile) as usize).min(took_us.len().saturating_sub(1));
        Duration::from_micros(took_us.get(place).copied().unwrap_or(0))
    }
}

fn micros(window: Duration) -> u64 {
    u64::try_from(window.as_micros()).expect("windows are shorter than that")
}

mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A request of one hit, sent at a time in milliseconds and answered a millisecond later.
    fn entry(sent_ms: u64, outcome: Outcome) -> Entry {
        let sent_us = sent_ms * 1000;
        Entry { key: 0, process: 0, hits: 1, outcome, sent_us, answered_us: sent_us + 1000 }
    }

    #[test]
    fn admissions_are_counted_by_window() {
        let admitted = [5000, 5500, 5900, 6100, 6200, 6800].map(|at| entry(at, Outcome::Admitted));
        let others = [entry(5600, Outcome::Denied), entry(5601, Outcome::Failed)];
        let mut ledger = Ledger::of([&admitted[..], &others].concat());
        assert_eq!(ledger.windows(SECOND), BTreeMap::from([(5, 3), (6, 3)]));
        assert_eq!(ledger.worst_window(3, SECOND), 1.0);
        assert_eq!((ledger.admitted_hits(), ledger.denied(), ledger.failed()), (6, 1, 1));
        ledger.entries.push(Entry { answered_us: 7_000_001, ..entry(6999, Outcome::Admitted) });
        assert_eq!(ledger.windows(SECOND)[&6], 3, "what could belong to the next window is not counted");
        assert_eq!(ledger.sent_in(5_600_000..5_602_000).entries.len(), 2);
    }

    #[test]
    fn the_exact_limiter_weighs_the_window_before() {
        let ledger = |times: &[u64]| Ledger::of(times.iter().map(|at| entry(*at, Outcome::Denied)).collect());
        assert_eq!(ledger(&[5000, 5001, 5002]).exact(2, SECOND), 2);
        // Two hits of the window before weigh 2 at first, floor(1.998) = 1 after a millisecond, and 0 after half of the window.
        assert_eq!(ledger(&[5000, 5001, 6000]).exact(2, SECOND), 2);
        assert_eq!(ledger(&[5000, 5001, 6001]).exact(2, SECOND), 3);
        assert_eq!(ledger(&[5000, 5001, 6001, 6002, 6501]).exact(2, SECOND), 4);
        assert_eq!(ledger(&[5000, 5001, 7000, 7001]).exact(2, SECOND), 4, "a window later, nothing is left of it");
        let costly = Ledger::of(vec![Entry { hits: 3, ..entry(5000, Outcome::Denied) }, entry(5001, Outcome::Denied)]);
        assert_eq!(costly.exact(2, SECOND), 1);
    }

    #[test]
    fn latencies_are_those_of_the_client() {
        let slow = |number: u64| Entry { answered_us: 5_000_000 + number, ..entry(5000, Outcome::Admitted) };
        let ledger = Ledger::of((1..=100).map(slow).collect());
        assert_eq!(ledger.latency(0.5), Duration::from_micros(51));
        assert_eq!(ledger.latency(0.99), Duration::from_micros(100));
        assert_eq!(ledger.latency(1.0), Duration::from_micros(100));
        assert_eq!(Ledger::default().latency(0.99), Duration::ZERO);
    }
}
