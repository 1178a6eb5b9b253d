//! Between Envoy's messages and ours: the only place that knows both.

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use smallvec::SmallVec;

use crate::engine::{Decision, Limited, Status, StatusKind};
use crate::observe::regional::DecidedBy;
use crate::request::{Bounds, Descriptor, Entry, Hits, LimitOverride, Refused, Request, Unit};
use crate::rules::Ruleset;
use crate::server::{metadata, problem_body};

/// What an answer says besides its verdict.
#[derive(Clone, Debug)]
pub struct AnswerOptions {
    /// The names of the limit, remaining and reset headers, when they are on.
    pub headers: Option<LimitHeaders>,
    /// `Retry-After` on denials.
    pub retry_after: bool,
    /// A problem document as the body of denials.
    pub problem_body: bool,
    /// Fill in `dynamic_metadata`.
    pub dynamic_metadata: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaders {
    pub limit: String,
    pub remaining: String,
    pub reset: String,
}

/// What a protobuf Duration can hold, about ten thousand years.
const DURATION_SECONDS_MAX: u64 = 315_576_000_000;

/// The header that tells a denied client when to come back.
pub const RETRY_AFTER: &str = "Retry-After";

/// Reads a request. The counts are checked before anything is made of them.
pub fn request<'a>(message: &'a RateLimitRequest, bounds: &Bounds) -> Result<Request<'a>, Refused> {
    if message.domain.is_empty() {
        return Err(Refused::EmptyDomain);
    }
    if message.descriptors.len() > bounds.descriptors_max {
        let count = message.descriptors.len();
        return Err(Refused::ManyDescriptors { count, max: bounds.descriptors_max });
    }
    let hits = u64::from(message.hits_addend.max(1));
    let mut descriptors: SmallVec<[Descriptor<'a>; 2]> = SmallVec::with_capacity(message.descriptors.len());
    for (index, wire) in message.descriptors.iter().enumerate() {
        descriptors.push(descriptor(index, wire, hits)?);
    }
    Request::new(&message.domain, descriptors, bounds)
}

fn descriptor(index: usize, wire: &RateLimitDescriptor, request_hits: u64) -> Result<Descriptor<'_>, Refused> {
    let own_hits = wire.hits_addend.as_ref().map(|hits| hits.value);
    let hits = match (wire.is_negative_hits, own_hits) {
        (true, hits) => Hits::Refund(hits.unwrap_or(request_hits)),
        (false, Some(hits)) => Hits::Own(hits),
        (false, None) => Hits::OfRequest(request_hits),
    };
    let limit = match &wire.limit {
        None => None,
        Some(limit) => Some(LimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: unit(limit.unit).ok_or(Refused::UnknownUnit { descriptor: index, unit: limit.unit })?,
        }),
    };
    let entries = wire.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect();
    Ok(Descriptor { entries, hits, limit })
}

fn unit(number: i32) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| unit_number(*unit) == number)
}

/// The protocol's number, the same in requests and answers.
pub fn unit_number(unit: Unit) -> i32 {
    let unit = match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    };
    unit as i32
}

fn code(is_over: bool) -> i32 {
    (if is_over { Code::OverLimit } else { Code::Ok }) as i32
}

/// Writes an answer.
pub fn response(
    message: &RateLimitRequest,
    request: &Request<'_>,
    decision: &Decision<'_>,
    ruleset: &Ruleset,
    by: Option<DecidedBy>,
    options: &AnswerOptions,
) -> RateLimitResponse {
    let mut headers = Vec::new();
    if let (Some(names), Some(chosen)) = (&options.headers, shown_in_headers(decision)) {
        headers.push(header(&names.limit, chosen.terms.limit.to_string()));
        headers.push(header(&names.remaining, chosen.verdict.remaining.to_string()));
        headers.push(header(&names.reset, seconds(chosen.verdict.reset_ms).to_string()));
    }
    if let Some(wait_s) = retry_after_s(decision, options) {
        headers.push(header(RETRY_AFTER, wait_s.to_string()));
    }
    let has_body = options.problem_body && decision.is_over;
    if has_body {
        headers.push(header("content-type", problem_body::CONTENT_TYPE.to_owned()));
    }
    RateLimitResponse {
        overall_code: code(decision.is_over),
        statuses: decision.statuses.iter().map(status).collect(),
        response_headers_to_add: headers,
        raw_body: if has_body { problem_body::problem_body(decision) } else { Vec::new() },
        dynamic_metadata: options
            .dynamic_metadata
            .then(|| metadata::dynamic_metadata(message, request, decision, ruleset, by)),
        ..RateLimitResponse::default()
    }
}

/// What `Retry-After` says, when it is said.
pub fn retry_after_s(decision: &Decision<'_>, options: &AnswerOptions) -> Option<u64> {
    decision.retry_after_ms().filter(|_| options.retry_after).map(seconds)
}

fn status(status: &Status<'_>) -> DescriptorStatus {
    let mut wire = DescriptorStatus { code: code(status.is_over), ..DescriptorStatus::default() };
    match &status.kind {
        StatusKind::Unmatched => {}
        StatusKind::Unlimited => wire.limit_remaining = u32::MAX,
        StatusKind::Limited(limited) => {
            wire.current_limit = Some(RateLimit {
                name: limited.limit.map_or_else(String::new, |limit| limit.name.to_string()),
                requests_per_unit: limited.terms.limit,
                unit: limited.unit().map_or(rate_limit::Unit::Unknown as i32, unit_number),
            });
            wire.limit_remaining = limited.verdict.remaining;
            let seconds = i64::try_from(seconds(limited.verdict.reset_ms)).unwrap_or(i64::MAX);
            wire.duration_until_reset = Some(Duration { seconds, nanos: 0 });
        }
    }
    wire
}

/// The descriptor that the headers describe: the least remaining, but the last that denies beats it.
fn shown_in_headers<'d>(decision: &'d Decision<'_>) -> Option<&'d Limited<'d>> {
    let mut shown: Option<&Limited<'_>> = None;
    let mut is_denial = false;
    for status in &decision.statuses {
        let StatusKind::Limited(limited) = &status.kind else { continue };
        let denies = status.is_over && !status.is_quota;
        let is_less = shown.is_none_or(|shown| limited.verdict.remaining < shown.verdict.remaining);
        if denies || (!is_denial && is_less) {
            shown = Some(limited);
            is_denial |= denies;
        }
    }
    shown
}

/// Rounded up, and at least one: Envoy cuts fractions off, and a client must not come back too early.
pub fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000).clamp(1, DURATION_SECONDS_MAX)
}

fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value, ..HeaderValue::default() }
}
