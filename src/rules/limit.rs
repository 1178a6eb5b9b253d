//! A limit as the engine sees it, and the rule that carries one or several of them.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::request::Unit;
use crate::rules::policy::{Algorithm, Charge, Policy};

/// The shortest window.
pub const WINDOW_MS_MIN: u64 = 1000;
/// The longest window.
pub const WINDOW_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1000;

/// The numbers of a limit that a decision needs: how many, per how long, counted how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Hits per window; 0 denies everything.
    pub limit: u32,
    /// The length of the window, within [`WINDOW_MS_MIN`] and [`WINDOW_MS_MAX`].
    pub window_ms: u64,
    /// How hits are counted against the limit. With the window it is part of the key: another one starts a new count.
    pub algorithm: Algorithm,
    /// How many `gcra` admits at once on a fresh key; the limit itself for the other algorithms.
    pub burst: u32,
}

impl Terms {
    /// How many hits fit on a fresh key.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        if self.algorithm.is_bucket() { self.burst } else { self.limit }
    }

    /// How many hits fit at once, for an algorithm that tells that apart from the limit.
    pub(crate) fn own_burst(&self) -> Option<u32> {
        self.algorithm.is_bucket().then_some(self.burst)
    }
}

/// Names a family of keys: the digest of domain and rule id. It stays the same over reloads, so counters survive them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Space([u64; 2]);

impl Space {
    /// Names nothing.
    pub const NONE: Space = Space([0; 2]);

    /// The first half of a SHA-256 over the length-prefixed parts: no two pairs of names share one.
    pub fn new(domain: &str, rule_id: &str) -> Space {
        let mut digest = Sha256::new();
        for part in [domain, rule_id] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        let digest = digest.finalize();
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| digest[at + i]));
        Space([half(0), half(8)])
    }

    pub fn to_bytes(&self) -> [u8; 16] {
        let [first, second] = self.0.map(u64::to_le_bytes);
        std::array::from_fn(|at| if at < 8 { first[at] } else { second[at - 8] })
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Space({:016x}{:016x})", self.0[0], self.0[1])
    }
}

/// One configured limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// As written in the rule. A region's part of a split limit is worked out later.
    pub terms: Terms,
    /// Echoed as `current_limit.name`, and what `replaces` refers to. Empty when the rule gives none.
    pub name: Arc<str>,
    /// Names of limits that are dropped from the same request.
    pub replaces: Vec<Arc<str>>,
    /// Which hits of a denied request count.
    pub charge: Charge,
    /// With the defaults of the class and the algorithm filled in.
    pub policy: Policy,
}

impl Limit {
    /// The protocol's unit that is as long as the window, if there is one.
    pub fn unit(&self) -> Option<Unit> {
        Unit::of_window_ms(self.terms.window_ms)
    }
}

/// What a rule demands of the keys it matches.
#[derive(Clone, Debug)]
pub enum Demand {
    /// Never counted, always OK. It has a name and may replace other limits, as a [`Limit`] does.
    Unlimited { name: Arc<str>, replaces: Vec<Arc<str>> },
    /// All of these hold at once. Never empty, and no two share a window.
    Limits(Vec<Limit>),
}

/// One level on the way to a rule, as metrics and `/rlconfig` name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePathStep {
    /// The descriptor key at this level.
    pub key: Arc<str>,
    /// What the file says: `key`, `key_value` or `key_pattern`. A sensitive value is a digest.
    pub written: Arc<str>,
    /// Metrics show the value of the request here, because the rule asks for it.
    pub takes_value: bool,
}

/// A configured rule: where it stands, what it demands, how it is reported.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its place among the rules of its domain, in the order of declaration.
    pub number: u32,
    /// The stable path `key=value/key2`, unique in its domain.
    pub id: Arc<str>,
    /// The digest of the domain and `id`, which all keys of the rule have in common.
    pub space: Space,
    /// Its limits, or that it has none on purpose.
    pub demand: Demand,
    /// Counts and reports, never denies.
    pub shadow_mode: bool,
    /// Denies only together with every other quota descriptor of the request.
    pub quota_mode: bool,
    /// The levels down to the rule.
    pub rule_path: Box<[RulePathStep]>,
    /// Returned in the dynamic metadata of requests that this rule lets pass.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// Where the rule is written.
    pub at: crate::rules::problem::FilePosition,
}

impl Rule {
    /// The limits to hold; none for an unlimited rule.
    pub fn limits(&self) -> &[Limit] {
        match &self.demand {
            Demand::Unlimited { .. } => &[],
            Demand::Limits(limits) => limits,
        }
    }

    pub fn is_unlimited(&self) -> bool {
        matches!(self.demand, Demand::Unlimited { .. })
    }

    /// Every name that the rule's limits replace in a request.
    pub fn replaces(&self) -> impl Iterator<Item = &Arc<str>> {
        let (own, of_limits) = match &self.demand {
            Demand::Unlimited { replaces, .. } => (replaces.as_slice(), &[][..]),
            Demand::Limits(limits) => (&[][..], limits.as_slice()),
        };
        own.iter().chain(of_limits.iter().flat_map(|limit| limit.replaces.iter()))
    }
}

/// Keys the digests of sensitive values, so that nobody can guess the values. It is made of a secret. The default is
/// for rules that nobody is shown.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct DigestKey([u8; 32]);

impl DigestKey {
    pub fn new(secret: &str) -> DigestKey {
        DigestKey(Sha256::digest(secret.as_bytes()).into())
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(<redacted>)")
    }
}

/// A value as it may be shown. In place of a sensitive one stands enough of its digest to tell two apart.
pub fn shown(value: &str, is_sensitive: bool, key: &DigestKey) -> String {
    if !is_sensitive {
        return value.to_owned();
    }
    let Ok(mut digest) = Hmac::<Sha256>::new_from_slice(&key.0) else { unreachable!("any length will do") };
    digest.update(value.as_bytes());
    let hex: String = digest.finalize().into_bytes().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("#{hex}")
}

/// A value in a message about the rules. A sensitive one is left out, because the place in the file says which one it
/// is.
pub fn in_message(value: &str, is_sensitive: bool) -> &str {
    if is_sensitive { "<sensitive>" } else { value }
}

/// `key=value`, or the key alone: one step of a rule id.
pub fn rule_step(key: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{key}={value}"),
        None => key.to_owned(),
    }
}

/// A step with `%`, `/` and `=` in its names escaped, for the rare rule whose plain id is already taken.
pub fn escaped_rule_step(key: &str, value: Option<&str>) -> String {
    let escape = |text: &str| text.replace('%', "%25").replace('/', "%2F").replace('=', "%3D");
    rule_step(&escape(key), value.map(escape).as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_do_not_run_together() {
        assert_ne!(Space::new("ab", "c"), Space::new("a", "bc"));
        assert_eq!(Space::new("a", "b"), Space::new("a", "b"));
    }

    #[test]
    fn escaped_steps_do_not_run_together() {
        assert_eq!(rule_step("path", Some("/a=b")), "path=/a=b");
        assert_eq!(escaped_rule_step("path", Some("/a=b")), "path=%2Fa%3Db");
        assert_ne!(escaped_rule_step("a=b", None), escaped_rule_step("a", Some("b")));
    }
}
