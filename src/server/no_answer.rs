//! Why a request gets no answer, independent of any port. Each port turns it into its own kind of error.

use thiserror::Error;

use crate::observe::outcome::NoDecision;
use crate::request::RequestError;
use crate::server::protobuf::Malformed;

/// Why there is no answer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NoAnswer {
    #[error(transparent)]
    Refused(#[from] RequestError),
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
    pub fn failure(&self) -> NoDecision {
        match self {
            NoAnswer::Refused(_) => NoDecision::Invalid,
            NoAnswer::Malformed(_) => NoDecision::Malformed,
            NoAnswer::NoRules => NoDecision::NoRules,
            NoAnswer::Overload { .. } | NoAnswer::ArrivingBytes { .. } => NoDecision::Overload,
            NoAnswer::Deadline => NoDecision::Deadline,
        }
    }
}
