//! What finding the rule costs, and that it does not depend on how many there are.
//!
//! `cargo bench --bench matching`. Read the ratios to `rules/10`.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tidegate::engine::key::IdentifierBuffer;
use tidegate::request::Entry;
use tidegate::rules::{Options, Ruleset, Source};

const LIMIT: &str = "rate_limit: {requests_per_unit: 10, unit: second}";

fn ruleset(descriptors: impl Iterator<Item = String>) -> Ruleset {
    let mut text = String::from("domain: d\ndescriptors:\n");
    descriptors.for_each(|descriptor| text.push_str(&format!("  - {{{descriptor}, {LIMIT}}}\n")));
    let loaded = Ruleset::load(&[Source { name: "bench".into(), text }], &Options::default());
    match loaded.ruleset {
        Some(ruleset) => ruleset,
        None => panic!("{:?}", loaded.problems),
    }
}

/// Requests in a fixed random order over all that the rules name.
fn values(count: usize, value: impl Fn(usize) -> String) -> Vec<String> {
    let mut state = 1_u64;
    (0..4096)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            value((state >> 33) as usize % count)
        })
        .collect()
}

fn measure(c: &mut Criterion, id: BenchmarkId, ruleset: &Ruleset, requests: &[(String, String)]) {
    let mut group = c.benchmark_group("matching");
    let mut turn = requests.iter().cycle();
    group.bench_function(id, |b| {
        b.iter(|| {
            let Some((key, value)) = turn.next() else { return 0 };
            let mut identifier = IdentifierBuffer::default();
            let entries = [Entry { key, value }];
            let rule = ruleset.domain(black_box("d")).and_then(|domain| domain.find(&entries, &mut identifier));
            usize::from(rule.is_some()) + identifier.finish().len()
        })
    });
    group.finish();
}

fn matching(c: &mut Criterion) {
    for count in [10, 1000, 10_000] {
        let rules = ruleset((0..count).map(|n| format!("key: path, value: /service-{n}/items")));
        let requests = values(count, |n| format!("/service-{n}/items"));
        let requests: Vec<_> = requests.into_iter().map(|value| ("path".to_owned(), value)).collect();
        measure(c, BenchmarkId::new("rules", count), &rules, &requests);
    }
    let rules = ruleset((0..10_000).map(|n| format!("key: path-{n}")));
    let requests: Vec<_> = values(10_000, |n| format!("path-{n}")).into_iter().map(|key| (key, "v".into())).collect();
    measure(c, BenchmarkId::new("keys", 10_000), &rules, &requests);
    for (name, pattern) in [("prefix", "/service-N/*"), ("suffix", "*/service-N"), ("middle", "/v*/service-N/*")] {
        let rules = ruleset((0..1000).map(|n| format!("key: path, value: '{}'", pattern.replace('N', &n.to_string()))));
        let requests = values(1000, |n| pattern.replace('N', &n.to_string()).replace('*', "x1"));
        let requests: Vec<_> = requests.into_iter().map(|value| ("path".to_owned(), value)).collect();
        measure(c, BenchmarkId::new(format!("wildcards, {name}"), 1000), &rules, &requests);
    }
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
    targets = matching
}
criterion_main!(benches);
