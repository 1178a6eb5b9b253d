//! The region's Redis, as flags and as checked settings.
//!
//! Without REDIS_URL there is no Redis, and the process counts alone. Mistakes that show before a connection is made
//! are refused here, in the files too: a process that starts with a password file or a CA that it can't read would run
//! on without its region and look healthy. Files are read again at every connect, because passwords and certificates
//! rotate.

pub(crate) mod address;
pub(crate) mod owner;
pub(crate) mod tls_files;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use thiserror::Error;

use crate::flag_value::{DurationError, boolean, duration, duration_within, thousandths};
use crate::pem_file::PemFileError;
use crate::regional::redis::settings::address::{
    AddressError, Credentials, RedisAddress, RedisTarget, RedisType, SocketType,
};
use crate::regional::redis::settings::tls_files::RedisTls;
use crate::secret::Secret;

const CONNECT_TIMEOUT_RANGE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
/// How long a request may be set to wait for a store.
const DEADLINE_RANGE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(10);

#[derive(Args, Clone, Debug)]
pub struct RedisFlags {
    /// The region's Redis: host:port, redis://user:password@host:port/db, rediss://... (TLS) or the path of a unix
    /// socket; for a Cluster a list of nodes, for Sentinel the master's name and the sentinels. Without it the process
    /// counts alone
    #[arg(long, env = "REDIS_URL", value_name = "URL", hide_env_values = true, help_heading = "Redis")]
    pub redis_url: Option<Secret>,

    /// What is at --redis-url
    #[arg(long, env = "REDIS_TYPE", value_enum, ignore_case = true, value_name = "TYPE", default_value = "SINGLE")]
    #[arg(help_heading = "Redis")]
    pub redis_type: RedisType,

    /// With unix, a --redis-url that is no host:port is the path of a socket; otherwise its form says what it is
    #[arg(long, env = "REDIS_SOCKET_TYPE", value_enum, ignore_case = true, value_name = "TYPE")]
    #[arg(help_heading = "Redis")]
    pub redis_socket_type: Option<SocketType>,

    /// Password, or user:password
    #[arg(long, env = "REDIS_AUTH", value_name = "PASSWORD", hide_env_values = true, help_heading = "Redis")]
    pub redis_auth: Option<Secret>,

    /// File with the password, or user:password; read again at every connect
    #[arg(long, env = "TIDEGATE_REDIS_AUTH_FILE", value_name = "FILE", help_heading = "Redis")]
    pub redis_auth_file: Option<PathBuf>,

    /// Password of the sentinels, or user:password
    #[arg(long, env = "REDIS_SENTINEL_AUTH", value_name = "PASSWORD", hide_env_values = true)]
    #[arg(help_heading = "Redis")]
    pub redis_sentinel_auth: Option<Secret>,

    /// Speak TLS with Redis and the sentinels
    #[arg(long, env = "REDIS_TLS", help_heading = "Redis", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub redis_tls: bool,

    /// PEM file of the CA of Redis' certificate, in place of those that the system trusts
    #[arg(long, env = "REDIS_TLS_CACERT", value_name = "FILE", help_heading = "Redis")]
    pub redis_tls_cacert: Option<PathBuf>,

    /// PEM file of our certificate, for a Redis that asks for one
    #[arg(long, env = "REDIS_TLS_CLIENT_CERT", value_name = "FILE", help_heading = "Redis")]
    pub redis_tls_client_cert: Option<PathBuf>,

    /// PEM file of its private key
    #[arg(long, env = "REDIS_TLS_CLIENT_KEY", value_name = "FILE", help_heading = "Redis")]
    pub redis_tls_client_key: Option<PathBuf>,

    /// Accept a certificate for another name; who issued it and until when it is valid is still verified
    #[arg(long, env = "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    #[arg(help_heading = "Redis")]
    pub redis_tls_skip_hostname_verification: bool,

    /// How long each step of connecting may take; no request waits for it
    #[arg(long, env = "REDIS_TIMEOUT", value_name = "DURATION", default_value = "1s", value_parser = duration)]
    #[arg(help_heading = "Redis")]
    pub redis_timeout: Duration,

    /// The share of a limit that the processes of the region may admit before Redis knows; 0 asks it every time
    #[arg(long, env = "TIDEGATE_SLACK", value_name = "RATIO", default_value = "0.1", value_parser = thousandths)]
    #[arg(help_heading = "Redis")]
    pub slack: u16,

    /// How long a request waits for Redis at most, before the rule's on_outage answers
    #[arg(long, env = "TIDEGATE_ORIGIN_DEADLINE", value_name = "DURATION", default_value = "10ms")]
    #[arg(value_parser = duration, help_heading = "Redis")]
    pub origin_deadline: Duration,
}

impl RedisFlags {
    /// A warning about settings that do no harm, but are hardly what was meant.
    pub fn warning(&self) -> Option<String> {
        let is_without_url = self.redis_url.as_ref().is_none_or(|url| url.expose().trim().is_empty());
        let set = |is_set: bool, name| is_set.then_some(name);
        if is_without_url {
            let names = [
                set(self.redis_type != RedisType::Single, "REDIS_TYPE"),
                set(self.redis_auth.is_some(), "REDIS_AUTH"),
                set(self.redis_auth_file.is_some(), "TIDEGATE_REDIS_AUTH_FILE"),
                set(self.redis_sentinel_auth.is_some(), "REDIS_SENTINEL_AUTH"),
                set(self.redis_tls, "REDIS_TLS"),
                set(self.redis_tls_cacert.is_some(), "REDIS_TLS_CACERT"),
            ];
            let names: Vec<_> = names.into_iter().flatten().collect();
            return (!names.is_empty()).then(|| {
                let names = names.join(", ");
                format!("{names} without --redis-url (REDIS_URL): every limit holds for this process alone")
            });
        }
        let is_tls = RedisSettings::new(self).is_ok_and(|settings| settings.is_some_and(|it| it.tls.is_some()));
        let has_files = self.redis_tls_cacert.is_some() || self.redis_tls_client_cert.is_some();
        (has_files && !is_tls).then(|| {
            "certificates for Redis are set, but TLS is off and everything goes in plain text: turn on --redis-tls \
             (REDIS_TLS), or write rediss:// in REDIS_URL"
                .to_owned()
        })
    }
}

/// How to reach a store, and how far to rely on memory alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// Which servers; it can be shown, because it holds no password.
    pub place: RedisTarget,
    /// Always 0 in a Cluster and with Sentinel.
    pub database: i64,
    /// For the servers. The sentinels have their own.
    pub login: Login,
    /// Whom to log in as at the sentinels; `None`: no login. Only with Sentinel.
    pub sentinel_login: Option<Credentials>,
    /// `None`: plain text. Servers and sentinels alike.
    pub tls: Option<RedisTls>,
    /// How long each step of connecting may take: reaching a server, the handshake, the login, its first answer.
    pub connect_timeout: Duration,
    /// The share of a limit that the region's processes may admit before Redis knows, in thousandths.
    pub slack: u16,
    /// How long a request waits for this Redis. For an owner of strict limits, the strict timeout.
    pub origin_deadline: Duration,
}

/// Where user and password come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    None,
    Fixed(Credentials),
    /// Read at every connect.
    File(PathBuf),
}

impl Login {
    /// The login for now. Reads the file, if there is one.
    pub fn read(&self) -> Result<Option<Credentials>, RedisSettingError> {
        match self {
            Login::None => Ok(None),
            Login::Fixed(credentials) => Ok(Some(credentials.clone())),
            Login::File(file) => read_login(file).map(Some),
        }
    }
}

fn read_login(file: &Path) -> Result<Credentials, RedisSettingError> {
    let unreadable = |fault: std::io::Error| RedisSettingError::AuthFile {
        file: file.to_owned(),
        fault: format!("can't be read: {fault}"),
    };
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        return Err(RedisSettingError::AuthFile { file: file.to_owned(), fault: "is empty".into() });
    }
    Ok(Credentials::parse(text))
}

/// A setting about Redis that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RedisSettingError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    TlsFile(#[from] PemFileError),
    #[error(
        "--redis-auth-file (TIDEGATE_REDIS_AUTH_FILE) is '{file}', which {fault}: \
         name a file with one line, the password or user:password"
    )]
    AuthFile { file: PathBuf, fault: String },
    #[error("{first} and {second} both say who logs in to Redis: leave one of them out")]
    TwoLogins { first: &'static str, second: &'static str },
    #[error(
        "--redis-sentinel-auth (REDIS_SENTINEL_AUTH) is set, but --redis-type (REDIS_TYPE) is not SENTINEL: \
         set it, or write the password of the servers into --redis-auth (REDIS_AUTH)"
    )]
    NoSentinels,
    #[error(
        "--redis-tls (REDIS_TLS) is on, but --redis-url (REDIS_URL) is a unix socket: turn TLS off, or write host:port"
    )]
    TlsOnSocket,
    #[error(
        "--{set} is set, but --{missing} is not: set both, the PEM files of our certificate and of its private key, or \
         neither"
    )]
    HalfCertificate { set: &'static str, missing: &'static str },
    #[error(transparent)]
    Duration(#[from] DurationError),
}

impl RedisSettings {
    /// Checks the flags; `None` without a URL. Reads the files once, to refuse what can't be read.
    pub fn new(flags: &RedisFlags) -> Result<Option<RedisSettings>, RedisSettingError> {
        let connect_timeout =
            duration_within(("redis-timeout", "REDIS_TIMEOUT"), flags.redis_timeout, CONNECT_TIMEOUT_RANGE)?;
        let origin_deadline =
            duration_within(("origin-deadline", "TIDEGATE_ORIGIN_DEADLINE"), flags.origin_deadline, DEADLINE_RANGE)?;
        let Some(url) = flags.redis_url.as_ref().map(Secret::expose).filter(|url| !url.trim().is_empty()) else {
            return Ok(None);
        };
        let address = RedisAddress::parse(url, flags.redis_type, flags.redis_socket_type)?;
        let sentinel_login = flags.redis_sentinel_auth.as_ref().filter(|auth| !auth.expose().is_empty());
        if sentinel_login.is_some() && flags.redis_type != RedisType::Sentinel {
            return Err(RedisSettingError::NoSentinels);
        }
        let login = login(flags, address.credentials)?;
        login.read()?;
        let tls = (flags.redis_tls || address.is_tls).then(|| tls(flags)).transpose()?;
        if let Some(tls) = &tls {
            if matches!(address.place, RedisTarget::Unix(_)) {
                return Err(RedisSettingError::TlsOnSocket);
            }
            tls.read()?;
        }
        Ok(Some(RedisSettings {
            place: address.place,
            database: address.database,
            login,
            sentinel_login: sentinel_login.map(|auth| Credentials::parse(auth.expose())),
            tls,
            connect_timeout,
            slack: flags.slack,
            origin_deadline,
        }))
    }
}

fn login(flags: &RedisFlags, in_url: Option<Credentials>) -> Result<Login, RedisSettingError> {
    const URL: &str = "--redis-url (REDIS_URL)";
    const AUTH: &str = "--redis-auth (REDIS_AUTH)";
    const FILE: &str = "--redis-auth-file (TIDEGATE_REDIS_AUTH_FILE)";
    let auth = flags.redis_auth.as_ref().map(Secret::expose).filter(|auth| !auth.is_empty());
    let file = flags.redis_auth_file.as_ref().filter(|file| !file.as_os_str().is_empty());
    match (in_url, auth, file) {
        (Some(_), Some(_), _) => Err(RedisSettingError::TwoLogins { first: URL, second: AUTH }),
        (Some(_), _, Some(_)) => Err(RedisSettingError::TwoLogins { first: URL, second: FILE }),
        (_, Some(_), Some(_)) => Err(RedisSettingError::TwoLogins { first: AUTH, second: FILE }),
        (Some(credentials), None, None) => Ok(Login::Fixed(credentials)),
        (None, Some(auth), None) => Ok(Login::Fixed(Credentials::parse(auth))),
        (None, None, Some(file)) => Ok(Login::File(file.clone())),
        (None, None, None) => Ok(Login::None),
    }
}

fn tls(flags: &RedisFlags) -> Result<RedisTls, RedisSettingError> {
    const CERT: &str = "redis-tls-client-cert (REDIS_TLS_CLIENT_CERT)";
    const KEY: &str = "redis-tls-client-key (REDIS_TLS_CLIENT_KEY)";
    let client = match (&flags.redis_tls_client_cert, &flags.redis_tls_client_key) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (None, None) => None,
        (Some(_), None) => return Err(RedisSettingError::HalfCertificate { set: CERT, missing: KEY }),
        (None, Some(_)) => return Err(RedisSettingError::HalfCertificate { set: KEY, missing: CERT }),
    };
    let any_name = flags.redis_tls_skip_hostname_verification;
    Ok(RedisTls { ca: flags.redis_tls_cacert.clone(), client, any_name })
}

#[cfg(test)]
mod tests;
