//! What is asked: Envoy's request, checked once at the edge.
//!
//! Everything behind this file may rely on it: the domain is named, there is at least one descriptor, and no string
//! or list is longer than [`Bounds`] says. Values are borrowed from the message they arrived in, so that a decision
//! copies nothing but what it has to keep.

pub(crate) mod owned;
pub(crate) mod typed;

use smallvec::SmallVec;
use thiserror::Error;

/// The longest domain, in bytes.
pub const DOMAIN_BYTES_MAX: usize = 128;
/// The longest entry key, in bytes.
pub const KEY_BYTES_MAX: usize = 256;
/// The longest entry value, in bytes.
pub const VALUE_BYTES_MAX: usize = 16 * 1024;

/// How large a request may be. The lengths of strings are constants, because rules and storage are built on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Descriptors in a request.
    pub descriptors_max: usize,
    /// Entries in a descriptor.
    pub entries_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { descriptors_max: 32, entries_max: 16 }
    }
}

/// One key and value of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorEntry<'a> {
    /// At most [`KEY_BYTES_MAX`] bytes; may be empty.
    pub key: &'a str,
    /// At most [`VALUE_BYTES_MAX`] bytes; may be empty.
    pub value: &'a str,
}

/// What a descriptor costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// The request's `hits_addend`, shared by every descriptor that has no cost of its own.
    OfRequest(u64),
    /// The descriptor's own `hits_addend`; zero is a peek.
    Own(u64),
    /// `is_negative_hits`: give this many back.
    Refund(u64),
}

/// The units of time that the protocol can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    pub const ALL: [Unit; 7] = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// The length of the unit. A month is 30 days and a year 365: windows are aligned to the epoch, not the calendar.
    pub const fn window_ms(self) -> u64 {
        const SECOND_MS: u64 = 1000;
        const DAY_MS: u64 = 24 * 60 * 60 * SECOND_MS;
        match self {
            Unit::Second => SECOND_MS,
            Unit::Minute => 60 * SECOND_MS,
            Unit::Hour => 60 * 60 * SECOND_MS,
            Unit::Day => DAY_MS,
            Unit::Week => 7 * DAY_MS,
            Unit::Month => 30 * DAY_MS,
            Unit::Year => 365 * DAY_MS,
        }
    }

    /// The word that rule files use.
    pub const fn word(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }

    /// The unit of a word, in any case.
    pub fn from_word(word: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.word().eq_ignore_ascii_case(word))
    }

    /// The unit whose length is exactly this window.
    pub fn of_window_ms(window_ms: u64) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.window_ms() == window_ms)
    }
}

/// A limit that the request brings along (`descriptor.limit`), in place of the rule's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// Hits that the limit admits in a unit; 0 admits none.
    pub requests_per_unit: u32,
    /// Its length is the limit's window.
    pub unit: Unit,
}

/// The entries to find a rule for, what they cost, and the limit they bring along, if any.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// In the order in which Envoy lists them: rules match them level by level.
    pub entries: SmallVec<[DescriptorEntry<'a>; 4]>,
    /// What each limit that the descriptor meets is charged.
    pub hits: Hits,
    /// Takes the place of the limits of the rule. `None` leaves them in force.
    pub limit: Option<LimitOverride>,
}

/// A request that is within its bounds.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    domain: &'a str,
    descriptors: SmallVec<[Descriptor<'a>; 2]>,
}

impl<'a> Request<'a> {
    /// Checks what has arrived against the bounds.
    pub fn new(
        domain: &'a str,
        descriptors: SmallVec<[Descriptor<'a>; 2]>,
        bounds: &Bounds,
    ) -> Result<Request<'a>, RequestError> {
        if domain.is_empty() {
            return Err(RequestError::EmptyDomain);
        }
        if domain.len() > DOMAIN_BYTES_MAX {
            return Err(RequestError::LongDomain { bytes: domain.len() });
        }
        if descriptors.is_empty() {
            return Err(RequestError::NoDescriptors);
        }
        if descriptors.len() > bounds.descriptors_max {
            return Err(RequestError::ManyDescriptors { count: descriptors.len(), max: bounds.descriptors_max });
        }
        for (index, descriptor) in descriptors.iter().enumerate() {
            if descriptor.entries.len() > bounds.entries_max {
                let count = descriptor.entries.len();
                return Err(RequestError::ManyEntries { descriptor: index, count, max: bounds.entries_max });
            }
            for entry in &descriptor.entries {
                if entry.key.len() > KEY_BYTES_MAX {
                    return Err(RequestError::LongKey { descriptor: index, bytes: entry.key.len() });
                }
                if entry.value.len() > VALUE_BYTES_MAX {
                    return Err(RequestError::LongValue { descriptor: index, bytes: entry.value.len() });
                }
            }
        }
        Ok(Request { domain, descriptors })
    }

    pub fn domain(&self) -> &'a str {
        self.domain
    }

    pub fn descriptors(&self) -> &[Descriptor<'a>] {
        &self.descriptors
    }
}

/// Why a request is not answered. `descriptor` counts from 0, `unit` is the number in the message. Users of
/// envoyproxy/ratelimit know the first two texts.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    #[error("rate limit domain has {bytes} bytes, at most {DOMAIN_BYTES_MAX} are allowed")]
    LongDomain { bytes: usize },
    #[error("rate limit request has {count} descriptors, at most {max} are allowed")]
    ManyDescriptors { count: usize, max: usize },
    #[error("descriptor {descriptor} has {count} entries, at most {max} are allowed")]
    ManyEntries { descriptor: usize, count: usize, max: usize },
    #[error("descriptor {descriptor} has a key of {bytes} bytes, at most {KEY_BYTES_MAX} are allowed")]
    LongKey { descriptor: usize, bytes: usize },
    #[error("descriptor {descriptor} has a value of {bytes} bytes, at most {VALUE_BYTES_MAX} are allowed")]
    LongValue { descriptor: usize, bytes: usize },
    #[error(
        "descriptor {descriptor} overrides its limit with unit {unit}, which is none of second, minute, hour, day, \
         month, year or week (1 to 7)"
    )]
    UnknownUnit { descriptor: usize, unit: i32 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn descriptor(entries: usize, value: &str) -> Descriptor<'_> {
        Descriptor {
            entries: (0..entries).map(|_| DescriptorEntry { key: "k", value }).collect(),
            hits: Hits::OfRequest(1),
            limit: None,
        }
    }

    #[test]
    fn the_domain_is_checked_before_the_descriptors() {
        let bounds = Bounds::default();
        assert_eq!(Request::new("", smallvec![], &bounds).unwrap_err(), RequestError::EmptyDomain);
        assert_eq!(Request::new("d", smallvec![], &bounds).unwrap_err(), RequestError::NoDescriptors);
    }

    #[test]
    fn every_bound_holds_at_its_edge() {
        let bounds = Bounds { descriptors_max: 2, entries_max: 3 };
        let value = "v".repeat(VALUE_BYTES_MAX);
        let longer = "v".repeat(VALUE_BYTES_MAX + 1);
        assert!(Request::new("d", smallvec![descriptor(3, &value), descriptor(0, "")], &bounds).is_ok());
        assert!(matches!(
            Request::new("d", smallvec![descriptor(4, "")], &bounds),
            Err(RequestError::ManyEntries { count: 4, .. })
        ));
        assert!(matches!(
            Request::new("d", smallvec![descriptor(1, &longer)], &bounds),
            Err(RequestError::LongValue { bytes: 16385, .. })
        ));
        assert!(matches!(
            Request::new("d", (0..3).map(|_| descriptor(1, "")).collect(), &bounds),
            Err(RequestError::ManyDescriptors { count: 3, .. })
        ));
        let domain = "d".repeat(DOMAIN_BYTES_MAX + 1);
        assert!(matches!(
            Request::new(&domain, smallvec![descriptor(1, "")], &bounds),
            Err(RequestError::LongDomain { .. })
        ));
    }
}
