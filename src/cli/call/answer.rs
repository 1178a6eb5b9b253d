//! An answer as people and programs read it.

use std::io::{self, Write};
use std::time::Duration;

use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use crate::proto::google::protobuf::{self, value::Kind};
use serde_json::{Value, json};

use crate::cli::latency::{micros, millis};
use crate::request::typed::TypedDescriptor;

/// An answer beside the question.
pub(super) struct CallAnswer<'a> {
    /// In the order in which they were sent.
    pub descriptors: &'a [TypedDescriptor],
    /// May have more or fewer statuses than there are descriptors: any server may have sent it.
    pub response: &'a RateLimitResponse,
    /// From sending the request to decoding the answer. Connecting does not count.
    pub took: Duration,
}

impl CallAnswer<'_> {
    /// Prints all of it, for one call.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let response = self.response;
        writeln!(out, "{} in {}", code(response.overall_code), millis(self.took))?;
        let asked: Vec<String> = self.statuses().map(|(descriptor, _)| descriptor).collect();
        let width = asked.iter().map(|text| text.chars().count()).max().unwrap_or_default();
        for (descriptor, (_, status)) in asked.iter().zip(self.statuses()) {
            writeln!(out, "  {descriptor:width$}  {:10}  {}", code(status.code), describe(status))?;
        }
        for (what, headers) in [
            ("response header", &response.response_headers_to_add),
            ("request header", &response.request_headers_to_add),
        ] {
            for header in headers {
                writeln!(out, "  {what}  {}: {}", header.key, value(header))?;
            }
        }
        if let Some(metadata) = &response.dynamic_metadata {
            writeln!(out, "  dynamic metadata  {:#}", object(metadata))?;
        }
        if !response.raw_body.is_empty() {
            writeln!(out, "  body  {}", String::from_utf8_lossy(&response.raw_body))?;
        }
        Ok(())
    }

    /// Prints one line, for one call of many.
    pub(super) fn print_short(&self, out: &mut impl Write, number: u64) -> io::Result<()> {
        let remaining: Vec<String> =
            self.statuses().map(|(descriptor, status)| format!("{descriptor}: {}", describe_short(status))).collect();
        let verdict = code(self.response.overall_code);
        writeln!(out, "{number:6}  {verdict:10}  {:>9}  {}", millis(self.took), remaining.join("; "))
    }

    pub(super) fn as_json(&self, number: u64) -> Value {
        let statuses: Vec<Value> =
            self.statuses().map(|(descriptor, status)| status_as_json(&descriptor, status)).collect();
        let headers = |headers: &[HeaderValue]| -> Vec<Value> {
            headers.iter().map(|header| json!({"key": header.key, "value": value(header)})).collect()
        };
        let mut document = json!({
            "call": number,
            "overall_code": code(self.response.overall_code),
            "statuses": statuses,
            "response_headers_to_add": headers(&self.response.response_headers_to_add),
            "request_headers_to_add": headers(&self.response.request_headers_to_add),
            "latency_us": micros(self.took),
        });
        if let Some(metadata) = &self.response.dynamic_metadata {
            document["dynamic_metadata"] = object(metadata);
        }
        document
    }

    /// Statuses are in the order of the descriptors. If a server sends more of them, they are shown too.
    fn statuses(&self) -> impl Iterator<Item = (String, &DescriptorStatus)> {
        let descriptor = |index: usize| self.descriptors.get(index).map_or_else(|| "?".into(), ToString::to_string);
        self.response.statuses.iter().enumerate().map(move |(index, status)| (descriptor(index), status))
    }
}

/// The name of a verdict.
pub(super) fn code(number: i32) -> &'static str {
    Code::try_from(number).unwrap_or(Code::Unknown).as_str_name()
}

/// `100 per minute (login), 7 remaining, resets in 32s`.
fn describe(status: &DescriptorStatus) -> String {
    let Some(limit) = &status.current_limit else { return describe_short(status) };
    let unit = match Unit::try_from(limit.unit).unwrap_or(Unit::Unknown) {
        Unit::Unknown => "window of its own".into(),
        unit => unit.as_str_name().to_lowercase(),
    };
    let name = if limit.name.is_empty() { String::new() } else { format!(" ({})", limit.name) };
    let reset =
        reset(status).map_or_else(String::new, |reset| format!(", resets in {}", humantime::format_duration(reset)));
    format!("{} per {unit}{name}, {} remaining{reset}", limit.requests_per_unit, status.limit_remaining)
}

fn describe_short(status: &DescriptorStatus) -> String {
    match (&status.current_limit, status.limit_remaining) {
        (Some(_), remaining) => format!("{remaining} remaining"),
        (None, u32::MAX) => "unlimited".into(),
        (None, _) => "no limit".into(),
    }
}

fn status_as_json(descriptor: &str, status: &DescriptorStatus) -> Value {
    let limit = status.current_limit.as_ref().map(|limit| {
        json!({
            "requests_per_unit": limit.requests_per_unit,
            "unit": Unit::try_from(limit.unit).unwrap_or(Unit::Unknown).as_str_name(),
            "name": limit.name,
        })
    });
    json!({
        "descriptor": descriptor,
        "code": code(status.code),
        "current_limit": limit,
        "limit_remaining": status.limit_remaining,
        "duration_until_reset_ms": reset(status).map(|reset| u64::try_from(reset.as_millis()).unwrap_or(u64::MAX)),
    })
}

fn reset(status: &DescriptorStatus) -> Option<Duration> {
    let reset = status.duration_until_reset.as_ref()?;
    Some(Duration::new(u64::try_from(reset.seconds).ok()?, u32::try_from(reset.nanos).ok()?))
}

fn value(header: &HeaderValue) -> String {
    if header.raw_value.is_empty() {
        header.value.clone()
    } else {
        String::from_utf8_lossy(&header.raw_value).into_owned()
    }
}

fn object(fields: &protobuf::Struct) -> Value {
    Value::Object(fields.fields.iter().map(|(name, value)| (name.clone(), json_of(value))).collect())
}

fn json_of(value: &protobuf::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        // Numbers are doubles in protobuf; whole ones read better without their point.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 1e15 => json!(*number as i64),
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::StructValue(fields)) => object(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(json_of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;

    #[test]
    fn a_status_is_described_as_far_as_it_goes() {
        let mut status = DescriptorStatus { code: Code::Ok as i32, limit_remaining: 7, ..DescriptorStatus::default() };
        assert_eq!(describe(&status), "no limit");
        status.limit_remaining = u32::MAX;
        assert_eq!(describe(&status), "unlimited");
        status.limit_remaining = 7;
        let limit = RateLimit { requests_per_unit: 100, unit: Unit::Minute as i32, name: "login".into() };
        status.current_limit = Some(limit);
        assert_eq!(describe(&status), "100 per minute (login), 7 remaining");
        status.duration_until_reset = Some(protobuf::Duration { seconds: 92, nanos: 0 });
        assert_eq!(describe(&status), "100 per minute (login), 7 remaining, resets in 1m 32s");
        status.current_limit = Some(RateLimit { requests_per_unit: 5, unit: 77, name: String::new() });
        status.duration_until_reset = Some(protobuf::Duration { seconds: -1, nanos: 0 });
        assert_eq!(describe(&status), "5 per window of its own, 7 remaining");
    }
}
