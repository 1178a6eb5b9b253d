//! The cost of a decision as everything around it grows: keys, rules, descriptors, regions, processes.
//!
//! `cargo bench --bench growth` takes some minutes and 3 GB, and prints a Markdown table for each. A decision is everything
//! from a request to its answer, before that is written in any format: to find rules, name keys, judge and charge. Keys are
//! asked for at random, so that the larger tables are seldom in a cache. Requests are prepared just before, outside of the
//! measured time. The cases of a table take turns, a round each, and the figures are the lower quartiles of many short
//! batches: so they contain little of what else the machine does.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use smallvec::SmallVec;
use tidegate::clock::Now;
use tidegate::engine::decide::{Cause, StoreAccess, StoreView, StoreViews};
use tidegate::engine::key::{IdentifierBuffer, Key, OwnedKey};
use tidegate::engine::reach::{Layers, RegionIndex, Store};
use tidegate::engine::table::cell::CellState;
use tidegate::engine::table::foreign::Counts;
use tidegate::engine::table::foreign_ledger::ForeignSum;
use tidegate::engine::table::ledger::KeyAnswer;
use tidegate::engine::{Attempt, Engine, Modes};
use tidegate::request::{Bounds, Descriptor, DescriptorEntry, Hits, Request};
use tidegate::rules::tree::Identifier;
use tidegate::rules::{Options, RuleText, Ruleset};
use tidegate::simulate::process::KeyHits;
use tidegate::simulate::world::{Setup, World};

const NOW_MS: u64 = 1_800_000_000_000;
const MONO_MS: u64 = 1000;
const NOW: Now = Now { wall_ms: NOW_MS, mono_us: MONO_MS * 1000 };
const LIMIT: &str = "rate_limit: {requests_per_unit: 4000000000, unit: day}";
const SECOND_US: u64 = 1_000_000;
const ROUNDS: usize = 15;
const BATCHES: usize = 200;
/// Requests that are prepared at once.
const BATCH: usize = 128;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

/// An engine with its keys, and requests for them.
struct GrowthCase {
    engine: Engine,
    rules: Ruleset,
    key: &'static str,
    /// How many different values are asked for.
    values: usize,
    value: fn(usize) -> String,
    descriptors: usize,
    times_ns: Vec<f64>,
}

fn ruleset(descriptors: impl Iterator<Item = String>) -> Ruleset {
    let mut text = String::from("domain: d\ndescriptors:\n");
    descriptors.for_each(|descriptor| text.push_str(&format!("  - {{{descriptor}, {LIMIT}}}\n")));
    let loaded = Ruleset::load(&[RuleText { name: "bench".into(), text }], &Options::default());
    match loaded.ruleset {
        Some(ruleset) => ruleset,
        None => panic!("{:?}", loaded.problems),
    }
}

/// 32 bytes.
fn identifier(n: usize) -> String {
    format!("{n:032x}")
}

impl GrowthCase {
    /// A case with one rule that leaves its values open, so that each value is a key.
    fn of_keys(values: usize, descriptors: usize, layers: Layers) -> GrowthCase {
        let rules = ruleset(["key: api_key".to_owned()].into_iter());
        let engine = Engine::with(values.max(1000), layers);
        let case =
            GrowthCase { engine, rules, key: "api_key", values, value: identifier, descriptors, times_ns: Vec::new() };
        case.fill();
        case
    }

    fn of_rules(count: usize) -> GrowthCase {
        let value = |n| format!("/service-{n:06}");
        let rules = ruleset((0..count).map(|n| format!("key: path, value: {}", value(n))));
        let engine = Engine::new(count.max(1000));
        let case =
            GrowthCase { engine, rules, key: "path", values: count, value, descriptors: 1, times_ns: Vec::new() };
        case.fill();
        case
    }

    /// Asks for everything once.
    fn fill(&self) {
        for n in 0..self.values {
            self.decide(&self.request(&[(self.value)(n)]), StoreAccess::Never(Cause::Outage));
            if n % BATCH == 0 {
                self.flush();
            }
        }
        assert_eq!(self.engine.stats().keys, self.values);
    }

    fn request<'r>(&'r self, values: &'r [String]) -> Request<'r> {
        let descriptor = |value: &'r String| Descriptor {
            entries: [DescriptorEntry { key: self.key, value }].into_iter().collect(),
            hits: Hits::OfRequest(1),
            limit: None,
        };
        let descriptors: SmallVec<[Descriptor<'_>; 2]> = values.iter().map(descriptor).collect();
        match Request::new("d", descriptors, &Bounds::default()) {
            Ok(request) => request,
            Err(refused) => panic!("{refused}"),
        }
    }

    fn decide(&self, request: &Request<'_>, asking: StoreAccess) {
        let origin = StoreView::new(1, asking);
        let views = StoreViews { mono_ms: MONO_MS, origin, ..StoreViews::ALONE };
        match self.engine.attempt(&self.rules, request, Modes::default(), NOW_MS, &views) {
            Attempt::Decided(decision) => assert!(!decision.is_over),
            Attempt::Asks(store_request) => panic!("memory has to decide: {store_request:?}"),
        }
    }

    /// Does what a process does every 50 ms: takes counts that have grown, to tell them.
    fn flush(&self) {
        self.engine.table().ledger(Store::Origin).unsent(NOW).for_each(drop);
    }

    fn round(&mut self, random: &mut Random) {
        for _ in 0..BATCHES {
            let draw = |_| (0..self.descriptors).map(|_| (self.value)(random.below(self.values))).collect();
            let values: Vec<Vec<String>> = (0..BATCH).map(draw).collect();
            let requests: Vec<Request<'_>> = values.iter().map(|values| self.request(values)).collect();
            let began = Instant::now();
            requests.iter().for_each(|request| self.decide(request, StoreAccess::Allowed));
            let elapsed = began.elapsed();
            drop(requests);
            self.times_ns.push(elapsed.as_nanos() as f64 / BATCH as f64);
            self.flush();
        }
    }

    fn lower_quartile_ns(&mut self) -> f64 {
        self.times_ns.sort_by(f64::total_cmp);
        self.times_ns[self.times_ns.len() / 4]
    }

    /// Brings in the origin's answer for every key, and the counts of other regions.
    fn hear(&self, regions: u32) {
        let table = self.engine.table();
        let rule = self.rules.domains().flat_map(|domain| domain.rules()).next();
        let Some((space, terms)) = rule.and_then(|rule| Some((rule.space, rule.limits().first()?.terms))) else {
            panic!("there is a rule")
        };
        for n in 0..self.values {
            let mut buffer = IdentifierBuffer::default();
            buffer.push(&(self.value)(n));
            let range = buffer.finish();
            let key = Key::new(space, &terms, buffer.get(range));
            let sequence = NOW_MS / terms.window_ms;
            let cell = CellState { sequence, epoch: 1, sum: 1, field: 1, holders: 1, ..CellState::default() };
            let answer =
                KeyAnswer { cells: &[cell], admitted: 0, denied: None, is_strict: false, is_cut_off: false, jitter: 0 };
            let owned = OwnedKey::new(&key, false, regions > 1);
            assert!(table.ledger(Store::Origin).settle(&owned, &terms, answer, NOW).is_some(), "the key is there");
            for region in 1..u64::from(regions) {
                let others = Counts { hits: 5 * region, refunds: 0 };
                let sum = ForeignSum { sequence, others, row: Counts::default(), told: Counts::default() };
                table.foreign_ledger().import(&key, &terms, &sum, NOW_MS);
            }
        }
    }
}

/// Runs the cases in turns. Returns the time of each.
fn measure(name: &str, cases: &mut [GrowthCase]) -> Vec<f64> {
    eprintln!("{name}");
    let mut random = Random(1);
    for _ in 0..ROUNDS {
        cases.iter_mut().for_each(|case| case.round(&mut random));
    }
    cases.iter_mut().map(GrowthCase::lower_quartile_ns).collect()
}

/// A number with commas between thousands.
fn number(n: usize) -> String {
    let digits = n.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|part| std::str::from_utf8(part).ok()).collect();
    parts.join(",")
}

fn table(what: &str, counts: &[usize], times_ns: &[f64]) {
    println!("\n| {what} | ns per decision | ratio |\n|---:|---:|---:|");
    for (count, time_ns) in counts.iter().zip(times_ns) {
        println!("| {} | {time_ns:.0} | {:.2} |", number(*count), time_ns / times_ns[0]);
    }
}

fn keys() {
    let counts = [1000, 10_000, 100_000, 1_000_000, 10_000_000];
    let mut cases: Vec<GrowthCase> = counts.iter().map(|keys| GrowthCase::of_keys(*keys, 1, Layers::ALONE)).collect();
    table("keys", &counts, &measure("keys", &mut cases));
}

fn rules() {
    let counts = [10, 100, 1000, 10_000, 100_000];
    let mut cases: Vec<GrowthCase> = counts.iter().map(|count| GrowthCase::of_rules(*count)).collect();
    table("rules", &counts, &measure("rules", &mut cases));
}

fn descriptors() {
    let counts = [1, 2, 4, 8, 16, 32];
    let mut cases: Vec<GrowthCase> =
        counts.iter().map(|count| GrowthCase::of_keys(1000, *count, Layers::ALONE)).collect();
    let times_ns = measure("descriptors", &mut cases);
    println!("\n| descriptors | ns per decision | ratio | ns per descriptor |\n|---:|---:|---:|---:|");
    for (count, time_ns) in counts.iter().zip(&times_ns) {
        println!("| {count} | {time_ns:.0} | {:.2} | {:.0} |", time_ns / times_ns[0], time_ns / *count as f64);
    }
}

fn regions() {
    let counts = [1_u32, 2, 5, 10];
    let mut cases: Vec<GrowthCase> = counts
        .iter()
        .map(|&regions| {
            let place = RegionIndex { region: 0, regions };
            let layers = Layers { is_regional: true, is_global: regions > 1, owner: None, place, slack_permille: 100 };
            let case = GrowthCase::of_keys(10_000, 1, layers);
            case.hear(regions);
            case
        })
        .collect();
    let times_ns = measure("regions", &mut cases);
    println!(
        "\n| regions | ns per decision | ratio | rows published a second, each region | rows imported a second, each process |"
    );
    println!("|---:|---:|---:|---:|---:|");
    for (&regions, time_ns) in counts.iter().zip(&times_ns) {
        let (published, imported) = rows(regions as usize);
        println!("| {regions} | {time_ns:.0} | {:.2} | {published:.0} | {imported:.0} |", time_ns / times_ns[0]);
    }
}

/// Rows that a region publishes and that a process imports in a second while 100 keys are asked for in all regions.
fn rows(regions: usize) -> (f64, f64) {
    const KEYS: usize = 100;
    const SECONDS: u64 = 20;
    // As much as all regions ask for: each soon has counts that the others should know of.
    let limit = 100 * regions as u64;
    let setup = Setup { regions, ..Setup::new(1, 1, &format!("{{requests_per_unit: {limit}, unit: minute}}")) };
    let world = simulated(setup, KEYS, 500 * regions as u64, SECONDS);
    let counts = world.processes.iter().filter_map(|process| Some(&process.exchange.as_ref()?.counts));
    let (published, imported) = counts.fold((0, 0), |(published, imported), counts| {
        (published + counts.published_rows.load(Relaxed), imported + counts.imported_rows.load(Relaxed))
    });
    let each = |rows: u64| rows as f64 / (regions as u64 * SECONDS) as f64;
    (each(published), each(imported))
}

/// A world with requests for random keys to random processes.
fn simulated(setup: Setup, keys: usize, per_second: u64, seconds: u64) -> World {
    let mut world = World::new(setup);
    let processes = world.processes.len() as u64;
    // Requests start after the first heartbeats.
    for n in 0..per_second * seconds {
        let at_us = SECOND_US / 100 + n * SECOND_US / per_second;
        let process = world.random().below(processes) as usize;
        let key = world.random().below(keys as u64) as usize;
        world.request_at(at_us, process, KeyHits { key, hits: 1 });
    }
    world.run_until(seconds * SECOND_US);
    world
}

fn processes() {
    const SECONDS: u64 = 10;
    const PER_SECOND: u64 = 10_000;
    eprintln!("processes");
    println!(
        "\n| processes | keys | Redis commands per request | cells per request | commands a second, each process \
         | requests that wait | simulated, ns per request |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for keys in [1, 1000] {
        for processes in [1, 10, 100] {
            // Such that the requests use nine tenths of the limit.
            let limit = PER_SECOND * 10 / 9 * 60 / keys as u64;
            let setup = Setup::new(1, processes, &format!("{{requests_per_unit: {limit}, unit: minute}}"));
            let began = Instant::now();
            let world = simulated(setup, keys, PER_SECOND, SECONDS);
            let elapsed_ns = began.elapsed().as_nanos() as f64;
            let (oracle, requests) = (&world.oracle, world.oracle.requests as f64);
            println!(
                "| {processes} | {} | {:.4} | {:.4} | {:.1} | {:.2} % | {:.0} |",
                number(keys),
                oracle.calls as f64 / requests,
                oracle.cells as f64 / requests,
                oracle.calls as f64 / (SECONDS * processes as u64) as f64,
                100.0 * oracle.asked as f64 / requests,
                elapsed_ns / requests
            );
        }
    }
}

fn main() {
    keys();
    rules();
    descriptors();
    regions();
    processes();
}
