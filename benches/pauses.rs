//! The longest that a decision takes while the table grows, is swept, or is full.
//!
//! `cargo bench --bench pauses` takes some minutes and 2 GB. Every decision is timed by itself, while ten million new keys come
//! one after the other, in several rounds. Now and then the machine takes milliseconds away, at any moment. Pauses of the
//! table come again in every round, at about the same number of keys. So of every thousand decisions the slowest is kept, then
//! the least of these over all rounds, and the worst of the thousands is shown. For comparison there are governor's keyed
//! limiter, whose map grows by rehashing, and the same loop around arithmetic and around memory that is used for the first
//! time.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Instant;

use governor::Quota;
use hdrhistogram::Histogram;
use tidegate::engine::decide::{Case, Check, Group, StoreViews};
use tidegate::engine::key::{IdentifierBuffer, Key};
use tidegate::engine::table::Table;
use tidegate::rules::limit::{Space, Terms};
use tidegate::rules::policy::Algorithm;
use tidegate::rules::tree::Identifier;

const NOW_MS: u64 = 1_800_000_000_000;
const KEYS: usize = 10_000_000;
const DAY_MS: u64 = 86_400_000;
/// As many pages as ten million keys take.
const PAGES: usize = 400_000;
const PAGE_BYTES: usize = 4096;
const FEWER_KEYS: usize = KEYS / 10;
const ROUNDS: usize = 5;
/// Of this many decisions in a row, the slowest counts.
const ROW: usize = 1000;

fn terms(window_ms: u64) -> Terms {
    Terms { limit: 100, window_ms, algorithm: Algorithm::SlidingWindow, burst: 100 }
}

/// Counts one hit on a key.
fn hit(table: &Table, space: Space, identifier: &[u8], terms: Terms, now_ms: u64) {
    let check = Check::local(Key::new(space, &terms, identifier), terms);
    let (checks, groups) = ([check], [Group::default()]);
    let case = Case { table, checks: &checks, groups: &groups, is_shadow: false, now_ms, views: &StoreViews::ALONE };
    black_box(case.decide());
}

/// The key of a number, 32 bytes long.
fn identifier(n: usize) -> IdentifierBuffer {
    let mut buffer = IdentifierBuffer::default();
    buffer.push(&format!("{n:032x}"));
    buffer
}

/// The times of one kind of run, over all rounds.
struct Stage {
    what: &'static str,
    times_ns: Histogram<u64>,
    /// The slowest run of every thousand in a row, in the round in which it was least.
    slowest_ns: Vec<u64>,
}

impl Stage {
    fn new(what: &'static str) -> Stage {
        let Ok(times_ns) = Histogram::new_with_bounds(1, 60_000_000_000, 3) else {
            panic!("a minute, with three digits, is allowed")
        };
        Stage { what, times_ns, slowest_ns: Vec::new() }
    }

    /// Times every run of a round by itself.
    fn round<T>(&mut self, runs: Range<usize>, prepare: impl Fn(usize) -> T, mut run: impl FnMut(T)) {
        eprintln!("{} ...", self.what);
        self.slowest_ns.resize(runs.len().div_ceil(ROW), u64::MAX);
        for (slowest_ns, from) in self.slowest_ns.iter_mut().zip(runs.step_by(ROW)) {
            let mut slowest_now_ns = 0;
            for n in from..from + ROW {
                let prepared = prepare(n);
                let began = Instant::now();
                run(prepared);
                let elapsed_ns = began.elapsed().as_nanos() as u64;
                self.times_ns.saturating_record(elapsed_ns);
                slowest_now_ns = slowest_now_ns.max(elapsed_ns);
            }
            *slowest_ns = slowest_now_ns.min(*slowest_ns);
        }
    }

    fn print(&self) {
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile: f64| us(self.times_ns.value_at_quantile(quantile));
        let slowest_us = us(self.slowest_ns.iter().copied().max().unwrap_or(0));
        let seen_ms = us(self.times_ns.max()) / 1000.0;
        println!("| {} | {:.2} | {:.1} | {slowest_us:.0} | {seen_ms:.1} |", self.what, at(0.5), at(0.999));
    }
}

fn of_table(stage: &mut Stage, table: &Table, keys: Range<usize>, window_ms: u64, now_ms: u64) {
    let space = Space::new("d", "k");
    stage.round(keys, identifier, |mut buffer| {
        let range = buffer.finish();
        hit(table, space, buffer.get(range), terms(window_ms), now_ms);
    });
}

/// When everything that was counted in windows of a second has expired.
const LATER_MS: u64 = NOW_MS + 10_000;

fn growing_and_swept([growing, swept]: &mut [Stage; 2]) {
    let table = Table::new(KEYS);
    of_table(growing, &table, 0..KEYS, 1000, NOW_MS);
    assert_eq!(table.stats().keys, KEYS);
    std::thread::scope(|scope| {
        scope.spawn(|| table.expire(LATER_MS));
        of_table(swept, &table, KEYS..KEYS + FEWER_KEYS, DAY_MS, LATER_MS);
    });
    assert_eq!(table.stats().keys, FEWER_KEYS);
}

/// Times a table at its cap, where each new key replaces another.
fn full([evicting, expiring]: &mut [Stage; 2]) {
    let new_keys = FEWER_KEYS..2 * FEWER_KEYS;
    for (stage, window_ms, now_ms) in [(evicting, DAY_MS, NOW_MS), (expiring, 1000, LATER_MS)] {
        let table = Table::new(FEWER_KEYS);
        let space = Space::new("d", "k");
        for n in 0..FEWER_KEYS {
            let mut buffer = identifier(n);
            let range = buffer.finish();
            hit(&table, space, buffer.get(range), terms(window_ms), NOW_MS);
        }
        of_table(stage, &table, new_keys.clone(), DAY_MS, now_ms);
        let stats = table.stats();
        assert_eq!(stats.evicted + stats.expired, stats.evicted.max(stats.expired), "{stats:?}");
        assert!(stats.keys <= FEWER_KEYS, "{stats:?}");
    }
}

fn main() {
    let mut arithmetic = Stage::new("arithmetic only");
    let mut memory = Stage::new("a page of new memory");
    let mut grown = [Stage::new("10M new keys"), Stage::new("1M new keys while 10M expired ones are swept")];
    let mut filled = [
        Stage::new("1M new keys at the cap, each for another one"),
        Stage::new("1M new keys at the cap, each for an expired one"),
    ];
    let mut other = Stage::new("governor, 10M new keys");
    for _ in 0..ROUNDS {
        arithmetic.round(
            0..FEWER_KEYS,
            |n| n as u64,
            |mut state| {
                (0..100).for_each(|_| state = black_box(state.wrapping_mul(6_364_136_223_846_793_005)));
            },
        );
        let mut pages: Vec<u8> = Vec::with_capacity(PAGES * PAGE_BYTES);
        memory.round(0..PAGES, |_| (), |()| pages.resize(pages.len() + PAGE_BYTES, 1));
        drop(pages);
        growing_and_swept(&mut grown);
        full(&mut filled);
        let limiter = governor::DefaultKeyedRateLimiter::<String>::keyed(Quota::per_second(NonZeroU32::MAX));
        other.round(0..KEYS, |n| format!("{n:032x}"), |key| drop(black_box(limiter.check_key(&key))));
    }
    println!("| | median, us | 1 in 1,000, us | slowest in every round, us | slowest once, ms |");
    println!("|---|---:|---:|---:|---:|");
    [&[arithmetic, memory][..], &grown, &filled, &[other]].into_iter().flatten().for_each(Stage::print);
}
