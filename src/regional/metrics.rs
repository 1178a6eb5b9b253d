//! What is measured about the region: who decided, what the origin was asked, how long it took, why it failed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus_client::metrics::MetricType;
use serde_json::{Map, Value, json};

pub use crate::engine::reason::DecidedBy;
use crate::measure::histogram::Histogram;
use crate::measure::stripes::Stripes;
use crate::observe::label_name::LabelName;
use crate::observe::scrape::{Page, Times};
use crate::regional::call::ProcessId;
use crate::regional::redis::ConnectionStatus;
use crate::regional::region::Operation;

/// Counts since the start.
#[derive(Debug, Default)]
pub struct RegionalMetrics {
    decisions: Stripes<{ DecidedBy::ALL.len() }>,
    /// For each operation.
    times: [Histogram; 3],
    errors: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Keys that were read because they were cold or stale.
    pub hydrations: AtomicU64,
    /// Requests that asked because more would have been pending than may be.
    pub checks: AtomicU64,
    /// Cells that replays have told.
    pub replayed_cells: AtomicU64,
    /// How often all keys were told again, because the origin may have lost data.
    pub heals: AtomicU64,
    /// The origin's clock minus ours.
    pub clock_offset_ms: AtomicI64,
}

impl RegionalMetrics {
    pub fn decided(&self, by: DecidedBy) {
        self.decisions.add(by as usize, 1);
    }

    pub fn decisions(&self, by: DecidedBy) -> u64 {
        self.decisions.sum(by as usize)
    }

    pub fn called(&self, operation: Operation, took: Duration) {
        self.times[operation as usize].record(took);
    }

    pub fn times(&self, operation: Operation) -> &Histogram {
        &self.times[operation as usize]
    }

    pub fn failed(&self, operation: Operation, reason: &'static str) {
        *self.errors.lock().entry((operation.word(), reason)).or_default() += 1;
    }

    /// By operation and reason.
    pub fn errors(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.errors.lock().clone()
    }

    pub fn count(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}

/// Everything about the region, at one moment.
#[derive(Clone, Debug)]
pub struct RegionalFigures {
    pub process: ProcessId,
    pub decisions: [(DecidedBy, u64); DecidedBy::ALL.len()],
    pub times: [(Operation, Times); 3],
    pub errors: BTreeMap<(&'static str, &'static str), u64>,
    pub hydrations: u64,
    pub checks: u64,
    pub replayed_cells: u64,
    pub heals: u64,
    pub clock_offset_ms: i64,
    /// Name, whether it is open, how often it has opened.
    pub breakers: Vec<(&'static str, bool, u64)>,
    pub live: u32,
    pub pending_hits: u64,
    pub lost_hits: u64,
    pub lag_s: f64,
    pub connection: ConnectionStatus,
}

impl RegionalMetrics {
    pub fn read_times(&self) -> [(Operation, Times); 3] {
        Operation::ALL.map(|operation| (operation, Times::of(self.times(operation))))
    }
}

impl RegionalFigures {
    /// Calls of an operation, answered or not.
    fn calls(&self, operation: Operation) -> u64 {
        let answered =
            self.times.iter().filter(|(of, _)| *of == operation).map(|(_, times)| times.count()).sum::<u64>();
        answered + self.failed(operation)
    }

    fn failed(&self, operation: Operation) -> u64 {
        self.errors.iter().filter(|((of, _), _)| *of == operation.word()).map(|(_, count)| count).sum()
    }

    /// The same at a glance, for `/stats`.
    pub fn to_json(&self) -> Value {
        let redis = &self.connection;
        let last_error = redis
            .last_error
            .as_ref()
            .map(|error| json!({"text": error.text, "reason": error.reason, "at_s": unix_s(error.at)}));
        let breaker = |(name, is_open, opened): (&str, bool, u64)| {
            (name.to_owned(), json!({"is_open": is_open, "opened": opened}))
        };
        // The last bucket has no upper bound: JSON has no infinity, and says null.
        let quantile_us = |times: &Times, quantile: f64| times.quantile_s(quantile).map(|upper_s| upper_s * 1e6);
        let calls = self.times.iter().map(|(operation, times)| {
            let figures = json!({
                "answered": times.count(),
                "failed": self.failed(*operation),
                "p50_us": quantile_us(times, 0.5),
                "p99_us": quantile_us(times, 0.99),
            });
            (operation.word().to_owned(), figures)
        });
        let decisions = self.decisions.iter().map(|(by, count)| (by.word().to_owned(), json!(count)));
        json!({
            "process": self.process.to_string(),
            "live_processes": self.live,
            "redis": {
                "address": redis.address,
                "connected_since_s": redis.connected_since.map(unix_s),
                "is_doubted": redis.is_doubted,
                "connections": redis.connections,
                "last_error": last_error,
            },
            "breakers": Map::from_iter(self.breakers.iter().copied().map(breaker)),
            "decisions": Map::from_iter(decisions),
            "calls": Map::from_iter(calls),
            "checks": self.checks,
            "hydrations": self.hydrations,
            "replayed_cells": self.replayed_cells,
            "heals": self.heals,
            "pending_hits": self.pending_hits,
            "lost_hits": self.lost_hits,
            "lag_s": self.lag_s,
            "clock_offset_ms": self.clock_offset_ms,
        })
    }

    pub(crate) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let decisions = self.decisions.iter().map(|(by, count)| (vec![(LabelName::By, by.word())], *count));
        page.family(
            "tidegate_regional_decisions_total",
            "Decisions by who made them: memory, Redis, the owner of strict limits, or the rule's policy without an answer",
            MetricType::Counter,
            decisions,
        )?;
        self.write_calls("origin", page)?;
        page.counter("tidegate_regional_hydrations_total", "Cold or stale keys that were read", self.hydrations)?;
        page.counter(
            "tidegate_regional_checks_total",
            "Requests that asked because too many hits were pending",
            self.checks,
        )?;
        page.counter("tidegate_regional_replayed_cells_total", "Cells that replays have told", self.replayed_cells)?;
        page.counter("tidegate_regional_heals_total", "How often all counts were told again", self.heals)?;
        page.gauge("tidegate_regional_pending_hits", "Hits pending when the last flush began", self.pending_hits)?;
        page.gauge("tidegate_regional_lag_seconds", "For how long something has been pending", self.lag_s)?;
        page.counter(
            "tidegate_regional_lost_hits_total",
            "Pending hits of keys that were given up because the table was full",
            self.lost_hits,
        )?;
        page.gauge("tidegate_regional_live_processes", "Processes of the region that are alive", self.live)?;
        Ok(())
    }

    /// The calls to the owner of strict limits, under names of their own.
    pub(crate) fn write_as_owner(&self, page: &mut Page<'_>) -> fmt::Result {
        page.gauge("tidegate_owner_live_processes", "Processes of all regions that ask the owner", self.live)?;
        page.gauge(
            "tidegate_owner_pending_hits",
            "Hits that it had not heard of when the last flush began",
            self.pending_hits,
        )?;
        self.write_calls("owner", page)
    }

    fn write_calls(&self, who: &str, page: &mut Page<'_>) -> fmt::Result {
        let name = |what: &str| format!("tidegate_{who}_{what}");
        let calls =
            Operation::ALL.map(|operation| (vec![(LabelName::Operation, operation.word())], self.calls(operation)));
        page.family(&name("calls_total"), "Calls to Redis", MetricType::Counter, calls)?;
        let times = self.times.iter().map(|(operation, times)| (vec![(LabelName::Operation, operation.word())], times));
        page.histograms(&name("duration_seconds"), "Calls to Redis that were answered", times)?;
        let errors = self.errors.iter().map(|((operation, reason), count)| {
            (vec![(LabelName::Operation, *operation), (LabelName::Reason, *reason)], *count)
        });
        page.family(&name("errors_total"), "Calls to Redis without an answer", MetricType::Counter, errors)?;
        let open =
            self.breakers.iter().map(|(name, is_open, _)| (vec![(LabelName::Breaker, *name)], u64::from(*is_open)));
        page.family(&name("breaker_open"), "1 while nobody asks", MetricType::Gauge, open)?;
        let opened = self.breakers.iter().map(|(name, _, opened)| (vec![(LabelName::Breaker, *name)], *opened));
        page.family(&name("breaker_opened_total"), "How often it opened", MetricType::Counter, opened)?;
        page.gauge(
            &name("clock_offset_seconds"),
            "The clock of Redis minus this one",
            self.clock_offset_ms as f64 / 1000.0,
        )?;
        page.gauge(
            &name("connected"),
            "1 while there are connections",
            u64::from(self.connection.connected_since.is_some()),
        )?;
        page.counter(&name("connections_total"), "Connections made", self.connection.connections)
    }
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regional::redis::LastError;

    #[test]
    fn the_figures_are_shown_at_a_glance() {
        let metrics = RegionalMetrics::default();
        metrics.decided(DecidedBy::Memory);
        metrics.failed(Operation::Check, "timeout");
        metrics.failed(Operation::Check, "down");
        (0..98).for_each(|_| metrics.called(Operation::Check, Duration::from_micros(200)));
        (0..2).for_each(|_| metrics.called(Operation::Check, Duration::from_micros(900)));
        metrics.called(Operation::Beat, Duration::from_secs(3));
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let last_error = LastError { text: "it was closed".into(), reason: "io", at: at(7) };
        let figures = RegionalFigures {
            process: ProcessId(0xab),
            decisions: DecidedBy::ALL.map(|by| (by, metrics.decisions(by))),
            times: metrics.read_times(),
            errors: metrics.errors(),
            hydrations: 0,
            checks: 0,
            replayed_cells: 0,
            heals: 0,
            clock_offset_ms: -3,
            breakers: vec![("checks", true, 2), ("replays", false, 0)],
            live: 4,
            pending_hits: 5,
            lost_hits: 0,
            lag_s: 0.5,
            connection: ConnectionStatus {
                address: "redis:6379".into(),
                connected_since: Some(at(9)),
                is_doubted: false,
                connections: 2,
                last_error: Some(last_error),
            },
        };
        let shown = figures.to_json();
        assert_eq!(shown["process"], "00000000000000ab");
        assert_eq!(shown["calls"]["check"], json!({"answered": 100, "failed": 2, "p50_us": 256.0, "p99_us": 1024.0}));
        assert_eq!(shown["calls"]["beat"], json!({"answered": 1, "failed": 0, "p50_us": null, "p99_us": null}));
        assert_eq!(shown["calls"]["replay"]["answered"], 0);
        assert_eq!(shown["breakers"]["checks"], json!({"is_open": true, "opened": 2}));
        assert_eq!(shown["decisions"], json!({"memory": 1, "origin": 0, "owner": 0, "outage": 0, "overload": 0}));
        assert_eq!(
            (&shown["redis"]["connected_since_s"], &shown["redis"]["last_error"]["at_s"]),
            (&json!(9), &json!(7))
        );
    }
}
