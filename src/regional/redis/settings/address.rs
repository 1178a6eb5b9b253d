//! Where Redis is: the forms of REDIS_URL.
//!
//! envoyproxy/ratelimit takes `host:port`, a path, or a list of them; managed services hand out `redis://` and
//! `rediss://` URLs. Both are accepted. A value may hold a password, even one that is written wrong, so errors show
//! only parts that can't be one.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::ValueEnum;
use redis::{ConnectionAddr, IntoConnectionInfo};
use thiserror::Error;

use crate::secret::Secret;

/// The most bytes in the path of a socket: 108 on Linux, of which the last is zero.
const PATH_BYTES_MAX: usize = 107;
/// Nobody has databases with higher numbers: Redis has sixteen unless told otherwise.
const DATABASE_MAX: i64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RedisType {
    #[value(name = "SINGLE")]
    Single,
    #[value(name = "CLUSTER")]
    Cluster,
    #[value(name = "SENTINEL")]
    Sentinel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SocketType {
    Tcp,
    Unix,
}

/// A server that is reached by TCP.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedisNode {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The TCP port; a `redis://` URL without one means 6379.
    pub port: u16,
}

impl fmt::Display for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The servers that make up the region's Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTarget {
    Single(RedisNode),
    Unix(PathBuf),
    /// Some of the nodes, which name the others.
    Cluster(Vec<RedisNode>),
    Sentinel {
        master: String,
        sentinels: Vec<RedisNode>,
    },
}

impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |nodes: &[RedisNode]| nodes.iter().map(RedisNode::to_string).collect::<Vec<_>>().join(",");
        match self {
            RedisTarget::Single(node) => node.fmt(f),
            RedisTarget::Unix(path) => path.display().fmt(f),
            RedisTarget::Cluster(nodes) => write!(f, "cluster {}", list(nodes)),
            RedisTarget::Sentinel { master, sentinels } => write!(f, "{master} of the sentinels {}", list(sentinels)),
        }
    }
}

/// Whom to log in as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// `None`: Redis' default user.
    pub user: Option<String>,
    /// Everything after the user. `Debug` does not show it.
    pub password: Secret,
}

impl Credentials {
    /// Reads `pass` or `user:pass`, as REDIS_AUTH and the password file have it. The first colon ends the user, and a
    /// password may hold more of them. Without a user, a password with colons needs one in front.
    pub fn parse(text: &str) -> Credentials {
        match text.split_once(':') {
            Some(("", password)) => Credentials { user: None, password: Secret::new(password) },
            Some((user, password)) => Credentials { user: Some(user.to_owned()), password: Secret::new(password) },
            None => Credentials { user: None, password: Secret::new(text) },
        }
    }
}

/// Everything that REDIS_URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisAddress {
    /// Which servers, in the form that REDIS_TYPE asks for.
    pub place: RedisTarget,
    /// 0 unless a URL for a single server names another.
    pub database: i64,
    /// A login that the URL holds; `None`: another setting may have one.
    pub credentials: Option<Credentials>,
    /// Written as rediss://.
    pub is_tls: bool,
}

/// A REDIS_URL that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    #[error(
        "--redis-url (REDIS_URL) has '{0}', which names no server: write host:6379, [::1]:6379, \
         redis://user:password@host:6379/0, rediss://host:6379 for TLS, or the path of a unix socket"
    )]
    Form(String),
    #[error("--redis-url (REDIS_URL) has '{0}', which has no port: write {0}:6379, or the whole path of a unix socket")]
    NoPort(String),
    #[error(
        "--redis-url (REDIS_URL) has '{0}', which is not a URL of Redis: write redis://user:password@host:6379/0, with \
         special characters of user and password as %40 and the like"
    )]
    Url(String),
    #[error(
        "--redis-url (REDIS_URL) has '{0}' with #insecure, which would trust anybody: leave it out, and name the CA in \
         --redis-tls-cacert (REDIS_TLS_CACERT)"
    )]
    Insecure(String),
    #[error(
        "--redis-url (REDIS_URL) has a list whose number {0} names no server; it is not shown, because there is a password in \
         the list: write a comma or an @ of a password as %2C or %40, or the password into --redis-auth (REDIS_AUTH)"
    )]
    InList(usize),
    #[error(
        "--redis-url (REDIS_URL) is a unix socket with parameters: write its path alone, and the password into --redis-auth \
         (REDIS_AUTH)"
    )]
    SocketParameters,
    #[error("--redis-url (REDIS_URL) is a path of {0} bytes, and a socket's path has at most {PATH_BYTES_MAX}")]
    PathTooLong(usize),
    #[error("--redis-url (REDIS_URL) names database {0}: write a number from 0 to {DATABASE_MAX}")]
    Database(i64),
    #[error("--redis-url (REDIS_URL) names database {0}, and a Cluster has only database 0: leave the number out")]
    ClusterDatabase(i64),
    #[error(
        "--redis-url (REDIS_URL) is a list, and --redis-type (REDIS_TYPE) is SINGLE: write one server, or set REDIS_TYPE \
         to CLUSTER or SENTINEL"
    )]
    ListForSingle,
    #[error("--redis-url (REDIS_URL) names a unix socket, and --redis-type (REDIS_TYPE) is {0}: write host:port")]
    UnixInList(&'static str),
    #[error(
        "--redis-url (REDIS_URL) has different users or passwords for the nodes of one Cluster: write them once, in \
         --redis-auth (REDIS_AUTH)"
    )]
    DifferentCredentials,
    #[error("--redis-url (REDIS_URL) has redis:// and rediss:// in one list: write the same for all of its nodes")]
    DifferentTls,
    #[error(
        "--redis-url (REDIS_URL) has a user, password or database beside a sentinel: set --redis-auth (REDIS_AUTH) for \
         the servers and --redis-sentinel-auth (REDIS_SENTINEL_AUTH) for the sentinels"
    )]
    SentinelCredentials,
    #[error(
        "--redis-url (REDIS_URL) is '{0}', and --redis-type (REDIS_TYPE) is SENTINEL: write the master's name and then \
         the sentinels, as mymaster,sentinel-1:26379,sentinel-2:26379"
    )]
    NoSentinels(String),
}

impl RedisAddress {
    pub(crate) fn parse(text: &str, kind: RedisType, socket: Option<SocketType>) -> Result<RedisAddress, AddressError> {
        let text = text.trim();
        match kind {
            RedisType::Single => single(text, socket),
            RedisType::Cluster => cluster(text),
            RedisType::Sentinel => sentinel(text),
        }
    }
}

/// One server of REDIS_URL, as it is written.
struct RedisUrl {
    place: RedisTarget,
    database: i64,
    credentials: Option<Credentials>,
    is_tls: bool,
}

fn single(text: &str, socket: Option<SocketType>) -> Result<RedisAddress, AddressError> {
    let written = match written(text) {
        Err(AddressError::Form(_) | AddressError::NoPort(_))
            if socket == Some(SocketType::Unix) && !text.contains("://") =>
        {
            plain(unix(text)?)
        }
        // A password may hold a comma, a host can't.
        Err(AddressError::Form(_) | AddressError::NoPort(_) | AddressError::Url(_)) if text.contains(',') => {
            return Err(AddressError::ListForSingle);
        }
        other => other?,
    };
    let RedisUrl { place, database, credentials, is_tls } = written;
    Ok(RedisAddress { place, database, credentials, is_tls })
}

fn cluster(text: &str) -> Result<RedisAddress, AddressError> {
    let mut all = written_list(text, elements(text))?;
    let credentials = all.iter().find_map(|one| one.credentials.clone());
    if all.iter().any(|one| one.credentials.is_some() && one.credentials != credentials) {
        return Err(AddressError::DifferentCredentials);
    }
    if let Some(one) = all.iter().find(|one| one.database != 0) {
        return Err(AddressError::ClusterDatabase(one.database));
    }
    let is_tls = same_tls(&all)?;
    let nodes = all.drain(..).map(|one| node_of(one.place, "CLUSTER")).collect::<Result<Vec<_>, _>>()?;
    if nodes.is_empty() {
        return Err(AddressError::Form(hidden(text)));
    }
    Ok(RedisAddress { place: RedisTarget::Cluster(nodes), database: 0, credentials, is_tls })
}

fn sentinel(text: &str) -> Result<RedisAddress, AddressError> {
    let mut elements = elements(text);
    let missing = || AddressError::NoSentinels(hidden(text));
    let first = elements.next().ok_or_else(missing)?;
    let (master, is_master_tls) = match (first.strip_prefix("redis://"), first.strip_prefix("rediss://")) {
        (Some(name), _) => (name, false),
        (_, Some(name)) => (name, true),
        (None, None) => (first, false),
    };
    // A host where the name should be means that the name was left out.
    if master.is_empty() || master.contains([':', '/', '@']) {
        return Err(missing());
    }
    let all = written_list(text, elements)?;
    if all.iter().any(|one| one.credentials.is_some() || one.database != 0) {
        return Err(AddressError::SentinelCredentials);
    }
    let is_tls = same_tls(&all)? || is_master_tls;
    let sentinels = all.into_iter().map(|one| node_of(one.place, "SENTINEL")).collect::<Result<Vec<_>, _>>()?;
    if sentinels.is_empty() {
        return Err(missing());
    }
    let place = RedisTarget::Sentinel { master: master.to_owned(), sentinels };
    Ok(RedisAddress { place, database: 0, credentials: None, is_tls })
}

/// Every server of a list. If the list has a password in it, an element may be a part of the password that only looks
/// like a server: its error shows its number alone.
fn written_list<'t>(list: &str, elements: impl Iterator<Item = &'t str>) -> Result<Vec<RedisUrl>, AddressError> {
    let read = |(number, element): (usize, &str)| {
        written(element).map_err(|error| match error {
            AddressError::Form(_) | AddressError::NoPort(_) | AddressError::Url(_) if list.contains('@') => {
                AddressError::InList(number)
            }
            other => other,
        })
    };
    (1..).zip(elements).map(read).collect()
}

fn elements(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}

fn same_tls(all: &[RedisUrl]) -> Result<bool, AddressError> {
    let tls = all.iter().filter(|one| one.is_tls).count();
    if tls == 0 || tls == all.len() { Ok(tls > 0) } else { Err(AddressError::DifferentTls) }
}

fn node_of(place: RedisTarget, kind: &'static str) -> Result<RedisNode, AddressError> {
    match place {
        RedisTarget::Single(node) => Ok(node),
        _ => Err(AddressError::UnixInList(kind)),
    }
}

fn written(text: &str) -> Result<RedisUrl, AddressError> {
    for scheme in ["redis+unix:", "unix:"] {
        if let Some(path) = text.strip_prefix(scheme) {
            if path.contains('?') {
                return Err(AddressError::SocketParameters);
            }
            return unix(path.strip_prefix("//").unwrap_or(path)).map(plain);
        }
    }
    if text.starts_with('/') {
        return unix(text).map(plain);
    }
    if text.starts_with("redis://") || text.starts_with("rediss://") {
        return url(text);
    }
    let Some((host, port)) = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
        let is_host = !text.is_empty() && !text.contains(['/', '@', ':', '[', ' ', ',']);
        return Err(if is_host { AddressError::NoPort(text.to_owned()) } else { AddressError::Form(hidden(text)) });
    };
    let form = || AddressError::Form(hidden(text));
    let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(form)?;
    let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) if inner.parse::<std::net::Ipv6Addr>().is_ok() => inner,
        None if !host.contains([':', '[', ']', '/', '@', ' ', ',']) => host,
        _ => return Err(form()),
    };
    Ok(plain(RedisTarget::Single(RedisNode { host: host.to_owned(), port })))
}

fn plain(place: RedisTarget) -> RedisUrl {
    RedisUrl { place, database: 0, credentials: None, is_tls: false }
}

fn unix(path: &str) -> Result<RedisTarget, AddressError> {
    let path = PathBuf::from(path);
    match path.as_os_str().as_bytes() {
        bytes if bytes.len() > PATH_BYTES_MAX => Err(AddressError::PathTooLong(bytes.len())),
        bytes if bytes.ends_with(b"/") || path.file_name().is_none() => {
            Err(AddressError::Form(hidden(&path.to_string_lossy())))
        }
        _ => Ok(RedisTarget::Unix(path)),
    }
}

fn url(text: &str) -> Result<RedisUrl, AddressError> {
    let info = text.into_connection_info().map_err(|_| AddressError::Url(hidden(text)))?;
    let (host, port, is_tls) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => (host, *port, false),
        ConnectionAddr::TcpTls { insecure: true, .. } => return Err(AddressError::Insecure(hidden(text))),
        ConnectionAddr::TcpTls { host, port, .. } => (host, *port, true),
        _ => return Err(AddressError::Url(hidden(text))),
    };
    let redis = info.redis_settings();
    let credentials = match (redis.username(), redis.password()) {
        (user, Some(password)) => Some(Credentials { user: user.map(str::to_owned), password: Secret::new(password) }),
        // A user without a password is no login.
        (Some(_), None) => return Err(AddressError::Url(hidden(text))),
        (None, None) => None,
    };
    let database = redis.db();
    if !(0..=DATABASE_MAX).contains(&database) {
        return Err(AddressError::Database(database));
    }
    Ok(RedisUrl { place: RedisTarget::Single(RedisNode { host: host.clone(), port }), database, credentials, is_tls })
}

/// The text without what may be a password: with an `@`, everything between the scheme and the last one; without an
/// `@`, everything after the scheme, unless the text is a path or a list of plain hosts, ports and databases.
fn hidden(text: &str) -> String {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), text),
    };
    match rest.rsplit_once('@') {
        Some((_, after)) => format!("{scheme}***@{after}"),
        None if (rest.starts_with('/') && !rest.contains('?')) || rest.split(',').all(is_plain_server) => {
            text.to_owned()
        }
        None => format!("{scheme}***"),
    }
}

/// Whether this is `host`, `host:6379` or `host:6379/0`, perhaps with `#insecure`: then nothing of it can be a
/// password.
fn is_plain_server(text: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.trim().strip_suffix("#insecure").unwrap_or(text.trim());
    let (server, database) = text.split_once('/').unwrap_or((text, ""));
    let (host, port) = server.rsplit_once(':').unwrap_or((server, ""));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !host.is_empty() && host.bytes().all(is_host) && is_number(port) && is_number(database)
}

#[cfg(test)]
mod tests;
