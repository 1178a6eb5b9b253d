//! The bound that everything else rests on: whatever a process has heard, and however late, what it has pending on a key after
//! memory admits something is within its allowance.

use std::collections::BTreeMap;

use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};

use super::*;
use crate::clock::Now;
use crate::engine::Attempt;
use crate::engine::decide::{StoreAccess, StoreView, StoreViews};
use crate::engine::headroom::Headroom;
use crate::engine::key::OwnedKey;
use crate::engine::reach::{Layers, Store};
use crate::engine::table::SlotRef;
use crate::engine::table::cell::{BucketUpdate, CellShape, CellState};
use crate::engine::table::ledger::{KeyAnswer, Ledger};
use crate::regional::call::{Ask as CallAsk, Call, CallKey, Need, OriginKey, ProcessId, Reply};
use crate::regional::model::Origin;
use crate::rules::limit::Terms;
use crate::rules::policy::Algorithm;

const RULES: &str = "
domain: d
descriptors:
  - {key: sliding, rate_limit: {requests_per_unit: 100, window: 1600ms}}
  - {key: exact, rate_limit: {requests_per_unit: 100, window: 1600ms, algorithm: exact_window}}
  - {key: bucket, rate_limit: {requests_per_unit: 30, window: 1600ms, algorithm: gcra, burst: 100}}
";
/// Of a fixed window the cell before counts no more, and hits that are pending in it only wait to be told.
const ENTRIES: [&str; 3] = ["sliding=a", "exact=a", "bucket=a"];
const SLACK_PERMILLE: u16 = 100;
const THIS: ProcessId = ProcessId(1);
const OTHER: ProcessId = ProcessId(2);
const KEY: OriginKey = OriginKey([7; 20]);

/// Something that happens to a process, or at its origin.
#[derive(Clone, Copy, Debug)]
enum Step {
    Request {
        hits: u64,
    },
    Refund {
        hits: u64,
    },
    /// Another process has hits at the origin.
    Others {
        hits: u64,
    },
    /// Everything that is due is told. The origin hears of it at once.
    Tell,
    /// One of the answers that are under way comes, in any order, or gets lost.
    Answer {
        which: usize,
        is_lost: bool,
    },
    Pass {
        ms: u64,
    },
    /// So many processes are alive from now on.
    Live {
        live: u32,
    },
}

/// An answer that is under way.
#[derive(Clone, Debug)]
enum Answer {
    Told { at: SlotRef, cells: SmallVec<[CellState; 2]> },
    Checked { cells: SmallVec<[CellState; 2]>, hits: u64, is_admitted: bool },
}

/// A process with one key, and its origin.
struct Process {
    bench: Bench,
    entries: &'static str,
    origin: Origin,
    /// Never has a key.
    empty: Engine,
    others: BTreeMap<u64, u64>,
    answers: Vec<Answer>,
    is_checking: bool,
    known: Option<(OwnedKey, Terms)>,
    live: u32,
    passed_ms: u64,
}

impl Process {
    fn new(entries: &'static str) -> Process {
        let mut bench = Bench::new(RULES);
        let layers =
            Layers { is_regional: true, owner: Some(Store::Origin), slack_permille: SLACK_PERMILLE, ..Layers::ALONE };
        bench.engine = Engine::with(100, layers);
        let (origin, others) = (Origin::default(), BTreeMap::new());
        Process {
            bench,
            entries,
            origin,
            empty: Engine::with(100, layers),
            others,
            answers: Vec::new(),
            is_checking: false,
            known: None,
            live: 3,
            passed_ms: 0,
        }
    }

    fn now(&self) -> Now {
        Now { wall_ms: START_MS + self.passed_ms, mono_us: (10_000 + self.passed_ms) * 1000 }
    }

    fn ledger(&self) -> Ledger<'_> {
        self.bench.engine.table().ledger(Store::Origin)
    }

    /// What may be pending, by what the process knows.
    fn allowance(&self) -> u64 {
        let request = request("d", &[ask(self.entries)]);
        let peeked = &self.bench.engine.peek(&self.bench.rules, &request, false, self.now().wall_ms)[0][0];
        let limit = peeked.terms.capacity();
        let available = i64::from(limit) - peeked.counted as i64;
        Headroom { limit, slack_permille: SLACK_PERMILLE, live: self.live }.allowance(available)
    }

    fn pending(&self) -> u64 {
        self.bench.engine.table().pending_hits()
    }

    fn call(&mut self, process: ProcessId, part: CallKey, needs: SmallVec<[Need; 2]>) -> Reply {
        let asks = vec![CallAsk { needs }];
        let call = Call { process, nonce: 1, charges: true, parts: vec![part], asks };
        self.origin.call(&call, self.now().wall_ms)
    }

    /// Decides a request: whether memory did, and admitted it. What has to be asked is, unless an answer is awaited.
    fn request(&mut self, hits: Hits) -> bool {
        let now = self.now();
        let origin = StoreView::new(self.live, StoreAccess::Allowed);
        let views = StoreViews { mono_ms: now.mono_ms(), origin, owner: origin, ..StoreViews::ALONE };
        let asked = request("d", &[ask_for(self.entries, hits)]);
        let Bench { engine, rules, modes } = &self.bench;
        let asks = match engine.attempt(rules, &asked, *modes, now.wall_ms, &views) {
            Attempt::Decided(decision) => return !decision.is_over,
            Attempt::Asks(asks) => asks,
        };
        let question = &asks.questions[0];
        let (key, terms, hits) = (question.key.clone(), question.terms, question.hits);
        self.known = Some((key.clone(), terms));
        if self.is_checking {
            return false;
        }
        self.is_checking = true;
        let update = self.ledger().update_of(&key, &terms, false, now);
        let is_read = update.cells.iter().any(|cell| !cell.is_seated);
        let need = Need { part: 0, limit: terms.capacity().into(), hits, quota: None };
        let needs = if is_read { smallvec![] } else { smallvec![need] };
        let reply = self.call(THIS, CallKey::new(KEY, &terms, update), needs);
        let is_admitted = !is_read && reply.verdicts[0].is_admitted;
        self.answers.push(Answer::Checked { cells: reply.parts[0].clone(), hits, is_admitted });
        false
    }

    /// Another process tells the origin that it has more.
    fn others(&mut self, hits: u64) {
        let Some((key, terms)) = self.known.clone() else { return };
        // A table without the key has empty cells of this moment.
        let mut update = self.empty.table().ledger(Store::Origin).update_of(&key, &terms, false, self.now());
        let own = self.others.entry(update.cells[0].sequence()).or_default();
        *own += hits;
        update.cells.truncate(1);
        let told = &mut update.cells[0];
        (told.is_seated, told.own) = (true, *own);
        if terms.algorithm == Algorithm::Gcra {
            told.shape = CellShape::Bucket(BucketUpdate { floor_rest: 0, level: hits });
        }
        self.call(OTHER, CallKey::new(KEY, &terms, update), smallvec![]);
    }

    fn tell(&mut self) {
        let unsent: Vec<_> = self.ledger().unsent(false, self.now()).collect();
        for unsent in unsent {
            let Some(update) = unsent.update else { continue };
            let reply = self.call(THIS, CallKey::new(KEY, &unsent.terms, update), smallvec![]);
            self.answers.push(Answer::Told { at: unsent.at, cells: reply.parts[0].clone() });
        }
    }

    fn answer(&mut self, which: usize, is_lost: bool) {
        if self.answers.is_empty() {
            return;
        }
        let answer = self.answers.remove(which % self.answers.len());
        match (answer, is_lost) {
            (Answer::Told { at, .. }, true) => self.ledger().unacknowledged(at),
            (Answer::Told { at, cells }, false) => {
                self.ledger().acknowledged(at, &cells, self.is_checking, self.now());
            }
            (Answer::Checked { .. }, true) => self.is_checking = false,
            (Answer::Checked { cells, hits, is_admitted }, false) => {
                self.is_checking = false;
                let Some((key, terms)) = &self.known else { return };
                let admitted = if is_admitted { hits } else { 0 };
                let denied = (!is_admitted).then_some(hits);
                let answer =
                    KeyAnswer { cells: &cells, admitted, denied, is_strict: false, is_cut_off: false, jitter: 0 };
                self.ledger().settle(key, terms, answer, self.now());
            }
        }
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..4u64).prop_map(|hits| Step::Request { hits }),
        2 => (1..60u64).prop_map(|hits| Step::Request { hits }),
        1 => (1..10u64).prop_map(|hits| Step::Refund { hits }),
        2 => (1..60u64).prop_map(|hits| Step::Others { hits }),
        3 => Just(Step::Tell),
        5 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(which, is_lost)| Step::Answer { which, is_lost }),
        4 => (0..300u64).prop_map(|ms| Step::Pass { ms }),
        1 => (300..7000u64).prop_map(|ms| Step::Pass { ms }),
        1 => (1..12u32).prop_map(|live| Step::Live { live }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_pending_is_within_the_allowance(
        entries in prop::sample::select(&ENTRIES[..]),
        steps in prop::collection::vec(any_step(), 1..150),
    ) {
        let mut process = Process::new(entries);
        for step in steps {
            match step {
                Step::Request { hits } => {
                    let allowance = process.allowance();
                    if process.request(Hits::OfRequest(hits)) {
                        prop_assert!(process.pending() <= allowance, "{} pending, {allowance} may be", process.pending());
                    }
                }
                Step::Refund { hits } => {
                    process.request(Hits::Refund(hits));
                }
                Step::Others { hits } => process.others(hits),
                Step::Tell => process.tell(),
                Step::Answer { which, is_lost } => process.answer(which, is_lost),
                Step::Pass { ms } => process.passed_ms += ms,
                Step::Live { live } => process.live = live,
            }
        }
    }
}
