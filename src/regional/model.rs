//! What the origin does, in plain Rust: `redis/scripts/origin.lua` in memory.
//!
//! It is the simulator's Redis, and it documents the script: the same rules without what makes a script fast. A test
//! sends the same calls to both and compares every reply. To fail over to an older copy, put a clone back; to lose all
//! data, call [`Origin::clear`].

mod buckets;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::engine::quota::QuotaRule;
use crate::engine::table::cell::{BucketLevel, CellState, CellUpdate};
use crate::regional::call::{Ask, AskVerdict, Call, CallKey, Measure, Need, OriginKey, ProcessId, Reply};
use crate::regional::model::buckets::{BucketHash, level_max};
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
}

/// The fields that every hash has.
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
    /// A hash for a process that knew an epoch: its own is later, even if this origin's clock is behind.
    fn new(told: &CellUpdate, nonce: u16, time_ms: u64) -> Base {
        let epoch = new_epoch(told.epoch, nonce, time_ms);
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
    /// For each cell, whether it has to be written.
    is_changed: SmallVec<[bool; 2]>,
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
        let is_changed = match part.measure {
            Measure::Gcra { limit, burst } => self.open_bucket(call, &part, (limit, burst), time_ms),
            Measure::Sum | Measure::Sliding { .. } => self.open_cells(call, &part, time_ms),
        };
        let told = &part.cells[0];
        let running = if told.is_seated { told.own } else { self.base(&part, 0).fields[&call.process].own };
        OpenPart { part, running, is_changed }
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
                self.charge(call, &mut open[need.part], need.hits);
            }
        }
        let over = (0..).zip(&fits).filter(|(_, fits)| !**fits).map(|(place, _)| place).collect();
        AskVerdict { is_admitted, over }
    }

    fn charge(&mut self, call: &Call, open: &mut OpenPart, hits: u64) {
        open.running = saturating(open.running, bounded(hits));
        let new = open.running.saturating_sub(self.field(call.process, &open.part).own);
        if !call.charges || new == 0 {
            return;
        }
        open.is_changed[0] = true;
        if let Some(field) = self.base_mut(&open.part, 0).and_then(|base| base.fields.get_mut(&call.process)) {
            field.own = open.running;
        }
        let cell = (open.part.key, open.part.cells[0].sequence());
        match open.part.measure {
            Measure::Gcra { limit, burst } => {
                let most = level_max(limit, burst);
                self.buckets.get_mut(&cell.0).into_iter().for_each(|bucket| bucket.add(new, most));
            }
            Measure::Sum | Measure::Sliding { .. } => {
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

    /// Writes what changed, which also extends its life, and answers what the cells hold.
    fn close(&mut self, process: ProcessId, open: &OpenPart, time_ms: u64) -> SmallVec<[CellState; 2]> {
        let OpenPart { part, is_changed, .. } = open;
        let is_bucket = matches!(part.measure, Measure::Gcra { .. });
        let mut heard = SmallVec::new();
        for (place, (told, is_changed)) in part.cells.iter().zip(is_changed).enumerate() {
            let ttl_ms = match part.measure {
                Measure::Gcra { limit, .. } => self.buckets[&part.key].ttl_ms(time_ms, limit, part.window_ms),
                Measure::Sum | Measure::Sliding { .. } => window(told).ttl_ms,
            };
            if let Some(base) = self.base_mut(part, place).filter(|_| *is_changed) {
                base.expires_at_ms = time_ms + ttl_ms;
            }
            let base = self.base(part, place);
            let field = base.fields[&process];
            let (sum, refunds, level) = match part.measure {
                Measure::Gcra { .. } => {
                    let BucketHash { whole, rest, at_ms, ever_added, .. } = self.buckets[&part.key];
                    (ever_added, 0, BucketLevel { ahead_ms: at_ms - time_ms, whole, rest })
                }
                Measure::Sum | Measure::Sliding { .. } => {
                    let cell = &self.cells[&(part.key, told.sequence())];
                    (cell.hits(), cell.refunds(), BucketLevel::default())
                }
            };
            let before = if is_bucket { self.buckets[&part.key].before.left } else { 0 };
            let holders = u32::try_from(base.fields.len() + before).unwrap_or(u32::MAX);
            let ProcessField { own, asked } = field;
            let (sequence, epoch) = (told.sequence(), base.epoch);
            let said = CellState { sequence, epoch, sum, field: own, asked, refunds, holders, level };
            // A cell with nothing to keep was there for this call only.
            let is_there = base.expires_at_ms > 0;
            if !is_there {
                self.cells.remove(&(part.key, told.sequence()));
            }
            heard.push(if is_there { said } else { CellState { epoch: 0, holders: 0, ..said } });
        }
        heard
    }

    fn base(&self, part: &CallKey, place: usize) -> &Base {
        match part.measure {
            Measure::Gcra { .. } => &self.buckets[&part.key].base,
            Measure::Sum | Measure::Sliding { .. } => &self.cells[&(part.key, part.cells[place].sequence())].base,
        }
    }

    fn base_mut(&mut self, part: &CallKey, place: usize) -> Option<&mut Base> {
        match part.measure {
            Measure::Gcra { .. } => self.buckets.get_mut(&part.key).map(|bucket| &mut bucket.base),
            Measure::Sum | Measure::Sliding { .. } => {
                self.cells.get_mut(&(part.key, part.cells[place].sequence())).map(|cell| &mut cell.base)
            }
        }
    }

    /// What the process has in a part's newest cell.
    fn field(&self, process: ProcessId, part: &CallKey) -> ProcessField {
        self.base(part, 0).fields.get(&process).copied().unwrap_or_default()
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

    /// Forgets a process that stops, and its fields in the cells that it held. A bucket's sequence is 0. The sums stay.
    pub(crate) fn leave(&mut self, process: ProcessId, cells: &[(OriginKey, u64)]) {
        self.processes.remove(&process);
        for (key, sequence) in cells {
            let cell = self.cells.get_mut(&(*key, *sequence)).map(|cell| &mut cell.base);
            let bucket = self.buckets.get_mut(key).filter(|_| *sequence == 0).map(|bucket| &mut bucket.base);
            for base in cell.into_iter().chain(bucket) {
                base.fields.remove(&process);
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
