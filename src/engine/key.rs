//! The name of a count: (domain, rule id, identifier, window), and the algorithm, because a changed one starts afresh.
//!
//! Domain and rule id are folded into a [`Space`]. The identifier is the list of values that the rule leaves open, each
//! with its length before it, so that no two lists of values share a key. One that is longer than
//! [`IDENTIFIER_BYTES_MAX`] is kept as its SHA-256, which fits into the slot: a client that picks its values can't pick how
//! much memory they take.

use std::hash::{BuildHasher, Hasher};
use std::ops::Range;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::engine::table::weight::heap_bytes;
use crate::rules::limit::{Space, Terms};
use crate::rules::policy::Algorithm;
use crate::rules::tree::Identifier;

/// The longest identifier that is kept as it is, so that people can read it in MySQL's table. A longer one would take as
/// much as the rest of its key together.
pub const IDENTIFIER_BYTES_MAX: usize = 127;

/// Starts every digest. As a first length it would announce a value of at least 255 bytes, which is never kept as it is.
const DIGEST_MARK: u8 = 0xff;

/// The identifiers of a request's descriptors, one after the other, while they are put together.
#[derive(Clone, Debug, Default)]
pub struct IdentifierBuffer {
    bytes: SmallVec<[u8; 128]>,
    /// Where the identifier at hand starts.
    start: usize,
}

impl IdentifierBuffer {
    /// Drops what was pushed since the last `finish`.
    pub fn restart(&mut self) {
        self.bytes.truncate(self.start);
    }

    /// Ends an identifier and says where it is. Replaces one that is too long to keep by its digest.
    pub fn finish(&mut self) -> Range<usize> {
        if self.bytes.len() - self.start > IDENTIFIER_BYTES_MAX {
            let digest = Sha256::digest(&self.bytes[self.start..]);
            self.bytes.truncate(self.start);
            self.bytes.push(DIGEST_MARK);
            self.bytes.extend_from_slice(&digest);
        }
        let range = self.start..self.bytes.len();
        self.start = self.bytes.len();
        range
    }

    /// The identifier at a place that `finish` returned.
    pub fn get(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }
}

impl Identifier for IdentifierBuffer {
    fn push(&mut self, value: &str) {
        // The length in seven bits a byte, the lowest first; all but the last byte have the high bit set.
        let mut rest = value.len();
        while rest >= 0x80 {
            self.bytes.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
        self.bytes.extend_from_slice(value.as_bytes());
    }
}

/// The values of an identifier, for people. `None` if only its digest was kept.
pub fn identifier_values(bytes: &[u8]) -> Option<Vec<&str>> {
    if bytes.first() == Some(&DIGEST_MARK) && bytes.len() == 33 {
        return None;
    }
    let mut values = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut length = 0usize;
        let mut shift = 0;
        loop {
            let (&byte, tail) = rest.split_first()?;
            rest = tail;
            length |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        let (value, tail) = rest.split_at_checked(length)?;
        values.push(std::str::from_utf8(value).ok()?);
        rest = tail;
    }
    Some(values)
}

/// A key as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    /// Domain and rule id in one digest.
    pub space: Space,
    /// Each limit of a rule has a window of its own, and so keys of its own.
    pub window_ms: u64,
    /// Two algorithms never share a count.
    pub algorithm: Algorithm,
    /// The values that the rule leaves open, as [`IdentifierBuffer`] writes them; empty if there are none.
    pub identifier: &'a [u8],
}

impl<'a> Key<'a> {
    pub fn new(space: Space, terms: &Terms, identifier: &'a [u8]) -> Key<'a> {
        Key { space, window_ms: terms.window_ms, algorithm: terms.algorithm, identifier }
    }

    /// Hashes one word and the identifier. The word stands for the rule, the window and the algorithm: the space is a
    /// digest, so half of it tells rules apart, and mixing in the window and the algorithm does not make it the digest of
    /// another rule.
    #[inline]
    pub fn hash(&self, state: &ahash::RandomState) -> u64 {
        let space = self.space.to_bytes();
        let half = u64::from_le_bytes(std::array::from_fn(|at| space[at]));
        let mut hasher = state.build_hasher();
        hasher.write_u64(half ^ self.window_ms ^ ((self.algorithm as u64) << 56));
        hasher.write(self.identifier);
        hasher.finish()
    }
}

/// A key that outlives the request that named it.
#[derive(Clone, Debug)]
pub struct OwnedKey {
    space: Space,
    window_ms: u64,
    algorithm: Algorithm,
    identifier: StoredIdentifier,
    /// The identifier leaves the process only as a keyed digest.
    pub is_sensitive: bool,
    /// Other regions count it too.
    pub is_global: bool,
}

impl OwnedKey {
    pub fn new(key: &Key<'_>, is_sensitive: bool, is_global: bool) -> OwnedKey {
        let Key { space, window_ms, algorithm, identifier } = *key;
        OwnedKey { space, window_ms, algorithm, identifier: StoredIdentifier::new(identifier), is_sensitive, is_global }
    }

    pub fn as_key(&self) -> Key<'_> {
        let OwnedKey { space, window_ms, algorithm, identifier, .. } = self;
        Key { space: *space, window_ms: *window_ms, algorithm: *algorithm, identifier: identifier.as_bytes() }
    }
}

/// An identifier at rest. A short one stands in place, in the first `length` of the bytes, so that finding a key touches one
/// piece of memory.
#[derive(Clone, Debug)]
pub enum StoredIdentifier {
    Short { length: u8, bytes: [u8; SHORT_BYTES_MAX] },
    Long(Box<[u8]>),
}

/// Room for a UUID or a 32-byte key with its length, and a little more.
const SHORT_BYTES_MAX: usize = 38;

impl StoredIdentifier {
    pub const EMPTY: StoredIdentifier = StoredIdentifier::Short { length: 0, bytes: [0; SHORT_BYTES_MAX] };

    pub fn new(identifier: &[u8]) -> StoredIdentifier {
        if identifier.len() > SHORT_BYTES_MAX {
            return StoredIdentifier::Long(identifier.into());
        }
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes[..identifier.len()].copy_from_slice(identifier);
        StoredIdentifier::Short { length: identifier.len() as u8, bytes }
    }

    /// How many bytes an identifier takes on the heap.
    pub fn heap_bytes_of(identifier: &[u8]) -> usize {
        if identifier.len() > SHORT_BYTES_MAX { heap_bytes(identifier.len()) } else { 0 }
    }

    /// How many bytes this one takes on the heap.
    pub fn heap_bytes(&self) -> usize {
        StoredIdentifier::heap_bytes_of(self.as_bytes())
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            StoredIdentifier::Short { length, bytes } => &bytes[..usize::from(*length)],
            StoredIdentifier::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identifier(values: &[&str]) -> Vec<u8> {
        let mut buffer = IdentifierBuffer::default();
        // The identifier of another descriptor comes before.
        buffer.push("before");
        buffer.finish();
        values.iter().for_each(|value| buffer.push(value));
        let range = buffer.finish();
        buffer.get(range).to_vec()
    }

    #[test]
    fn values_do_not_run_together() {
        assert_ne!(identifier(&["ab", "c"]), identifier(&["a", "bc"]));
        assert_ne!(identifier(&["a", ""]), identifier(&["a"]));
    }

    #[test]
    fn long_identifiers_are_kept_as_digests() {
        let long = "x".repeat(IDENTIFIER_BYTES_MAX + 1);
        let longer = "x".repeat(IDENTIFIER_BYTES_MAX + 2);
        assert_eq!(identifier(&[&long]).len(), 33);
        assert_ne!(identifier(&[&long]), identifier(&[&longer]));
        assert_eq!(identifier_values(&identifier(&[&long])), None);
    }

    #[test]
    fn a_stored_identifier_takes_forty_bytes() {
        assert_eq!(std::mem::size_of::<StoredIdentifier>(), 40);
    }

    proptest! {
        #[test]
        fn values_read_back(values in prop::collection::vec(".{0,40}", 0..5)) {
            let borrowed: Vec<&str> = values.iter().map(String::as_str).collect();
            let buffer = identifier(&borrowed);
            if buffer.first() != Some(&DIGEST_MARK) {
                prop_assert_eq!(identifier_values(&buffer), Some(borrowed));
            }
            let stored = StoredIdentifier::new(&buffer);
            prop_assert_eq!(stored.as_bytes(), &buffer[..]);
        }
    }
}
