//! The cells of windows: how the origin takes what it is told about them.

use smallvec::SmallVec;

use crate::engine::table::cell::{CellShape, CellUpdate, WindowUpdate};
use crate::regional::call::{COUNT_MAX, Call, CallKey};
use crate::regional::model::{Base, Origin, OtherEpoch, ProcessField, saturating};

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

    /// The hits that this copy was told of.
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
    pub(super) fn open_cells(&mut self, call: &Call, part: &CallKey, time_ms: u64) -> SmallVec<[bool; 2]> {
        let mut is_changed = SmallVec::new();
        let mut refunds = Vec::new();
        for (place, told) in part.cells.iter().enumerate() {
            let is_made = !self.cells.contains_key(&(part.key, told.sequence()));
            let make = || CellHash { base: Base::new(told, call.nonce, time_ms), ..CellHash::default() };
            let cell = self.cells.entry((part.key, told.sequence())).or_insert_with(make);
            let before = (cell.floor, cell.added, cell.refunds, cell.known);
            let news = cell.base.hear(call.process, told);
            if let Some(other_epoch) = news.other_epoch {
                cell.raise(told, other_epoch);
            }
            cell.told = saturating(cell.told, news.raised);
            cell.add(news.hits);
            cell.know(told);
            refunds.push(news.refunds);
            let is_counted = before != (cell.floor, cell.added, cell.refunds, cell.known);
            // An older cell is not kept only to know its holders.
            let is_only_read = is_made && place > 0 && cell.base.fields[&call.process] == ProcessField::default();
            is_changed.push(is_counted || (!is_only_read && (is_made || news.is_field_new)));
        }
        // Refunds come last, because they take from all cells of the part.
        for (newest, mut left) in refunds.into_iter().enumerate() {
            for (told, is_changed) in part.cells.iter().zip(&mut is_changed).skip(newest) {
                if let Some(cell) = self.cells.get_mut(&(part.key, told.sequence())) {
                    let before = left;
                    left = cell.refund(left);
                    *is_changed |= left != before;
                }
            }
        }
        is_changed
    }
}
