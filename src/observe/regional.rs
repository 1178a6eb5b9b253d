//! How the figures of the region are shown, and those of the owner of strict limits.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::MetricType;
use serde_json::{Map, Value, json};

use crate::measure::times::Times;
use crate::observe::label_name::LabelName;
use crate::observe::page::MetricsPage;
use crate::regional::metrics::RegionalFigures;
use crate::regional::region::{BreakerState, CallPurpose};

/// How many breakers have series of their own: three for each node of a Cluster with a hundred primaries.
const BREAKERS_MAX: usize = 300;

/// All figures at a glance, for `/stats`.
pub(crate) fn to_json(figures: &RegionalFigures) -> Value {
    let redis = &figures.connection;
    let last_error = redis
        .last_error
        .as_ref()
        .map(|error| json!({"text": error.text, "reason": error.reason, "at_s": unix_s(error.at)}));
    let breaker = |BreakerState { kind, node, is_open, opened }: &BreakerState| {
        let name = match node {
            Some(node) => format!("{} {node}", kind.word()),
            None => kind.word().to_owned(),
        };
        (name, json!({"is_open": is_open, "opened": opened}))
    };
    // The last bucket has no upper bound: JSON has no infinity, and says null.
    let quantile_us = |times: &Times, quantile: f64| times.quantile_s(quantile).map(|upper_s| upper_s * 1e6);
    let calls = figures.times.iter().map(|(operation, times)| {
        let shown = json!({
            "answered": times.count(),
            "failed": figures.failed(*operation),
            "p50_us": quantile_us(times, 0.5),
            "p99_us": quantile_us(times, 0.99),
        });
        (operation.word().to_owned(), shown)
    });
    let decisions = figures.decisions.iter().map(|(by, count)| (by.word().to_owned(), json!(count)));
    json!({
        "process": figures.process.to_string(),
        "live_processes": figures.live,
        "redis": {
            "address": redis.address,
            "connected_since_s": redis.connected_since.map(unix_s),
            "is_doubted": redis.is_doubted,
            "connections": redis.connections,
            "last_error": last_error,
        },
        "breakers": Map::from_iter(figures.breakers.iter().map(breaker)),
        "decisions": Map::from_iter(decisions),
        "calls": Map::from_iter(calls),
        "checks": figures.checks,
        "hydrations": figures.hydrations,
        "replayed_cells": figures.replayed_cells,
        "heals": figures.heals,
        "keys_to_heal": figures.keys_to_heal,
        "pending_hits": figures.pending_hits,
        "held_hits": figures.held_hits,
        "lost_hits": figures.lost_hits,
        "lag_s": figures.lag_s,
        "clock_offset_ms": figures.clock_offset_ms,
    })
}

/// Writes what the region did.
pub(super) fn write(figures: &RegionalFigures, page: &mut MetricsPage<'_>) -> fmt::Result {
    let decisions = figures.decisions.iter().map(|(by, count)| (vec![(LabelName::By, by.word())], *count));
    page.family(
        "tidegate_regional_decisions_total",
        "Decisions by who made them: memory (by recent, old or no news of the key), Redis, the owner of strict limits, or the rule's policy without an answer",
        MetricType::Counter,
        decisions,
    )?;
    write_calls(figures, "origin", page)?;
    page.counter("tidegate_regional_hydrations_total", "Cold or stale keys that were read", figures.hydrations)?;
    page.counter(
        "tidegate_regional_checks_total",
        "Requests that asked because too many hits were pending",
        figures.checks,
    )?;
    page.counter("tidegate_regional_replayed_cells_total", "Cells that replays have told", figures.replayed_cells)?;
    page.counter("tidegate_regional_heals_total", "How often all counts were told again", figures.heals)?;
    page.gauge(
        "tidegate_regional_keys_to_heal",
        "Keys that are still to be looked at, to tell all counts again",
        figures.keys_to_heal,
    )?;
    page.gauge("tidegate_regional_pending_hits", "Hits pending when the last flush began", figures.pending_hits)?;
    page.gauge(
        "tidegate_regional_held_hits",
        "Hits that are not told yet, because their keys are far from their limits",
        figures.held_hits,
    )?;
    page.gauge("tidegate_regional_lag_seconds", "For how long something has been pending", figures.lag_s)?;
    page.counter(
        "tidegate_regional_lost_hits_total",
        "Pending hits of keys that were given up because the table was full",
        figures.lost_hits,
    )?;
    page.gauge("tidegate_regional_live_processes", "Processes of the region that are alive", figures.live)?;
    Ok(())
}

/// Writes the calls to the owner of strict limits, under names of their own.
pub(super) fn write_as_owner(figures: &RegionalFigures, page: &mut MetricsPage<'_>) -> fmt::Result {
    page.gauge("tidegate_owner_live_processes", "Processes of all regions that ask the owner", figures.live)?;
    page.gauge(
        "tidegate_owner_pending_hits",
        "Hits that it had not heard of when the last flush began",
        figures.pending_hits,
    )?;
    write_calls(figures, "owner", page)
}

/// Writes the calls to a store under its name.
fn write_calls(figures: &RegionalFigures, who: &str, page: &mut MetricsPage<'_>) -> fmt::Result {
    let name = |what: &str| format!("tidegate_{who}_{what}");
    let calls =
        CallPurpose::ALL.map(|operation| (vec![(LabelName::Operation, operation.word())], figures.calls(operation)));
    page.family(&name("calls_total"), "Calls to Redis", MetricType::Counter, calls)?;
    let times = figures.times.iter().map(|(operation, times)| (vec![(LabelName::Operation, operation.word())], times));
    page.histograms(&name("duration_seconds"), "Calls to Redis that were answered", times)?;
    let errors = figures.errors.iter().map(|((operation, reason), count)| {
        (vec![(LabelName::Operation, *operation), (LabelName::Reason, *reason)], *count)
    });
    page.family(&name("errors_total"), "Calls to Redis without an answer", MetricType::Counter, errors)?;
    let breakers = || {
        figures.breakers.iter().take(BREAKERS_MAX).map(|breaker| {
            let mut labels = vec![(LabelName::Breaker, breaker.kind.word())];
            labels.extend(breaker.node.as_deref().map(|node| (LabelName::Node, node)));
            (labels, breaker)
        })
    };
    let open = breakers().map(|(labels, breaker)| (labels, u64::from(breaker.is_open)));
    page.family(&name("breaker_open"), "1 while nobody asks", MetricType::Gauge, open)?;
    let opened = breakers().map(|(labels, breaker)| (labels, breaker.opened));
    page.family(&name("breaker_opened_total"), "How often it opened", MetricType::Counter, opened)?;
    page.gauge(
        &name("clock_offset_seconds"),
        "The clock of Redis minus this one",
        figures.clock_offset_ms as f64 / 1000.0,
    )?;
    page.gauge(
        &name("connected"),
        "1 while there are connections",
        u64::from(figures.connection.connected_since.is_some()),
    )?;
    page.counter(&name("connections_total"), "Connections made", figures.connection.connections)
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::regional::call::ProcessId;
    use crate::regional::metrics::{DecidedBy, RegionalMetrics};
    use crate::regional::redis::{ConnectionStatus, LastError};
    use crate::regional::region::BreakerKind;

    #[test]
    fn the_figures_are_shown_at_a_glance() {
        let metrics = RegionalMetrics::default();
        metrics.decided(DecidedBy::Memory);
        metrics.failed(CallPurpose::Check, "timeout");
        metrics.failed(CallPurpose::Check, "down");
        (0..98).for_each(|_| metrics.called(CallPurpose::Check, Duration::from_micros(200)));
        (0..2).for_each(|_| metrics.called(CallPurpose::Check, Duration::from_micros(900)));
        metrics.called(CallPurpose::Beat, Duration::from_secs(3));
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
            keys_to_heal: 0,
            clock_offset_ms: -3,
            breakers: vec![
                BreakerState { kind: BreakerKind::Checks, node: None, is_open: true, opened: 2 },
                BreakerState { kind: BreakerKind::Replays, node: Some("redis:1".into()), is_open: false, opened: 0 },
            ],
            live: 4,
            pending_hits: 5,
            held_hits: 7,
            lost_hits: 0,
            lag_s: 0.5,
            connection: ConnectionStatus {
                address: "redis:6379".into(),
                connected_since: Some(at(9)),
                is_doubted: false,
                connections: 3,
                last_error: Some(last_error),
            },
        };
        let shown = to_json(&figures);
        assert_eq!(shown["process"], "00000000000000ab");
        assert_eq!(shown["calls"]["check"], json!({"answered": 100, "failed": 2, "p50_us": 256.0, "p99_us": 1024.0}));
        assert_eq!(shown["calls"]["beat"], json!({"answered": 1, "failed": 0, "p50_us": null, "p99_us": null}));
        assert_eq!(shown["calls"]["replay"]["answered"], 0);
        assert_eq!(shown["breakers"]["checks"], json!({"is_open": true, "opened": 2}));
        assert_eq!(shown["breakers"]["replays redis:1"], json!({"is_open": false, "opened": 0}));
        assert_eq!(
            shown["decisions"],
            json!({"memory": 1, "memory_old": 0, "memory_cold": 0, "origin": 0, "owner": 0, "outage": 0, "overload": 0})
        );
        assert_eq!(
            (&shown["redis"]["connected_since_s"], &shown["redis"]["last_error"]["at_s"]),
            (&json!(9), &json!(7))
        );
    }
}
