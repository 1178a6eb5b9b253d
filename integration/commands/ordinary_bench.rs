//! The parts of `benches/ordinary` that only calculate: users, arrivals and the client's own count.

#[path = "../../benches/ordinary/arrivals.rs"]
mod arrivals;
#[path = "../../benches/ordinary/ledger.rs"]
mod ledger;
#[path = "../../benches/ordinary/users.rs"]
mod users;

use std::time::Duration;

use arrivals::{Arrival, Arrivals};
use ledger::Ledger;
use proptest::collection::vec;
use proptest::prelude::*;
use users::{Class, Users};

const LIMIT: u32 = 10;
const WINDOW_MS: u64 = 1000;

/// The count against the limit with the last of these hits, by the formula of the sliding window.
fn effective(hits_ms: &[u64]) -> u32 {
    let now_ms = hits_ms[hits_ms.len() - 1];
    let in_window = |sequence: u64| hits_ms.iter().filter(|hit_ms| **hit_ms / WINDOW_MS == sequence).count() as u64;
    let sequence = now_ms / WINDOW_MS;
    let left_ms = WINDOW_MS - now_ms % WINDOW_MS;
    (in_window(sequence) + sequence.checked_sub(1).map_or(0, in_window) * left_ms / WINDOW_MS) as u32
}

proptest! {
    #[test]
    fn the_worst_count_is_that_of_the_log(mut hits_ms in vec(0..5 * WINDOW_MS, 1..60)) {
        hits_ms.sort_unstable();
        let mut ledger = Ledger::new(LIMIT, WINDOW_MS, 1);
        hits_ms.iter().for_each(|hit_ms| ledger.answered(0, *hit_ms, false));
        let worst = (1..=hits_ms.len()).map(|so_far| effective(&hits_ms[..so_far])).max().unwrap();
        prop_assert_eq!(ledger.worst_effective(), f64::from(worst) / f64::from(LIMIT));
        let fullest = (0..5).map(|sequence| hits_ms.iter().filter(|hit_ms| **hit_ms / WINDOW_MS == sequence).count());
        prop_assert_eq!(ledger.worst_window(), fullest.max().unwrap() as f64 / f64::from(LIMIT));
    }
}

#[test]
fn only_who_stayed_below_the_limit_is_denied_without_reason() {
    let mut ledger = Ledger::new(LIMIT, WINDOW_MS, 2);
    for number in 0..u64::from(LIMIT) {
        ledger.asked(0, number);
        ledger.answered(0, number, false);
        if number > 0 {
            ledger.asked(1, number);
            ledger.answered(1, number, number == 5);
        }
    }
    ledger.asked(0, 500);
    ledger.answered(0, 500, true);
    assert_eq!(ledger.denied_wrongly(), 1, "the first user asked for more than the limit, the second for less");
}

#[test]
fn users_are_as_far_from_their_limits_as_they_should_be() {
    let users = Users::draw(100_000, f64::INFINITY, 1).unwrap();
    assert_eq!(users.count(), 100_000);
    assert_eq!(Class::ALL.map(|class| users.count_of(class)).iter().sum::<usize>(), users.count());
    let share = |class: Class| users.count_of(class) as f64 / users.count() as f64;
    // A standard normal value is above 2.184 in 1.45 %, and above 2.722 in 0.32 % of all cases.
    assert!((0.0175..0.0215).contains(&(1.0 - share(Class::BelowHalf))), "{}", share(Class::BelowHalf));
    assert!((0.0070..0.0095).contains(&share(Class::Above)), "{}", share(Class::Above));
    // The mean of the many is 6.8 % of their limit, and half a percent of the users ask for six limits.
    let mean = users.parts() / users.count() as f64;
    assert!((0.092..0.102).contains(&mean), "{mean}");
}

#[test]
fn there_are_no_more_users_than_there_may_be_requests() {
    let users = Users::draw(100_000, 50.0, 1).unwrap();
    assert!((50.0..60.0).contains(&users.parts()), "the last one brings at most 10: {}", users.parts());
    assert_eq!(Users::draw(7, 50.0, 1).unwrap().count(), 7);
}

#[test]
fn everybody_gets_the_same_requests_at_the_rate_that_was_asked_for() {
    let users = Users::draw(1000, f64::INFINITY, 1).unwrap();
    let draw = || {
        let mut arrivals = Arrivals::new(&users, 1000.0, 2).unwrap();
        (0..20_000).map(|_| arrivals.next()).collect::<Vec<_>>()
    };
    let (one, other) = (draw(), draw());
    let told = |arrival: &Arrival| (arrival.after, arrival.user, arrival.process);
    assert!(one.iter().map(told).eq(other.iter().map(told)));
    assert!(one.iter().all(|arrival| arrival.class == users.class(arrival.user)));
    let took = one[one.len() - 1].after;
    assert!((Duration::from_secs(19)..Duration::from_secs(21)).contains(&took), "{took:?}");
    let above = one.iter().filter(|arrival| arrival.class == Class::Above).count();
    assert!(above > one.len() / 5, "few users ask for a large part of all: {above}");
}
