//! What can happen, and to whom.

use std::sync::Arc;

use crate::engine::reach::Store;
use crate::global::exchange::{ImportProgress, LookupTurn};
use crate::global::import::ReadScope;
use crate::global::publish::{Publication, StatementOutcome};
use crate::global::row::{HeardRow, OwnRow};
use crate::global::spoken_cells::CellsRead;
use crate::regional::call::{Call, Reply};
use crate::regional::node_map::{NodeId, NodeMap};
use crate::regional::region::CallId;
use crate::regional::voice::{VoiceCall, VoiceReply};
use crate::simulate::faults::Fault;
use crate::simulate::process::{AskPlace, KeysHits};

/// To which process something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct To {
    /// The place in [`World::processes`](crate::simulate::world::World::processes).
    pub(super) process: usize,
    /// [`Process::generation`](crate::simulate::process::Process::generation): what is meant for a former process is
    /// dropped.
    pub(super) generation: u64,
}

/// A call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallSending {
    /// Names it to whoever has sent it.
    pub(super) id: CallId,
    /// The server that it goes to.
    pub(super) node: NodeId,
    /// When it was sent: its cells are those of that moment.
    pub(super) sent_us: u64,
    /// It tells, and asks nothing.
    pub(super) is_replay: bool,
    /// Its reply goes nowhere.
    pub(super) is_repeat: bool,
    /// The store has taken its time for it.
    pub(super) is_served: bool,
}

/// A call to the other processes of a region, on its way.
#[derive(Clone, Debug)]
pub(super) struct Talking {
    /// What is told, and what the lease is wanted for.
    pub(super) call: VoiceCall,
    /// When it was made.
    pub(super) asked_us: u64,
    /// A turn of publishing goes on when it has ended.
    pub(super) is_turn: bool,
    /// Its time is up: nobody waits for the answer.
    pub(super) is_over: bool,
}

/// What a reading of the table that regions share has come to.
#[derive(Debug)]
pub(super) struct TableRead {
    /// What was told, in the order of cells.
    pub(super) rows: Vec<HeardRow>,
    /// The table's clock when it began.
    pub(super) server_ms: u64,
    /// The time was up before the last row.
    pub(super) is_cut_off: bool,
}

/// Something that happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    /// A request arrives at a process.
    Request {
        process: usize,
        asked: KeysHits,
    },
    /// A call arrives at a store. Planted mistakes happen to replays alone. A call that arrives once more (`is_repeat`)
    /// gets no reply.
    CallArrives {
        from: To,
        store: Store,
        call: Box<Call>,
        sending: CallSending,
    },
    /// The reply to a call comes back.
    ReplyArrives {
        to: To,
        store: Store,
        reply: Box<Reply>,
        sending: CallSending,
    },
    /// The time of a call is up, whether it was answered or not.
    CallTimesOut {
        to: To,
        store: Store,
        sending: CallSending,
    },
    /// The connection of a call is closed: it has no answer, if it had none before.
    CallFails {
        to: To,
        store: Store,
        id: CallId,
    },
    /// The time of a waiting request is up.
    Deadline {
        to: To,
        place: AskPlace,
    },
    /// A process's side of a store does what is due.
    Poll {
        to: To,
        store: Store,
    },
    /// A process sends its heartbeats, and plans the next ones and its probes.
    Beat {
        process: usize,
    },
    /// A heartbeat had no answer in its time.
    BeatFails {
        to: To,
        store: Store,
        node: NodeId,
    },
    /// Copies of the origins are made, for failovers.
    Copy,
    Fault(Fault),
    /// A process collects what others should know.
    Publish {
        to: To,
    },
    /// Rows arrive at the table.
    RowsArrive {
        from: To,
        sending: Box<Publication>,
        sent_us: u64,
    },
    /// Rows that have arrived are committed, dated by the table's clock when their statement began.
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
    /// A process begins to read what others have told.
    Import {
        to: To,
    },
    /// The table is read.
    ReadArrives {
        from: To,
        reading: ReadScope,
        hearing: Box<ImportProgress>,
        sent_us: u64,
    },
    /// What was read comes back. `None`: there was no answer in time.
    ReadAnswered {
        to: To,
        reading: ReadScope,
        hearing: Box<ImportProgress>,
        read: Option<TableRead>,
    },
    /// Keys are looked up in the table, and what it has of them comes back.
    Seek {
        to: To,
        seeking: Box<LookupTurn>,
    },
    /// A process looks what it has to tell the others of its region for the sake of other regions.
    Voice {
        to: To,
    },
    /// Such a call arrives at the region's origin.
    VoiceArrives {
        from: To,
        talking: Talking,
    },
    /// Such a call has its answer, or its time is up.
    VoiceAnswered {
        to: To,
        talking: Talking,
        reply: Option<VoiceReply>,
    },
    /// The speaker reads cells at its origin, before it publishes.
    CellsArrive {
        from: To,
        reads: Vec<CellsRead>,
        sent_us: u64,
    },
    /// What it read comes back. `None`: there was no answer in time.
    CellsAnswered {
        to: To,
        reads: Vec<CellsRead>,
        replies: Option<Vec<Reply>>,
    },
    /// A process hears what is new in the feed.
    Feed {
        to: To,
    },
    /// A process that stops tells what is pending, or is replaced.
    Leave {
        to: To,
    },
    /// The probes that a process wants are made.
    Probe {
        process: usize,
    },
    /// A probe comes back, or its time is up.
    ProbeEnds {
        to: To,
        store: Store,
        node: NodeId,
        is_success: bool,
    },
    /// A heartbeat is served that waited for its server: nobody waits for the answer any more.
    BeatArrives {
        from: To,
        store: Store,
        node: NodeId,
    },
    /// A process asks who has which slot of its origin.
    ReadMap {
        to: To,
    },
    /// The answer to that comes back; `None`: nobody has answered.
    MapArrives {
        to: To,
        map: Option<Arc<NodeMap>>,
    },
}
