//! A key's part in the region: what of its count this process has added, and what the origin knows of that.
//!
//! The counter beside it holds the view that decisions are made from: own hits plus those of others, as the origin last
//! told. The part holds `own`, a total that only grows, and `acked`, the total that the origin has answered with; the
//! difference is pending. Totals make every message repeatable, because the origin takes the larger. `own_counts.rs` keeps
//! them, cell by cell.

mod answer;
mod update;

use crate::engine::count::counter::{Counter, Look, rate, weighing};
use crate::engine::count::exact::CELLS as EXACT_CELLS;
use crate::engine::count::gcra::Bucket;
use crate::engine::count::window::Cell;
use crate::engine::reach::Store;
use crate::engine::table::cell::COUNT_MAX;
use crate::engine::table::foreign::{CellStanding, Counts, Foreign, PublishRule, View};
use crate::engine::table::own_counts::{OwnCount, OwnCounts};
pub(crate) use crate::engine::table::regional_part::answer::Heard;
use crate::engine::table::send_state::SendState;
use crate::engine::table::weight::heap_bytes;
use crate::rules::limit::Terms;

/// How long an answer of the origin is good for.
pub(crate) const FRESH_MS: u64 = 5000;
/// Up to here news is recent. Keys in use are told about every 50 ms, so theirs is never older.
const RECENT_MS: u64 = 200;
/// After a read of a key has failed, `on_outage` decides on it for this long.
const RETRY_MS: u64 = 250;
/// The longest pause: after it the origin is asked again, whatever it said.
const PAUSE_MS_MAX: u64 = 3_600_000;
/// The unit of pauses: 32 bits of it last longer than any key, so that a pause that is over does not come back.
const PAUSE_UNIT_MS: u64 = 16;

/// Mark: the counts of the cell before the newest can't be behind any more.
const CELLS_SETTLED: u8 = 1;
/// Mark: the store has told of the key in the window that it is in.
const HEARD: u8 = 2;
/// Mark: counts of other regions may be missing, and the key has to be looked up.
const UNHEARD: u8 = 4;
/// Mark: no request of this process has asked for the key.
const UNASKED: u8 = 8;

/// Mark: the store has denied hits in the window that the key is in.
const DENIED: u8 = 16;

/// All processes together may have this part of a limit charged ahead.
const AHEAD_PART: u32 = 100;

/// Nanoseconds in a millisecond.
pub(crate) const MS_NS: u64 = 1_000_000;

/// Refunds of this process in a cell, and what the stores that have shared the key know of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refunds {
    /// All hits that this process was asked to give back.
    asked: u64,
    /// The total of them that the store has answered with.
    acked: u64,
    /// Of those that the store has not answered with, the hits that were not there as far as this process knew. They may be
    /// for hits of others, but never for hits that come after them.
    blind: u64,
    /// Hits of this process that this store had acknowledged when the key came to it.
    known_here: u64,
    /// Hits of this process that the other store has acknowledged.
    known_there: u64,
    /// This store has shared the key before. Then what the process has accepted is a total there, and its field says how
    /// much of that has arrived, acknowledged or not. Otherwise it may have a field from before, which comes on top.
    was_here: bool,
    /// The other store has shared the key before, see `was_here`.
    was_there: bool,
}

/// State that only few keys have.
#[derive(Clone, Debug, Default)]
struct Rare {
    /// One for each count of `own`. Few keys are ever refunded, or change their store.
    #[expect(clippy::box_collection, reason = "most keys have none, and a vector is three times as wide")]
    refunds: Option<Box<Vec<Refunds>>>,
    /// What other regions have counted, if any has.
    foreign: Option<Foreign>,
}

impl Rare {
    /// How many bytes it takes on the heap, its own place included.
    #[cold]
    fn heap_bytes(&self) -> usize {
        let refunds = self.refunds.as_deref().map_or(0, |refunds| {
            heap_bytes(size_of::<Vec<Refunds>>()) + heap_bytes(refunds.capacity() * size_of::<Refunds>())
        });
        heap_bytes(size_of::<Rare>()) + refunds + self.foreign.as_ref().map_or(0, Foreign::heap_bytes)
    }
}

/// A key's part in the region.
#[derive(Clone, Debug)]
pub(in crate::engine) struct RegionalPart {
    own: OwnCounts,
    /// The low half of the newest cell's number, enough to compare; the counter moves on by itself, and this follows.
    sequence: u32,
    rare: Option<Box<Rare>>,
    /// Until when the last answer, or failure, is good. This and other moments keep only their low half, which is enough to
    /// compare: they are never far from now.
    fresh_until_ms: u32,
    /// In monotonic time, in units of [`PAUSE_UNIT_MS`].
    paused_until: u32,
    /// The pause denies requests of at least this many hits. 0: no pause.
    paused_hits: u32,
    /// Processes that hold the key, as the store last told; 0 if it never has.
    holders: u16,
    /// Of the last decision, in thousandths of the limit: who brings news of others asks whether what is pending is too much.
    slack_permille: u16,
    /// Counts the keys that this slot has held, and moves to another store, so that an answer finds only the key it is for.
    pub(super) generation: u16,
    sync: SendState,
    /// Stands in the queue of what other regions should know.
    is_noted: bool,
    /// The last read has failed: until `fresh_until_ms` the rule's `on_outage` decides.
    is_failed: bool,
    /// The bits [`CELLS_SETTLED`], [`HEARD`], [`UNHEARD`], [`UNASKED`] and [`DENIED`].
    marks: u8,
    /// Where its counts are shared.
    store: Store,
    /// The values of its identifier leave the process only as a keyed digest.
    is_sensitive: bool,
}

/// How long ago the store last told of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsAge {
    /// A moment ago: the key is in use here and perhaps elsewhere.
    Recent,
    /// In the window that the key is in, but not just now.
    OfWindow,
    /// Not in this window.
    None,
}

/// How current the view of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// The store could not be read a moment ago: the rule's `on_outage` decides.
    Unreadable,
    /// Read, but too long ago.
    Stale,
    /// Never read.
    Cold,
}

impl RegionalPart {
    /// `is_first`: this process has certainly never held the key before, so it has no field at the origin.
    pub(crate) fn new(
        counter: &Counter,
        store: Store,
        generation: u16,
        is_sensitive: bool,
        is_first: bool,
    ) -> RegionalPart {
        RegionalPart {
            own: OwnCounts::new(counter, is_first),
            sequence: counter.sequence() as u32,
            rare: None,
            fresh_until_ms: 0,
            paused_until: 0,
            paused_hits: 0,
            holders: 0,
            slack_permille: 0,
            generation,
            sync: SendState::NEW,
            is_noted: false,
            is_failed: false,
            marks: 0,
            store,
            is_sensitive,
        }
    }

    /// Which of the keys that its slot has held this is.
    pub(crate) fn generation(&self) -> u16 {
        self.generation
    }

    /// Where its counts are shared.
    #[inline]
    pub(crate) fn store(&self) -> Store {
        self.store
    }

    /// The values of its identifier leave the process only as a keyed digest.
    #[inline]
    pub(crate) fn is_sensitive(&self) -> bool {
        self.is_sensitive
    }

    #[inline]
    pub(crate) fn set_sensitive(&mut self, is_sensitive: bool) {
        self.is_sensitive = is_sensitive;
    }

    /// Stands in the queue of what other regions should know.
    pub(crate) fn is_noted(&self) -> bool {
        self.is_noted
    }

    pub(crate) fn set_noted(&mut self, is_noted: bool) {
        self.is_noted = is_noted;
    }

    /// How far it is in telling its store.
    #[inline]
    pub(in crate::engine) fn sync(&mut self) -> &mut SendState {
        &mut self.sync
    }

    /// Stands in the queue of what its store is to be told.
    pub(crate) fn is_queued(&self) -> bool {
        self.sync.is_queued()
    }

    /// The store is to be told even though nothing is pending.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.sync.is_wanted()
    }

    /// A message about it is on its way to its store.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        self.sync.is_sent()
    }

    /// Has the store told with the next message, whether anything is pending or not.
    #[inline]
    pub(crate) fn want(&mut self) {
        self.sync.want();
    }

    fn refunds(&self) -> Option<&[Refunds]> {
        self.rare.as_ref()?.refunds.as_ref().map(|refunds| refunds.as_slice())
    }

    fn known_refunds_mut(&mut self) -> Option<&mut [Refunds]> {
        self.rare.as_mut()?.refunds.as_mut().map(|refunds| refunds.as_mut_slice())
    }

    /// The refunds of all cells, for a change; made if there are none yet.
    fn refunds_mut(&mut self) -> &mut Vec<Refunds> {
        let cells = self.own.cells();
        let rare = self.rare.get_or_insert_default();
        rare.refunds.get_or_insert_with(|| Box::new(vec![Refunds::default(); cells]))
    }

    /// Lets another store share the counts from now on. It is told what this process has accepted, except what it knows from
    /// before.
    pub(crate) fn move_to(&mut self, store: Store) {
        self.store = store;
        let mut all = std::mem::take(self.refunds_mut());
        self.own.change_all(|at, count| {
            let beside = &mut all[at];
            let (own, known, was_here) = match count.is_seated() {
                // If the store knows of more, that is for hits still to come.
                true => (count.own, count.acked.min(count.own), true),
                // The process's field is still what it was when the key came.
                false => (beside.known_here.saturating_add(count.own), beside.known_here, beside.was_here),
            };
            *count = OwnCount { own: own.saturating_sub(beside.known_there), ..OwnCount::UNKNOWN };
            *beside = Refunds {
                asked: beside.asked.saturating_sub(beside.acked),
                acked: 0,
                blind: beside.blind,
                known_here: beside.known_there,
                known_there: known,
                was_here: beside.was_there,
                was_there: was_here,
            };
        });
        *self.refunds_mut() = all;
        self.fresh_until_ms = 0;
        self.holders = 0;
        self.marks &= UNHEARD | UNASKED;
        // Messages under way to the previous store are about a key that is no more.
        self.generation = self.generation.wrapping_add(1);
        self.sync.move_on();
        self.is_noted = false;
        self.is_failed = false;
        self.resume();
    }

    /// What this process alone has accepted, as a counter of its own. A bucket does not tell who filled it: it comes back as
    /// it is.
    pub(crate) fn own_counts(&self, counter: &Counter) -> Counter {
        let own = |at: usize| {
            let asked = self.refunds().map_or(0, |all| all[at].asked);
            let hits = self.own.get(at).own;
            Cell { hits, refunds: asked.min(hits) }
        };
        let mut counts = counter.clone();
        match &mut counts {
            Counter::Windowed(cells) => (cells.current, cells.previous) = (own(0), own(1)),
            Counter::Exact(cells) => (0..EXACT_CELLS).for_each(|at| cells.merge(at, |cell| *cell = own(at))),
            Counter::Gcra(_) => {}
        }
        counts
    }

    /// Notes that hits were admitted, and that other processes are assumed to have admitted so many more. A bucket does not
    /// know who filled it, so the assumption is kept beside it, and no store is told. The hits are in the bucket already.
    pub(crate) fn hold(&mut self, bucket: &Bucket, terms: &Terms, hits: u64, assumed: u64) {
        let rate = rate(terms);
        let empty_ns = bucket.empty_without_at_ms(&rate, hits).saturating_mul(MS_NS);
        if let OwnCounts::Bucket { held_until_ns, .. } = &mut self.own {
            let all_ns = rate.drains_in_ns(hits.saturating_add(assumed));
            let until_ns = empty_ns.max(*held_until_ns).saturating_add(all_ns);
            // No more than a bucket holds, as everywhere.
            let latest_ns = bucket.at_ms().saturating_mul(MS_NS).saturating_add(rate.drains_in_ns(rate.most()));
            *held_until_ns = until_ns.min(latest_ns.max(*held_until_ns));
        }
    }

    /// When a bucket is empty if other processes have done as this one; 0 if that is not assumed.
    pub(crate) fn held_until_ns(&self) -> u64 {
        if let OwnCounts::Bucket { held_until_ns, .. } = &self.own { *held_until_ns } else { 0 }
    }

    /// Brings a counter and its part up to `now_ms` and reads the counter.
    pub(crate) fn look(&mut self, counter: &mut Counter, terms: &Terms, now_ms: u64) -> Look {
        let look = counter.look(terms, now_ms);
        self.follow(counter);
        look
    }

    /// Moves to the counter's window. Cells that begin now are seated: this process has added nothing to them. If the
    /// clock was wrong and the key has moved back, this process may have held these cells before: hits that the origin has
    /// not heard of move with the counts, and the rest has to be read.
    pub(crate) fn follow(&mut self, counter: &Counter) {
        let sequence = counter.sequence() as u32;
        if sequence == self.sequence {
            return;
        }
        let steps = sequence.wrapping_sub(self.sequence).cast_signed();
        let (before, now) = (counter.window_of(self.sequence.into()), counter.window_of(sequence.into()));
        self.marks &= if before == now { !CELLS_SETTLED } else { !(CELLS_SETTLED | HEARD | DENIED) };
        self.sequence = sequence;
        let Ok(steps) = usize::try_from(steps) else { return self.unseat() };
        self.own.advance(steps);
        let steps = steps.min(self.own.cells());
        if let Some(refunds) = self.known_refunds_mut() {
            refunds.rotate_right(steps);
            refunds[..steps].fill(Refunds::default());
        }
    }

    /// Unseats all cells: keeps only what the store has not heard of, and has the rest read again.
    fn unseat(&mut self) {
        self.own.change_all(|_, count| *count = OwnCount { own: count.pending(), ..OwnCount::UNKNOWN });
        for refunds in self.known_refunds_mut().into_iter().flatten() {
            let asked = refunds.asked.saturating_sub(refunds.acked);
            *refunds = Refunds { asked, blind: refunds.blind, ..Refunds::default() };
        }
        self.marks &= !HEARD;
        self.fresh_until_ms = 0;
        self.resume();
    }

    /// Hits that the origin does not know of.
    pub(crate) fn pending(&self) -> u64 {
        self.own.pending()
    }

    /// Of those, the hits in as many of the newest cells as count against the limit.
    #[inline]
    pub(crate) fn pending_in(&self, cells: usize) -> u64 {
        self.own.pending_in(cells)
    }

    /// How much of the limit may be pending in all processes together, by the rules of the last decision.
    pub(crate) fn slack_permille(&self) -> u16 {
        self.slack_permille
    }

    #[inline]
    pub(crate) fn set_slack_permille(&mut self, slack_permille: u16) {
        self.slack_permille = slack_permille;
    }

    fn pending_refunds(&self) -> bool {
        self.refunds().is_some_and(|all| all.iter().any(|refunds| refunds.asked > refunds.acked))
    }

    /// The store has not heard everything: hits or refunds would be lost with this key.
    pub(crate) fn is_dirty(&self) -> bool {
        self.pending() > 0 || self.pending_refunds()
    }

    /// The process knows its fields in all cells.
    pub(crate) fn is_seated(&self) -> bool {
        self.own.are_seated()
    }

    /// Processes that hold the key, as the store last told; 0 if it never has.
    pub(crate) fn holders(&self) -> u32 {
        self.holders.into()
    }

    /// Hits come to a bucket now: if none are pending, these are the first.
    pub(crate) fn pend_from(&mut self, now_ms: u64) {
        if let OwnCounts::Bucket { count, pending_since_ms, .. } = &mut self.own
            && count.pending() == 0
        {
            *pending_since_ms = now_ms;
        }
    }

    /// For how long hits of a bucket have been pending.
    pub(super) fn pending_for_ms(&self, bucket: &Bucket) -> u64 {
        match &self.own {
            OwnCounts::Bucket { pending_since_ms, .. } => bucket.at_ms().saturating_sub(*pending_since_ms),
            OwnCounts::Windows(_) | OwnCounts::Exact(_) => 0,
        }
    }

    /// Adds hits that the process has accepted in the newest cell, which has this number. The counter has them already.
    pub(crate) fn add(&mut self, sequence: u64, hits: u64) {
        self.own.change(0, |count| count.add(hits));
        if let Some([refunds, ..]) = self.known_refunds_mut() {
            // Otherwise the origin would take blind refunds from these hits, because it is told of both together.
            refunds.asked = refunds.asked.saturating_sub(std::mem::take(&mut refunds.blind));
        }
        self.accept(sequence, hits);
    }

    /// Adds hits that the process has accepted in the cell with this number to what is kept for other regions: they may
    /// count the key whether a store does or not.
    pub(crate) fn accept(&mut self, sequence: u64, hits: u64) {
        if let Some(foreign) = self.known_foreign() {
            foreign.accept(sequence, hits);
        }
    }

    /// Hits that the store has charged for a request that is denied all the same: they are in this process's field, and not
    /// accepted. False if the newest cell does not have as many: then they came before it.
    pub(crate) fn take_back(&mut self, hits: u64) -> bool {
        self.own.change(0, |count| {
            let own = count.own.checked_sub(hits).filter(|_| count.is_seated());
            count.own = own.unwrap_or(count.own);
            own.is_some()
        })
    }

    /// Hits of the newest window that the store has charged ahead: memory admits as many without asking.
    #[inline]
    pub(crate) fn spare(&self) -> u64 {
        match &self.own {
            OwnCounts::Windows([newest, _]) => newest.acked().saturating_sub(newest.own),
            OwnCounts::Exact(_) | OwnCounts::Bucket { .. } => 0,
        }
    }

    /// How many hits the store may charge ahead with a check. Only of a key that is over its limit, where every hit that becomes
    /// free would be asked about alone; and so few that the others hardly miss them while nobody uses them.
    pub(crate) fn ahead(&self, terms: &Terms) -> u16 {
        let is_meant = self.marks & DENIED != 0 && matches!(self.own, OwnCounts::Windows(_));
        let hits = terms.limit / AHEAD_PART / self.holders().max(1);
        if is_meant { u16::try_from(hits).unwrap_or(u16::MAX) } else { 0 }
    }

    /// Leaves what the store has charged ahead of this process's hits to the check that is sent now. Until that is answered,
    /// memory uses none of it, or it would be used twice.
    pub(crate) fn leave_spare(&mut self) {
        self.own.change(0, |count| {
            if count.is_seated() {
                count.acked = count.acked.min(count.own);
            }
        });
    }

    /// Adds a refund that the process was asked for; `missing` of it was not there. The origin takes it from what is there,
    /// whatever the view says.
    pub(crate) fn refund(&mut self, hits: u64, missing: u64) {
        let refunds = &mut self.refunds_mut()[0];
        refunds.asked = refunds.asked.saturating_add(hits).min(COUNT_MAX);
        let pending = refunds.asked.saturating_sub(refunds.acked);
        refunds.blind = refunds.blind.saturating_add(missing).min(pending);
        self.marks &= !DENIED;
        self.resume();
    }

    /// For how long the last answer, or failure, is still good.
    fn fresh_for_ms(&self, mono_ms: u64) -> u64 {
        // Moments of 32 bits start over after 49 days of uptime: one that seems too far ahead is long past.
        let left_ms = u64::from(self.fresh_until_ms.wrapping_sub(mono_ms as u32));
        if left_ms <= FRESH_MS { left_ms } else { 0 }
    }

    /// How current the view of the key is.
    pub(crate) fn freshness(&self, mono_ms: u64) -> Freshness {
        let is_good = self.fresh_for_ms(mono_ms) > 0;
        match (is_good, self.is_failed) {
            (true, true) => Freshness::Unreadable,
            (true, false) if self.holders > 0 => Freshness::Fresh,
            _ if self.holders == 0 => Freshness::Cold,
            _ => Freshness::Stale,
        }
    }

    /// When the store last told of the key. `follow` has brought the part up to its counter.
    #[inline]
    pub(crate) fn news(&self, mono_ms: u64) -> NewsAge {
        match self.marks & HEARD {
            _ if FRESH_MS - self.fresh_for_ms(mono_ms) < RECENT_MS && !self.is_failed => NewsAge::Recent,
            0 => NewsAge::None,
            _ => NewsAge::OfWindow,
        }
    }

    /// The origin answered about a second ago or longer.
    pub(crate) fn is_second_old(&self, mono_ms: u64) -> bool {
        FRESH_MS - self.fresh_for_ms(mono_ms) >= 1000
    }

    /// The store gave no answer: unless the view is fresh, the rule's `on_outage` decides for a moment. The view is no
    /// fresher for it.
    pub(crate) fn unreadable(&mut self, mono_ms: u64) {
        if !matches!(self.freshness(mono_ms), Freshness::Fresh) {
            self.fresh_until_ms = (mono_ms + RETRY_MS) as u32;
            self.is_failed = true;
        }
    }

    /// Begins a pause: the origin has denied so many hits, and would deny them again for so long.
    pub(crate) fn pause(&mut self, hits: u64, for_ms: u64, mono_ms: u64) {
        // If nothing at all was left, one hit is too many.
        self.paused_hits = u32::try_from(hits).unwrap_or(u32::MAX).max(1);
        self.paused_until = ((mono_ms + for_ms.min(PAUSE_MS_MAX)) / PAUSE_UNIT_MS) as u32;
        self.marks |= DENIED;
    }

    /// Ends the pause: the store is asked again.
    pub(crate) fn resume(&mut self) {
        self.paused_hits = 0;
    }

    /// How long requests of so many hits are denied without asking, because the origin has just denied as many.
    pub(crate) fn paused_for_ms(&self, hits: u64, mono_ms: u64) -> Option<u64> {
        let is_meant = self.paused_hits > 0 && hits >= u64::from(self.paused_hits);
        let left = u64::from(self.paused_until.wrapping_sub((mono_ms / PAUSE_UNIT_MS) as u32));
        let left_ms = (left * PAUSE_UNIT_MS).saturating_sub(mono_ms % PAUSE_UNIT_MS);
        (is_meant && (1..=PAUSE_MS_MAX).contains(&left_ms)).then_some(left_ms)
    }

    /// The counts known from other regions.
    pub(crate) fn foreign(&self) -> Option<&Foreign> {
        self.rare.as_ref()?.foreign.as_ref()
    }

    /// The counts known from other regions, for a change; made if there are none yet.
    pub(crate) fn foreign_mut(&mut self, sequence: u64) -> &mut Foreign {
        self.rare.get_or_insert_default().foreign.get_or_insert_with(|| Foreign::new(sequence))
    }

    /// The counts known from other regions, for a change; never made here.
    pub(crate) fn known_foreign(&mut self) -> Option<&mut Foreign> {
        self.rare.as_mut()?.foreign.as_mut()
    }

    /// Whether counts of other regions may be missing and have not been looked up.
    #[inline(always)]
    pub(crate) fn is_unheard(&self) -> bool {
        self.marks & UNHEARD != 0
    }

    pub(crate) fn set_unheard(&mut self, is_unheard: bool) {
        self.marks = if is_unheard { self.marks | UNHEARD } else { self.marks & !UNHEARD };
    }

    /// Notes that a request asks for the key. True if none has before: only other regions had.
    pub(crate) fn mark_asked(&mut self) -> bool {
        let is_unasked = self.marks & UNASKED != 0;
        self.marks &= !UNASKED;
        is_unasked
    }

    /// Notes that the key is made only because other regions have counted it.
    pub(crate) fn set_unasked(&mut self) {
        self.marks |= UNASKED;
    }

    /// The cells that other regions should know of, with their sequences; `None` where there is none.
    pub(crate) fn notable(&self, counter: &Counter, terms: &Terms, regions: u32) -> [Option<(u64, Counts)>; 2] {
        let Some(cells) = counter.windows() else { return [None, None] };
        self.publish_rule(terms, regions).cells(cells, self.foreign())
    }

    /// What other regions know of a cell, and how much it matters to them.
    pub(crate) fn standing(&self, sequence: u64, terms: &Terms, regions: u32) -> CellStanding {
        self.publish_rule(terms, regions).standing(sequence, self.foreign())
    }

    fn publish_rule(&self, terms: &Terms, regions: u32) -> PublishRule {
        let with_refunds = !self.pending_refunds();
        PublishRule { limit: terms.limit, regions, weighing: weighing(terms), with_refunds }
    }

    /// Ends the pause if as many hits fit again: others may have given hits back.
    pub(crate) fn reconsider_pause(&mut self, counter: &mut Counter, terms: &Terms, now_ms: u64) {
        let mut view = View { counter, foreign: self.foreign(), is_cut_off: false };
        if view.look(terms, now_ms).available >= i64::from(self.paused_hits) {
            self.resume();
        }
    }

    /// Forgets what other regions have counted, because they do not count the key any more.
    pub(crate) fn leave_foreign(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.foreign = None;
        }
    }

    /// It has something that most keys do not have, which takes memory of its own.
    #[inline]
    pub(crate) fn has_more_beside(&self) -> bool {
        self.rare.is_some()
    }

    /// How many bytes it takes on the heap.
    #[inline]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.own.heap_bytes() + self.rare.as_deref().map_or(0, Rare::heap_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::policy::Algorithm;

    #[test]
    fn a_pause_does_not_come_again_after_fifty_days() {
        const DAY_MS: u64 = 24 * 60 * 60 * 1000;
        let terms = Terms { limit: 10, window_ms: 366 * DAY_MS, algorithm: Algorithm::SlidingWindow, burst: 10 };
        let mut shared = RegionalPart::new(&Counter::new(&terms, 0), Store::Origin, 0, false, true);
        let (at_ms, for_ms) = (1_000_000, 1_800_000);
        shared.pause(3, for_ms, at_ms);
        assert_eq!((shared.paused_for_ms(2, at_ms), shared.paused_for_ms(3, at_ms)), (None, Some(for_ms)));
        assert!(shared.paused_for_ms(3, at_ms + for_ms - PAUSE_UNIT_MS).is_some());
        assert_eq!(shared.paused_for_ms(3, at_ms + for_ms), None);
        // 32 bits of milliseconds would have started over by now; a key lasts for two windows.
        assert_eq!(shared.paused_for_ms(3, at_ms + (1 << 32)), None);
        assert!((1..732).all(|day| shared.paused_for_ms(3, at_ms + day * DAY_MS).is_none()));
    }

    #[test]
    fn a_part_takes_ninety_six_bytes() {
        assert_eq!(std::mem::size_of::<RegionalPart>(), 96);
        assert_eq!(std::mem::size_of::<Rare>(), 120);
    }
}
