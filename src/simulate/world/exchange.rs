//! Carries rows to the table that regions share, and back.

use crate::global::exchange::{Exchange, ImportProgress, LookupTurn};
use crate::global::import::ReadScope;
use crate::global::publish::{NextStep, Publication, StatementOutcome};
use crate::global::row::{HeardRow, OwnRow};
use crate::global::voice::Role;
use crate::simulate::process::region_name;
use crate::simulate::world::event::{Event, To};
use crate::simulate::world::{MONO_START_US, World};

/// How long a process waits for an answer of the table.
const TABLE_TIMEOUT_US: u64 = 2_000_000;

impl World {
    pub(super) fn exchange(&self, to: To) -> Option<&Exchange> {
        self.processes[to.process].exchange.as_ref().filter(|_| self.is_there(to))
    }

    /// Plans the first turns of a process.
    pub(super) fn plan_exchange(&mut self, process: usize) {
        let to = self.to(process);
        self.plan_publish(to);
        self.plan_import(to);
        self.plan_voice(to);
    }

    fn plan_publish(&mut self, to: To) {
        if let Some(exchange) = self.exchange(to) {
            let at_us = exchange.publish_at_us().saturating_sub(MONO_START_US).max(self.now_us);
            self.at(at_us, Event::Publish { to });
        }
    }

    fn plan_import(&mut self, to: To) {
        if let Some(exchange) = self.exchange(to) {
            let at_us = exchange.import_at_us().saturating_sub(MONO_START_US).max(self.now_us);
            self.at(at_us, Event::Import { to });
        }
    }

    fn table_delay_us(&mut self) -> u64 {
        let (from, to) = self.setup.network.table_delay_us;
        self.random.between(from, to)
    }

    /// Whether a message gets lost, there (to the table) or back.
    fn is_cut(&mut self, process: usize, is_there: bool) -> bool {
        let home = self.home(process);
        let until_us = if is_there { home.cut_there_us } else { home.cut_back_us };
        let is_cut = self.now_us < until_us;
        is_cut || self.random.permille(self.setup.network.table_lost)
    }

    /// Begins a turn of publishing: the speaker first asks what to publish for others.
    pub(super) fn publish(&mut self, to: To) {
        match self.exchange(to).map(Exchange::role) {
            Some(Role::Speaking) => self.talk(to, true),
            Some(Role::Alone | Role::Following) => self.collect(to),
            None => {}
        }
    }

    pub(super) fn collect(&mut self, to: To) {
        let now = self.now(to.process);
        let Some(sending) = self.exchange(to).map(|exchange| exchange.collect(now)) else { return };
        self.send_rows(to, Box::new(sending));
    }

    fn send_rows(&mut self, to: To, sending: Box<Publication>) {
        if sending.next().is_none() {
            let now = self.now(to.process);
            if let Some(exchange) = self.exchange(to) {
                match sending.is_empty() {
                    true => exchange.published_nothing(None, now),
                    false => exchange.published(&sending, now),
                }
            }
            self.plan_publish(to);
            return;
        }
        if self.is_cut(to.process, true) {
            self.at(
                self.now_us + TABLE_TIMEOUT_US,
                Event::RowsAnswered { to, sending, sent: StatementOutcome::Failed },
            );
            return;
        }
        let at_us = self.now_us + self.table_delay_us();
        self.at(at_us, Event::RowsArrive { from: to, sending });
    }

    pub(super) fn rows_arrive(&mut self, from: To, sending: Box<Publication>) {
        self.oracle.statements += 1;
        let region = self.region_of(from.process);
        let (fast_us, slow_us) = self.setup.network.commit_us;
        let commits_us = self.now_us + self.random.between(fast_us, slow_us);
        if let Some(rows) = sending.next() {
            let (rows, dated_ms) = (rows.to_vec(), self.now_ms());
            self.digest.rows(&rows);
            if self.random.permille(self.setup.network.repeated) {
                let at_us = self.now_us + self.random.below(1_000_000);
                self.at(at_us, Event::RowsRepeat { region, rows: rows.clone() });
            }
            self.at(commits_us, Event::RowsCommit { region, rows, dated_ms });
        }
        // If it takes too long, the process gives up, and the server goes on.
        let answered_us = commits_us.max(self.stalled_until_us) + self.table_delay_us();
        let late_us = self.now_us + TABLE_TIMEOUT_US;
        let (at_us, sent) = match self.is_cut(from.process, false) || answered_us > late_us {
            true => (late_us, StatementOutcome::Failed),
            false => (answered_us, StatementOutcome::Done),
        };
        self.at(at_us, Event::RowsAnswered { to: from, sending, sent });
    }

    pub(super) fn rows_commit(&mut self, region: usize, rows: Vec<OwnRow>, dated_ms: u64) {
        if self.now_us < self.stalled_until_us {
            self.at(self.stalled_until_us, Event::RowsCommit { region, rows, dated_ms });
            return;
        }
        self.rows.commit(&region_name(region), &rows, dated_ms);
    }

    pub(super) fn rows_answered(&mut self, to: To, mut sending: Box<Publication>, sent: StatementOutcome) {
        if self.is_there(to) {
            match sending.sent(sent) {
                NextStep::Go | NextStep::End | NextStep::Pause { .. } => self.send_rows(to, sending),
            }
        }
    }

    pub(super) fn import(&mut self, to: To) {
        let now = self.now(to.process);
        if self.exchange(to).is_some_and(|exchange| !exchange.wants_reading(now)) {
            self.exchange(to).into_iter().for_each(|exchange| exchange.passed_import(now));
            return self.plan_import(to);
        }
        let Some((reading, hearing)) = self.exchange(to).map(|exchange| exchange.reading(now)) else { return };
        let hearing = Box::new(hearing);
        if self.is_cut(to.process, true) {
            let at_us = self.now_us + TABLE_TIMEOUT_US;
            self.at(at_us, Event::ReadAnswered { to, reading, hearing, rows: None });
            return;
        }
        let at_us = self.now_us + self.table_delay_us();
        self.at(at_us, Event::ReadArrives { from: to, reading, hearing });
    }

    pub(super) fn read_arrives(&mut self, from: To, reading: ReadScope, hearing: Box<ImportProgress>) {
        self.oracle.statements += 1;
        let now_ms = self.now_ms();
        let (at_us, rows) = match self.is_cut(from.process, false) {
            true => (self.now_us + TABLE_TIMEOUT_US, None),
            false => (self.now_us + self.table_delay_us(), Some((self.rows.read(&reading, now_ms), now_ms))),
        };
        self.at(at_us, Event::ReadAnswered { to: from, reading, hearing, rows });
    }

    pub(super) fn read_answered(
        &mut self,
        to: To,
        reading: ReadScope,
        mut hearing: Box<ImportProgress>,
        rows: Option<(Vec<HeardRow>, u64)>,
    ) {
        let now = self.now(to.process);
        let is_heard = rows.is_some();
        if let Some(exchange) = self.exchange(to) {
            match rows {
                Some((rows, server_ms)) => {
                    rows.into_iter().for_each(|row| exchange.hear(&mut hearing, row, now));
                    exchange.imported(*hearing, &reading, server_ms, now);
                }
                None => exchange.not_imported(&reading, now),
            }
        }
        // What was heard is handed on.
        self.talk(to, false);
        if is_heard {
            self.begin_to_seek(to);
        }
        self.plan_import(to);
    }

    /// Has keys looked up, if there are any of which something may be missing.
    pub(super) fn begin_to_seek(&mut self, to: To) {
        let now = self.now(to.process);
        let seeking = self.exchange(to).and_then(|exchange| exchange.seek(now));
        if let Some(seeking) = seeking {
            let at_us = self.now_us + self.table_delay_us() + self.table_delay_us();
            self.at(at_us, Event::Seek { to, seeking: Box::new(seeking) });
        }
    }

    pub(super) fn seek(&mut self, to: To, mut seeking: Box<LookupTurn>) {
        self.oracle.statements += 1;
        let now = self.now(to.process);
        let is_cut = self.is_cut(to.process, true) || self.is_cut(to.process, false);
        let Some(exchange) = self.exchange(to) else { return };
        if is_cut {
            return exchange.not_sought(*seeking);
        }
        let rows = self.rows.find(&seeking.cells);
        rows.into_iter().for_each(|row| exchange.found(&mut seeking, row, now));
        exchange.sought(*seeking, now);
    }
}
