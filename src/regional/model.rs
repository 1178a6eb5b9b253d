//! What does the origin do, said plainly: `scripts/origin.lua` in memory.
//!
//! It is the simulator's Redis, and the script's documentation: the same rules without what makes a script fast. A test
//! sends the same calls to both and compares every reply. A failover to an older copy is a clone that is put back, a loss
//! of all data is [`Origin::clear`].

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::engine::count::gcra::DEBT_TIMES;
use crate::engine::quota::QuotaRule;

use super::call::{
    Ask, AskVerdict, COUNT_MAX, Call, Heard, Level, Measure, Need, OriginKey, Part, ProcessId, Reply, Told,
};
use super::redis::codec::{Beat, bounded, bounded_told};

/// A process that was not heard of for longer is gone.
const GONE_AFTER_MS: u64 = 3000;

/// How long a bucket outlives its last hit.
const BUCKET_LINGERS_MS: u64 = 60_000;

/// A bucket that has been empty for longer starts afresh.
const BUCKET_RENEWED_MS: u64 = 5_000;

/// A generation of a bucket's fields lasts for a window, within these.
const GENERATION_MS_MIN: u64 = 60_000;
const GENERATION_MS_MAX: u64 = 3_600_000;

/// From here on an epoch has fewer bits of the nonce, so that it lasts for centuries.
const EPOCHS_COARSE_MS: u64 = 1_893_456_000_000;

/// A Redis with nothing but our cells in it.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    cells: BTreeMap<(OriginKey, u64), Cell>,
    buckets: BTreeMap<OriginKey, Bucket>,
    /// When each process was last heard of.
    processes: BTreeMap<ProcessId, u64>,
    /// When a heartbeat first came in, in microseconds.
    incarnation: Option<u64>,
}

/// What every hash has.
#[derive(Clone, Debug, Default)]
struct Base {
    epoch: u64,
    /// The epoch from which on nothing was lost: that of the first generation.
    born: u64,
    fields: BTreeMap<ProcessId, Field>,
    expires_at_ms: u64,
}

/// The highest totals that a process has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    own: u64,
    asked: u64,
}

/// A cell of a window.
#[derive(Clone, Debug, Default)]
struct Cell {
    base: Base,
    floor: u64,
    added: u64,
    /// The sum of all fields that there ever were.
    told: u64,
    refunds: u64,
    /// The most that a process has known in this epoch, and what was given back of it.
    known: Field,
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    base: Base,
    whole: u64,
    rest: u64,
    at_ms: u64,
    /// In this generation.
    ever_added: u64,
    /// When the generation began.
    began_ms: u64,
    before: Before,
}

/// The generation of fields before.
#[derive(Clone, Debug, Default)]
struct Before {
    fields: BTreeMap<ProcessId, Field>,
    expires_at_ms: u64,
    /// How many of them nobody has taken along, expired or not.
    left: usize,
}

/// What a process tells about a cell, next to what the cell knows: what is new in it.
struct News {
    /// The epoch that the process knows is another one, and how it compares to the cell's.
    other_epoch: Option<OtherEpoch>,
    hits: u64,
    /// How far the process's field went up.
    raised: u64,
    refunds: u64,
    /// Whether the process's field is made or raised.
    is_field_new: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherEpoch {
    /// The process knows an older one: the origin has lost the cell and made it anew.
    Older,
    /// It knows one of a generation before: nothing is lost.
    Before,
    /// It knows a newer one: an older copy of the cell came back.
    Newer,
}

/// How many whole hits a bucket holds.
fn level_max(limit: u32, burst: u32) -> u64 {
    DEBT_TIMES * (u64::from(limit) + u64::from(burst))
}

fn saturating(left: u64, right: u64) -> u64 {
    bounded(left.saturating_add(right))
}

/// Later than one that was known.
fn new_epoch(known: u64, nonce: u16, time_ms: u64) -> u64 {
    let epoch = match time_ms.checked_sub(EPOCHS_COARSE_MS) {
        None => time_ms * 4096 + u64::from(nonce),
        Some(since_ms) => EPOCHS_COARSE_MS * 4096 + since_ms * 64 + u64::from(nonce % 64),
    };
    bounded(epoch.max(known + 1))
}

impl Base {
    /// Made for a process that knew an epoch: the new one is later, even if this origin's clock is behind.
    fn new(told: &Told, nonce: u16, time_ms: u64) -> Base {
        let epoch = new_epoch(told.epoch, nonce, time_ms);
        Base { epoch, born: epoch, ..Base::default() }
    }

    /// Raises the process's field to what it tells and says what is new in that. Without a seat only the field is made.
    fn hear(&mut self, process: ProcessId, told: &Told) -> News {
        let is_missing = !self.fields.contains_key(&process);
        let field = self.fields.entry(process).or_default();
        let other_epoch = match told.epoch {
            0 => None,
            epoch if epoch < self.born => Some(OtherEpoch::Older),
            epoch if epoch < self.epoch => Some(OtherEpoch::Before),
            epoch if epoch > self.epoch => Some(OtherEpoch::Newer),
            _ => None,
        };
        if !told.is_seated {
            return News { other_epoch, hits: 0, raised: 0, refunds: 0, is_field_new: is_missing };
        }
        let before = *field;
        *field = Field { own: before.own.max(told.own), asked: before.asked.max(told.asked) };
        let known = match other_epoch {
            None => before,
            Some(_) => Field { own: before.own.max(told.acked), asked: before.asked.max(told.asked_acked) },
        };
        News {
            other_epoch,
            hits: told.own.saturating_sub(known.own),
            raised: field.own - before.own,
            refunds: told.asked.saturating_sub(known.asked),
            is_field_new: is_missing || *field != before,
        }
    }
}

impl Cell {
    fn hits(&self) -> u64 {
        self.told_hits().max(self.known.own)
    }

    /// What was told to this copy.
    fn told_hits(&self) -> u64 {
        saturating(self.floor, self.added).max(self.told)
    }

    /// What was given back, as far as anybody knows.
    fn refunds(&self) -> u64 {
        self.refunds.max(self.known.asked)
    }

    /// What counts. A full cell stays full.
    fn count(&self) -> u64 {
        self.hits() - self.refunds()
    }

    fn is_full(&self) -> bool {
        self.hits() == COUNT_MAX
    }

    fn add(&mut self, hits: u64) {
        self.added = saturating(self.added, hits);
        self.stay_full();
    }

    fn stay_full(&mut self) {
        if self.is_full() {
            (self.refunds, self.known.asked) = (0, 0);
        }
    }

    /// A process may know more than an older copy that came back, and those who told it are gone. Never added: who is
    /// there tells again.
    fn know(&mut self, told: &Told) {
        if told.epoch == self.base.epoch && told.floor > self.hits() {
            let pending = told.asked.saturating_sub(told.asked_acked);
            let refunds = told.refunds_floor.saturating_sub(pending).min(told.floor);
            self.known = Field { own: told.floor, asked: self.known.asked.max(refunds) };
            self.stay_full();
        }
    }

    /// Takes back what is there and says what is not.
    fn refund(&mut self, hits: u64) -> u64 {
        let taken = if self.is_full() { 0 } else { hits.min(self.hits() - self.refunds) };
        self.refunds += taken;
        hits - taken
    }

    fn raise(&mut self, told: &Told, other_epoch: OtherEpoch) {
        match other_epoch {
            OtherEpoch::Older => self.floor = self.floor.max(told.floor),
            // As an addition, because a floor from before may still come in.
            OtherEpoch::Newer if told.floor > self.told_hits() => self.added = told.floor - self.floor,
            OtherEpoch::Before | OtherEpoch::Newer => {}
        }
        self.refunds = self.refunds.max(told.refunds_floor.min(self.told_hits()));
    }
}

impl Bucket {
    /// As `engine::gcra::Bucket::drain`, by the origin's clock. Says whether the time moved.
    fn drain(&mut self, now_ms: u64, limit: u32, window_ms: u64) -> bool {
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

    /// Whether it has been empty for so long that nobody knows better.
    fn is_empty_since(&self, now_ms: u64, limit: u32, window_ms: u64) -> bool {
        let passed_ms = now_ms.checked_sub(self.at_ms).filter(|passed_ms| *passed_ms > BUCKET_RENEWED_MS);
        let drained = |passed_ms: u64| u128::from(passed_ms - BUCKET_RENEWED_MS) * u128::from(limit);
        passed_ms.is_some_and(|passed_ms| drained(passed_ms) >= self.level(window_ms))
    }

    /// Finds the field of a process in the generation before; or ends this generation if it has lasted, and the process
    /// is new. So the fields of processes that are gone go too, though the bucket is never empty. Says whether it has.
    fn meet(&mut self, call: &Call, told: &Told, window_ms: u64, time_ms: u64) -> bool {
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

    /// In hits times milliseconds of the window.
    fn level(&self, window_ms: u64) -> u128 {
        u128::from(self.whole) * u128::from(window_ms) + u128::from(self.rest)
    }

    fn set_level(&mut self, level: u128, window_ms: u64) {
        self.whole = (level / u128::from(window_ms)) as u64;
        self.rest = (level % u128::from(window_ms)) as u64;
    }

    /// What goes above `most` is forgiven, what is there stays.
    fn add(&mut self, hits: u64, most: u64) {
        self.whole = saturating(self.whole, hits).min(most.max(self.whole));
        self.ever_added = saturating(self.ever_added, hits);
    }

    fn refund(&mut self, hits: u64) {
        if hits > self.whole {
            self.rest = 0;
        }
        self.whole = self.whole.saturating_sub(hits);
    }

    /// Raises the level to what a process knows, and says whether that changed it.
    fn raise(&mut self, told: &Told, other_epoch: OtherEpoch, most: u64) -> bool {
        let level = match other_epoch {
            // To what was added since comes what was there before, unless it is in already.
            OtherEpoch::Older if (told.floor, told.floor_rest) == (0, 0) => return false,
            OtherEpoch::Older => (saturating(told.floor, self.ever_added), told.floor_rest),
            OtherEpoch::Before => return false,
            OtherEpoch::Newer => (told.floor, told.floor_rest),
        };
        let level = level.min((most, 0));
        let is_higher = level > (self.whole, self.rest);
        if is_higher {
            (self.whole, self.rest) = level;
        }
        is_higher
    }

    /// How long from now until a minute after it is empty. Without a rate it never drains, and denies whatever its level:
    /// there is nothing to remember.
    fn ttl_ms(&self, now_ms: u64, limit: u32, window_ms: u64) -> u64 {
        let wait_ms = match limit {
            0 => window_ms,
            _ => u64::try_from(self.level(window_ms).div_ceil(limit.into())).unwrap_or(u64::MAX),
        };
        bounded((self.at_ms - now_ms).saturating_add(wait_ms).saturating_add(BUCKET_LINGERS_MS))
    }
}

/// A part of a call while the call is served.
struct Open {
    part: Part,
    /// What the process has accepted in the newest cell, as far as the call has come.
    running: u64,
    /// For each cell, whether it has to be written.
    is_changed: SmallVec<[bool; 2]>,
}

impl Origin {
    /// Takes a call. The time is the origin's own.
    pub fn call(&mut self, call: &Call, time_ms: u64) -> Reply {
        self.expire(time_ms);
        let mut open: Vec<Open> = call.parts.iter().map(|part| self.open(call, part, time_ms)).collect();
        let verdicts = call.asks.iter().map(|ask| self.decide(call, &mut open, ask)).collect();
        let parts = open.iter().map(|open| self.close(call.process, open, time_ms)).collect();
        Reply { parts, verdicts }
    }

    /// Brings the cells of a part up to what they are told.
    fn open(&mut self, call: &Call, part: &Part, time_ms: u64) -> Open {
        let cells = part.cells.iter().map(|told| bounded_told(told, part)).collect();
        let part = Part { cells, ..*part };
        let is_changed = match part.measure {
            Measure::Gcra { limit, burst } => self.open_bucket(call, &part, (limit, burst), time_ms),
            Measure::Sum | Measure::Sliding { .. } => self.open_cells(call, &part, time_ms),
        };
        let told = &part.cells[0];
        let running = if told.is_seated { told.own } else { self.base(&part, 0).fields[&call.process].own };
        Open { part, running, is_changed }
    }

    fn open_cells(&mut self, call: &Call, part: &Part, time_ms: u64) -> SmallVec<[bool; 2]> {
        let mut is_changed = SmallVec::new();
        let mut refunds = Vec::new();
        for (place, told) in part.cells.iter().enumerate() {
            let is_made = !self.cells.contains_key(&(part.key, told.sequence));
            let make = || Cell { base: Base::new(told, call.nonce, time_ms), ..Cell::default() };
            let cell = self.cells.entry((part.key, told.sequence)).or_insert_with(make);
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
            // What is not the newest is not kept for its holders alone.
            let is_only_read = is_made && place > 0 && cell.base.fields[&call.process] == Field::default();
            is_changed.push(is_counted || (!is_only_read && (is_made || news.is_field_new)));
        }
        // Only now, because they take from all cells of the part.
        for (newest, mut left) in refunds.into_iter().enumerate() {
            for (told, is_changed) in part.cells.iter().zip(&mut is_changed).skip(newest) {
                if let Some(cell) = self.cells.get_mut(&(part.key, told.sequence)) {
                    let before = left;
                    left = cell.refund(left);
                    *is_changed |= left != before;
                }
            }
        }
        is_changed
    }

    fn open_bucket(
        &mut self,
        call: &Call,
        part: &Part,
        (limit, burst): (u32, u32),
        time_ms: u64,
    ) -> SmallVec<[bool; 2]> {
        let told = &part.cells[0];
        let most = level_max(limit, burst);
        // What was told to it has drained everywhere: the fields of all who ever held it go, as if it were lost.
        let is_over = |bucket: &Bucket| bucket.is_empty_since(time_ms, limit, part.window_ms);
        let before = self.buckets.get(&part.key).filter(|bucket| is_over(bucket)).map_or(0, |bucket| bucket.base.epoch);
        if before > 0 {
            self.buckets.remove(&part.key);
        }
        let is_made = !self.buckets.contains_key(&part.key);
        let later = Told { epoch: told.epoch.max(before), ..*told };
        let base = || Base::new(&later, call.nonce, time_ms);
        let make = || Bucket { base: base(), at_ms: time_ms, began_ms: time_ms, ..Bucket::default() };
        let bucket = self.buckets.entry(part.key).or_insert_with(make);
        // Written even if nothing else is: a limit that changes must change only what drains from then on.
        let is_drained = bucket.drain(time_ms, limit, part.window_ms);
        let is_met = bucket.meet(call, told, part.window_ms, time_ms);
        let news = bucket.base.hear(call.process, told);
        let is_raised = news.other_epoch.is_some_and(|other_epoch| bucket.raise(told, other_epoch, most));
        // Of what was not told, only what has not drained where it was admitted. What was given back there is not in its
        // level any more.
        let left = saturating(told.ttl_ms, news.refunds);
        bucket.add(news.hits.min(left), most);
        bucket.ever_added = saturating(bucket.ever_added, news.hits.saturating_sub(left));
        bucket.refund(news.refunds);
        let is_changed = is_made || is_met || is_drained || is_raised || news.is_field_new;
        SmallVec::from_elem(is_changed, 1)
    }

    /// Decides an ask and charges it to the newest cells.
    fn decide(&mut self, call: &Call, open: &mut [Open], ask: &Ask) -> AskVerdict {
        let mut fits: Vec<bool> = Vec::new();
        for (place, need) in ask.needs.iter().enumerate() {
            // Twins of the same ask wait for the same verdict.
            let is_twin = |(other, fits): &(&Need, &bool)| other.part == need.part && **fits;
            let waiting = ask.needs[..place].iter().zip(&fits).filter(is_twin);
            let waiting = waiting.fold(0, |sum, (other, _)| saturating(sum, other.hits));
            let open = &open[need.part];
            let wanted = saturating(saturating(open.running, waiting), bounded(need.hits));
            let new = wanted.saturating_sub(self.field(call.process, &open.part).own);
            fits.push(self.effective(&open.part).saturating_add(new) <= bounded(need.limit));
        }

        let needs = || ask.needs.iter().zip(&fits);
        let is_group_over = |quota: u16| needs().any(|(need, fits)| need.quota == Some(quota) && !fits);
        let is_over = |need: &Need, fits: bool| need.quota.map_or(!fits, is_group_over);
        let rule = QuotaRule::of(needs().map(|(need, fits)| (need.quota.is_some(), is_over(need, *fits))));
        let is_admitted = !rule.denies();
        if is_admitted {
            for need in ask.needs.iter().filter(|need| !need.quota.is_some_and(is_group_over)) {
                self.charge(call, &mut open[need.part], need.hits);
            }
        }
        let over = (0..).zip(&fits).filter(|(_, fits)| !**fits).map(|(place, _)| place).collect();
        AskVerdict { is_admitted, over }
    }

    fn charge(&mut self, call: &Call, open: &mut Open, hits: u64) {
        open.running = saturating(open.running, bounded(hits));
        let new = open.running.saturating_sub(self.field(call.process, &open.part).own);
        if !call.charges || new == 0 {
            return;
        }
        open.is_changed[0] = true;
        if let Some(field) = self.base_mut(&open.part, 0).and_then(|base| base.fields.get_mut(&call.process)) {
            field.own = open.running;
        }
        let cell = (open.part.key, open.part.cells[0].sequence);
        match open.part.measure {
            Measure::Gcra { limit, burst } => {
                let most = level_max(limit, burst);
                self.buckets.get_mut(&cell.0).into_iter().for_each(|bucket| bucket.add(new, most));
            }
            Measure::Sum | Measure::Sliding { .. } => {
                if let Some(cell) = self.cells.get_mut(&cell) {
                    cell.told = saturating(cell.told, new);
                    cell.add(new);
                }
                // The row is older than what is admitted now.
                let row = &mut open.part.cells[0].row;
                row.hits = if row.hits == 0 { 0 } else { saturating(row.hits, new) };
            }
        }
    }

    /// What counts against a limit, with what a process without a seat has besides.
    fn effective(&self, part: &Part) -> u64 {
        let unheard = |told: &Told| if told.is_seated { 0 } else { told.own };
        let count = |told: &Told| {
            let cell = &self.cells[&(part.key, told.sequence)];
            let region = saturating(cell.count(), unheard(told));
            saturating(region.max(told.row.without(cell.refunds())), told.foreign)
        };
        match part.measure {
            Measure::Sum => part.cells.iter().map(count).fold(0, saturating),
            Measure::Sliding { left_ms } => {
                let previous = part.cells.get(1).map_or(0, count);
                let weighed = u128::from(previous) * u128::from(left_ms) / u128::from(part.window_ms);
                saturating(count(&part.cells[0]), weighed as u64)
            }
            Measure::Gcra { .. } => {
                let bucket = &self.buckets[&part.key];
                bucket.whole + u64::from(bucket.rest > 0) + unheard(&part.cells[0])
            }
        }
    }

    /// Writes what changed, which is when it is kept for longer, and says what the cells hold.
    fn close(&mut self, process: ProcessId, open: &Open, time_ms: u64) -> SmallVec<[Heard; 2]> {
        let Open { part, is_changed, .. } = open;
        let is_bucket = matches!(part.measure, Measure::Gcra { .. });
        let mut heard = SmallVec::new();
        for (place, (told, is_changed)) in part.cells.iter().zip(is_changed).enumerate() {
            let ttl_ms = match part.measure {
                Measure::Gcra { limit, .. } => self.buckets[&part.key].ttl_ms(time_ms, limit, part.window_ms),
                Measure::Sum | Measure::Sliding { .. } => told.ttl_ms,
            };
            if let Some(base) = self.base_mut(part, place).filter(|_| *is_changed) {
                base.expires_at_ms = time_ms + ttl_ms;
            }
            let base = self.base(part, place);
            let field = base.fields[&process];
            let (sum, refunds, level) = match part.measure {
                Measure::Gcra { .. } => {
                    let Bucket { whole, rest, at_ms, ever_added, .. } = self.buckets[&part.key];
                    (ever_added, 0, Level { ahead_ms: at_ms - time_ms, whole, rest })
                }
                Measure::Sum | Measure::Sliding { .. } => {
                    let cell = &self.cells[&(part.key, told.sequence)];
                    (cell.hits(), cell.refunds(), Level::default())
                }
            };
            let before = if is_bucket { self.buckets[&part.key].before.left } else { 0 };
            let holders = u32::try_from(base.fields.len() + before).unwrap_or(u32::MAX);
            let Field { own, asked } = field;
            let said = Heard { epoch: base.epoch, sum, field: own, asked, refunds, holders, level };
            // What nothing is kept in was there for this call only.
            let is_there = base.expires_at_ms > 0;
            if !is_there {
                self.cells.remove(&(part.key, told.sequence));
            }
            heard.push(if is_there { said } else { Heard { epoch: 0, holders: 0, ..said } });
        }
        heard
    }

    fn base(&self, part: &Part, place: usize) -> &Base {
        match part.measure {
            Measure::Gcra { .. } => &self.buckets[&part.key].base,
            Measure::Sum | Measure::Sliding { .. } => &self.cells[&(part.key, part.cells[place].sequence)].base,
        }
    }

    fn base_mut(&mut self, part: &Part, place: usize) -> Option<&mut Base> {
        match part.measure {
            Measure::Gcra { .. } => self.buckets.get_mut(&part.key).map(|bucket| &mut bucket.base),
            Measure::Sum | Measure::Sliding { .. } => {
                self.cells.get_mut(&(part.key, part.cells[place].sequence)).map(|cell| &mut cell.base)
            }
        }
    }

    /// What the process has in a part's newest cell.
    fn field(&self, process: ProcessId, part: &Part) -> Field {
        self.base(part, 0).fields.get(&process).copied().unwrap_or_default()
    }

    fn expire(&mut self, time_ms: u64) {
        self.cells.retain(|_, cell| time_ms < cell.base.expires_at_ms);
        self.buckets.retain(|_, bucket| time_ms < bucket.base.expires_at_ms);
        for before in self.buckets.values_mut().map(|bucket| &mut bucket.before) {
            before.fields.retain(|_, _| time_ms < before.expires_at_ms);
        }
    }

    /// Takes a heartbeat.
    pub fn beat(&mut self, process: ProcessId, time_ms: u64) -> Beat {
        self.processes.retain(|_, heard_ms| *heard_ms + GONE_AFTER_MS >= time_ms);
        let was_known = self.processes.insert(process, time_ms).is_some();
        let incarnation = *self.incarnation.get_or_insert(time_ms * 1000);
        Beat { was_known, live: self.processes.len() as u64, time_ms, incarnation }
    }

    /// Forgets a process that stops, and its fields in the cells that it held. A bucket's sequence is 0. The sums stay.
    pub fn leave(&mut self, process: ProcessId, cells: &[(OriginKey, u64)]) {
        self.processes.remove(&process);
        for (key, sequence) in cells {
            let cell = self.cells.get_mut(&(*key, *sequence)).map(|cell| &mut cell.base);
            let bucket = self.buckets.get_mut(key).filter(|_| *sequence == 0).map(|bucket| &mut bucket.base);
            for base in cell.into_iter().chain(bucket) {
                base.fields.remove(&process);
            }
        }
    }

    /// Loses all data.
    pub fn clear(&mut self) {
        *self = Origin::default();
    }

    /// The hits and refunds of all cells.
    pub fn totals(&self) -> (u64, u64) {
        let sum = |of: fn(&Cell) -> u64| self.cells.values().map(of).sum();
        (sum(Cell::hits), sum(Cell::refunds))
    }

    /// The level of all buckets in whole hits, and the most fields that one of them has.
    pub fn levels(&self) -> (u64, usize) {
        let fields = |bucket: &Bucket| bucket.base.fields.len() + bucket.before.fields.len();
        let level = self.buckets.values().map(|bucket| bucket.whole).sum();
        (level, self.buckets.values().map(fields).max().unwrap_or(0))
    }

    /// The hits and refunds of a window's cell.
    pub fn total(&self, key: &OriginKey, sequence: u64) -> Option<(u64, u64)> {
        self.cells.get(&(*key, sequence)).map(|cell| (cell.hits(), cell.refunds()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::table::foreign::Counts;
    use smallvec::smallvec;

    const KEY: OriginKey = OriginKey([1; 20]);
    const A: ProcessId = ProcessId(0xa);
    const B: ProcessId = ProcessId(0xb);
    const TIME_MS: u64 = 1_700_000_000_000;

    fn told(own: u64) -> Told {
        Told { sequence: 10, is_seated: true, own, ttl_ms: 60_000, ..Told::default() }
    }

    fn fixed(told: Told) -> Part {
        Part { key: KEY, window_ms: 60_000, measure: Measure::Sum, cells: smallvec![told] }
    }

    fn sliding(current: Told, previous: Told, left_ms: u64) -> Part {
        let cells = smallvec![current, Told { sequence: 9, ..previous }];
        Part { key: KEY, window_ms: 60_000, measure: Measure::Sliding { left_ms }, cells }
    }

    fn bucket(told: Told) -> Part {
        let cells = smallvec![Told { sequence: 0, ..told }];
        Part { key: KEY, window_ms: 60_000, measure: Measure::Gcra { limit: 10, burst: 1000 }, cells }
    }

    fn replay(process: ProcessId, part: Part) -> Call {
        Call { process, nonce: 7, charges: true, parts: vec![part], asks: Vec::new() }
    }

    fn need(hits: u64, limit: u64) -> Need {
        Need { part: 0, limit, hits, quota: None }
    }

    fn ask(needs: &[Need]) -> Ask {
        Ask { needs: needs.into() }
    }

    fn check(process: ProcessId, part: Part, asks: &[Ask]) -> Call {
        Call { asks: asks.to_vec(), ..replay(process, part) }
    }

    fn heard(origin: &mut Origin, call: &Call) -> Heard {
        origin.call(call, TIME_MS).parts[0][0]
    }

    fn admitted(origin: &mut Origin, call: &Call) -> Vec<bool> {
        origin.call(call, TIME_MS).verdicts.iter().map(|verdict| verdict.is_admitted).collect()
    }

    #[test]
    fn messages_that_are_late_or_repeated_change_nothing() {
        let mut origin = Origin::default();
        let first = heard(&mut origin, &replay(A, fixed(told(5))));
        assert_eq!((first.sum, first.field, first.holders), (5, 5, 1));
        assert_eq!(first.epoch, TIME_MS * 4096 + 7);
        let known = Told { epoch: first.epoch, acked: 5, floor: 5, ..told(9) };
        assert_eq!(heard(&mut origin, &replay(A, fixed(known))).sum, 9);
        for late in [known, told(5), told(0)] {
            let heard = heard(&mut origin, &replay(A, fixed(late)));
            assert_eq!((heard.sum, heard.field), (9, 9));
        }
        let other = heard(&mut origin, &replay(B, fixed(told(3))));
        assert_eq!((other.sum, other.field, other.holders), (12, 3, 2));
    }

    #[test]
    fn a_lost_cell_is_made_anew_from_the_highest_floor() {
        let mut origin = Origin::default();
        heard(&mut origin, &replay(A, fixed(told(5))));
        let epoch = heard(&mut origin, &replay(B, fixed(told(3)))).epoch;
        origin.clear();
        // A knew only of its own, B of both; each has accepted two more since. A new process comes first.
        let later_ms = TIME_MS + 1;
        let fresh = origin.call(&replay(ProcessId(0xc), fixed(told(1))), later_ms).parts[0][0];
        assert_eq!(fresh.sum, 1);
        let of_a = replay(A, fixed(Told { epoch, acked: 5, floor: 5, ..told(7) }));
        assert_eq!(origin.call(&of_a, later_ms).parts[0][0].sum, 5 + 1 + 2);
        let of_b = replay(B, fixed(Told { epoch, acked: 3, floor: 8, ..told(5) }));
        assert_eq!(origin.call(&of_b, later_ms).parts[0][0].sum, 8 + 1 + 2 + 2);
        for repeated in [of_a, of_b] {
            assert_eq!(origin.call(&repeated, later_ms).parts[0][0].sum, 13);
        }
    }

    #[test]
    fn a_cell_that_is_made_anew_by_a_clock_behind_is_still_later() {
        let mut origin = Origin::default();
        let epoch = heard(&mut origin, &replay(A, fixed(told(5)))).epoch;
        origin.clear();
        let of_a = replay(A, fixed(Told { epoch, acked: 5, floor: 5, ..told(6) }));
        let heard = origin.call(&of_a, TIME_MS - 3_600_000).parts[0][0];
        assert_eq!((heard.epoch, heard.sum), (epoch + 1, 6));
    }

    #[test]
    fn losses_are_noticed_for_centuries() {
        const YEAR_MS: u64 = 31_557_600_000;
        let in_2040_ms = 2_208_988_800_000;
        let around_2030 = [EPOCHS_COARSE_MS - 1, EPOCHS_COARSE_MS, EPOCHS_COARSE_MS + 1];
        let later = [in_2040_ms, in_2040_ms + 1, in_2040_ms + 600 * YEAR_MS, in_2040_ms + 600 * YEAR_MS + 1];
        let mut before = 0;
        for time_ms in around_2030.into_iter().chain(later) {
            for nonce in [0, 63] {
                let mut origin = Origin::default();
                let made = origin.call(&Call { nonce, ..replay(A, fixed(told(5))) }, time_ms).parts[0][0];
                assert!(made.epoch > before && made.epoch < COUNT_MAX, "{made:?} at {time_ms}");
                before = made.epoch;
                origin.clear();
                origin.call(&replay(B, fixed(told(1))), time_ms + 1);
                let known = Told { epoch: made.epoch, acked: 5, floor: 5, ..told(5) };
                let healed = origin.call(&replay(A, fixed(known)), time_ms + 1).parts[0][0];
                assert_eq!((healed.sum, healed.epoch > made.epoch), (6, true), "at {time_ms}");
            }
        }
    }

    #[test]
    fn an_older_copy_heals() {
        let mut origin = Origin::default();
        heard(&mut origin, &replay(A, fixed(told(5))));
        let copy = origin.clone();
        let epoch = heard(&mut origin, &replay(B, fixed(told(3)))).epoch;
        heard(&mut origin, &replay(A, fixed(told(9))));
        origin = copy;
        // The same epoch: what the fields lack is added, also for who was not there yet.
        heard(&mut origin, &replay(B, fixed(Told { epoch, acked: 3, floor: 12, ..told(3) })));
        let healed = heard(&mut origin, &replay(A, fixed(Told { epoch, acked: 9, floor: 12, ..told(9) })));
        assert_eq!(healed.sum, 12);
        // A copy from before the cell was made anew: the sum rises to the floor, and what is new is added.
        let newer = replay(A, fixed(Told { epoch: epoch + 1, acked: 20, floor: 30, ..told(21) }));
        assert_eq!(heard(&mut origin, &newer).sum, 31);
        assert_eq!(heard(&mut origin, &newer).sum, 31);
    }

    #[test]
    fn an_older_copy_does_not_forget_what_the_dead_had_told_if_somebody_knows_it() {
        let mut origin = Origin::default();
        heard(&mut origin, &replay(A, fixed(told(5))));
        let copy = origin.clone();
        let epoch = heard(&mut origin, &replay(B, fixed(Told { asked: 2, ..told(7) }))).epoch;
        heard(&mut origin, &replay(ProcessId(0xc), fixed(told(4))));
        // B dies with the primary. A knows of all 16, and that two of them were given back.
        origin = copy;
        let known = Told { epoch, acked: 5, floor: 16, refunds_floor: 2, ..told(5) };
        for _ in 0..2 {
            let healed = heard(&mut origin, &replay(A, fixed(known)));
            assert_eq!((healed.sum, healed.refunds), (16, 2));
        }
        // Who is there tells again, which is not added to what is known: its own hits are a part of it.
        let of_c = replay(ProcessId(0xc), fixed(Told { epoch, acked: 4, floor: 16, ..told(4) }));
        assert_eq!(heard(&mut origin, &of_c).sum, 16);
        // Late: one that knew less.
        let late = Told { epoch, acked: 5, floor: 12, ..told(5) };
        assert_eq!(heard(&mut origin, &replay(A, fixed(late))).sum, 16);
        assert_eq!(admitted(&mut origin, &check(A, fixed(known), &[ask(&[need(2, 15)])])), [false]);
        assert_eq!(admitted(&mut origin, &check(A, fixed(known), &[ask(&[need(1, 15)])])), [true]);
    }

    #[test]
    fn without_a_seat_nothing_is_added_but_counted_while_it_is_judged() {
        let mut origin = Origin::default();
        heard(&mut origin, &replay(A, fixed(told(5))));
        let cold = Told { is_seated: false, ..told(3) };
        let read = heard(&mut origin, &replay(A, fixed(cold)));
        assert_eq!((read.sum, read.field, read.holders), (5, 5, 1));
        let holder = heard(&mut origin, &replay(B, fixed(cold)));
        assert_eq!((holder.sum, holder.field, holder.holders), (5, 0, 2));
        assert_eq!(admitted(&mut origin, &check(A, fixed(cold), &[ask(&[need(3, 10)])])), [false]);
        assert_eq!(admitted(&mut origin, &check(A, fixed(cold), &[ask(&[need(2, 10)])])), [true]);
        let after = heard(&mut origin, &replay(A, fixed(cold)));
        assert_eq!((after.sum, after.field), (7, 7));
        // Neither are its refunds.
        let asks_back = Told { asked: 4, ..cold };
        let heard = heard(&mut origin, &replay(A, fixed(asks_back)));
        assert_eq!((heard.refunds, heard.asked), (0, 0));
    }

    #[test]
    fn the_phantom_of_an_abandoned_check_is_absorbed_by_the_next_hit() {
        let mut origin = Origin::default();
        let asks = check(A, fixed(told(0)), &[ask(&[need(1, 1)])]);
        assert_eq!(admitted(&mut origin, &asks), [true]);
        // The caller has given up, and A never learned of it.
        let reply = origin.call(&asks, TIME_MS);
        assert!(reply.verdicts[0].is_admitted);
        assert_eq!((reply.parts[0][0].sum, reply.parts[0][0].field), (1, 1));
        assert_eq!(admitted(&mut origin, &check(A, fixed(told(1)), &[ask(&[need(1, 1)])])), [false]);
        assert_eq!(admitted(&mut origin, &check(B, fixed(told(0)), &[ask(&[need(1, 1)])])), [false]);
    }

    #[test]
    fn asks_are_decided_in_order_each_all_or_nothing() {
        let mut origin = Origin::default();
        let other = Part { key: OriginKey([2; 20]), ..fixed(told(0)) };
        let asks = [
            ask(&[need(3, 5), Need { part: 1, ..need(3, 2) }]),
            ask(&[need(3, 5)]),
            ask(&[need(3, 5)]),
            ask(&[need(2, 5), Need { part: 1, ..need(2, 2) }]),
        ];
        let mut call = check(A, fixed(told(0)), &asks);
        call.parts.push(other);
        let judged = Call { charges: false, ..call.clone() };
        let reply = origin.call(&judged, TIME_MS);
        let would: Vec<bool> = reply.verdicts.iter().map(|verdict| verdict.is_admitted).collect();
        assert_eq!(would, [false, true, false, true]);
        assert_eq!((reply.parts[0][0].sum, reply.parts[1][0].sum), (0, 0), "only judged");
        let reply = origin.call(&call, TIME_MS);
        let over: Vec<&[u16]> = reply.verdicts.iter().map(|verdict| &verdict.over[..]).collect();
        assert_eq!(over, [&[1][..], &[], &[0], &[]]);
        assert_eq!((reply.parts[0][0].sum, reply.parts[1][0].sum), (5, 2));
        assert_eq!((reply.parts[0][0].field, reply.parts[1][0].field), (5, 2));
    }

    #[test]
    fn twins_in_one_ask_add_up() {
        let mut origin = Origin::default();
        let twins = |hits| check(A, fixed(told(0)), &[ask(&[need(hits, 5), need(hits, 5)])]);
        let reply = origin.call(&twins(3), TIME_MS);
        assert_eq!(reply.verdicts[0], AskVerdict { is_admitted: false, over: smallvec![1] });
        assert_eq!(reply.parts[0][0].sum, 0);
        let reply = origin.call(&twins(2), TIME_MS);
        assert!(reply.verdicts[0].is_admitted);
        assert_eq!(reply.parts[0][0].sum, 4);
    }

    #[test]
    fn quota_groups_deny_only_together_and_are_not_charged_when_over() {
        let mut origin = Origin::default();
        let parts = vec![fixed(told(0)), Part { key: OriginKey([2; 20]), ..fixed(told(0)) }];
        let quota = |part, hits, limit, quota| Need { part, limit, hits, quota: Some(quota) };
        let decided = |origin: &mut Origin, needs: &[Need]| {
            let call = Call { parts: parts.clone(), ..check(A, fixed(told(0)), &[ask(needs)]) };
            let reply = origin.call(&call, TIME_MS);
            let sums: Vec<u64> = reply.parts.iter().map(|cells| cells[0].sum).collect();
            (reply.verdicts[0].is_admitted, reply.verdicts[0].over.to_vec(), sums)
        };
        assert_eq!(decided(&mut origin, &[quota(0, 2, 1, 0), quota(1, 1, 1, 1)]), (true, vec![0], vec![0, 1]));
        origin.clear();
        assert_eq!(decided(&mut origin, &[quota(0, 2, 1, 0), quota(1, 2, 1, 1)]), (false, vec![0, 1], vec![0, 0]));
        // One of a group is over, so all of it is, and it is the only group.
        assert_eq!(decided(&mut origin, &[quota(0, 1, 1, 0), quota(1, 2, 1, 0)]), (false, vec![1], vec![0, 0]));
        let alone = Need { part: 1, ..need(1, 0) };
        assert_eq!(decided(&mut origin, &[quota(0, 1, 1, 0), alone]), (false, vec![1], vec![0, 0]));
    }

    #[test]
    fn what_is_admitted_counts_on_top_of_the_row() {
        let mut origin = Origin::default();
        let told = Told { row: Counts { hits: 15, refunds: 0 }, ..told(1) };
        let asks = vec![ask(&[need(2, 20)]); 4];
        assert_eq!(admitted(&mut origin, &check(A, fixed(told), &asks)), [true, true, false, false]);
        assert_eq!(origin.total(&KEY, 10), Some((5, 0)), "the row is not kept");
    }

    #[test]
    fn hits_of_zero_ask_and_charge_nothing() {
        let mut origin = Origin::default();
        let peek = |own| check(A, fixed(told(own)), &[ask(&[need(0, 5)])]);
        assert_eq!(admitted(&mut origin, &peek(5)), [true], "as in memory: nothing is left, but nothing is wanted");
        assert_eq!(admitted(&mut origin, &peek(6)), [false]);
        assert_eq!(origin.total(&KEY, 10), Some((6, 0)));
    }

    #[test]
    fn refunds_take_from_the_cell_and_then_from_the_older_never_below_zero() {
        let mut origin = Origin::default();
        let part = |asked| sliding(Told { asked, ..told(5) }, told(10), 60_000);
        let reply = origin.call(&replay(A, part(8)), TIME_MS);
        let refunds = |reply: &Reply| -> Vec<u64> { reply.parts[0].iter().map(|heard| heard.refunds).collect() };
        assert_eq!(refunds(&reply), [5, 3]);
        assert_eq!(reply.parts[0][0].asked, 8);
        assert_eq!(refunds(&origin.call(&replay(A, part(8)), TIME_MS)), [5, 3], "a total, however often it is told");
        assert_eq!(refunds(&origin.call(&replay(A, part(100)), TIME_MS)), [5, 10]);
        let later = sliding(Told { asked: 100, ..told(6) }, told(10), 60_000);
        assert_eq!(refunds(&origin.call(&replay(A, later), TIME_MS)), [5, 10], "the excess is never banked");
    }

    #[test]
    fn refunds_of_a_lost_cell_come_back_with_its_floor() {
        let mut origin = Origin::default();
        let epoch = heard(&mut origin, &replay(A, fixed(Told { asked: 3, ..told(9) }))).epoch;
        origin.clear();
        let known = Told { epoch, acked: 9, floor: 9, asked: 4, asked_acked: 3, refunds_floor: 3, ..told(9) };
        for _ in 0..2 {
            let heard = origin.call(&replay(A, fixed(known)), TIME_MS + 1).parts[0][0];
            assert_eq!((heard.sum, heard.refunds, heard.asked), (9, 4, 4));
        }
    }

    #[test]
    fn the_previous_cell_fades() {
        let mut origin = Origin::default();
        let asks = |hits, left_ms| check(A, sliding(told(5), told(10), left_ms), &[ask(&[need(hits, 10)])]);
        assert_eq!(admitted(&mut origin, &asks(1, 30_000)), [false]);
        assert_eq!(admitted(&mut origin, &asks(1, 29_999)), [true]);
    }

    #[test]
    fn a_full_cell_is_over_any_limit() {
        let mut origin = Origin::default();
        let full = Told { asked: u64::MAX, ..told(u64::MAX) };
        let reply = origin.call(&check(A, fixed(full), &[ask(&[need(0, COUNT_MAX - 1)])]), TIME_MS);
        assert!(!reply.verdicts[0].is_admitted);
        assert_eq!((reply.parts[0][0].sum, reply.parts[0][0].refunds), (COUNT_MAX, 0));
    }

    #[test]
    fn a_bucket_drains_by_the_origins_clock() {
        let mut origin = Origin::default();
        let mut asks = |own, hits, after_ms| {
            let call = check(A, bucket(told(own)), &[ask(&[need(hits, 5)])]);
            origin.call(&call, TIME_MS + after_ms).verdicts[0].is_admitted
        };
        assert!(asks(0, 5, 0));
        assert!(!asks(5, 1, 5999));
        assert!(asks(5, 1, 6000));
        // A clock that is set back a little waits, one behind by more than a window was wrong before.
        let mut level = |time_ms| origin.call(&replay(A, bucket(told(6))), time_ms).parts[0][0].level;
        assert_eq!(level(TIME_MS), Level { ahead_ms: 6000, whole: 5, rest: 0 });
        assert_eq!(level(1000), Level { ahead_ms: 0, whole: 5, rest: 0 });
        assert_eq!(level(1001), Level { ahead_ms: 0, whole: 4, rest: 59_990 });
        assert_eq!(level(31_001), Level { ahead_ms: 0, whole: 0, rest: 0 });
        let told = replay(A, bucket(Told { asked: 2, ..told(9) }));
        let sum = origin.call(&told, 31_001).parts[0][0];
        assert_eq!((sum.sum, sum.refunds, sum.level.whole), (9, 0, 1));
    }

    #[test]
    fn what_was_given_back_before_it_was_told_is_given_back_once() {
        let mut origin = Origin::default();
        let level = |origin: &mut Origin, told| heard(origin, &replay(A, bucket(told))).level.whole;
        let given_back = Told { asked: 1, ttl_ms: 1, ..told(2) };
        assert_eq!(level(&mut origin, given_back), 1);
        origin.clear();
        assert_eq!(level(&mut origin, Told { ttl_ms: 0, ..told(3) }), 0, "all of it has drained");
    }

    #[test]
    fn a_bucket_that_was_empty_for_a_while_forgets_who_held_it() {
        let mut origin = Origin::default();
        let at = |origin: &mut Origin, process: u64, own, epoch, after_ms| {
            let told = Told { epoch, acked: own, ..told(own) };
            origin.call(&replay(ProcessId(process), bucket(told)), TIME_MS + after_ms).parts[0][0]
        };
        let first = (1..=12).map(|process| at(&mut origin, process, 1, 0, 0)).last().unwrap();
        assert_eq!((first.holders, first.level.whole), (12, 12));
        // Twelve hits drain in 72 seconds.
        assert_eq!(at(&mut origin, 1, 1, first.epoch, 76_999).holders, 12);
        let renewed = at(&mut origin, 1, 1, first.epoch, 90_000);
        assert_eq!((renewed.holders, renewed.level.whole, renewed.sum), (1, 0, 0), "and nothing is told twice");
        assert!(renewed.epoch > first.epoch);
    }

    /// Levels of a bucket that drains one hit a minute, so that it is never empty.
    fn slow(process: u64, told: Told) -> Call {
        let part = Part { measure: Measure::Gcra { limit: 1, burst: 1000 }, ..bucket(told) };
        replay(ProcessId(process), part)
    }

    #[test]
    fn who_was_silent_for_a_generation_is_not_counted_twice() {
        let mut origin = Origin::default();
        let mut at = |process, told, after_ms| origin.call(&slow(process, told), TIME_MS + after_ms).parts[0][0];
        let first = at(1, told(100), 0);
        // The answer to this one is lost: the process does not know that 10 more are counted.
        let unanswered = Told { epoch: first.epoch, acked: 100, ..told(110) };
        assert_eq!(at(1, unanswered, 0).level.whole, 110);
        at(2, told(10), 0);
        let second = at(3, told(10), 60_000);
        assert!(second.epoch > first.epoch);
        assert_eq!((second.level.whole, second.holders), (129, 3), "another generation, the same level");
        // Late, and repeated: its field is in the generation before.
        for message in [told(100), unanswered, told(100), unanswered] {
            let heard = at(1, message, 60_000);
            assert_eq!((heard.level.whole, heard.field, heard.holders), (129, 110, 3));
        }
        // The other one has been silent for two generations. Nobody knows its field any more, but itself.
        assert_eq!(at(4, told(0), 120_000).holders, 1 + 2, "the second is forgotten");
        let silent = Told { epoch: first.epoch, acked: 10, floor: 1000, ..told(15) };
        for _ in 0..2 {
            let heard = at(2, silent, 120_000);
            assert_eq!((heard.level.whole, heard.field, heard.holders), (128 + 5, 15, 4));
        }
        // What it says that it has not told counts only as far as it has not drained there.
        let drained = Told { epoch: first.epoch, acked: 10, ttl_ms: 0, ..told(15) };
        assert_eq!(at(2, drained, 300_000).level.whole, 130);
    }

    #[test]
    fn an_older_copy_of_a_bucket_heals_over_generations() {
        let mut origin = Origin::default();
        let mut known = Vec::new();
        for process in 1..=3 {
            known.push(origin.call(&slow(process, told(10)), TIME_MS).parts[0][0].epoch);
        }
        let copy = origin.clone();
        let later_ms = TIME_MS + 60_000;
        let renewed = origin.call(&slow(4, told(10)), later_ms).parts[0][0];
        assert_eq!((renewed.level.whole, renewed.holders), (39, 4));
        origin = copy;
        // Three told more, or the same, before they heard of the generation that is lost, one after.
        let same = Told { epoch: known[0], acked: 10, ..told(20) };
        assert_eq!(origin.call(&slow(1, same), later_ms).parts[0][0].level.whole, 39);
        let newer = Told { epoch: renewed.epoch, acked: 10, floor: 39, ..told(10) };
        assert_eq!(origin.call(&slow(4, newer), later_ms).parts[0][0].level.whole, 39, "a lower bound");
    }

    #[test]
    fn the_debt_of_a_bucket_has_an_end_however_often_it_is_told() {
        let mut origin = Origin::default();
        let part = |told| Part { measure: Measure::Gcra { limit: 10, burst: 5 }, ..bucket(told) };
        let mut epoch = 0;
        for own in (1..50).map(|report| report * 1_000_000_000) {
            for process in [A, B] {
                let told = Told { epoch, ttl_ms: own, ..told(own) };
                let heard = heard(&mut origin, &replay(process, part(told)));
                assert!(heard.level.whole <= 10 * (10 + 5), "{heard:?}");
                epoch = heard.epoch;
            }
        }
        // Nor does it come back with what a process knows of the bucket before it was lost.
        for epoch in [epoch - 1, epoch + 1] {
            let told = Told { epoch, floor: COUNT_MAX, ..told(0) };
            assert_eq!(heard(&mut origin, &replay(A, part(told))).level.whole, 10 * (10 + 5));
        }
        // What was charged under a larger limit stays.
        heard(&mut origin, &replay(A, bucket(told(COUNT_MAX - 1))));
        let heard = heard(&mut origin, &replay(A, part(told(COUNT_MAX))));
        assert_eq!((heard.level.whole, heard.field), (10_100, COUNT_MAX));
    }

    #[test]
    fn what_is_only_read_is_not_made() {
        let mut origin = Origin::default();
        let reading = |own| sliding(Told { is_seated: false, ..told(0) }, told(own), 1000);
        let heard = origin.call(&replay(A, reading(0)), TIME_MS).parts[0].clone();
        assert_eq!((heard[0].holders, heard[1].holders, heard[1].epoch), (1, 0, 0));
        assert_eq!((origin.total(&KEY, 10), origin.total(&KEY, 9)), (Some((0, 0)), None));
        let heard = origin.call(&replay(A, reading(3)), TIME_MS).parts[0].clone();
        assert_eq!((heard[1].sum, heard[1].holders), (3, 1));
        assert_eq!(origin.total(&KEY, 9), Some((3, 0)));
    }

    #[test]
    fn a_bucket_that_never_drains_is_not_kept_forever() {
        let mut origin = Origin::default();
        let blocked = |own| Part { measure: Measure::Gcra { limit: 0, burst: 1000 }, ..bucket(told(own)) };
        origin.call(&replay(A, blocked(4)), TIME_MS);
        let later_ms = TIME_MS + 60_000 + BUCKET_LINGERS_MS;
        assert_eq!(origin.call(&replay(B, blocked(0)), later_ms - 1).parts[0][0].level.whole, 4);
        assert_eq!(origin.call(&replay(B, blocked(0)), 2 * later_ms - TIME_MS).parts[0][0].level.whole, 0);
    }

    #[test]
    fn a_lost_bucket_takes_the_level_that_is_known() {
        let mut origin = Origin::default();
        let epoch = heard(&mut origin, &replay(A, bucket(told(4)))).epoch;
        origin.clear();
        let at = |own, floor| bucket(Told { epoch, acked: 4, floor, floor_rest: 9, ..told(own) });
        let later = |origin: &mut Origin, call: &Call| origin.call(call, TIME_MS + 1).parts[0][0];
        later(&mut origin, &replay(B, bucket(told(1))));
        for _ in 0..2 {
            let heard = later(&mut origin, &replay(A, at(6, 4)));
            assert_eq!((heard.level.whole, heard.level.rest, heard.sum), (4 + 1 + 2, 9, 3));
        }
        assert_eq!(later(&mut origin, &replay(A, at(6, 3))).level.whole, 7, "a lower floor is in already");
        assert_eq!(later(&mut origin, &replay(A, at(6, 5))).level.whole, 5 + 3);
        // An older copy: the level only rises to what is known.
        let newer = Told { epoch: u64::MAX, acked: 6, floor: 9, ..told(6) };
        assert_eq!(later(&mut origin, &replay(A, bucket(newer))).level.whole, 9);
    }

    #[test]
    fn cells_expire_and_who_stops_leaves() {
        let mut origin = Origin::default();
        heard(&mut origin, &replay(A, fixed(told(5))));
        heard(&mut origin, &replay(B, fixed(told(5))));
        let beat = |was_known, live, time_ms| Beat { was_known, live, time_ms, incarnation: TIME_MS * 1000 };
        assert_eq!(origin.beat(A, TIME_MS), beat(false, 1, TIME_MS));
        assert_eq!(origin.beat(B, TIME_MS + 3000), beat(false, 2, TIME_MS + 3000));
        origin.leave(A, &[(KEY, 10)]);
        assert_eq!(origin.beat(B, TIME_MS + 3000), beat(true, 1, TIME_MS + 3000));
        let heard = heard(&mut origin, &replay(B, fixed(told(5))));
        assert_eq!((heard.sum, heard.holders), (10, 1));
        origin.call(&replay(B, bucket(told(0))), TIME_MS + 59_999);
        assert_eq!(origin.total(&KEY, 10), Some((10, 0)));
        origin.call(&replay(B, bucket(told(0))), TIME_MS + 60_000);
        assert_eq!(origin.total(&KEY, 10), None);
    }
}
