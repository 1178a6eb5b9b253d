//! Carries rows to the table that regions share, and back.

use std::collections::BTreeMap;

use crate::global::exchange::{Exchange, ImportProgress, LookupTurn};
use crate::global::import::ReadScope;
use crate::global::publish::{NextStep, Publication, StatementOutcome};
use crate::global::row::{CellName, OwnRow};
use crate::global::voice::Role;
use crate::simulate::process::region_name;
use crate::simulate::service_times::TableTimes;
use crate::simulate::world::event::{Event, TableRead, To};
use crate::simulate::world::{MONO_START_US, World};

/// How long a process waits for an answer of the table.
const TABLE_TIMEOUT_US: u64 = 2_000_000;
/// How long for all rows of a pass, from when the table has answered at all.
const PASS_TIMEOUT_US: u64 = 60_000_000;

/// How long a statement waits for rows that another one has written and not committed.
const LOCK_WAIT_US: u64 = TABLE_TIMEOUT_US / 2;

/// The server that has the table.
#[derive(Debug, Default)]
pub(super) struct TableServer {
    /// When it has served all that has come in.
    pub(super) busy_until_ns: u64,
    /// Until when it commits nothing.
    pub(super) stalled_until_us: u64,
    /// How much its clock is off.
    pub(super) skew_ms: i64,
    /// Until when the cells of each region's rows are locked, by statements that were not committed.
    locked_until_us: BTreeMap<(usize, CellName), u64>,
}

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

    /// The clock of the table's server.
    pub(super) fn table_now_ms(&self) -> u64 {
        self.now_ms().saturating_add_signed(self.table.skew_ms)
    }

    /// When the table's server has time for a statement that is there. `None`: now.
    fn served_at_us(&self) -> Option<u64> {
        let at_us = self.table.busy_until_ns.div_ceil(1000);
        (at_us > self.now_us).then_some(at_us)
    }

    /// Has the table's server serve a statement now, which goes on until this is over.
    fn serve(&mut self, cost_ns: impl FnOnce(TableTimes) -> u64) -> u64 {
        let cost_ns = self.setup.table_service.map_or(0, |times| times.statement_ns + cost_ns(times));
        self.table.busy_until_ns = self.table.busy_until_ns.max(self.now_us * 1000 + cost_ns);
        self.now_us + cost_ns / 1000
    }

    /// Until when some rows of a region are locked.
    fn locked_until_us(&self, region: usize, rows: &[OwnRow]) -> u64 {
        let locked = &self.table.locked_until_us;
        rows.iter().filter_map(|row| locked.get(&(region, row.cell.clone()))).copied().max().unwrap_or(0)
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
        self.at(at_us, Event::RowsArrive { from: to, sending, sent_us: self.now_us });
    }

    pub(super) fn rows_arrive(&mut self, from: To, sending: Box<Publication>, sent_us: u64) {
        if let Some(at_us) = self.served_at_us() {
            return self.at(at_us, Event::RowsArrive { from, sending, sent_us });
        }
        self.oracle.statements += 1;
        let region = self.region_of(from.process);
        let (fast_us, slow_us) = self.setup.network.commit_us;
        let Some(rows) = sending.next().map(<[OwnRow]>::to_vec) else { return };
        let locked_until_us = self.locked_until_us(region, &rows);
        if locked_until_us > self.now_us + LOCK_WAIT_US {
            let at_us = self.now_us + LOCK_WAIT_US + self.table_delay_us();
            return self.at(at_us, Event::RowsAnswered { to: from, sending, sent: StatementOutcome::Conflict });
        }
        let dated_ms = self.table_now_ms();
        let done_us = self.serve(|times| times.written_row_ns * rows.len() as u64).max(locked_until_us);
        let commits_us = (done_us + self.random.between(fast_us, slow_us)).max(self.table.stalled_until_us);
        self.digest.rows(&rows);
        if self.random.permille(self.setup.network.repeated) {
            let at_us = self.now_us + self.random.below(1_000_000);
            self.at(at_us, Event::RowsRepeat { region, rows: rows.clone() });
        }
        let now_us = self.now_us;
        self.table.locked_until_us.retain(|_, until_us| *until_us > now_us);
        self.table.locked_until_us.extend(rows.iter().map(|row| ((region, row.cell.clone()), commits_us)));
        self.at(commits_us, Event::RowsCommit { region, rows, dated_ms });
        // If it takes too long, the process gives up, and the server goes on.
        let answered_us = commits_us + self.table_delay_us();
        let late_us = self.now_us.max(sent_us + TABLE_TIMEOUT_US);
        let (at_us, sent) = match self.is_cut(from.process, false) || answered_us > late_us {
            true => (late_us, StatementOutcome::Failed),
            false => (answered_us, StatementOutcome::Done),
        };
        self.at(at_us, Event::RowsAnswered { to: from, sending, sent });
    }

    pub(super) fn rows_commit(&mut self, region: usize, rows: &[OwnRow], dated_ms: u64) {
        self.rows.commit(&region_name(region), rows, dated_ms);
    }

    /// A statement that arrives once more. If its rows are locked by then, nobody waits for that.
    pub(super) fn rows_repeat(&mut self, region: usize, rows: &[OwnRow]) {
        if self.served_at_us().is_none() && self.locked_until_us(region, rows) <= self.now_us {
            self.rows_commit(region, rows, self.table_now_ms());
        }
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
            self.at(at_us, Event::ReadAnswered { to, reading, hearing, read: None });
            return;
        }
        let at_us = self.now_us + self.table_delay_us();
        self.at(at_us, Event::ReadArrives { from: to, reading, hearing, sent_us: self.now_us });
    }

    pub(super) fn read_arrives(&mut self, from: To, reading: ReadScope, hearing: Box<ImportProgress>, sent_us: u64) {
        let gives_up_us = sent_us + TABLE_TIMEOUT_US;
        if let Some(at_us) = self.served_at_us().filter(|at_us| *at_us < gives_up_us) {
            return self.at(at_us, Event::ReadArrives { from, reading, hearing, sent_us });
        }
        self.oracle.statements += 1;
        if self.is_cut(from.process, false) || self.served_at_us().is_some() {
            let at_us = gives_up_us.max(self.now_us);
            return self.at(at_us, Event::ReadAnswered { to: from, reading, hearing, read: None });
        }
        let is_pass = !matches!(reading, ReadScope::Since { .. });
        if reading == (ReadScope::All { from: None }) {
            self.oracle.full_reads_us.push(self.now_us);
        }
        let server_ms = self.table_now_ms();
        let mut rows = self.rows.read(&reading, server_ms);
        let gives_up_us = if is_pass { self.now_us + PASS_TIMEOUT_US } else { gives_up_us };
        // Whoever gives up closes the connection, which ends the statement.
        let row_ns = self.setup.table_service.map_or(0, |times| times.read_row_ns);
        let in_time = ((gives_up_us - self.now_us) * 1000).checked_div(row_ns).unwrap_or(u64::MAX);
        let is_cut_off = rows.len() as u64 > in_time;
        rows.truncate(usize::try_from(in_time).unwrap_or(usize::MAX));
        self.oracle.rows_read += rows.len() as u64;
        let done_us = self.serve(|_| row_ns * rows.len() as u64);
        let at_us = done_us + self.table_delay_us();
        let is_answered = is_pass || !is_cut_off && at_us <= gives_up_us;
        let read = is_answered.then_some(TableRead { rows, server_ms, is_cut_off });
        self.at(
            if is_answered { at_us } else { gives_up_us },
            Event::ReadAnswered { to: from, reading, hearing, read },
        );
    }

    pub(super) fn read_answered(
        &mut self,
        to: To,
        reading: ReadScope,
        mut hearing: Box<ImportProgress>,
        read: Option<TableRead>,
    ) {
        let now = self.now(to.process);
        let is_heard = read.is_some();
        if let Some(exchange) = self.exchange(to) {
            match read {
                Some(TableRead { rows, server_ms, is_cut_off }) => {
                    exchange.forget_told(&mut hearing);
                    rows.into_iter().for_each(|row| exchange.hear(&mut hearing, row, now));
                    match is_cut_off {
                        true => exchange.partly_imported(*hearing, &reading, server_ms, now),
                        false => exchange.imported(*hearing, &reading, server_ms, now),
                    };
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
        if let Some(at_us) = self.served_at_us() {
            return self.at(at_us, Event::Seek { to, seeking });
        }
        let cells = seeking.cells.len() as u64;
        self.serve(|times| times.read_row_ns * cells);
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
