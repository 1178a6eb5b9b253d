//! The admin port: pages for operators. Nothing here changes anything, and no request of Envoy passes through here.
//!
//! It is open on loopback by default. It answers reads only; anything else is refused and logged.

pub(crate) mod explain;
pub(crate) mod layers;

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::measure::times::Times;
use crate::observe::layers::LayerFigures;
use crate::observe::process::ProcessFigures;
use crate::observe::scrape::{self, ConnectionFigures, Figures, OutcomeFigures, ScrapeOptions};
use crate::observe::{global, regional};
use crate::rules::explain_text::length;
use crate::server::admin::explain::ExplainError;
use crate::server::connection_stats::ConnectionStats;
use crate::server::log_budget::LogBudget;
use crate::server::service::Service;
use crate::server::tls::ServerTls;
use crate::sources::load_status::{ConfigStatus, now_s};

/// Everything that the pages are made from.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    /// Whose rules, keys and counters are shown.
    pub service: Arc<Service>,
    /// The rules in force, and the last attempt to load others.
    pub config: Arc<ConfigStatus>,
    /// Connections of the gRPC port; the other ports are not shown.
    pub connections: Arc<ConnectionStats>,
    /// TLS of the gRPC port; `None` if it speaks plain text.
    pub tls: Option<Arc<ServerTls>>,
    /// How `/metrics` is written.
    pub scrape: Arc<ScrapeOptions>,
    /// Where the rules come from, for `/config/status`: a path, or `xds:` and a management server.
    pub rules_at: Arc<str>,
    /// When the ports were opened, in seconds since the epoch.
    pub started_at_s: u64,
    /// Only this machine can reach the port. So a request for another host comes from a page that has led a browser
    /// here (DNS rebinding).
    pub is_loopback: bool,
    /// Bounds what refused requests may write to the log.
    pub log: Arc<LogBudget>,
}

/// How much of a stranger's text is logged.
const LOGGED_CHARS_MAX: usize = 200;

fn excerpt(text: &str) -> String {
    text.chars().take(LOGGED_CHARS_MAX).collect()
}

const PAGES: [(&str, &str); 5] = [
    ("/config/status", "the rules in force, and every problem of the last load (JSON)"),
    ("/explain", "which rule a descriptor meets and how it stands: ?domain=d&descriptor=k=v,k2=v2&hits=1&output=json"),
    ("/metrics", "everything that is measured, for Prometheus"),
    ("/rlconfig", "the rules in force, a line each"),
    ("/stats", "keys, requests, connections and the region at a glance (JSON); tidegate status shows it to people"),
];

impl Admin {
    /// The pages of the admin port.
    pub(crate) fn router(self) -> Router {
        Router::new()
            .route("/", get(index))
            .route("/metrics", get(metrics))
            .route("/rlconfig", get(rlconfig))
            .route("/config/status", get(config_status))
            .route("/stats", get(stats))
            .route("/explain", get(explain_page))
            .fallback(nothing_there)
            .method_not_allowed_fallback(refuse)
            .layer(from_fn_with_state(self.clone(), own_host_only))
            .with_state(self)
    }

    /// The metrics alone, for a port that others can reach.
    pub(crate) fn metrics_router(self, path: &str) -> Router {
        Router::new().route(path, get(metrics)).method_not_allowed_fallback(refuse).with_state(self)
    }

    fn log_refusal(&self, request: &Request) {
        let Some(left_out) = self.log.take(Instant::now()) else { return };
        let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("-");
        let (origin, host) = (excerpt(header(header::ORIGIN)), excerpt(header(header::HOST)));
        let (method, path) = (request.method(), excerpt(request.uri().path()));
        tracing::warn!(%method, path, origin, host, left_out, "refused a request to the admin port");
    }

    fn figures(&self) -> Figures {
        let service = &self.service;
        let table = service.engine().table();
        Figures {
            hits: service.in_force().map(|in_force| in_force.hits.read()).unwrap_or_default(),
            outcomes: OutcomeFigures::of(service.outcomes()),
            table: table.stats(),
            keys_max: table.keys_max(),
            keys_bytes_max: table.bytes_max(),
            in_flight: service.admission().in_flight(),
            in_flight_max: service.admission().in_flight_max(),
            waiting: service.admission().waiting(),
            strict_time: service.engine().layers().owner.map(|_| Times::of(service.strict_time())),
            layers: service.layers(),
            connections: ConnectionFigures {
                open: self.connections.open(),
                refused: self.connections.refused(),
                handshake_failures: self.connections.handshake_failures(),
                certificate_reloads: self.tls.as_ref().map_or(0, |tls| tls.reloads()),
                certificate_reload_failures: self.tls.as_ref().map_or(0, |tls| tls.reload_failures()),
            },
            config: self.config.read(),
            regional: service.regional().map(|regional| regional.figures(table.stats().lost_hits)),
            owner: service.owner().map(|owner| owner.figures(0)),
            global: service.global().map(|global| global.figures()),
            process: ProcessFigures::of("self").unwrap_or_default(),
            started_at_s: self.started_at_s,
        }
    }
}

async fn index() -> Response {
    let mut page = format!("Tidegate {}\n\n", env!("CARGO_PKG_VERSION"));
    for (path, help) in PAGES {
        // Writing to a String can't fail.
        let _ = writeln!(page, "{path}: {help}");
    }
    text(StatusCode::OK, page)
}

/// On loopback, answers only to names of this machine.
async fn own_host_only(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if admin.is_loopback && host.is_some_and(|host| !is_own_host(host)) {
        admin.log_refusal(&request);
        return text(StatusCode::FORBIDDEN, "the admin port answers to localhost and IP addresses only\n");
    }
    next.run(request).await
}

fn is_own_host(host: &str) -> bool {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    let name = match host.rsplit_once(':') {
        Some((name, _)) if !host.ends_with(']') => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost") || is_address(bare) || is_address(host)
}

async fn nothing_there(State(admin): State<Admin>, request: Request) -> Response {
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return refuse(State(admin), request).await;
    }
    let pages: Vec<&str> = PAGES.iter().map(|(path, _)| *path).collect();
    text(StatusCode::NOT_FOUND, format!("no such page: there are {}\n", pages.join(", ")))
}

/// Tells a client that tries to change something that it can't, and logs the attempt. The body is not read.
async fn refuse(State(admin): State<Admin>, request: Request) -> Response {
    admin.log_refusal(&request);
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "the admin port is for reading: use GET\n");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match admin.figures().into_text(&admin.scrape) {
        Ok(page) => respond(StatusCode::OK, scrape::CONTENT_TYPE, page),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// A line for each limit, as envoyproxy/ratelimit writes them, in the order of declaration.
async fn rlconfig(State(admin): State<Admin>) -> Response {
    let mut page = String::new();
    let in_force = admin.service.in_force();
    for domain in in_force.iter().flat_map(|in_force| in_force.ruleset.domains()) {
        for rule in domain.rules() {
            let steps: Vec<&str> = rule.rule_path.iter().map(|step| &*step.written).collect();
            let path = format!("{}.{}", domain.name, steps.join("."));
            let modes = format!("shadow_mode: {}, quota_mode: {}", rule.shadow_mode, rule.quota_mode);
            if rule.is_unlimited() {
                let _ = writeln!(page, "{path}: unit=UNKNOWN requests_per_unit=0, {modes}");
            }
            for limit in rule.limits() {
                let unit = match limit.unit() {
                    Some(unit) => unit.word().to_uppercase(),
                    None => format!("UNKNOWN window={}", length(limit.terms.window_ms).replace(' ', "")),
                };
                let _ = writeln!(page, "{path}: unit={unit} requests_per_unit={}, {modes}", limit.terms.limit);
            }
        }
    }
    text(StatusCode::OK, page)
}

async fn config_status(State(admin): State<Admin>) -> Response {
    let config = admin.config.read();
    let mut document = json!(config);
    document["rules_at"] = json!(&*admin.rules_at);
    document["age_s"] = json!(config.loaded_at_s.map(|at_s| now_s().saturating_sub(at_s)));
    page_json(&document)
}

async fn stats(State(admin): State<Admin>) -> Response {
    let figures = admin.figures();
    let named = |pairs: &mut dyn Iterator<Item = (&'static str, u64)>| {
        Value::Object(pairs.map(|(name, count)| (name.to_owned(), count.into())).collect())
    };
    page_json(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now_s": now_s(),
        "uptime_s": now_s().saturating_sub(figures.started_at_s),
        "config": {
            "generation": figures.config.generation,
            "domains": figures.config.domains,
            "rules": figures.config.rules,
            "loaded_at_s": figures.config.loaded_at_s,
            "last_load_ok": figures.config.last_attempt.as_ref().map(|attempt| attempt.ok),
            "last_load_errors": figures.config.last_attempt.as_ref().map(|attempt| attempt.errors),
        },
        "keys": {
            "held": figures.table.keys,
            "max": figures.keys_max,
            "bytes": figures.table.bytes,
            "bytes_max": Some(figures.keys_bytes_max).filter(|bytes| *bytes < usize::MAX),
            "expired": figures.table.expired,
            "evicted": figures.table.evicted,
            "evicted_over_limit": figures.table.evicted_over_limit,
        },
        "requests": {
            "in_flight": figures.in_flight,
            "in_flight_max": figures.in_flight_max,
            "waiting": figures.waiting,
            "decisions": named(&mut figures.outcomes.decisions.iter().map(|(outcome, count)| (outcome.word(), *count))),
            "errors": named(&mut figures.outcomes.failures.iter().map(|(failure, count)| (failure.word(), *count))),
            "unknown_domain": figures.outcomes.unknown_domain,
        },
        "connections": {
            "open": figures.connections.open,
            "refused": figures.connections.refused,
            "handshake_failures": figures.connections.handshake_failures,
        },
        "layers": figures.layers.iter().map(LayerFigures::to_json).collect::<Vec<_>>(),
        "regional": figures.regional.as_ref().map(regional::to_json),
        "strict": figures.owner.as_ref().map(regional::to_json),
        "global": figures.global.as_ref().map(global::to_json),
        "process": {
            "cpu_s": figures.process.cpu.as_secs_f64(),
            "resident_bytes": figures.process.resident_bytes,
            "open_files": figures.process.open_files,
            "threads": figures.process.threads,
        },
    }))
}

async fn explain_page(State(admin): State<Admin>, headers: HeaderMap, request: Request) -> Response {
    let query = match explain::Query::read(request.uri().query().unwrap_or_default()) {
        Ok(query) => query,
        Err(reason) => return text(StatusCode::BAD_REQUEST, format!("{reason}\n")),
    };
    let wants_json = headers.get(header::ACCEPT).is_some_and(|accept| accept.as_bytes() == b"application/json");
    match explain::explain(&admin.service, &query) {
        Ok(explained) if query.is_json || wants_json => page_json(&explained.to_json()),
        Ok(explained) => text(StatusCode::OK, explained.to_string()),
        Err(ExplainError::Refused(reason)) => text(StatusCode::BAD_REQUEST, format!("{reason}\n")),
        Err(reason) => text(StatusCode::NOT_FOUND, format!("{reason}\n")),
    }
}

fn page_json(document: &Value) -> Response {
    respond(StatusCode::OK, "application/json", format!("{document:#}\n"))
}

fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    respond(status, "text/plain; charset=utf-8", body)
}

fn respond(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = crate::server::http::respond(status, content_type, body);
    // The name of a rule must not make a browser guess another type of page.
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine_are_told_from_others() {
        for own in ["localhost", "LOCALHOST:6070", "127.0.0.1:6070", "[::1]:6070", "[::1]", "::1", "10.0.0.1"] {
            assert!(is_own_host(own), "{own}");
        }
        for other in ["attacker.example", "attacker.example:6070", "localhost.attacker.example", "", "127.0.0.1.nip.io"]
        {
            assert!(!is_own_host(other), "{other}");
        }
    }
}
