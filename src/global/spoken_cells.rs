//! The cells that the speaker publishes for its region: those that others have mentioned, and its own.
//!
//! It reads them at the origin in every turn, which knows more than any process. A cell that is contested, or near its limit,
//! is followed for as long as it grows. One that was told of only because the region is present in it is not read any more:
//! whoever counts it mentions it when there is more to say.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::clock::Now;
use crate::engine::table::SlotRef;
use crate::engine::table::cell::{CellShape, CellState, CellUpdate, WindowUpdate};
use crate::engine::table::foreign::CellStanding;
use crate::global::mentions::Mention;
use crate::global::row::{CellName, Counts, OwnRow};
use crate::regional::call::{Call, CallKey, Measure, OriginKey, ProcessId, Reply};
use crate::regional::redis::cluster_slot::cluster_slot;

/// How many cells are followed at most. For others there is room when some have ended: they are mentioned again.
const CELLS_MAX: usize = 65_536;
/// How long a cell is followed after it has last grown. Much longer than others leave it to the speaker.
const IDLE_US: u64 = 10_000_000;
/// Likewise a cell that was told of because the region is present in it: others may mention it before they hear so.
const PRESENT_US: u64 = 3_000_000;
/// Keys of one read: few enough that a check waits for no more than a moment.
const READ_KEYS: usize = 128;

/// A cell that is followed.
#[derive(Clone, Debug)]
struct SpokenCell {
    key: OriginKey,
    limit: u32,
    is_contested: bool,
    /// What the region has counted, as far as anybody has said.
    known: Counts,
    /// What the table is known to have of that.
    told: Counts,
    /// Where this process counts the key; empty if it does not.
    slots: SmallVec<[SlotRef; 1]>,
    /// When it last grew.
    grown_us: u64,
}

impl SpokenCell {
    fn standing(&self, regions: u32) -> CellStanding {
        CellStanding { limit: self.limit, regions, told: self.told, is_contested: self.is_contested }
    }

    fn grow(&mut self, counts: Counts, now_us: u64) {
        let grown = self.known.max(counts);
        if grown != self.known {
            (self.known, self.grown_us) = (grown, now_us);
        }
    }
}

/// Cells to be read at the origin, and the call that does it.
#[derive(Clone, Debug)]
pub(crate) struct CellsRead {
    /// Brings nothing, and asks nothing.
    pub call: Call,
    /// For each part of the call the names of its cells.
    cells: Vec<SmallVec<[CellName; 2]>>,
}

/// All cells that are followed.
#[derive(Debug, Default)]
pub(crate) struct SpokenCells {
    /// Sorted, so that simulated runs repeat.
    cells: BTreeMap<CellName, SpokenCell>,
}

impl SpokenCells {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Follows a cell from now on, which somebody has mentioned or which this process counts itself, in that slot. False if
    /// there is no room.
    pub(crate) fn follow(&mut self, mention: Mention, slot: Option<SlotRef>, now_us: u64) -> bool {
        let Mention { cell, key, limit, is_contested, counts, told } = mention;
        if self.cells.len() >= CELLS_MAX && !self.cells.contains_key(&cell) {
            return false;
        }
        let spoken = self.cells.entry(cell).or_insert_with(|| SpokenCell {
            key,
            limit,
            is_contested: false,
            known: Counts::default(),
            told: Counts::default(),
            slots: SmallVec::new(),
            grown_us: now_us,
        });
        // A rule that has changed: the newest word counts.
        (spoken.key, spoken.limit) = (key, limit);
        spoken.is_contested |= is_contested;
        spoken.told = spoken.told.max(told);
        spoken.grow(counts, now_us);
        if let Some(slot) = slot.filter(|slot| !spoken.slots.contains(slot)) {
            spoken.slots.push(slot);
        }
        true
    }

    /// Takes over what the table says about a cell.
    pub(crate) fn heard(&mut self, cell: &CellName, is_contested: bool, row: Counts) {
        if let Some(spoken) = self.cells.get_mut(cell) {
            spoken.is_contested |= is_contested;
            spoken.told = spoken.told.max(row);
        }
    }

    /// The table has taken these counts.
    pub(crate) fn published(&mut self, cell: &CellName, counts: Counts) {
        if let Some(spoken) = self.cells.get_mut(cell) {
            spoken.told = spoken.told.max(counts);
        }
    }

    /// Forgets what the table was told, because it may have lost it.
    pub(crate) fn forget_told(&mut self) {
        self.cells.values_mut().for_each(|spoken| spoken.told = Counts::default());
    }

    /// Lets all cells go, and returns where this process counts them.
    pub(crate) fn clear(&mut self) -> Vec<SlotRef> {
        std::mem::take(&mut self.cells).into_iter().flat_map(|(_, spoken)| spoken.slots).collect()
    }

    /// Lets go what is over, or has not grown for a while and needs not be told.
    pub(crate) fn expire(&mut self, regions: u32, now: Now) {
        self.cells.retain(|cell, spoken| {
            let standing = spoken.standing(regions);
            let idle_us = if standing.is_followed(spoken.known) { IDLE_US } else { PRESENT_US };
            let is_idle = now.mono_us.saturating_sub(spoken.grown_us) >= idle_us;
            let is_done = is_idle && !standing.is_notable(spoken.known);
            cell.expires_at_ms() > now.wall_ms && !is_done
        });
    }

    /// What to read at the origin, few keys at a time; in a Cluster those of a slot.
    pub(crate) fn reads(&self, process: ProcessId, regions: u32, is_cluster: bool) -> Vec<CellsRead> {
        // In an order that does not hang on chance, so that simulated runs repeat.
        let mut keys: BTreeMap<(u16, OriginKey), Vec<&CellName>> = BTreeMap::new();
        for (cell, spoken) in &self.cells {
            let standing = spoken.standing(regions);
            if !standing.is_followed(spoken.known) && !standing.is_notable(spoken.known) {
                continue;
            }
            let slot = if is_cluster { cluster_slot(&spoken.key) } else { 0 };
            keys.entry((slot, spoken.key)).or_default().push(cell);
        }
        let mut reads: Vec<(u16, CellsRead)> = Vec::new();
        for ((slot, key), mut cells) in keys {
            cells.sort_unstable_by_key(|cell| std::cmp::Reverse(cell.sequence));
            for cells in cells.chunk_by(|newer, older| newer.sequence == older.sequence + 1) {
                let part = CallKey {
                    key,
                    window_ms: cells[0].duration_ms,
                    measure: Measure::Sliding { left_ms: 0 },
                    cells: cells.iter().map(|cell| unchanged(cell)).collect(),
                };
                let is_full = |read: &CellsRead| {
                    read.cells.len() >= READ_KEYS || read.call.parts.last().is_some_and(|last| last.key == key)
                };
                match reads.last_mut().filter(|(of, read)| *of == slot && !is_full(read)) {
                    Some((_, read)) => {
                        read.call.parts.push(part);
                        read.cells.push(cells.iter().map(|cell| (*cell).clone()).collect());
                    }
                    None => {
                        let call = Call { process, nonce: 0, charges: false, parts: vec![part], asks: Vec::new() };
                        let cells = vec![cells.iter().map(|cell| (*cell).clone()).collect()];
                        reads.push((slot, CellsRead { call, cells }));
                    }
                }
            }
        }
        reads.into_iter().map(|(_, read)| read).collect()
    }

    /// Takes over what the origin holds.
    pub(crate) fn read(&mut self, read: &CellsRead, reply: &Reply, now_us: u64) {
        let states = read.cells.iter().flatten().zip(reply.parts.iter().flatten());
        for (cell, CellState { sum, refunds, .. }) in states {
            if let Some(spoken) = self.cells.get_mut(cell) {
                spoken.grow(Counts { hits: *sum, refunds: (*refunds).min(*sum) }, now_us);
            }
        }
    }

    /// The rows that others should know of now, at most so many, with the slots that count them.
    pub(crate) fn rows(&self, regions: u32, most: usize, is_meant: impl Fn(&CellName) -> bool) -> Vec<SpokenRow> {
        let mut rows = Vec::new();
        for (cell, spoken) in &self.cells {
            if spoken.standing(regions).is_notable(spoken.known) && is_meant(cell) {
                let row = OwnRow { cell: cell.clone(), counts: spoken.known };
                rows.push(SpokenRow { row, slots: spoken.slots.clone() });
                if rows.len() >= most {
                    break;
                }
            }
        }
        rows
    }
}

/// A row that the speaker publishes.
#[derive(Clone, Debug)]
pub(crate) struct SpokenRow {
    /// What is published.
    pub row: OwnRow,
    /// Where this process counts the key; empty if it does not.
    pub slots: SmallVec<[SlotRef; 1]>,
}

/// An update of a cell that brings nothing.
fn unchanged(cell: &CellName) -> CellUpdate {
    let window = WindowUpdate { sequence: cell.sequence, ttl_ms: 1, ..WindowUpdate::default() };
    CellUpdate { is_seated: true, shape: CellShape::Window(window), ..CellUpdate::default() }
}
