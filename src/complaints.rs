//! Limits what is logged about lasting trouble: each complaint is made once a minute, however often there is reason for it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a complaint rests after it was made.
const INTERVAL: Duration = Duration::from_secs(60);

/// When each kind of complaint was last made. There are few kinds, so entries stay for ever.
#[derive(Debug)]
pub(crate) struct Complaints<K>(Mutex<BTreeMap<K, Instant>>);

impl<K> Default for Complaints<K> {
    fn default() -> Complaints<K> {
        Complaints(Mutex::default())
    }
}

impl<K: Ord> Complaints<K> {
    /// Whether to complain of this now. After true the complaint counts as made, so the caller has to make it.
    pub(crate) fn is_due(&self, what: K, now: Instant) -> bool {
        let mut made = self.0.lock();
        let is_due = made.get(&what).is_none_or(|at| now.saturating_duration_since(*at) >= INTERVAL);
        if is_due {
            made.insert(what, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complaint_is_made_once_a_minute() {
        let complaints = Complaints::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(complaints.is_due("a", at(0)) && complaints.is_due("b", at(1)));
        assert!(!complaints.is_due("a", at(59)) && complaints.is_due("a", at(60)));
        assert!(!complaints.is_due("b", at(60)) && complaints.is_due("b", at(61)));
    }
}
