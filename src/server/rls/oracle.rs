//! Reads a message with prost, to compare our own reader with it. Part of the tests and of `fuzz/`.

use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message;
use tidegate::request::{Bounds, Descriptor, DescriptorEntry, Hits, LimitOverride, Request, RequestError};
use tidegate::server::no_answer::NoAnswer;
use tidegate::server::rls::{read, unit};

/// Small bounds, so that random messages break them.
const BOUNDS: Bounds = Bounds { descriptors_max: 3, entries_max: 3 };

/// Reads any bytes with both readers, and says where they differ.
pub(crate) fn compare(bytes: &[u8]) -> Result<(), String> {
    let read = read::request(bytes, &BOUNDS);
    let decoded = RateLimitRequest::decode(bytes);
    let expected = decoded.as_ref().map(request);
    let is_same = match (&expected, &read) {
        (Ok(Ok(expected)), Ok(read)) => format!("{expected:?}") == format!("{read:?}"),
        (Ok(Err(expected)), Err(NoAnswer::Refused(refused))) => expected == refused,
        // Our reader refuses a message that has too much before it has read all of it.
        (Err(_), Err(NoAnswer::Refused(refused))) => {
            matches!(
                refused,
                RequestError::ManyDescriptors { .. } | RequestError::ManyEntries { .. } | RequestError::EmptyDomain
            )
        }
        (Err(_), Err(NoAnswer::Malformed(_))) => true,
        _ => false,
    };
    if is_same { Ok(()) } else { Err(format!("{expected:?} by prost, {read:?}")) }
}

/// The request of a decoded message.
fn request(message: &RateLimitRequest) -> Result<Request<'_>, RequestError> {
    if message.domain.is_empty() {
        return Err(RequestError::EmptyDomain);
    }
    if message.descriptors.len() > BOUNDS.descriptors_max {
        let count = message.descriptors.len();
        return Err(RequestError::ManyDescriptors { count, max: BOUNDS.descriptors_max });
    }
    let is_long = |descriptor: &RateLimitDescriptor| descriptor.entries.len() > BOUNDS.entries_max;
    if let Some(descriptor) = message.descriptors.iter().position(is_long) {
        let count = message.descriptors[descriptor].entries.len();
        return Err(RequestError::ManyEntries { descriptor, count, max: BOUNDS.entries_max });
    }
    let hits_addend = u64::from(message.hits_addend.max(1));
    let descriptors = message.descriptors.iter().enumerate().map(|(index, wire)| descriptor(index, wire, hits_addend));
    Request::new(&message.domain, descriptors.collect::<Result<_, _>>()?, &BOUNDS)
}

fn descriptor(index: usize, wire: &RateLimitDescriptor, hits_addend: u64) -> Result<Descriptor<'_>, RequestError> {
    let hits = match (wire.is_negative_hits, wire.hits_addend.as_ref().map(|hits| hits.value)) {
        (true, hits) => Hits::Refund(hits.unwrap_or(hits_addend)),
        (false, Some(hits)) => Hits::Own(hits),
        (false, None) => Hits::OfRequest(hits_addend),
    };
    let limit = match &wire.limit {
        None => None,
        Some(limit) => Some(LimitOverride {
            requests_per_unit: limit.requests_per_unit,
            unit: unit(limit.unit).ok_or(RequestError::UnknownUnit { descriptor: index, unit: limit.unit })?,
        }),
    };
    let entries = wire.entries.iter().map(|entry| DescriptorEntry { key: &entry.key, value: &entry.value }).collect();
    Ok(Descriptor { entries, hits, limit })
}
