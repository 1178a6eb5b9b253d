//! The owner of strict limits, and how long layers may be silent before they are given up.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use thiserror::Error;

use crate::regional::breaker::BreakerOptions;
use crate::secret::Secret;
use crate::settings::parse::duration;
use crate::settings::redis::{RedisFlags, RedisSettingError, RedisSettings};
use crate::settings::redis_address::{RedisTarget, RedisType};

#[derive(Args, Clone, Debug)]
pub struct StrictFlags {
    /// The owner of rules with scope strict, one Redis for all regions, in the forms of --redis-url (rediss:// for TLS, with
    /// the files of --redis-tls-cacert and so on). Without it a single region's own Redis is
    #[arg(long, env = "STRICT_REDIS_URL", value_name = "URL", hide_env_values = true, help_heading = "Outages")]
    pub strict_redis_url: Option<Secret>,

    /// What is at --strict-redis-url
    #[arg(long, env = "STRICT_REDIS_TYPE", value_enum, ignore_case = true, value_name = "TYPE")]
    #[arg(default_value = "SINGLE", help_heading = "Outages")]
    pub strict_redis_type: RedisType,

    /// File with the owner's password, or user:password; read again at every connect
    #[arg(long, env = "TIDEGATE_STRICT_AUTH_FILE", value_name = "FILE", help_heading = "Outages")]
    pub strict_auth_file: Option<PathBuf>,

    /// How long a request waits for the owner of strict limits, and never beyond 3 ms before its caller's deadline
    #[arg(long, env = "TIDEGATE_STRICT_TIMEOUT", value_name = "DURATION", default_value = "80ms")]
    #[arg(value_parser = duration, help_heading = "Outages")]
    pub strict_timeout: Duration,

    /// Replicas of the owner that have to acknowledge what was charged before its answer counts (Redis' WAIT)
    #[arg(long, env = "TIDEGATE_STRICT_REPLICAS", value_name = "COUNT", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=16), help_heading = "Outages")]
    pub strict_replicas: u32,

    /// Redis, or the owner, is given up when it has answered nothing for this long; calls that fail make it sooner
    #[arg(long, env = "TIDEGATE_ORIGIN_OUTAGE_AFTER", value_name = "DURATION", default_value = "500ms")]
    #[arg(value_parser = duration, help_heading = "Outages")]
    pub origin_outage_after: Duration,

    /// MySQL is given up when nothing could be imported or published for this long
    #[arg(long, env = "TIDEGATE_GLOBAL_OUTAGE_AFTER", value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = duration, help_heading = "Outages")]
    pub global_outage_after: Duration,

    /// How often a Redis that was given up is tried again
    #[arg(long, env = "TIDEGATE_PROBE_INTERVAL", value_name = "DURATION", default_value = "200ms")]
    #[arg(value_parser = duration, help_heading = "Outages")]
    pub probe_interval: Duration,
}

impl StrictFlags {
    fn has_url(&self) -> bool {
        self.strict_redis_url.as_ref().is_some_and(|url| !url.expose().trim().is_empty())
    }

    /// Harmless, but hardly what was meant. `has_redis`: there is a Redis of the region.
    pub fn warning(&self, has_redis: bool) -> Option<String> {
        if self.strict_replicas > 0 && !self.has_url() && !has_redis {
            return Some(
                "--strict-replicas (TIDEGATE_STRICT_REPLICAS) has no effect without --strict-redis-url (STRICT_REDIS_URL) \
                 or --redis-url (REDIS_URL): nobody else decides strict limits"
                    .to_owned(),
            );
        }
        let is_idle =
            !self.has_url() && (self.strict_auth_file.is_some() || self.strict_redis_type != RedisType::Single);
        is_idle.then(|| {
            "STRICT_REDIS_TYPE or TIDEGATE_STRICT_AUTH_FILE without --strict-redis-url (STRICT_REDIS_URL): strict limits \
             have no owner of their own"
                .to_owned()
        })
    }
}

/// What outages are noticed by, and who owns strict limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrictSettings {
    /// `None`: the region's own Redis, or nobody.
    pub owner: Option<RedisSettings>,
    pub timeout: Duration,
    pub replicas: u32,
    pub breaker: BreakerOptions,
    pub global_outage_after: Duration,
}

/// A setting about strict limits or outages that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StrictSettingError {
    #[error("the owner of strict limits, whose --strict-redis-url (STRICT_REDIS_URL) is read as --redis-url is: {0}")]
    Owner(RedisSettingError),
    #[error(transparent)]
    Redis(#[from] RedisSettingError),
    #[error(
        "--strict-replicas (TIDEGATE_STRICT_REPLICAS) is set, but the owner of strict limits is a Cluster, where nobody can \
         be waited for: set it to 0, or use one server with replicas"
    )]
    ReplicasOfCluster,
    #[error("--{flag} ({env}) is {}: write a duration from {min} to {max}", humantime::format_duration(*.value))]
    Duration { flag: &'static str, env: &'static str, value: Duration, min: &'static str, max: &'static str },
}

impl StrictSettings {
    pub fn new(flags: &StrictFlags, redis: &RedisFlags) -> Result<StrictSettings, StrictSettingError> {
        let within = |flag, env, value: Duration, range: (u64, u64), min, max| {
            let is_within = (Duration::from_millis(range.0)..=Duration::from_millis(range.1)).contains(&value);
            if is_within { Ok(value) } else { Err(StrictSettingError::Duration { flag, env, value, min, max }) }
        };
        let timeout =
            within("strict-timeout", "TIDEGATE_STRICT_TIMEOUT", flags.strict_timeout, (1, 10_000), "1ms", "10s")?;
        let outage_after = within(
            "origin-outage-after",
            "TIDEGATE_ORIGIN_OUTAGE_AFTER",
            flags.origin_outage_after,
            (50, 60_000),
            "50ms",
            "1m",
        )?;
        let global_outage_after = within(
            "global-outage-after",
            "TIDEGATE_GLOBAL_OUTAGE_AFTER",
            flags.global_outage_after,
            (1000, 3_600_000),
            "1s",
            "1h",
        )?;
        let probe_interval =
            within("probe-interval", "TIDEGATE_PROBE_INTERVAL", flags.probe_interval, (10, 60_000), "10ms", "1m")?;
        let owner = match flags.has_url() {
            true => RedisSettings::new(&RedisFlags {
                redis_url: flags.strict_redis_url.clone(),
                redis_type: flags.strict_redis_type,
                redis_auth: None,
                redis_auth_file: flags.strict_auth_file.clone(),
                redis_sentinel_auth: redis
                    .redis_sentinel_auth
                    .clone()
                    .filter(|_| flags.strict_redis_type == RedisType::Sentinel),
                redis_tls: false,
                origin_deadline: timeout,
                ..redis.clone()
            })
            .map_err(StrictSettingError::Owner)?,
            false => None,
        };
        if flags.strict_replicas > 0 {
            let own = RedisSettings::new(redis)?;
            let decides = owner.as_ref().or(own.as_ref());
            if decides.is_some_and(|redis| matches!(redis.place, RedisTarget::Cluster(_))) {
                return Err(StrictSettingError::ReplicasOfCluster);
            }
        }
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let breaker = BreakerOptions { outage_after_us: us(outage_after), probe_interval_us: us(probe_interval) };
        Ok(StrictSettings { owner, timeout, replicas: flags.strict_replicas, breaker, global_outage_after })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        strict: StrictFlags,
        #[command(flatten)]
        redis: RedisFlags,
    }

    fn settings(args: &[&str]) -> Result<StrictSettings, StrictSettingError> {
        let command = Command::try_parse_from(std::iter::once(&"serve").chain(args)).unwrap();
        StrictSettings::new(&command.strict, &command.redis)
    }

    #[test]
    fn the_owner_has_an_address_and_a_login_of_its_own() {
        let args = ["--redis-url", "a:1", "--redis-auth", "p", "--strict-redis-url", "redis://u:q@b:2/3"];
        let owner = settings(&args).unwrap().owner.unwrap();
        assert_eq!((owner.place.to_string(), owner.database), ("b:2".to_owned(), 3));
        assert_eq!(owner.origin_deadline, Duration::from_millis(80));
        assert_eq!(settings(&["--redis-url", "a:1"]).unwrap().owner, None);
        assert!(settings(&["--strict-redis-url", "redis://"]).unwrap_err().to_string().contains("STRICT_REDIS_URL"));
    }

    #[test]
    fn replicas_of_a_cluster_can_not_be_waited_for() {
        let own = ["--redis-url", "a:1,b:2", "--redis-type", "cluster", "--strict-replicas", "1"];
        assert_eq!(settings(&own), Err(StrictSettingError::ReplicasOfCluster));
        let other = [&own[..], &["--strict-redis-url", "c:3"]].concat();
        assert_eq!(settings(&other).unwrap().replicas, 1);
    }

    #[test]
    fn what_has_no_effect_is_pointed_out() {
        let warning = |args: &[&str], has_redis| {
            Command::try_parse_from(std::iter::once(&"serve").chain(args)).unwrap().strict.warning(has_redis)
        };
        let replicas = ["--strict-replicas", "1"];
        assert!(warning(&replicas, false).is_some_and(|said| said.contains("TIDEGATE_STRICT_REPLICAS")));
        assert_eq!((warning(&replicas, true), warning(&[], false)), (None, None));
        assert_eq!(warning(&[&replicas[..], &["--strict-redis-url", "a:1"]].concat(), false), None);
        assert!(warning(&["--strict-auth-file", "f"], true).is_some_and(|said| said.contains("AUTH_FILE")));
    }

    #[test]
    fn times_are_bounded() {
        for (flag, value) in [("--strict-timeout", "0ms"), ("--origin-outage-after", "1ms"), ("--probe-interval", "2h")]
        {
            let text = settings(&[flag, value]).unwrap_err().to_string();
            assert!(text.contains(flag) && text.contains("write a duration from"), "{text}");
        }
    }
}
