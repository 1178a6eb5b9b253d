//! The cost of finding a rule, which does not depend on how many rules there are.
//!
//! `cargo bench --bench matching`. Read the ratios; the times depend on the machine. `cargo bench --bench matching -- NAME`
//! runs only the cases whose names contain it, `perf stat -e instructions,L1-dcache-load-misses` says more about one.
//!
//! The cases take turns, a round each, and the figures are the lower quartiles of many short batches: whatever else the
//! machine does slows all cases, and the figures contain little of it. Requests are prepared just before they are looked up, as
//! a service reads them. *Random* asks for all rules evenly, so that little of a large table is in the nearest cache; *hot*
//! asks for the same rule again and again.

use std::fmt::{self, Write as _};
use std::hint::black_box;
use std::time::Instant;

use tidegate::engine::key::IdentifierBuffer;
use tidegate::request::DescriptorEntry;
use tidegate::rules::{Options, RuleText, Ruleset};

const LIMIT: &str = "rate_limit: {requests_per_unit: 10, unit: second}";
const ROUNDS: usize = 41;
/// Batches of a round.
const ROUND: usize = 400;
/// Requests that are prepared at once.
const BATCH: usize = 128;

/// Writes the entries of a request for the rule of that number: keys and values in turn.
type Writing = dyn Fn(usize, &mut Written);

struct Case {
    name: String,
    rules: Ruleset,
    count: usize,
    request: Box<Writing>,
    /// The most that the figure may be, as a multiple of the case with this name.
    target: Option<(f64, &'static str)>,
    random_ns: Vec<f64>,
    hot_ns: Vec<f64>,
}

/// Texts, one after the other in one string.
#[derive(Default)]
struct Written {
    text: String,
    ends: Vec<usize>,
}

impl Written {
    fn push(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string can't fail.
        let _ = self.text.write_fmt(text);
        self.ends.push(self.text.len());
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    fn texts(&self) -> Vec<&str> {
        let starts = [0].iter().chain(&self.ends);
        starts.zip(&self.ends).map(|(start, end)| &self.text[*start..*end]).collect()
    }
}

fn ruleset(descriptors: impl Iterator<Item = String>) -> Ruleset {
    let mut text = String::from("domain: d\ndescriptors:\n");
    descriptors.for_each(|descriptor| text.push_str(&format!("  - {{{descriptor}}}\n")));
    let loaded = Ruleset::load(&[RuleText { name: "bench".into(), text }], &Options::default());
    match loaded.ruleset {
        Some(ruleset) => ruleset,
        None => panic!("{:?}", loaded.problems),
    }
}

impl Case {
    fn new(
        name: String,
        count: usize,
        rule: impl Fn(usize) -> String,
        request: impl Fn(usize, &mut Written) + 'static,
        target: Option<(f64, &'static str)>,
    ) -> Case {
        let rules = ruleset((0..count).map(rule));
        Case { name, rules, count, request: Box::new(request), target, random_ns: vec![], hot_ns: vec![] }
    }

    /// Looks up the rules that `next` picks. Returns the time of a lookup for each batch.
    fn round(&self, mut next: impl FnMut(usize) -> usize) -> Vec<f64> {
        let mut times_ns = Vec::with_capacity(ROUND);
        let mut written = Written::default();
        for _ in 0..ROUND {
            written.clear();
            (0..BATCH).for_each(|_| (self.request)(next(self.count), &mut written));
            let texts = written.texts();
            let began = Instant::now();
            for request in texts.chunks_exact(texts.len() / BATCH) {
                black_box(self.find(request));
            }
            times_ns.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
        }
        times_ns
    }

    #[inline]
    fn find(&self, request: &[&str]) -> usize {
        let mut identifier = IdentifierBuffer::default();
        let domain = self.rules.domain(black_box("d"));
        let rule = match request {
            [key, value] => domain.and_then(|domain| domain.find(&[DescriptorEntry { key, value }], &mut identifier)),
            [key, value, key2, value2] => {
                let entries = [DescriptorEntry { key, value }, DescriptorEntry { key: key2, value: value2 }];
                domain.and_then(|domain| domain.find(&entries, &mut identifier))
            }
            _ => None,
        };
        assert!(rule.is_some(), "{request:?} has a rule");
        identifier.finish().len()
    }
}

fn lower_quartile(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// Values have the same length for any number of rules, so that only the number differs.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for count in [10, 1000, 10_000, 100_000] {
        cases.push(Case::new(
            format!("{count} values of a key"),
            count,
            |n| format!("key: path, value: /service-{n:05}/items, {LIMIT}"),
            |n, written| {
                written.push(format_args!("path"));
                written.push(format_args!("/service-{n:05}/items"));
            },
            (count == 10_000).then_some((1.3, "10 values of a key")),
        ));
    }
    for count in [10, 10_000] {
        cases.push(Case::new(
            format!("{count} keys"),
            count,
            |n| format!("key: path-{n:05}, {LIMIT}"),
            |n, written| {
                written.push(format_args!("path-{n:05}"));
                written.push(format_args!("v"));
            },
            (count == 10_000).then_some((1.3, "10 keys")),
        ));
    }
    for count in [10, 10_000] {
        cases.push(Case::new(
            format!("{count} values with a level below"),
            count,
            |n| format!("key: tenant, value: tenant-{n:05}, descriptors: [{{key: path, {LIMIT}}}]"),
            |n, written| {
                written.push(format_args!("tenant"));
                written.push(format_args!("tenant-{n:05}"));
                written.push(format_args!("path"));
                written.push(format_args!("/items"));
            },
            (count == 10_000).then_some((1.3, "10 values with a level below")),
        ));
    }
    for pattern in ["/service-N/*", "*/service-N", "/v*/service-N/*"] {
        let text = |n: usize| pattern.replace('N', &n.to_string());
        cases.push(Case::new(
            format!("1000 wildcards {pattern}"),
            1000,
            |n| format!("key: path, value: '{}', {LIMIT}", text(n)),
            move |n, written| {
                written.push(format_args!("path"));
                written.push(format_args!("{}", text(n).replace('*', "x1")));
            },
            Some((3.0, "10 values of a key")),
        ));
    }
    cases
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let mut cases = cases();
    cases.retain(|case| wanted.iter().all(|wanted| case.name.contains(wanted.as_str())));
    let mut state = 1_u64;
    let mut random = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    for round in 0..ROUNDS {
        eprint!("\rround {} of {ROUNDS}", round + 1);
        for case in &mut cases {
            let random_ns = case.round(&mut random);
            let hot_ns = case.round(|count| count / 2);
            case.random_ns.extend(random_ns);
            case.hot_ns.extend(hot_ns);
        }
    }
    eprintln!();
    let times: Vec<(f64, f64)> =
        cases.iter_mut().map(|case| (lower_quartile(&mut case.random_ns), lower_quartile(&mut case.hot_ns))).collect();
    println!("| rules of one level | random, ns | hot, ns | random / hot | target | figure | met |");
    println!("|---|---:|---:|---:|---|---:|---|");
    for (case, (random_ns, hot_ns)) in cases.iter().zip(&times) {
        let base = |name: &str| cases.iter().position(|case| case.name == name).map(|at| times[at].0);
        let judged = case.target.and_then(|(most, of)| Some((most, of, random_ns / base(of)?)));
        let judged = judged.map_or(" | | ".to_owned(), |(most, of, figure)| {
            let met = if figure <= most { "yes" } else { "no" };
            format!("<= {most}x of {of} | {figure:.2}x | {met}")
        });
        println!("| {} | {random_ns:.1} | {hot_ns:.1} | {:.2} | {judged} |", case.name, random_ns / hot_ns);
    }
}
