//! What the origin does, in plain Rust: `redis/scripts/origin.lua` in memory.
//!
//! It is the simulator's Redis, and it documents the script: the same rules without what makes a script fast. A test
//! sends the same calls to both and compares every reply. To fail over to an older copy, put a clone back; to lose all
//! data, call [`Origin::clear`].

mod buckets;
#[cfg(test)]
mod tests;
mod voice;
mod windows;

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::engine::count::exact::PARTS as BLOCK;
use crate::engine::quota::QuotaRule;
use crate::engine::table::cell::{BucketLevel, CellState, CellUpdate, HeldAt};
use crate::regional::call::{Ask, AskVerdict, Call, CallKey, Measure, Need, OriginKey, ProcessId, Reply};
use crate::regional::model::buckets::{BucketHash, level_max};
use crate::regional::model::voice::VoiceKeys;
use crate::regional::model::windows::{CellHash, window, window_mut};
use crate::regional::redis::codec::{BeatReply, bounded, bounded_update};

/// A process that is silent for longer is gone.
const GONE_AFTER_MS: u64 = 3000;

/// From 2030 on, an epoch has fewer bits of the nonce, so that epochs last for centuries.
const EPOCHS_COARSE_MS: u64 = 1_893_456_000_000;

/// A Redis with nothing but our cells in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    cells: BTreeMap<(OriginKey, u64), CellHash>,
    buckets: BTreeMap<OriginKey, BucketHash>,
    /// When each process was last heard of.
    processes: BTreeMap<ProcessId, u64>,
    /// When a heartbeat first came in, in microseconds: names the data that is here.
    incarnation: Option<u64>,
    /// Who speaks with other regions, and what is told about those.
    voice: VoiceKeys,
}

/// What every cell has. Those of a block of an exact window have one epoch, and end together.
#[derive(Clone, Debug, Default)]
struct Base {
    /// Names this making of the hash.
    epoch: u64,
    /// The epoch of the first generation: nothing was lost since.
    born: u64,
    /// One for each process that holds the key; a bucket has more in its generation before.
    fields: BTreeMap<ProcessId, ProcessField>,
    /// When the hash expires, by the origin's clock; 0 until something is kept in it.
    expires_at_ms: u64,
}

/// The highest totals that a process has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcessField {
    own: u64,
    asked: u64,
}

/// The news in an update of a cell.
struct News {
    /// How the epoch that the process knows compares to the cell's; `None` if it is the same, or the process knows
    /// none.
    other_epoch: Option<OtherEpoch>,
    /// Hits to add.
    hits: u64,
    /// How far the process's field went up.
    raised: u64,
    /// Refunds to take.
    refunds: u64,
    /// Whether the process's field is made or raised.
    is_field_new: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherEpoch {
    /// The process knows an older one: the origin has lost the cell and made it anew.
    Older,
    /// It knows one of a generation before: nothing is lost.
    Before,
    /// It knows a newer one: an older copy of the cell came back.
    Newer,
}

fn saturating(left: u64, right: u64) -> u64 {
    bounded(left.saturating_add(right))
}

/// An epoch for this moment, later than one that was known.
fn new_epoch(known: u64, nonce: u16, time_ms: u64) -> u64 {
    let epoch = match time_ms.checked_sub(EPOCHS_COARSE_MS) {
        None => time_ms * 4096 + u64::from(nonce),
        Some(since_ms) => EPOCHS_COARSE_MS * 4096 + since_ms * 64 + u64::from(nonce % 64),
    };
    bounded(epoch.max(known + 1))
}

impl Base {
    /// Made for a process that knew an epoch: the new one is later, even if this origin's clock is behind.
    fn new(known: u64, nonce: u16, time_ms: u64) -> Base {
        let epoch = new_epoch(known, nonce, time_ms);
        Base { epoch, born: epoch, ..Base::default() }
    }

    /// Raises the process's field to what it tells, and says what is new in that. For a process that is not seated,
    /// only makes the field.
    fn hear(&mut self, process: ProcessId, told: &CellUpdate) -> News {
        let is_missing = !self.fields.contains_key(&process);
        let field = self.fields.entry(process).or_default();
        let other_epoch = match told.epoch {
            0 => None,
            epoch if epoch < self.born => Some(OtherEpoch::Older),
            epoch if epoch < self.epoch => Some(OtherEpoch::Before),
            epoch if epoch > self.epoch => Some(OtherEpoch::Newer),
            _ => None,
        };
        if !told.is_seated {
            return News { other_epoch, hits: 0, raised: 0, refunds: 0, is_field_new: is_missing };
        }
        let before = *field;
        *field = ProcessField { own: before.own.max(told.own), asked: before.asked.max(told.asked) };
        let known = match other_epoch {
            None => before,
            Some(_) => ProcessField { own: before.own.max(told.acked), asked: before.asked.max(told.asked_acked) },
        };
        News {
            other_epoch,
            hits: told.own.saturating_sub(known.own),
            raised: field.own - before.own,
            refunds: told.asked.saturating_sub(known.asked),
            is_field_new: is_missing || *field != before,
        }
    }
}

/// A part of a call while the call is served.
struct OpenPart {
    part: CallKey,
    /// The process's total in the newest cell, with the asks that were admitted so far.
    running: u64,
    /// A bucket that was not there, and has to be written only if there is something to keep.
    is_made: bool,
    /// A bucket that has to be written.
    is_changed: bool,
    /// How long the cells that are made now are kept, by their names.
    ttl_ms: BTreeMap<HeldAt, u64>,
}

/// Under which of its names a part's cell is held.
fn held_at(part: &CallKey, sequence: u64) -> HeldAt {
    match part.measure {
        Measure::Gcra { .. } => HeldAt::Bucket,
        Measure::Sum | Measure::Sliding { .. } => HeldAt::Cell(sequence),
        Measure::Exact => HeldAt::Block(sequence / BLOCK),
    }
}

/// All sub-cells of an exact window, the newest first, whatever is told of them.
fn sub_cells(part: &CallKey) -> impl Iterator<Item = u64> {
    let newest = part.cells[0].sequence();
    (0..=BLOCK).map(move |back| newest.saturating_sub(back))
}

impl Origin {
    /// Serves a call at a time of the origin's own clock.
    pub(crate) fn call(&mut self, call: &Call, time_ms: u64) -> Reply {
        self.expire(time_ms);
        let mut open: Vec<OpenPart> = call.parts.iter().map(|part| self.open(call, part, time_ms)).collect();
        let verdicts = call.asks.iter().map(|ask| self.decide(call, &mut open, ask)).collect();
        let parts = open.iter().map(|open| self.close(call.process, open, time_ms)).collect();
        Reply { parts, verdicts }
    }

    /// Brings the cells of a part up to what they are told.
    fn open(&mut self, call: &Call, part: &CallKey, time_ms: u64) -> OpenPart {
        let cells = part.cells.iter().map(|told| bounded_update(told, part.window_ms)).collect();
        let part = CallKey { cells, ..*part };
        let mut ttl_ms = BTreeMap::new();
        let (is_made, is_changed) = match part.measure {
            Measure::Gcra { limit, burst } => self.open_bucket(call, &part, (limit, burst), time_ms),
            Measure::Sum | Measure::Sliding { .. } | Measure::Exact => {
                for told in &part.cells {
                    ttl_ms.insert(held_at(&part, told.sequence()), window(told).ttl_ms);
                }
                self.open_cells(call, &part, time_ms);
                (false, false)
            }
        };
        let told = &part.cells[0];
        let running = if told.is_seated { told.own } else { self.field(call.process, &part).own };
        OpenPart { part, running, is_made, is_changed, ttl_ms }
    }

    /// Decides an ask and charges it to the newest cells.
    fn decide(&mut self, call: &Call, open: &mut [OpenPart], ask: &Ask) -> AskVerdict {
        let mut fits: Vec<bool> = Vec::new();
        for (place, need) in ask.needs.iter().enumerate() {
            // Earlier twins in the ask that fit are counted in: one verdict covers them all.
            let is_twin = |(other, fits): &(&Need, &bool)| other.part == need.part && **fits;
            let waiting = ask.needs[..place].iter().zip(&fits).filter(is_twin);
            let waiting = waiting.fold(0, |sum, (other, _)| saturating(sum, other.hits));
            let open = &open[need.part];
            let wanted = saturating(saturating(open.running, waiting), bounded(need.hits));
            let new = wanted.saturating_sub(self.field(call.process, &open.part).own);
            fits.push(self.effective(&open.part).saturating_add(new) <= bounded(need.limit));
        }

        let needs = || ask.needs.iter().zip(&fits);
        let is_group_over = |quota: u16| needs().any(|(need, fits)| need.quota == Some(quota) && !fits);
        let is_over = |need: &Need, fits: bool| need.quota.map_or(!fits, is_group_over);
        let rule = QuotaRule::of(needs().map(|(need, fits)| (need.quota.is_some(), is_over(need, *fits))));
        let is_admitted = !rule.denies();
        if is_admitted {
            for need in ask.needs.iter().filter(|need| !need.quota.is_some_and(is_group_over)) {
                self.charge(call, &mut open[need.part], need);
            }
        }
        let over = (0..).zip(&fits).filter(|(_, fits)| !**fits).map(|(place, _)| place).collect();
        AskVerdict { is_admitted, over }
    }

    fn charge(&mut self, call: &Call, open: &mut OpenPart, need: &Need) {
        open.running = saturating(open.running, bounded(need.hits));
        let field = self.field(call.process, &open.part).own;
        let admitted = open.running.saturating_sub(field);
        let is_ahead = need.hits > 0 && !matches!(open.part.measure, Measure::Gcra { .. });
        let ahead = saturating(open.running, if is_ahead { need.ahead.into() } else { 0 }).saturating_sub(field);
        let left = bounded(need.limit).saturating_sub(self.effective(&open.part));
        let new = admitted.max(ahead.min(left));
        if !call.charges || new == 0 {
            return;
        }
        open.is_changed = true;
        if let Some(base) = self.newest_mut(&open.part) {
            base.fields.entry(call.process).or_default().own = field + new;
        }
        let cell = (open.part.key, open.part.cells[0].sequence());
        match open.part.measure {
            Measure::Gcra { limit, burst } => {
                let most = level_max(limit, burst);
                self.buckets.get_mut(&cell.0).into_iter().for_each(|bucket| bucket.add(new, most));
            }
            Measure::Sum | Measure::Sliding { .. } | Measure::Exact => {
                if let Some(cell) = self.cells.get_mut(&cell) {
                    cell.told = saturating(cell.told, new);
                    cell.add(new);
                }
                // The row does not have what is admitted now.
                if let Some(window) = window_mut(&mut open.part.cells[0]) {
                    let row = &mut window.row;
                    row.hits = if row.hits == 0 { 0 } else { saturating(row.hits, new) };
                }
            }
        }
    }

    /// The count against a limit. If the process is not seated, its own hits come on top.
    fn effective(&self, part: &CallKey) -> u64 {
        let unheard = |told: &CellUpdate| if told.is_seated { 0 } else { told.own };
        let count = |told: &CellUpdate| {
            let window = window(told);
            let cell = &self.cells[&(part.key, window.sequence)];
            let region = saturating(cell.count(), unheard(told));
            saturating(region.max(window.row.without(cell.refunds())), window.foreign)
        };
        match part.measure {
            Measure::Sum => part.cells.iter().map(count).fold(0, saturating),
            Measure::Exact => {
                let is_untold = |sequence: &u64| part.cells.iter().all(|told| told.sequence() != *sequence);
                let untold = sub_cells(part).filter(is_untold);
                let held = untold.filter_map(|sequence| self.cells.get(&(part.key, sequence)).map(CellHash::count));
                part.cells.iter().map(count).chain(held).fold(0, saturating)
            }
            Measure::Sliding { left_ms } => {
                let previous = part.cells.get(1).map_or(0, count);
                let weighed = u128::from(previous) * u128::from(left_ms) / u128::from(part.window_ms);
                saturating(count(&part.cells[0]), weighed as u64)
            }
            Measure::Gcra { .. } => {
                let bucket = &self.buckets[&part.key];
                bucket.whole + u64::from(bucket.rest > 0) + unheard(&part.cells[0])
            }
        }
    }

    /// Writes what changed and says what the cells hold.
    fn close(&mut self, process: ProcessId, open: &OpenPart, time_ms: u64) -> SmallVec<[CellState; 2]> {
        let part = &open.part;
        match part.measure {
            Measure::Gcra { limit, .. } => SmallVec::from_iter([self.close_bucket(process, open, limit, time_ms)]),
            Measure::Sum | Measure::Sliding { .. } => {
                let sequences = part.cells.iter().map(CellUpdate::sequence);
                sequences.map(|sequence| self.close_cell(process, open, sequence, time_ms)).collect()
            }
            Measure::Exact => {
                let mut heard: SmallVec<[CellState; 2]> =
                    sub_cells(part).map(|sequence| self.close_cell(process, open, sequence, time_ms)).collect();
                // Only now all of them are made that are.
                for cell in &mut heard {
                    let block = held_at(part, cell.sequence);
                    cell.epoch = self.block_epoch(part, block).unwrap_or(0);
                    cell.holders = self.block_holders(part, block);
                }
                heard
            }
        }
    }

    fn close_bucket(&mut self, process: ProcessId, open: &OpenPart, limit: u32, time_ms: u64) -> CellState {
        let Some(bucket) = self.buckets.get_mut(&open.part.key) else { return CellState::default() };
        let ttl_ms = bucket.ttl_ms(time_ms, limit, open.part.window_ms);
        let ProcessField { own, asked } = bucket.base.fields[&process];
        let level = BucketLevel { ahead_ms: bucket.at_ms - time_ms, whole: bucket.whole, rest: bucket.rest };
        if open.is_made && (bucket.whole, bucket.rest, bucket.ever_added, own, asked) == (0, 0, 0, 0, 0) {
            // It was only read.
            self.buckets.remove(&open.part.key);
            return CellState { level, ..CellState::default() };
        }
        if open.is_changed {
            bucket.base.expires_at_ms = time_ms + ttl_ms;
        }
        let holders = u32::try_from(bucket.base.fields.len() + bucket.before.left).unwrap_or(u32::MAX);
        let (epoch, sum) = (bucket.base.epoch, bucket.ever_added);
        CellState { sequence: 0, epoch, sum, field: own, asked, refunds: 0, holders, level }
    }

    /// A cell is kept if there is something to keep.
    fn close_cell(&mut self, process: ProcessId, open: &OpenPart, sequence: u64, time_ms: u64) -> CellState {
        let part = &open.part;
        let Some(cell) = self.cells.get_mut(&(part.key, sequence)) else {
            return CellState { sequence, ..CellState::default() };
        };
        cell.base.fields.retain(|_, field| *field != ProcessField::default());
        if cell.is_blank() {
            self.cells.remove(&(part.key, sequence));
            return CellState { sequence, ..CellState::default() };
        }
        if cell.base.expires_at_ms == 0 {
            cell.base.expires_at_ms = time_ms + open.ttl_ms.get(&held_at(part, sequence)).copied().unwrap_or_default();
        }
        let ProcessField { own, asked } = cell.base.fields.get(&process).copied().unwrap_or_default();
        CellState {
            sequence,
            epoch: cell.base.epoch,
            sum: cell.hits(),
            field: own,
            asked,
            refunds: cell.refunds(),
            holders: u32::try_from(cell.base.fields.len()).unwrap_or(u32::MAX),
            level: BucketLevel::default(),
        }
    }

    /// What a part's newest cell has in common with all others.
    fn newest_mut(&mut self, part: &CallKey) -> Option<&mut Base> {
        match part.measure {
            Measure::Gcra { .. } => self.buckets.get_mut(&part.key).map(|bucket| &mut bucket.base),
            _ => self.cells.get_mut(&(part.key, part.cells[0].sequence())).map(|cell| &mut cell.base),
        }
    }

    /// What the process has in a part's newest cell.
    fn field(&self, process: ProcessId, part: &CallKey) -> ProcessField {
        let base = match part.measure {
            Measure::Gcra { .. } => self.buckets.get(&part.key).map(|bucket| &bucket.base),
            _ => self.cells.get(&(part.key, part.cells[0].sequence())).map(|cell| &cell.base),
        };
        base.and_then(|base| base.fields.get(&process)).copied().unwrap_or_default()
    }

    fn expire(&mut self, time_ms: u64) {
        self.cells.retain(|_, cell| time_ms < cell.base.expires_at_ms);
        self.buckets.retain(|_, bucket| time_ms < bucket.base.expires_at_ms);
        for before in self.buckets.values_mut().map(|bucket| &mut bucket.before) {
            before.fields.retain(|_, _| time_ms < before.expires_at_ms);
        }
    }

    /// Takes a heartbeat.
    pub(crate) fn beat(&mut self, process: ProcessId, time_ms: u64) -> BeatReply {
        self.processes.retain(|_, heard_ms| *heard_ms + GONE_AFTER_MS >= time_ms);
        let was_known = self.processes.insert(process, time_ms).is_some();
        let incarnation = *self.incarnation.get_or_insert(time_ms * 1000);
        BeatReply { was_known, live: self.processes.len() as u64, time_ms, incarnation }
    }

    /// Forgets a process that stops, and its fields where it held a key. The sums stay.
    pub(crate) fn leave(&mut self, process: ProcessId, held: &[(OriginKey, HeldAt)]) {
        self.processes.remove(&process);
        for (key, at) in held {
            let sequences = match at {
                HeldAt::Bucket => {
                    self.buckets.get_mut(key).and_then(|bucket| bucket.base.fields.remove(&process));
                    continue;
                }
                HeldAt::Cell(sequence) => *sequence..=*sequence,
                HeldAt::Block(number) => number * BLOCK..=number * BLOCK + BLOCK - 1,
            };
            for sequence in sequences {
                self.cells.get_mut(&(*key, sequence)).and_then(|cell| cell.base.fields.remove(&process));
            }
        }
    }

    /// Loses all data.
    pub(crate) fn clear(&mut self) {
        *self = Origin::default();
    }

    /// The hits and refunds of all cells.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |of: fn(&CellHash) -> u64| self.cells.values().map(of).sum();
        (sum(CellHash::hits), sum(CellHash::refunds))
    }

    /// The level of all buckets in whole hits, and the most fields that one of them has.
    pub(crate) fn levels(&self) -> (u64, usize) {
        let fields = |bucket: &BucketHash| bucket.base.fields.len() + bucket.before.fields.len();
        let level = self.buckets.values().map(|bucket| bucket.whole).sum();
        (level, self.buckets.values().map(fields).max().unwrap_or(0))
    }

    /// The hits and refunds of a window's cell.
    #[cfg(test)]
    pub(crate) fn total(&self, key: &OriginKey, sequence: u64) -> Option<(u64, u64)> {
        self.cells.get(&(*key, sequence)).map(|cell| (cell.hits(), cell.refunds()))
    }
}
