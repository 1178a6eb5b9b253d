//! Limits whose store gives no answer, and limits that a farther store decides.

use super::{Ask, START_MS, ask, ask_for, request, ruleset, said, seed};
use crate::clock::Now;
use crate::engine::count::counter::Counter;
use crate::engine::decide::{Cause, CheckAnswer, Store, StoreAccess, StoreAnswer, StoreView, StoreViews};
use crate::engine::reach::{Layers, RegionIndex};
use crate::engine::reason::DecidedBy;
use crate::engine::table::cell::{CellShape, CellState};
use crate::engine::table::regional_part::RegionalPart;
use crate::engine::{Attempt, Decision, Engine, Modes, StatusKind, StoreRequest};
use crate::request::{Hits, LimitOverride, Unit};
use crate::rules::Ruleset;
use crate::rules::policy::{OnOutage, Scope};
use crate::simulate::random::Random;
use smallvec::smallvec;

const RULES: &str = "
domain: d
descriptors:
  - {key: local, rate_limit: {requests_per_unit: 10, unit: day}}
  - {key: share, rate_limit: {requests_per_unit: 10, unit: day, on_outage: share}}
  - {key: allow, rate_limit: {requests_per_unit: 10, unit: day, on_outage: allow}}
  - {key: deny, rate_limit: {requests_per_unit: 10, unit: day, on_outage: deny}}
  - {key: always_deny, rate_limit: {requests_per_unit: 10, unit: day, on_outage: deny, charge: always}}
  - {key: always_share, rate_limit: {requests_per_unit: 10, unit: day, on_outage: share, charge: always}}
  - {key: soon, rate_limit: {requests_per_unit: 1, unit: second, on_outage: deny, charge: always, algorithm: fixed_window}}
  - {key: exact, rate_limit: {requests_per_unit: 10, unit: day, on_outage: share, algorithm: exact_window}}
  - {key: bucket, rate_limit: {requests_per_unit: 10, unit: day, on_outage: share, algorithm: gcra}}
  - {key: strict, rate_limit: {requests_per_unit: 3, unit: day, scope: strict}}
  - {key: minute, rate_limit: {requests_per_unit: 10, unit: minute, on_outage: share}}
  - {key: bucket_minute, rate_limit: {requests_per_unit: 6, unit: minute, on_outage: share, algorithm: gcra}}
  - {key: split, rate_limit: {requests_per_unit: 11, unit: day, scope: split}}
";

struct Process {
    engine: Engine,
    rules: Ruleset,
}

fn shared() -> Process {
    let layers = Layers {
        is_regional: true,
        is_global: true,
        owner: Some(Store::Owner),
        place: RegionIndex { region: 1, regions: 2 },
        slack_permille: 100,
    };
    Process { engine: Engine::with(1000, layers).hashed_by(Random::new(seed::seed()).hasher()), rules: ruleset(RULES) }
}

impl From<StoreAccess> for StoreView<'_> {
    fn from(access: StoreAccess) -> Self {
        StoreView::new(3, access)
    }
}

impl<'a> From<&'a StoreAnswer> for StoreView<'a> {
    fn from(answer: &'a StoreAnswer) -> Self {
        StoreView { answer: Some(answer), ..StoreView::new(3, StoreAccess::Allowed) }
    }
}

fn views<'a>(origin: impl Into<StoreView<'a>>, owner: impl Into<StoreView<'a>>) -> StoreViews<'a> {
    StoreViews {
        mono_ms: 5000,
        origin: origin.into(),
        owner: owner.into(),
        is_cut_off: false,
        is_again: false,
        given_back: None,
    }
}

const OUT: StoreAccess = StoreAccess::Never(Cause::Outage);
const HURRIED: StoreAccess = StoreAccess::Never(Cause::Overload);

impl Process {
    fn attempt(&self, entries: &[&str], views: &StoreViews<'_>) -> Attempt<'_> {
        self.attempt_at(START_MS, entries, views)
    }

    fn attempt_at(&self, now_ms: u64, entries: &[&str], views: &StoreViews<'_>) -> Attempt<'_> {
        let asks: Vec<_> = entries.iter().map(|entries| ask(entries)).collect();
        self.engine.attempt(&self.rules, &request("d", &asks), Modes::default(), now_ms, views)
    }

    /// Decides so many hits of a descriptor in an outage, at a moment.
    fn outage_at(&self, now_ms: u64, entries: &str, hits: u64) -> Decision<'_> {
        let request = request("d", &[ask_for(entries, Hits::OfRequest(hits))]);
        match self.engine.attempt(&self.rules, &request, Modes::default(), now_ms, &views(OUT, OUT)) {
            Attempt::Decided(decision) => decision,
            Attempt::Asks(store_request) => panic!("{store_request:?}"),
        }
    }

    fn decided(&self, entries: &[&str], views: &StoreViews<'_>) -> Decision<'_> {
        match self.attempt(entries, views) {
            Attempt::Decided(decision) => decision,
            Attempt::Asks(store_request) => panic!("{store_request:?}"),
        }
    }

    fn asked(&self, entries: &[&str], views: &StoreViews<'_>) -> StoreRequest {
        match self.attempt(entries, views) {
            Attempt::Asks(store_request) => store_request,
            Attempt::Decided(decision) => panic!("{}", said(&decision)),
        }
    }

    /// How many single hits are admitted in an outage, and the reason of the last answer.
    fn admitted(&self, entries: &str) -> (usize, &'static str) {
        let views = views(OUT, OUT);
        let decisions: Vec<_> = (0..150).map(|_| self.decided(&[entries], &views)).collect();
        let admitted = decisions.iter().filter(|decision| !decision.is_over).count();
        (admitted, decisions[149].reason().word())
    }
}

/// INV-3.
#[test]
fn each_policy_admits_what_it_says() {
    let shared = shared();
    assert_eq!(shared.admitted("local=a"), (10, "outage_local"));
    assert_eq!(shared.admitted("share=a"), (3, "outage_share"), "a third of ten");
    assert_eq!(shared.admitted("allow=a"), (100, "outage_allow"), "ten times the limit");
    assert_eq!(shared.admitted("deny=a"), (0, "outage_deny"));
    assert_eq!(shared.admitted("exact=a"), (3, "outage_share"));
    assert_eq!(shared.admitted("bucket=a"), (3, "outage_share"), "what two others take is in the bucket");
    assert_eq!(shared.admitted("strict=a"), (3, "outage_local"));
    assert_eq!(shared.admitted("split=a"), (5, "outage_local"), "the second region has the smaller part of eleven");
}

#[test]
fn a_refusal_without_a_count_names_a_second() {
    let denied = shared();
    let denied = denied.decided(&["deny=a"], &views(OUT, OUT));
    assert_eq!((denied.retry_after_ms(), denied.decided_by()), (Some(1000), DecidedBy::Outage));
}

/// Went wrong before: the wait of a denial that is charged all the same said only when the hits would fit into the whole
/// limit.
#[test]
fn a_refusal_by_policy_that_is_charged_waits_as_long_as_one_that_is_not() {
    let shared = shared();
    let out = views(OUT, OUT);
    let waits = |entries: &[&str]| shared.decided(entries, &out).retry_after_ms();
    for _ in 0..3 {
        assert_eq!((waits(&["share=a"]), waits(&["always_share=a"])), (None, None));
    }
    let [part, charged] = [waits(&["share=a"]), waits(&["always_share=a"])].map(Option::unwrap_or_default);
    assert!(charged >= part && part > 1000, "{charged} against {part}");
    assert!(waits(&["always_share=a", "local=a"]) >= Some(part), "with others in the request");
    assert_eq!(waits(&["always_deny=a"]), Some(1000));
    assert_eq!(waits(&["always_deny=b", "local=b"]), Some(1000));
}

#[test]
fn a_refusal_names_a_second_at_least() {
    let shared = shared();
    drop(shared.decided(&["soon=a"], &views(OUT, OUT)));
    // It was charged all the same: the limit is used up, and free again at the end of the second that has begun.
    let request = request("d", &[ask("soon=a")]);
    let attempt = shared.engine.attempt(&shared.rules, &request, Modes::default(), START_MS + 900, &views(OUT, OUT));
    let Attempt::Decided(denied) = attempt else { panic!("{attempt:?}") };
    assert_eq!(denied.retry_after_ms(), Some(1000));
}

#[test]
fn a_share_counts_only_what_this_process_took() {
    let shared = shared();
    // Other processes have used six, as the origin has told.
    let key = shared.asked(&["share=a"], &views(StoreAccess::Allowed, OUT)).questions[0].key.clone();
    let table = shared.engine.table();
    let hash = table.hash(&key.as_key());
    drop(shared.decided(&["share=a"], &views(OUT, OUT)));
    {
        let mut shard = table.lock(table.shard_of(hash));
        let slot = shard.find(&key.as_key(), hash).unwrap();
        let terms = shard.slot(slot).terms();
        shard.slot(slot).counter.add(&terms, 6);
    }
    assert_eq!(shared.admitted("share=a").0, 2, "two more of its three, while seven of ten are used");
}

#[test]
fn nobody_waits_when_too_many_do_but_memory_still_decides() {
    let shared = shared();
    let decision = shared.decided(&["deny=a"], &views(HURRIED, HURRIED));
    assert_eq!((decision.is_over, decision.reason().word()), (true, "overload"), "cold: it would have to ask");
    let decision = shared.decided(&["local=a"], &views(HURRIED, HURRIED));
    assert_eq!((decision.is_over, decision.reason().word()), (false, "overload"));
}

#[test]
fn the_nearer_store_judges_and_the_farther_one_charges() {
    let shared = shared();
    let both = ["local=a", "strict=a"];
    let first = shared.asked(&both, &views(StoreAccess::Allowed, StoreAccess::Allowed));
    assert_eq!((first.store, first.charges, first.is_strict), (Store::Origin, false, false));
    let judged = StoreAnswer {
        is_admitted: true,
        is_charged: false,
        checks: smallvec![CheckAnswer::Fits, CheckAnswer::NotAsked],
    };
    let again = StoreViews { is_again: true, ..views(&judged, StoreAccess::Allowed) };
    let second = shared.asked(&both, &again);
    assert_eq!((second.store, second.charges, second.is_strict), (Store::Owner, true, true));
    let settle = |is_admitted, answer| StoreAnswer {
        is_admitted,
        is_charged: true,
        checks: smallvec![CheckAnswer::NotAsked, answer],
    };
    let denied = settle(false, CheckAnswer::Over);
    let again = StoreViews { is_again: true, ..views(&judged, &denied) };
    let decision = shared.decided(&both, &again);
    assert!(decision.is_over && decision.statuses[1].is_over && !decision.statuses[0].is_over);
    assert_eq!(said(&shared.decided(&["local=a"], &views(OUT, OUT))), "OK: OK 9", "a denial charged nothing nearer");
    let admitted = settle(true, CheckAnswer::Fits);
    let again = StoreViews { is_again: true, ..views(&judged, &admitted) };
    assert_eq!(shared.decided(&both, &again).decided_by(), DecidedBy::Owner);
    assert_eq!(said(&shared.decided(&["local=a"], &views(OUT, OUT))), "OK: OK 7", "what was admitted is charged");
}

#[test]
fn nobody_is_asked_after_the_owner_has_charged() {
    let shared = shared();
    let both = ["deny=a", "strict=a"];
    // Memory had decided the first check; meanwhile the allowance is used up, or the key is cold.
    let admitted = StoreAnswer {
        is_admitted: true,
        is_charged: true,
        checks: smallvec![CheckAnswer::NotAsked, CheckAnswer::Fits],
    };
    for origin in [StoreAccess::Allowed, OUT] {
        let again = StoreViews { is_again: true, ..views(origin, &admitted) };
        let decision = shared.decided(&both, &again);
        assert_eq!((decision.is_over, decision.reason().word()), (false, "within_limit"));
    }
}

#[test]
fn a_key_that_moves_between_stores_is_told_each_once() {
    let shared = shared();
    let terms = shared.asked(&["strict=a"], &views(OUT, StoreAccess::Allowed)).questions[0].terms;
    let counter = Counter::new(&terms, START_MS);
    let mut part = shared.engine.table().new_part(&counter, Store::Origin, false, START_MS);
    let unsent = |part: &RegionalPart| part.judged_cells(&counter, &terms, START_MS)[0].own;
    part.add(0, 5);
    part.move_to(Store::Owner);
    assert_eq!((unsent(&part), part.is_seated()), (5, false), "nobody there knows of it");
    part.move_to(Store::Origin);
    assert_eq!(unsent(&part), 5, "the origin had not been told either");
    part.add(0, 2);
    part.move_to(Store::Owner);
    part.move_to(Store::Origin);
    part.move_to(Store::Owner);
    assert_eq!(unsent(&part), 7, "however often");
}

#[test]
fn what_a_store_was_told_and_had_not_acknowledged_is_not_told_again_when_the_key_comes_back() {
    let shared = shared();
    let terms = shared.asked(&["strict=a"], &views(OUT, StoreAccess::Allowed)).questions[0].terms;
    let mut counter = Counter::new(&terms, START_MS);
    let mut part = shared.engine.table().new_part(&counter, Store::Origin, false, START_MS);
    let (sequence, at) = (counter.sequence(), Now { wall_ms: START_MS, mono_us: 1_000_000 });
    let heard = |sum, field| {
        let before = CellState { sequence: sequence - 1, epoch: 1, ..CellState::default() };
        [CellState { sequence, sum, field, ..before }, before]
    };
    let accept = |part: &mut RegionalPart, counter: &mut Counter, hits| {
        counter.add(&terms, hits);
        part.add(sequence, hits);
    };
    let newest = |part: &RegionalPart, counter: &Counter| part.judged_cells(counter, &terms, START_MS)[0];
    // The origin is told, but its answer does not come before the rules change.
    accept(&mut part, &mut counter, 5);
    part.move_to(Store::Owner);
    part.absorb(&mut counter, &terms, &heard(0, 0)[..1], 0, at);
    assert_eq!((newest(&part, &counter).own, part.pending()), (5, 5));
    accept(&mut part, &mut counter, 2);
    // The owner's answer comes too late as well.
    part.move_to(Store::Origin);
    accept(&mut part, &mut counter, 1);
    part.absorb(&mut counter, &terms, &heard(9, 5), 0, at);
    let told = newest(&part, &counter);
    assert_eq!((told.own, told.acked, told.floor, part.pending()), (8, 5, 9, 3), "four are of others");
    assert_eq!(counter.look(&terms, START_MS).available, 3 - (8 + 4));
    part.move_to(Store::Owner);
    part.absorb(&mut counter, &terms, &heard(7, 7), 0, at);
    assert_eq!((newest(&part, &counter).own, part.pending()), (8, 1));
    // A check has arrived although its caller gave up: the next hit takes its charge over.
    part.move_to(Store::Origin);
    part.absorb(&mut counter, &terms, &heard(13, 9), 0, at);
    part.move_to(Store::Owner);
    part.move_to(Store::Origin);
    part.absorb(&mut counter, &terms, &heard(13, 9), 0, at);
    accept(&mut part, &mut counter, 1);
    assert_eq!((newest(&part, &counter).own, part.pending()), (9, 0));
    // A store that has lost the cell meanwhile is told everything.
    part.move_to(Store::Owner);
    part.absorb(&mut counter, &terms, &heard(0, 0), 0, at);
    assert_eq!((newest(&part, &counter).own, part.pending()), (9, 9));
}

#[test]
fn without_the_owner_the_policy_decides_what_the_origin_has_judged() {
    let shared = shared();
    let both = ["local=a", "strict=a"];
    let judged = StoreAnswer {
        is_admitted: true,
        is_charged: false,
        checks: smallvec![CheckAnswer::Fits, CheckAnswer::NotAsked],
    };
    let again = StoreViews { is_again: true, ..views(&judged, OUT) };
    let verdicts: Vec<bool> = (0..4).map(|_| shared.decided(&both, &again).is_over).collect();
    assert_eq!(verdicts, [false, false, false, true], "three of the strict limit, from memory");
}

#[test]
fn a_strict_limit_asks_until_memory_denies() {
    let shared = shared();
    let up = views(StoreAccess::Allowed, StoreAccess::Allowed);
    assert!(shared.asked(&["strict=a"], &up).is_strict);
    let out = views(StoreAccess::Allowed, OUT);
    (0..3).for_each(|_| assert!(!shared.decided(&["strict=a"], &out).is_over));
    assert!(shared.decided(&["strict=a"], &up).is_over, "memory knows of three");
    // Hits that are reported after the fact need no leave.
    let report = [ask_for("strict=b", Hits::Own(5))];
    let attempt = shared.engine.attempt(&shared.rules, &request("d", &report), Modes::default(), START_MS, &up);
    assert!(matches!(attempt, Attempt::Decided(_)));
    assert!(
        shared.engine.table().ledger(Store::Owner).is_any_urgent()
            && !shared.engine.table().ledger(Store::Origin).is_any_urgent()
    );
}

#[test]
fn cut_off_from_other_regions_a_share_is_the_regions_part() {
    let shared = shared();
    let cut_off = StoreViews { is_cut_off: true, ..views(OUT, OUT) };
    let admitted = |entries: &str| (0..20).filter(|_| !shared.decided(&[entries], &cut_off).is_over).count();
    assert_eq!(admitted("share=a"), 1, "a third of five");
    assert_eq!(admitted("local=a"), 10);
    let up = StoreViews { is_cut_off: true, ..views(StoreAccess::Allowed, OUT) };
    let asked = shared.asked(&["share=b"], &up);
    assert_eq!((asked.questions[0].terms.limit, asked.questions[0].is_cut_off), (5, true));
}

/// Found by a review: hits that another store had admitted were taken for a decision of memory, so that no process was held
/// to its share, and the answer did not tell of the outage.
#[test]
fn a_policy_holds_beside_a_store_that_answers() {
    let shared = shared();
    let admitted = StoreAnswer {
        is_admitted: true,
        is_charged: true,
        checks: smallvec![CheckAnswer::NotAsked, CheckAnswer::Fits],
    };
    let again = StoreViews { is_again: true, ..views(OUT, &admitted) };
    for _ in 0..3 {
        let decision = shared.decided(&["bucket=a", "strict=a"], &again);
        assert_eq!((decision.is_over, decision.reason().word()), (false, "outage_share"));
    }
    assert!(shared.decided(&["bucket=a"], &views(OUT, OUT)).is_over, "three are its share of ten");
    // The other way round: the origin decides, and the owner of the strict limit is away.
    let admitted = StoreAnswer {
        is_admitted: true,
        is_charged: true,
        checks: smallvec![CheckAnswer::Fits, CheckAnswer::NotAsked],
    };
    let again = StoreViews { is_again: true, ..views(&admitted, OUT) };
    let decision = shared.decided(&["share=a", "strict=b"], &again);
    assert_eq!((decision.is_over, decision.decided_by()), (false, DecidedBy::Outage));
}

/// Found by a review: other processes asked a store that heard of the hits only with the next flush.
#[test]
fn what_a_farther_store_has_admitted_is_told_at_once() {
    let shared = shared();
    let judged = StoreAnswer {
        is_admitted: true,
        is_charged: false,
        checks: smallvec![CheckAnswer::Fits, CheckAnswer::NotAsked],
    };
    let admitted = StoreAnswer {
        is_admitted: true,
        is_charged: true,
        checks: smallvec![CheckAnswer::NotAsked, CheckAnswer::Fits],
    };
    let again = StoreViews { is_again: true, ..views(&judged, &admitted) };
    for _ in 0..2 {
        drop(shared.decided(&["local=a", "strict=a"], &again));
        assert!(shared.engine.table().ledger(Store::Origin).is_any_urgent());
        shared.engine.table().ledger(Store::Origin).forget_urgent();
    }
}

/// Found by a review: the wait was that of the whole limit, or of a bucket that only this process fills.
#[test]
fn a_retry_under_share_passes_when_it_was_told_to_and_not_before() {
    for (entries, used) in [("minute=a", 10), ("minute=b", 3), ("bucket_minute=a", 6), ("bucket_minute=b", 4)] {
        let shared = shared();
        // All hits come before the outage, so that memory denies too.
        let admitted = StoreAnswer { is_admitted: true, is_charged: false, checks: smallvec![CheckAnswer::Fits] };
        let before = StoreViews { is_again: true, ..views(&admitted, OUT) };
        (0..used).for_each(|_| drop(shared.decided(&[entries], &before)));
        let denied = shared.outage_at(START_MS + 100, entries, 1);
        assert!(denied.is_over, "{entries}");
        let at_ms = START_MS + 100 + denied.retry_after_ms().unwrap();
        assert!(shared.outage_at(at_ms - 1, entries, 1).is_over, "{entries}: a millisecond earlier");
        assert!(!shared.outage_at(at_ms, entries, 1).is_over, "{entries}");
    }
}

/// Found by a review: such hits were answered as if they never fitted.
#[test]
fn hits_that_fit_without_the_outage_are_not_hopeless() {
    let shared = shared();
    let wait = |hits| shared.outage_at(START_MS, "share=a", hits).retry_after_ms();
    assert_eq!((wait(7), wait(11)), (Some(1000), None), "a part of three, a limit of ten");
    let before = StoreAnswer { is_admitted: true, is_charged: false, checks: smallvec![CheckAnswer::Fits] };
    let before = StoreViews { is_again: true, ..views(&before, OUT) };
    (0..10).for_each(|_| drop(shared.decided(&["minute=b"], &before)));
    let denied = shared.outage_at(START_MS + 100, "minute=b", 7);
    assert!(denied.retry_after_ms() > Some(1000), "memory knows of a longer wait");
    let cut_off = StoreViews { is_cut_off: true, ..views(StoreAccess::Allowed, OUT) };
    let request = request("d", &[ask_for("minute=a", Hits::OfRequest(7))]);
    let attempt = shared.engine.attempt(&shared.rules, &request, Modes::default(), START_MS, &cut_off);
    let Attempt::Decided(denied) = attempt else { panic!("{attempt:?}") };
    assert_eq!((denied.is_over, denied.retry_after_ms()), (true, Some(1000)), "a part of five");
}

/// Found by a review: hits that others were only assumed to have admitted were told to the store as if they had.
#[test]
fn nobody_is_told_of_what_was_only_assumed() {
    let shared = shared();
    (0..3).for_each(|_| assert!(!shared.decided(&["bucket=a"], &views(OUT, OUT)).is_over));
    let key = shared.asked(&["bucket=b"], &views(StoreAccess::Allowed, OUT)).questions[0].key.as_key().space;
    let table = shared.engine.table();
    let told: Vec<u64> = (0..table.shards())
        .flat_map(|number| {
            let mut shard = table.lock(number);
            shard
                .taken()
                .into_iter()
                .filter_map(|at| {
                    let (slot, part) = shard.both(at);
                    let cells = part.unwrap().judged_cells(&slot.counter, &slot.terms(), START_MS);
                    match cells[0].shape {
                        CellShape::Bucket(bucket) if slot.key().space == key => Some(bucket.level),
                        _ => None,
                    }
                })
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(told, [3]);
}

#[test]
fn an_override_was_explained_without_the_policy_of_its_rule() {
    let process = shared();
    let limit = Some(LimitOverride { requests_per_unit: 8, unit: Unit::Day });
    for (entries, scope, on_outage, number) in [
        ("deny=x", Scope::Global, OnOutage::Deny, 8),
        ("strict=x", Scope::Strict, OnOutage::Local, 8),
        ("split=x", Scope::Split, OnOutage::Local, 4),
        ("nowhere=x", Scope::Global, OnOutage::Local, 8),
    ] {
        let request = request("d", &[Ask { limit, ..ask(entries) }]);
        let peeked = process.engine.peek(&process.rules, &request, false, START_MS)[0][0];
        let told = (peeked.held.scope, peeked.held.on_outage, peeked.terms.limit);
        assert_eq!(told, (scope, on_outage, number), "{entries}");
        let decided = process.engine.attempt(&process.rules, &request, Modes::default(), START_MS, &views(OUT, OUT));
        let Attempt::Decided(decision) = decided else { panic!("nobody is asked in an outage") };
        let StatusKind::Limited(limited) = decision.statuses[0].kind else { panic!("{entries} has a limit") };
        assert_eq!((limited.scope, limited.on_outage, limited.terms.limit), told, "{entries}");
    }
}
