//! The rules of the origin, one at a time.

use super::*;
use crate::engine::table::cell::{BucketUpdate, CellShape, HeldAt, WindowUpdate};
use crate::engine::table::foreign::Counts;
use crate::regional::call::COUNT_MAX;
use crate::regional::model::buckets::BUCKET_LINGERS_MS;
use smallvec::smallvec;

const KEY: OriginKey = OriginKey([1; 20]);
const A: ProcessId = ProcessId(0xa);
const B: ProcessId = ProcessId(0xb);
const TIME_MS: u64 = 1_700_000_000_000;

fn told(own: u64) -> CellUpdate {
    let window = WindowUpdate { sequence: 10, ttl_ms: 60_000, ..WindowUpdate::default() };
    CellUpdate { is_seated: true, own, shape: CellShape::Window(window), ..CellUpdate::default() }
}

fn of_window(told: CellUpdate, window: WindowUpdate) -> CellUpdate {
    CellUpdate { shape: CellShape::Window(window), ..told }
}

fn of_bucket(told: CellUpdate, bucket: BucketUpdate) -> CellUpdate {
    CellUpdate { shape: CellShape::Bucket(bucket), ..told }
}

/// A bucket with this level by the process's own view.
fn with_level(told: CellUpdate, level: u64) -> CellUpdate {
    of_bucket(told, BucketUpdate { floor_rest: 0, level })
}

/// A cell with this many refunds by the process's own view.
fn with_refunds(told: CellUpdate, refunds_floor: u64) -> CellUpdate {
    of_window(told, WindowUpdate { refunds_floor, ..window(&told) })
}

fn fixed(told: CellUpdate) -> CallKey {
    CallKey { key: KEY, window_ms: 60_000, measure: Measure::Sum, cells: smallvec![told] }
}

fn sliding(current: CellUpdate, previous: CellUpdate, left_ms: u64) -> CallKey {
    let before = WindowUpdate { sequence: 9, ..window(&previous) };
    let cells = smallvec![current, of_window(previous, before)];
    CallKey { key: KEY, window_ms: 60_000, measure: Measure::Sliding { left_ms }, cells }
}

fn bucket(told: CellUpdate) -> CallKey {
    let cell = match told.shape {
        CellShape::Bucket(_) => told,
        CellShape::Window(_) => of_bucket(told, BucketUpdate { floor_rest: 0, level: 60_000 }),
    };
    let cells = smallvec![cell];
    CallKey { key: KEY, window_ms: 60_000, measure: Measure::Gcra { limit: 10, burst: 1000 }, cells }
}

fn replay(process: ProcessId, part: CallKey) -> Call {
    Call { process, nonce: 7, charges: true, parts: vec![part], asks: Vec::new() }
}

fn need(hits: u64, limit: u64) -> Need {
    Need { part: 0, limit, hits, quota: None, ahead: 0 }
}

fn ask(needs: &[Need]) -> Ask {
    Ask { needs: needs.into() }
}

fn check(process: ProcessId, part: CallKey, asks: &[Ask]) -> Call {
    Call { asks: asks.to_vec(), ..replay(process, part) }
}

fn heard(origin: &mut Origin, call: &Call) -> CellState {
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
    let known = CellUpdate { epoch: first.epoch, acked: 5, floor: 5, ..told(9) };
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
    let of_a = replay(A, fixed(CellUpdate { epoch, acked: 5, floor: 5, ..told(7) }));
    assert_eq!(origin.call(&of_a, later_ms).parts[0][0].sum, 5 + 1 + 2);
    let of_b = replay(B, fixed(CellUpdate { epoch, acked: 3, floor: 8, ..told(5) }));
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
    let of_a = replay(A, fixed(CellUpdate { epoch, acked: 5, floor: 5, ..told(6) }));
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
            let known = CellUpdate { epoch: made.epoch, acked: 5, floor: 5, ..told(5) };
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
    // The epoch is the same: what the fields lack is added, even for a process that was not there yet.
    heard(&mut origin, &replay(B, fixed(CellUpdate { epoch, acked: 3, floor: 12, ..told(3) })));
    let healed = heard(&mut origin, &replay(A, fixed(CellUpdate { epoch, acked: 9, floor: 12, ..told(9) })));
    assert_eq!(healed.sum, 12);
    // A copy from before the cell was made anew: the sum rises to the floor, and what is new is added.
    let newer = replay(A, fixed(CellUpdate { epoch: epoch + 1, acked: 20, floor: 30, ..told(21) }));
    assert_eq!(heard(&mut origin, &newer).sum, 31);
    assert_eq!(heard(&mut origin, &newer).sum, 31);
}

#[test]
fn an_older_copy_does_not_forget_what_the_dead_had_told_if_somebody_knows_it() {
    let mut origin = Origin::default();
    heard(&mut origin, &replay(A, fixed(told(5))));
    let copy = origin.clone();
    let epoch = heard(&mut origin, &replay(B, fixed(CellUpdate { asked: 2, ..told(7) }))).epoch;
    heard(&mut origin, &replay(ProcessId(0xc), fixed(told(4))));
    // B dies with the primary. A knows of all 16, and that two of them were given back.
    origin = copy;
    let known = with_refunds(CellUpdate { epoch, acked: 5, floor: 16, ..told(5) }, 2);
    for _ in 0..2 {
        let healed = heard(&mut origin, &replay(A, fixed(known)));
        assert_eq!((healed.sum, healed.refunds), (16, 2));
    }
    // A process that is there tells again. That is not added to what is known, because its hits are part of it.
    let of_c = replay(ProcessId(0xc), fixed(CellUpdate { epoch, acked: 4, floor: 16, ..told(4) }));
    assert_eq!(heard(&mut origin, &of_c).sum, 16);
    // A late message, from when A knew less.
    let late = CellUpdate { epoch, acked: 5, floor: 12, ..told(5) };
    assert_eq!(heard(&mut origin, &replay(A, fixed(late))).sum, 16);
    assert_eq!(admitted(&mut origin, &check(A, fixed(known), &[ask(&[need(2, 15)])])), [false]);
    assert_eq!(admitted(&mut origin, &check(A, fixed(known), &[ask(&[need(1, 15)])])), [true]);
}

#[test]
fn without_a_seat_nothing_is_added_but_counted_while_it_is_judged() {
    let mut origin = Origin::default();
    heard(&mut origin, &replay(A, fixed(told(5))));
    let cold = CellUpdate { is_seated: false, ..told(3) };
    let read = heard(&mut origin, &replay(A, fixed(cold)));
    assert_eq!((read.sum, read.field, read.holders), (5, 5, 1));
    let holder = heard(&mut origin, &replay(B, fixed(cold)));
    assert_eq!((holder.sum, holder.field, holder.holders), (5, 0, 1), "who only reads leaves no trace");
    assert_eq!(admitted(&mut origin, &check(A, fixed(cold), &[ask(&[need(3, 10)])])), [false]);
    assert_eq!(admitted(&mut origin, &check(A, fixed(cold), &[ask(&[need(2, 10)])])), [true]);
    let after = heard(&mut origin, &replay(A, fixed(cold)));
    assert_eq!((after.sum, after.field), (7, 7));
    // Its refunds are not taken either.
    let asks_back = CellUpdate { asked: 4, ..cold };
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
    let other = CallKey { key: OriginKey([2; 20]), ..fixed(told(0)) };
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
    let parts = vec![fixed(told(0)), CallKey { key: OriginKey([2; 20]), ..fixed(told(0)) }];
    let quota = |part, hits, limit, quota| Need { part, limit, hits, quota: Some(quota), ahead: 0 };
    let decided = |origin: &mut Origin, needs: &[Need]| {
        let call = Call { parts: parts.clone(), ..check(A, fixed(told(0)), &[ask(needs)]) };
        let reply = origin.call(&call, TIME_MS);
        let sums: Vec<u64> = reply.parts.iter().map(|cells| cells[0].sum).collect();
        (reply.verdicts[0].is_admitted, reply.verdicts[0].over.to_vec(), sums)
    };
    assert_eq!(decided(&mut origin, &[quota(0, 2, 1, 0), quota(1, 1, 1, 1)]), (true, vec![0], vec![0, 1]));
    origin.clear();
    assert_eq!(decided(&mut origin, &[quota(0, 2, 1, 0), quota(1, 2, 1, 1)]), (false, vec![0, 1], vec![0, 0]));
    // One need of the group is over, so the group is, and it is the only one.
    assert_eq!(decided(&mut origin, &[quota(0, 1, 1, 0), quota(1, 2, 1, 0)]), (false, vec![1], vec![0, 0]));
    let alone = Need { part: 1, ..need(1, 0) };
    assert_eq!(decided(&mut origin, &[quota(0, 1, 1, 0), alone]), (false, vec![1], vec![0, 0]));
}

#[test]
fn what_is_admitted_counts_on_top_of_the_row() {
    let mut origin = Origin::default();
    let row = Counts { hits: 15, refunds: 0 };
    let told = of_window(told(1), WindowUpdate { row, ..window(&told(1)) });
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
    let part = |asked| sliding(CellUpdate { asked, ..told(5) }, told(10), 60_000);
    let reply = origin.call(&replay(A, part(8)), TIME_MS);
    let refunds = |reply: &Reply| -> Vec<u64> { reply.parts[0].iter().map(|heard| heard.refunds).collect() };
    assert_eq!(refunds(&reply), [5, 3]);
    assert_eq!(reply.parts[0][0].asked, 8);
    assert_eq!(refunds(&origin.call(&replay(A, part(8)), TIME_MS)), [5, 3], "a total, however often it is told");
    assert_eq!(refunds(&origin.call(&replay(A, part(100)), TIME_MS)), [5, 10]);
    let later = sliding(CellUpdate { asked: 100, ..told(6) }, told(10), 60_000);
    assert_eq!(refunds(&origin.call(&replay(A, later), TIME_MS)), [5, 10], "the excess is never banked");
}

#[test]
fn refunds_of_a_lost_cell_come_back_with_its_floor() {
    let mut origin = Origin::default();
    let epoch = heard(&mut origin, &replay(A, fixed(CellUpdate { asked: 3, ..told(9) }))).epoch;
    origin.clear();
    let known = with_refunds(CellUpdate { epoch, acked: 9, floor: 9, asked: 4, asked_acked: 3, ..told(9) }, 3);
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
    let full = CellUpdate { asked: u64::MAX, ..told(u64::MAX) };
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
    // If the clock is set back a little, the bucket waits. If it is behind by more than a window, it was wrong before.
    let mut level = |time_ms| origin.call(&replay(A, bucket(told(6))), time_ms).parts[0][0].level;
    assert_eq!(level(TIME_MS), BucketLevel { ahead_ms: 6000, whole: 5, rest: 0 });
    assert_eq!(level(1000), BucketLevel { ahead_ms: 0, whole: 5, rest: 0 });
    assert_eq!(level(1001), BucketLevel { ahead_ms: 0, whole: 4, rest: 59_990 });
    assert_eq!(level(31_001), BucketLevel { ahead_ms: 0, whole: 0, rest: 0 });
    let told = replay(A, bucket(CellUpdate { asked: 2, ..told(9) }));
    let sum = origin.call(&told, 31_001).parts[0][0];
    assert_eq!((sum.sum, sum.refunds, sum.level.whole), (9, 0, 1));
}

#[test]
fn what_was_given_back_before_it_was_told_is_given_back_once() {
    let mut origin = Origin::default();
    let level = |origin: &mut Origin, told| heard(origin, &replay(A, bucket(told))).level.whole;
    let given_back = with_level(CellUpdate { asked: 1, ..told(2) }, 1);
    assert_eq!(level(&mut origin, given_back), 1);
    origin.clear();
    assert_eq!(level(&mut origin, with_level(told(3), 0)), 0, "all of it has drained");
}

#[test]
fn a_bucket_that_was_empty_for_a_while_forgets_who_held_it() {
    let mut origin = Origin::default();
    let at = |origin: &mut Origin, process: u64, own, epoch, after_ms| {
        let told = CellUpdate { epoch, acked: own, ..told(own) };
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

/// A call about a bucket that drains one hit a minute, so that it is never empty.
fn slow(process: u64, told: CellUpdate) -> Call {
    let part = CallKey { measure: Measure::Gcra { limit: 1, burst: 1000 }, ..bucket(told) };
    replay(ProcessId(process), part)
}

#[test]
fn who_was_silent_for_a_generation_is_not_counted_twice() {
    let mut origin = Origin::default();
    let mut at = |process, told, after_ms| origin.call(&slow(process, told), TIME_MS + after_ms).parts[0][0];
    let first = at(1, told(100), 0);
    // The answer to this one is lost: the process does not know that 10 more are counted.
    let unanswered = CellUpdate { epoch: first.epoch, acked: 100, ..told(110) };
    assert_eq!(at(1, unanswered, 0).level.whole, 110);
    at(2, told(10), 0);
    let second = at(3, told(10), 60_000);
    assert!(second.epoch > first.epoch);
    assert_eq!((second.level.whole, second.holders), (129, 3), "another generation, the same level");
    // These come late and repeated: the field is in the generation before.
    for message in [told(100), unanswered, told(100), unanswered] {
        let heard = at(1, message, 60_000);
        assert_eq!((heard.level.whole, heard.field, heard.holders), (129, 110, 3));
    }
    // Process 2 has been silent for two generations. Only it knows its field now.
    assert_eq!(at(4, told(0), 120_000).holders, 1 + 2, "the second is forgotten");
    let silent = CellUpdate { epoch: first.epoch, acked: 10, floor: 1000, ..told(15) };
    for _ in 0..2 {
        let heard = at(2, silent, 120_000);
        assert_eq!((heard.level.whole, heard.field, heard.holders), (128 + 5, 15, 4));
    }
    // Hits that it has not told count only as far as they have not drained there.
    let drained = with_level(CellUpdate { epoch: first.epoch, acked: 10, ..told(15) }, 0);
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
    // Process 1 tells more, under its epoch from before the lost generation; process 4 tells the same, under the lost
    // one's.
    let same = CellUpdate { epoch: known[0], acked: 10, ..told(20) };
    assert_eq!(origin.call(&slow(1, same), later_ms).parts[0][0].level.whole, 39);
    let newer = CellUpdate { epoch: renewed.epoch, acked: 10, floor: 39, ..told(10) };
    assert_eq!(origin.call(&slow(4, newer), later_ms).parts[0][0].level.whole, 39, "a lower bound");
}

#[test]
fn the_debt_of_a_bucket_has_an_end_however_often_it_is_told() {
    let mut origin = Origin::default();
    let part = |told| CallKey { measure: Measure::Gcra { limit: 10, burst: 5 }, ..bucket(told) };
    let mut epoch = 0;
    for own in (1..50).map(|report| report * 1_000_000_000) {
        for process in [A, B] {
            let told = with_level(CellUpdate { epoch, ..told(own) }, own);
            let heard = heard(&mut origin, &replay(process, part(told)));
            assert!(heard.level.whole <= 10 * (10 + 5), "{heard:?}");
            epoch = heard.epoch;
        }
    }
    // What a process knew of the bucket before a loss does not bring the debt back either.
    for epoch in [epoch - 1, epoch + 1] {
        let told = CellUpdate { epoch, floor: COUNT_MAX, ..told(0) };
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
    let reading = |own| sliding(CellUpdate { is_seated: false, ..told(0) }, told(own), 1000);
    let heard = origin.call(&replay(A, reading(0)), TIME_MS).parts[0].clone();
    assert_eq!((heard[0].holders, heard[0].epoch, heard[1].holders, heard[1].epoch), (0, 0, 0, 0));
    assert_eq!((origin.total(&KEY, 10), origin.total(&KEY, 9)), (None, None));
    let heard = origin.call(&replay(A, reading(3)), TIME_MS).parts[0].clone();
    assert_eq!((heard[1].sum, heard[1].holders), (3, 1));
    assert_eq!((origin.total(&KEY, 10), origin.total(&KEY, 9)), (None, Some((3, 0))));
    let heard = origin.call(&replay(A, bucket(CellUpdate { is_seated: false, ..told(0) })), TIME_MS).parts[0][0];
    assert_eq!((heard.holders, heard.epoch), (0, 0));
    assert_eq!(origin.levels(), (0, 0));
}

/// The sub-cells of an exact window that a process tells: how far back, and what it has accepted there.
fn exact(newest: u64, cells: &[(u64, CellUpdate)]) -> CallKey {
    let told =
        |(back, told): &(u64, CellUpdate)| of_window(*told, WindowUpdate { sequence: newest - back, ..window(told) });
    CallKey { key: KEY, window_ms: 60_000, measure: Measure::Exact, cells: cells.iter().map(told).collect() }
}

#[test]
fn an_exact_window_tells_what_is_new_and_hears_all() {
    let mut origin = Origin::default();
    origin.call(&replay(A, exact(40, &[(0, told(3)), (9, told(4))])), TIME_MS);
    let heard = origin.call(&replay(B, exact(41, &[(0, told(2))])), TIME_MS).parts[0].clone();
    assert_eq!(heard.len(), 17);
    let hits: Vec<(u64, u64, u64)> = heard.iter().map(|cell| (cell.sequence, cell.sum, cell.field)).collect();
    assert!([(41, 2, 2), (40, 3, 0), (31, 4, 0)].iter().all(|cell| hits.contains(cell)), "{hits:?}");
    assert_eq!(hits.iter().map(|(_, sum, _)| sum).sum::<u64>(), 9);
    // Two blocks: 32 to 47, and 16 to 31 before it.
    assert_eq!((heard[0].epoch, heard[0].holders), (heard[9].epoch, heard[9].holders));
    assert_eq!((heard[0].holders, heard[10].holders), (2, 1));
    let asks = |hits| check(A, exact(41, &[(0, told(0))]), &[ask(&[need(hits, 10)])]);
    assert_eq!(admitted(&mut origin, &asks(2)), [false], "what is not told counts");
    assert_eq!(admitted(&mut origin, &asks(1)), [true]);
    let refunded = exact(41, &[(0, CellUpdate { asked: 8, ..told(1) })]);
    let heard = origin.call(&replay(A, refunded), TIME_MS).parts[0].clone();
    let refunds: Vec<u64> = [0, 1, 10].map(|back: usize| heard[back].refunds).to_vec();
    assert_eq!(refunds, [3, 3, 2], "from the newest, then from those that nothing is told of");
}

#[test]
fn a_lost_block_is_made_anew_with_one_epoch() {
    let mut origin = Origin::default();
    let first = origin.call(&replay(A, exact(40, &[(0, told(3)), (1, told(4))])), TIME_MS).parts[0].clone();
    origin.clear();
    let fresh = origin.call(&replay(B, exact(40, &[(0, told(1))])), TIME_MS + 1).parts[0].clone();
    assert!(fresh[0].epoch > first[0].epoch);
    let known = |own| CellUpdate { epoch: first[0].epoch, acked: own, floor: own, ..told(own) };
    for _ in 0..2 {
        let again = replay(A, exact(40, &[(0, known(3)), (1, known(4))]));
        let heard = origin.call(&again, TIME_MS + 1).parts[0].clone();
        assert_eq!((heard[0].sum, heard[1].sum), (3 + 1, 4));
        assert_eq!((heard[0].epoch, heard[1].epoch), (fresh[0].epoch, fresh[0].epoch));
    }
}

#[test]
fn a_bucket_that_never_drains_is_not_kept_forever() {
    let mut origin = Origin::default();
    let blocked = |own| CallKey { measure: Measure::Gcra { limit: 0, burst: 1000 }, ..bucket(told(own)) };
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
    let at = |own, floor| {
        let known = BucketUpdate { floor_rest: 9, level: 60_000 };
        bucket(of_bucket(CellUpdate { epoch, acked: 4, floor, ..told(own) }, known))
    };
    let later = |origin: &mut Origin, call: &Call| origin.call(call, TIME_MS + 1).parts[0][0];
    later(&mut origin, &replay(B, bucket(told(1))));
    for _ in 0..2 {
        let heard = later(&mut origin, &replay(A, at(6, 4)));
        assert_eq!((heard.level.whole, heard.level.rest, heard.sum), (4 + 1 + 2, 9, 3));
    }
    assert_eq!(later(&mut origin, &replay(A, at(6, 3))).level.whole, 7, "a lower floor is in already");
    assert_eq!(later(&mut origin, &replay(A, at(6, 5))).level.whole, 5 + 3);
    // An older copy: the level only rises to what is known.
    let newer = CellUpdate { epoch: u64::MAX, acked: 6, floor: 9, ..told(6) };
    assert_eq!(later(&mut origin, &replay(A, bucket(newer))).level.whole, 9);
}

#[test]
fn cells_expire_and_who_stops_leaves() {
    let mut origin = Origin::default();
    heard(&mut origin, &replay(A, fixed(told(5))));
    heard(&mut origin, &replay(B, fixed(told(5))));
    let beat = |was_known, live, time_ms| BeatReply { was_known, live, time_ms, incarnation: TIME_MS * 1000 };
    assert_eq!(origin.beat(A, TIME_MS), beat(false, 1, TIME_MS));
    assert_eq!(origin.beat(B, TIME_MS + 3000), beat(false, 2, TIME_MS + 3000));
    origin.leave(A, &[(KEY, HeldAt::Cell(10))]);
    assert_eq!(origin.beat(B, TIME_MS + 3000), beat(true, 1, TIME_MS + 3000));
    let heard = heard(&mut origin, &replay(B, fixed(told(5))));
    assert_eq!((heard.sum, heard.holders), (10, 1));
    origin.call(&replay(B, bucket(told(0))), TIME_MS + 59_999);
    assert_eq!(origin.total(&KEY, 10), Some((10, 0)));
    origin.call(&replay(B, bucket(told(0))), TIME_MS + 60_000);
    assert_eq!(origin.total(&KEY, 10), None);
}

#[test]
fn hits_are_charged_ahead_as_far_as_they_fit() {
    let mut origin = Origin::default();
    let ahead = |process, own, limit| {
        let need = Need { ahead: 3, ..need(1, limit) };
        check(process, fixed(told(own)), &[ask(&[need])])
    };
    let field = |origin: &mut Origin, call: &Call| {
        let reply = origin.call(call, TIME_MS);
        (reply.verdicts[0].is_admitted, reply.parts[0][0].sum, reply.parts[0][0].field)
    };
    assert_eq!(field(&mut origin, &ahead(A, 0, 10)), (true, 4, 4), "one is admitted, and three are charged besides");
    assert_eq!(field(&mut origin, &ahead(A, 4, 10)), (true, 8, 8), "all of them were used up");
    assert_eq!(field(&mut origin, &ahead(A, 5, 10)), (true, 9, 9), "three are there beside what is admitted");
    assert_eq!(field(&mut origin, &ahead(A, 5, 10)), (true, 9, 9), "a call that comes again changes nothing");
    assert_eq!(field(&mut origin, &ahead(B, 0, 10)), (true, 10, 1), "there is no room for more");
    assert_eq!(field(&mut origin, &ahead(B, 1, 10)), (false, 10, 1), "nothing is charged for who is denied");
    let judged = Call { charges: false, ..ahead(B, 1, 20) };
    assert_eq!(field(&mut origin, &judged), (true, 10, 1), "nor where the origin only judges");
}
