//! Flags and environment as typed, and the settings they come to.
//!
//! Two steps: [`ServeFlags`] is what clap reads, one field for each flag; [`Settings`] is what the program runs on, with
//! everything parsed, bounded and checked before a port is opened. Environment names are those of envoyproxy/ratelimit
//! where it has the setting; ours start with `TIDEGATE_`.
//!
//! The settings of one part of the program are defined there, flags and checks together: `regional/redis/settings.rs`,
//! `global/settings.rs`, `sources/settings.rs`, `server/tls/settings.rs` and so on. This folder has the settings of the whole
//! process or of several parts, and puts all of them together. So it may import all parts that serve, and none of them
//! imports it.

pub(crate) mod ineffective;
pub(crate) mod memory_limit;
pub(crate) mod outages;
pub(crate) mod serve_flags;
pub(crate) mod sharing;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use thiserror::Error;

use crate::engine::Modes;
use crate::engine::table::KEYS_MAX;
use crate::engine::table::weight::Capacity;
use crate::flag_value::DurationError;
use crate::global::settings::GlobalSettingError;
use crate::observe::scrape::ScrapeOptions;
use crate::regional::redis::settings::RedisSettingError;
use crate::regional::redis::settings::owner::OwnerSettingError;
use crate::request::Bounds;
use crate::secret::SecretError;
use crate::server::answer_options::{AnswerOptions, LimitHeaders};
use crate::server::protobuf::PREFIX_BYTES;
use crate::server::service::ServiceOptions;
use crate::server::socket_settings::{SocketSettingError, SocketSettings};
use crate::server::tls::settings::{TlsSettingError, TlsSettings};
use crate::settings::memory_limit::memory_limit;
use crate::settings::serve_flags::ServeFlags;
use crate::settings::sharing::SharingSettings;
use crate::sources::rule_source::RuleSource;
use crate::sources::xds::settings::XdsSettingError;

/// Room for some thousands of keys: an operator who sets less has mistaken the unit.
const KEYS_BYTES_LEAST: usize = 1 << 20;
/// More than any machine has to spare for messages that have not arrived.
const ARRIVING_BYTES_MAX: usize = 64 * 1024 * 1024 * 1024;
/// Nobody waits longer than this for a process to stop.
const DRAIN_MAX: Duration = Duration::from_secs(60 * 60);
/// Ten years stand for no limit. Much more could not be added to a clock.
const FOR_GOOD: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// What the service runs on.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The port for `/json` and the probes.
    pub http_addr: SocketAddr,
    /// Whether `/json` is served, besides the probes.
    pub has_http_json: bool,
    /// The port for Envoy, unless `grpc_socket` replaces it.
    pub grpc_addr: SocketAddr,
    /// The port for operators. On loopback, it answers to names of this machine alone.
    pub admin_addr: SocketAddr,
    /// `None`: metrics are on the admin port alone.
    pub prometheus: Option<PrometheusPort>,
    /// How `/metrics` is written.
    pub scrape: ScrapeOptions,
    /// Start even without usable rules; calls then fail until there are some.
    pub force_start: bool,
    /// Where rules come from.
    pub rules: RuleSource,
    /// Whether a forced start has to wait for rules before it is ready.
    pub ready_with_rules_only: bool,
    /// After this long, give or take a tenth, a gRPC client is asked to reconnect. At least a second, [`FOR_GOOD`] for no limit.
    pub connection_age: Duration,
    /// How long a connection has for its open calls after it was asked to go. [`FOR_GOOD`] for no limit.
    pub connection_grace: Duration,
    /// How many keys memory holds, and how many bytes they may take.
    pub capacity: Capacity,
    /// How many gRPC connections may be open; one more is closed at once.
    pub connections_max: usize,
    /// How many threads serve gRPC connections: at least one, by default one for each core.
    pub workers: usize,
    /// The largest gRPC message, without its prefix. A body of `/json` may be four times as large.
    pub message_bytes_max: usize,
    /// How requests are read, decided and answered, on any port.
    pub service: ServiceOptions,
    /// How long a stop goes on accepting and answering while health says NOT_SERVING. At most an hour.
    pub drain_delay: Duration,
    /// How long a stop then waits for open calls. At most an hour.
    pub drain_timeout: Duration,
    /// The unix socket that replaces `grpc_addr`; `None` if gRPC is served by TCP.
    pub grpc_socket: Option<SocketSettings>,
    /// TLS of the gRPC port; `None` for plain text.
    pub tls: Option<TlsSettings>,
    /// With whom counts are shared, and through what.
    pub sharing: SharingSettings,
    /// Whether the table in MySQL is brought up to date before it is used.
    pub migrates: bool,
}

/// A second port for metrics, besides the admin port.
#[derive(Clone, Debug)]
pub(crate) struct PrometheusPort {
    /// May be every address of the machine: nothing but metrics is served there.
    pub addr: SocketAddr,
    /// Begins with `/`, and has nothing in it that the router would take for a pattern.
    pub path: String,
}

/// A setting that can't be used. `flag` and `env` are the two names that operators know it by.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum SettingError {
    #[error("--{flag} ({env}) is '{value}', which is not an IP address: write 0.0.0.0, 127.0.0.1, :: or the like")]
    Address { flag: &'static str, env: &'static str, value: String },
    #[error("--{flag} ({env}) is {value}: write a number from {min} to {max}")]
    Range { flag: &'static str, env: &'static str, value: u128, min: u128, max: u128 },
    #[error("--{flag} ({env}) is '{value}', which is not an HTTP header name: use letters, digits and -")]
    HeaderName { flag: &'static str, env: &'static str, value: String },
    #[error("--{flag} ({env}) is longer than an hour: write at most 1h")]
    Drain { flag: &'static str, env: &'static str },
    #[error("--prometheus-path (PROMETHEUS_PATH) is '{0}', which is not a path: write /metrics or the like")]
    MetricsPath(String),
    #[error(transparent)]
    Xds(#[from] XdsSettingError),
    #[error(transparent)]
    Socket(#[from] SocketSettingError),
    #[error(transparent)]
    Tls(#[from] TlsSettingError),
    #[error(transparent)]
    Redis(#[from] RedisSettingError),
    #[error(transparent)]
    Global(#[from] GlobalSettingError),
    #[error(transparent)]
    Owner(#[from] OwnerSettingError),
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl Settings {
    /// Checks the flags as a whole.
    pub(crate) fn new(flags: &ServeFlags) -> Result<Settings, SettingError> {
        let rules = RuleSource::new(flags.config_type, &flags.rules, &flags.xds)?;
        let headers = LimitHeaders {
            limit: header_name("limit-limit-header", "LIMIT_LIMIT_HEADER", &flags.limit_limit_header)?,
            remaining: header_name("limit-remaining-header", "LIMIT_REMAINING_HEADER", &flags.limit_remaining_header)?,
            reset: header_name("limit-reset-header", "LIMIT_RESET_HEADER", &flags.limit_reset_header)?,
        };
        let request_headers = LimitHeaders {
            limit: header_name(
                "limit-request-limit-header",
                "LIMIT_REQUEST_LIMIT_HEADER",
                &flags.limit_request_limit_header,
            )?,
            remaining: header_name(
                "limit-request-remaining-header",
                "LIMIT_REQUEST_REMAINING_HEADER",
                &flags.limit_request_remaining_header,
            )?,
            reset: header_name(
                "limit-request-reset-header",
                "LIMIT_REQUEST_RESET_HEADER",
                &flags.limit_request_reset_header,
            )?,
        };
        let count = |flag, env, value: usize, min: usize, max: usize| {
            if (min..=max).contains(&value) {
                return Ok(value);
            }
            Err(SettingError::Range { flag, env, value: value as u128, min: min as u128, max: max as u128 })
        };
        let sharing = SharingSettings::new(&flags.sharing, &flags.rules.secret)?;
        let message_bytes_max =
            count("max-message-bytes", "TIDEGATE_MAX_MESSAGE_BYTES", flags.max_message_bytes, 1024, 16 * 1024 * 1024)?;
        Ok(Settings {
            http_addr: SocketAddr::new(address("host", "HOST", &flags.host)?, flags.port),
            has_http_json: flags.http_json,
            grpc_addr: SocketAddr::new(address("grpc-host", "GRPC_HOST", &flags.grpc_host)?, flags.grpc_port),
            admin_addr: SocketAddr::new(address("debug-host", "DEBUG_HOST", &flags.debug_host)?, flags.debug_port),
            prometheus: flags.use_prometheus.then(|| prometheus_port(flags)).transpose()?,
            scrape: ScrapeOptions {
                labels: flags.extra_tags.0.clone(),
                response_time_as_ms: flags.prometheus_response_time_as_milliseconds,
            },
            force_start: flags.force_start_without_initial_config,
            ready_with_rules_only: flags.healthy_with_at_least_one_config_loaded,
            // Zero is no limit; anything else below a second becomes a second.
            connection_age: for_good_if_zero(flags.grpc_max_connection_age).max(Duration::from_secs(1)),
            connection_grace: for_good_if_zero(flags.grpc_max_connection_age_grace),
            capacity: Capacity {
                keys: count("keys-max", "TIDEGATE_KEYS_MAX", flags.keys_max, 1, KEYS_MAX)?,
                bytes: match flags.keys_bytes_max {
                    Some(bytes) => {
                        count("keys-bytes-max", "TIDEGATE_KEYS_BYTES_MAX", bytes, KEYS_BYTES_LEAST, usize::MAX)?
                    }
                    None => memory_limit().map_or(usize::MAX, part_for_keys),
                },
            },
            workers: match flags.workers {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                workers => count("workers", "TIDEGATE_WORKERS", workers, 1, 1024)?,
            },
            connections_max: count("max-connections", "TIDEGATE_MAX_CONNECTIONS", flags.max_connections, 1, 1_000_000)?,
            message_bytes_max,
            service: ServiceOptions {
                bounds: Bounds {
                    descriptors_max: count(
                        "max-descriptors",
                        "TIDEGATE_MAX_DESCRIPTORS",
                        flags.max_descriptors,
                        1,
                        1024,
                    )?,
                    entries_max: count("max-entries", "TIDEGATE_MAX_ENTRIES", flags.max_entries, 1, 64)?,
                },
                modes: Modes { shadow: flags.shadow_mode, quota: flags.quota_mode },
                answers: AnswerOptions {
                    headers: flags.limit_response_headers_enabled.then_some(headers),
                    request_headers: flags.limit_request_headers_enabled.then_some(request_headers),
                    retry_after: flags.retry_after,
                    reason_header: flags.reason_header,
                    problem_body: flags.problem_body,
                    dynamic_metadata: flags.response_dynamic_metadata,
                },
                in_flight_max: count("max-in-flight", "TIDEGATE_MAX_IN_FLIGHT", flags.max_in_flight, 1, 1_000_000)?,
                // Room for at least the largest message, with what gRPC puts before it.
                arriving_bytes_max: count(
                    "max-arriving-bytes",
                    "TIDEGATE_MAX_ARRIVING_BYTES",
                    flags.max_arriving_bytes,
                    message_bytes_max + PREFIX_BYTES,
                    ARRIVING_BYTES_MAX,
                )?,
                strict_timeout: sharing.owner.timeout,
                near_limit_ratio: flags.near_limit_ratio,
            },
            drain_delay: drain("drain-delay", "TIDEGATE_DRAIN_DELAY", flags.drain_delay)?,
            drain_timeout: drain("drain-timeout", "TIDEGATE_DRAIN_TIMEOUT", flags.drain_timeout)?,
            grpc_socket: SocketSettings::new(&flags.socket)?,
            tls: TlsSettings::new(&flags.tls)?,
            rules,
            sharing,
            migrates: flags.migrate,
        })
    }
}

/// How much of a memory limit keys may take if nothing else is set. The rest is for connections, messages and rules.
fn part_for_keys(limit_bytes: u64) -> usize {
    usize::try_from(limit_bytes / 10 * 6).unwrap_or(usize::MAX).max(KEYS_BYTES_LEAST)
}

fn address(flag: &'static str, env: &'static str, value: &str) -> Result<IpAddr, SettingError> {
    let bare = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(value);
    match bare {
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        _ => bare.parse().map_err(|_| SettingError::Address { flag, env, value: value.to_owned() }),
    }
}

/// Zero means no limit, as in envoyproxy/ratelimit.
fn for_good_if_zero(duration: Duration) -> Duration {
    if duration.is_zero() { FOR_GOOD } else { duration.min(FOR_GOOD) }
}

fn drain(flag: &'static str, env: &'static str, value: Duration) -> Result<Duration, SettingError> {
    if value > DRAIN_MAX { Err(SettingError::Drain { flag, env }) } else { Ok(value) }
}

fn prometheus_port(flags: &ServeFlags) -> Result<PrometheusPort, SettingError> {
    let path = flags.prometheus_path.as_str();
    // The router would take braces and stars for patterns.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    if !path.starts_with('/') || !path.bytes().all(is_plain) {
        return Err(SettingError::MetricsPath(path.to_owned()));
    }
    Ok(PrometheusPort { addr: flags.prometheus_addr.0, path: path.to_owned() })
}

fn header_name(flag: &'static str, env: &'static str, value: &str) -> Result<String, SettingError> {
    match http::HeaderName::from_bytes(value.as_bytes()) {
        Ok(_) => Ok(value.to_owned()),
        Err(_) => Err(SettingError::HeaderName { flag, env, value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: ServeFlags,
    }

    fn settings(args: &[&str]) -> Result<Settings, SettingError> {
        let args = std::iter::once("serve").chain(args.iter().copied());
        Settings::new(&Command::try_parse_from(args).unwrap().flags)
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let settings = settings(&[]).unwrap();
        assert_eq!(settings.admin_addr.to_string(), "127.0.0.1:6070");
        assert_eq!(settings.http_addr.to_string(), "0.0.0.0:8080");
        assert_eq!(settings.grpc_addr.to_string(), "0.0.0.0:8081");
        assert_eq!(settings.drain_delay, Duration::from_secs(2));
        assert_eq!(settings.connection_age, Duration::from_secs(600));
        assert_eq!((settings.connections_max, settings.service.in_flight_max), (10_000, 10_000));
        assert_eq!((settings.message_bytes_max, settings.service.arriving_bytes_max), (64 * 1024, 64 * 1024 * 1024));
        assert_eq!(settings.service.bounds, Bounds { descriptors_max: 32, entries_max: 16 });
        assert!(settings.service.answers.retry_after && settings.service.answers.headers.is_none());
        assert!(settings.service.answers.request_headers.is_none());
        assert!(!settings.service.answers.problem_body && !settings.service.answers.dynamic_metadata);
    }

    #[test]
    fn keys_take_what_is_set_or_six_tenths_of_the_limit() {
        let capacity = settings(&["--keys-max", "1000", "--keys-bytes-max", "2000000"]).unwrap().capacity;
        assert_eq!(capacity, Capacity { keys: 1000, bytes: 2_000_000 });
        assert_eq!([512 << 20, 1 << 20].map(part_for_keys), [322_122_546, 1 << 20]);
    }

    #[test]
    fn booleans_are_flags_and_values() {
        assert!(settings(&["--shadow-mode"]).unwrap().service.modes.shadow);
        assert!(settings(&["--shadow-mode", "T"]).unwrap().service.modes.shadow);
        assert!(!settings(&["--retry-after=false"]).unwrap().service.answers.retry_after);
    }

    #[test]
    fn bad_settings_name_their_flag() {
        let said = |args| settings(args).unwrap_err().to_string();
        assert!(said(&["--grpc-host", "example.com"]).contains("--grpc-host (GRPC_HOST)"));
        assert!(said(&["--keys-max", "0"]).contains("from 1 to"));
        let bytes = said(&["--keys-bytes-max", "1000"]);
        assert!(bytes.contains("(TIDEGATE_KEYS_BYTES_MAX) is 1000: write a number from 1048576 to"), "{bytes}");
        let no_room = ["--max-message-bytes", "2000", "--max-arriving-bytes", "2000"];
        assert!(said(&no_room).contains("(TIDEGATE_MAX_ARRIVING_BYTES) is 2000: write a number from 2005 to"));
        assert!(said(&["--limit-reset-header", "a b"]).contains("not an HTTP header name"));
        assert!(said(&["--limit-request-reset-header", "a b"]).contains("(LIMIT_REQUEST_RESET_HEADER) is 'a b'"));
        assert!(said(&["--drain-delay", "61m"]).contains("write at most 1h"));
        assert_eq!(settings(&["--grpc-max-connection-age", "0"]).unwrap().connection_age, FOR_GOOD);
        assert!(said(&["--prometheus-path", "metrics", "--use-prometheus"]).contains("PROMETHEUS_PATH"));
        let xds = ["--config-type", "GRPC_XDS_SOTW", "--config-grpc-xds-server-url", "nowhere"];
        assert!(said(&xds).contains("no host and port"));
        assert_eq!(settings(&["--host", "[::1]"]).unwrap().http_addr.to_string(), "[::1]:8080");
    }
}
