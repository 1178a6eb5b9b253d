//! Who decides a check: memory, the store that shares its count, or, when that gives no answer, the rule's policy.
//!
//! Memory does, unless the key is cold or stale, or more hits would be pending than may be. What the origin has just
//! denied, memory denies too. A strict limit is always asked about, unless memory already denies.

use smallvec::SmallVec;

use crate::engine::count::counter::Counter;
use crate::engine::decide::allowance::Headroom;
use crate::engine::decide::given_back::GivenBack;
use crate::engine::decide::{Charging, Check, Verdict};
use crate::engine::reach::{Reach, Store};
use crate::engine::table::regional_part::{Freshness, RegionalPart};

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
    pub is_admitted: bool,
    /// What was admitted is charged already. Otherwise it was only judged, because a store that is farther decides.
    pub is_charged: bool,
    /// One for each check.
    pub checks: SmallVec<[CheckAnswer; 4]>,
}

impl StoreAnswer {
    pub fn answered(&self, check: usize) -> CheckAnswer {
        self.checks.get(check).copied().unwrap_or(CheckAnswer::NotAsked)
    }
}

/// What a decision knows of the stores, and whether it may ask.
#[derive(Clone, Copy, Debug)]
pub struct Consult<'a> {
    /// Monotonic time: freshness and pauses.
    pub mono_ms: u64,
    pub origin: StoreView<'a>,
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
    pub asking: Asking<'a>,
    /// The same for strict limits, for which it has more time, and which may want its replicas to know.
    pub strict: Asking<'a>,
}

impl<'a> StoreView<'a> {
    /// A store that strict limits are asked about as others are.
    pub const fn new(live: u32, asking: Asking<'a>) -> StoreView<'a> {
        StoreView { live, is_new: false, asking, strict: asking }
    }

    pub fn asking(&self, reach: Reach) -> Asking<'a> {
        if let Reach::Strict(_) = reach { self.strict } else { self.asking }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Asking<'a> {
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

impl<'a> Consult<'a> {
    /// For a table that nobody shares.
    pub const ALONE: Consult<'static> = Consult {
        mono_ms: 0,
        origin: StoreView::new(1, Asking::Never(Cause::Outage)),
        owner: StoreView::new(1, Asking::Never(Cause::Outage)),
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
    pub fn asking(&self, check: &Check<'_>) -> Option<Asking<'a>> {
        Some(self.of(check.reach.store()?).asking(check.reach))
    }

    /// What the store of a check has said, if it was asked.
    pub fn settled(&self, check: &Check<'_>) -> Option<&'a StoreAnswer> {
        match self.asking(check)? {
            Asking::Answered(settled) => Some(settled),
            Asking::Allowed | Asking::Never(_) => None,
        }
    }

    /// Everything that was said.
    pub fn all_settled(&self) -> impl Iterator<Item = &'a StoreAnswer> {
        [&self.origin, &self.owner].into_iter().filter_map(|view| match (view.asking, view.strict) {
            (Asking::Answered(settled), _) | (_, Asking::Answered(settled)) => Some(settled),
            _ => None,
        })
    }
}

/// Why a store is asked about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The key was never read, or not for a while.
    Cold,
    /// More is pending than may be.
    Headroom,
    /// Another check of the request asks.
    Together,
    /// Memory never decides it.
    Strict,
}

/// A check that its store is to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Into the checks.
    pub check: usize,
    pub store: Store,
    /// Whether it fits; otherwise only how it stands.
    pub is_judged: bool,
    /// To judge the check by what comes before it in the request, so many more hits than its limit may be counted: those
    /// of later checks on its key that are in the count already, less what was given back, and less the hits of earlier
    /// ones that the store is not asked about.
    pub counted_after: i64,
    pub why: Why,
}

fn headroom(check: &Check<'_>, slack_permille: u16, shared: &RegionalPart, live: u32) -> Headroom {
    // A bucket is full at its burst, whatever its rate.
    let limit = check.terms.capacity();
    Headroom { limit, slack_permille, holders: shared.holders(), is_settled: shared.are_holders_settled(), live }
}

/// Hits that may be refused, so that the store is asked whether they fit.
pub fn is_judged(check: &Check<'_>, is_quiet: bool) -> bool {
    check.charging == Charging::Together && !is_quiet && check.reach != Reach::Process
}

/// The part of the allowance that may be used on a view that is not quite new.
const OLD_VIEW_PART: u64 = 4;

/// Who decides a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decider {
    Memory {
        /// So many pending hits are told at once: half of what may be.
        urgent_at: u64,
    },
    /// The origin has just denied as many hits.
    Paused {
        wait_ms: u64,
    },
    Asks(Why),
    /// The store gives no answer: the rule's policy decides.
    Without(Cause),
}

impl Decider {
    /// Memory decides, and what it adds can wait for the next flush.
    pub(super) const AT_LEISURE: Decider = Decider::Memory { urgent_at: u64::MAX };

    pub fn urgent_at(&self) -> u64 {
        if let Decider::Memory { urgent_at } = self { *urgent_at } else { u64::MAX }
    }
}

/// Finds out who decides. When too many wait already, nobody asks: what memory can decide it does, the rest is the
/// policy's.
#[inline]
pub(in crate::engine) fn standing(
    check: &Check<'_>,
    verdict: &Verdict,
    counter: &Counter,
    shared: Option<&mut RegionalPart>,
    waiting: u64,
    is_quiet: bool,
    consult: &Consult<'_>,
) -> Decider {
    // What nobody shares, nobody else decides.
    let Some(store) = check.reach.store() else { return Decider::AT_LEISURE };
    match unhurried(check, store, verdict, counter, shared, waiting, is_quiet, consult) {
        Decider::Asks(_) if matches!(consult.asking(check), Some(Asking::Never(Cause::Overload))) => {
            Decider::Without(Cause::Overload)
        }
        standing => standing,
    }
}

/// Memory decides, unless the key is cold or stale, or more would be pending than may be.
#[expect(clippy::too_many_arguments, reason = "a decision's parts, which only here come together")]
fn unhurried(
    check: &Check<'_>,
    store: Store,
    verdict: &Verdict,
    counter: &Counter,
    shared: Option<&mut RegionalPart>,
    waiting: u64,
    is_quiet: bool,
    consult: &Consult<'_>,
) -> Decider {
    if is_quiet || check.charging == Charging::Refund {
        return Decider::AT_LEISURE;
    }
    let view = consult.of(store);
    let live = view.live;
    match view.asking(check.reach) {
        Asking::Answered(_) => return Decider::AT_LEISURE,
        Asking::Never(Cause::Outage) => return Decider::Without(Cause::Outage),
        // What is charged whatever happens needs no leave, but the owner should hear of it at once.
        Asking::Allowed | Asking::Never(Cause::Overload)
            if matches!(check.reach, Reach::Strict(_)) && check.charging == Charging::Always && check.hits > 0 =>
        {
            return Decider::Memory { urgent_at: 1 };
        }
        Asking::Allowed | Asking::Never(Cause::Overload) if verdict.is_over => return Decider::AT_LEISURE,
        Asking::Allowed | Asking::Never(Cause::Overload) => {}
    }
    let Reach::Region { slack_permille } = check.reach else { return Decider::Asks(Why::Strict) };
    let Some(shared) = shared else { return Decider::Asks(Why::Cold) };
    shared.follow(counter);
    let is_together = check.charging == Charging::Together && check.hits > 0;
    if is_together && let Some(wait_ms) = shared.paused_for_ms(check.hits, consult.mono_ms) {
        return Decider::Paused { wait_ms };
    }
    match shared.freshness(consult.mono_ms) {
        Freshness::Unreadable => return Decider::Without(Cause::Outage),
        Freshness::Cold | Freshness::Stale => return Decider::Asks(Why::Cold),
        Freshness::Fresh => {}
    }
    let pending = shared.pending().saturating_add(waiting);
    let wanted = pending.saturating_add(check.hits);
    let allowance = headroom(check, slack_permille, shared, live).allowance(verdict.available);
    if is_together && (view.is_new || wanted > allowance) {
        return Decider::Asks(Why::Headroom);
    }
    if !is_together || !shared.is_view_old(consult.mono_ms) {
        return Decider::Memory { urgent_at: allowance / 2 };
    }
    // A view that is not quite new is good for a part of the allowance, or for one larger request, and told sooner.
    let part = allowance / OLD_VIEW_PART;
    if wanted > part && pending > 0 {
        return Decider::Asks(Why::Headroom);
    }
    Decider::Memory { urgent_at: (part / 2).max(1) }
}
