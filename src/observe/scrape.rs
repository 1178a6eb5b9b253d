//! Everything that is measured, in Prometheus' text format.
//!
//! The counters live where they are counted; a scrape reads them once ([`Figures`]) and writes them down. Names that start
//! with `ratelimit_service` are those of envoyproxy/ratelimit.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::engine::table::TableStats;
use crate::global::metrics::GlobalFigures;
use crate::measure::times::Times;
use crate::observe::hits::{HitCounter, HitCounts};
use crate::observe::label_name::LabelName;
use crate::observe::labels::Labels;
use crate::observe::layers::{self, LayerFigures};
use crate::observe::outcome::{NoDecision, Outcomes, RequestOutcome};
use crate::observe::page::MetricsPage;
use crate::observe::process::ProcessFigures;
use crate::observe::{global, regional};
use crate::regional::metrics::RegionalFigures;
use crate::rules::policy::{Class, OnOutage, Word};
use crate::rules::problem::Severity;
use crate::sources::load_status::{LoadReport, now_s};

/// The content type of `/metrics`.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How many errors of the last attempt to load rules are named. `/config/status` has up to a thousand problems.
const ERRORS_NAMED_MAX: usize = 10;

/// How `/metrics` is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScrapeOptions {
    /// Names and values of labels that an operator adds to every metric.
    pub labels: Vec<(String, String)>,
    /// Write `ratelimit_service_response_time_seconds` in milliseconds, in spite of its name.
    pub response_time_as_ms: bool,
}

/// Every outcome and failure, read.
#[derive(Clone, Debug)]
pub(crate) struct OutcomeFigures {
    /// Requests with a decision since the start, by what it said.
    pub decisions: [(RequestOutcome, u64); RequestOutcome::ALL.len()],
    /// Requests without a decision since the start, by the reason.
    pub failures: [(NoDecision, u64); NoDecision::ALL.len()],
    /// Requests that only SHADOW_MODE let pass; `decisions` has them as `Shadow`.
    pub globally_shadowed: u64,
    /// Requests of domains without rules; `decisions` has them as well.
    pub unknown_domain: u64,
    /// Requests that a policy has answered: with OK, and with OVER_LIMIT.
    outages: Vec<(OnOutage, [u64; 2])>,
    shed: Vec<(Class, u64)>,
    decision_time: Times,
    response_time: Times,
}

impl OutcomeFigures {
    pub(crate) fn of(outcomes: &Outcomes) -> OutcomeFigures {
        OutcomeFigures {
            decisions: RequestOutcome::ALL.map(|outcome| (outcome, outcomes.decisions(outcome))),
            failures: NoDecision::ALL.map(|failure| (failure, outcomes.failures(failure))),
            globally_shadowed: outcomes.globally_shadowed(),
            unknown_domain: outcomes.unknown_domain(),
            outages: OnOutage::ALL
                .iter()
                .map(|policy| (*policy, [false, true].map(|is_over| outcomes.outages(*policy, is_over))))
                .collect(),
            shed: Class::ALL.iter().map(|class| (*class, outcomes.shed(*class))).collect(),
            decision_time: Times::of(&outcomes.decision_time),
            response_time: Times::of(&outcomes.response_time),
        }
    }
}

/// gRPC connections, now and since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionFigures {
    /// Open now, those in the middle of their handshake included.
    pub open: u64,
    /// Closed at once, because `TIDEGATE_MAX_CONNECTIONS` were open.
    pub refused: u64,
    /// Failed before their first call, by TLS or HTTP/2. Clients that left without a word do not count.
    pub handshake_failures: u64,
    /// How often new certificates came into force. 0 without TLS.
    pub certificate_reloads: u64,
    /// How often new certificates were refused, so that the old ones stayed. 0 without TLS.
    pub certificate_reload_failures: u64,
}

/// All that is measured, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Hits of the rules in force, by label. Rules without hits and refunds are left out.
    pub hits: BTreeMap<Labels, HitCounts>,
    /// What became of requests.
    pub outcomes: OutcomeFigures,
    /// How full the table of keys is, and what it has given up.
    pub table: TableStats,
    /// The most keys that the table holds; less than TIDEGATE_KEYS_MAX if their bytes would not fit.
    pub keys_max: usize,
    /// The most memory that keys may take. `usize::MAX`: only their number is bounded.
    pub keys_bytes_max: usize,
    /// Requests that hold a place now; up to 1024 more than `in_flight_max` if there is a Redis to wait for.
    pub in_flight: usize,
    /// How many places there are (TIDEGATE_MAX_IN_FLIGHT).
    pub in_flight_max: usize,
    /// Requests that wait for Redis.
    pub waiting: usize,
    /// How long requests have waited for the owner of strict limits; `None` if there is none.
    pub strict_time: Option<Times>,
    /// The layers that are configured, the widest first.
    pub layers: Vec<LayerFigures>,
    /// Of the gRPC port alone.
    pub connections: ConnectionFigures,
    /// The rules in force, and the last attempt to load others.
    pub config: LoadReport,
    /// The region's Redis; `None` if counts are not shared through one.
    pub regional: Option<RegionalFigures>,
    /// The owner of strict limits; `None` if it is not a Redis of its own.
    pub owner: Option<RegionalFigures>,
    /// The exchange with other regions; `None` if nothing is shared with them.
    pub global: Option<GlobalFigures>,
    /// Of this process. All zero if /proc can't be read.
    pub process: ProcessFigures,
    /// When the ports were opened, in seconds since the epoch.
    pub started_at_s: u64,
}

impl Figures {
    /// The figures as Prometheus reads them.
    pub(crate) fn into_text(self, options: &ScrapeOptions) -> Result<String, fmt::Error> {
        let labels = options.labels.iter().map(|(name, value)| (Cow::Owned(name.clone()), Cow::Owned(value.clone())));
        let mut registry = Registry::with_labels(labels);
        registry.register_collector(Box::new(Scrape { figures: self, as_ms: options.response_time_as_ms }));
        let mut written = String::with_capacity(16 * 1024);
        text::encode_registry(&mut written, &registry)?;
        Ok(written)
    }
}

#[derive(Debug)]
struct Scrape {
    figures: Figures,
    as_ms: bool,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = MetricsPage::new(encoder);
        self.of_the_reference(&mut page)?;
        self.of_decisions(&mut page)?;
        self.of_config(&mut page)?;
        self.of_outages(&mut page)?;
        self.figures.regional.iter().try_for_each(|figures| regional::write(figures, &mut page))?;
        self.figures.owner.iter().try_for_each(|figures| regional::write_as_owner(figures, &mut page))?;
        self.figures.global.iter().try_for_each(|figures| global::write(figures, &mut page))?;
        self.of_the_process(&mut page)
    }
}

impl Scrape {
    fn of_the_reference(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let Figures { hits, outcomes, config, .. } = &self.figures;
        for count in HitCounter::ALL {
            let (name, help) = count.name_and_help();
            let series = hits.iter().map(|(labels, counts)| {
                let mut pairs = vec![(LabelName::Domain, &*labels.domain), (LabelName::Key1, &*labels.key1)];
                pairs.extend(labels.key2.as_deref().map(|key2| (LabelName::Key2, key2)));
                (pairs, counts[count as usize])
            });
            page.family(&format!("ratelimit_service_rate_limit_{name}"), help, MetricType::Counter, series)?;
        }
        page.counter(
            "ratelimit_service_rate_limit_domain_not_found",
            "Requests of domains that no rules are for",
            outcomes.unknown_domain,
        )?;
        let method = || vec![(LabelName::GrpcMethod, "ShouldRateLimit")];
        page.family(
            "ratelimit_service_total_requests",
            "gRPC calls that were answered, errors included",
            MetricType::Counter,
            [(method(), outcomes.response_time.count())],
        )?;
        let times = outcomes.response_time.clone().scaled(if self.as_ms { 1000.0 } else { 1.0 });
        let help = "From the arrival of a gRPC call to its answer";
        page.histogram("ratelimit_service_response_time_seconds", help, &method(), &times)?;
        let failures = outcomes.failures.iter().map(|(_, count)| count).sum::<u64>();
        page.family(
            "ratelimit_service_should_rate_limit_error",
            "Requests without a decision",
            MetricType::Counter,
            [(vec![(LabelName::ErrType, "service_error")], failures)],
        )?;
        page.counter(
            "ratelimit_service_global_shadow_mode",
            "Requests that only SHADOW_MODE let pass",
            outcomes.globally_shadowed,
        )?;
        page.counter("ratelimit_service_config_load_success", "Rules that came into force", config.loads_succeeded)?;
        page.counter("ratelimit_service_config_load_error", "Rules that were refused", config.loads_failed)
    }

    fn of_decisions(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let Figures { outcomes, table, keys_max, keys_bytes_max, in_flight, in_flight_max, connections, .. } =
            &self.figures;
        let decisions =
            outcomes.decisions.iter().map(|(outcome, count)| (vec![(LabelName::Outcome, outcome.word())], *count));
        page.family("tidegate_decisions_total", "Decisions by what they said", MetricType::Counter, decisions)?;
        let failures =
            outcomes.failures.iter().map(|(failure, count)| (vec![(LabelName::Reason, failure.word())], *count));
        page.family("tidegate_errors_total", "Requests without a decision", MetricType::Counter, failures)?;
        let help = "From a message to its answer, in the process";
        page.histogram("tidegate_decision_duration_seconds", help, &[], &outcomes.decision_time)?;
        page.gauge("tidegate_keys", "Keys held in memory", table.keys)?;
        page.gauge("tidegate_keys_max", "The most keys that are held", *keys_max)?;
        page.gauge("tidegate_keys_bytes", "Memory that keys take, about", table.bytes)?;
        if *keys_bytes_max < usize::MAX {
            page.gauge("tidegate_keys_bytes_max", "The most memory that keys may take", *keys_bytes_max)?;
        }
        page.counter("tidegate_keys_expired_total", "Keys forgotten because their windows had passed", table.expired)?;
        page.counter("tidegate_keys_evicted_total", "Keys given up because the table was full", table.evicted)?;
        page.counter(
            "tidegate_keys_evicted_over_limit_total",
            "Of those, keys that were over their limit",
            table.evicted_over_limit,
        )?;
        page.gauge("tidegate_in_flight", "Requests that are open", *in_flight)?;
        page.gauge("tidegate_in_flight_max", "The most requests that may be open", *in_flight_max)?;
        page.gauge("tidegate_connections", "Open gRPC connections", connections.open)?;
        page.counter(
            "tidegate_connections_refused_total",
            "Connections closed at once, too many were open",
            connections.refused,
        )?;
        page.counter(
            "tidegate_handshake_failures_total",
            "Connections that came to no TLS handshake or HTTP/2 greeting",
            connections.handshake_failures,
        )?;
        page.counter(
            "tidegate_certificate_reloads_total",
            "Certificates that were replaced",
            connections.certificate_reloads,
        )?;
        page.counter(
            "tidegate_certificate_reload_errors_total",
            "New certificates that were refused",
            connections.certificate_reload_failures,
        )
    }

    fn of_outages(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let Figures { outcomes, layers, waiting, strict_time, .. } = &self.figures;
        layers::write(layers, page)?;
        let answered = outcomes.outages.iter().flat_map(|(policy, [ok, over])| {
            let labels = |code| vec![(LabelName::Policy, policy.word()), (LabelName::Code, code)];
            [(labels("ok"), *ok), (labels("over_limit"), *over)]
        });
        page.family(
            "tidegate_outage_decisions_total",
            "Requests that a rule's on_outage has answered",
            MetricType::Counter,
            answered,
        )?;
        let shed = outcomes.shed.iter().map(|(class, count)| (vec![(LabelName::Class, class.word())], *count));
        page.family(
            "tidegate_shed_total",
            "Requests that were not let wait for Redis, because too many did",
            MetricType::Counter,
            shed,
        )?;
        page.gauge("tidegate_requests_waiting", "Requests that wait for Redis", *waiting)?;
        let Some(strict_time) = strict_time else { return Ok(()) };
        let help = "How long requests have waited for the owner of strict limits";
        page.histogram("tidegate_strict_duration_seconds", help, &[], strict_time)
    }

    fn of_config(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let config = &self.figures.config;
        page.gauge("tidegate_config_generation", "Rulesets that have come into force", config.generation)?;
        if let Some(loaded_at_s) = config.loaded_at_s {
            let age_s = now_s().saturating_sub(loaded_at_s);
            page.gauge("tidegate_config_age_seconds", "Since the rules in force were loaded", age_s)?;
        }
        page.gauge("tidegate_config_rules", "Rules in force", config.rules)?;
        page.gauge("tidegate_config_domains", "Domains with rules in force", config.domains)?;
        let Some(attempt) = &config.last_attempt else { return Ok(()) };
        page.gauge(
            "tidegate_config_last_load_ok",
            "1 if the last load was good, 0 if it was refused",
            u64::from(attempt.ok),
        )?;
        page.gauge("tidegate_config_last_load_timestamp_seconds", "When the last load was tried", attempt.at_s)?;
        page.gauge("tidegate_config_last_load_errors", "Errors that the last load had", attempt.errors)?;
        let errors = attempt.problems.iter().filter(|problem| problem.severity == Severity::Error);
        let places: Vec<[String; 3]> = errors
            .take(ERRORS_NAMED_MAX)
            .map(|problem| {
                let position = problem.place.position;
                [problem.place.file.to_string(), position.line.to_string(), position.column.to_string()]
            })
            .collect();
        let mut series: Vec<(Vec<(LabelName, &str)>, u64)> = Vec::new();
        for [file, line, column] in &places {
            let labels = vec![
                (LabelName::File, file.as_str()),
                (LabelName::Line, line.as_str()),
                (LabelName::Column, column.as_str()),
            ];
            // One place may have two errors, but a series is written once.
            if !series.iter().any(|(other, _)| *other == labels) {
                series.push((labels, 1));
            }
        }
        page.family("tidegate_config_error", "Where the last load found errors", MetricType::Gauge, series)
    }

    fn of_the_process(&self, page: &mut MetricsPage<'_>) -> fmt::Result {
        let Figures { process, started_at_s, .. } = &self.figures;
        let build = vec![(LabelName::Version, env!("CARGO_PKG_VERSION"))];
        page.family("tidegate_build_info", "What runs here", MetricType::Gauge, [(build, 1u64)])?;
        page.single("process_cpu_seconds_total", "CPU time", MetricType::Counter, process.cpu.as_secs_f64())?;
        page.gauge("process_resident_memory_bytes", "Resident memory", process.resident_bytes)?;
        page.gauge("process_open_fds", "Open file descriptors", process.open_files)?;
        page.gauge("process_threads", "Threads", process.threads)?;
        page.gauge("process_start_time_seconds", "When the process started, since the epoch", *started_at_s)
    }
}
