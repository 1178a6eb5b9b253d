//! What a decision knows of the stores that share its counts: whether they may be asked, and what they have said.

use smallvec::SmallVec;

use crate::engine::decide::check::Check;
use crate::engine::decide::given_back::GivenBack;
use crate::engine::reach::{Reach, Store};

/// A store's answer about one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckAnswer {
    /// The store was not asked whether this one fits.
    NotAsked,
    Fits,
    Over,
    /// It fitted and was charged, whatever the store has said of other checks since then.
    Charged,
}

/// A store's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreAnswer {
    /// Nothing that the store has judged denies the request.
    pub is_admitted: bool,
    /// The store has charged what it admitted. Otherwise it has only judged, because a farther store decides.
    pub is_charged: bool,
    /// One for each check of the request, also those that the store was not asked about.
    pub checks: SmallVec<[CheckAnswer; 4]>,
}

impl StoreAnswer {
    /// Takes over what the store has said about other checks of the request, when it was asked again.
    pub(crate) fn add(&mut self, later: &StoreAnswer) {
        for about in &mut self.checks {
            *about = match *about {
                CheckAnswer::Fits if self.is_charged && self.is_admitted => CheckAnswer::Charged,
                // It was only judged, and the store charges now: it is judged again.
                CheckAnswer::Fits | CheckAnswer::Over if later.is_charged && !self.is_charged => CheckAnswer::NotAsked,
                about => about,
            }
        }
        self.is_admitted &= later.is_admitted;
        self.is_charged |= later.is_charged;
        for (about, said) in self.checks.iter_mut().zip(&later.checks) {
            if *said != CheckAnswer::NotAsked {
                *about = *said;
            }
        }
    }

    /// The answer about the check at this place.
    pub fn about(&self, check: usize) -> CheckAnswer {
        self.checks.get(check).copied().unwrap_or(CheckAnswer::NotAsked)
    }
}

/// All that a decision knows of the stores, and whether it may ask them.
#[derive(Clone, Copy, Debug)]
pub struct StoreViews<'a> {
    /// Monotonic time, which freshness and pauses go by.
    pub mono_ms: u64,
    /// The region's own store.
    pub origin: StoreView<'a>,
    /// The store that all regions ask about strict limits.
    pub owner: StoreView<'a>,
    /// Other regions can't be heard.
    pub is_cut_off: bool,
    /// Not the first attempt: hits that are charged whatever happens, and refunds, were applied in the first.
    pub is_again: bool,
    /// Hits that the request gave back in the first attempt.
    pub given_back: Option<&'a GivenBack>,
}

/// All that a decision knows of one store.
#[derive(Clone, Copy, Debug)]
pub struct StoreView<'a> {
    /// Live processes that share it.
    pub live: u32,
    /// This process has just joined, or come back, and may not know how many live: memory admits nothing by itself.
    pub is_new: bool,
    /// Since when this process has shared it, by the monotonic clock. `None`: from before anything that counts. What was there
    /// before, other processes may have told that are gone by now.
    pub joined_ms: Option<u64>,
    /// For limits that are not strict.
    pub asking: StoreAccess,
    /// For strict limits, for which the store has more time, and may have to wait for its replicas.
    pub strict: StoreAccess,
    /// What it has said to this request, if it was asked. The request may ask about other checks after that.
    pub answer: Option<&'a StoreAnswer>,
}

impl<'a> StoreView<'a> {
    /// A store that is asked about strict limits just as about others.
    pub const fn new(live: u32, asking: StoreAccess) -> StoreView<'a> {
        StoreView { live, is_new: false, joined_ms: None, asking, strict: asking, answer: None }
    }

    pub fn asking(&self, reach: Reach) -> StoreAccess {
        if let Reach::Strict(_) = reach { self.strict } else { self.asking }
    }
}

/// Whether a store may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAccess {
    Allowed,
    /// It gives no answer: the rule's policy decides.
    Never(Cause),
    /// It was asked about this request and has not answered in time. The policy decides what has to ask, and memory the rest.
    Silent,
}

impl StoreAccess {
    /// Why what has to ask can't; `None` if it can.
    pub fn obstacle(self) -> Option<Cause> {
        match self {
            StoreAccess::Allowed => None,
            StoreAccess::Never(cause) => Some(cause),
            StoreAccess::Silent => Some(Cause::Outage),
        }
    }
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

    /// Whether the store of a check may be asked about it.
    pub fn asking(&self, check: &Check<'_>) -> Option<StoreAccess> {
        Some(self.of(check.reach.store()?).asking(check.reach))
    }

    /// The answer of a check's store, if it has answered.
    pub fn answer_to(&self, check: &Check<'_>) -> Option<&'a StoreAnswer> {
        self.of(check.reach.store()?).answer
    }

    /// What a check's store has said about it, by its place among the checks.
    pub fn answer_about(&self, check: &Check<'_>, index: usize) -> CheckAnswer {
        self.answer_to(check).map_or(CheckAnswer::NotAsked, |answer| answer.about(index))
    }

    /// All answers that there are.
    pub fn answers(&self) -> impl Iterator<Item = &'a StoreAnswer> {
        [&self.origin, &self.owner].into_iter().filter_map(|view| view.answer)
    }

    /// The owner has charged what it admitted. That decides the request: it is charged nearer too, whatever is known there.
    pub fn is_decided_by_owner(&self) -> bool {
        self.owner.answer.is_some_and(|answer| answer.is_charged && answer.is_admitted)
    }

    /// A store has charged hits of this request. Whoever is asked after that charges too.
    pub fn is_charged(&self) -> bool {
        self.answers().any(|answer| answer.is_charged && answer.is_admitted)
    }
}
