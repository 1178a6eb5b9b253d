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
    /// The algorithm of a limit that names none.
    pub(crate) const DEFAULT: Algorithm = Algorithm::SlidingWindow;

    /// The algorithms whose counts regions exchange.
    pub(crate) fn windowed() -> impl Iterator<Item = Algorithm> {
        Algorithm::ALL.iter().copied().filter(|algorithm| algorithm.is_windowed())
    }

    /// Whether it counts in one or two cells, each as long as the window: the form that regions exchange.
    #[inline(always)]
    pub(crate) fn is_windowed(self) -> bool {
        match self {
            Algorithm::SlidingWindow | Algorithm::FixedWindow => true,
            Algorithm::ExactWindow | Algorithm::Gcra => false,
        }
    }

    /// Whether it is a bucket that drains at the limit's rate and holds `burst` hits.
    #[inline(always)]
    pub(crate) fn is_bucket(self) -> bool {
        match self {
            Algorithm::Gcra => true,
            Algorithm::SlidingWindow | Algorithm::FixedWindow | Algorithm::ExactWindow => false,
        }
    }

    /// The widest scope that a limit can have. `None` stands for the widest that is configured; counts that other
    /// regions can't be told of stay in the region.
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
        /// Each process alone.
        Local = "local",
        /// The processes of a region, through its origin.
        Regional = "regional",
        /// All regions, approximately: each learns of the others about a second later.
        Global = "global",
        /// The processes of a region, on the region's part of the limit.
        Split = "split",
        /// Everybody, exactly: one owner decides every request.
        Strict = "strict",
    }
}

words! {
    /// What answers while the store that should decide does not.
    OnOutage {
        /// Memory, against the limit.
        Local = "local",
        /// Memory, and this process gives out no more than its part of the limit.
        Share = "share",
        /// OK, up to ten times the limit.
        Allow = "allow",
        /// OVER_LIMIT.
        Deny = "deny",
    }
}

words! {
    /// What a limit is for. Sets the defaults of scope and outage policy, and who gives way first under overload.
    Class {
        /// Fairness: a few too many hurt nobody.
        Comfort = "comfort",
        /// Guessing: one too many is one too many.
        Security = "security",
        /// Requests that cost money.
        Cost = "cost",
    }
}

words! {
    /// Which hits of a denied request are charged.
    Charge {
        /// Hits of the request are not. A descriptor's own hits are, because they report usage after the fact.
        Auto = "auto",
        /// Only hits of admitted requests.
        Accepted = "accepted",
        /// All hits, over the limit too.
        Always = "always",
    }
}

/// How far a limit reaches, and what it does without its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Also decides who gives way first under overload. `None` counts as comfort there.
    pub class: Option<Class>,
    /// Who shares the count. `None` stands for the widest scope that is configured.
    pub scope: Option<Scope>,
    /// What answers while the store that should decide does not.
    pub on_outage: OnOutage,
    /// As written, in thousandths of the limit: what all processes together may admit before the origin knows. `None`
    /// takes the setting, or 0 for a split limit.
    pub slack_permille: Option<u16>,
}

impl Policy {
    /// Thousandths of the limit that may be admitted before the origin knows. `None` takes the setting. A split limit
    /// asks every time unless it says otherwise: only then can the regions together never admit more than the limit.
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
