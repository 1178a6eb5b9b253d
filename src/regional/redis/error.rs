//! Why the origin gave no answer.
//!
//! The rest of the program asks two things of a failure: what to call it in a metric ([`OriginError::reason`]), and
//! whether the connection is still worth keeping ([`OriginError::verdict`]). No text shows a password: texts come from
//! the server and the system, and those about a login are replaced by our own.

use std::time::Duration;

use redis::{ErrorKind, RedisError};
use thiserror::Error;

/// Why a call to the origin failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OriginError {
    #[error("there is no connection to Redis now")]
    Down,
    #[error("Redis did not answer within {}", humantime::format_duration(*.within))]
    Timeout { within: Duration },
    #[error("Redis refused: {code} {text}")]
    Refused { code: String, text: String },
    #[error("the connection to Redis broke: {0}")]
    Broken(String),
    #[error("Redis answered with something else than was asked for")]
    BadReply,
    #[error("only {acknowledged} of {wanted} replicas have acknowledged in time (TIDEGATE_STRICT_REPLICAS)")]
    Unreplicated { acknowledged: i64, wanted: u32 },
}

/// What a failure says about the connection that it came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Nothing: it stays in use.
    Keep,
    /// Another connection might do better. This one serves until there is one.
    Replace,
    /// The connection is of no use any more.
    TakeOut,
}

/// The code of a refused login, because the client library does not tell it.
const WRONG_PASSWORD: &str = "WRONGPASS";

impl OriginError {
    /// One word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            OriginError::Down => "down",
            OriginError::Timeout { .. } => "timeout",
            OriginError::Broken(_) => "io",
            OriginError::BadReply => "reply",
            OriginError::Unreplicated { .. } => "replicas",
            OriginError::Refused { code, .. } => match code.as_str() {
                "LOADING" => "loading",
                "READONLY" | "MASTERDOWN" => "readonly",
                "OOM" => "oom",
                "NOAUTH" | "WRONGPASS" | "NOPERM" => "auth",
                "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "CROSSSLOT" => "cluster",
                _ => "other",
            },
        }
    }

    /// The user that this process logs in as may not do what it asked for.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, OriginError::Refused { code, text } if code == "NOPERM" || text.contains("can't run this command"))
    }

    pub(super) fn verdict(&self) -> LinkState {
        match self {
            OriginError::Broken(_) => LinkState::TakeOut,
            OriginError::Refused { code, .. } => match code.as_str() {
                // The server is a replica now, or does not know us any more. A new connection asks again for the master
                // and the login.
                "READONLY" | "MASTERDOWN" | "NOAUTH" | "WRONGPASS" => LinkState::TakeOut,
                // Perhaps the password file has another user by now.
                "NOPERM" => LinkState::Replace,
                _ => LinkState::Keep,
            },
            OriginError::Timeout { .. } => LinkState::Replace,
            OriginError::Down | OriginError::BadReply | OriginError::Unreplicated { .. } => LinkState::Keep,
        }
    }

    /// The slot of a Cluster is with another node, or on its way there. That says nothing bad about either.
    pub(crate) fn is_misdirected(&self) -> bool {
        matches!(self, OriginError::Refused { code, .. } if matches!(code.as_str(), "MOVED" | "ASK" | "TRYAGAIN"))
    }

    /// Adds the server that the failure is about.
    pub(super) fn at(self, address: &dyn std::fmt::Display) -> OriginError {
        match self {
            OriginError::Refused { code, text } => OriginError::Refused { code, text: format!("{text} ({address})") },
            OriginError::Broken(text) => OriginError::Broken(format!("{text} ({address})")),
            other => other,
        }
    }
}

impl From<std::io::Error> for OriginError {
    fn from(fault: std::io::Error) -> OriginError {
        OriginError::Broken(fault.to_string())
    }
}

impl From<RedisError> for OriginError {
    fn from(error: RedisError) -> OriginError {
        match error.kind() {
            ErrorKind::AuthenticationFailed => OriginError::Refused {
                code: WRONG_PASSWORD.into(),
                text: "the user or password is wrong: see REDIS_AUTH and TIDEGATE_REDIS_AUTH_FILE (of STRICT_REDIS_URL: the URL itself and \
                       TIDEGATE_STRICT_AUTH_FILE)".into(),
            },
            ErrorKind::Server(_) | ErrorKind::Extension => {
                let code = error.code().unwrap_or("ERR").to_owned();
                let text = error.detail().unwrap_or("without saying why").to_owned();
                OriginError::Refused { code, text }
            }
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => OriginError::BadReply,
            _ => OriginError::Broken(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> OriginError {
        let error = redis::make_extension_error(code.to_owned(), Some("because".into()));
        OriginError::from(error)
    }

    #[test]
    fn failures_have_a_word_and_a_verdict() {
        for (error, reason, verdict) in [
            (OriginError::Down, "down", LinkState::Keep),
            (OriginError::Timeout { within: Duration::from_millis(10) }, "timeout", LinkState::Replace),
            (OriginError::BadReply, "reply", LinkState::Keep),
            (OriginError::Broken("reset".into()), "io", LinkState::TakeOut),
            (refused("LOADING"), "loading", LinkState::Keep),
            (refused("READONLY"), "readonly", LinkState::TakeOut),
            (refused("OOM"), "oom", LinkState::Keep),
            (refused("MISCONF"), "other", LinkState::Keep),
            (refused("NOAUTH"), "auth", LinkState::TakeOut),
            (refused("NOPERM"), "auth", LinkState::Replace),
            (refused("TRYAGAIN"), "cluster", LinkState::Keep),
            (refused("CLUSTERDOWN"), "cluster", LinkState::Keep),
        ] {
            assert_eq!((error.reason(), error.verdict()), (reason, verdict), "{error}");
        }
    }

    #[test]
    fn a_failure_says_what_the_server_said() {
        assert_eq!(refused("MISCONF").to_string(), "Redis refused: MISCONF because");
        let io = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert_eq!(OriginError::from(RedisError::from(io)).reason(), "io");
        let auth = RedisError::from((ErrorKind::AuthenticationFailed, "Password authentication failed"));
        assert_eq!(OriginError::from(auth).reason(), "auth");
        let slow = OriginError::Timeout { within: Duration::from_millis(10) };
        assert_eq!(slow.to_string(), "Redis did not answer within 10ms");
    }
}
