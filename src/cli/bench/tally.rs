//! What came back: verdicts, errors by kind, and how long answers took.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::cli::latency::Latency;

/// A connection that could not be opened.
pub(super) const CONNECT: &str = "connect";
/// A server that closes connections before it has processed anything on them.
pub(super) const TURNED_AWAY: &str = "turned_away";
/// A request that was due (`--rate`), but there was no connection or no stream free to send it.
pub(super) const UNSENT: &str = "unsent";
/// A request that was on a connection when that broke.
pub(super) const BROKEN: &str = "connection_broke";
/// A request without an answer when the run had been over for a while.
pub(super) const UNANSWERED: &str = "unanswered";

#[derive(Clone, Debug)]
pub(super) struct BenchTally {
    /// Answers that let the request pass.
    pub ok: u64,
    /// Answers that deny it.
    pub over_limit: u64,
    /// Answers without a verdict, or with one that we do not know.
    pub unknown: u64,
    /// Requests without an answer: by gRPC code, or by what happened where there is none.
    pub errors: BTreeMap<&'static str, u64>,
    /// Of all answers, whatever their verdict.
    pub latency: Latency,
}

impl BenchTally {
    pub(super) fn new() -> anyhow::Result<BenchTally> {
        Ok(BenchTally { ok: 0, over_limit: 0, unknown: 0, errors: BTreeMap::new(), latency: Latency::new()? })
    }

    pub(super) fn answered(&mut self, verdict: Code, took: Duration) {
        match verdict {
            Code::Ok => self.ok += 1,
            Code::OverLimit => self.over_limit += 1,
            Code::Unknown => self.unknown += 1,
        }
        self.latency.record(took);
    }

    pub(super) fn failed(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.errors.entry(kind).or_default() += count;
        }
    }

    /// Adds what another has counted.
    pub(super) fn add(&mut self, other: &BenchTally) {
        self.ok += other.ok;
        self.over_limit += other.over_limit;
        self.unknown += other.unknown;
        for (kind, count) in &other.errors {
            self.failed(kind, *count);
        }
        self.latency.add(&other.latency);
    }

    pub(super) fn answers(&self) -> u64 {
        self.ok + self.over_limit + self.unknown
    }

    pub(super) fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// The overall code of an encoded RateLimitResponse, the rest of which is only skipped. A message without the field says
/// UNKNOWN; `None` is no message at all.
pub(super) fn verdict(mut message: &[u8]) -> Option<Code> {
    const OVERALL_CODE: u32 = 1;
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message).ok()?;
        if tag == OVERALL_CODE && wire_type == WireType::Varint {
            let number = i32::try_from(decode_varint(&mut message).ok()?).ok()?;
            return Some(Code::try_from(number).unwrap_or(Code::Unknown));
        }
        skip_field(wire_type, tag, &mut message, DecodeContext::default()).ok()?;
    }
    Some(Code::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::envoy::service::ratelimit::v3::RateLimitResponse;
    use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::DescriptorStatus;
    use prost::Message;

    #[test]
    fn a_verdict_is_found_wherever_it_stands() {
        let statuses = vec![DescriptorStatus { limit_remaining: 300, ..DescriptorStatus::default() }; 2];
        let rest = RateLimitResponse { statuses, ..RateLimitResponse::default() };
        for code in [Code::Ok, Code::OverLimit, Code::Unknown] {
            let whole = RateLimitResponse { overall_code: code as i32, ..rest.clone() };
            assert_eq!(verdict(&whole.encode_to_vec()), Some(code));
            let last = [rest.encode_to_vec(), vec![8, code as u8]].concat();
            assert_eq!(verdict(&last), Some(code), "fields may come in any order");
        }
        assert_eq!(verdict(&[8]), None);
        assert_eq!(verdict(&[0x12, 0xff]), None);
    }

    #[test]
    fn tallies_add_up() {
        let mut whole = BenchTally::new().unwrap();
        let mut part = BenchTally::new().unwrap();
        part.answered(Code::Ok, Duration::from_millis(1));
        part.answered(Code::OverLimit, Duration::from_millis(1));
        part.failed(CONNECT, 2);
        whole.failed(CONNECT, 1);
        whole.failed(UNSENT, 0);
        whole.add(&part);
        assert_eq!((whole.answers(), whole.ok, whole.over_limit, whole.errors_total()), (2, 1, 1, 3));
        assert_eq!(whole.errors, BTreeMap::from([(CONNECT, 3)]));
    }
}
