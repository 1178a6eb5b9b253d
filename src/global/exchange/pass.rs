//! Reads everything that the table holds, in as many parts as it takes.
//!
//! A server may not get through a large table in the time that a reading has. The next part then begins at the cell
//! where the last one ended. Between parts, readings follow what changes, so that the pass gets to its end and nobody
//! falls behind. All parts together have read every row that was there when the first began: rows stay in their place,
//! and rows that were added behind the reading are among what changes.

use crate::clock::Now;
use crate::global::exchange::ExchangeState;
use crate::global::exchange::region_voice::RegionVoice;
use crate::global::row::CellName;

/// The time between passes, and up to a fifth more: everything is read whatever has changed, to repair what was missed.
const INTERVAL_US: u64 = 600_000_000;
/// The pause between parts, so that there is time to follow what changes.
const PART_PAUSE_US: u64 = 30_000_000;
/// After this long without an import everything is read.
const BEHIND_US: u64 = 60_000_000;

/// A pass through the table that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    /// Where the next part begins; `None`: at the start.
    pub from: Option<CellName>,
    /// When the next part is due.
    next_us: u64,
}

impl ExchangeState {
    /// Whether so much may have changed since the last import that reading it takes as long as reading everything.
    fn is_behind(&self, now: Now) -> bool {
        self.imported_us.is_some_and(|at_us| now.mono_us.saturating_sub(at_us) > BEHIND_US)
    }

    /// Has everything read at the next turn, from the start: what was read so far may not be what there is.
    pub(super) fn read_anew(&mut self) {
        self.full_at_us = 0;
        self.pass = None;
    }

    /// Whether a process that follows the speaker has to read the table itself: it has never read it, was told to read it
    /// anew, or has missed something.
    pub(super) fn lacks_anything(&self, now: Now) -> bool {
        let is_due = match &self.pass {
            Some(pass) => now.mono_us >= pass.next_us,
            None => now.mono_us >= self.full_at_us,
        };
        let lacks_news = |voice: &RegionVoice| voice.lacks_at_us.is_some_and(|at_us| now.mono_us >= at_us);
        self.watermark_ms.is_none() || is_due || self.voice.as_deref().is_some_and(lacks_news)
    }

    /// Leaves the pass that is made from time to time to the speaker.
    pub(super) fn leave_pass_to_speaker(&mut self, now: Now) {
        if self.full_at_us > now.mono_us {
            self.full_at_us = self.full_at_us.max(now.mono_us + INTERVAL_US);
        }
    }

    /// The part that is to be read now. `None`: only what has changed.
    pub(super) fn next_part(&mut self, now: Now) -> Option<&Pass> {
        if self.watermark_ms.is_none() || self.is_behind(now) {
            // Nobody knows what has changed since in the cells that were read already.
            self.read_anew();
        }
        match &self.pass {
            Some(pass) if now.mono_us < pass.next_us => return None,
            Some(_) => {}
            None if now.mono_us < self.full_at_us => return None,
            None => {
                // Set before the pass, so that whoever asks for another one meanwhile gets it.
                self.full_at_us = now.mono_us + INTERVAL_US + self.random_below(INTERVAL_US / 5);
                self.pass = Some(Pass::default());
            }
        }
        self.pass.as_ref()
    }

    /// Ends a part before the end of the table, at the cell that it reached, of which there may be more rows.
    pub(super) fn part_ended(&mut self, reached: Option<CellName>, now: Now) {
        if let Some(pass) = &mut self.pass {
            pass.from = reached.or(pass.from.take());
            pass.next_us = now.mono_us + PART_PAUSE_US;
        }
    }
}
