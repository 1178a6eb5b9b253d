//! The body that a denied client reads: a problem document (RFC 9457), so that a program can tell which limit it met and when
//! to come back.
//!
//! It calls limits by the names that the operator gave them, and never tells rules or keys.

use std::collections::HashSet;

use serde_json::json;

use crate::engine::{Decision, StatusKind};
use crate::server::answer_options::seconds;

pub(crate) const CONTENT_TYPE: &str = "application/problem+json";
/// Registered by the draft of the RateLimit headers.
const TYPE: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The body of a denial.
pub(crate) fn problem_body(decision: &Decision<'_>) -> Vec<u8> {
    let denying = decision.denying().filter_map(|status| match &status.kind {
        StatusKind::Limited(limited) => limited.limit.map(|limit| &*limit.name),
        StatusKind::Unmatched | StatusKind::Unlimited => None,
    });
    let mut seen: HashSet<&str> = HashSet::new();
    let names: Vec<&str> = denying.filter(|name| !name.is_empty() && seen.insert(name)).collect();
    let wait_s = decision.retry_after_ms().map(seconds);
    let detail = match wait_s {
        Some(1) => "Too many requests. Try again in 1 second.".to_owned(),
        Some(wait_s) => format!("Too many requests. Try again in {wait_s} seconds."),
        None => "The request asks for more than its limit allows.".to_owned(),
    };
    let mut document = json!({"type": TYPE, "title": "Too Many Requests", "status": 429, "detail": detail});
    if !names.is_empty() {
        document["violated-policies"] = json!(names);
    }
    if let Some(wait_s) = wait_s {
        document["retry_after"] = json!(wait_s);
    }
    document.to_string().into_bytes()
}
