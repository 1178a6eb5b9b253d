//! A process's part in the exchange between regions: everything between the engine and the table, as one state machine.
//!
//! It is told what happens (time has passed, rows were sent, rows were heard) and says what to do (send these rows, read
//! that). It never waits and never reads a clock; the driver and the simulator do that.

mod followed;
mod following;
mod importing;
mod lookup_turn;
mod passes;
mod publishing;
mod region_voice;
mod speaking;
#[cfg(test)]
mod tests;

pub(crate) use crate::global::exchange::importing::ImportProgress;
pub(crate) use crate::global::exchange::lookup_turn::{LookupTurn, TURN_STATEMENTS};

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};

use crate::clock::Now;
use crate::engine::Engine;
use crate::engine::key::Key;
use crate::engine::table::SlotRef;
use crate::engine::table::foreign_ledger::ForeignLedger;
use crate::global::cadence::Cadence;
use crate::global::digested_keys::DigestedKeys;
use crate::global::exchange::followed::Followed;
use crate::global::exchange::passes::Passes;
use crate::global::exchange::region_voice::RegionVoice;
use crate::global::names::Names;
use crate::global::row::{CellName, RuleName};
use crate::global::voice::Role;
use crate::regional::call::ProcessId;
use crate::regional::key_names::KeyNames;
use crate::rules::Ruleset;
use crate::rules::limit::Space;

/// How often rows are published, and how often they are imported.
pub(crate) const INTERVAL_US: u64 = 1_000_000;

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct ExchangeOptions {
    /// This region's name.
    pub region: Box<str>,
    /// All regions, this one too.
    pub regions: Vec<Box<str>>,
    /// Names sensitive keys in rows by keyed digests: every process of every region needs the same secret.
    pub key_names: KeyNames,
    /// How long a statement may take.
    pub timeout_ms: u64,
    /// Seeds choices that should differ between processes.
    pub seed: u64,
    /// This process's name at the region's Redis, over which processes agree on who speaks for them; `None` without one.
    pub process: Option<ProcessId>,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct ExchangeCounts {
    /// Rows that the server took, each time that one of them was sent.
    pub published_rows: AtomicU64,
    /// Rows that the server did not take.
    pub refused_rows: AtomicU64,
    /// Rows that were read, of all regions, this one and absurd ones included. Readings that failed do not count.
    pub imported_rows: AtomicU64,
    /// Readings of everything, from the start of the table. What goes on where one ended early does not count.
    pub full_reads: AtomicU64,
    /// Likewise of rules that became known.
    pub rule_reads: AtomicU64,
    /// Keys that were made because other regions had counted them.
    pub created_keys: AtomicU64,
    /// Rows of the last reading that succeeded or came in part; lookups do not count.
    pub rows_last_import: AtomicU64,
    /// Rows that were left out because no region publishes such values.
    pub absurd_rows: AtomicU64,
    /// Rows that were left out because no rule in force here counts them in all regions.
    pub unknown_rows: AtomicU64,
    /// Rows that were left out because too many keys are here already that only other regions ask for.
    pub roomless_rows: AtomicU64,
    /// Keys that were looked up, because something had been left out.
    pub sought_keys: AtomicU64,
    /// Cells that this process has mentioned to the speaker.
    pub mentions_made: AtomicU64,
    /// Cells that others have mentioned to this process.
    pub mentions_heard: AtomicU64,
    /// Entries that this process has appended to the feed, and their bytes.
    pub handed_on: [AtomicU64; 2],
    /// Entries of the feed that it has heard, and their bytes.
    pub heard: [AtomicU64; 2],
    /// How often it lacked something of the feed, so that it read the table itself.
    pub gaps: AtomicU64,
    /// Mentions and entries that made no sense.
    pub malformed: AtomicU64,
}

#[derive(Debug)]
struct ExchangeState {
    publishing: Cadence,
    importing: Cadence,
    /// How far what changes has been followed.
    followed: Followed,
    /// What is read beside that.
    passes: Passes,
    /// Rules were in force.
    has_rules: bool,
    /// Rows that the server refuses: until when, in monotonic time, they are left alone, and which slot they are from, if
    /// this process counts them.
    refused: HashMap<CellName, (u64, Option<SlotRef>)>,
    digested: DigestedKeys,
    /// When each region last changed a row, by the server's clock.
    seen: BTreeMap<Box<str>, u64>,
    /// Keys that other regions count too, until when by the wall clock.
    contested: HashMap<SlotRef, u64>,
    /// When the server last took rows, or answered a ping.
    published_us: Option<u64>,
    /// What the processes of the region share; `None` without a region's Redis.
    voice: Option<Box<RegionVoice>>,
}

impl ExchangeState {
    fn role(&self) -> Role {
        self.voice.as_ref().map_or(Role::Alone, |voice| voice.lease.role())
    }
}

/// How the exchange stands.
#[derive(Clone, Debug)]
pub struct ExchangeStatus {
    /// Keys that other regions count too.
    pub contested_keys: usize,
    /// When each region last changed a row, by the server's clock.
    pub seen: BTreeMap<Box<str>, u64>,
    /// The server's clock at the last import.
    pub server_ms: Option<u64>,
    /// Publishing has been given up for now.
    pub is_publish_open: bool,
    /// Importing has been given up for now.
    pub is_import_open: bool,
    /// How often publishing was given up.
    pub publish_opened: u64,
    /// How often importing was given up.
    pub import_opened: u64,
    /// Time since the server last took rows or answered a ping; `None` if it never has.
    pub published_ago_us: Option<u64>,
    /// Time since a reading last succeeded or came in part; `None` if none has.
    pub imported_ago_us: Option<u64>,
    /// Keys that wait to be published; some may be gone.
    pub waiting: usize,
    /// What this process does for its region.
    pub role: Role,
    /// Who speaks for the region, as far as is known; `None` too if the region has no Redis.
    pub speaker: Option<ProcessId>,
    /// Time since this process last heard the feed, or appended to it.
    pub heard_ago_us: Option<u64>,
    /// Cells that the process publishes for its region.
    pub spoken_cells: usize,
}

/// A process's part in the exchange.
#[derive(Debug)]
pub struct Exchange {
    engine: Arc<Engine>,
    options: ExchangeOptions,
    names: RwLock<Arc<Names>>,
    /// Locked before any shard of the table: see `Table::lock` for the order.
    state: Mutex<ExchangeState>,
    /// Figures for metrics; counting needs no lock.
    pub counts: ExchangeCounts,
}

impl Exchange {
    pub fn new(engine: Arc<Engine>, options: ExchangeOptions, now: Now) -> Exchange {
        let state = ExchangeState {
            publishing: Cadence::new(INTERVAL_US, now.mono_us, options.seed),
            importing: Cadence::new(INTERVAL_US, now.mono_us, options.seed.rotate_left(32)),
            followed: Followed::new(options.timeout_ms),
            passes: Passes::new(options.seed),
            has_rules: false,
            refused: HashMap::new(),
            digested: DigestedKeys::default(),
            seen: BTreeMap::new(),
            contested: HashMap::new(),
            published_us: None,
            voice: options.process.map(|process| Box::new(RegionVoice::new(process, now, options.seed))),
        };
        // Until everything is read, any key may lack counts.
        engine.table().foreign_ledger().expect_reading(|_| false);
        let names = RwLock::new(Arc::new(Names::default()));
        Exchange { engine, options, names, state: Mutex::new(state), counts: ExchangeCounts::default() }
    }

    pub fn options(&self) -> &ExchangeOptions {
        &self.options
    }

    fn ledger(&self) -> ForeignLedger<'_> {
        self.engine.table().foreign_ledger()
    }

    /// Takes over the rules in force. If rows mean something now that meant nothing before, they are read soon, at once if
    /// there were no rules. Otherwise nothing is read.
    pub fn set_rules(&self, ruleset: &Ruleset, now: Now) {
        let names = Arc::new(Names::new(ruleset));
        let before = std::mem::replace(&mut *self.names.write(), names.clone());
        let (new, spaces): (Vec<RuleName>, HashSet<Space>) =
            names.unread_after(&before).map(|rule| (rule.name.clone(), rule.space)).unzip();
        if !new.is_empty() {
            self.ledger().expect_reading(|key| spaces.contains(&key.space));
        }
        let mut state = self.state.lock();
        if !new.is_empty() && !std::mem::replace(&mut state.has_rules, true) {
            state.passes.read_anew();
            state.importing.hasten(now.mono_us);
            return;
        }
        let was_any_unread = state.passes.is_any_unread();
        state.passes.rules_changed(new, |name| names.has(name), now.mono_us);
        let is_all_read = was_any_unread && !state.passes.is_any_unread();
        drop(state);
        if is_all_read {
            // Rules that were still to be read are gone again.
            self.ledger().end_reading(now.wall_ms);
        }
    }

    /// What this process does for its region.
    pub fn role(&self) -> Role {
        self.state.lock().role()
    }

    /// When the next turn of publishing is due.
    pub fn publish_at_us(&self) -> u64 {
        self.state.lock().publishing.next_us()
    }

    /// When the next turn of importing is due.
    pub fn import_at_us(&self) -> u64 {
        self.state.lock().importing.next_us()
    }

    fn regions(&self) -> u32 {
        u32::try_from(self.options.regions.len()).unwrap_or(u32::MAX)
    }

    /// A key's identifier as rows have it: a keyed digest if the key is sensitive.
    fn identifier(&self, key: &Key<'_>, is_sensitive: bool) -> Box<[u8]> {
        if is_sensitive { self.options.key_names.origin_key(key, true).0.into() } else { key.identifier.into() }
    }

    pub fn status(&self, now: Now) -> ExchangeStatus {
        let state = self.state.lock();
        let ago = |at_us: Option<u64>| at_us.map(|at_us| now.mono_us.saturating_sub(at_us));
        let voice = state.voice.as_ref();
        let is_speaker_stuck = state.role() == Role::Following && voice.is_some_and(|voice| voice.is_speaker_stuck);
        ExchangeStatus {
            contested_keys: state.contested.values().filter(|until_ms| **until_ms > now.wall_ms).count(),
            seen: state.seen.clone(),
            server_ms: state.followed.clock_ms,
            is_publish_open: state.publishing.is_open() || is_speaker_stuck,
            is_import_open: state.importing.is_open(),
            publish_opened: state.publishing.opened,
            import_opened: state.importing.opened,
            published_ago_us: ago(state.published_us),
            imported_ago_us: ago(state.followed.at_us),
            waiting: self.ledger().noted(),
            role: state.role(),
            speaker: voice.and_then(|voice| voice.lease.speaker()),
            heard_ago_us: ago(voice.and_then(|voice| voice.lease.heard_us())),
            spoken_cells: voice.map_or(0, |voice| voice.spoken.len()),
        }
    }
}
