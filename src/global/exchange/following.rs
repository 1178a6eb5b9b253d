//! Follows the region's speaker: takes over what it hands on, as if this process had read it in the table itself.

use std::sync::atomic::Ordering;

use crate::clock::Now;
use crate::global::exchange::followed::Beginning;
use crate::global::exchange::{Exchange, ExchangeState, ImportProgress};
use crate::global::feed::{Covered, FeedEntry};
use crate::global::mentions::SPOKEN_FOR_US;
use crate::global::voice::Role;
use crate::regional::call::ProcessId;
use crate::regional::voice::{FeedItem, FeedPlace};

/// What was missed in the feed is read in the table within so long: processes that have missed the same do not come together.
const LACK_JITTER_US: u64 = 2_000_000;

impl Exchange {
    /// The last entry of the feed that was heard.
    pub(crate) fn feed_place(&self) -> FeedPlace {
        self.state.lock().voice.as_ref().map_or(FeedPlace::default(), |voice| voice.feed_place)
    }

    /// Takes over an entry of the feed. Returns how old each piece of news was, in milliseconds.
    pub(crate) fn hear_feed(&self, item: FeedItem, now: Now) -> Vec<u64> {
        let FeedItem { place, speaker, body } = item;
        {
            let mut state = self.state.lock();
            let Some(voice) = state.voice.as_mut().filter(|voice| place > voice.feed_place) else { return Vec::new() };
            voice.feed_place = place;
            if self.options.process == Some(speaker) {
                return Vec::new();
            }
        }
        self.counts.heard[0].fetch_add(1, Ordering::Relaxed);
        self.counts.heard[1].fetch_add(body.len() as u64, Ordering::Relaxed);
        let Some(entry) = FeedEntry::decode(&body) else {
            // What it said is missing, which the end of its turn, or of the next one, brings to light.
            self.counts.malformed.fetch_add(1, Ordering::Relaxed);
            if let Some(voice) = &mut self.state.lock().voice {
                voice.heard_part = None;
            }
            return Vec::new();
        };
        let mut hearing = ImportProgress::new(&self.options.region);
        hearing.found_from_ms = self.state.lock().followed.found_from_ms(now);
        for sum in &entry.sums {
            self.take(&mut hearing, sum, now);
        }
        let mut state = self.state.lock();
        let is_whole = state.hear_entry(&entry, speaker, now);
        let heard = entry.covered.map_or(CoveredHeard::All, |covered| state.hear_covered(covered, is_whole, now));
        if heard == CoveredHeard::SomeMissed {
            self.counts.gaps.fetch_add(1, Ordering::Relaxed);
        }
        state.see(entry.seen);
        let server_ms = state.followed.server_ms(now).unwrap_or(0);
        drop(state);
        if heard == CoveredHeard::OfAnotherServer {
            // Any key may lack something, until all is read.
            self.ledger().expect_reading(|_| true);
        }
        hearing.ages_ms(server_ms)
    }
}

impl ExchangeState {
    /// Takes over what an entry says beside its sums, which are heard already. Whether all parts of its turn were heard up
    /// to here.
    fn hear_entry(&mut self, entry: &FeedEntry, speaker: ProcessId, now: Now) -> bool {
        let Some(voice) = &mut self.voice else { return false };
        if entry.is_farewell || voice.lease.speaker().is_some_and(|before| before != speaker) {
            // Whoever comes next knows nothing of what was left to this one.
            voice.spoken_for.clear();
        }
        voice.lease.heard(speaker, entry.is_farewell, now.mono_us);
        voice.is_speaker_stuck = entry.is_stuck;
        // What was published this lately is published at the moment.
        let lately_ms = entry.covered.map_or(u64::MAX, |covered| covered.to_ms.saturating_sub(SPOKEN_FOR_US / 1000));
        for sum in &entry.sums {
            voice.recent.note(sum, now.mono_us);
            if sum.row_updated_at_ms >= lately_ms {
                voice.spoken_for.leave(sum.cell.clone(), now.mono_us);
            }
        }
        let is_whole = entry.part == 0 || voice.heard_part == Some((speaker, entry.part));
        voice.heard_part = is_whole.then_some((speaker, entry.part + 1));
        if voice.lease.role() == Role::Following {
            if let Some(ago_ms) = entry.published_ago_ms {
                let at_us = now.mono_us.saturating_sub(ago_ms.saturating_mul(1000));
                self.published_us = Some(self.published_us.unwrap_or(0).max(at_us));
            }
            if !entry.is_stuck {
                self.publishing.recovered();
            }
            if entry.is_doubtful {
                self.passes.read_all_soon(now.mono_us);
            }
        }
        is_whole
    }

    /// Takes over for which time a turn of the speaker speaks.
    fn hear_covered(&mut self, covered: Covered, is_whole: bool, now: Now) -> CoveredHeard {
        let Covered { from_ms, to_ms } = covered;
        let Some(watermark_ms) = self.followed.watermark_ms() else {
            // Everything is about to be read.
            return CoveredHeard::All;
        };
        let is_clock_back = to_ms < from_ms;
        if !is_clock_back && to_ms <= watermark_ms {
            // Known already: from an own reading, or from before.
            return CoveredHeard::All;
        }
        if is_whole && (is_clock_back || from_ms <= watermark_ms) {
            let is_another_server = self.heard_until(to_ms, Some(Some(Beginning::Watermark)), now);
            self.importing.recovered();
            if is_another_server {
                self.passes.read_all_soon(now.mono_us);
                return CoveredHeard::OfAnotherServer;
            }
            return CoveredHeard::All;
        }
        let Some(voice) = self.voice.as_mut().filter(|voice| voice.lacks_at_us.is_none()) else {
            return CoveredHeard::All;
        };
        voice.lacks_at_us = Some(now.mono_us + voice.lease.random_below(LACK_JITTER_US));
        CoveredHeard::SomeMissed
    }
}

/// What came of a turn of the speaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoveredHeard {
    /// Nothing is missing that was not before.
    All,
    /// The table is on another server than before: everything is read soon.
    OfAnotherServer,
    /// Something was missed, of this turn or before it: it is read soon.
    SomeMissed,
}
