//! The cost of a decision in process: compared with governor's keyed limiter, with more keys in a request, on more threads.
//!
//! `cargo bench --bench decide`, or with a word to run only the parts named with it: `cargo bench --bench decide -- hot`.
//! The two sides of a comparison take turns in short rounds, and a ratio is the median of the rounds' ratios, so that a
//! machine that is busy for a while slows both sides. Rounds in which a thread had to give up its processor do not count.
//! Read the ratios; the times depend on the machine.

use std::fmt;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use governor::{DefaultKeyedRateLimiter, Quota};
use tidegate::engine::decide::{Case, Check, Group, StoreViews};
use tidegate::engine::key::{IdentifierBuffer, Key};
use tidegate::engine::table::Table;
use tidegate::engine::{Engine, Modes};
use tidegate::observe::hits::HitMetrics;
use tidegate::observe::outcome::Outcomes;
use tidegate::request::{Bounds, Descriptor, DescriptorEntry, Hits, Request};
use tidegate::rules::limit::{Space, Terms};
use tidegate::rules::policy::Algorithm;
use tidegate::rules::tree::Identifier;
use tidegate::rules::{Options, RuleText, Ruleset};

const NOW_MS: u64 = 1_800_000_000_000;
const KEYS: usize = 1_000_000;
/// Decisions of one side in one round: so few that a round is rarely interrupted.
const DECISIONS: usize = 10_000;
const ROUNDS: usize = 301;
const TERMS: Terms =
    Terms { limit: u32::MAX, window_ms: 86_400_000, algorithm: Algorithm::SlidingWindow, burst: u32::MAX };

/// A line of the closing table.
struct Figure {
    what: &'static str,
    figure: String,
    ratio: Option<f64>,
    aim: Aim,
}

#[derive(Clone, Copy)]
enum Aim {
    None,
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn is_met(self, ratio: f64) -> Option<bool> {
        match self {
            Aim::None => None,
            Aim::AtMost(most) => Some(ratio <= most),
            Aim::AtLeast(least) => Some(ratio >= least),
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Aim::None => Ok(()),
            Aim::AtMost(most) => write!(f, "<= {most}"),
            Aim::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = self.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let is_met = match self.ratio.and_then(|ratio| self.aim.is_met(ratio)) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        write!(f, "| {} | {} | {ratio} | {} | {is_met} |", self.what, self.figure, self.aim)
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    type Part = (&'static str, fn() -> Vec<Figure>);
    let parts: [Part; 5] = [
        ("hot key", hot_key),
        ("1M keys", million_keys),
        ("keys in a request", several_keys),
        ("threads", threads),
        ("whole request", whole_requests),
    ];
    let mut figures = Vec::new();
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            eprintln!("{name} ...");
            figures.extend(part());
        }
    }
    println!("| | | ratio | aim | met |\n|---|---|---|---|---|");
    figures.iter().for_each(|figure| println!("{figure}"));
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// How often the system has taken this thread's processor away; 0 if it does not tell.
fn times_interrupted() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// When [`DECISIONS`] runs began and ended; `None` if the thread was interrupted.
fn span(mut run: impl FnMut()) -> Option<(Instant, Instant)> {
    let interrupted = times_interrupted();
    let began = Instant::now();
    (0..DECISIONS).for_each(|_| run());
    let ended = Instant::now();
    (times_interrupted() == interrupted).then_some((began, ended))
}

/// Nanoseconds for each run; `None` if the thread was interrupted.
fn timed(run: impl FnMut()) -> Option<f64> {
    let (began, ended) = span(run)?;
    Some((ended - began).as_nanos() as f64 / DECISIONS as f64)
}

/// How long two sides took that ran in turns: the median of each, and of the first divided by the second.
struct Turns {
    first_ns: f64,
    second_ns: f64,
    ratio: f64,
}

fn in_turns(mut first: impl FnMut() -> Option<f64>, mut second: impl FnMut() -> Option<f64>) -> Turns {
    /// If the machine is too busy for any round to count, there is no figure.
    const ATTEMPTS_MAX: usize = 20 * ROUNDS;
    first();
    second();
    let rounds = (0..ATTEMPTS_MAX).filter_map(|_| first().zip(second()));
    let rounds: Vec<(f64, f64)> = rounds.take(ROUNDS).collect();
    Turns {
        first_ns: median(rounds.iter().map(|round| round.0).collect()),
        second_ns: median(rounds.iter().map(|round| round.1).collect()),
        ratio: median(rounds.iter().map(|round| round.0 / round.1).collect()),
    }
}

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
    Check { group, ..Check::local(Key::new(space, &TERMS, identifier), TERMS) }
}

fn case<'a>(table: &'a Table, checks: &'a [Check<'a>], groups: &'a [Group]) -> Case<'a> {
    Case { table, checks, groups, is_shadow: false, now_ms: NOW_MS, views: &StoreViews::ALONE }
}

fn decide_one(table: &Table, space: Space, identifier: &[u8]) {
    let checks = [check(space, identifier, 0)];
    black_box(case(table, black_box(&checks), &[Group::default()]).decide());
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

fn hot_key() -> Vec<Figure> {
    let (table, space, identifier) = (Table::new(KEYS), Space::new("d", "k"), identifier(&name(7)));
    let (limiter, key) = (governor(), name(7));
    let Turns { first_ns, second_ns, ratio } = in_turns(
        || timed(|| decide_one(&table, space, &identifier)),
        || timed(|| drop(black_box(limiter.check_key(black_box(&key))))),
    );
    let figure = format!("{first_ns:.0} ns, governor {second_ns:.0} ns");
    vec![Figure { what: "one hot key", figure, ratio: Some(ratio), aim: Aim::AtMost(1.5) }]
}

/// Measures a table that is full, and one that is half empty, whose index is twice as large.
fn million_keys() -> Vec<Figure> {
    vec![
        random_keys("1M keys of 32 bytes at random", KEYS, Aim::AtMost(1.0)),
        random_keys("the same in a table for 2M", 2 * KEYS, Aim::None),
    ]
}

/// Both sides get ready keys, each an allocation of its own, in the same random order.
fn random_keys(what: &'static str, keys_max: usize, aim: Aim) -> Figure {
    let order = shuffled(KEYS);
    let (table, space) = (Table::new(keys_max), Space::new("d", "k"));
    let identifiers: Vec<Vec<u8>> = (0..KEYS).map(|n| identifier(&name(n))).collect();
    identifiers.iter().for_each(|identifier| decide_one(&table, space, identifier));
    let limiter = governor();
    let keys: Vec<String> = (0..KEYS).map(name).collect();
    keys.iter().for_each(|key| drop(limiter.check_key(key)));
    let (mut ours, mut theirs) = (order.iter().cycle(), order.iter().cycle());
    let Turns { first_ns, second_ns, ratio } = in_turns(
        || timed(|| ours.by_ref().take(1).for_each(|n| decide_one(&table, space, &identifiers[*n]))),
        || timed(|| theirs.by_ref().take(1).for_each(|n| drop(black_box(limiter.check_key(&keys[*n]))))),
    );
    let figure = format!("{first_ns:.0} ns, governor {second_ns:.0} ns");
    Figure { what, figure, ratio: Some(ratio), aim }
}

fn several_keys() -> Vec<Figure> {
    let (table, space) = (Table::new(KEYS), Space::new("d", "k"));
    let alone = identifier(&name(0));
    let of = |count: usize, what: &'static str, aim: Aim| {
        let identifiers: Vec<Vec<u8>> = (0..count).map(|n| identifier(&name(n))).collect();
        let groups = vec![Group::default(); count];
        let several = || {
            let checks: [Check<'_>; 8] = std::array::from_fn(|n| check(space, &identifiers[n % count], n));
            let checks = black_box(&checks[..count]);
            black_box(case(&table, checks, &groups).decide());
        };
        let Turns { first_ns, second_ns, ratio } =
            in_turns(|| timed(several), || timed(|| decide_one(&table, space, &alone)));
        let figure = format!("{first_ns:.0} ns, one {second_ns:.0} ns");
        Figure { what, figure, ratio: Some(ratio), aim }
    };
    vec![
        of(2, "2 keys in a request, against one", Aim::None),
        of(4, "4 keys in a request, against one", Aim::AtMost(3.0)),
        of(8, "8 keys in a request, against one", Aim::None),
    ]
}

/// Nanoseconds for each run on a thread while this many threads run at once; `None` if one of them was interrupted, or if they
/// did not run at the same time.
fn on_threads(threads: usize, run: impl Fn(usize, usize) + Sync) -> Option<f64> {
    let ready = AtomicUsize::new(0);
    let of_thread = |thread: usize| {
        let mut n = 0;
        // All threads are awake when they start: to wake a thread takes as long as all of its runs.
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads {
            std::hint::spin_loop();
        }
        span(|| {
            run(thread, n);
            n += 1;
        })
    };
    let spans: Option<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let of_thread = &of_thread;
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || of_thread(thread))).collect();
        running.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let spans = spans?;
    let (first, last) = (spans.iter().map(|span| span.0).min()?, spans.iter().map(|span| span.0).max()?);
    let whole = spans.iter().map(|span| span.1).max()? - first;
    let are_together = (last - first) * 10 <= whole;
    are_together.then(|| whole.as_nanos() as f64 / DECISIONS as f64)
}

/// How much two threads do, compared with one: twice as much if they are not in each other's way.
fn scaling(what: &'static str, aim: Aim, run: impl Fn(usize, usize) + Sync) -> Figure {
    let Turns { first_ns, second_ns, ratio } = in_turns(|| on_threads(1, &run), || on_threads(2, &run));
    let figure = format!("{second_ns:.0} ns each, alone {first_ns:.0} ns");
    Figure { what, figure, ratio: Some(2.0 * ratio), aim }
}

fn threads() -> Vec<Figure> {
    const OWN_KEYS: usize = 64;
    let (table, space) = (Table::new(KEYS), Space::new("d", "k"));
    let identifiers: Vec<Vec<u8>> = (0..2 * OWN_KEYS).map(|n| identifier(&name(n))).collect();
    let distinct = |thread: usize, n: usize| {
        decide_one(&table, space, &identifiers[thread * OWN_KEYS + n % OWN_KEYS]);
    };
    // The most that the machine itself allows: about as much work in arithmetic, which shares nothing.
    let nothing = |thread: usize, n: usize| {
        let mut state = (thread + n) as u64;
        (0..32).for_each(|_| state = black_box(state.wrapping_mul(6_364_136_223_846_793_005)));
    };
    vec![
        scaling("two threads, arithmetic only, against one", Aim::None, nothing),
        scaling("two threads, distinct keys, against one", Aim::AtLeast(1.8), distinct),
        scaling("two threads, one hot key, against one", Aim::AtLeast(0.7), |_, _| {
            decide_one(&table, space, &identifiers[0]);
        }),
    ]
}

/// From a request to its decision: matching, naming the key, deciding. "Measured" adds everything that is counted about it,
/// with both readings of the clock.
fn whole_requests() -> Vec<Figure> {
    let text = "
domain: edge
descriptors:
  - key: api_key
    rate_limit: {requests_per_unit: 4000000000, unit: day}
  - key: tenant
    descriptors:
      - {key: path, rate_limit: {requests_per_unit: 4000000000, unit: day}}
";
    let loaded = Ruleset::load(&[RuleText { name: "bench".into(), text: text.into() }], &Options::default());
    let Some(rules) = loaded.ruleset else { panic!("{:?}", loaded.problems) };
    let engine = Engine::new(KEYS);
    let hits = HitMetrics::new(&rules, &HitMetrics::default());
    let outcomes = Outcomes::default();
    let of = |count: usize, what: &'static str| {
        let names: Vec<String> = (0..count).map(name).collect();
        let descriptors = names.iter().map(|value| Descriptor {
            entries: [DescriptorEntry { key: "api_key", value }].into_iter().collect(),
            hits: Hits::OfRequest(1),
            limit: None,
        });
        let Ok(request) = Request::new("edge", descriptors.collect(), &Bounds::default()) else {
            panic!("a request within its bounds is refused")
        };
        let plain = || drop(black_box(engine.decide(&rules, black_box(&request), Modes::default(), NOW_MS)));
        let measured = || {
            let began = Instant::now();
            let decision = engine.decide(&rules, black_box(&request), Modes::default(), NOW_MS);
            hits.record(&request, &decision, 0.8);
            outcomes.record(&decision, began.elapsed());
            black_box(decision);
        };
        let Turns { first_ns, second_ns, .. } = in_turns(|| timed(plain), || timed(measured));
        let figure = format!("{first_ns:.0} ns, measured {second_ns:.0} ns");
        Figure { what, figure, ratio: None, aim: Aim::None }
    };
    vec![of(1, "from a request to its decision, 1 descriptor"), of(4, "from a request to its decision, 4 descriptors")]
}
