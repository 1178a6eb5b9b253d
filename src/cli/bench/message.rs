//! The requests that are sent: one encoded message, in which only the digits of the values change.
//!
//! Encoding a request costs more than copying it, and a load generator is as cheap as what it does per request.

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use bytes::BytesMut;

use crate::cli::client::exchange::framed;

/// What every request of a run has in common.
#[derive(Clone, Debug)]
pub(super) struct RequestShape {
    /// Of every request.
    pub domain: String,
    /// The key of the only entry of each descriptor.
    pub key: String,
    /// How many a request has, each with a value of its own.
    pub descriptors: usize,
    /// The request's `hits_addend`; servers take 0 for 1.
    pub hits: u32,
    /// The length of a value: a number, with zeros before it.
    pub value_bytes: usize,
}

impl RequestShape {
    /// A request whose descriptors have these values.
    fn request(&self, value: impl Fn(usize) -> String) -> RateLimitRequest {
        let descriptor = |index: usize| RateLimitDescriptor {
            entries: vec![Entry { key: self.key.clone(), value: value(index) }],
            ..RateLimitDescriptor::default()
        };
        RateLimitRequest {
            domain: self.domain.clone(),
            descriptors: (0..self.descriptors).map(descriptor).collect(),
            hits_addend: self.hits,
        }
    }
}

/// A framed message, and where in it the last digit of each value stands.
pub(super) struct Template {
    bytes: BytesMut,
    value_ends: Vec<usize>,
}

impl Template {
    pub(super) fn new(shape: &RequestShape) -> Template {
        let of = |digit: &str| framed(&shape.request(|_| digit.repeat(shape.value_bytes)));
        let (zeros, ones) = (of("0"), of("1"));
        // Two messages that differ only in their values show where the values are.
        let differs = |at: &usize| zeros[*at] != ones[*at];
        let is_end = |at: &usize| differs(at) && (at + 1 == zeros.len() || !differs(&(at + 1)));
        let value_ends = (0..zeros.len()).filter(is_end).collect();
        Template { bytes: zeros, value_ends }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the message with these numbers as values.
    pub(super) fn write(&self, out: &mut Vec<u8>, mut number: impl FnMut() -> u64) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        for end in &self.value_ends {
            let mut rest = number();
            let mut at = start + end;
            while rest > 0 {
                out[at] = b'0' + (rest % 10) as u8;
                rest /= 10;
                at -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patched_message_is_the_encoded_request() {
        for (descriptors, value_bytes) in [(1, 32), (4, 32), (32, 1), (2, 300), (3, 9)] {
            let shape =
                RequestShape { domain: "edge".into(), key: "remote_address".into(), descriptors, hits: 3, value_bytes };
            let template = Template::new(&shape);
            assert_eq!(template.value_ends.len(), descriptors);
            for base in [0, 1, 9, 12_345_678] {
                let number = |index: usize| (base + index as u64) % 10u64.pow(value_bytes.min(9) as u32);
                let mut index = 0;
                let mut patched = b"before".to_vec();
                template.write(&mut patched, || {
                    index += 1;
                    number(index - 1)
                });
                let encoded = framed(&shape.request(|index| format!("{:0value_bytes$}", number(index))));
                assert_eq!(patched[6..], encoded, "{descriptors} descriptors of {value_bytes} bytes from {base}");
            }
        }
    }
}
