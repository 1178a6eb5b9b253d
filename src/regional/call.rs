//! What a process says to the origin, and what it hears back.
//!
//! One kind of call serves everything. A replay brings totals and asks nothing, a read brings nothing and asks nothing,
//! a check asks. The origin serves a call as a whole, in this order: it brings every cell up to date, decides the asks
//! one after the other, and answers what it holds.
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
//! - Told a newer epoch: an older copy came back. The sum rises to the floor if it is below, and then it adds the same
//!   `own - max(field, acked)`.
//!
//! Refunds likewise: on another epoch `r` rises to `refunds_floor`, and what is newly asked for, `asked - asked_field`
//! (there `asked - max(asked_field, asked_acked)`), is taken from the cell and then from the older ones of the part, never
//! more than is there. A process that is not seated does not know its field: the origin adds nothing for it, tells it the
//! field, and counts its `own` on top only while it judges.
//!
//! # How a bucket forgets processes
//!
//! A window's cells end, and their fields with them. A bucket that has been empty for some seconds is made anew, as if
//! it had been lost. In a bucket that is never empty, fields have generations. When a new process comes and the
//! generation has lasted for about a window, the origin sets the hash aside and begins the next one, with the same
//! level and another epoch. A process with a field in the generation before takes it along with its next call; fields
//! that nobody takes along expire. A process that tells an epoch of this bucket's earlier generations knows that
//! nothing is lost: the origin ignores its floor, and adds `own - max(field, acked)`. Of what a process newly tells, a
//! bucket takes only what has not drained at the process.
//!
//! # How an ask is decided
//!
//! `running` starts at `own` (seated) or the field (not seated) and grows with each ask of the call that is admitted. A
//! need wants `running + hits`. Part of that may be in `field` already, because an earlier check arrived after its
//! caller had given up: only what goes above the field is new. A need fits if what counts now plus what is new is
//! within its limit. What counts of a cell is what the origin holds, or, if that is more, what the region's row and the
//! hits charged since leave after all refunds. What other regions have comes on top.
//!
//! An ask is admitted or denied as a whole. Only an admitted one is charged, to the newest cell of each part. A need
//! without a quota number denies the ask if it does not fit. Needs with one form groups: a group is over if one of its
//! needs does not fit. It is then not charged, and quota groups deny the ask only if all of them are over. Needs of one
//! ask on the same part add up. Hits of 0 ask whether the count is within the limit, and charge nothing.
//!
//! A process may ask for hits to be charged *ahead*: when its ask is admitted, its field goes above `running` by so many, as far
//! as they fit within the limit of the need. Its next hits use them up.
//!
//! Every count stays below 2^53: that is how far a script counts exactly.

use std::fmt;

use smallvec::SmallVec;

pub(crate) use crate::engine::table::cell::COUNT_MAX;
use crate::engine::table::cell::{CellState, CellUpdate};
use crate::engine::table::ledger::KeyUpdate;
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// Names a key at the origin, in the same way in every process of the region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginKey(pub [u8; 20]);

impl OriginKey {
    /// Keys of a tag share a slot of a Cluster, and go in one message.
    pub fn tag(&self) -> u8 {
        self.0[0]
    }
}

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
    /// Whose fields the call raises.
    pub process: ProcessId,
    /// Below 4096, random: sets apart two epochs made in the same millisecond.
    pub nonce: u16,
    /// Whether admitted asks are charged. If not, the call only says what would fit.
    pub charges: bool,
    /// The keys that the call is about.
    pub parts: Vec<CallKey>,
    /// The questions, decided in order after all parts are up to date. Empty for a replay.
    pub asks: Vec<Ask>,
}

/// One key of a call: a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallKey {
    /// Names the key at the origin; a call has each key once.
    pub key: OriginKey,
    /// The length of the window. Of a bucket: the time in which its limit drains.
    pub window_ms: u64,
    /// How its cells count against a limit.
    pub measure: Measure,
    /// The newest first, each sequence one below the one before it, but for an exact window, which leaves out sub-cells without
    /// news. A bucket has one, with sequence 0.
    pub cells: SmallVec<[CellUpdate; 2]>,
}

impl CallKey {
    /// The part of a call about a key with these terms.
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
    /// The first cell counts in full, the second as `floor(count * left / window)`. `left_ms` is what is left of the
    /// window now.
    Sliding { left_ms: u64 },
    /// A bucket that drains `limit` hits in a window, by the origin's clock. Its needs have `burst` as their limit.
    /// Hits above [`crate::engine::count::gcra::DEBT_TIMES`] times the sum of both are forgiven.
    Gcra { limit: u32, burst: u32 },
    /// All seventeen sub-cells of an exact window in full. The newest is told, and of the others those with news; all are
    /// answered.
    Exact,
}

/// A request's question: do all of these fit?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Admitted or denied together. Empty if the request only reads.
    pub needs: SmallVec<[Need; 2]>,
}

/// One limit of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Index into the call's parts.
    pub part: usize,
    /// The most that may count; of a bucket the burst. What later checks of the request have in the count already comes
    /// on top, so it may be more than any rule has.
    pub limit: u64,
    /// What the request costs here. 0 asks whether the count is within the limit, and charges nothing.
    pub hits: u64,
    /// The quota group it belongs to, `None` if it denies alone.
    pub quota: Option<u16>,
    /// As many hits more, or as many of them as fit, are charged to the process's field if the ask is admitted: it need not
    /// ask about the next ones. Not to buckets.
    pub ahead: u16,
}

/// What the origin answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// For each part, for each of its cells; of an exact window for all that count.
    pub parts: Vec<SmallVec<[CellState; 2]>>,
    /// One for each ask, in their order.
    pub verdicts: Vec<AskVerdict>,
}

/// What became of an ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskVerdict {
    /// Every need fits, apart from those of quota groups that do not deny.
    pub is_admitted: bool,
    /// The needs that did not fit, by their place in the ask.
    pub over: SmallVec<[u16; 2]>,
}
