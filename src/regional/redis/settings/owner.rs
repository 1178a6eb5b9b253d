//! The owner of strict limits, as flags and as checked settings: one Redis for all regions, or the region's own.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use thiserror::Error;

use crate::flag_value::{DurationError, duration, duration_within};
use crate::regional::redis::settings::address::{RedisTarget, RedisType};
use crate::regional::redis::settings::{DEADLINE_RANGE, RedisFlags, RedisSettingError, RedisSettings};
use crate::secret::Secret;

#[derive(Args, Clone, Debug)]
pub struct OwnerFlags {
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
}

impl OwnerFlags {
    fn has_url(&self) -> bool {
        self.strict_redis_url.as_ref().is_some_and(|url| !url.expose().trim().is_empty())
    }

    /// A warning about settings that do no harm, but are hardly what was meant. `has_redis`: the region has a Redis.
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

/// Who decides strict limits, and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerSettings {
    /// `None`: the region's own Redis decides them, or nobody.
    pub redis: Option<RedisSettings>,
    /// How long a request waits for the owner.
    pub timeout: Duration,
    /// How many replicas have to acknowledge what was charged; 0: none.
    pub replicas: u32,
}

/// A setting about the owner of strict limits that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum OwnerSettingError {
    #[error("the owner of strict limits, whose --strict-redis-url (STRICT_REDIS_URL) is read as --redis-url is: {0}")]
    Owner(RedisSettingError),
    #[error(transparent)]
    Redis(#[from] RedisSettingError),
    #[error(
        "--strict-replicas (TIDEGATE_STRICT_REPLICAS) is set, but the owner of strict limits is a Cluster, where nobody can \
         be waited for: set it to 0, or use one server with replicas"
    )]
    ReplicasOfCluster,
    #[error(transparent)]
    Duration(#[from] DurationError),
}

impl OwnerSettings {
    pub(crate) fn new(flags: &OwnerFlags, redis: &RedisFlags) -> Result<OwnerSettings, OwnerSettingError> {
        let timeout =
            duration_within(("strict-timeout", "TIDEGATE_STRICT_TIMEOUT"), flags.strict_timeout, DEADLINE_RANGE)?;
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
            .map_err(OwnerSettingError::Owner)?,
            false => None,
        };
        if flags.strict_replicas > 0 {
            let own = RedisSettings::new(redis)?;
            let decides = owner.as_ref().or(own.as_ref());
            if decides.is_some_and(|redis| matches!(redis.place, RedisTarget::Cluster(_))) {
                return Err(OwnerSettingError::ReplicasOfCluster);
            }
        }
        Ok(OwnerSettings { redis: owner, timeout, replicas: flags.strict_replicas })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        owner: OwnerFlags,
        #[command(flatten)]
        redis: RedisFlags,
    }

    fn settings(args: &[&str]) -> Result<OwnerSettings, OwnerSettingError> {
        let command = Command::try_parse_from(std::iter::once(&"serve").chain(args)).unwrap();
        OwnerSettings::new(&command.owner, &command.redis)
    }

    #[test]
    fn the_owner_has_an_address_and_a_login_of_its_own() {
        let args = ["--redis-url", "a:1", "--redis-auth", "p", "--strict-redis-url", "redis://u:q@b:2/3"];
        let owner = settings(&args).unwrap().redis.unwrap();
        assert_eq!((owner.place.to_string(), owner.database), ("b:2".to_owned(), 3));
        assert_eq!(owner.origin_deadline, Duration::from_millis(80));
        assert_eq!(settings(&["--redis-url", "a:1"]).unwrap().redis, None);
        assert!(settings(&["--strict-redis-url", "redis://"]).unwrap_err().to_string().contains("STRICT_REDIS_URL"));
    }

    #[test]
    fn replicas_of_a_cluster_can_not_be_waited_for() {
        let own = ["--redis-url", "a:1,b:2", "--redis-type", "cluster", "--strict-replicas", "1"];
        assert_eq!(settings(&own), Err(OwnerSettingError::ReplicasOfCluster));
        let other = [&own[..], &["--strict-redis-url", "c:3"]].concat();
        assert_eq!(settings(&other).unwrap().replicas, 1);
    }

    #[test]
    fn what_has_no_effect_is_pointed_out() {
        let warning = |args: &[&str], has_redis| {
            Command::try_parse_from(std::iter::once(&"serve").chain(args)).unwrap().owner.warning(has_redis)
        };
        let replicas = ["--strict-replicas", "1"];
        assert!(warning(&replicas, false).is_some_and(|said| said.contains("TIDEGATE_STRICT_REPLICAS")));
        assert_eq!((warning(&replicas, true), warning(&[], false)), (None, None));
        assert_eq!(warning(&[&replicas[..], &["--strict-redis-url", "a:1"]].concat(), false), None);
        assert!(warning(&["--strict-auth-file", "f"], true).is_some_and(|said| said.contains("AUTH_FILE")));
    }

    #[test]
    fn the_time_is_bounded() {
        let text = settings(&["--strict-timeout", "0ms"]).unwrap_err().to_string();
        assert!(text.contains("--strict-timeout") && text.contains("write a duration from 1ms to 10s"), "{text}");
    }
}
