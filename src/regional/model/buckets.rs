//! Buckets: how they drain, how the origin takes what it is told about them, and how they forget processes.

use std::collections::BTreeMap;

use crate::engine::count::gcra::DEBT_TIMES;
use crate::engine::table::cell::{BucketUpdate, CellShape, CellUpdate};
use crate::regional::call::{Call, CallKey, ProcessId};
use crate::regional::model::{Base, Origin, OtherEpoch, ProcessField, new_epoch, saturating};
use crate::regional::redis::codec::bounded;

/// How long a bucket outlives its last hit.
pub(super) const BUCKET_LINGERS_MS: u64 = 60_000;

/// A bucket that has been empty for longer starts afresh.
const BUCKET_RENEWED_MS: u64 = 5_000;

/// A generation of a bucket's fields lasts for a window, but not shorter or longer than these.
const GENERATION_MS_MIN: u64 = 60_000;
const GENERATION_MS_MAX: u64 = 3_600_000;

/// A bucket: its level, and who has filled it.
#[derive(Clone, Debug, Default)]
pub(super) struct BucketHash {
    /// Epoch, expiry, and the fields of this generation.
    pub(super) base: Base,
    /// The level at `at_ms`, in whole hits (`w` of the hash).
    pub(super) whole: u64,
    /// What the level has above `whole`, in parts of a hit: `1 / window_ms` (`q`).
    pub(super) rest: u64,
    /// Up to when the bucket has drained, by the origin's clock (`t`).
    pub(super) at_ms: u64,
    /// Hits that were added in this generation, drained or not (`v`).
    pub(super) ever_added: u64,
    /// When the generation began.
    pub(super) began_ms: u64,
    /// The previous generation; empty if there was none.
    pub(super) before: Before,
}

/// The previous generation of fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Before {
    /// The fields of processes that have not called since that generation ended.
    pub(super) fields: BTreeMap<ProcessId, ProcessField>,
    /// When these fields are forgotten, by the origin's clock.
    pub(super) expires_at_ms: u64,
    /// How many of them no process has taken along, expired or not.
    pub(super) left: usize,
}

/// How many whole hits a bucket holds at most.
pub(super) fn level_max(limit: u32, burst: u32) -> u64 {
    DEBT_TIMES * (u64::from(limit) + u64::from(burst))
}

/// The part of an update that only a bucket has.
fn bucket_of(told: &CellUpdate) -> BucketUpdate {
    match told.shape {
        CellShape::Window(_) => BucketUpdate::default(),
        CellShape::Bucket(bucket) => bucket,
    }
}

impl BucketHash {
    /// Drains as `engine::count::gcra::Bucket::drain` does, by the origin's clock. Says whether the time moved.
    pub(super) fn drain(&mut self, now_ms: u64, limit: u32, window_ms: u64) -> bool {
        let before_ms = self.at_ms;
        if now_ms >= self.at_ms {
            let drained = u128::from(now_ms - self.at_ms) * u128::from(limit);
            self.set_level(self.level(window_ms).saturating_sub(drained), window_ms);
            self.at_ms = now_ms;
        } else if now_ms + window_ms < self.at_ms {
            self.at_ms = now_ms;
        }
        self.at_ms != before_ms
    }

    /// Whether it has been empty for so long that no process knows of anything in it.
    pub(super) fn is_empty_since(&self, now_ms: u64, limit: u32, window_ms: u64) -> bool {
        let passed_ms = now_ms.checked_sub(self.at_ms).filter(|passed_ms| *passed_ms > BUCKET_RENEWED_MS);
        let drained = |passed_ms: u64| u128::from(passed_ms - BUCKET_RENEWED_MS) * u128::from(limit);
        passed_ms.is_some_and(|passed_ms| drained(passed_ms) >= self.level(window_ms))
    }

    /// Takes a process's field over from the generation before, and says whether there was one. If the process is new
    /// and this generation has lasted, begins the next: so the fields of processes that are gone go too, though the
    /// bucket is never empty.
    pub(super) fn meet(&mut self, call: &Call, told: &CellUpdate, window_ms: u64, time_ms: u64) -> bool {
        let (process, before) = (call.process, &mut self.before);
        if self.base.fields.contains_key(&process) {
            return false;
        }
        if let Some(field) = before.fields.remove(&process) {
            before.left = before.left.saturating_sub(1);
            self.base.fields.insert(process, field);
            return true;
        }
        self.began_ms = self.began_ms.min(time_ms);
        let lasts_ms = window_ms.clamp(GENERATION_MS_MIN, GENERATION_MS_MAX);
        if told.epoch == 0 && time_ms - self.began_ms >= lasts_ms {
            let fields = std::mem::take(&mut self.base.fields);
            self.before = Before { left: fields.len(), fields, expires_at_ms: time_ms + lasts_ms };
            self.base.epoch = new_epoch(self.base.epoch, call.nonce, time_ms);
            self.ever_added = 0;
            self.began_ms = time_ms;
        }
        false
    }

    /// The level in hits times milliseconds of the window.
    pub(super) fn level(&self, window_ms: u64) -> u128 {
        u128::from(self.whole) * u128::from(window_ms) + u128::from(self.rest)
    }

    pub(super) fn set_level(&mut self, level: u128, window_ms: u64) {
        self.whole = (level / u128::from(window_ms)) as u64;
        self.rest = (level % u128::from(window_ms)) as u64;
    }

    /// Adds hits. What goes above `most` is forgiven; what is there already stays.
    pub(super) fn add(&mut self, hits: u64, most: u64) {
        self.whole = saturating(self.whole, hits).min(most.max(self.whole));
        self.ever_added = saturating(self.ever_added, hits);
    }

    pub(super) fn refund(&mut self, hits: u64) {
        if hits > self.whole {
            self.rest = 0;
        }
        self.whole = self.whole.saturating_sub(hits);
    }

    /// Raises the level to what a process knows, and says whether that changed it.
    pub(super) fn raise(&mut self, told: &CellUpdate, other_epoch: OtherEpoch, most: u64) -> bool {
        let floor = (told.floor, bucket_of(told).floor_rest);
        let level = match other_epoch {
            // The floor was there before the loss: what was added since comes on top, unless both are in already.
            OtherEpoch::Older if floor == (0, 0) => return false,
            OtherEpoch::Older => (saturating(floor.0, self.ever_added), floor.1),
            OtherEpoch::Before => return false,
            OtherEpoch::Newer => floor,
        };
        let level = level.min((most, 0));
        let is_higher = level > (self.whole, self.rest);
        if is_higher {
            (self.whole, self.rest) = level;
        }
        is_higher
    }

    /// The time from now until a minute after the bucket is empty. With a limit of 0 it never drains and denies
    /// whatever its level: there is nothing to remember, and it is kept for a window and a minute.
    pub(super) fn ttl_ms(&self, now_ms: u64, limit: u32, window_ms: u64) -> u64 {
        let wait_ms = match limit {
            0 => window_ms,
            _ => u64::try_from(self.level(window_ms).div_ceil(limit.into())).unwrap_or(u64::MAX),
        };
        bounded((self.at_ms - now_ms).saturating_add(wait_ms).saturating_add(BUCKET_LINGERS_MS))
    }
}

impl Origin {
    /// Says whether the bucket was not there, and whether it has changed.
    pub(super) fn open_bucket(
        &mut self,
        call: &Call,
        part: &CallKey,
        (limit, burst): (u32, u32),
        time_ms: u64,
    ) -> (bool, bool) {
        let told = &part.cells[0];
        let most = level_max(limit, burst);
        // If it was empty for a while, what it was told has drained everywhere: the fields of all processes that ever
        // held it go, as if it were lost.
        let is_over = |bucket: &BucketHash| bucket.is_empty_since(time_ms, limit, part.window_ms);
        let before = self.buckets.get(&part.key).filter(|bucket| is_over(bucket)).map_or(0, |bucket| bucket.base.epoch);
        if before > 0 {
            self.buckets.remove(&part.key);
        }
        let is_made = !self.buckets.contains_key(&part.key);
        let base = || Base::new(told.epoch.max(before), call.nonce, time_ms);
        let make = || BucketHash { base: base(), at_ms: time_ms, began_ms: time_ms, ..BucketHash::default() };
        let bucket = self.buckets.entry(part.key).or_insert_with(make);
        // The new time is written even if nothing else is: a change of the limit must only affect what drains from then
        // on.
        let is_drained = bucket.drain(time_ms, limit, part.window_ms);
        let is_met = bucket.meet(call, told, part.window_ms, time_ms);
        let news = bucket.base.hear(call.process, told);
        let is_raised = news.other_epoch.is_some_and(|other_epoch| bucket.raise(told, other_epoch, most));
        // Only those newly told hits are added that have not drained at the process. Its level is without what it has
        // given back, which is taken out here right after.
        let left = saturating(bucket_of(told).level, news.refunds);
        bucket.add(news.hits.min(left), most);
        bucket.ever_added = saturating(bucket.ever_added, news.hits.saturating_sub(left));
        bucket.refund(news.refunds);
        let is_changed = is_made || is_met || is_drained || is_raised || news.is_field_new;
        (is_made && before == 0, is_changed)
    }
}
