//! Names keys outside of this process: by a digest, and for sensitive values by one that nobody can try out.
//!
//! A digest is the same in every process of the region, has one length whatever the identifier, and holds no byte of
//! it. The values of sensitive keys are few enough to be guessed (addresses, tokens of a known form), so their digest
//! is keyed by a secret that all processes share.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::engine::key::Key;
use crate::regional::call::OriginKey;
use crate::secret::Secret;

/// Names keys.
#[derive(Clone, Debug)]
pub struct KeyNames {
    secret: Option<Secret>,
}

impl KeyNames {
    /// `None`: sensitive keys have no names. A secret that processes do not share would give each process counts of its
    /// own.
    pub fn new(secret: impl Into<Option<Secret>>) -> KeyNames {
        KeyNames { secret: secret.into() }
    }

    /// The key's name at the origin.
    pub fn origin_key(&self, key: &Key<'_>, is_sensitive: bool) -> OriginKey {
        let head = |digest: &[u8]| OriginKey(std::array::from_fn(|at| digest[at]));
        let fixed: [&[u8]; 4] =
            [&key.space.to_bytes(), &key.window_ms.to_le_bytes(), &[key.algorithm as u8], &[u8::from(is_sensitive)]];
        if !is_sensitive {
            let mut digest = Sha256::new();
            fixed.iter().for_each(|part| digest.update(part));
            digest.update(key.identifier);
            return head(&digest.finalize());
        }
        let Some(secret) = &self.secret else {
            unreachable!("without a secret no rules with sensitive keys come into force where counts are shared")
        };
        let Ok(mut keyed) = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()) else {
            unreachable!("any length will do")
        };
        fixed.iter().for_each(|part| keyed.update(part));
        keyed.update(key.identifier);
        head(&keyed.finalize().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::{Space, Terms};
    use crate::rules::policy::Algorithm;

    fn name(identifier: &[u8], is_sensitive: bool, secret: &str) -> OriginKey {
        let terms = Terms { limit: 1, window_ms: 1000, algorithm: Algorithm::SlidingWindow, burst: 1 };
        KeyNames::new(Secret::new(secret)).origin_key(&Key::new(Space::new("d", "r"), &terms, identifier), is_sensitive)
    }

    #[test]
    fn names_are_alike_everywhere_and_differ_by_identifier() {
        assert_eq!(name(b"a", false, "1"), name(b"a", false, "2"));
        assert_ne!(name(b"a", false, ""), name(b"b", false, ""));
    }

    #[test]
    fn sensitive_names_hang_on_the_secret() {
        assert_eq!(name(b"a", true, "1"), name(b"a", true, "1"));
        assert_ne!(name(b"a", true, "1"), name(b"a", true, "2"));
        assert_ne!(name(b"a", true, "1"), name(b"a", false, "1"));
    }
}
