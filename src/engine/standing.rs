//! Who decides a check: memory, or the origin.
//!
//! Memory does, unless the key is cold or stale, or more hits would be pending than may be. What the origin has just
//! denied, memory denies too.

use smallvec::SmallVec;

use crate::engine::allowance::Headroom;
use crate::engine::counter::Counter;
use crate::engine::decide::{Charging, Check, Reach, Verdict};
use crate::engine::share::{Freshness, Shared};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// What the origin said about one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It was not asked whether this one fits.
    NotAsked,
    Fits,
    Over,
}

/// The origin's answer to a request. What it admitted is charged already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub is_admitted: bool,
    /// One for each check.
    pub checks: SmallVec<[Answered; 4]>,
}

/// What a decision knows of the region, and whether it may ask.
#[derive(Clone, Copy, Debug)]
pub struct Consult<'a> {
    /// Monotonic time: freshness and pauses.
    pub mono_ms: u64,
    /// Processes of the region that are alive.
    pub live: u32,
    pub asking: Asking<'a>,
    /// The request was looked at before: what is charged whatever happens is charged.
    pub is_again: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Asking<'a> {
    Allowed,
    /// The origin gives no answer: memory decides.
    Never,
    Settled(&'a Settled),
}

impl Consult<'_> {
    /// For a table that nobody shares.
    pub const ALONE: Consult<'static> = Consult { mono_ms: 0, live: 1, asking: Asking::Never, is_again: false };
}

/// Why the origin is asked about a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The key was never read, or not for a while.
    Cold,
    /// More is pending than may be.
    Headroom,
    /// Another check of the request asks.
    Together,
}

/// A check that the origin is to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Into the checks.
    pub check: usize,
    /// Whether it fits; otherwise only how it stands.
    pub is_judged: bool,
    pub why: Why,
}

fn slack(check: &Check<'_>) -> Option<u16> {
    match check.reach {
        Reach::Process => None,
        Reach::Region { slack_permille } => Some(slack_permille),
    }
}

fn headroom(check: &Check<'_>, slack_permille: u16, shared: &Shared, live: u32) -> Headroom {
    // A bucket is full at its burst, whatever its rate.
    let Terms { limit, burst, algorithm, .. } = check.terms;
    let limit = if algorithm == Algorithm::Gcra { burst } else { limit };
    Headroom { limit, slack_permille, holders: shared.holders(), is_settled: shared.are_holders_settled(), live }
}

/// Hits that may be refused, so that the origin is asked whether they fit.
pub fn is_judged(check: &Check<'_>, is_quiet: bool) -> bool {
    check.charging == Charging::Together && !is_quiet && check.reach != Reach::Process
}

/// The part of the allowance that may be used on a view that is not quite new.
const OLD_VIEW_PART: u64 = 4;

/// Who decides a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Memory {
        /// So many pending hits are told at once: half of what may be.
        urgent_at: u64,
    },
    /// The origin has just denied as many hits.
    Paused {
        wait_ms: u64,
    },
    Asks(Why),
}

impl Standing {
    /// Memory decides, and what it adds can wait for the next flush.
    const AT_LEISURE: Standing = Standing::Memory { urgent_at: u64::MAX };

    pub fn urgent_at(&self) -> u64 {
        if let Standing::Memory { urgent_at } = self { *urgent_at } else { u64::MAX }
    }
}

/// Finds out who decides: memory, unless the key is cold or stale, or more would be pending than may be.
pub fn standing(
    check: &Check<'_>,
    verdict: &Verdict,
    counter: &Counter,
    shared: Option<&mut Shared>,
    waiting: u64,
    is_quiet: bool,
    consult: &Consult<'_>,
) -> Standing {
    let Some(slack_permille) = slack(check) else { return Standing::AT_LEISURE };
    let is_settled = matches!(consult.asking, Asking::Settled(_));
    if is_quiet || is_settled || verdict.is_over || check.charging == Charging::Refund {
        return Standing::AT_LEISURE;
    }
    let may_ask = matches!(consult.asking, Asking::Allowed);
    let Some(shared) = shared else { return if may_ask { Standing::Asks(Why::Cold) } else { Standing::AT_LEISURE } };
    shared.follow(counter);
    let is_together = check.charging == Charging::Together && check.hits > 0;
    if is_together && let Some(wait_ms) = shared.paused_for_ms(check.hits, consult.mono_ms) {
        return Standing::Paused { wait_ms };
    }
    if !may_ask {
        return Standing::AT_LEISURE;
    }
    match shared.freshness(consult.mono_ms) {
        Freshness::Unreadable => return Standing::AT_LEISURE,
        Freshness::Cold | Freshness::Stale => return Standing::Asks(Why::Cold),
        Freshness::Fresh => {}
    }
    let pending = shared.pending().saturating_add(waiting);
    let wanted = pending.saturating_add(check.hits);
    let allowance = headroom(check, slack_permille, shared, consult.live).allowance(verdict.available);
    if is_together && wanted > allowance {
        return Standing::Asks(Why::Headroom);
    }
    if !is_together || !shared.is_view_old(consult.mono_ms) {
        return Standing::Memory { urgent_at: allowance / 2 };
    }
    // A view that is not quite new is good for a part of the allowance, or for one larger request, and told sooner.
    let part = allowance / OLD_VIEW_PART;
    if wanted > part && pending > 0 {
        return Standing::Asks(Why::Headroom);
    }
    Standing::Memory { urgent_at: (part / 2).max(1) }
}
