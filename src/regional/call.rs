//! What a process says to the origin, and what it hears back.
//!
//! One kind of call serves everything: a replay is a call that brings totals and asks nothing, a read brings nothing and
//! asks nothing, a check asks. The origin takes a call as a whole, in this order: it brings every cell up to what it is
//! told, then decides the asks one after the other, then says what it holds.
//!
//! # What the origin holds
//!
//! For every cell: `e` the epoch that was made with it, `f` the floor, `a` what was added since, `h` what all processes together
//! have told, `r` its refunds, `k` the most that a process has known, and a record of each process that has told anything:
//! `own` and `asked`, the highest totals of hits and of refunds that it has told. The cell's hits are `f + a`, or `h` if that
//! is more: floors that came in between two losses may each lack what the other knew; or `k` if that is more still. An
//! epoch is the origin's time in milliseconds times 4096 plus the call's nonce, so a later one is larger. Of the time from
//! 2030 on it is times 64 and the nonce cut off to as much: so it stays below 2^53 for centuries.
//!
//! A cell is made when there is something to keep in it, and ends when its time is over. Reading makes nothing. Sixteen
//! sub-cells of an exact window that follow each other are a block: they have one epoch, and are made, lost and ended
//! together. A call names the newest sub-cell of an exact window and those with news; the answer has all seventeen.
//!
//! # How a cell is brought up to date
//!
//! With `field` = the process's `own` there, or 0:
//! - Told no epoch (0), or the one it has: it adds `own - field`. That also heals a failover to an older copy. If the floor
//!   that it is told is then more than it holds, it lacks what processes had told that are gone: `k` becomes the floor,
//!   and beside it stand the refunds that are known. It is a bound, and nothing is ever added to it.
//! - Told an older epoch: the origin has lost the cell and made it anew. `f` becomes the highest floor it is told, and it
//!   adds `own - max(field, acked)`.
//! - Told a newer epoch: an older copy came back. The sum rises to the floor if it is below, then the same is added.
//!
//! Refunds likewise: on another epoch `r` rises to `refunds_floor`, and what is newly asked for, `asked - asked_field`
//! (there `asked - max(asked_field, asked_acked)`), is taken from the cell and then from the older ones of the part, never
//! more than is there. A process that is not seated does not know its field: the origin adds nothing for it, tells it the
//! field, and counts its `own` on top only while it judges.
//!
//! # How a bucket forgets processes
//!
//! A window's cells end, and the fields in them. A bucket that has been empty for some seconds is made anew, as if it had
//! been lost. One that is never empty has generations of fields: when a process comes that is new, and the generation has
//! lasted for about a window, its hash is set aside, and the next one begins with the level and another epoch. A process that has a
//! field in the one before takes it along with its next call; what is left there expires. A process that tells an epoch of
//! this bucket's generations knows that nothing is lost: it brings no floor, and adds `own - max(field, acked)`.
//!
//! # How an ask is decided
//!
//! `running` starts at `own` (seated) or the field (not seated) and grows with the asks of the call that were admitted. A
//! need wants `running + hits`, and `field` may already be there, because an earlier check arrived after its caller had
//! given up: only what goes above the field is new. A need fits if what counts now, and what is new, is within its limit.
//! What counts of a cell is what the origin holds, at least what the region's row, with what was charged since, leaves after
//! all refunds, and on top what other regions have.
//! All needs of an ask fit and are charged to the newest cell of their parts, or none is. Needs with a quota number are
//! over as a group, deny only if all quota groups are over, and are not charged when their own group is. Needs of one ask
//! on the same part add up. Hits of 0 ask whether anything is left to be had and charge nothing.
//!
//! Every count is below 2^53, because that is how far a script counts exactly.

use std::fmt;

use smallvec::SmallVec;

pub(crate) use crate::engine::table::cell::COUNT_MAX;
use crate::engine::table::cell::{CellState, CellUpdate};
use crate::engine::table::ledger::KeyUpdate;
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// Names a key at the origin, alike in every process of the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginKey(pub [u8; 20]);

impl fmt::Debug for OriginKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Names a process at the origin: random for each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u64);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One call to the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub process: ProcessId,
    /// Below 4096, random: sets apart two epochs made in the same millisecond.
    pub nonce: u16,
    /// Whether admitted asks are charged. Without, the call only says what would fit.
    pub charges: bool,
    /// The keys that the call is about.
    pub parts: Vec<CallKey>,
    /// What the origin is asked, after it has heard of the keys.
    pub asks: Vec<Ask>,
}

/// A key of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallKey {
    pub key: OriginKey,
    pub window_ms: u64,
    /// How its cells count against a limit.
    pub measure: Measure,
    /// The newest first, each sequence one below the one before it, but for an exact window, which leaves out sub-cells without
    /// news. A bucket has one, with sequence 0.
    pub cells: SmallVec<[CellUpdate; 2]>,
}

impl CallKey {
    /// A key as a call names it.
    pub fn new(key: OriginKey, terms: &Terms, update: KeyUpdate) -> CallKey {
        let Terms { limit, window_ms, algorithm, burst } = *terms;
        let measure = match algorithm {
            Algorithm::SlidingWindow => Measure::Sliding { left_ms: window_ms - update.now_ms % window_ms },
            Algorithm::FixedWindow => Measure::Sum,
            Algorithm::ExactWindow => Measure::Exact,
            Algorithm::Gcra => Measure::Gcra { limit, burst },
        };
        CallKey { key, window_ms, measure, cells: update.cells }
    }
}

/// How a part's cells count against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// All of them in full: one cell of a fixed window.
    Sum,
    /// The first in full, of the second `floor(count * left / window)`.
    Sliding { left_ms: u64 },
    /// A bucket that drains by the limit in a window, by the origin's clock. The limit of its needs is the burst. What goes
    /// above [`crate::engine::count::gcra::DEBT_TIMES`] times both is forgiven.
    Gcra { limit: u32, burst: u32 },
    /// All seventeen sub-cells of an exact window in full. The newest is told, and of the others those with news; all are
    /// answered.
    Exact,
}

/// A request's question: do all of these fit?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub needs: SmallVec<[Need; 2]>,
}

/// One limit of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Into the call's parts.
    pub part: usize,
    /// Of a bucket the burst. With what later needs of its request have in the count already, more than any rule has.
    pub limit: u64,
    pub hits: u64,
    /// The quota group it belongs to, `None` if it denies alone.
    pub quota: Option<u16>,
}

/// What the origin answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// For each part, for each of its cells; of an exact window for all that count.
    pub parts: Vec<SmallVec<[CellState; 2]>>,
    /// For each ask.
    pub verdicts: Vec<AskVerdict>,
}

/// What became of an ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskVerdict {
    /// All needs fit, or those that do not deny nothing.
    pub is_admitted: bool,
    /// The needs that did not fit, by their place in the ask.
    pub over: SmallVec<[u16; 2]>,
}
