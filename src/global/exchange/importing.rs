//! The way in: what to read, and which key learns what from it.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::engine::key::Key;
use crate::engine::table::SlotRef;
use crate::engine::table::foreign_ledger::{ForeignSum, ImportResult, KeyAt};
use crate::global::digested_keys::WaitingRow;
use crate::global::exchange::{Exchange, ExchangeState};
use crate::global::feed::Covered;
use crate::global::import::{CellSum, Import, ReadScope};
use crate::global::names::NamedRule;
use crate::global::row::{CellName, HeardRow};
use crate::global::voice::Role;

/// How far back a reading goes before the last one, at least: a row may become visible some time after it was dated.
const OVERLAP_MS_MIN: u64 = 5_000;
/// A server's clock that goes back by more than this is another server's.
const CLOCK_BACK_MS: u64 = 1_000;
/// How many ages of news one import remembers at most.
const AGES_MAX: usize = 1_024;

/// What one import has heard so far.
#[derive(Debug)]
pub struct ImportProgress {
    /// Sums the rows cell by cell.
    pub(super) import: Import,
    /// When those rows changed, by the server's clock, that told something new.
    news_ms: Vec<u64>,
    /// Everything is read from the start, and what the table was told is not forgotten yet.
    must_forget: bool,
    /// What is to be handed on to the other processes of the region; `None` unless this one speaks for them.
    pub(super) handing: Option<Handing>,
}

/// What a reading of the speaker hands on.
#[derive(Debug)]
pub(super) struct Handing {
    /// Everything that has changed since then, by the server's clock, is handed on at its end.
    pub from_ms: u64,
    /// Of a reading of everything, only what changed since then, and what is news here.
    pub only_since_ms: Option<u64>,
    /// What was heard so far.
    pub sums: Vec<CellSum>,
}

impl ImportProgress {
    pub(super) fn new(region: &str, must_forget: bool) -> ImportProgress {
        ImportProgress { import: Import::new(region), news_ms: Vec::new(), must_forget, handing: None }
    }

    /// How old each piece of news was at a time by the server's clock.
    pub(super) fn ages_ms(&self, server_ms: u64) -> Vec<u64> {
        self.news_ms.iter().map(|at_ms| server_ms.saturating_sub(*at_ms)).collect()
    }

    /// How many rows were heard.
    pub fn rows(&self) -> u64 {
        self.import.rows
    }
}

impl ExchangeState {
    /// Takes note of when regions changed rows, and returns those that were not known to have changed so lately.
    pub(super) fn see(&mut self, seen: impl IntoIterator<Item = (Box<str>, u64)>) -> Vec<(Box<str>, u64)> {
        let mut newer = Vec::new();
        for (region, at_ms) in seen {
            let known_ms = self.seen.entry(region.clone()).or_default();
            if at_ms > *known_ms {
                *known_ms = at_ms;
                newer.push((region, at_ms));
            }
        }
        newer
    }

    /// Everything that has changed until then, by the server's clock, was heard, from the server or from the speaker.
    /// `is_watermark`: nothing before is missing either.
    pub(super) fn heard_until(&mut self, server_ms: u64, is_watermark: bool, now: Now) {
        if self.clock_ms.is_some_and(|before| server_ms + CLOCK_BACK_MS < before) {
            // Another server answers: what it dated before our watermark was never read.
            self.read_anew();
        }
        self.digested.expire(now.wall_ms);
        self.clock_ms = Some(server_ms);
        if is_watermark {
            self.watermark_ms = Some(server_ms);
            if let Some(voice) = &mut self.voice {
                voice.lacks_at_us = None;
            }
        }
        self.contested.retain(|_, until_ms| *until_ms > now.wall_ms);
        self.imported_us = Some(now.mono_us);
    }
}

impl Exchange {
    /// Has everything read at the next import, and told again as far as it is not there: the table may have lost rows.
    pub fn doubt(&self) {
        self.state.lock().read_anew();
    }

    /// What to read now. Every turn ends with [`Exchange::imported`], [`Exchange::partly_imported`] or
    /// [`Exchange::not_imported`].
    pub fn reading(&self, now: Now) -> (ReadScope, ImportProgress) {
        let mut state = self.state.lock();
        let since_ms = state.watermark_ms.unwrap_or(0).saturating_sub(self.overlap_ms());
        let reading = match state.next_part(now) {
            Some(pass) => ReadScope::All { from: pass.from.clone() },
            None => ReadScope::Since { ms: since_ms },
        };
        let is_start = reading == ReadScope::All { from: None };
        if is_start {
            self.ledger().begin_reading();
        }
        let mut hearing = ImportProgress::new(&self.options.region, is_start);
        // Before its first reading the speaker does not know what others have heard.
        if let Some(from_ms) = state.watermark_ms.filter(|_| state.role() == Role::Speaking) {
            let only_since_ms = matches!(reading, ReadScope::All { .. }).then_some(since_ms);
            hearing.handing = Some(Handing { from_ms, only_since_ms, sums: Vec::new() });
        }
        (reading, hearing)
    }

    /// Whether the turn that is due reads anything. If not, it ends with [`Exchange::passed_import`]: a process that follows
    /// the speaker hears of changes from that, and reads the table only for what it lacks.
    pub fn wants_reading(&self, now: Now) -> bool {
        let state = self.state.lock();
        state.role() != Role::Following || state.lacks_anything(now)
    }

    /// Ends a turn of importing that had nothing to read.
    pub fn passed_import(&self, now: Now) {
        self.state.lock().importing.passed(now.mono_us);
    }

    fn overlap_ms(&self) -> u64 {
        OVERLAP_MS_MIN.max(2 * self.options.timeout_ms + 1000)
    }

    /// Forgets what the table was told, before everything that it holds is heard: nothing is taken for granted any
    /// more.
    pub fn forget_told(&self, hearing: &mut ImportProgress) {
        if std::mem::take(&mut hearing.must_forget) {
            self.ledger().forget_told();
            if let Some(voice) = &mut self.state.lock().voice {
                voice.spoken.forget_told();
            }
        }
    }

    /// Takes a row over.
    pub fn hear(&self, hearing: &mut ImportProgress, row: HeardRow, now: Now) {
        self.forget_told(hearing);
        if let Some(sum) = hearing.import.hear(row) {
            self.take(hearing, &sum, now);
        }
    }

    /// Ends a reading of which all rows were heard. `server_ms` is the server's clock from just before it. Returns how
    /// old each piece of news was, in milliseconds.
    pub fn imported(&self, hearing: ImportProgress, reading: &ReadScope, server_ms: u64, now: Now) -> Vec<u64> {
        let ages_ms = self.heard(hearing, reading, server_ms, now);
        // If the pass was given up meanwhile, another one follows, and this is not its end.
        let is_whole = matches!(reading, ReadScope::All { .. }) && self.state.lock().pass.take().is_some();
        if is_whole {
            // The table is told again what it turned out not to hold.
            self.ledger().note_all();
            self.ledger().end_reading(now.wall_ms);
        }
        ages_ms
    }

    /// Ends a reading of everything that did not get to the end. The next part begins where this one ended. Until then,
    /// readings follow what has changed since `server_ms`, the server's clock from just before this one.
    pub fn partly_imported(&self, hearing: ImportProgress, reading: &ReadScope, server_ms: u64, now: Now) -> Vec<u64> {
        let reached = hearing.import.reached().cloned();
        let ages_ms = self.heard(hearing, reading, server_ms, now);
        self.state.lock().part_ended(reached, now);
        ages_ms
    }

    fn heard(&self, mut hearing: ImportProgress, reading: &ReadScope, server_ms: u64, now: Now) -> Vec<u64> {
        self.forget_told(&mut hearing);
        if let Some(sum) = hearing.import.end() {
            self.take(&mut hearing, &sum, now);
        }
        self.counts.imported_rows.fetch_add(hearing.import.rows, Ordering::Relaxed);
        self.counts.rows_last_import.store(hearing.import.rows, Ordering::Relaxed);
        self.counts.absurd_rows.fetch_add(hearing.import.absurd, Ordering::Relaxed);
        let mut state = self.state.lock();
        let seen = state.see(std::mem::take(&mut hearing.import.seen));
        // A reading that begins at a cell does not hear what has changed before that cell.
        let is_watermark = !matches!(reading, ReadScope::All { from: Some(_) });
        state.heard_until(server_ms, is_watermark, now);
        state.importing.ended(true, now.mono_us);
        let ages_ms = hearing.ages_ms(server_ms);
        if let Some(handing) = hearing.handing {
            let covered = is_watermark.then_some(Covered { from_ms: handing.from_ms, to_ms: server_ms });
            state.hand_on(handing.sums, seen, covered, now);
        }
        ages_ms
    }

    /// Ends a reading that has failed. What it heard counts all the same; the next one hears it again.
    pub fn not_imported(&self, reading: &ReadScope, now: Now) {
        let mut state = self.state.lock();
        if matches!(reading, ReadScope::Since { .. }) {
            // Statements that others gave up on may be committed late, with an early date: a full reading finds them.
            state.full_at_us = state.full_at_us.min(now.mono_us + self.overlap_ms() * 1000);
        }
        state.importing.ended(false, now.mono_us);
        if state.importing.is_open() {
            self.resign(&mut state, now);
        }
    }

    pub(super) fn take(&self, hearing: &mut ImportProgress, sum: &CellSum, now: Now) {
        let CellName { workspace, namespace, identifier, duration_ms, sequence } = &sum.cell;
        let current = now.wall_ms / duration_ms;
        if sequence.abs_diff(current) > 1 {
            // The window is over already, or the clock of whoever counted it is far off.
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
        if let Some(handing) = &mut hearing.handing {
            if handing.only_since_ms.is_none_or(|since_ms| is_news || sum.updated_at_ms >= since_ms) {
                handing.sums.push(sum.clone());
            }
            if let Some(voice) = &mut self.state.lock().voice {
                voice.spoken.heard(&sum.cell, sum.others.hits > 0, sum.row);
            }
        }
    }

    /// Takes over what a row says about a key whose identifier it names. True if it was news.
    fn take_key(&self, named: &NamedRule, identifier: &[u8], sum: &CellSum, now: Now) -> bool {
        let terms = named.terms(sum.cell.duration_ms);
        let key = Key::new(named.space, &terms, identifier);
        match self.ledger().import(&key, &terms, &foreign_sum(sum), now.wall_ms) {
            ImportResult::NoRoom => {
                self.leave_out(sum);
                false
            }
            ImportResult::Counted { slots, is_news, is_created } => {
                self.counts.created_keys.fetch_add(is_created.into(), Ordering::Relaxed);
                slots.into_iter().for_each(|at| self.contest(at, sum));
                is_news
            }
        }
    }

    /// Remembers that other regions count a key too, if they do.
    fn contest(&self, at: SlotRef, sum: &CellSum) {
        if sum.others.hits > 0 {
            self.state.lock().contested.insert(at, sum.cell.expires_at_ms());
        }
    }

    fn take_hidden(&self, digest: &[u8], sum: &CellSum, now: Now) -> bool {
        let at = self.state.lock().digested.slot(digest);
        if let Some(at) = at {
            let is_it = |key: &Key<'_>| *self.identifier(key, true) == *digest;
            if let Some(is_news) = self.ledger().import_at(at, is_it, &foreign_sum(sum), now.wall_ms) {
                self.contest(at, sum);
                return is_news;
            }
            self.state.lock().digested.gone(digest);
        }
        let kept = WaitingRow { sum: foreign_sum(sum), expires_at_ms: sum.cell.expires_at_ms() };
        let keys_max = self.engine.table().keys_max();
        if !self.state.lock().digested.keep(digest, kept, keys_max.div_ceil(4)) {
            self.leave_out(sum);
        }
        false
    }

    /// Takes note that there was no room for what a row says.
    fn leave_out(&self, sum: &CellSum) {
        self.counts.roomless_rows.fetch_add(1, Ordering::Relaxed);
        self.ledger().leave_out(sum.cell.expires_at_ms());
    }

    /// Whether sensitive keys were made that have not been compared with what others told.
    pub fn has_unmatched(&self) -> bool {
        self.ledger().is_any_digested()
    }

    /// Compares sensitive keys that were made with what others told.
    pub fn match_digests(&self, now: Now) {
        self.state.lock().digested.tidy(|at| self.ledger().holds(at));
        while let Some(KeyAt { at, key }) = self.ledger().next_digested() {
            let digest = self.identifier(&key.as_key(), true);
            let kept = self.state.lock().digested.made(digest, at);
            for WaitingRow { sum, .. } in kept {
                self.ledger().import_at(at, |_| true, &sum, now.wall_ms);
            }
        }
    }
}

/// A cell's rows as the ledger takes them.
fn foreign_sum(sum: &CellSum) -> ForeignSum {
    ForeignSum { sequence: sum.cell.sequence, others: sum.others, row: sum.row }
}
