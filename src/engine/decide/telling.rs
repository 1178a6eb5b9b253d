//! When a store hears of hits that memory has admitted: with the next flush, at once, or only when there are more of them.
//!
//! Hits are *due* where the view should become current soon: on a key that the store has told of a moment ago, since it is in
//! use and perhaps elsewhere too, and on one that it has not told of in this window, so that this process learns what others
//! have. All other hits are *held back* until they have used up most of the allowance. What is held back counts within the
//! allowance like everything that is pending, so the bound holds; and keys far below their limit cost the store nothing. What
//! is still held back when its window does not count any more is never told.

use crate::engine::table::regional_part::{News, RegionalPart};

/// On a key that was not heard of, fewer pending hits are not told at once: a flush tells many such keys in one message.
const URGENT_HITS_MIN: u64 = 4;

/// How many hits have to be pending for the store to hear of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Telling {
    /// From here on they go with the next flush.
    pub(super) due_at: u64,
    /// From here on they go at once.
    pub(super) urgent_at: u64,
}

impl Telling {
    /// Whatever is pending goes with the next flush.
    pub(super) const WITH_FLUSH: Telling = Telling { due_at: 0, urgent_at: u64::MAX };
    /// Whatever is pending goes at once.
    pub(super) const AT_ONCE: Telling = Telling { due_at: 0, urgent_at: 0 };

    /// Of a key of which so many hits may be pending. Its part has been brought up to its counter.
    #[inline]
    pub(super) fn new(part: Option<&RegionalPart>, is_bucket: bool, allowance: u64, mono_ms: u64) -> Telling {
        let (half, three_quarters) = (allowance / 2, allowance - allowance / 4);
        let unheard = Telling { due_at: 0, urgent_at: half.max(URGENT_HITS_MIN) };
        let Some(part) = part else { return unheard };
        match part.news(mono_ms) {
            News::Recent => Telling { due_at: 0, urgent_at: half },
            // A bucket is charged when its hits are told, not when they came.
            News::None | News::OfWindow if is_bucket => Telling { due_at: 0, urgent_at: half },
            // The answer that is on its way should find nothing held back.
            News::None | News::OfWindow if part.is_sent() => unheard,
            News::None => unheard,
            News::OfWindow => Telling { due_at: three_quarters, urgent_at: allowance.saturating_add(1) },
        }
    }

    /// The same hits, but none of them in a hurry.
    pub(super) fn with_flush(self) -> Telling {
        Telling { urgent_at: u64::MAX, ..self }
    }
}
