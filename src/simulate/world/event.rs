//! What can happen, and to whom.

use crate::engine::reach::Store;
use crate::global::exchange::{ImportProgress, LookupTurn};
use crate::global::import::ReadScope;
use crate::global::publish::{Publication, StatementOutcome};
use crate::global::row::{HeardRow, OwnRow};
use crate::regional::call::{Call, Reply};
use crate::regional::region::CallId;
use crate::simulate::faults::Fault;
use crate::simulate::process::{AskPlace, KeysHits};

/// To whom something happens: a place among the processes, and which process was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct To {
    pub(super) process: usize,
    pub(super) generation: u64,
}

/// A call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallSending {
    pub(super) id: CallId,
    /// When it was sent: its cells are those of that moment.
    pub(super) sent_us: u64,
    pub(super) is_replay: bool,
    /// Its reply goes nowhere.
    pub(super) is_repeat: bool,
}

/// Something that happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    Request {
        process: usize,
        asked: KeysHits,
    },
    CallArrives {
        from: To,
        store: Store,
        call: Box<Call>,
        sending: CallSending,
    },
    ReplyArrives {
        to: To,
        store: Store,
        id: CallId,
        reply: Box<Reply>,
        /// When the call was sent.
        sent_us: u64,
    },
    CallFails {
        to: To,
        store: Store,
        id: CallId,
    },
    Deadline {
        to: To,
        place: AskPlace,
    },
    Poll {
        to: To,
        store: Store,
    },
    Beat {
        process: usize,
    },
    Copy,
    Fault(Fault),
    /// A process looks at what others should know.
    Publish {
        to: To,
    },
    /// Rows arrive at the table.
    RowsArrive {
        from: To,
        sending: Box<Publication>,
    },
    /// Rows that have arrived are committed.
    RowsCommit {
        region: usize,
        rows: Vec<OwnRow>,
        dated_ms: u64,
    },
    /// Rows arrive once more, late.
    RowsRepeat {
        region: usize,
        rows: Vec<OwnRow>,
    },
    /// A process hears what became of its rows.
    RowsAnswered {
        to: To,
        sending: Box<Publication>,
        sent: StatementOutcome,
    },
    /// A process looks at what others have told.
    Import {
        to: To,
    },
    /// The table is read.
    ReadArrives {
        from: To,
        reading: ReadScope,
        hearing: Box<ImportProgress>,
    },
    /// What was read comes back, or nothing.
    ReadAnswered {
        to: To,
        reading: ReadScope,
        hearing: Box<ImportProgress>,
        rows: Option<(Vec<HeardRow>, u64)>,
    },
    /// Keys are looked up in the table, and what it has of them comes back.
    Seek {
        to: To,
        seeking: Box<LookupTurn>,
    },
    Leave {
        to: To,
    },
    /// The breakers' probes are answered at once, unless the origin is frozen.
    Probe {
        process: usize,
    },
}
