//! How the figures of the exchange between regions are shown.

use std::fmt;
use std::time::UNIX_EPOCH;

use prometheus_client::metrics::MetricType;
use serde_json::{Map, Value, json};

use crate::global::metrics::{GlobalFigures, TurnKind};
use crate::global::voice::Role;
use crate::measure::times::Times;
use crate::observe::label_name::LabelName;
use crate::observe::page::MetricsPage;

/// All figures at a glance, for `/stats`.
pub(crate) fn to_json(figures: &GlobalFigures) -> Value {
    let turn = |(turn, is_open, opened): (TurnKind, bool, u64)| {
        let failed: u64 = figures.errors.iter().filter(|((of, _), _)| *of == turn).map(|(_, count)| count).sum();
        let times = figures.times.iter().find(|(of, _)| *of == turn).map(|(_, times)| times);
        let since = figures.since_success().into_iter().find(|(of, _)| *of == turn).and_then(|(_, since)| since);
        let shown = json!({
            "is_open": is_open,
            "opened": opened,
            "failed": failed,
            "succeeded": times.map(Times::count),
            "p99_us": times.and_then(|times| times.quantile_s(0.99)).map(|seconds| seconds * 1e6),
            "succeeded_ago_s": since,
        });
        (turn.word().to_owned(), shown)
    };
    let seen = figures.seen().into_iter().map(|(region, ago_ms)| {
        let is_configured = figures.regions.iter().any(|name| **name == *region);
        json!({"name": region, "changed_ago_ms": ago_ms, "is_configured": is_configured})
    });
    let last_error = figures.last_error.as_ref().map(|(turn, error)| {
        let at_s = error.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        json!({"turn": turn.word(), "text": error.text, "reason": error.reason, "at_s": at_s})
    });
    json!({
        "region": figures.region,
        "mysql": {"address": figures.place, "last_error": last_error},
        "regions": seen.collect::<Vec<_>>(),
        "turns": Map::from_iter(figures.breakers().map(turn)),
        "published_rows": figures.published_rows,
        "refused_rows": figures.refused_rows,
        "imported_rows": figures.imported_rows,
        "full_reads": figures.full_reads,
        "rule_reads": figures.rule_reads,
        "rows_last_import": figures.rows_last_import,
        "created_keys": figures.created_keys,
        "sought_keys": figures.sought_keys,
        "contested_keys": figures.status.contested_keys,
        "waiting_keys": figures.status.waiting,
        "role": figures.status.role.word(),
        "voice": figures.voice.map(|voice| json!({
            "speaker": figures.status.speaker.map(|process| process.to_string()),
            "feed_ago_s": figures.status.heard_ago_us.map(|us| us as f64 / 1e6),
            "spoken_cells": figures.status.spoken_cells,
            "mentions": {"made": voice.mentions_made, "heard": voice.mentions_heard},
            "handed_on": {"entries": voice.handed_on[0], "bytes": voice.handed_on[1]},
            "heard": {"entries": voice.heard[0], "bytes": voice.heard[1]},
            "gaps": voice.gaps,
            "malformed": voice.malformed,
        })),
        "imported_age_p99_us": figures.ages.quantile_s(0.99).map(|seconds| seconds * 1e6),
    })
}

/// Writes what was exchanged, and how that went.
pub(super) fn write(figures: &GlobalFigures, page: &mut MetricsPage<'_>) -> fmt::Result {
    page.counter("tidegate_global_published_rows_total", "Rows that MySQL was told", figures.published_rows)?;
    page.counter("tidegate_global_refused_rows_total", "Rows that MySQL does not take", figures.refused_rows)?;
    page.counter("tidegate_global_imported_rows_total", "Rows that were read", figures.imported_rows)?;
    page.counter(
        "tidegate_global_full_reads_total",
        "How often everything was read: at a start, as a repair every ten minutes, after more than a minute without an import",
        figures.full_reads,
    )?;
    page.counter(
        "tidegate_global_rule_reads_total",
        "How often the rows of rules that became known were read",
        figures.rule_reads,
    )?;
    let ignored = figures.ignored_rows.map(|(why, count)| (vec![(LabelName::Reason, why)], count));
    page.family("tidegate_global_ignored_rows_total", "Rows that were left out", MetricType::Counter, ignored)?;
    page.counter(
        "tidegate_global_created_keys_total",
        "Keys that are here only because other regions count them",
        figures.created_keys,
    )?;
    page.counter(
        "tidegate_global_sought_keys_total",
        "Keys that were looked up, because counts of other regions had been left out or given up",
        figures.sought_keys,
    )?;
    page.gauge("tidegate_global_last_import_rows", "Rows at the last import", figures.rows_last_import)?;
    let errors = figures
        .errors
        .iter()
        .map(|((turn, reason), count)| (vec![(LabelName::Turn, turn.word()), (LabelName::Reason, *reason)], *count));
    page.family("tidegate_global_errors_total", "Statements that failed", MetricType::Counter, errors)?;
    page.counter("tidegate_global_conflicts_total", "Statements that were tried again", figures.conflicts)?;
    let times = figures.times.iter().map(|(turn, times)| (vec![(LabelName::Turn, turn.word())], times));
    page.histograms("tidegate_global_duration_seconds", "Turns that succeeded", times)?;
    let since = figures
        .since_success()
        .into_iter()
        .filter_map(|(turn, since)| Some((vec![(LabelName::Turn, turn.word())], since?)));
    page.family("tidegate_global_success_age_seconds", "Since the last success", MetricType::Gauge, since)?;
    page.histograms(
        "tidegate_global_imported_age_seconds",
        "How old the news of other regions are at their import, by the server's clock",
        [(Vec::new(), &figures.ages)],
    )?;
    let open = figures.breakers().map(|(turn, is_open, _)| (vec![(LabelName::Turn, turn.word())], u64::from(is_open)));
    page.family("tidegate_global_breaker_open", "1 while turns are rare", MetricType::Gauge, open)?;
    let opened = figures.breakers().map(|(turn, _, opened)| (vec![(LabelName::Turn, turn.word())], opened));
    page.family("tidegate_global_breaker_opened_total", "How often it opened", MetricType::Counter, opened)?;
    write_voice(figures, page)?;
    page.gauge("tidegate_global_contested_keys", "Keys that other regions count too", figures.status.contested_keys)?;
    page.gauge("tidegate_global_waiting_keys", "Keys that wait to be published", figures.status.waiting)
}

/// Writes what the processes of the region tell each other, so that one of them speaks with MySQL.
fn write_voice(figures: &GlobalFigures, page: &mut MetricsPage<'_>) -> fmt::Result {
    let Some(voice) = figures.voice else { return Ok(()) };
    let status = &figures.status;
    let roles = Role::ALL.map(|role| (vec![(LabelName::Role, role.word())], u64::from(role == status.role)));
    page.family("tidegate_global_role", "1 for what this process does for its region", MetricType::Gauge, roles)?;
    let feed_age = status.heard_ago_us.map(|us| (Vec::<(LabelName, &str)>::new(), us as f64 / 1e6));
    page.family(
        "tidegate_global_feed_age_seconds",
        "Since the region's speaker was last heard, or spoke",
        MetricType::Gauge,
        feed_age,
    )?;
    page.gauge(
        "tidegate_global_spoken_cells",
        "Cells that this process publishes for others too",
        status.spoken_cells,
    )?;
    let ways = |[out, into]: [u64; 2], [way_out, way_in]: [&'static str; 2]| {
        [(vec![(LabelName::Way, way_out)], out), (vec![(LabelName::Way, way_in)], into)]
    };
    let mentions = ways([voice.mentions_made, voice.mentions_heard], ["made", "heard"]);
    page.family("tidegate_global_mentions_total", "Cells that the speaker was told of", MetricType::Counter, mentions)?;
    let words = ["handed_on", "heard"];
    let entries = ways([voice.handed_on[0], voice.heard[0]], words);
    page.family("tidegate_global_feed_entries_total", "Entries of the feed", MetricType::Counter, entries)?;
    let bytes = ways([voice.handed_on[1], voice.heard[1]], words);
    page.family("tidegate_global_feed_bytes_total", "Bytes of these entries", MetricType::Counter, bytes)?;
    page.counter("tidegate_global_feed_gaps_total", "How often something of the feed was missed", voice.gaps)?;
    page.counter("tidegate_global_malformed_total", "Mentions and entries that made no sense", voice.malformed)
}
