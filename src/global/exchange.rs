//! A process's part in the exchange between regions: everything between the engine and the table, as one state machine.
//!
//! It is told what happens (time has passed, rows were sent, rows were heard) and says what to do (send these rows, read
//! that). It never waits and never reads a clock; the driver and the simulator do that.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::engine::Engine;
use crate::engine::abroad::Counts;
use crate::engine::counter::Counter;
use crate::engine::key::Key;
use crate::engine::share::{COUNT_MAX, Shared};
use crate::engine::table::{Entry, Slot, SlotRef, Table};
use crate::global::cadence::Cadence;
use crate::global::hidden::{Hidden, Kept};
use crate::global::import::{CellSum, Import, Reading};
use crate::global::names::{Named, Names};
use crate::global::publish::{CHUNK_ROWS, Sending};
use crate::global::row::{CellName, HeardRow, OwnRow};
use crate::regional::keying::Keying;
use crate::rules::Ruleset;
use crate::rules::policy::Algorithm;

/// How often rows are published, and how often they are imported.
pub const INTERVAL_US: u64 = 1_000_000;
/// How often everything is read, whatever has changed: it repairs what was missed.
const FULL_INTERVAL_US: u64 = 600_000_000;
/// How far back a reading goes before the last one, at least: a row may become visible some time after it was dated.
const OVERLAP_MS_MIN: u64 = 5_000;
/// Rows of one turn; what is left is for the next. While the store does not answer, one statement is enough to try it.
const TURN_ROWS: usize = 64 * CHUNK_ROWS;
/// How often a store is asked whether it answers when there is nothing to publish.
const PING_US: u64 = 10_000_000;
/// After so long without an import everything is read.
const BEHIND_US: u64 = 60_000_000;
/// A server's clock that goes back by more than this is another server's.
const CLOCK_BACK_MS: u64 = 1_000;
/// How long a row that the server refused is left alone.
const REFUSED_US: u64 = 10_000_000;
/// Ages that are remembered of one import.
const AGES_MAX: usize = 1_024;

/// The two clocks, as the regional layer has them.
pub use crate::regional::region::Now;

/// How a process takes part.
#[derive(Clone, Debug)]
pub struct ExchangeOptions {
    pub region: Box<str>,
    /// All regions, this one too.
    pub regions: Vec<Box<str>>,
    pub keying: Keying,
    /// How long a statement may take.
    pub timeout_ms: u64,
    pub seed: u64,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct ExchangeCounts {
    pub published_rows: AtomicU64,
    pub refused_rows: AtomicU64,
    pub imported_rows: AtomicU64,
    pub created_keys: AtomicU64,
    pub rows_last_import: AtomicU64,
    /// Rows that were left out: with values that no region publishes, of rules that are not in force here, or because
    /// too many keys are here already that only other regions ask for.
    pub absurd_rows: AtomicU64,
    pub unknown_rows: AtomicU64,
    pub roomless_rows: AtomicU64,
}

#[derive(Debug)]
struct State {
    publishing: Cadence,
    importing: Cadence,
    /// The server's clock at the last reading.
    watermark_ms: Option<u64>,
    full_at_us: u64,
    /// Rows that the server refuses, until when they are left alone, and where they are from.
    refused: HashMap<CellName, (u64, SlotRef)>,
    hidden: Hidden,
    /// When each region last changed a row, by the server's clock.
    seen: BTreeMap<Box<str>, u64>,
    /// Keys that other regions count too, until when.
    contested: HashMap<SlotRef, u64>,
    published_us: Option<u64>,
    imported_us: Option<u64>,
    random: u64,
}

impl State {
    /// The server's clock, as far as it is known.
    fn server_ms(&self, now: Now) -> Option<u64> {
        let since_us = now.mono_us.saturating_sub(self.imported_us?);
        Some(self.watermark_ms?.saturating_add(since_us / 1000))
    }

    /// When everything is read the next time.
    fn plan_full(&mut self, now: Now) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.full_at_us = now.mono_us + FULL_INTERVAL_US + (self.random >> 33) % (FULL_INTERVAL_US / 5);
    }

    /// So much may have changed since the last import that reading it takes as long as reading everything.
    fn is_behind(&self, now: Now) -> bool {
        self.imported_us.is_some_and(|at_us| now.mono_us.saturating_sub(at_us) > BEHIND_US)
    }
}

/// How the exchange stands.
#[derive(Clone, Debug)]
pub struct ExchangeStatus {
    pub contested_keys: usize,
    pub seen: BTreeMap<Box<str>, u64>,
    /// The server's clock at the last import.
    pub server_ms: Option<u64>,
    pub is_publish_open: bool,
    pub is_import_open: bool,
    pub publish_opened: u64,
    pub import_opened: u64,
    /// Microseconds since the last success of each.
    pub published_ago_us: Option<u64>,
    pub imported_ago_us: Option<u64>,
    /// Keys that wait to be published.
    pub waiting: usize,
}

/// What is heard during one import.
#[derive(Debug)]
pub struct Hearing {
    import: Import,
    /// When the rows changed that told something new.
    news_ms: Vec<u64>,
    /// Everything is read, and what the table was told is not forgotten yet.
    must_forget: bool,
}

/// A process's part in the exchange.
#[derive(Debug)]
pub struct Exchange {
    engine: Arc<Engine>,
    options: ExchangeOptions,
    names: RwLock<Arc<Names>>,
    state: Mutex<State>,
    pub counts: ExchangeCounts,
}

impl Exchange {
    pub fn new(engine: Arc<Engine>, options: ExchangeOptions, now: Now) -> Exchange {
        let state = State {
            publishing: Cadence::new(INTERVAL_US, now.mono_us, options.seed),
            importing: Cadence::new(INTERVAL_US, now.mono_us, options.seed.rotate_left(32)),
            watermark_ms: None,
            full_at_us: 0,
            refused: HashMap::new(),
            hidden: Hidden::default(),
            seen: BTreeMap::new(),
            contested: HashMap::new(),
            published_us: None,
            imported_us: None,
            random: options.seed | 1,
        };
        let names = RwLock::new(Arc::new(Names::default()));
        Exchange { engine, options, names, state: Mutex::new(state), counts: ExchangeCounts::default() }
    }

    pub fn options(&self) -> &ExchangeOptions {
        &self.options
    }

    fn table(&self) -> &Table {
        self.engine.table()
    }

    /// Other rules are in force: everything is read again, for rows that meant nothing before.
    pub fn set_rules(&self, ruleset: &Ruleset, now: Now) {
        *self.names.write() = Arc::new(Names::new(ruleset));
        let mut state = self.state.lock();
        state.full_at_us = 0;
        state.importing.hasten(now.mono_us);
    }

    pub fn publish_at_us(&self) -> u64 {
        self.state.lock().publishing.next_us()
    }

    pub fn import_at_us(&self) -> u64 {
        self.state.lock().importing.next_us()
    }

    /// The rows that others should know of now. Every turn ends with [`Exchange::published`].
    pub fn collect(&self, now: Now) -> Sending {
        let names = self.names.read().clone();
        let mut state = self.state.lock();
        let is_over = |until_us: u64| now.mono_us >= until_us;
        let again: Vec<SlotRef> =
            state.refused.values().filter(|(until_us, _)| is_over(*until_us)).map(|(_, at)| *at).collect();
        state.refused.retain(|_, (until_us, _)| !is_over(*until_us));
        again.into_iter().for_each(|at| self.note(at));
        let mut rows = Vec::new();
        let rows_max = if state.publishing.is_open() { CHUNK_ROWS } else { TURN_ROWS };
        // What comes in meanwhile is for the next turn.
        for _ in 0..self.table().noted().len() {
            if rows.len() >= rows_max {
                break;
            }
            let Some(at) = self.table().noted().pop() else { break };
            self.collect_slot(at, &names, &state, now, &mut rows);
        }
        Sending::new(rows)
    }

    /// Nothing is to be published, and nobody has heard of the store for a while.
    pub fn wants_ping(&self, now: Now) -> bool {
        let state = self.state.lock();
        let is_silent = state.published_us.is_none_or(|at_us| now.mono_us.saturating_sub(at_us) >= PING_US);
        is_silent || state.publishing.is_open()
    }

    /// A turn without rows has ended; the store was asked whether it answers, or not.
    pub fn published_nothing(&self, does_answer: Option<bool>, now: Now) {
        let mut state = self.state.lock();
        match does_answer {
            Some(is_success) => {
                state.publishing.ended(is_success, now.mono_us);
                if is_success {
                    state.published_us = Some(now.mono_us);
                }
            }
            None => state.publishing.passed(now.mono_us),
        }
    }

    fn collect_slot(&self, at: SlotRef, names: &Names, state: &State, now: Now, rows: &mut Vec<(OwnRow, SlotRef)>) {
        let mut shard = self.table().lock(at.shard);
        let Some((slot, shared)) = shard.at(at) else { return };
        shared.is_noted = false;
        let terms = slot.terms();
        slot.counter.look(&terms, now.wall_ms);
        let key = slot.key();
        let Some(named) = names.of_space(key.space) else { return };
        for (sequence, counts) in shared.notable(&slot.counter, &terms, self.table().regions()).into_iter().flatten() {
            if state.server_ms(now).is_some_and(|server_ms| sequence > server_ms / key.window_ms + 1) {
                // This clock is ahead by more than a window: others would count it when that window comes.
                continue;
            }
            let cell = CellName {
                workspace: named.workspace.clone(),
                namespace: named.namespace.clone(),
                identifier: self.identifier(&key, named.is_sensitive || shared.is_sensitive),
                duration_ms: key.window_ms,
                sequence,
            };
            if !state.refused.contains_key(&cell) {
                let hits = counts.hits.min(COUNT_MAX);
                let counts = Counts { hits, refunds: counts.refunds.min(hits) };
                rows.push((OwnRow { cell, counts }, at));
            }
        }
    }

    /// What the table knows a key's identifier by.
    fn identifier(&self, key: &Key<'_>, is_sensitive: bool) -> Box<[u8]> {
        if is_sensitive { self.options.keying.origin_key(key, true).0.into() } else { key.identifier.into() }
    }

    /// A turn has ended: what the server has is not sent again, what it has not is.
    pub fn published(&self, sending: &Sending, now: Now) {
        for at in &sending.done {
            let row = sending.row(*at);
            for at in sending.slots(*at) {
                let mut shard = self.table().lock(at.shard);
                if let Some((slot, shared)) = shard.at(*at) {
                    let current = slot.counter.sequence();
                    shared.abroad_mut(current).published(row.cell.sequence, current, row.counts);
                }
            }
        }
        let mut state = self.state.lock();
        for at in &sending.refused {
            let until_us = now.mono_us + REFUSED_US;
            for slot in sending.slots(*at) {
                state.refused.insert(sending.row(*at).cell.clone(), (until_us, *slot));
            }
        }
        for at in &sending.failed {
            sending.slots(*at).iter().for_each(|at| self.note(*at));
        }
        self.counts.published_rows.fetch_add(sending.done.len() as u64, Ordering::Relaxed);
        self.counts.refused_rows.fetch_add(sending.refused.len() as u64, Ordering::Relaxed);
        state.publishing.ended(sending.failed.is_empty(), now.mono_us);
        if !sending.done.is_empty() {
            state.published_us = Some(now.mono_us);
        }
    }

    /// Visits every key, shard by shard, each locked only for a moment.
    fn for_all(&self, visit: impl Fn(u32, u32, &mut Slot, &mut Shared)) {
        for number in 0..self.table().shards() {
            let mut shard = self.table().lock(number);
            for at in Table::slots_of(&shard) {
                if let (slot, Some(shared)) = shard.both(at) {
                    visit(number, at, slot, shared);
                }
            }
        }
    }

    fn note(&self, at: SlotRef) {
        let mut shard = self.table().lock(at.shard);
        if let Some((slot, shared)) = shard.at(at) {
            self.table().note(at.shard, at.slot, slot, shared);
        }
    }

    /// The table may have lost rows: at the next import everything is read, and told again as far as it is not there.
    pub fn doubt(&self) {
        self.state.lock().full_at_us = 0;
    }

    /// What to read now. Every turn ends with [`Exchange::imported`] or [`Exchange::not_imported`].
    pub fn reading(&self, now: Now) -> (Reading, Hearing) {
        let mut state = self.state.lock();
        let reading = match state.watermark_ms {
            Some(ms) if now.mono_us < state.full_at_us && !state.is_behind(now) => {
                Reading::Since { ms: ms.saturating_sub(self.overlap_ms()) }
            }
            _ => Reading::All,
        };
        if reading == Reading::All {
            // Before it is read: who asks for another one meanwhile gets it.
            state.plan_full(now);
        }
        let import = Import::new(&self.options.region);
        (reading, Hearing { import, news_ms: Vec::new(), must_forget: reading == Reading::All })
    }

    fn overlap_ms(&self) -> u64 {
        OVERLAP_MS_MIN.max(2 * self.options.timeout_ms + 1000)
    }

    /// What the table holds is about to be heard: nothing that it was told is taken for granted any more.
    fn forget_told(&self, hearing: &mut Hearing) {
        if std::mem::take(&mut hearing.must_forget) {
            self.for_all(|_, _, _, shared| {
                if let Some(abroad) = shared.known_abroad() {
                    abroad.forget_told();
                }
            });
        }
    }

    /// Takes a row over.
    pub fn hear(&self, hearing: &mut Hearing, row: HeardRow, now: Now) {
        self.forget_told(hearing);
        if let Some(sum) = hearing.import.hear(row) {
            self.take(hearing, &sum, now);
        }
    }

    /// All rows were heard; the server's clock was at this when they were read.
    pub fn imported(&self, mut hearing: Hearing, reading: Reading, server_ms: u64, now: Now) -> Vec<u64> {
        self.forget_told(&mut hearing);
        if let Some(sum) = hearing.import.end() {
            self.take(&mut hearing, &sum, now);
        }
        self.counts.imported_rows.fetch_add(hearing.import.rows, Ordering::Relaxed);
        self.counts.rows_last_import.store(hearing.import.rows, Ordering::Relaxed);
        self.counts.absurd_rows.fetch_add(hearing.import.absurd, Ordering::Relaxed);
        if reading == Reading::All {
            // What the table turned out not to hold is told again.
            self.for_all(|number, at, slot, shared| self.table().note(number, at, slot, shared));
        }
        let mut state = self.state.lock();
        for (region, updated_at_ms) in &hearing.import.seen {
            let seen = state.seen.entry(region.clone()).or_default();
            *seen = updated_at_ms.max(seen).to_owned();
        }
        if state.watermark_ms.is_some_and(|before| server_ms + CLOCK_BACK_MS < before) {
            // Another server answers: what it dated before our watermark was never read.
            state.full_at_us = 0;
        }
        state.hidden.expire(now.wall_ms);
        state.watermark_ms = Some(server_ms);
        state.contested.retain(|_, until_ms| *until_ms > now.wall_ms);
        state.imported_us = Some(now.mono_us);
        state.importing.ended(true, now.mono_us);
        hearing.news_ms.iter().map(|at_ms| server_ms.saturating_sub(*at_ms)).collect()
    }

    /// A reading has failed. What it heard is taken over all the same; the next one hears it again.
    pub fn not_imported(&self, reading: Reading, now: Now) {
        let mut state = self.state.lock();
        // Statements that others gave up on may be done late, and dated early: a full reading finds them.
        let again_us = now.mono_us + self.overlap_ms() * 1000;
        state.full_at_us = if reading == Reading::All { 0 } else { state.full_at_us.min(again_us) };
        state.importing.ended(false, now.mono_us);
    }

    fn take(&self, hearing: &mut Hearing, sum: &CellSum, now: Now) {
        let CellName { workspace, namespace, identifier, duration_ms, sequence } = &sum.cell;
        let current = now.wall_ms / duration_ms;
        if sequence.abs_diff(current) > 1 {
            // Over already, or of a clock that is far away.
            return;
        }
        let names = self.names.read().clone();
        let Some(named) = names.of_row(workspace, namespace).filter(|named| named.is_global(*duration_ms)) else {
            self.counts.unknown_rows.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let is_news = match named.is_sensitive {
            true => self.take_hidden(identifier, sum, now),
            false => self.take_key(named, identifier, sum, now),
        };
        if is_news && sum.updated_at_ms > 0 && hearing.news_ms.len() < AGES_MAX {
            hearing.news_ms.push(sum.updated_at_ms);
        }
    }

    /// Takes over what a row says about a key whose identifier it names. True if it was news.
    fn take_key(&self, named: &Named, identifier: &[u8], sum: &CellSum, now: Now) -> bool {
        let table = self.table();
        let terms = named.terms(sum.cell.duration_ms);
        let mut is_found = false;
        let mut is_news = false;
        // A rule may have changed how it counts: the cells are the same.
        for algorithm in [Algorithm::SlidingWindow, Algorithm::FixedWindow] {
            let key = Key { space: named.space, window_ms: terms.window_ms, algorithm, identifier };
            let hash = table.hash(&key);
            let number = table.shard_of(hash);
            // Looked up before, so that the lock is free again.
            let found = table.lock(number).find_ref(&key, hash, number);
            if let Some(at) = found {
                is_found = true;
                is_news |= self.take_at(at, sum, now);
            }
        }
        if is_found {
            return is_news;
        }
        if !table.count_unasked() {
            self.counts.roomless_rows.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let key = Key::new(named.space, &terms, identifier);
        let hash = table.hash(&key);
        let number = table.shard_of(hash);
        let at = {
            let mut shard = table.lock(number);
            // A request may have made it in between.
            match shard.find_ref(&key, hash, number) {
                Some(at) => {
                    table.count_asked();
                    at
                }
                None => {
                    let counter = Counter::new(&terms, now.wall_ms);
                    let entry = Entry { key, hash, terms, counter, is_sensitive: false, is_global: true };
                    let slot = table.insert(&mut shard, &[], entry, now.wall_ms);
                    let (slot_at, Some(shared)) = shard.both(slot) else { return false };
                    shared.abroad_mut(slot_at.counter.sequence()).is_unasked = true;
                    self.counts.created_keys.fetch_add(1, Ordering::Relaxed);
                    SlotRef { shard: number, slot, generation: shared.generation }
                }
            }
        };
        self.take_at(at, sum, now)
    }

    fn take_at(&self, at: SlotRef, sum: &CellSum, now: Now) -> bool {
        let is_news = {
            let mut shard = self.table().lock(at.shard);
            let Some((slot, shared)) = shard.at(at) else { return false };
            let terms = slot.terms();
            slot.counter.look(&terms, now.wall_ms);
            let current = slot.counter.sequence();
            let abroad = shared.abroad_mut(current);
            let is_news = abroad.import(sum.cell.sequence, current, sum.others, sum.row);
            shared.reconsider_pause(&mut slot.counter, &terms, now.wall_ms);
            // What others do not know may matter to them now.
            self.table().note(at.shard, at.slot, slot, shared);
            is_news
        };
        if sum.others.hits > 0 {
            self.state.lock().contested.insert(at, sum.cell.expires_at_ms());
        }
        is_news
    }

    fn take_hidden(&self, digest: &[u8], sum: &CellSum, now: Now) -> bool {
        let at = self.state.lock().hidden.slot(digest);
        if let Some(at) = at {
            let is_it = |slot: &Slot| *self.identifier(&slot.key(), true) == *digest;
            let is_there = self.table().lock(at.shard).at(at).is_some_and(|(slot, _)| is_it(slot));
            if is_there {
                return self.take_at(at, sum, now);
            }
            self.state.lock().hidden.gone(digest);
        }
        let kept = Kept {
            sequence: sum.cell.sequence,
            others: sum.others,
            row: sum.row,
            expires_at_ms: sum.cell.expires_at_ms(),
        };
        if !self.state.lock().hidden.keep(digest, kept, self.table().keys_max().div_ceil(4)) {
            self.counts.roomless_rows.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    /// Whether sensitive keys were made that have not been compared with what others told.
    pub fn has_hidden(&self) -> bool {
        !self.table().hidden().is_empty()
    }

    /// Compares sensitive keys that were made with what others told.
    pub fn reveal(&self, now: Now) {
        self.state.lock().hidden.tidy(|at| self.table().lock(at.shard).at(at).is_some());
        while let Some(at) = self.table().hidden().pop() {
            let digest = {
                let mut shard = self.table().lock(at.shard);
                let Some((slot, _)) = shard.at(at) else { continue };
                self.identifier(&slot.key(), true)
            };
            let kept = self.state.lock().hidden.made(digest, at);
            for Kept { sequence, others, row, .. } in kept {
                let mut shard = self.table().lock(at.shard);
                let Some((slot, shared)) = shard.at(at) else { break };
                let terms = slot.terms();
                slot.counter.look(&terms, now.wall_ms);
                let current = slot.counter.sequence();
                shared.abroad_mut(current).import(sequence, current, others, row);
                shared.reconsider_pause(&mut slot.counter, &terms, now.wall_ms);
                self.table().note(at.shard, at.slot, slot, shared);
            }
        }
    }

    pub fn status(&self, now: Now) -> ExchangeStatus {
        let state = self.state.lock();
        let ago = |at_us: Option<u64>| at_us.map(|at_us| now.mono_us.saturating_sub(at_us));
        ExchangeStatus {
            contested_keys: state.contested.values().filter(|until_ms| **until_ms > now.wall_ms).count(),
            seen: state.seen.clone(),
            server_ms: state.watermark_ms,
            is_publish_open: state.publishing.is_open(),
            is_import_open: state.importing.is_open(),
            publish_opened: state.publishing.opened,
            import_opened: state.importing.opened,
            published_ago_us: ago(state.published_us),
            imported_ago_us: ago(state.imported_us),
            waiting: self.table().noted().len(),
        }
    }
}
