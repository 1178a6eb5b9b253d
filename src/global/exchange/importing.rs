//! The way in: what to read, and which key learns what from it.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::engine::key::Key;
use crate::engine::table::SlotRef;
use crate::engine::table::foreign_ledger::{ForeignSum, ImportResult, KeyAt};
use crate::global::digested_keys::WaitingRow;
use crate::global::exchange::followed::Beginning;
use crate::global::exchange::{Exchange, ExchangeState};
use crate::global::feed::Covered;
use crate::global::import::{CellSum, Import, ReadScope};
use crate::global::names::NamedRule;
use crate::global::row::{CellName, Counts, HeardRow};
use crate::global::voice::Role;

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
    /// When it began, in monotonic time.
    began_us: u64,
    /// Where it began, if it is a reading of what has changed.
    beginning: Option<Beginning>,
    /// Rows of this region that are older may have become visible just now: if so, others have not found them by their dates,
    /// so they are sent again. What is read otherwise was there before, as a rule.
    pub(super) found_from_ms: u64,
    /// What is to be handed on to the other processes of the region; `None` unless this one speaks for them.
    handing: Option<Handing>,
}

/// What a reading of the speaker hands on.
#[derive(Debug)]
struct Handing {
    /// Everything that has changed since then, by the server's clock, is handed on at its end.
    from_ms: u64,
    /// Of a pass, only what changed since then, and what is news here.
    only_since_ms: Option<u64>,
    /// What was heard so far.
    sums: Vec<CellSum>,
}

impl ImportProgress {
    pub(super) fn new(region: &str) -> ImportProgress {
        ImportProgress {
            import: Import::new(region),
            news_ms: Vec::new(),
            must_forget: false,
            began_us: 0,
            beginning: None,
            found_from_ms: 0,
            handing: None,
        }
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

    /// The table was heard, from the server or from the speaker, at that time by the server's clock. `beginning`: all that has
    /// changed until then was, and where that began. True if it is another server than before.
    pub(super) fn heard_until(&mut self, server_ms: u64, beginning: Option<Option<Beginning>>, now: Now) -> bool {
        self.digested.expire(now.wall_ms);
        self.contested.retain(|_, until_ms| *until_ms > now.wall_ms);
        let is_another_server = self.followed.answered(server_ms, now);
        if let Some(beginning) = beginning {
            self.followed.heard(beginning, server_ms);
            if let Some(voice) = &mut self.voice {
                voice.lacks_at_us = None;
            }
        }
        is_another_server
    }

    /// Whether a process that follows the speaker has to read the table itself: it has never read it, was told to read it
    /// anew or some rules of it, or has missed something.
    fn lacks_anything(&self, now: Now) -> bool {
        let lacks_news = self.voice.as_ref().and_then(|voice| voice.lacks_at_us);
        self.followed.is_new()
            || self.followed.beginning(now) == Beginning::LookBack
            || self.passes.is_due(now.mono_us)
            || lacks_news.is_some_and(|at_us| now.mono_us >= at_us)
    }
}

impl Exchange {
    /// Has everything read at the next import, and told again as far as it is not there: the table may have lost rows.
    pub fn doubt(&self) {
        let mut state = self.state.lock();
        state.passes.read_anew();
        if let Some(voice) = state.voice.as_mut().filter(|voice| voice.lease.role() == Role::Speaking) {
            voice.is_doubtful = true;
        }
    }

    /// What to read now. Every turn ends with [`Exchange::imported`], [`Exchange::partly_imported`] or
    /// [`Exchange::not_imported`].
    pub fn reading(&self, now: Now) -> (ReadScope, ImportProgress) {
        let mut hearing = ImportProgress::new(&self.options.region);
        hearing.began_us = now.mono_us;
        let mut state = self.state.lock();
        if state.followed.is_new() {
            state.passes.read_anew();
        }
        let beginning = state.followed.beginning(now);
        // After a gap, what changes is followed first: a pass would find the server with everybody else's.
        let part = if beginning == Beginning::Gap { None } else { state.passes.next_part(now.mono_us) };
        // Before its first reading the speaker does not know what others have heard.
        let is_handed_on = state.role() == Role::Speaking && !state.followed.is_new();
        let Some(reading) = part else {
            hearing.beginning = Some(beginning);
            let from_ms = state.followed.begins_ms(beginning, now);
            hearing.handing = is_handed_on.then(|| Handing { from_ms, only_since_ms: None, sums: Vec::new() });
            hearing.found_from_ms = state.followed.found_from_ms(now);
            let unpublished_us = state.publishing.failing_us(now.mono_us);
            return (ReadScope::Since { ms: state.followed.since_ms(beginning, unpublished_us, now) }, hearing);
        };
        if is_handed_on {
            let only_since_ms = Some(state.followed.since_ms(Beginning::Watermark, 0, now));
            let from_ms = state.followed.begins_ms(Beginning::Watermark, now);
            hearing.handing = Some(Handing { from_ms, only_since_ms, sums: Vec::new() });
        }
        match &reading {
            ReadScope::All { from: None } => {
                hearing.must_forget = true;
                self.counts.full_reads.fetch_add(1, Ordering::Relaxed);
                self.ledger().begin_reading();
            }
            ReadScope::Rules { from: None, .. } => {
                self.counts.rule_reads.fetch_add(1, Ordering::Relaxed);
            }
            ReadScope::All { .. } | ReadScope::Rules { .. } | ReadScope::Since { .. } => {}
        }
        (reading, hearing)
    }

    /// Whether the turn that is due reads anything. If not, it ends with [`Exchange::passed_import`]: a process that follows
    /// the speaker hears of changes from that, and reads the table only for what it lacks.
    pub fn wants_reading(&self, now: Now) -> bool {
        let mut state = self.state.lock();
        let is_following = state.role() == Role::Following;
        state.passes.follow_speaker(is_following, now.mono_us);
        !is_following || state.lacks_anything(now)
    }

    /// Ends a turn of importing that had nothing to read.
    pub fn passed_import(&self, now: Now) {
        self.state.lock().importing.passed(now.mono_us);
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
        if !matches!(reading, ReadScope::Since { .. }) {
            let ended = self.state.lock().passes.ended();
            if ended.is_some_and(|end| end.is_of_everything) {
                // The table is told again what it turned out not to hold.
                self.ledger().note_all();
            }
            if ended.is_some_and(|end| end.is_all_read) {
                self.ledger().end_reading(now.wall_ms);
            }
        }
        ages_ms
    }

    /// Ends a part of a pass that did not get to the end. The next part begins where this one ended. Until then, readings
    /// follow what has changed since `server_ms`, the server's clock from just before this one, if it was the first of a pass
    /// through everything.
    pub fn partly_imported(&self, hearing: ImportProgress, reading: &ReadScope, server_ms: u64, now: Now) -> Vec<u64> {
        let reached = hearing.import.reached().cloned();
        let ages_ms = self.heard(hearing, reading, server_ms, now);
        self.state.lock().passes.part_ended(reached, now.mono_us);
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
        // A reading that begins at a cell, or is of some rules, does not hear all that has changed.
        let is_of_all = hearing.beginning.is_some() || *reading == (ReadScope::All { from: None });
        // The speaker may have told of a later time while this was read, or of another server.
        let until_ms = state.followed.clock_since(hearing.began_us).unwrap_or(server_ms);
        let is_another_server = state.heard_until(until_ms, is_of_all.then_some(hearing.beginning), now);
        let lacks_something = is_another_server || hearing.beginning == Some(Beginning::Gap);
        if lacks_something {
            state.passes.read_all_soon(now.mono_us);
        }
        state.importing.ended(true, now.mono_us);
        let ages_ms = hearing.ages_ms(server_ms);
        if let Some(Handing { from_ms, sums, .. }) = hearing.handing {
            state.hand_on(sums, seen, is_of_all.then_some(Covered { from_ms, to_ms: server_ms }), now);
        }
        drop(state);
        if lacks_something {
            // Any key may, until all is read.
            self.ledger().expect_reading(|_| true);
        }
        ages_ms
    }

    /// Ends a reading that has failed. What it heard counts all the same; the next one hears it again.
    pub fn not_imported(&self, reading: &ReadScope, now: Now) {
        let mut state = self.state.lock();
        state.followed.failed(now);
        if !matches!(reading, ReadScope::Since { .. }) {
            state.passes.part_failed(now.mono_us);
        }
        state.importing.ended(false, now.mono_us);
        if state.importing.is_open() {
            self.resign(&mut state, now);
        }
    }

    pub(super) fn take(&self, hearing: &mut ImportProgress, sum: &CellSum, now: Now) {
        let is_news = self.take_cell(sum, hearing.found_from_ms, now);
        if is_news && sum.updated_at_ms > 0 && hearing.news_ms.len() < AGES_MAX {
            hearing.news_ms.push(sum.updated_at_ms);
        }
        if let Some(handing) = &mut hearing.handing {
            // Others may have rules that are not known here yet, and clocks that are right.
            if handing.only_since_ms.is_none_or(|since_ms| is_news || sum.updated_at_ms >= since_ms) {
                handing.sums.push(sum.clone());
            }
            if let Some(voice) = &mut self.state.lock().voice {
                voice.spoken.heard(&sum.cell, sum.others.hits > 0, told_of(sum, hearing.found_from_ms));
            }
        }
    }

    /// Takes over what rows say about a cell. True if it was news.
    fn take_cell(&self, sum: &CellSum, found_from_ms: u64, now: Now) -> bool {
        let CellName { workspace, namespace, identifier, duration_ms, sequence } = &sum.cell;
        let current = now.wall_ms / duration_ms;
        if sequence.abs_diff(current) > 1 {
            // The window is over already, or the clock of whoever counted it is far off.
            return false;
        }
        let names = self.names.read().clone();
        let foreign = foreign_sum(sum, found_from_ms);
        match names.of_row(workspace, namespace).filter(|named| named.is_global(*duration_ms)) {
            Some(named) if named.is_sensitive => self.take_hidden(identifier, sum, foreign, now),
            Some(named) => self.take_key(named, identifier, sum, foreign, now),
            None => {
                self.counts.unknown_rows.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Takes over what a row says about a key whose identifier it names. True if it was news.
    fn take_key(&self, named: &NamedRule, identifier: &[u8], sum: &CellSum, foreign: ForeignSum, now: Now) -> bool {
        let terms = named.terms(sum.cell.duration_ms);
        let key = Key::new(named.space, &terms, identifier);
        match self.ledger().import(&key, &terms, &foreign, now.wall_ms) {
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

    fn take_hidden(&self, digest: &[u8], sum: &CellSum, foreign: ForeignSum, now: Now) -> bool {
        let at = self.state.lock().digested.slot(digest);
        if let Some(at) = at {
            let is_it = |key: &Key<'_>| *self.identifier(key, true) == *digest;
            if let Some(is_news) = self.ledger().import_at(at, is_it, &foreign, now.wall_ms) {
                self.contest(at, sum);
                return is_news;
            }
            self.state.lock().digested.gone(digest);
        }
        let kept = WaitingRow { sum: foreign, expires_at_ms: sum.cell.expires_at_ms() };
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
fn foreign_sum(sum: &CellSum, found_from_ms: u64) -> ForeignSum {
    let told = told_of(sum, found_from_ms);
    ForeignSum { sequence: sum.cell.sequence, others: sum.others, row: sum.row, told }
}

/// What of this region's row the others can be taken to have found.
fn told_of(sum: &CellSum, found_from_ms: u64) -> Counts {
    if sum.row_updated_at_ms >= found_from_ms { sum.row } else { Counts::default() }
}
