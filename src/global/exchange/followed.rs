//! How far what changes in the table has been followed, and where the next reading of it begins.
//!
//! Rows are found by their dates, which the server gives them when they are sent. Others see them when they are committed, a
//! little later. So each reading begins some seconds before the end of the last one: the overlap.
//!
//! A reading that fails has heard nothing for sure. The next one begins where the last that succeeded ended, so the overlap is
//! wider by what was missed. What stood still until then may be committed a little after that reading, with a date from
//! before: one more looks back as far, when as much time has passed as the overlap covers.
//!
//! A server may go on reading and take long for each commit. What this process publishes then fails, as does what others do,
//! and all of it may be there later with its first date: as long as that goes on, readings look back as far as it has.

use crate::clock::Now;

/// How far back a reading goes before the last one, at least: a row may become visible some time after it was dated.
const OVERLAP_MS_MIN: u64 = 5_000;
/// A server's clock that goes back by more than this is another server's.
const CLOCK_BACK_MS: u64 = 1_000;
/// After this long without a reading so much has changed that reading it costs as much as reading everything.
const BEHIND_US: u64 = 60_000_000;

/// Where a reading of what has changed begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Where the last one ended.
    Watermark,
    /// Where the last one ended before one failed, once more.
    LookBack,
    /// Lately: what has changed before has to be read otherwise.
    Gap,
}

/// What a failure may have kept from being heard.
#[derive(Clone, Copy, Debug)]
struct Missed {
    /// The watermark at the first failure.
    from_ms: u64,
    /// When it is read once more, in monotonic time; `None` until a reading has succeeded.
    again_us: Option<u64>,
}

/// How far this process has followed the table.
#[derive(Debug)]
pub(super) struct Followed {
    overlap_ms: u64,
    /// The server's clock at the last reading.
    pub clock_ms: Option<u64>,
    /// The server's clock at the last reading that heard all that had changed: the next one begins there.
    watermark_ms: Option<u64>,
    missed: Option<Missed>,
    /// When a reading last failed.
    failed_us: Option<u64>,
    /// When a reading last succeeded, or came in part.
    pub at_us: Option<u64>,
}

impl Followed {
    /// `timeout_ms`: how long a statement may take.
    pub(super) fn new(timeout_ms: u64) -> Followed {
        let overlap_ms = OVERLAP_MS_MIN.max(2 * timeout_ms + 1000);
        Followed { overlap_ms, clock_ms: None, watermark_ms: None, missed: None, failed_us: None, at_us: None }
    }

    /// The server's clock now, going by the last reading; `None` before the first.
    pub(super) fn server_ms(&self, now: Now) -> Option<u64> {
        let since_us = now.mono_us.saturating_sub(self.at_us?);
        Some(self.clock_ms?.saturating_add(since_us / 1000))
    }

    /// Whether nothing is followed yet.
    pub(super) fn is_new(&self) -> bool {
        self.watermark_ms.is_none()
    }

    /// Where the next reading begins.
    pub(super) fn beginning(&self, now: Now) -> Beginning {
        let is_behind = self.at_us.is_some_and(|at_us| now.mono_us.saturating_sub(at_us) > BEHIND_US);
        let is_again = self.missed.and_then(|missed| missed.again_us).is_some_and(|at_us| now.mono_us >= at_us);
        match (is_behind, is_again) {
            (true, _) => Beginning::Gap,
            (false, true) => Beginning::LookBack,
            (false, false) => Beginning::Watermark,
        }
    }

    /// The server's clock at the last reading that heard all that had changed; `None` if there was none.
    pub(super) fn watermark_ms(&self) -> Option<u64> {
        self.watermark_ms
    }

    /// The date from which on rows are read. `unpublished_us`: for how long nothing could be published.
    pub(super) fn since_ms(&self, beginning: Beginning, unpublished_us: u64, now: Now) -> u64 {
        let late_ms = unpublished_us.min(BEHIND_US) / 1000;
        self.begins_ms(beginning, now).saturating_sub(self.overlap_ms + late_ms)
    }

    /// The date from which on everything has been heard then.
    pub(super) fn begins_ms(&self, beginning: Beginning, now: Now) -> u64 {
        let from_ms = match beginning {
            Beginning::Watermark => self.watermark_ms,
            Beginning::LookBack => self.missed.map(|missed| missed.from_ms),
            // A server that was away for everybody is told everything when it is back, which is after the last failure.
            Beginning::Gap => {
                let ago_us = self.failed_us.map_or(0, |failed_us| now.mono_us.saturating_sub(failed_us));
                self.server_ms(now).map(|server_ms| server_ms.saturating_sub(ago_us / 1000))
            }
        };
        from_ms.unwrap_or(0)
    }

    /// Rows that are dated later are found by every region that reads as it should.
    pub(super) fn found_from_ms(&self, now: Now) -> u64 {
        self.server_ms(now).unwrap_or(0).saturating_sub(self.overlap_ms)
    }

    /// The server's clock as it was last heard, if that was after a moment of monotonic time.
    pub(super) fn clock_since(&self, mono_us: u64) -> Option<u64> {
        self.clock_ms.filter(|_| self.at_us.is_some_and(|at_us| at_us > mono_us))
    }

    /// A reading has failed.
    pub(super) fn failed(&mut self, now: Now) {
        self.failed_us = Some(now.mono_us);
        if let Some(from_ms) = self.watermark_ms {
            let missed = self.missed.get_or_insert(Missed { from_ms, again_us: None });
            missed.again_us = None;
        }
    }

    /// A reading has heard all that has changed, if it was one of that (`beginning`), or of everything (`None`) up to
    /// `server_ms`, the server's clock.
    pub(super) fn heard(&mut self, beginning: Option<Beginning>, server_ms: u64) {
        self.watermark_ms = Some(server_ms);
        if matches!(beginning, Some(Beginning::LookBack | Beginning::Gap)) {
            self.missed = None;
        }
    }

    /// The server has answered. True if it is another one than before, whose clock is behind: what it dated before our
    /// watermark was never read.
    pub(super) fn answered(&mut self, server_ms: u64, now: Now) -> bool {
        let is_another = self.clock_ms.is_some_and(|before| server_ms + CLOCK_BACK_MS < before);
        if is_another {
            self.watermark_ms = self.watermark_ms.map(|watermark_ms| watermark_ms.min(server_ms));
            self.missed = None;
        }
        if let Some(missed) = &mut self.missed {
            missed.again_us.get_or_insert(now.mono_us + self.overlap_ms * 1000);
        }
        self.failed_us = None;
        self.clock_ms = Some(server_ms);
        self.at_us = Some(now.mono_us);
        is_another
    }
}
