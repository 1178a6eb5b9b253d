//! What is measured about the exchange between regions: rows, turns, and how old is what others know.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus_client::metrics::MetricType;
use serde_json::{Map, Value, json};

use crate::clock::Now;
use crate::global::exchange::{Exchange, ExchangeStatus};
use crate::global::mysql::error::StoreError;
use crate::measure::histogram::Histogram;
use crate::observe::label_name::LabelName;
use crate::observe::scrape::{Page, Times};

/// What is done with the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    Publish,
    Import,
}

impl Turn {
    pub const ALL: [Turn; 2] = [Turn::Publish, Turn::Import];

    pub fn word(self) -> &'static str {
        match self {
            Turn::Publish => "publish",
            Turn::Import => "import",
        }
    }
}

/// Why a statement failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFailure {
    pub reason: &'static str,
    pub text: String,
    pub at: SystemTime,
}

impl StoreFailure {
    pub fn of(error: &StoreError) -> StoreFailure {
        StoreFailure { reason: error.reason(), text: error.to_string(), at: SystemTime::now() }
    }
}

/// Counts since the start, of what the driver sees.
#[derive(Debug, Default)]
pub struct GlobalMetrics {
    times: [Histogram; 2],
    /// Of rows that told something new, at their import.
    ages: Histogram,
    errors: Mutex<BTreeMap<(Turn, &'static str), u64>>,
    last_error: Mutex<Option<(Turn, StoreFailure)>>,
    conflicts: AtomicU64,
}

impl GlobalMetrics {
    pub fn took(&self, turn: Turn, time: Duration) {
        self.times[turn as usize].record(time);
    }

    pub fn imported_age(&self, age: Duration) {
        self.ages.record(age);
    }

    pub fn failed(&self, turn: Turn, failure: StoreFailure) {
        *self.errors.lock().entry((turn, failure.reason)).or_default() += 1;
        *self.last_error.lock() = Some((turn, failure));
    }

    /// A statement lost against another one, and is tried again.
    pub fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything about the exchange, at one moment.
#[derive(Clone, Debug)]
pub struct GlobalFigures {
    region: Box<str>,
    regions: Vec<Box<str>>,
    place: String,
    status: ExchangeStatus,
    published_rows: u64,
    refused_rows: u64,
    imported_rows: u64,
    created_keys: u64,
    sought_keys: u64,
    rows_last_import: u64,
    /// Rows that were left out, by why.
    ignored_rows: [(&'static str, u64); 3],
    times: [(Turn, Times); 2],
    ages: Times,
    errors: BTreeMap<(Turn, &'static str), u64>,
    last_error: Option<(Turn, StoreFailure)>,
    conflicts: u64,
}

impl GlobalFigures {
    pub fn new(exchange: &Exchange, metrics: &GlobalMetrics, place: String, now: Now) -> GlobalFigures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &exchange.counts;
        GlobalFigures {
            region: exchange.options().region.clone(),
            regions: exchange.options().regions.clone(),
            place,
            status: exchange.status(now),
            published_rows: count(&counts.published_rows),
            refused_rows: count(&counts.refused_rows),
            imported_rows: count(&counts.imported_rows),
            created_keys: count(&counts.created_keys),
            sought_keys: count(&counts.sought_keys),
            rows_last_import: count(&counts.rows_last_import),
            ignored_rows: [
                ("absurd", count(&counts.absurd_rows)),
                ("no_rule", count(&counts.unknown_rows)),
                ("no_room", count(&counts.roomless_rows)),
            ],
            times: Turn::ALL.map(|turn| (turn, Times::of(&metrics.times[turn as usize]))),
            ages: Times::of(&metrics.ages),
            errors: metrics.errors.lock().clone(),
            last_error: metrics.last_error.lock().clone(),
            conflicts: count(&metrics.conflicts),
        }
    }

    /// Seconds since each turn last succeeded.
    fn since_success(&self) -> [(Turn, Option<f64>); 2] {
        let seconds = |us: Option<u64>| us.map(|us| us as f64 / 1e6);
        let ExchangeStatus { published_ago_us, imported_ago_us, .. } = self.status;
        [(Turn::Publish, seconds(published_ago_us)), (Turn::Import, seconds(imported_ago_us))]
    }

    fn breakers(&self) -> [(Turn, bool, u64); 2] {
        let ExchangeStatus { is_publish_open, is_import_open, publish_opened, import_opened, .. } = self.status;
        [(Turn::Publish, is_publish_open, publish_opened), (Turn::Import, is_import_open, import_opened)]
    }

    /// How long ago each region has last changed a row, in milliseconds by the server's clock; `None` if it never has.
    fn seen(&self) -> Vec<(&str, Option<u64>)> {
        let ago_ms = |at_ms: &u64| self.status.server_ms.unwrap_or(*at_ms).saturating_sub(*at_ms);
        let configured = self.regions.iter().map(|region| (&**region, self.status.seen.get(region).map(ago_ms)));
        let strangers = self.status.seen.iter().filter(|(region, _)| !self.regions.contains(region));
        configured.chain(strangers.map(|(region, at_ms)| (&**region, Some(ago_ms(at_ms))))).collect()
    }

    /// The same at a glance, for `/stats`.
    pub fn to_json(&self) -> Value {
        let turn = |(turn, is_open, opened): (Turn, bool, u64)| {
            let failed: u64 = self.errors.iter().filter(|((of, _), _)| *of == turn).map(|(_, count)| count).sum();
            let times = self.times.iter().find(|(of, _)| *of == turn).map(|(_, times)| times);
            let since = self.since_success().into_iter().find(|(of, _)| *of == turn).and_then(|(_, since)| since);
            let figures = json!({
                "is_open": is_open,
                "opened": opened,
                "failed": failed,
                "succeeded": times.map(Times::count),
                "p99_us": times.and_then(|times| times.quantile_s(0.99)).map(|seconds| seconds * 1e6),
                "succeeded_ago_s": since,
            });
            (turn.word().to_owned(), figures)
        };
        let seen = self.seen().into_iter().map(|(region, ago_ms)| {
            let is_configured = self.regions.iter().any(|name| **name == *region);
            json!({"name": region, "changed_ago_ms": ago_ms, "is_configured": is_configured})
        });
        let last_error = self.last_error.as_ref().map(|(turn, error)| {
            let at_s = error.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            json!({"turn": turn.word(), "text": error.text, "reason": error.reason, "at_s": at_s})
        });
        json!({
            "region": self.region,
            "mysql": {"address": self.place, "last_error": last_error},
            "regions": seen.collect::<Vec<_>>(),
            "turns": Map::from_iter(self.breakers().map(turn)),
            "published_rows": self.published_rows,
            "refused_rows": self.refused_rows,
            "imported_rows": self.imported_rows,
            "rows_last_import": self.rows_last_import,
            "created_keys": self.created_keys,
            "sought_keys": self.sought_keys,
            "contested_keys": self.status.contested_keys,
            "waiting_keys": self.status.waiting,
            "imported_age_p99_us": self.ages.quantile_s(0.99).map(|seconds| seconds * 1e6),
        })
    }

    pub(crate) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        page.counter("tidegate_global_published_rows_total", "Rows that MySQL was told", self.published_rows)?;
        page.counter("tidegate_global_refused_rows_total", "Rows that MySQL does not take", self.refused_rows)?;
        page.counter("tidegate_global_imported_rows_total", "Rows that were read", self.imported_rows)?;
        let ignored = self.ignored_rows.map(|(why, count)| (vec![(LabelName::Reason, why)], count));
        page.family("tidegate_global_ignored_rows_total", "Rows that were left out", MetricType::Counter, ignored)?;
        page.counter(
            "tidegate_global_created_keys_total",
            "Keys that are here only because other regions count them",
            self.created_keys,
        )?;
        page.counter(
            "tidegate_global_sought_keys_total",
            "Keys that were looked up, because counts of other regions had been left out or given up",
            self.sought_keys,
        )?;
        page.gauge("tidegate_global_last_import_rows", "Rows at the last import", self.rows_last_import)?;
        let errors = self.errors.iter().map(|((turn, reason), count)| {
            (vec![(LabelName::Turn, turn.word()), (LabelName::Reason, *reason)], *count)
        });
        page.family("tidegate_global_errors_total", "Statements that failed", MetricType::Counter, errors)?;
        page.counter("tidegate_global_conflicts_total", "Statements that were tried again", self.conflicts)?;
        let times = self.times.iter().map(|(turn, times)| (vec![(LabelName::Turn, turn.word())], times));
        page.histograms("tidegate_global_duration_seconds", "Turns that succeeded", times)?;
        let since = self
            .since_success()
            .into_iter()
            .filter_map(|(turn, since)| Some((vec![(LabelName::Turn, turn.word())], since?)));
        page.family("tidegate_global_success_age_seconds", "Since the last success", MetricType::Gauge, since)?;
        page.histograms(
            "tidegate_global_imported_age_seconds",
            "How old the news of other regions are at their import, by the server's clock",
            [(Vec::new(), &self.ages)],
        )?;
        let open = self.breakers().map(|(turn, is_open, _)| (vec![(LabelName::Turn, turn.word())], u64::from(is_open)));
        page.family("tidegate_global_breaker_open", "1 while turns are rare", MetricType::Gauge, open)?;
        let opened = self.breakers().map(|(turn, _, opened)| (vec![(LabelName::Turn, turn.word())], opened));
        page.family("tidegate_global_breaker_opened_total", "How often it opened", MetricType::Counter, opened)?;
        page.gauge("tidegate_global_contested_keys", "Keys that other regions count too", self.status.contested_keys)?;
        page.gauge("tidegate_global_waiting_keys", "Keys that wait to be published", self.status.waiting)
    }
}
