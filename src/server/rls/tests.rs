//! Compares our own reader and writer with prost, whose code is generated from the definitions of the messages.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::proto::envoy::config::core::v3::HeaderValue;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry as WireEntry, RateLimitOverride,
};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::proto::google::protobuf::{Duration, Struct, UInt64Value};
use proptest::prelude::*;
use prost::Message;

use super::write::Answer;
use super::{oracle, *};
use crate::engine::{Decision, Engine, Modes, Status, StatusKind};
use crate::request::Bounds;
use crate::rules::{Options, RuleText, Ruleset};
use crate::server::answer_options::*;
use crate::server::problem_body;

fn compare(bytes: &[u8]) -> Result<(), TestCaseError> {
    oracle::compare(bytes).map_err(TestCaseError::fail)
}

fn descriptors() -> impl Strategy<Value = RateLimitDescriptor> {
    let entry = ("[a-zé]{0,8}", "[ -~]{0,40}").prop_map(|(key, value)| WireEntry { key, value });
    let limit =
        (any::<u32>(), -1i32..10).prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
    let hits = prop_oneof![any::<u64>(), 0u64..200].prop_map(|value| UInt64Value { value });
    let parts = (
        prop::collection::vec(entry, 0..5),
        prop::option::weighted(0.3, limit),
        prop::option::weighted(0.3, hits),
        prop::bool::weighted(0.2),
    );
    parts.prop_map(|(entries, limit, hits_addend, is_negative_hits)| RateLimitDescriptor {
        entries,
        limit,
        hits_addend,
        is_negative_hits,
    })
}

fn messages() -> impl Strategy<Value = Vec<u8>> {
    let hits = prop_oneof![Just(0u32), any::<u32>()];
    let parts = ("[a-z]{0,6}", prop::collection::vec(descriptors(), 0..5), hits);
    parts.prop_map(|(domain, descriptors, hits_addend)| {
        RateLimitRequest { domain, descriptors, hits_addend }.encode_to_vec()
    })
}

/// Messages that mostly meet a rule of [`rules`], and now and then use up its limit.
fn met_messages() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![9 => "[a-e]", 1 => "[a-z]{2}"];
    let entry = (key, prop_oneof![Just("x".to_owned()), "[x-z]"]);
    let entries = entry.prop_map(|(key, value)| vec![WireEntry { key, value }]);
    let descriptor = (entries, descriptors(), prop::bool::weighted(0.1));
    let descriptor = descriptor.prop_map(|(entries, any, is_any)| match is_any {
        true => RateLimitDescriptor { entries, ..any },
        false => RateLimitDescriptor { entries, ..RateLimitDescriptor::default() },
    });
    let hits = prop_oneof![4 => 0u32..3, 1 => any::<u32>()];
    let parts = (prop_oneof![9 => Just("a"), 1 => Just("b")], prop::collection::vec(descriptor, 1..4), hits);
    parts.prop_map(|(domain, descriptors, hits_addend)| {
        RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend }.encode_to_vec()
    })
}

/// How many statuses of each kind a test has met.
#[derive(Debug, Default)]
struct Met {
    statuses: AtomicUsize,
    limited: AtomicUsize,
    named: AtomicUsize,
    unlimited: AtomicUsize,
    shadowed: AtomicUsize,
    over: AtomicUsize,
    without_unit: AtomicUsize,
}

impl Met {
    fn note(&self, decision: &Decision<'_>) {
        let count = |counter: &AtomicUsize, is_met: bool| {
            counter.fetch_add(is_met.into(), Ordering::Relaxed);
        };
        for status in &decision.statuses {
            count(&self.statuses, true);
            count(&self.shadowed, status.is_shadowed);
            count(&self.over, status.is_over);
            match &status.kind {
                StatusKind::Limited(limited) => {
                    count(&self.limited, true);
                    count(&self.named, limited.limit.is_some_and(|limit| !limit.name.is_empty()));
                    count(&self.without_unit, limited.unit().is_none());
                }
                StatusKind::Unlimited => count(&self.unlimited, true),
                StatusKind::Unmatched => {}
            }
        }
    }

    /// A test that meets none of a kind says nothing about it.
    fn assert_all(&self) {
        let of = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        let Met { statuses, limited, named, unlimited, shadowed, over, without_unit } = self;
        assert!(of(limited) * 2 > of(statuses), "{self:?}");
        assert!(
            [named, unlimited, shadowed, over, without_unit].iter().all(|it| of(it) * 50 > of(statuses)),
            "{self:?}"
        );
    }
}

/// A change to the bytes of a message.
#[derive(Clone, Debug)]
enum Change {
    Flip(usize, u8),
    Cut(usize),
    Remove(usize),
    Insert(usize, Vec<u8>),
    Twice,
}

fn changes() -> impl Strategy<Value = Change> {
    // Fields that nobody knows, groups among them, numbers of all lengths, and text that is not UTF-8.
    let pieces = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..12),
        Just(vec![0x7b, 0x08, 0x01, 0x7c]),
        Just(vec![0x0b, 0x13, 0x14, 0x0c]),
        Just(vec![0xff; 10]),
        Just(vec![0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02]),
        Just(vec![0x0a, 0x02, 0xc3, 0x28]),
        Just(vec![0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        Just(vec![0x12, 0x04, 0x12, 0x02, 0x10, 0x03]),
        Just([[0x7b; 101], [0x7c; 101]].concat()),
        Just([[0x7b; 99], [0x7c; 99]].concat()),
    ];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, mask)| Change::Flip(at, mask)),
        any::<usize>().prop_map(Change::Cut),
        any::<usize>().prop_map(Change::Remove),
        (any::<usize>(), pieces).prop_map(|(at, piece)| Change::Insert(at, piece)),
        Just(Change::Twice),
    ]
}

fn changed(mut bytes: Vec<u8>, change: &Change) -> Vec<u8> {
    let place = |at: &usize, length: usize| at % length.max(1);
    match change {
        Change::Flip(at, mask) => {
            let at = place(at, bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= mask;
            }
        }
        Change::Cut(at) => bytes.truncate(place(at, bytes.len())),
        Change::Remove(at) if !bytes.is_empty() => drop(bytes.remove(place(at, bytes.len()))),
        Change::Remove(_) => {}
        Change::Insert(at, piece) => {
            let at = place(at, bytes.len() + 1);
            bytes.splice(at..at, piece.iter().copied());
        }
        // Protobuf joins messages that are written one after the other.
        Change::Twice => bytes.extend_from_within(..),
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn messages_are_read_as_prost_reads_them(bytes in messages()) {
        compare(&bytes)?;
    }

    #[test]
    fn broken_messages_are_refused_where_prost_refuses_them(
        bytes in messages(),
        changes in prop::collection::vec(changes(), 1..4),
    ) {
        compare(&changes.iter().fold(bytes, changed))?;
    }

    /// INV-9.
    #[test]
    fn any_bytes_are_read_as_prost_reads_them(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        compare(&bytes)?;
    }

    fn assert_answers_are_what_prost_would_write(
        messages in prop::collection::vec(prop_oneof![9 => met_messages(), 1 => messages()], 1..6),
        options in options(),
        has_metadata in any::<bool>(),
    ) {
        let (ruleset, engine) = (rules(), Engine::new(1000));
        for bytes in messages {
            let bounds = Bounds::default();
            let Ok(request) = read::request(&bytes, &bounds) else { continue };
            let decision = engine.decide(&ruleset, &request, Modes::default(), 1_800_000_000_000);
            MET.note(&decision);
            let metadata = has_metadata.then(metadata);
            let expected = response(&decision, &options, metadata.clone()).encode_to_vec();
            let metadata = metadata.map(|metadata| metadata.encode_to_vec());
            let written = Answer::write(&decision, &options, metadata.as_deref());
            prop_assert_eq!(written.message(), &*expected);
            let framed = written.into_framed();
            prop_assert_eq!(&framed[..5], &[&[0][..], &(expected.len() as u32).to_be_bytes()].concat());
        }
    }
}

static MET: LazyLock<Met> = LazyLock::new(Met::default);

#[test]
fn answers_are_what_prost_would_write() {
    assert_answers_are_what_prost_would_write();
    MET.assert_all();
}

#[test]
fn faults_say_what_and_where() {
    let said = |bytes: &[u8]| read::request(bytes, &Bounds::default()).unwrap_err().to_string();
    assert_eq!(said(b"\x0a\x02a\xff"), "the message can't be read: text that is not UTF-8 at byte 2");
    assert_eq!(said(b"\x0a\x05a"), "the message can't be read: a field longer than what is left at byte 2");
    assert_eq!(said(b"\x08\x01"), "the message can't be read: a field of another kind than its number has at byte 2");
    assert_eq!(
        said(b"\x0a\x01d\x12\x03\x0a\x07k"),
        "the message can't be read: a field longer than what is left at byte 7"
    );
}

#[test]
fn numbers_take_the_bytes_that_are_said() {
    use crate::server::protobuf::{Write, number_bytes};
    for bits in 0..=64u32 {
        for number in [1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1), 1u64.checked_shl(bits).unwrap_or(0)] {
            let mut written = Vec::new();
            written.number(number);
            assert_eq!(written.len(), number_bytes(number), "{number}");
            assert_eq!(prost::encoding::decode_varint(&mut &*written).unwrap(), number);
        }
    }
}

/// Limits of every kind, small and large, with names and without.
fn rules() -> Ruleset {
    let text = "\
domain: a
descriptors:
  - key: a
    rate_limit: {unit: second, requests_per_unit: 1, name: one}
  - key: b
    rate_limit: {unit: year, requests_per_unit: 4000000000}
  - key: c
    rate_limit: {unlimited: true}
  - key: d
    value: x
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0, name: none}
  - key: e
    rate_limit: {window: 90s, requests_per_unit: 100, algorithm: gcra, burst: 300}
";
    let source = RuleText { name: "rules.yaml".into(), text: text.into() };
    let loaded = Ruleset::load(&[source], &Options::default());
    loaded.ruleset.unwrap_or_else(|| panic!("{:?}", loaded.problems))
}

fn options() -> impl Strategy<Value = AnswerOptions> {
    let names = || LimitHeaders { limit: "limit".into(), remaining: "remaining".into(), reset: "reset".into() };
    let reason = prop_oneof![Just(ReasonHeader::Always), Just(ReasonHeader::Denied), Just(ReasonHeader::Never)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (flags, reason).prop_map(move |((has_headers, has_request_headers, retry_after, problem_body), reason_header)| {
        AnswerOptions {
            headers: has_headers.then(names),
            request_headers: has_request_headers.then(names),
            retry_after,
            reason_header,
            problem_body,
            dynamic_metadata: false,
        }
    })
}

fn metadata() -> Struct {
    Struct { fields: [("a".to_owned(), Default::default())].into_iter().collect() }
}

/// The answer as prost's struct.
fn response(decision: &Decision<'_>, options: &AnswerOptions, dynamic_metadata: Option<Struct>) -> RateLimitResponse {
    let header = |name: &str, value: String| HeaderValue { key: name.to_owned(), value, ..HeaderValue::default() };
    let of_limit = |names: &Option<LimitHeaders>| match (names, shown_in_headers(decision)) {
        (Some(names), Some(chosen)) => vec![
            header(&names.limit, chosen.terms.limit.to_string()),
            header(&names.remaining, chosen.verdict.remaining.to_string()),
            header(&names.reset, seconds(chosen.verdict.reset_ms).to_string()),
        ],
        _ => Vec::new(),
    };
    let mut headers = of_limit(&options.headers);
    if let Some(wait_s) = retry_after_s(decision, options) {
        headers.push(header(RETRY_AFTER, wait_s.to_string()));
    }
    if let Some(reason) = reason_shown(decision, options) {
        headers.push(header(REASON, reason.to_owned()));
    }
    let has_body = options.problem_body && decision.is_over;
    if has_body {
        headers.push(header("content-type", problem_body::CONTENT_TYPE.to_owned()));
    }
    RateLimitResponse {
        overall_code: code(decision.is_over),
        statuses: decision.statuses.iter().map(status).collect(),
        response_headers_to_add: headers,
        request_headers_to_add: of_limit(&options.request_headers),
        raw_body: if has_body { problem_body::problem_body(decision) } else { Vec::new() },
        dynamic_metadata,
        ..RateLimitResponse::default()
    }
}

fn code(is_over: bool) -> i32 {
    (if is_over { Code::OverLimit } else { Code::Ok }) as i32
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
            let seconds = i64::try_from(seconds(limited.verdict.reset_ms)).unwrap();
            wire.duration_until_reset = Some(Duration { seconds, nanos: 0 });
        }
    }
    wire
}
