//! Takes a store's answer about a key over into the counts that decisions are made from.

use crate::clock::Now;
use crate::engine::count::counter::{Counter, rate};
use crate::engine::count::window::Cell;
use crate::engine::table::cell::{COUNT_MAX, CellState};
use crate::engine::table::own_counts::OwnCounts;
use crate::engine::table::regional_part::{CELLS_SETTLED, FRESH_MS, HEARD, RegionalPart};
use crate::rules::limit::Terms;

/// A view of the previous cell that is this much younger than the rollover has seen every other process's last replay.
const SETTLED_MS: u64 = 200;

/// What an answer is to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// A check, which admitted so many hits.
    Admitted(u64),
    /// A message that brought totals.
    Told {
        /// A check of the key is under way. What it is granted may be in the field already, and hits that were told after
        /// it was sent may pass for some of it: only its own answer says what the store has heard of.
        is_checking: bool,
    },
}

impl Heard {
    /// Hits are admitted in the newest cell.
    fn of_older_cell(self) -> Heard {
        match self {
            Heard::Admitted(_) => Heard::Admitted(0),
            Heard::Told { .. } => self,
        }
    }
}

impl RegionalPart {
    /// Takes an answer over into the view, with the hits that it admitted. Returns whether anything is still pending.
    pub(crate) fn absorb(
        &mut self,
        counter: &mut Counter,
        terms: &Terms,
        cells: &[CellState],
        answer: Heard,
        at: Now,
    ) -> bool {
        self.look(counter, terms, at.wall_ms);
        for (index, heard) in cells.iter().enumerate() {
            let answer = if index == 0 { answer } else { answer.of_older_cell() };
            self.absorb_cell(counter, terms, heard, answer, at.wall_ms);
        }
        if cells.len() > 1 && counter.elapsed_ms(terms, at.wall_ms) >= SETTLED_MS {
            self.marks |= CELLS_SETTLED;
        }
        if cells.first().is_some_and(|cell| counter.window_of(cell.sequence) == counter.window_of(counter.sequence())) {
            self.marks |= HEARD;
        }
        let holders = cells.iter().map(|cell| cell.holders).max().unwrap_or(0);
        self.holders = u16::try_from(holders).unwrap_or(u16::MAX).max(1);
        self.fresh_until_ms = (at.mono_ms() + FRESH_MS) as u32;
        self.is_failed = false;
        self.reconsider_pause(counter, terms, at.wall_ms);
        self.is_dirty()
    }

    fn absorb_cell(&mut self, counter: &mut Counter, terms: &Terms, heard: &CellState, answer: Heard, now_ms: u64) {
        // If the window has passed meanwhile, its place is one further on; a cell that does not count any more has none.
        let Some(at) = counter.place_of(heard.sequence) else { return };
        let (admitted, is_checking) = match answer {
            Heard::Admitted(admitted) => (admitted, false),
            Heard::Told { is_checking } => (0, is_checking),
        };
        self.accept(heard.sequence, admitted);
        let asked = self.absorb_refunds(at, heard);
        let came_back = self.refunds().map(|all| all[at]).filter(|beside| beside.was_here);
        let (grown, is_other_epoch, count) = self.own.change(at, |count| {
            let (before, grown) = match came_back {
                _ if count.is_seated() => (count.own, admitted),
                Some(beside) => (beside.known_here.saturating_add(count.own), admitted),
                // The field includes what was admitted now.
                None => (count.own, heard.field),
            };
            let acked_max = if count.is_seated() && is_checking { count.acked } else { u64::MAX };
            count.own = before;
            count.add(grown);
            count.acked = heard.field.min(acked_max);
            let is_other_epoch = count.epoch != heard.epoch;
            count.epoch = heard.epoch;
            (grown, is_other_epoch, *count)
        });
        // A level has all that the field has, whatever a check under way means for what is acknowledged.
        let (own, pending) = (count.own, count.own.saturating_sub(heard.field));
        match (counter, &mut self.own) {
            (Counter::Windowed(cells), _) => {
                let cell = if at == 0 { &mut cells.current } else { &mut cells.previous };
                merge(cell, own, grown, heard, asked);
            }
            (Counter::Exact(cells), _) => {
                cells.merge(at, |cell| merge(cell, own, grown, heard, asked));
            }
            (Counter::Gcra(bucket), OwnCounts::Bucket { version, held_until_ns, pending_since_ms, .. }) => {
                let rate = rate(terms);
                *held_until_ns = 0;
                if is_other_epoch || heard.sum >= *version {
                    *version = heard.sum;
                    // Pending hits that have drained here meanwhile count no more. Refunds are added: they are not in
                    // the level.
                    let pending = pending.min(
                        bucket.hits_to_tell(&rate, now_ms.saturating_sub(*pending_since_ms)).saturating_add(asked),
                    );
                    // Counted from now, because the origin's clock may be any time away from this one.
                    let from_ms = now_ms.saturating_add(heard.level.ahead_ms);
                    bucket.set(from_ms, (heard.level.whole, heard.level.rest), &rate);
                    bucket.add(&rate, pending);
                    *pending_since_ms = now_ms;
                    bucket.refund(&rate, asked);
                } else {
                    bucket.add(&rate, admitted);
                }
            }
            (Counter::Gcra(_), _) => {}
        }
    }

    /// Takes over what the origin has heard of this process's refunds, and returns those that it has not.
    fn absorb_refunds(&mut self, at: usize, heard: &CellState) -> u64 {
        let is_seated = self.own.get(at).is_seated();
        if heard.asked > 0 && !is_seated {
            self.refunds_mut();
        }
        let Some(refunds) = self.known_refunds_mut().map(|all| &mut all[at]) else { return 0 };
        if !is_seated {
            refunds.asked = refunds.asked.saturating_add(heard.asked).min(COUNT_MAX);
        }
        refunds.acked = heard.asked;
        // The origin may have been told of more than is asked for here, before new hits made some of it void.
        refunds.asked = refunds.asked.max(heard.asked);
        let pending = refunds.asked - refunds.acked;
        refunds.blind = refunds.blind.min(pending);
        pending
    }
}

/// Puts the view of a cell together: this process's hits, those of others, which only grow, and the refunds that the origin
/// has made or is still to be asked for.
fn merge(cell: &mut Cell, own: u64, grown: u64, heard: &CellState, asked: u64) {
    let own_before = own - grown.min(own);
    let others = cell.hits.saturating_sub(own_before).max(heard.sum.saturating_sub(heard.field));
    cell.hits = own.saturating_add(others);
    cell.refunds = heard.refunds.saturating_add(asked).min(cell.hits);
}
