//! Looks up keys by name that requests ask for here, and of which counts of other regions may be missing.
//!
//! Counts are missing when there was no room for them, when they were given up with their key, or when the table could
//! not be read to its end ([`crate::engine::table::foreign_ledger`]). A lookup of some keys follows each import; no
//! request waits for one. As long as nothing is missing, no key is looked up.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::engine::key::OwnedKey;
use crate::engine::table::SlotRef;
use crate::engine::table::foreign_ledger::KeyAt;
use crate::global::exchange::{Exchange, ImportProgress};
use crate::global::names::Names;
use crate::global::row::{CellName, HeardRow};

/// Cells of a key that count here: this one, the one before, and the next of a region whose clock is ahead.
const KEY_CELLS: u64 = 3;
/// Keys of one statement. It has a `SELECT` for each of their cells, and servers nest these as they parse them: so few
/// that the smallest stack has room.
const STATEMENT_KEYS: usize = 84;
/// Statements of one turn; what is left is for the next.
pub(crate) const TURN_STATEMENTS: usize = 24;

/// Keys that are looked up by one statement.
#[derive(Debug)]
pub struct LookupTurn {
    keys: Vec<SlotRef>,
    /// The cells of the keys by their names in the table, in its order and each once.
    pub cells: Vec<CellName>,
    hearing: ImportProgress,
}

impl Exchange {
    /// The keys to look up next, if there are any. Ends with [`Exchange::sought`] or [`Exchange::not_sought`].
    pub fn seek(&self, now: Now) -> Option<LookupTurn> {
        if !self.ledger().is_any_sought() {
            return None;
        }
        // Rows name sensitive keys by digests, which have to be known before the rows come.
        self.match_digests(now);
        let names = self.names.read().clone();
        let (mut keys, mut cells) = (Vec::new(), Vec::new());
        while keys.len() < STATEMENT_KEYS
            && let Some(KeyAt { at, key }) = self.ledger().next_sought()
        {
            if self.name_cells(&key, &names, now, &mut cells) {
                keys.push(at);
            }
        }
        cells.sort_unstable();
        cells.dedup();
        (!keys.is_empty()).then(|| LookupTurn { keys, cells, hearing: ImportProgress::new(&self.options.region) })
    }

    /// Adds the cells of a key. False if no rule in force counts it.
    fn name_cells(&self, owned: &OwnedKey, names: &Names, now: Now, cells: &mut Vec<CellName>) -> bool {
        let key = owned.as_key();
        let Some(named) = names.of_space(key.space) else { return false };
        let identifier = self.identifier(&key, named.is_sensitive || owned.is_sensitive);
        let first = (now.wall_ms / key.window_ms).saturating_sub(1);
        cells.extend((first..first + KEY_CELLS).map(|sequence| CellName {
            workspace: named.name.workspace.clone(),
            namespace: named.name.namespace.clone(),
            identifier: identifier.clone(),
            duration_ms: key.window_ms,
            sequence,
        }));
        true
    }

    /// Takes over a row that was found.
    pub fn found(&self, lookup: &mut LookupTurn, row: HeardRow, now: Now) {
        self.hear(&mut lookup.hearing, row, now);
    }

    /// Ends a lookup of which all rows were heard.
    pub fn sought(&self, mut lookup: LookupTurn, now: Now) {
        if let Some(sum) = lookup.hearing.import.end() {
            self.take(&mut lookup.hearing, &sum, now);
        }
        self.counts.imported_rows.fetch_add(lookup.hearing.rows(), Ordering::Relaxed);
        self.counts.sought_keys.fetch_add(lookup.keys.len() as u64, Ordering::Relaxed);
    }

    /// Ends a lookup that has failed: the next turn tries again.
    pub fn not_sought(&self, lookup: LookupTurn) {
        lookup.keys.into_iter().for_each(|at| self.ledger().seek_again(at));
    }
}
