//! The cells that the speaker publishes for its region: those that others have mentioned, and its own.
//!
//! It reads them at the origin in every turn, which knows more than any process. A cell that is contested, or near its limit,
//! is followed for as long as it grows. One that was told of only because the region is present in it is not read any more:
//! whoever counts it mentions it when there is more to say.

use std::collections::BTreeMap;
use std::ops::Bound;

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
    /// The last cell of a turn that had no room for all.
    reached: Option<CellName>,
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
        std::mem::take(&mut self.cells).into_values().flat_map(|spoken| spoken.slots).collect()
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

    /// The rows that others should know of now, at most so many, with the slots that count them. If there are more, the others
    /// come next.
    pub(crate) fn rows(&mut self, regions: u32, most: usize, is_meant: impl Fn(&CellName) -> bool) -> Vec<SpokenRow> {
        let mut rows = Vec::new();
        let reached = self.reached.take();
        let behind = reached.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.cells.range::<CellName, _>((behind, Bound::Unbounded));
        let before = reached.iter().flat_map(|reached| self.cells.range(..=reached));
        for (cell, spoken) in behind.chain(before) {
            if spoken.standing(regions).is_notable(spoken.known) && is_meant(cell) {
                let row = OwnRow { cell: cell.clone(), counts: spoken.known };
                rows.push(SpokenRow { row, slots: spoken.slots.clone() });
                if rows.len() >= most {
                    self.reached = Some(cell.clone());
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

#[cfg(test)]
mod tests {
    use super::*;

    const REGIONS: u32 = 3;
    const SECOND_US: u64 = 1_000_000;

    fn counts(hits: u64) -> Counts {
        Counts { hits, refunds: 0 }
    }

    fn mention(number: u64, sequence: u64, hits: u64) -> Mention {
        let cell = CellName {
            workspace: (*b"d").into(),
            namespace: (*b"k").into(),
            identifier: format!("{number:06}").into_bytes().into(),
            duration_ms: 60_000,
            sequence,
        };
        let mut key = OriginKey([0; 20]);
        key.0[..8].copy_from_slice(&number.to_be_bytes());
        Mention { cell, key, limit: 1000, is_contested: false, counts: counts(hits), told: Counts::default() }
    }

    fn now(us: u64) -> Now {
        Now { wall_ms: 7 * 60_000, mono_us: us }
    }

    fn rows(cells: &mut SpokenCells) -> Vec<u64> {
        cells.rows(REGIONS, 100, |_| true).into_iter().map(|spoken| spoken.row.counts.hits).collect()
    }

    #[test]
    fn a_cell_is_published_once_for_presence_and_on_and_on_near_its_limit() {
        let mut cells = SpokenCells::default();
        let Mention { cell, .. } = mention(1, 7, 100);
        assert!(cells.follow(mention(1, 7, 100), None, 0));
        assert_eq!((rows(&mut cells), cells.reads(ProcessId(1), REGIONS, false).len()), (vec![100], 1));
        cells.published(&cell, counts(100));
        assert_eq!(cells.reads(ProcessId(1), REGIONS, false).len(), 0, "nobody wants to know of the next hit");
        cells.follow(mention(1, 7, 400), None, 0);
        assert_eq!(rows(&mut cells), Vec::<u64>::new());
        cells.follow(mention(1, 7, 500), None, SECOND_US);
        assert_eq!((rows(&mut cells), cells.reads(ProcessId(1), REGIONS, false).len()), (vec![500], 1));
        cells.published(&cell, counts(500));
        let [read] = <[CellsRead; 1]>::try_from(cells.reads(ProcessId(1), REGIONS, false)).unwrap();
        let state = CellState { sequence: 7, sum: 510, refunds: 3, ..CellState::default() };
        let reply = Reply { parts: vec![SmallVec::from_iter([state])], verdicts: Vec::new() };
        cells.read(&read, &reply, 2 * SECOND_US);
        assert_eq!(rows(&mut cells), [510]);
        cells.expire(REGIONS, now(60 * SECOND_US));
        assert_eq!(cells.len(), 1, "it still has to be told");
        cells.published(&cell, Counts { hits: 510, refunds: 3 });
        cells.expire(REGIONS, now(2 * SECOND_US + IDLE_US));
        assert_eq!(cells.len(), 0);
    }

    #[test]
    fn what_the_table_has_is_not_told_again_until_it_may_have_lost_it() {
        let mut cells = SpokenCells::default();
        let Mention { cell, .. } = mention(1, 7, 600);
        cells.follow(mention(1, 7, 600), Some(SlotRef::of(3)), 0);
        cells.heard(&cell, true, counts(600));
        assert_eq!(rows(&mut cells), Vec::<u64>::new());
        cells.forget_told();
        assert_eq!(rows(&mut cells), [600]);
        cells.expire(REGIONS, Now { wall_ms: 9 * 60_000, mono_us: 0 });
        assert_eq!(cells.len(), 0, "its windows are over");
        cells.follow(mention(1, 7, 600), Some(SlotRef::of(3)), 0);
        assert_eq!(cells.clear(), [SlotRef::of(3)]);
    }

    #[test]
    fn reads_have_few_keys_each_once_and_create_nothing() {
        let mut cells = SpokenCells::default();
        for number in 0..300 {
            for sequence in [6, 7, 9] {
                cells.follow(mention(number, sequence, 600), None, 0);
            }
        }
        let reads = cells.reads(ProcessId(1), REGIONS, false);
        for read in &reads {
            let keys: Vec<OriginKey> = read.call.parts.iter().map(|part| part.key).collect();
            assert!(keys.len() <= READ_KEYS && keys.is_sorted_by(|one, next| one < next), "each key once");
            let sizes = read.cells.iter().map(SmallVec::len);
            assert!(sizes.eq(read.call.parts.iter().map(|part| part.cells.len())));
        }
        let read: usize = reads.iter().flat_map(|read| &read.cells).map(SmallVec::len).sum();
        assert_eq!(read, 900);
        let mut origin = crate::regional::model::Origin::default();
        reads.iter().for_each(|read| drop(origin.call(&read.call, 7 * 60_000)));
        assert_eq!(origin.totals(), (0, 0));
        let slots = cells.reads(ProcessId(1), REGIONS, true);
        let is_one_slot = |read: &CellsRead| {
            let slots: Vec<u16> = read.call.parts.iter().map(|part| cluster_slot(&part.key)).collect();
            slots.windows(2).all(|two| two[0] == two[1])
        };
        assert!(slots.iter().all(is_one_slot));
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let mut cells = SpokenCells::default();
        assert!((0..CELLS_MAX as u64).all(|number| cells.follow(mention(number, 7, 600), None, 0)));
        assert!(!cells.follow(mention(CELLS_MAX as u64, 7, 600), None, 0));
        assert!(cells.follow(mention(0, 7, 700), None, 0));
    }

    /// Found by a review: the first cells in order had all the room, turn after turn.
    #[test]
    fn cells_for_which_there_was_no_room_come_first_in_the_next_turn() {
        let mut cells = SpokenCells::default();
        let mut published = Vec::new();
        for turn in 0..4 {
            (0..10).for_each(|number| assert!(cells.follow(mention(number, 7, 500 + turn), None, turn)));
            for SpokenRow { row: OwnRow { cell, counts }, .. } in cells.rows(REGIONS, 4, |_| true) {
                cells.published(&cell, counts);
                published.push(String::from_utf8_lossy(&cell.identifier).trim_start_matches('0').parse().unwrap_or(0));
            }
        }
        assert_eq!(published, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
    }
}
