//! How many descriptors and entries a message has, before anything is made of them.
//!
//! An empty descriptor is two bytes on the wire and more than a hundred in memory, so a message within its size could cost
//! forty times as much. Counting them first takes a pass over the bytes and no memory. What can't be read is left to the
//! decoder, which knows better what to say about it.

use crate::request::{Bounds, Refused};

/// What a message announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    has_domain: bool,
    descriptors: usize,
    /// The first descriptor with the most entries, and how many these are.
    most_entries: (usize, usize),
}

impl Announced {
    /// In the order in which a request is checked: the domain, the descriptors, their entries.
    pub fn check(&self, bounds: &Bounds) -> Result<(), Refused> {
        let (descriptor, entries) = self.most_entries;
        if self.descriptors <= bounds.descriptors_max && entries <= bounds.entries_max {
            return Ok(());
        }
        if !self.has_domain {
            return Err(Refused::EmptyDomain);
        }
        if self.descriptors > bounds.descriptors_max {
            return Err(Refused::ManyDescriptors { count: self.descriptors, max: bounds.descriptors_max });
        }
        Err(Refused::ManyEntries { descriptor, count: entries, max: bounds.entries_max })
    }

    fn add_descriptor(&mut self, entries: usize) {
        if entries > self.most_entries.1 {
            self.most_entries = (self.descriptors, entries);
        }
        self.descriptors += 1;
    }

    /// Counts in a RateLimitRequest: `domain = 1`, `descriptors = 2`, and in those `entries = 1`.
    pub fn in_protobuf(message: &[u8]) -> Announced {
        let mut announced = Announced::default();
        for_each_field(message, |field, bytes| match field {
            1 => announced.has_domain = !bytes.is_empty(),
            2 => {
                let mut entries = 0;
                for_each_field(bytes, |field, _| entries += usize::from(field == 1));
                announced.add_descriptor(entries);
            }
            _ => {}
        });
        announced
    }

    /// Counts in the same as JSON: objects in the arrays of the first level are descriptors, those two levels deeper their
    /// entries.
    pub fn in_json(text: &[u8]) -> Announced {
        const DESCRIPTOR_DEPTH: usize = 3;
        const ENTRY_DEPTH: usize = 5;
        let mut announced = Announced { has_domain: true, ..Announced::default() };
        let (mut depth, mut entries, mut is_string, mut is_escaped) = (0usize, 0, false, false);
        for byte in text {
            if is_string {
                is_string = is_escaped || *byte != b'"';
                is_escaped = !is_escaped && *byte == b'\\';
                continue;
            }
            match byte {
                b'"' => is_string = true,
                b'{' | b'[' => {
                    depth += 1;
                    entries += usize::from(*byte == b'{' && depth == ENTRY_DEPTH);
                }
                b'}' | b']' => {
                    if *byte == b'}' && depth == DESCRIPTOR_DEPTH {
                        announced.add_descriptor(std::mem::take(&mut entries));
                    }
                    depth = depth.saturating_sub(1);
                }
                _ => {}
            }
        }
        announced
    }
}

/// Visits the fields of a message that have a length; those without hold nothing to count.
fn for_each_field(mut message: &[u8], mut visit: impl FnMut(u64, &[u8])) {
    while let Some((tag, rest)) = varint(message) {
        let skipped = match tag & 7 {
            0 => varint(rest).map(|(_, rest)| rest),
            1 => rest.get(8..),
            2 => varint(rest).and_then(|(length, rest)| {
                let (bytes, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                visit(tag >> 3, bytes);
                Some(rest)
            }),
            5 => rest.get(4..),
            _ => None,
        };
        let Some(rest) = skipped else { return };
        message = rest;
    }
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
    use envoy_types::pb::google::protobuf::UInt64Value;
    use proptest::prelude::*;
    use prost::Message;

    fn request(entries: &[usize]) -> RateLimitRequest {
        let entry = |number: usize| Entry { key: format!("k{number}"), value: "\"{[}]\\".into() };
        let descriptor = |count: &usize| RateLimitDescriptor {
            entries: (0..*count).map(entry).collect(),
            hits_addend: Some(UInt64Value { value: 7 }),
            ..RateLimitDescriptor::default()
        };
        RateLimitRequest { domain: "d".into(), descriptors: entries.iter().map(descriptor).collect(), hits_addend: 300 }
    }

    fn as_json(request: &RateLimitRequest) -> String {
        let descriptor = |descriptor: &RateLimitDescriptor| {
            let entry = |entry: &Entry| serde_json::json!({"key": entry.key, "value": entry.value});
            serde_json::json!({"entries": descriptor.entries.iter().map(entry).collect::<Vec<_>>(), "hitsAddend": "7"})
        };
        let descriptors: Vec<_> = request.descriptors.iter().map(descriptor).collect();
        serde_json::json!({"domain": "d", "descriptors": descriptors, "hitsAddend": 300}).to_string()
    }

    #[test]
    fn what_is_too_much_is_named_as_the_request_itself_would() {
        let bounds = Bounds { descriptors_max: 2, entries_max: 3 };
        let check = |entries: &[usize]| {
            let request = request(entries);
            let said = Announced::in_protobuf(&request.encode_to_vec()).check(&bounds);
            assert_eq!(Announced::in_json(as_json(&request).as_bytes()).check(&bounds), said);
            said
        };
        assert_eq!(check(&[3, 3]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[0, 0, 0]), Err(Refused::ManyDescriptors { count: 3, max: 2 }));
        assert_eq!(check(&[1, 4]), Err(Refused::ManyEntries { descriptor: 1, count: 4, max: 3 }));
        let nameless = RateLimitRequest { domain: String::new(), ..request(&[0, 0, 0]) };
        assert_eq!(Announced::in_protobuf(&nameless.encode_to_vec()).check(&bounds), Err(Refused::EmptyDomain));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_decoded_message(entries in prop::collection::vec(0usize..20, 0..40)) {
            let request = request(&entries);
            let most = entries.iter().copied().max().unwrap_or(0);
            let announced = Announced::in_protobuf(&request.encode_to_vec());
            prop_assert_eq!((announced.descriptors, announced.most_entries.1), (entries.len(), most));
            let announced = Announced::in_json(as_json(&request).as_bytes());
            prop_assert_eq!((announced.descriptors, announced.most_entries.1), (entries.len(), most));
        }

        #[test]
        fn any_bytes_can_be_skimmed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Announced::in_protobuf(&bytes).check(&Bounds::default());
            let _ = Announced::in_json(&bytes).check(&Bounds::default());
        }
    }
}
