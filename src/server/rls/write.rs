//! From a [`Decision`] to the bytes of a RateLimitResponse, in a buffer that is allocated once.

use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit};
use bytes::Bytes;
use smallvec::SmallVec;

use crate::engine::{Decision, LimitStatus, Status, StatusKind};
use crate::server::answer_options::{
    AnswerOptions, LimitHeaders, REASON, RETRY_AFTER, reason_shown, retry_after_s, seconds, shown_in_headers,
};
use crate::server::problem_body;
use crate::server::protobuf::{PREFIX_BYTES, Write, bytes_field, number_field};
use crate::server::rls::unit_number;

/// An answer as it goes over the wire.
#[derive(Clone, Debug)]
pub struct Answer(Bytes);

impl Answer {
    /// Writes an answer. The metadata is an encoded Struct, if there is any.
    pub fn write(decision: &Decision<'_>, options: &AnswerOptions, metadata: Option<&[u8]>) -> Answer {
        let content = Content::of(decision, options, metadata);
        let size = content.size();
        let mut buffer = Vec::with_capacity(PREFIX_BYTES + size);
        buffer.push(0);
        buffer.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
        content.write(&mut buffer);
        debug_assert_eq!(buffer.len(), buffer.capacity(), "the size was known");
        Answer(buffer.into())
    }

    /// The message after its gRPC prefix, as a call sends it.
    pub fn into_framed(self) -> Bytes {
        self.0
    }

    /// The message without the prefix.
    pub fn message(&self) -> &[u8] {
        &self.0[PREFIX_BYTES..]
    }
}

/// What an answer says, in the order of the message's fields.
struct Content<'d, 'r> {
    is_over: bool,
    statuses: &'d [Status<'r>],
    headers: SmallVec<[Header<'d>; 4]>,
    request_headers: SmallVec<[Header<'d>; 3]>,
    /// Empty if there is none.
    body: Vec<u8>,
    metadata: Option<&'d [u8]>,
}

impl<'d, 'r> Content<'d, 'r> {
    fn of(decision: &'d Decision<'r>, options: &'d AnswerOptions, metadata: Option<&'d [u8]>) -> Content<'d, 'r> {
        let (mut headers, mut request_headers) = (SmallVec::new(), SmallVec::new());
        if let (Some(names), Some(chosen)) = (&options.headers, shown_in_headers(decision)) {
            headers.extend(Header::of_limit(names, chosen));
        }
        if let (Some(names), Some(chosen)) = (&options.request_headers, shown_in_headers(decision)) {
            request_headers.extend(Header::of_limit(names, chosen));
        }
        if let Some(wait_s) = retry_after_s(decision, options) {
            headers.push(Header::number(RETRY_AFTER, wait_s));
        }
        if let Some(reason) = reason_shown(decision, options) {
            headers.push(Header { name: REASON, value: StatusText::Words(reason) });
        }
        let mut body = Vec::new();
        if options.problem_body && decision.is_over {
            headers.push(Header { name: "content-type", value: StatusText::Words(problem_body::CONTENT_TYPE) });
            body = problem_body::problem_body(decision);
        }
        let statuses = &decision.statuses;
        Content { is_over: decision.is_over, statuses, headers, request_headers, body, metadata }
    }

    fn size(&self) -> usize {
        let statuses: usize = self.statuses.iter().map(|status| bytes_field(StatusNumbers::of(status).size())).sum();
        let headers = self.headers.iter().chain(&self.request_headers);
        let headers: usize = headers.map(|header| bytes_field(header.size())).sum();
        let body = if self.body.is_empty() { 0 } else { bytes_field(self.body.len()) };
        let metadata = self.metadata.map_or(0, |metadata| bytes_field(metadata.len()));
        number_field(code(self.is_over)) + statuses + headers + body + metadata
    }

    fn write(&self, buffer: &mut Vec<u8>) {
        buffer.number_field(1, code(self.is_over));
        for status in self.statuses {
            StatusNumbers::of(status).write(buffer);
        }
        for header in &self.headers {
            header.write(3, buffer);
        }
        for header in &self.request_headers {
            header.write(4, buffer);
        }
        if !self.body.is_empty() {
            buffer.bytes_field(5, &self.body);
        }
        if let Some(metadata) = self.metadata {
            buffer.bytes_field(6, metadata);
        }
    }
}

fn code(is_over: bool) -> u64 {
    (if is_over { Code::OverLimit } else { Code::Ok }) as u64
}

/// The status of a descriptor, as numbers.
struct StatusNumbers<'d> {
    code: u64,
    current_limit: Option<CurrentLimit<'d>>,
    limit_remaining: u64,
    /// Written only with a limit.
    reset_s: u64,
}

struct CurrentLimit<'d> {
    requests_per_unit: u64,
    unit: u64,
    name: &'d str,
}

impl CurrentLimit<'_> {
    fn size(&self) -> usize {
        let name = if self.name.is_empty() { 0 } else { bytes_field(self.name.len()) };
        number_field(self.requests_per_unit) + number_field(self.unit) + name
    }
}

impl<'d> StatusNumbers<'d> {
    #[inline]
    fn of(status: &'d Status<'_>) -> StatusNumbers<'d> {
        let code = code(status.is_over);
        match &status.kind {
            StatusKind::Unmatched => StatusNumbers { code, current_limit: None, limit_remaining: 0, reset_s: 0 },
            StatusKind::Unlimited => {
                StatusNumbers { code, current_limit: None, limit_remaining: u64::from(u32::MAX), reset_s: 0 }
            }
            StatusKind::Limited(limited) => StatusNumbers {
                code,
                current_limit: Some(current_limit(limited)),
                limit_remaining: u64::from(limited.verdict.remaining),
                reset_s: seconds(limited.verdict.reset_ms),
            },
        }
    }

    #[inline]
    fn size(&self) -> usize {
        let limit = self.current_limit.as_ref().map_or(0, |limit| bytes_field(limit.size()));
        let reset = if self.current_limit.is_some() { bytes_field(number_field(self.reset_s)) } else { 0 };
        number_field(self.code) + limit + number_field(self.limit_remaining) + reset
    }

    #[inline]
    fn write(&self, buffer: &mut Vec<u8>) {
        buffer.message_field(2, self.size());
        buffer.number_field(1, self.code);
        if let Some(limit) = &self.current_limit {
            buffer.message_field(2, limit.size());
            buffer.number_field(1, limit.requests_per_unit);
            buffer.number_field(2, limit.unit);
            buffer.text_field(3, limit.name);
        }
        buffer.number_field(3, self.limit_remaining);
        if self.current_limit.is_some() {
            buffer.message_field(4, number_field(self.reset_s));
            buffer.number_field(1, self.reset_s);
        }
    }
}

#[inline]
fn current_limit<'d>(limited: &'d LimitStatus<'_>) -> CurrentLimit<'d> {
    CurrentLimit {
        requests_per_unit: u64::from(limited.terms.limit),
        unit: limited.unit().map_or(rate_limit::Unit::Unknown as i32, unit_number).unsigned_abs().into(),
        name: limited.limit.map_or("", |limit| &limit.name),
    }
}

/// A header to add to the response, or to the request that goes on.
struct Header<'d> {
    name: &'d str,
    value: StatusText<'d>,
}

enum StatusText<'d> {
    Words(&'d str),
    Number(Digits),
}

impl<'d> Header<'d> {
    /// The three headers that describe a limit.
    fn of_limit(names: &'d LimitHeaders, shown: &LimitStatus<'_>) -> [Header<'d>; 3] {
        [
            Header::number(&names.limit, u64::from(shown.terms.limit)),
            Header::number(&names.remaining, u64::from(shown.verdict.remaining)),
            Header::number(&names.reset, seconds(shown.verdict.reset_ms)),
        ]
    }

    fn number(name: &'d str, number: u64) -> Header<'d> {
        Header { name, value: StatusText::Number(Digits::of(number)) }
    }

    fn value(&self) -> &[u8] {
        match &self.value {
            StatusText::Words(words) => words.as_bytes(),
            StatusText::Number(digits) => digits.text(),
        }
    }

    fn size(&self) -> usize {
        bytes_field(self.name.len()) + bytes_field(self.value().len())
    }

    fn write(&self, field: u8, buffer: &mut Vec<u8>) {
        buffer.message_field(field, self.size());
        buffer.bytes_field(1, self.name.as_bytes());
        buffer.bytes_field(2, self.value());
    }
}

/// A number in decimal, without the heap.
struct Digits {
    digits: [u8; 20],
    /// Where the number begins in `digits`; it ends with them.
    begin: usize,
}

impl Digits {
    fn of(mut number: u64) -> Digits {
        let (mut digits, mut begin) = ([b'0'; 20], 19);
        while number >= 10 {
            digits[begin] = b'0' + (number % 10) as u8;
            number /= 10;
            begin -= 1;
        }
        digits[begin] = b'0' + number as u8;
        Digits { digits, begin }
    }

    fn text(&self) -> &[u8] {
        &self.digits[self.begin..]
    }
}
