//! Why a request gets no answer, in words that no port has made up. Each port turns it into its own kind of error.

use thiserror::Error;

use crate::observe::outcome::Failure;
use crate::request::Refused;
use crate::server::protobuf::Malformed;

/// Why there is no answer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoAnswer {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("no rate limit configuration loaded")]
    NoRules,
    #[error("{max} requests are open, which is the most that is allowed (TIDEGATE_MAX_IN_FLIGHT)")]
    Overload { max: usize },
    #[error(
        "there is no room for this message: those that are arriving may take {max} bytes together, and the longest wait \
         gives way first (TIDEGATE_MAX_ARRIVING_BYTES)"
    )]
    ArrivingBytes { max: usize },
    #[error("the deadline of the call had passed before it could be decided")]
    Deadline,
}

impl NoAnswer {
    pub fn failure(&self) -> Failure {
        match self {
            NoAnswer::Refused(_) => Failure::Invalid,
            NoAnswer::Malformed(_) => Failure::Malformed,
            NoAnswer::NoRules => Failure::NoRules,
            NoAnswer::Overload { .. } | NoAnswer::ArrivingBytes { .. } => Failure::Overload,
            NoAnswer::Deadline => Failure::Deadline,
        }
    }
}
