//! A request that outlives the message it was read from: kept while the request waits.
//!
//! All its text is in one piece. So a wait costs a few allocations, and the request is put together again without reading or
//! checking anything.

use smallvec::SmallVec;

use crate::request::{Descriptor, DescriptorEntry, Hits, LimitOverride, Request};

/// A request and all its text.
#[derive(Clone, Debug)]
pub(crate) struct OwnedRequest {
    /// The domain, then the keys and values of all entries, in order.
    text: Box<str>,
    /// The domain's length.
    domain_bytes: usize,
    descriptors: Box<[OwnedDescriptor]>,
}

#[derive(Clone, Debug)]
struct OwnedDescriptor {
    /// The lengths of each entry's key and value, in bytes.
    entries: SmallVec<[(usize, usize); 4]>,
    hits: Hits,
    limit: Option<LimitOverride>,
}

impl From<&Request<'_>> for OwnedRequest {
    fn from(request: &Request<'_>) -> OwnedRequest {
        let entries = || request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let bytes: usize = entries().map(|entry| entry.key.len() + entry.value.len()).sum();
        let mut text = String::with_capacity(request.domain.len() + bytes);
        text.push_str(request.domain);
        for entry in entries() {
            text.push_str(entry.key);
            text.push_str(entry.value);
        }
        let owned = |descriptor: &Descriptor<'_>| OwnedDescriptor {
            entries: descriptor.entries.iter().map(|entry| (entry.key.len(), entry.value.len())).collect(),
            hits: descriptor.hits,
            limit: descriptor.limit,
        };
        OwnedRequest {
            text: text.into_boxed_str(),
            domain_bytes: request.domain.len(),
            descriptors: request.descriptors.iter().map(owned).collect(),
        }
    }
}

impl OwnedRequest {
    /// The request as it was, borrowed from this one.
    pub(crate) fn as_request(&self) -> Request<'_> {
        let (domain, mut rest) = self.text.split_at(self.domain_bytes);
        let mut take = |bytes: usize| {
            let (taken, after) = rest.split_at(bytes);
            rest = after;
            taken
        };
        let mut descriptors = SmallVec::with_capacity(self.descriptors.len());
        for OwnedDescriptor { entries, hits, limit } in &self.descriptors {
            let entries =
                entries.iter().map(|(key, value)| DescriptorEntry { key: take(*key), value: take(*value) }).collect();
            descriptors.push(Descriptor { entries, hits: *hits, limit: *limit });
        }
        Request { domain, descriptors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Bounds, Unit};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_comes_back_as_it_was(
            domain in "[a-zé]{1,10}",
            texts in prop::collection::vec(prop::collection::vec(("[a-zü]{0,8}", ".{0,8}"), 0..8), 1..6),
            number in any::<u32>(),
        ) {
            let hits = [Hits::OfRequest(1), Hits::Own(u64::from(number)), Hits::Refund(3)];
            let limit = Some(LimitOverride { requests_per_unit: number, unit: Unit::Hour });
            let descriptors = texts.iter().enumerate().map(|(index, entries)| Descriptor {
                entries: entries.iter().map(|(key, value)| DescriptorEntry { key, value }).collect(),
                hits: hits[index % 3],
                limit: limit.filter(|_| index % 2 == 0),
            });
            let request = Request::new(&domain, descriptors.collect(), &Bounds::default()).unwrap();
            let owned = OwnedRequest::from(&request);
            prop_assert_eq!(format!("{:?}", owned.as_request()), format!("{request:?}"));
        }
    }
}
