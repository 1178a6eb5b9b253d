//! When a store hears of hits that memory has admitted: with the next flush, at once, or only when there are more of them.
//!
//! Hits are *due* where the view should become current soon: on a key that the store has told of a moment ago, since it is in
//! use and perhaps elsewhere too, and on one that it has not told of in this window, so that this process learns what others
//! have. All other hits are *held back* until they have used up most of the allowance. What is held back counts within the
//! allowance like everything that is pending, so the bound holds; and keys far below their limit cost the store nothing. What
//! is still held back when its window does not count any more is never told.

use crate::engine::table::regional_part::{NewsAge, RegionalPart};

/// On a key that was not heard of, fewer pending hits are not told at once: a flush tells many such keys in one message.
const URGENT_HITS_MIN: u64 = 4;

/// How many hits have to be pending for the store to hear of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TellThresholds {
    /// From here on they go with the next flush.
    pub(super) due_at: u64,
    /// From here on they go at once.
    pub(super) urgent_at: u64,
    /// How current the view was that decided.
    pub(super) news: NewsAge,
}

impl TellThresholds {
    /// Whatever is pending goes with the next flush.
    pub(super) const WITH_FLUSH: TellThresholds =
        TellThresholds { due_at: 0, urgent_at: u64::MAX, news: NewsAge::Recent };
    /// Whatever is pending goes at once.
    pub(super) const AT_ONCE: TellThresholds = TellThresholds { due_at: 0, urgent_at: 0, news: NewsAge::Recent };

    /// Of a key of which so many hits may be pending. Its part has been brought up to its counter.
    #[inline]
    pub(super) fn new(part: Option<&RegionalPart>, is_bucket: bool, allowance: u64, mono_ms: u64) -> TellThresholds {
        let (half, three_quarters) = (allowance / 2, allowance - allowance / 4);
        let news = part.map_or(NewsAge::None, |part| part.news(mono_ms));
        let is_sent = part.is_some_and(RegionalPart::is_sent);
        let (due_at, urgent_at) = match news {
            NewsAge::Recent => (0, half),
            // A bucket is charged when its hits are told, not when they came.
            NewsAge::None | NewsAge::OfWindow if is_bucket => (0, half),
            NewsAge::None => (0, half.max(URGENT_HITS_MIN)),
            // The answer that is on its way should find nothing held back.
            NewsAge::OfWindow if is_sent => (0, half.max(URGENT_HITS_MIN)),
            NewsAge::OfWindow => (three_quarters, allowance.saturating_add(1)),
        };
        TellThresholds { due_at, urgent_at, news }
    }

    /// None of the hits are in a hurry.
    pub(super) fn with_flush(self) -> TellThresholds {
        TellThresholds { urgent_at: u64::MAX, ..self }
    }
}
