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
    /// Everything that is due is told.
    Tell,
    /// One of the messages that are under way arrives, in any order.
    Arrive {
        which: usize,
    },
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

/// What a message is about.
#[derive(Clone, Copy, Debug)]
enum Message {
    Totals { at: SlotRef },
    Check { hits: u64, sequence: u64 },
}

/// An answer that is under way.
#[derive(Clone, Debug)]
struct Answer {
    to: Message,
    cells: SmallVec<[CellState; 2]>,
    is_admitted: bool,
}

/// What is true of a cell.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    /// All hits that were admitted here.
    admitted: u64,
    /// What the origin knows of them.
    field: u64,
}

/// A process with one key, and its origin.
struct Process {
    bench: Bench,
    entries: &'static str,
    origin: Origin,
    /// Never has a key.
    empty: Engine,
    others: BTreeMap<u64, u64>,
    truth: BTreeMap<u64, Truth>,
    messages: Vec<(Message, CallKey, SmallVec<[Need; 2]>)>,
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
            truth: BTreeMap::new(),
            messages: Vec::new(),
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

    /// The newest cell's number; a bucket has one cell.
    fn sequence(&self) -> u64 {
        match self.entries {
            "sliding=a" => self.now().wall_ms / 1600,
            "exact=a" => self.now().wall_ms / 100 + 17,
            _ => 0,
        }
    }

    /// Hits of cells that count which the origin does not know of, whatever this process believes. A bucket forgets, so
    /// nobody can say.
    fn untold(&self) -> u64 {
        let newest = self.sequence();
        let oldest = match self.entries {
            "sliding=a" => newest - 1,
            "exact=a" => newest - 16,
            _ => return 0,
        };
        self.truth.range(oldest..).map(|(_, truth)| truth.admitted.saturating_sub(truth.field)).sum()
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
            Attempt::Decided(decision) if decision.is_over => return false,
            Attempt::Decided(_) => {
                if let Hits::OfRequest(hits) = hits {
                    self.truth.entry(self.sequence()).or_default().admitted += hits;
                }
                return true;
            }
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
        let need = Need { part: 0, limit: terms.capacity().into(), hits, quota: None, ahead: 0 };
        let needs = if is_read { smallvec![] } else { smallvec![need] };
        let message = Message::Check { hits, sequence: update.cells[0].sequence() };
        self.messages.push((message, CallKey::new(KEY, &terms, update), needs));
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
        let unsent: Vec<_> = self.ledger().unsent(self.now()).collect();
        for unsent in unsent {
            let update = unsent.update;
            let part = CallKey::new(KEY, &unsent.terms, update);
            self.messages.push((Message::Totals { at: unsent.at }, part, smallvec![]));
        }
    }

    fn arrive(&mut self, which: usize) {
        if self.messages.is_empty() {
            return;
        }
        let (to, part, needs) = self.messages.remove(which % self.messages.len());
        // Who is not seated only reads.
        let is_read = needs.is_empty();
        let reply = self.call(THIS, part, needs);
        let is_admitted = !is_read && reply.verdicts[0].is_admitted;
        if let Message::Check { hits, sequence } = to {
            self.truth.entry(sequence).or_default().admitted += if is_admitted { hits } else { 0 };
        }
        let cells = reply.parts[0].clone();
        for cell in &cells {
            self.truth.entry(cell.sequence).or_default().field = cell.field;
        }
        self.answers.push(Answer { to, cells, is_admitted });
    }

    fn answer(&mut self, which: usize, is_lost: bool) {
        if self.answers.is_empty() {
            return;
        }
        let Answer { to, cells, is_admitted } = self.answers.remove(which % self.answers.len());
        match to {
            Message::Totals { at } if is_lost => self.ledger().unacknowledged(at),
            Message::Totals { at } => self.ledger().acknowledged(at, &cells, self.is_checking, self.now()),
            Message::Check { hits, sequence } => {
                self.is_checking = false;
                if is_lost {
                    // The request is not admitted. Hits that come after use up what the origin has charged.
                    let truth = self.truth.entry(sequence).or_default();
                    truth.admitted -= if is_admitted { hits } else { 0 };
                    return;
                }
                let Some((key, terms)) = &self.known else { return };
                let admitted = if is_admitted { hits } else { 0 };
                let denied = (!is_admitted && hits > 0).then_some(hits);
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
        6 => any::<usize>().prop_map(|which| Step::Arrive { which }),
        5 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(which, is_lost)| Step::Answer { which, is_lost }),
        3 => (0..300u64).prop_map(|ms| Step::Pass { ms }),
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
                        let (pending, untold) = (process.pending(), process.untold());
                        prop_assert!(pending <= allowance, "{pending} pending, {allowance} may be");
                        prop_assert!(untold <= allowance, "{untold} untold, {allowance} may be");
                    }
                }
                Step::Refund { hits } => {
                    process.request(Hits::Refund(hits));
                }
                Step::Others { hits } => process.others(hits),
                Step::Tell => process.tell(),
                Step::Arrive { which } => process.arrive(which),
                Step::Answer { which, is_lost } => process.answer(which, is_lost),
                Step::Pass { ms } => process.passed_ms += ms,
                Step::Live { live } => process.live = live,
            }
        }
    }
}
