//! The flags of `tidegate serve`, as clap reads them: names, variables, defaults and the texts of `--help`.

use std::time::Duration;

use clap::Args;

use crate::flag_value::{SocketAddress, boolean, duration, ratio};
use crate::observe::logging::{LogFormat, LogLevel};
use crate::observe::tags::Tags;
use crate::request::Bounds;
use crate::server::answer_options::ReasonHeader;
use crate::server::socket_settings::SocketFlags;
use crate::server::tls::settings::ServerTlsFlags;
use crate::settings::sharing::SharingFlags;
use crate::sources::settings::{RuleFlags, RulesType};
use crate::sources::xds::settings::XdsFlags;

/// The flags of `tidegate serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeFlags {
    #[command(flatten)]
    pub rules: RuleFlags,

    /// Where rules come from: files, or a management server (ADS, state of the world)
    #[arg(long, env = "CONFIG_TYPE", value_enum, value_name = "TYPE", default_value = "FILE", help_heading = "Rules")]
    pub config_type: RulesType,

    #[command(flatten)]
    pub xds: XdsFlags,

    /// Start even if there are no usable rules yet; calls fail with UNAVAILABLE until there are
    #[arg(long, env = "FORCE_START_WITHOUT_INITIAL_CONFIG", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    #[arg(help_heading = "Rules")]
    pub force_start_without_initial_config: bool,

    /// After a forced start, be ready only once rules are loaded
    #[arg(long, env = "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    #[arg(help_heading = "Rules")]
    pub healthy_with_at_least_one_config_loaded: bool,

    /// Address of the HTTP port (/json, /healthcheck, /livez, /readyz)
    #[arg(long, env = "HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners")]
    pub host: String,

    /// HTTP port
    #[arg(long, env = "PORT", value_name = "PORT", default_value_t = 8080, help_heading = "Listeners")]
    pub port: u16,

    /// Answer requests on the HTTP port, at /json; without it there are only the probes
    #[arg(long, env = "TIDEGATE_HTTP_JSON", help_heading = "Listeners", value_name = "BOOL", default_value = "true")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub http_json: bool,

    /// Address of the gRPC port
    #[arg(long, env = "GRPC_HOST", value_name = "ADDRESS", default_value = "0.0.0.0", help_heading = "Listeners")]
    pub grpc_host: String,

    /// gRPC port
    #[arg(long, env = "GRPC_PORT", value_name = "PORT", default_value_t = 8081, help_heading = "Listeners")]
    pub grpc_port: u16,

    /// Address of the admin port (/metrics, /rlconfig, /config/status, /stats, /explain)
    #[arg(long, env = "DEBUG_HOST", value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Listeners")]
    pub debug_host: String,

    /// Admin port
    #[arg(long, env = "DEBUG_PORT", value_name = "PORT", default_value_t = 6070, help_heading = "Listeners")]
    pub debug_port: u16,

    #[command(flatten)]
    pub socket: SocketFlags,

    #[command(flatten)]
    pub tls: ServerTlsFlags,

    #[command(flatten)]
    pub sharing: SharingFlags,

    /// Bring the table in MySQL up to date before it is used, as `tidegate migrate` does
    #[arg(long, env = "TIDEGATE_MIGRATE", help_heading = "MySQL", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub migrate: bool,

    /// Ask clients to reconnect after this long (give or take 10 %), so that load spreads over new instances
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE", value_name = "DURATION", default_value = "10m")]
    #[arg(value_parser = duration, help_heading = "Listeners")]
    pub grpc_max_connection_age: Duration,

    /// Close a connection this long after it was asked to go
    #[arg(long, env = "GRPC_MAX_CONNECTION_AGE_GRACE", value_name = "DURATION", default_value = "1m")]
    #[arg(value_parser = duration, help_heading = "Listeners")]
    pub grpc_max_connection_age_grace: Duration,

    /// Threads that serve gRPC connections; 0 is one for each core
    #[arg(long, env = "TIDEGATE_WORKERS", value_name = "COUNT", default_value_t = 0, help_heading = "Listeners")]
    pub workers: usize,

    /// The most keys held in memory; the least used are given up first
    #[arg(long, env = "TIDEGATE_KEYS_MAX", value_name = "COUNT", default_value_t = 1_000_000, help_heading = "Bounds")]
    pub keys_max: usize,

    /// The most memory that keys take together, about 150 bytes each, 250 with Redis or MySQL, more for long values. Without
    /// it: 60 % of what the control group (the container) may use, if that is limited
    #[arg(long, env = "TIDEGATE_KEYS_BYTES_MAX", value_name = "BYTES", help_heading = "Bounds")]
    pub keys_bytes_max: Option<usize>,

    /// Requests open at the same time, over all connections. When nearly as many wait for Redis, those of comfort limits
    /// are answered by on_outage without waiting, then cost, then security; more unread ones get RESOURCE_EXHAUSTED
    #[arg(long, env = "TIDEGATE_MAX_IN_FLIGHT", value_name = "COUNT", default_value_t = 10_000)]
    #[arg(help_heading = "Bounds")]
    pub max_in_flight: usize,

    /// Open gRPC connections; more are closed at once
    #[arg(long, env = "TIDEGATE_MAX_CONNECTIONS", value_name = "COUNT", default_value_t = 10_000)]
    #[arg(help_heading = "Bounds")]
    pub max_connections: usize,

    /// The largest request message
    #[arg(long, env = "TIDEGATE_MAX_MESSAGE_BYTES", value_name = "BYTES", default_value_t = 64 * 1024)]
    #[arg(help_heading = "Bounds")]
    pub max_message_bytes: usize,

    /// What gRPC messages and bodies of /json that have begun to arrive may take together; when it is more, those that have
    /// waited longest get RESOURCE_EXHAUSTED, or 503 at /json
    #[arg(long, env = "TIDEGATE_MAX_ARRIVING_BYTES", value_name = "BYTES", default_value_t = 64 * 1024 * 1024)]
    #[arg(help_heading = "Bounds")]
    pub max_arriving_bytes: usize,

    /// The most descriptors in a request
    #[arg(long, env = "TIDEGATE_MAX_DESCRIPTORS", value_name = "COUNT", default_value_t = Bounds::default().descriptors_max)]
    #[arg(help_heading = "Bounds")]
    pub max_descriptors: usize,

    /// The most entries in a descriptor
    #[arg(long, env = "TIDEGATE_MAX_ENTRIES", value_name = "COUNT", default_value_t = Bounds::default().entries_max)]
    #[arg(help_heading = "Bounds")]
    pub max_entries: usize,

    /// Deny nothing, count everything
    #[arg(long, env = "SHADOW_MODE", help_heading = "Answers", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub shadow_mode: bool,

    /// Deny only what every descriptor of the request denies
    #[arg(long, env = "QUOTA_MODE", help_heading = "Answers", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub quota_mode: bool,

    /// Add the limit, remaining and reset headers to every answer
    #[arg(long, env = "LIMIT_RESPONSE_HEADERS_ENABLED", help_heading = "Answers", value_name = "BOOL")]
    #[arg(num_args = 0..=1, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    #[arg(action = clap::ArgAction::Set)]
    pub limit_response_headers_enabled: bool,

    /// Name of the limit header
    #[arg(long, env = "LIMIT_LIMIT_HEADER", value_name = "NAME", default_value = "RateLimit-Limit")]
    #[arg(help_heading = "Answers")]
    pub limit_limit_header: String,

    /// Name of the remaining header
    #[arg(long, env = "LIMIT_REMAINING_HEADER", value_name = "NAME", default_value = "RateLimit-Remaining")]
    #[arg(help_heading = "Answers")]
    pub limit_remaining_header: String,

    /// Name of the reset header
    #[arg(long, env = "LIMIT_RESET_HEADER", value_name = "NAME", default_value = "RateLimit-Reset")]
    #[arg(help_heading = "Answers")]
    pub limit_reset_header: String,

    /// Add the limit, remaining and reset headers to every request that goes on to the upstream
    #[arg(long, env = "LIMIT_REQUEST_HEADERS_ENABLED", help_heading = "Answers", value_name = "BOOL")]
    #[arg(num_args = 0..=1, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    #[arg(action = clap::ArgAction::Set)]
    pub limit_request_headers_enabled: bool,

    /// Name of the limit header of requests
    #[arg(long, env = "LIMIT_REQUEST_LIMIT_HEADER", value_name = "NAME", default_value = "RateLimit-Limit")]
    #[arg(help_heading = "Answers")]
    pub limit_request_limit_header: String,

    /// Name of the remaining header of requests
    #[arg(long, env = "LIMIT_REQUEST_REMAINING_HEADER", value_name = "NAME", default_value = "RateLimit-Remaining")]
    #[arg(help_heading = "Answers")]
    pub limit_request_remaining_header: String,

    /// Name of the reset header of requests
    #[arg(long, env = "LIMIT_REQUEST_RESET_HEADER", value_name = "NAME", default_value = "RateLimit-Reset")]
    #[arg(help_heading = "Answers")]
    pub limit_request_reset_header: String,

    /// Add Retry-After to denials
    #[arg(long, env = "TIDEGATE_RETRY_AFTER", help_heading = "Answers", value_name = "BOOL", default_value = "true")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub retry_after: bool,

    /// When to say why in the header x-ratelimit-reason: on every answer, on denials by outage or overload, or never
    #[arg(long, env = "TIDEGATE_REASON_HEADER", value_enum, ignore_case = true, value_name = "WHEN")]
    #[arg(default_value = "denied", help_heading = "Answers")]
    pub reason_header: ReasonHeader,

    /// Give denials a body, application/problem+json: which limits, and when to come back
    #[arg(long, env = "TIDEGATE_PROBLEM_BODY", help_heading = "Answers", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub problem_body: bool,

    /// Say in dynamic metadata what was asked, which rule decided and why
    #[arg(long, env = "RESPONSE_DYNAMIC_METADATA", help_heading = "Answers", value_name = "BOOL")]
    #[arg(num_args = 0..=1, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    #[arg(action = clap::ArgAction::Set)]
    pub response_dynamic_metadata: bool,

    /// The share of a limit from which on hits are counted as near it
    #[arg(long, env = "NEAR_LIMIT_RATIO", value_name = "RATIO", default_value = "0.8", value_parser = ratio)]
    #[arg(help_heading = "Metrics")]
    pub near_limit_ratio: f32,

    /// Serve metrics on --prometheus-addr too, not only on the admin port
    #[arg(long, env = "USE_PROMETHEUS", help_heading = "Metrics", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub use_prometheus: bool,

    /// Where to; without an address it is every one
    #[arg(long, env = "PROMETHEUS_ADDR", value_name = "ADDRESS:PORT", default_value = ":9090")]
    #[arg(help_heading = "Metrics")]
    pub prometheus_addr: SocketAddress,

    /// The path of the metrics there
    #[arg(long, env = "PROMETHEUS_PATH", value_name = "PATH", default_value = "/metrics", help_heading = "Metrics")]
    pub prometheus_path: String,

    /// Report ratelimit_service_response_time_seconds in milliseconds, under the same name
    #[arg(long, env = "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    #[arg(help_heading = "Metrics")]
    pub prometheus_response_time_as_milliseconds: bool,

    /// Labels for every metric, as name:value,name2:value2
    #[arg(long, env = "EXTRA_TAGS", value_name = "TAGS", default_value = "", hide_default_value = true)]
    #[arg(help_heading = "Metrics")]
    pub extra_tags: Tags,

    /// After SIGTERM, go on accepting and answering for this long while health says NOT_SERVING
    #[arg(long, env = "TIDEGATE_DRAIN_DELAY", value_name = "DURATION", default_value = "2s", value_parser = duration)]
    #[arg(help_heading = "Stopping")]
    pub drain_delay: Duration,

    /// Then wait at most this long for open calls
    #[arg(long, env = "TIDEGATE_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = duration, help_heading = "Stopping")]
    pub drain_timeout: Duration,

    /// What is logged
    #[arg(long, env = "LOG_LEVEL", value_enum, ignore_case = true, default_value = "warn", help_heading = "Logging")]
    pub log_level: LogLevel,

    /// How it is logged
    #[arg(long, env = "LOG_FORMAT", value_enum, ignore_case = true, default_value = "text", help_heading = "Logging")]
    pub log_format: LogFormat,
}
