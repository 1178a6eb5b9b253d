//! Warns of settings in the environment that have no effect here, in one sentence, so that nobody relies on them.
//!
//! The names are listed one by one rather than by prefix: Kubernetes puts variables of its own beside them, such as
//! `REDIS_PORT=tcp://...` for a Service called redis.

use crate::flag_value::boolean;

/// Names, each with the value that asks for nothing (empty if there is none), and why they have no effect.
const GROUPS: &[(&[(&str, &str)], &str)] = &[
    (
        &[
            ("REDIS_POOL_SIZE", ""),
            ("REDIS_PIPELINE_WINDOW", ""),
            ("REDIS_PIPELINE_LIMIT", ""),
            ("REDIS_CLUSTER_PIPELINE_PARALLELISM", ""),
            ("REDIS_POOL_ON_EMPTY_BEHAVIOR", ""),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false"),
            ("REDIS_STARTUP_INITIAL_INTERVAL", ""),
            ("REDIS_STARTUP_MAX_INTERVAL", ""),
            ("REDIS_STARTUP_MAX_ELAPSED_TIME", ""),
        ],
        "three connections carry everything, and neither the start nor health waits for Redis",
    ),
    (
        &[
            ("REDIS_PERSECOND", "false"),
            ("REDIS_PERSECOND_URL", ""),
            ("REDIS_PERSECOND_SOCKET_TYPE", ""),
            ("REDIS_PERSECOND_TYPE", ""),
            ("REDIS_PERSECOND_POOL_SIZE", ""),
            ("REDIS_PERSECOND_AUTH", ""),
            ("REDIS_PERSECOND_TLS", "false"),
            ("REDIS_PERSECOND_SENTINEL_AUTH", ""),
            ("REDIS_PERSECOND_PIPELINE_WINDOW", ""),
            ("REDIS_PERSECOND_PIPELINE_LIMIT", ""),
            ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", ""),
            ("REDIS_PERSECOND_TIMEOUT", ""),
            ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", ""),
        ],
        "limits per second go to REDIS_URL like all others",
    ),
    (
        &[
            ("BACKEND_TYPE", "redis"),
            ("MEMCACHE_HOST_PORT", ""),
            ("MEMCACHE_SRV", ""),
            ("MEMCACHE_SRV_REFRESH", ""),
            ("MEMCACHE_MAX_IDLE_CONNS", ""),
            ("MEMCACHE_TLS", "false"),
            ("MEMCACHE_TLS_CLIENT_CERT", ""),
            ("MEMCACHE_TLS_CLIENT_KEY", ""),
            ("MEMCACHE_TLS_CACERT", ""),
            ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false"),
            ("CACHE_KEY_PREFIX", ""),
            ("EXPIRATION_JITTER_MAX_SECONDS", ""),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false"),
        ],
        "counts are in memory, and shared through REDIS_URL and MYSQL_URL if these are set",
    ),
    (
        &[
            ("USE_STATSD", "false"),
            ("STATSD_HOST", ""),
            ("STATSD_PORT", ""),
            ("STATSD_PROTOCOL", ""),
            ("USE_DOG_STATSD", "false"),
            ("USE_DOG_STATSD_MOGRIFIERS", ""),
            ("STATS_FLUSH_INTERVAL", ""),
            ("DISABLE_STATS", "false"),
            ("PROMETHEUS_MAPPER_YAML", ""),
        ],
        "metrics are served at /metrics of the admin port, always and under fixed names",
    ),
    (
        &[
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", ""),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", ""),
            ("XDS_CLIENT_BACKOFF_JITTER", ""),
        ],
        "attempts to reach the management server begin with CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL apart, and double",
    ),
    (
        &[
            ("TRACING_ENABLED", "false"),
            ("TRACING_EXPORTER_PROTOCOL", ""),
            ("TRACING_SERVICE_NAME", ""),
            ("TRACING_SERVICE_NAMESPACE", ""),
            ("TRACING_SERVICE_INSTANCE_ID", ""),
            ("TRACING_SAMPLING_RATE", ""),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""),
        ],
        "there are no traces",
    ),
    (&[("GRPC_SERVER_TLS_CA_CERT", "")], "client certificates are asked for with GRPC_CLIENT_TLS_CACERT"),
];

/// Two names that are at least this much alike are probably one name, misspelt.
const LIKENESS_MIN: f64 = 0.8;

/// One sentence on all settings of the environment that have no effect, if there are any.
pub(crate) fn sentence(environment: &[(String, String)]) -> Option<String> {
    let is_set = |(name, idle): &&(&str, &str)| {
        let value = environment.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        let is_idle =
            |value: &str| value.eq_ignore_ascii_case(idle) || (*idle == "false" && boolean(value) == Ok(false));
        value.is_some_and(|value| !value.is_empty() && !is_idle(value))
    };
    let mut parts = Vec::new();
    for (names, why) in GROUPS {
        let set: Vec<&str> = names.iter().filter(is_set).map(|(name, _)| *name).collect();
        if !set.is_empty() {
            parts.push(format!("{} ({why})", set.join(", ")));
        }
    }
    (!parts.is_empty()).then(|| format!("these settings have no effect here: {}", parts.join("; ")))
}

/// One sentence on each `TIDEGATE_` variable that no command knows: most likely a typing error.
pub(crate) fn unknown(environment: &[(String, String)], known: &[String]) -> Vec<String> {
    let is_ineffective = |name: &str| GROUPS.iter().any(|(names, _)| names.iter().any(|(other, _)| *other == name));
    let is_unknown = |name: &&str| name.starts_with("TIDEGATE_") && !is_kubernetes(name) && !is_ineffective(name);
    let names = environment.iter().map(|(name, _)| name.as_str()).filter(is_unknown);
    names
        .filter(|name| !known.iter().any(|known| known == name))
        .map(|name| {
            let likeness = |known: &str| strsim::normalized_levenshtein(known, name);
            let nearest = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let nearest = nearest.filter(|nearest| likeness(nearest) >= LIKENESS_MIN);
            let hint = nearest.map_or_else(String::new, |nearest| format!(": did you mean {nearest}?"));
            format!("there is no setting {name}{hint}")
        })
        .collect()
}

/// Whether Kubernetes sets such a variable in every pod of a namespace with a Service called tidegate.
fn is_kubernetes(name: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.contains("_PORT_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_what_asks_for_something_is_named() {
        let quiet = [
            ("USE_STATSD", "false"),
            ("REDIS_PERSECOND_TLS", "0"),
            ("REDIS_PORT", "tcp://10.0.0.1:6379"),
            ("STATSD_HOST", ""),
            ("HOST", "::"),
        ];
        assert_eq!(sentence(&environment(&quiet)), None);
        let set = [("REDIS_URL", "redis:6379"), ("REDIS_PERSECOND", "1"), ("USE_STATSD", "True"), ("X", "y")];
        let said = sentence(&environment(&set)).unwrap();
        assert!(said.contains("REDIS_PERSECOND (limits per second go to REDIS_URL"), "{said}");
        assert!(said.contains("USE_STATSD (metrics") && !said.contains("REDIS_URL,"), "{said}");
    }

    #[test]
    fn a_misspelt_setting_is_told_apart_from_kubernetes() {
        let known = ["TIDEGATE_KEYS_MAX".to_owned(), "TIDEGATE_RULES".to_owned()];
        let set = [
            ("TIDEGATE_KEY_MAX", "1"),
            ("TIDEGATE_SECRET", "1"),
            ("TIDEGATE_RULES", "x"),
            ("TIDEGATE_PORT", "tcp://10.0.0.1:80"),
            ("TIDEGATE_PORT_8081_TCP_ADDR", "10.0.0.1"),
            ("TIDEGATE_SERVICE_PORT_GRPC", "8081"),
        ];
        let said = unknown(&environment(&set), &known);
        let misspelt = "there is no setting TIDEGATE_KEY_MAX: did you mean TIDEGATE_KEYS_MAX?";
        assert_eq!(said, [misspelt, "there is no setting TIDEGATE_SECRET"]);
    }
}
