//! Real threads on the same keys: batches are all or nothing, and never in each other's way.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const THREADS: usize = 9;
const WINDOW_MS: u64 = 60_000;
const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 450, unit: minute}}
  - {key: b, rate_limit: {requests_per_unit: 900, unit: minute}}
  - {key: c, rate_limit: {requests_per_unit: 450, unit: minute, algorithm: exact_window}}
  - {key: never, rate_limit: {requests_per_unit: 0, unit: minute}}
";

/// Every round is a window of its own: nine threads ask for exactly what fits, in every order of the keys, among
/// requests that are always denied. All that fits must pass, and the denied must leave nothing behind.
/// INV-10.
#[test]
fn a_batch_that_fits_alone_always_passes_and_a_denied_one_leaves_no_charge() {
    const PER_THREAD: usize = 50;
    const ROUNDS: u64 = 580;
    let bench = Bench::new(RULES);
    let denied = AtomicU64::new(0);
    let decisions = AtomicU64::new(0);
    let barrier = Barrier::new(THREADS);
    let orders = [["a=x", "b=x", "c=x"], ["c=x", "a=x", "b=x"], ["b=x", "c=x", "a=x"]];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bench, barrier, denied, decisions) = (&bench, &barrier, &denied, &decisions);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // Two windows on, so that nothing of the round before weighs in.
                    let at_ms = round * 3 * WINDOW_MS;
                    barrier.wait();
                    for n in 0..PER_THREAD {
                        let order = orders[(thread + n) % orders.len()];
                        let fits: Vec<Ask<'_>> = order.iter().map(|entries| ask(entries)).collect();
                        let doubled: Vec<Ask<'_>> =
                            order.iter().chain(["b=x"].iter()).map(|entries| ask(entries)).collect();
                        denied.fetch_add(u64::from(bench.decide(&doubled, at_ms).is_over), Ordering::Relaxed);
                        let mut poisoned = fits.clone();
                        poisoned.insert(n % 4, ask_for("never=x", Hits::OfRequest(1)));
                        assert!(bench.decide(&poisoned, at_ms).is_over);
                        let mut oversized = fits;
                        oversized.push(ask_for("b=x", Hits::OfRequest(901)));
                        assert!(bench.decide(&oversized, at_ms).is_over);
                        assert!(!bench.decide(&[ask_for("a=x", Hits::Own(0))], at_ms).is_over);
                        decisions.fetch_add(4, Ordering::Relaxed);
                    }
                    barrier.wait();
                    if thread == 0 {
                        let all = ["a=x", "b=x", "c=x"].map(|entries| ask_for(entries, Hits::Own(0)));
                        assert_eq!(bench.said(&all, at_ms), "OK: OK 0, OK 0, OK 0", "round {round}");
                    }
                }
            });
        }
    });
    assert_eq!(denied.into_inner(), 0);
    assert!(decisions.into_inner() >= 1_000_000);
}

/// Far more than fits, window after window: none of them ever admits more than the limit.
#[test]
fn no_window_admits_more_than_the_limit_under_contention() {
    const WINDOWS: u64 = 50;
    const PER_WINDOW: u64 = 1000;
    let bench = Bench::new(RULES);
    let barrier = Barrier::new(THREADS);
    let admitted: Vec<AtomicU64> = (0..WINDOWS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for (window, admitted) in admitted.iter().enumerate() {
                    barrier.wait();
                    for n in 0..PER_WINDOW {
                        let at_ms = window as u64 * WINDOW_MS + n * WINDOW_MS / PER_WINDOW;
                        let is_over = bench.decide(&[ask("a=x"), ask("b=x")], at_ms).is_over;
                        admitted.fetch_add(u64::from(!is_over), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let admitted: Vec<u64> = admitted.into_iter().map(AtomicU64::into_inner).collect();
    assert!(admitted.iter().all(|admitted| *admitted <= 450), "{admitted:?}");
    assert!(admitted.iter().sum::<u64>() >= WINDOWS * 450 * 9 / 10, "{admitted:?}");
}
