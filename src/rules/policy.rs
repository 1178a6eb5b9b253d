//! What a rule chooses for itself: how strict it is, what an outage means, and when hits are charged.
//!
//! The words here are the words of the rule files. `class` only sets defaults; explicit fields win.

use std::fmt;

use serde::Serialize;

/// A closed set of words that a field of a rule file may hold.
pub trait Word: Copy + 'static {
    /// Every value, in the order in which help texts list them.
    const ALL: &'static [Self];

    fn word(self) -> &'static str;

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.word() == word)
    }
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl Word for $name {
            const ALL: &'static [Self] = &[$($name::$variant,)+];

            fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// How hits are counted against the limit.
    Algorithm {
        /// The current fixed window in full and the overlapping share of the one before.
        SlidingWindow = "sliding_window",
        /// Sixteenths of the window, the current and the sixteen before in full: never more than the limit in any
        /// interval as long as the window.
        ExactWindow = "exact_window",
        /// The current fixed window only, as envoyproxy/ratelimit counts.
        FixedWindow = "fixed_window",
        /// A steady rate with a burst on top.
        Gcra = "gcra",
    }
}

impl Algorithm {
    /// How a limit counts that does not say how.
    pub(crate) const DEFAULT: Algorithm = Algorithm::SlidingWindow;

    /// Those whose counts regions exchange.
    pub(crate) fn windowed() -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.iter().copied().filter(|algorithm| algorithm.is_windowed())
    }

    /// Counts in one or two cells, each as long as the window, which is what regions exchange.
    #[inline(always)]
    pub(crate) fn is_windowed(self) -> bool {
        match self {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => true,
            Algorithm::ExactWindow | Algorithm::Gcra => false,
        }
    }

    /// A bucket that drains at the limit's rate, and holds `burst` hits.
    #[inline(always)]
    pub(crate) fn is_bucket(self) -> bool {
        match self {
            Algorithm::Gcra => true,
            Algorithm::SlidingWindow | Algorithm::FixedWindow | Algorithm::ExactWindow => false,
        }
    }

    /// The widest scope of what other regions can't be told of; `None` stands for the widest that is configured.
    pub(crate) fn widest_scope(self) -> Option<Scope> {
        match self {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => None,
            Algorithm::ExactWindow | Algorithm::Gcra => Some(Scope::Regional),
        }
    }
}

words! {
    /// Who shares the count.
    Scope {
        Local = "local",
        Regional = "regional",
        Global = "global",
        Split = "split",
        Strict = "strict",
    }
}

words! {
    /// What answers when the origin does not.
    OnOutage {
        Local = "local",
        Share = "share",
        Allow = "allow",
        Deny = "deny",
    }
}

words! {
    /// What a limit is for; sets the defaults of scope and outage policy.
    Class {
        Comfort = "comfort",
        Security = "security",
        Cost = "cost",
    }
}

words! {
    /// Which hits of a denied request are charged.
    Charge {
        /// The request's own hits are not, a descriptor's own hits are: those report usage after the fact.
        Auto = "auto",
        /// Only hits of admitted requests.
        Accepted = "accepted",
        /// All hits, over the limit too.
        Always = "always",
    }
}

/// How far a limit reaches and what it does without its origin. `None` stands for the widest scope that is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub class: Option<Class>,
    pub scope: Option<Scope>,
    pub on_outage: OnOutage,
    /// Thousandths of the limit that a process may admit before the origin knows; `None` takes the setting.
    pub slack_permille: Option<u16>,
}

impl Policy {
    /// Thousandths of the limit that may be admitted before the origin knows, unless that is left to the setting. What is
    /// split asks every time: only then can the regions together never admit more than the limit.
    pub fn slack_permille(&self) -> Option<u16> {
        self.slack_permille.or((self.scope == Some(Scope::Split)).then_some(0))
    }

    /// Explicit fields first, then the class's defaults, then the algorithm's.
    pub fn resolve(
        algorithm: Algorithm,
        class: Option<Class>,
        scope: Option<Scope>,
        on_outage: Option<OnOutage>,
        slack_permille: Option<u16>,
    ) -> Policy {
        let of_class = match class {
            None | Some(Class::Comfort) => (None, OnOutage::Local),
            Some(Class::Security) => (Some(Scope::Strict), OnOutage::Deny),
            Some(Class::Cost) => (None, OnOutage::Deny),
        };
        Policy {
            class,
            scope: scope.or(of_class.0).or(algorithm.widest_scope()),
            on_outage: on_outage.unwrap_or(of_class.1),
            slack_permille,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_fields_beat_the_class() {
        let policy = Policy::resolve(Algorithm::SlidingWindow, Some(Class::Security), None, None, None);
        assert_eq!((policy.scope, policy.on_outage), (Some(Scope::Strict), OnOutage::Deny));
        let policy = Policy::resolve(
            Algorithm::SlidingWindow,
            Some(Class::Security),
            Some(Scope::Local),
            Some(OnOutage::Allow),
            None,
        );
        assert_eq!((policy.scope, policy.on_outage), (Some(Scope::Local), OnOutage::Allow));
    }

    #[test]
    fn without_a_class_an_outage_decides_from_memory() {
        let policy = Policy::resolve(Algorithm::SlidingWindow, None, None, None, None);
        assert_eq!((policy.scope, policy.on_outage), (None, OnOutage::Local));
        let policy = Policy::resolve(Algorithm::Gcra, None, None, None, None);
        assert_eq!(policy.scope, Some(Scope::Regional));
    }

    #[test]
    fn what_is_split_is_exact_unless_it_says_otherwise() {
        let slack = |scope, slack| Policy::resolve(Algorithm::Gcra, None, scope, None, slack).slack_permille();
        assert_eq!((slack(Some(Scope::Split), None), slack(Some(Scope::Split), Some(50))), (Some(0), Some(50)));
        assert_eq!((slack(Some(Scope::Regional), None), slack(None, Some(50))), (None, Some(50)));
    }

    #[test]
    fn words_read_back() {
        for scope in Scope::ALL {
            assert_eq!(Scope::from_word(scope.word()), Some(*scope));
        }
        assert_eq!(Algorithm::from_word("token_bucket"), None);
    }
}
