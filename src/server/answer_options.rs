//! What an answer says besides its verdict: headers, their values, and whether there is a body. Every protocol uses this, and
//! nothing here is about the bytes of any.

use clap::ValueEnum;

use crate::engine::{Decision, LimitStatus, StatusKind};

/// Which headers, body and metadata answers have besides their verdict.
#[derive(Clone, Debug)]
pub struct AnswerOptions {
    /// The names of the limit, remaining and reset headers of the response; `None` if these are off.
    pub headers: Option<LimitHeaders>,
    /// The names of the same headers on the request that Envoy sends to the upstream; `None` if these are off.
    pub request_headers: Option<LimitHeaders>,
    /// Whether denials have `Retry-After`.
    pub retry_after: bool,
    /// On which answers `x-ratelimit-reason` is.
    pub reason_header: ReasonHeader,
    /// Whether denials have a problem document as their body.
    pub problem_body: bool,
    /// Whether answers have `dynamic_metadata`.
    pub dynamic_metadata: bool,
}

/// On which answers `x-ratelimit-reason` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReasonHeader {
    Always,
    /// On denials that are not a matter of the limit: by an outage, or by overload.
    Denied,
    Never,
}

/// The names of three headers that describe a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaders {
    /// Names the header that tells how many hits the limit allows in its window.
    pub limit: String,
    /// Names the header that tells how many hits are left.
    pub remaining: String,
    /// Names the header that tells in how many seconds the limit starts afresh: rounded up, at least 1.
    pub reset: String,
}

/// The most that a protobuf Duration can hold, about ten thousand years.
const DURATION_SECONDS_MAX: u64 = 315_576_000_000;

/// The header that tells a denied client when to come back.
pub const RETRY_AFTER: &str = "Retry-After";

/// The header that says why a request was answered as it was.
pub const REASON: &str = "x-ratelimit-reason";

/// The value of `Retry-After`; `None` if the answer has no such header.
pub fn retry_after_s(decision: &Decision<'_>, options: &AnswerOptions) -> Option<u64> {
    decision.retry_after_ms().filter(|_| options.retry_after).map(seconds)
}

/// The value of `x-ratelimit-reason`; `None` if the answer has no such header.
pub fn reason_shown(decision: &Decision<'_>, options: &AnswerOptions) -> Option<&'static str> {
    let is_shown = match options.reason_header {
        ReasonHeader::Always => true,
        ReasonHeader::Denied => decision.is_over && decision.reason().is_emergency(),
        ReasonHeader::Never => false,
    };
    is_shown.then(|| decision.reason().word())
}

/// The limit that the headers describe: the last one that denies, or else the one with the least remaining.
pub fn shown_in_headers<'d>(decision: &'d Decision<'_>) -> Option<&'d LimitStatus<'d>> {
    let mut shown: Option<&LimitStatus<'_>> = None;
    let mut is_denial = false;
    for status in &decision.statuses {
        let StatusKind::Limited(limited) = &status.kind else { continue };
        let denies = status.denies_alone();
        let is_less = shown.is_none_or(|shown| limited.verdict.remaining < shown.verdict.remaining);
        if denies || (!is_denial && is_less) {
            shown = Some(limited);
            is_denial |= denies;
        }
    }
    shown
}

/// Whole seconds, rounded up and at least one: Envoy cuts fractions off, and a client must not come back too early.
pub fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000).clamp(1, DURATION_SECONDS_MAX)
}
