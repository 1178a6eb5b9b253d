//! The verdict of an answer, and who decided it.

use anyhow::{Context, bail, ensure};
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate::proto::google::protobuf::value::Kind;

#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Whether the request is denied.
    pub is_over: bool,
    /// The decider of this verdict.
    pub decider: Decider,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    Memory,
    Redis,
    /// Redis did not answer in time.
    Outage,
}

impl Reply {
    /// An error if it is not an answer about this limit.
    pub fn read(response: &RateLimitResponse, limit: u32) -> anyhow::Result<Reply> {
        let is_over = match response.overall_code() {
            Code::Ok => false,
            Code::OverLimit => true,
            Code::Unknown => bail!("UNKNOWN: {response:?}"),
        };
        let limits: Vec<_> = response.statuses.iter().flat_map(|status| &status.current_limit).collect();
        let is_about_it = limits.len() == 1 && limits[0].requests_per_unit == limit;
        ensure!(is_about_it, "an answer about another limit than {limit}: {response:?}");
        let decider = decider(response).with_context(|| format!("nobody knows who decided: {response:?}"))?;
        Ok(Reply { is_over, decider })
    }
}

/// As `RESPONSE_DYNAMIC_METADATA` tells it.
fn decider(response: &RateLimitResponse) -> Option<Decider> {
    let Kind::StructValue(account) = response.dynamic_metadata.as_ref()?.fields.get("tidegate")?.kind.as_ref()? else {
        return None;
    };
    let Kind::StringValue(by) = account.fields.get("by")?.kind.as_ref()? else { return None };
    match by.as_str() {
        "memory" => Some(Decider::Memory),
        "origin" => Some(Decider::Redis),
        "outage" => Some(Decider::Outage),
        _ => None,
    }
}
