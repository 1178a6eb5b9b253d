//! What a decision knows of the stores that share its counts: whether they may be asked, and what they have said.

use smallvec::SmallVec;

use crate::engine::decide::check::Check;
use crate::engine::decide::given_back::GivenBack;
use crate::engine::reach::{Reach, Store};

/// What a store said about one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckAnswer {
    /// It was not asked whether this one fits.
    NotAsked,
    Fits,
    Over,
}

/// A store's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAnswer {
    /// All that it was asked about fits, as far as that denies.
    pub is_admitted: bool,
    /// What was admitted is charged already. Otherwise it was only judged, because a store that is farther decides.
    pub is_charged: bool,
    /// One for each check.
    pub checks: SmallVec<[CheckAnswer; 4]>,
}

impl StoreAnswer {
    pub fn about(&self, check: usize) -> CheckAnswer {
        self.checks.get(check).copied().unwrap_or(CheckAnswer::NotAsked)
    }
}

/// What a decision knows of the stores, and whether it may ask.
#[derive(Clone, Copy, Debug)]
pub struct StoreViews<'a> {
    /// Monotonic time: freshness and pauses.
    pub mono_ms: u64,
    /// The region's own store.
    pub origin: StoreView<'a>,
    /// The store that all regions ask about strict limits.
    pub owner: StoreView<'a>,
    /// Other regions can't be heard.
    pub is_cut_off: bool,
    /// The request was looked at before: what is charged whatever happens is charged.
    pub is_again: bool,
    /// What it has given back then.
    pub given_back: Option<&'a GivenBack>,
}

/// What a decision knows of one store.
#[derive(Clone, Copy, Debug)]
pub struct StoreView<'a> {
    /// Processes that share it and are alive.
    pub live: u32,
    /// This process has just come, or come back, and may not know how many they are: memory admits nothing by itself.
    pub is_new: bool,
    /// For limits that are not strict.
    pub asking: StoreAccess<'a>,
    /// For strict limits, for which it has more time, and which may want its replicas to know.
    pub strict: StoreAccess<'a>,
}

impl<'a> StoreView<'a> {
    /// A store that strict limits are asked about as others are.
    pub const fn new(live: u32, asking: StoreAccess<'a>) -> StoreView<'a> {
        StoreView { live, is_new: false, asking, strict: asking }
    }

    pub fn asking(&self, reach: Reach) -> StoreAccess<'a> {
        if let Reach::Strict(_) = reach { self.strict } else { self.asking }
    }
}

/// Whether a store may be asked, or what it has said.
#[derive(Clone, Copy, Debug)]
pub enum StoreAccess<'a> {
    Allowed,
    /// It gives no answer: the rule's policy decides.
    Never(Cause),
    Answered(&'a StoreAnswer),
}

/// Why a store gives no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Outage,
    /// Too many wait for it already.
    Overload,
}

impl<'a> StoreViews<'a> {
    /// For a table that nobody shares.
    pub const ALONE: StoreViews<'static> = StoreViews {
        mono_ms: 0,
        origin: StoreView::new(1, StoreAccess::Never(Cause::Outage)),
        owner: StoreView::new(1, StoreAccess::Never(Cause::Outage)),
        is_cut_off: false,
        is_again: false,
        given_back: None,
    };

    pub fn of(&self, store: Store) -> &StoreView<'a> {
        match store {
            Store::Origin => &self.origin,
            Store::Owner => &self.owner,
        }
    }

    /// Whether the store of a check may be asked about it, or what it has said.
    pub fn asking(&self, check: &Check<'_>) -> Option<StoreAccess<'a>> {
        Some(self.of(check.reach.store()?).asking(check.reach))
    }

    /// What the store of a check has said, if it was asked.
    pub fn answer_to(&self, check: &Check<'_>) -> Option<&'a StoreAnswer> {
        match self.asking(check)? {
            StoreAccess::Answered(answer) => Some(answer),
            StoreAccess::Allowed | StoreAccess::Never(_) => None,
        }
    }

    /// Everything that was said.
    pub fn answers(&self) -> impl Iterator<Item = &'a StoreAnswer> {
        [&self.origin, &self.owner].into_iter().filter_map(|view| match (view.asking, view.strict) {
            (StoreAccess::Answered(answer), _) | (_, StoreAccess::Answered(answer)) => Some(answer),
            (StoreAccess::Allowed | StoreAccess::Never(_), StoreAccess::Allowed | StoreAccess::Never(_)) => None,
        })
    }

    /// A store has charged what it admitted: with that the request is decided.
    pub fn is_charged(&self) -> bool {
        self.answers().any(|answer| answer.is_charged && answer.is_admitted)
    }
}
