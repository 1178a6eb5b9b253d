//! How much may be logged about what strangers do: enough to see it, never so much that the log is an attack by itself.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many lines may be logged at once.
const BURST: u32 = 10;
/// After that, one line for each interval.
const INTERVAL: Duration = Duration::from_secs(1);

/// Says which lines may be logged. Counts those that are left out, for the next line to tell.
#[derive(Debug, Default)]
pub(crate) struct LogBudget(Mutex<LineCount>);

#[derive(Debug, Default)]
struct LineCount {
    /// Lines that were logged and are not forgiven yet; at most [`BURST`].
    lines: u32,
    /// When lines were last forgiven, or when the first was asked for. `None`: no line was asked for yet.
    since: Option<Instant>,
    /// Lines that were left out since one was logged.
    left_out: u64,
}

impl LogBudget {
    /// Asks for a line. Returns how many were left out before it, or `None` if this one has to be left out, too.
    pub(crate) fn take(&self, now: Instant) -> Option<u64> {
        let mut spent = self.0.lock();
        let since = *spent.since.get_or_insert(now);
        let forgiven = (now.saturating_duration_since(since).as_secs() / INTERVAL.as_secs()).min(BURST.into()) as u32;
        if forgiven > 0 {
            spent.lines = spent.lines.saturating_sub(forgiven);
            spent.since = Some(now);
        }
        if spent.lines == BURST {
            spent.left_out += 1;
            return None;
        }
        spent.lines += 1;
        Some(std::mem::take(&mut spent.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_burst_and_then_a_line_a_second() {
        let budget = LogBudget::default();
        let start = Instant::now();
        let lines = |from_ms: u64, to_ms: u64| -> Vec<u64> {
            (from_ms..to_ms).filter_map(|ms| budget.take(start + Duration::from_millis(ms))).collect()
        };
        assert_eq!(lines(0, 1000), [0; 10]);
        assert_eq!(lines(1000, 3000), [990, 999]);
        // After a quiet minute there is a whole burst again, and the lines left out before it are still counted.
        assert_eq!(lines(60_000, 60_020), [999, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
