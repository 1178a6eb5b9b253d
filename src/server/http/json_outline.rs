//! Counts the descriptors and entries of a request in JSON, before it is decoded.
//!
//! An empty descriptor is three bytes of text and more than a hundred in memory, so a body of allowed size could take forty
//! times as much. Counting first takes one pass over the bytes and no memory. Text that is not JSON is left to the decoder,
//! which has better messages for it.

use crate::request::{Bounds, RequestError};

/// How many descriptors and entries a body has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonOutline {
    descriptors: usize,
    /// The first descriptor with the most entries, and how many these are.
    most_entries: (usize, usize),
}

impl JsonOutline {
    /// Checks in the same order as a request: first the descriptors, then their entries.
    pub(crate) fn check(&self, bounds: &Bounds) -> Result<(), RequestError> {
        let (descriptor, entries) = self.most_entries;
        if self.descriptors > bounds.descriptors_max {
            return Err(RequestError::ManyDescriptors { count: self.descriptors, max: bounds.descriptors_max });
        }
        if entries > bounds.entries_max {
            return Err(RequestError::ManyEntries { descriptor, count: entries, max: bounds.entries_max });
        }
        Ok(())
    }

    fn add_descriptor(&mut self, entries: usize) {
        if entries > self.most_entries.1 {
            self.most_entries = (self.descriptors, entries);
        }
        self.descriptors += 1;
    }

    /// Counts in a RateLimitRequest: objects in the arrays of the first level are descriptors, objects two levels deeper are
    /// their entries.
    pub(crate) fn in_json(text: &[u8]) -> JsonOutline {
        const DESCRIPTOR_DEPTH: usize = 3;
        const ENTRY_DEPTH: usize = 5;
        let mut announced = JsonOutline::default();
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(entries: &[usize]) -> String {
        let entry = |number: usize| serde_json::json!({"key": format!("k{number}"), "value": "\"{[}]\\"});
        let descriptor = |count: &usize| serde_json::json!({"entries": (0..*count).map(entry).collect::<Vec<_>>(), "hitsAddend": "7"});
        let descriptors: Vec<_> = entries.iter().map(descriptor).collect();
        serde_json::json!({"domain": "d", "descriptors": descriptors, "hitsAddend": 300}).to_string()
    }

    #[test]
    fn what_is_too_much_is_named_as_the_request_itself_would() {
        let bounds = Bounds { descriptors_max: 2, entries_max: 3 };
        let check = |entries: &[usize]| JsonOutline::in_json(text(entries).as_bytes()).check(&bounds);
        assert_eq!(check(&[3, 3]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[0, 0, 0]), Err(RequestError::ManyDescriptors { count: 3, max: 2 }));
        assert_eq!(check(&[1, 4]), Err(RequestError::ManyEntries { descriptor: 1, count: 4, max: 3 }));
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_message(entries in prop::collection::vec(0usize..20, 0..40)) {
            let most = entries.iter().copied().max().unwrap_or(0);
            let announced = JsonOutline::in_json(text(&entries).as_bytes());
            prop_assert_eq!((announced.descriptors, announced.most_entries.1), (entries.len(), most));
        }

        #[test]
        fn any_bytes_can_be_skimmed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = JsonOutline::in_json(&bytes).check(&Bounds::default());
        }
    }
}
