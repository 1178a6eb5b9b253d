//! The cells of windows: how the origin takes what it is told about them.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::count::exact::PARTS as BLOCK;
use crate::engine::table::cell::{CellShape, CellUpdate, HeldAt, WindowUpdate};
use crate::regional::call::{COUNT_MAX, Call, CallKey, Measure, ProcessId};
use crate::regional::model::{Base, Origin, OtherEpoch, ProcessField, held_at, saturating, sub_cells};

/// A cell of a window.
#[derive(Clone, Debug, Default)]
pub(super) struct CellHash {
    /// Epoch, expiry and fields.
    pub(super) base: Base,
    /// `f`: the most that a process knew of the cell when it was made anew; 0 if it was never lost.
    pub(super) floor: u64,
    /// `a`: hits on top of the floor.
    pub(super) added: u64,
    /// `h`: the sum of all fields that there ever were.
    pub(super) told: u64,
    /// `r`: refunds that this copy was told of.
    pub(super) refunds: u64,
    /// `k`: the most that a process has known in this epoch, and what was given back of it.
    pub(super) known: ProcessField,
}

/// The part of an update that only a window's cell has.
pub(super) fn window(told: &CellUpdate) -> WindowUpdate {
    match told.shape {
        CellShape::Window(window) => window,
        CellShape::Bucket(_) => WindowUpdate::default(),
    }
}

pub(super) fn window_mut(told: &mut CellUpdate) -> Option<&mut WindowUpdate> {
    match &mut told.shape {
        CellShape::Window(window) => Some(window),
        CellShape::Bucket(_) => None,
    }
}

impl CellHash {
    pub(super) fn hits(&self) -> u64 {
        self.told_hits().max(self.known.own)
    }

    /// Whether there is nothing to keep.
    pub(super) fn is_blank(&self) -> bool {
        self.hits() == 0 && self.base.fields.is_empty()
    }

    /// What was told to this copy.
    pub(super) fn told_hits(&self) -> u64 {
        saturating(self.floor, self.added).max(self.told)
    }

    /// The refunds, as far as anybody knows.
    pub(super) fn refunds(&self) -> u64 {
        self.refunds.max(self.known.asked)
    }

    /// What counts against a limit. A full cell has no refunds.
    pub(super) fn count(&self) -> u64 {
        self.hits() - self.refunds()
    }

    pub(super) fn is_full(&self) -> bool {
        self.hits() == COUNT_MAX
    }

    pub(super) fn add(&mut self, hits: u64) {
        self.added = saturating(self.added, hits);
        self.stay_full();
    }

    /// A full cell stays full: refunds from before must not make room in it.
    pub(super) fn stay_full(&mut self) {
        if self.is_full() {
            (self.refunds, self.known.asked) = (0, 0);
        }
    }

    /// Takes over what a process knows, if that is more than this copy does. An older copy may have come back, and
    /// processes that told it more may be gone. It is never added: processes that are there tell again.
    pub(super) fn know(&mut self, told: &CellUpdate) {
        if told.epoch == self.base.epoch && told.floor > self.hits() {
            let pending = told.asked.saturating_sub(told.asked_acked);
            let refunds = window(told).refunds_floor.saturating_sub(pending).min(told.floor);
            self.known = ProcessField { own: told.floor, asked: self.known.asked.max(refunds) };
            self.stay_full();
        }
    }

    /// Takes refunds, never more than is there, and returns the rest.
    pub(super) fn refund(&mut self, hits: u64) -> u64 {
        let taken = if self.is_full() { 0 } else { hits.min(self.hits() - self.refunds) };
        self.refunds += taken;
        hits - taken
    }

    pub(super) fn raise(&mut self, told: &CellUpdate, other_epoch: OtherEpoch) {
        match other_epoch {
            OtherEpoch::Older => self.floor = self.floor.max(told.floor),
            // Raises `added` rather than `floor`, because a floor from before may still come in.
            OtherEpoch::Newer if told.floor > self.told_hits() => self.added = told.floor - self.floor,
            OtherEpoch::Before | OtherEpoch::Newer => {}
        }
        self.refunds = self.refunds.max(window(told).refunds_floor.min(self.told_hits()));
    }
}

impl Origin {
    pub(super) fn open_cells(&mut self, call: &Call, part: &CallKey, time_ms: u64) {
        let mut refunds = Vec::new();
        // Once for all cells of a block: one epoch, later than all that is told.
        let mut made: BTreeMap<HeldAt, Base> = BTreeMap::new();
        for told in &part.cells {
            let at = held_at(part, told.sequence());
            made.entry(at).or_insert_with(|| {
                let among = part.cells.iter().filter(|other| held_at(part, other.sequence()) == at);
                let known = among.map(|other| other.epoch).max().unwrap_or(0);
                let held = self.block(part, at).next();
                let as_held = |(_, cell): (u64, &CellHash)| Base { fields: BTreeMap::new(), ..cell.base.clone() };
                held.map_or_else(|| Base::new(known, call.nonce, time_ms), as_held)
            });
        }
        for told in &part.cells {
            let make = || CellHash { base: made[&held_at(part, told.sequence())].clone(), ..CellHash::default() };
            let cell = self.cells.entry((part.key, told.sequence())).or_insert_with(make);
            let news = cell.base.hear(call.process, told);
            if let Some(other_epoch) = news.other_epoch {
                cell.raise(told, other_epoch);
            }
            cell.told = saturating(cell.told, news.raised);
            cell.add(news.hits);
            cell.know(told);
            refunds.push((told.sequence(), news.refunds));
        }
        // Only now, because they take from all cells of the part.
        let all: Vec<u64> = match part.measure {
            Measure::Exact => sub_cells(part).collect(),
            _ => part.cells.iter().map(CellUpdate::sequence).collect(),
        };
        for (newest, mut left) in refunds {
            for sequence in all.iter().filter(|sequence| **sequence <= newest) {
                if let Some(cell) = self.cells.get_mut(&(part.key, *sequence)) {
                    left = cell.refund(left);
                }
            }
        }
    }

    /// The cells that are held under one name.
    fn block(&self, part: &CallKey, at: HeldAt) -> impl Iterator<Item = (u64, &CellHash)> {
        let (first, last) = match at {
            HeldAt::Block(number) => (number * BLOCK, number * BLOCK + BLOCK - 1),
            HeldAt::Cell(sequence) => (sequence, sequence),
            HeldAt::Bucket => (1, 0),
        };
        (first..=last).filter_map(|sequence| Some((sequence, self.cells.get(&(part.key, sequence))?)))
    }

    pub(super) fn block_epoch(&self, part: &CallKey, at: HeldAt) -> Option<u64> {
        self.block(part, at).next().map(|(_, cell)| cell.base.epoch)
    }

    pub(super) fn block_holders(&self, part: &CallKey, at: HeldAt) -> u32 {
        let processes: BTreeSet<ProcessId> =
            self.block(part, at).flat_map(|(_, cell)| cell.base.fields.keys().copied()).collect();
        u32::try_from(processes.len()).unwrap_or(u32::MAX)
    }
}
