//! Who waits for which key, and what goes to the origin together.
//!
//! A key has one call under way at a time. The origin recognises a check that it has already applied by its totals, so
//! two with the same totals must not be under way at once. Requests that come meanwhile wait, and go together in the
//! next call. Calls for one key are spaced, so that a hot key costs the origin the same for any number of processes.

use std::collections::{HashMap, HashSet, VecDeque};

use smallvec::SmallVec;

use crate::engine::count::exact::CELLS as EXACT_CELLS;
use crate::engine::count::fits;
use crate::engine::decide::{CheckAnswer, StoreAnswer};
use crate::engine::quota::QuotaRule;
use crate::engine::{QuestionKind, StoreQuestion, StoreRequest, steps};
use crate::regional::call::{AskVerdict, OriginKey};
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

/// How many requests go together at most: so few that a call takes the origin about a millisecond.
pub(crate) const TOGETHER_MAX: usize = 512;
/// Cells of their keys, at most, but for those of a key that all of them wait for.
const CELLS_MAX: usize = 128;

/// Names a request that waits for the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WaitId(pub u64);

/// The outcome of a request's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    Answered(StoreAnswer),
    /// Memory may be able to decide by now.
    Again,
    /// Keys were read that the process did not know, so memory may be able to decide. A table that is too small may
    /// have given them up again: so the answer that the reads come to is here, if all of it could be judged.
    Read(Option<StoreAnswer>),
    /// The origin gave no answer.
    NoAnswer,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(crate) struct QueuedRequest {
    /// The questions, and whether what is admitted is charged.
    pub store_request: StoreRequest,
    /// The key of each question at the origin, in their order.
    pub keys: SmallVec<[OriginKey; 2]>,
    /// Its deadline, in monotonic time: nobody waits for it any longer.
    pub until_us: u64,
    /// How many calls it is part of that have not come back: several in a Cluster.
    pub calls: usize,
    /// What the calls that have come back said about each check.
    answers: SmallVec<[CheckAnswer; 4]>,
    is_admitted: bool,
    /// One of the calls only read.
    pub has_read: bool,
}

impl QueuedRequest {
    pub(crate) fn new(store_request: StoreRequest, keys: SmallVec<[OriginKey; 2]>, until_us: u64) -> QueuedRequest {
        let answers = SmallVec::from_elem(CheckAnswer::NotAsked, store_request.checks);
        QueuedRequest { store_request, keys, until_us, calls: 0, answers, is_admitted: true, has_read: false }
    }

    /// Cells of its keys, but for one that it shares with others.
    fn cells_beside(&self, shared: Option<&OriginKey>) -> usize {
        let beside = self.keys.iter().zip(&self.store_request.questions).filter(|(key, _)| Some(*key) != shared);
        beside.map(|(_, asked)| cells_of(&asked.terms)).sum()
    }

    /// Takes one call's verdict. `questions` are those that were its needs, in order.
    pub(crate) fn hear(&mut self, verdict: &AskVerdict, questions: &[usize], is_read: bool) {
        self.calls = self.calls.saturating_sub(1);
        self.has_read |= is_read;
        self.is_admitted &= verdict.is_admitted;
        let over: HashSet<u16> = verdict.over.iter().copied().collect();
        for (need, question) in questions.iter().enumerate() {
            steps::count();
            let is_over = u16::try_from(need).is_ok_and(|need| over.contains(&need));
            let check = self.store_request.questions[*question].check;
            if let Some(answer) = self.answers.get_mut(check) {
                *answer = if is_over { CheckAnswer::Over } else { CheckAnswer::Fits };
            }
        }
    }

    /// Judges by what reads have found to be counted. Checks of the request on one key add up.
    pub(crate) fn judge(&mut self, counted: &HashMap<OriginKey, i64>) {
        let mut waiting: HashMap<OriginKey, u64> = HashMap::new();
        for (key, asked) in self.keys.iter().zip(&self.store_request.questions) {
            steps::count();
            let Some(counted) = counted.get(key).filter(|_| asked.kind.is_judged()) else { continue };
            let capacity = i64::from(asked.terms.capacity());
            let available = capacity.saturating_sub(*counted).saturating_add(asked.counted_after).min(capacity);
            let before = waiting.entry(*key).or_default();
            let needed = before.saturating_add(asked.hits);
            let fits = fits(available, needed);
            if fits {
                *before = needed;
            }
            if let Some(answer) = self.answers.get_mut(asked.check) {
                *answer = if fits { CheckAnswer::Fits } else { CheckAnswer::Over };
            }
        }
    }

    /// The answer that reads come to, if all that was to be judged could be. Nothing of it is charged.
    pub(crate) fn settled_by_reads(&self) -> Option<StoreAnswer> {
        let is_judged = |asked: &StoreQuestion| self.answers.get(asked.check) != Some(&CheckAnswer::NotAsked);
        let mut judged = self.store_request.questions.iter().filter(|asked| asked.kind.is_judged());
        judged.all(is_judged).then(|| StoreAnswer { is_charged: false, ..self.settled(true) })
    }

    /// The answer of all calls together. A single call knows all needs. If there are several (`is_split`), none of them
    /// knows the quota groups of the others.
    pub(crate) fn settled(&self, is_split: bool) -> StoreAnswer {
        let is_admitted = if is_split { self.is_admitted_by_all() } else { self.is_admitted };
        StoreAnswer { is_admitted, is_charged: self.store_request.charges, checks: self.answers.clone() }
    }

    /// The quota groups of needs that did not fit, and [`QuestionKind::Fits`] if a need did not fit that denies alone.
    pub(crate) fn groups_over(&self) -> HashSet<QuestionKind> {
        let is_over = |asked: &&StoreQuestion| {
            steps::count();
            self.answers.get(asked.check) == Some(&CheckAnswer::Over)
        };
        self.store_request
            .questions
            .iter()
            .filter(is_over)
            .map(|asked| asked.kind)
            .filter(|kind| kind.is_judged())
            .collect()
    }

    fn is_admitted_by_all(&self) -> bool {
        let over = self.groups_over();
        let mut rule = QuotaRule::default();
        for kind in self.store_request.questions.iter().map(|asked| asked.kind) {
            rule.add(kind.quota().is_some(), over.contains(&kind));
        }
        if self.store_request.has_free_quota {
            rule.add(true, false);
        }
        !rule.denies()
    }
}

/// How many cells of a key a check is about.
fn cells_of(terms: &Terms) -> usize {
    match terms.algorithm {
        Algorithm::SlidingWindow => 2,
        Algorithm::FixedWindow | Algorithm::Gcra => 1,
        Algorithm::ExactWindow => EXACT_CELLS,
    }
}

/// Whether a call for a key may go, and who waits for it.
#[derive(Clone, Debug, Default)]
struct KeyState {
    /// A call is under way.
    is_busy: bool,
    /// No call goes before this.
    free_at_us: u64,
    waiting: VecDeque<WaitId>,
}

/// All requests that wait, and what for.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    next_id: u64,
    /// Every request without an answer, whether a call about it is under way or not.
    pub waiting: HashMap<WaitId, QueuedRequest>,
    keys: HashMap<OriginKey, KeyState>,
    /// Keys with requests that wait for the spacing to pass.
    spaced: Vec<OriginKey>,
}

impl WaitQueue {
    pub(crate) fn enter(&mut self, waiting: QueuedRequest) -> WaitId {
        self.next_id += 1;
        let id = WaitId(self.next_id);
        self.waiting.insert(id, waiting);
        id
    }

    /// Starts a request on its way: it goes now if all of its keys are free, otherwise it waits for the first that is
    /// not. True if it goes.
    pub(crate) fn start(&mut self, id: WaitId, now_us: u64) -> bool {
        self.start_with(id, &HashSet::new(), now_us)
    }

    /// Starts a request that goes together with others. They have made the keys of `together` busy.
    fn start_with(&mut self, id: WaitId, together: &HashSet<OriginKey>, now_us: u64) -> bool {
        let Some(waiting) = self.waiting.get(&id) else { return false };
        let keys = waiting.keys.clone();
        for key in &keys {
            steps::count();
            if together.contains(key) {
                continue;
            }
            let state = self.keys.entry(*key).or_default();
            if state.is_busy || now_us < state.free_at_us || !state.waiting.is_empty() {
                if !state.is_busy && state.waiting.is_empty() {
                    self.spaced.push(*key);
                }
                state.waiting.push_back(id);
                return false;
            }
        }
        for key in &keys {
            self.keys.entry(*key).or_default().is_busy = true;
        }
        true
    }

    /// A call about a key is under way that requests wait for.
    pub(crate) fn is_busy(&self, key: &OriginKey) -> bool {
        self.keys.get(key).is_some_and(|state| state.is_busy)
    }

    /// Takes note that a call about these keys is over. The next is not made before `free_at_us`. Returns the keys that
    /// can go on at once.
    pub(crate) fn free(&mut self, keys: &[OriginKey], free_at_us: u64, now_us: u64) -> Vec<OriginKey> {
        let mut ready = Vec::new();
        for key in keys {
            let Some(state) = self.keys.get_mut(key) else { continue };
            state.is_busy = false;
            // If more wait than one call can take, they do not wait for the spacing as well.
            state.free_at_us = if state.waiting.len() > TOGETHER_MAX { now_us } else { free_at_us };
            match (state.waiting.is_empty(), now_us >= state.free_at_us) {
                (true, true) => drop(self.keys.remove(key)),
                (true, false) => {}
                (false, true) => ready.push(*key),
                (false, false) => self.spaced.push(*key),
            }
        }
        ready
    }

    /// When the spacing of the first key has passed.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.spaced.iter().filter_map(|key| self.keys.get(key)).map(|state| state.free_at_us).min()
    }

    /// Keys whose spacing has passed.
    pub(crate) fn due(&mut self, now_us: u64) -> Vec<OriginKey> {
        let keys = &self.keys;
        let is_due = |key: &OriginKey| keys.get(key).is_none_or(|state| now_us >= state.free_at_us);
        let (due, spaced) = std::mem::take(&mut self.spaced).into_iter().partition(is_due);
        self.spaced = spaced;
        due
    }

    /// Forgets keys that nobody waits for and whose spacing has passed.
    pub(crate) fn tidy(&mut self, now_us: u64) {
        self.keys.retain(|_, state| state.is_busy || !state.waiting.is_empty() || now_us < state.free_at_us);
    }

    /// Takes requests that wait for a key and have not been withdrawn, but no more than one call can take.
    pub(crate) fn take_waiting(&mut self, key: &OriginKey) -> Vec<WaitId> {
        let Some(state) = self.keys.get_mut(key).filter(|state| !state.is_busy) else { return Vec::new() };
        let (mut taken, mut cells) = (Vec::new(), 0);
        while taken.len() < TOGETHER_MAX && cells < CELLS_MAX {
            let Some(id) = state.waiting.pop_front() else { break };
            if let Some(waiting) = self.waiting.get(&id) {
                cells += waiting.cells_beside(Some(key));
                taken.push(id);
            }
        }
        taken
    }

    /// How many of these requests, which have no keys in common, one call can take.
    pub(crate) fn fitting(&self, ids: &[WaitId]) -> usize {
        let mut cells = 0;
        let fits = |id: &&WaitId| {
            cells += self.waiting.get(id).map_or(0, |waiting| waiting.cells_beside(None));
            cells <= CELLS_MAX
        };
        ids.iter().take(TOGETHER_MAX).take_while(fits).count().max(1)
    }

    /// Starts requests that waited for a key, together. If another of their keys is busy, they wait for that one. Those
    /// that did not fit into one call are started after it.
    pub(crate) fn start_together(&mut self, key: &OriginKey, ids: &[WaitId], now_us: u64) -> Vec<WaitId> {
        let mut together = HashSet::new();
        // Requests that are left in the queue stay behind these.
        let rest = self.keys.get_mut(key).map(|state| std::mem::take(&mut state.waiting)).unwrap_or_default();
        let mut started = Vec::with_capacity(ids.len());
        for id in ids {
            if self.start_with(*id, &together, now_us) {
                started.push(*id);
                let keys = self.waiting.get(id).map(|waiting| waiting.keys.clone()).unwrap_or_default();
                together.extend(keys);
            }
        }
        if !rest.is_empty() {
            let state = self.keys.entry(*key).or_default();
            state.waiting.extend(rest);
            if !state.is_busy {
                self.spaced.push(*key);
            }
        }
        started
    }

    /// Withdraws a request. True if it had no answer yet.
    pub(crate) fn give_up(&mut self, id: WaitId) -> bool {
        self.waiting.remove(&id).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reach::Store;
    use crate::rules::policy::Class;

    const KEY: OriginKey = OriginKey([1; 20]);
    const OTHER: OriginKey = OriginKey([2; 20]);

    fn waiting(keys: &[OriginKey]) -> QueuedRequest {
        let store_request = StoreRequest {
            store: Store::Origin,
            charges: true,
            is_strict: false,
            class: Class::Comfort,
            checks: 1,
            questions: SmallVec::new(),
            has_free_quota: false,
            given_back: None,
        };
        QueuedRequest::new(store_request, keys.iter().copied().collect(), 10_000)
    }

    #[test]
    fn whoever_comes_while_a_call_is_under_way_goes_with_the_next() {
        let mut asks = WaitQueue::default();
        let [first, second, third] = [(); 3].map(|()| asks.enter(waiting(&[KEY])));
        assert!(asks.start(first, 0));
        assert!(!asks.start(second, 1) && !asks.start(third, 2));
        assert_eq!(asks.free(&[KEY], 100, 200), [KEY]);
        let waited = asks.take_waiting(&KEY);
        assert_eq!(asks.start_together(&KEY, &waited, 200), [second, third]);
    }

    #[test]
    fn calls_for_a_key_are_spaced() {
        let mut asks = WaitQueue::default();
        let [first, second] = [(); 2].map(|()| asks.enter(waiting(&[KEY])));
        assert!(asks.start(first, 0));
        assert!(asks.free(&[KEY], 500, 100).is_empty());
        assert!(!asks.start(second, 200));
        assert_eq!((asks.next_us(), asks.due(499)), (Some(500), vec![]));
        assert_eq!(asks.due(500), [KEY]);
        let waited = asks.take_waiting(&KEY);
        assert_eq!(asks.start_together(&KEY, &waited, 500), [second]);
    }

    #[test]
    fn a_request_for_two_keys_waits_for_the_one_that_is_busy() {
        let mut asks = WaitQueue::default();
        let first = asks.enter(waiting(&[KEY]));
        let both = asks.enter(waiting(&[OTHER, KEY]));
        let other = asks.enter(waiting(&[OTHER]));
        assert!(asks.start(first, 0));
        assert!(!asks.start(both, 1));
        assert!(asks.start(other, 2), "the free key is not held for those who wait for another");
        assert_eq!(asks.free(&[KEY], 0, 3), [KEY]);
        let waited = asks.take_waiting(&KEY);
        assert!(asks.start_together(&KEY, &waited, 3).is_empty(), "now the other one is busy");
        assert_eq!(asks.free(&[OTHER], 0, 4), [OTHER]);
        let waited = asks.take_waiting(&OTHER);
        assert_eq!(asks.start_together(&OTHER, &waited, 4), [both]);
    }

    #[test]
    fn whoever_gave_up_goes_nowhere() {
        let mut asks = WaitQueue::default();
        let [first, second] = [(); 2].map(|()| asks.enter(waiting(&[KEY])));
        assert!(asks.start(first, 0) && !asks.start(second, 1));
        assert!(asks.give_up(second) && !asks.give_up(second));
        assert_eq!(asks.free(&[KEY], 0, 2), [KEY]);
        assert!(asks.take_waiting(&KEY).is_empty());
    }
}
