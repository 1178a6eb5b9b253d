//! How long answers took, in percentiles: the same figures for `call` and `bench`.

use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// The percentiles that are shown, with their names in JSON.
const SHOWN: [(&str, &str, f64); 4] =
    [("p50", "p50_us", 0.5), ("p90", "p90_us", 0.9), ("p99", "p99_us", 0.99), ("p99.9", "p999_us", 0.999)];

/// An hour. Longer times are recorded as this one.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// A histogram of nanoseconds, kept to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latency(Histogram<u64>);

impl Latency {
    pub(crate) fn new() -> anyhow::Result<Latency> {
        Ok(Latency(Histogram::new_with_bounds(1, LONGEST_NS, 3).context("no room for latencies")?))
    }

    pub(crate) fn record(&mut self, took: Duration) {
        self.0.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(LONGEST_NS));
    }

    /// Adds what another has recorded. Both have the same bounds, so nothing is left out.
    pub(crate) fn add(&mut self, other: &Latency) {
        let _ = self.0.add(&other.0);
    }

    pub(crate) fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(quantile))
    }

    /// `p50 0.21 ms, p90 0.40 ms, ...`, `None` if nothing was recorded.
    pub(crate) fn describe(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let shown = SHOWN.map(|(name, _, quantile)| format!("{name} {}", millis(self.quantile(quantile))));
        Some(format!("{}, max {}", shown.join(", "), millis(Duration::from_nanos(self.0.max()))))
    }

    /// `p50_us` and so on, `null` if nothing was recorded.
    pub(crate) fn as_json(&self) -> Map<String, Value> {
        let figure = |nanos: u64| if self.0.is_empty() { Value::Null } else { micros(Duration::from_nanos(nanos)) };
        let mut fields: Map<String, Value> = SHOWN
            .map(|(_, name, quantile)| (name.to_owned(), figure(self.0.value_at_quantile(quantile))))
            .into_iter()
            .collect();
        fields.insert("max_us".into(), figure(self.0.max()));
        fields
    }
}

/// `0.21 ms`.
pub(crate) fn millis(took: Duration) -> String {
    format!("{:.2} ms", took.as_secs_f64() * 1e3)
}

/// Microseconds to a tenth.
pub(crate) fn micros(took: Duration) -> Value {
    json!((took.as_nanos() as f64 / 100.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_that_was_recorded() {
        let mut whole = Latency::new().unwrap();
        let mut half = Latency::new().unwrap();
        assert_eq!((whole.describe(), &whole.as_json()["p50_us"]), (None, &Value::Null));
        for micros in 1..=50 {
            whole.record(Duration::from_micros(micros));
            half.record(Duration::from_micros(micros + 50));
        }
        whole.add(&half);
        let close = |name: &str, micros: f64| {
            let figure = whole.as_json()[name].as_f64().unwrap();
            assert!((figure - micros).abs() <= 0.2, "{name} is {figure}");
        };
        close("p50_us", 50.0);
        close("p90_us", 90.0);
        close("p99_us", 99.0);
        close("max_us", 100.0);
        assert!(whole.describe().unwrap().starts_with("p50 0.05 ms, p90 0.09 ms"));
        whole.record(Duration::from_secs(100_000));
        assert!(whole.quantile(1.0) >= Duration::from_secs(3600), "what is too long counts as the longest");
    }
}
