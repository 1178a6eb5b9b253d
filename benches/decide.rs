//! What a decision costs in process, beside governor's keyed limiter in the same run.
//!
//! `cargo bench --bench decide`. Read the ratios within a group; the times depend on the machine.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use governor::{DefaultKeyedRateLimiter, Quota};
use tidegate::engine::decide::{Charging, Check, Consult, Group, Reach, decide};
use tidegate::engine::key::{IdentifierBuffer, Key};
use tidegate::engine::table::Table;
use tidegate::engine::{Engine, Modes};
use tidegate::observe::hits::HitMetrics;
use tidegate::observe::outcome::Outcomes;
use tidegate::request::{Bounds, Descriptor, Entry, Hits, Request};
use tidegate::rules::limit::{Space, Terms};
use tidegate::rules::policy::Algorithm;
use tidegate::rules::tree::Identifier;
use tidegate::rules::{Options, Ruleset, Source};

const NOW_MS: u64 = 1_800_000_000_000;
const KEYS: usize = 1_000_000;
const TERMS: Terms =
    Terms { limit: u32::MAX, window_ms: 86_400_000, algorithm: Algorithm::SlidingWindow, burst: u32::MAX };

/// A 32-byte key.
fn name(n: usize) -> String {
    format!("{n:032x}")
}

fn identifier(name: &str) -> Vec<u8> {
    let mut buffer = IdentifierBuffer::default();
    buffer.push(name);
    let range = buffer.finish();
    buffer.get(range).to_vec()
}

fn check(space: Space, identifier: &[u8], group: usize) -> Check<'_> {
    let key = Key::new(space, &TERMS, identifier);
    Check {
        key,
        terms: TERMS,
        hits: 1,
        charging: Charging::Together,
        group,
        reach: Reach::Process,
        is_global: false,
        is_sensitive: false,
    }
}

fn governor() -> DefaultKeyedRateLimiter<String> {
    let most = NonZeroU32::MAX;
    governor::RateLimiter::keyed(Quota::per_second(most).allow_burst(most))
}

/// A fixed shuffle, the same for both sides.
fn shuffled(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

fn hot_key(c: &mut Criterion) {
    let mut group = c.benchmark_group("hot key");
    let table = Table::new(KEYS);
    let space = Space::new("d", "k");
    let buffer = identifier(&name(7));
    group.bench_function("tidegate", |b| {
        b.iter(|| {
            decide(&table, black_box(&[check(space, &buffer, 0)]), &[Group::default()], false, NOW_MS, &Consult::ALONE)
        })
    });
    let limiter = governor();
    let key = name(7);
    group.bench_function("governor", |b| b.iter(|| limiter.check_key(black_box(&key))));
    group.finish();
}

fn million_keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("1M keys");
    let order = shuffled(KEYS);
    let space = Space::new("d", "k");
    let table = Table::new(2 * KEYS);
    let buffers: Vec<Vec<u8>> = (0..KEYS).map(|n| identifier(&name(n))).collect();
    for buffer in &buffers {
        decide(&table, &[check(space, buffer, 0)], &[Group::default()], false, NOW_MS, &Consult::ALONE);
    }
    let mut turn = order.iter().cycle();
    group.bench_function("tidegate", |b| {
        b.iter(|| {
            let buffer = &buffers[*turn.next().unwrap_or(&0)];
            decide(&table, &[check(space, buffer, 0)], &[Group::default()], false, NOW_MS, &Consult::ALONE)
        })
    });
    let limiter = governor();
    let keys: Vec<String> = (0..KEYS).map(name).collect();
    keys.iter().for_each(|key| drop(limiter.check_key(key)));
    let mut turn = order.iter().cycle();
    group.bench_function("governor", |b| b.iter(|| limiter.check_key(&keys[*turn.next().unwrap_or(&0)])));
    group.finish();
}

fn several_keys(c: &mut Criterion) {
    let mut group = c.benchmark_group("keys in a request");
    let space = Space::new("d", "k");
    let table = Table::new(KEYS);
    for count in [1, 2, 4, 8] {
        let buffers: Vec<Vec<u8>> = (0..count).map(|n| identifier(&name(n))).collect();
        let checks: Vec<Check<'_>> = buffers.iter().enumerate().map(|(n, buffer)| check(space, buffer, n)).collect();
        let groups = vec![Group::default(); count];
        group.bench_with_input(BenchmarkId::from_parameter(count), &count, |b, _| {
            b.iter(|| decide(&table, black_box(&checks), &groups, false, NOW_MS, &Consult::ALONE))
        });
    }
    group.finish();
}

/// The time for `iterations` decisions on each of `threads` threads at once.
fn on_threads(table: &Table, threads: usize, is_one_key: bool, iterations: u64) -> Duration {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let space = Space::new("d", "k");
                let own = if is_one_key { 0 } else { thread * 64 };
                let buffers: Vec<Vec<u8>> =
                    (0..if is_one_key { 1 } else { 64 }).map(|n| identifier(&name(own + n))).collect();
                for n in 0..iterations as usize {
                    let buffer = &buffers[n % buffers.len()];
                    black_box(decide(
                        table,
                        &[check(space, buffer, 0)],
                        &[Group::default()],
                        false,
                        NOW_MS,
                        &Consult::ALONE,
                    ));
                }
            });
        }
    });
    started.elapsed()
}

/// The same number of decisions on every thread: perfect scaling takes the same time for two as for one.
fn threads(c: &mut Criterion) {
    for (name, is_one_key) in [("threads, distinct keys", false), ("threads, one hot key", true)] {
        let mut group = c.benchmark_group(name);
        for threads in [1, 2] {
            let table = Table::new(KEYS);
            group.bench_function(BenchmarkId::from_parameter(threads), |b| {
                b.iter_custom(|iterations| on_threads(&table, threads, is_one_key, iterations))
            });
        }
        group.finish();
    }
}

/// From a request to its decision: matching, naming the key, deciding.
fn whole_request(c: &mut Criterion) {
    let text = "
domain: edge
descriptors:
  - key: api_key
    rate_limit: {requests_per_unit: 4000000000, unit: day}
  - key: tenant
    descriptors:
      - {key: path, rate_limit: {requests_per_unit: 4000000000, unit: day}}
";
    let loaded = Ruleset::load(&[Source { name: "bench".into(), text: text.into() }], &Options::default());
    let Some(rules) = loaded.ruleset else { panic!("{:?}", loaded.problems) };
    let engine = Engine::new(KEYS);
    let hits = HitMetrics::new(&rules, &HitMetrics::default());
    let outcomes = Outcomes::default();
    let mut group = c.benchmark_group("whole request");
    for count in [1, 4] {
        let names: Vec<String> = (0..count).map(name).collect();
        let descriptors = names.iter().map(|value| Descriptor {
            entries: [Entry { key: "api_key", value }].into_iter().collect(),
            hits: Hits::OfRequest(1),
            limit: None,
        });
        let Ok(request) = Request::new("edge", descriptors.collect(), &Bounds::default()) else { continue };
        group.bench_function(BenchmarkId::new("descriptors", count), |b| {
            b.iter(|| engine.decide(&rules, black_box(&request), Modes::default(), NOW_MS))
        });
        // The same with everything that is measured of it, both clock readings included.
        group.bench_function(BenchmarkId::new("descriptors, measured", count), |b| {
            b.iter(|| {
                let began = Instant::now();
                let decision = engine.decide(&rules, black_box(&request), Modes::default(), NOW_MS);
                hits.record(&request, &decision, 0.8);
                outcomes.record(&decision, began.elapsed());
                decision
            })
        });
    }
    group.finish();
}

fn configured() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = configured();
    targets = hot_key, million_keys, several_keys, threads, whole_request
}
criterion_main!(benches);
