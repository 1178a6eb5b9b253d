//! Rows on their way to the table: in chunks, in the order of the unique key, and going around those that the server
//! refuses.

use std::ops::Range;

use crate::engine::table::SlotRef;
use crate::global::row::OwnRow;

/// Rows of one statement.
pub const CHUNK_ROWS: usize = 512;
/// How often to try a statement again that lost against another one.
const CONFLICTS_MAX: u32 = 8;
/// The pause before the first time; each one after is twice as long.
const CONFLICT_PAUSE_US: u64 = 5_000;
/// How many rows a server may refuse before a turn gives up: it hardly takes any.
const REFUSED_MAX: usize = 32;

/// What became of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementOutcome {
    Done,
    /// Another transaction was in the way: it may succeed if it is tried again.
    Conflict,
    /// The server does not take one of the rows, whatever the others are.
    Refused,
    /// The server can't be reached, or takes nothing.
    Failed,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    Go,
    /// Wait for this long, then go on.
    Pause {
        for_us: u64,
    },
    End,
}

/// A turn's rows, while they are sent.
#[derive(Debug)]
pub struct Publication {
    /// Sorted by cell, each once.
    rows: Vec<OwnRow>,
    /// For each row, where its counts are from: several if a rule has changed how it counts, none if only others count it.
    slots: Vec<Vec<SlotRef>>,
    /// The chunks that are still to be sent; the next one stands last.
    left: Vec<Range<usize>>,
    /// How often the next statement has lost already.
    conflicts: u32,
    /// Rows that the server has, by index.
    pub done: Vec<usize>,
    /// Rows that the server does not take, whatever comes with them, by index.
    pub refused: Vec<usize>,
    /// Rows that did not get through, by index: they wait for the next turn.
    pub failed: Vec<usize>,
}

impl Publication {
    pub fn new(mut collected: Vec<(OwnRow, Option<SlotRef>)>) -> Publication {
        collected.sort_by(|a, b| a.0.cell.cmp(&b.0.cell));
        let (mut rows, mut slots): (Vec<OwnRow>, Vec<Vec<SlotRef>>) = (Vec::new(), Vec::new());
        for (row, at) in collected {
            match (rows.last_mut(), slots.last_mut()) {
                (Some(last), Some(places)) if last.cell == row.cell => {
                    last.counts = last.counts.max(row.counts);
                    places.extend(at);
                }
                _ => {
                    rows.push(row);
                    slots.push(at.into_iter().collect());
                }
            }
        }
        let starts = (0..rows.len()).step_by(CHUNK_ROWS);
        let mut left: Vec<Range<usize>> = starts.map(|start| start..(start + CHUNK_ROWS).min(rows.len())).collect();
        left.reverse();
        Publication { rows, slots, left, conflicts: 0, done: Vec::new(), refused: Vec::new(), failed: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows of the next statement.
    pub fn next(&self) -> Option<&[OwnRow]> {
        self.left.last().map(|range| &self.rows[range.clone()])
    }

    pub fn row(&self, at: usize) -> &OwnRow {
        &self.rows[at]
    }

    pub fn slots(&self, at: usize) -> &[SlotRef] {
        &self.slots[at]
    }

    /// Takes note of what became of the statement, and says what to do next.
    pub fn sent(&mut self, sent: StatementOutcome) -> NextStep {
        let Some(range) = self.left.pop() else { return NextStep::End };
        let conflicts = std::mem::take(&mut self.conflicts);
        match sent {
            StatementOutcome::Done => self.done.extend(range),
            StatementOutcome::Conflict if conflicts < CONFLICTS_MAX => {
                self.left.push(range);
                self.conflicts = conflicts + 1;
                return NextStep::Pause { for_us: CONFLICT_PAUSE_US << conflicts };
            }
            StatementOutcome::Refused if range.len() > 1 => {
                // One half has the bad row in it, and the other goes through.
                let middle = range.start + range.len() / 2;
                self.left.extend([middle..range.end, range.start..middle]);
            }
            StatementOutcome::Refused if self.refused.len() < REFUSED_MAX => self.refused.extend(range),
            StatementOutcome::Refused | StatementOutcome::Conflict | StatementOutcome::Failed => {
                self.failed.extend(range);
                self.failed.extend(self.left.drain(..).flatten());
            }
        }
        if self.left.is_empty() { NextStep::End } else { NextStep::Go }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::global::row::{CellName, Counts};

    fn row(identifier: usize, hits: u64) -> OwnRow {
        let cell = CellName {
            workspace: (*b"d").into(),
            namespace: (*b"k").into(),
            identifier: format!("{identifier:06}").into_bytes().into(),
            duration_ms: 60_000,
            sequence: 7,
        };
        OwnRow { cell, counts: Counts { hits, refunds: 0 } }
    }

    fn sending(rows: usize) -> Publication {
        let at = |slot: usize| Some(SlotRef::of(slot as u32));
        Publication::new((0..rows).rev().map(|n| (row(n, 1), at(n))).collect())
    }

    #[test]
    fn rows_go_in_the_order_of_the_unique_key_in_chunks() {
        let mut sending = sending(1200);
        let mut sizes = Vec::new();
        let mut last = None;
        while let Some(rows) = sending.next() {
            assert!(rows.is_sorted_by_key(|row| &row.cell) && last < Some(rows[0].cell.clone()));
            last = Some(rows[rows.len() - 1].cell.clone());
            sizes.push(rows.len());
            sending.sent(StatementOutcome::Done);
        }
        assert_eq!(sizes, [512, 512, 176]);
        assert_eq!(sending.done.len(), 1200);
    }

    #[test]
    fn a_bad_row_stops_only_itself() {
        let mut sending = sending(1000);
        let bad = row(333, 1);
        let mut statements = 0;
        while let Some(rows) = sending.next() {
            statements += 1;
            let sent = if rows.contains(&bad) { StatementOutcome::Refused } else { StatementOutcome::Done };
            sending.sent(sent);
        }
        assert_eq!((sending.done.len(), sending.refused.len(), sending.failed.len()), (999, 1, 0));
        assert_eq!(sending.row(sending.refused[0]), &bad);
        assert!(statements <= 2 + 2 * 9, "{statements}");
    }

    #[test]
    fn a_conflict_is_tried_again_and_then_left() {
        let mut sending = sending(10);
        for turn in 0..CONFLICTS_MAX {
            assert_eq!(sending.sent(StatementOutcome::Conflict), NextStep::Pause { for_us: CONFLICT_PAUSE_US << turn });
        }
        assert_eq!(sending.sent(StatementOutcome::Conflict), NextStep::End);
        assert_eq!(sending.failed.len(), 10);
    }

    #[test]
    fn a_server_that_takes_nothing_is_not_asked_row_by_row() {
        let mut sending = sending(5000);
        let mut statements = 0;
        while sending.next().is_some() {
            statements += 1;
            sending.sent(StatementOutcome::Refused);
        }
        assert!(statements < 100, "{statements}");
        assert_eq!((sending.refused.len(), sending.refused.len() + sending.failed.len()), (REFUSED_MAX, 5000));
    }

    #[test]
    fn a_server_that_is_gone_is_not_told_the_rest() {
        let mut sending = sending(2000);
        assert_eq!(sending.sent(StatementOutcome::Done), NextStep::Go);
        assert_eq!(sending.sent(StatementOutcome::Failed), NextStep::End);
        assert!(sending.next().is_none());
        assert_eq!((sending.done.len(), sending.failed.len()), (512, 1488));
    }

    #[test]
    fn two_slots_of_one_cell_are_one_row() {
        let sending = Publication::new(vec![(row(1, 5), Some(SlotRef::of(0))), (row(1, 9), Some(SlotRef::of(1)))]);
        assert_eq!(sending.next(), Some(&[row(1, 9)][..]));
        assert_eq!(sending.slots(0).len(), 2);
    }
}
