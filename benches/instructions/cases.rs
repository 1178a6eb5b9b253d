//! The cases that are counted. A case is prepared once and then run again and again; only the runs are counted.

use std::hint::black_box;

use prost::Message;
use tidegate::engine::decide::{self, Check, Group, StoreViews};
use tidegate::engine::key::{IdentifierBuffer, Key};
use tidegate::engine::table::Table;
use tidegate::engine::{Engine, Modes};
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry as WireEntry;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate::request::{Bounds, Descriptor, DescriptorEntry, Hits, Request};
use tidegate::rules::limit::{Space, Terms};
use tidegate::rules::policy::Algorithm;
use tidegate::rules::tree::Identifier;
use tidegate::rules::{Options, RuleText, Ruleset};
use tidegate::server::answer_options::{AnswerOptions, ReasonHeader};
use tidegate::server::rls::read;
use tidegate::server::rls::write::Answer;

pub struct Case {
    pub name: &'static str,
    /// Prepares the case, and runs it this many times.
    pub run: fn(usize),
}

/// Only instructions in here are counted: valgrind knows the function by its name.
#[inline(never)]
fn counted(times: usize, work: &mut dyn FnMut(usize)) {
    (0..times).for_each(work);
}

/// Warms up with some runs that are not counted, so that everything is where it will be.
fn repeat(times: usize, mut work: impl FnMut(usize)) {
    (0..1000).for_each(&mut work);
    counted(times, &mut work);
}

pub const CASES: &[Case] = &[
    Case { name: "match-10-rules", run: |times| match_values(10, times) },
    Case { name: "match-10000-rules", run: |times| match_values(10_000, times) },
    Case { name: "match-nested", run: match_nested },
    Case { name: "match-1000-prefixes", run: |times| match_wildcards("/service-N/*", times) },
    Case { name: "match-1000-suffixes", run: |times| match_wildcards("*/service-N", times) },
    Case { name: "match-1000-middles", run: |times| match_wildcards("/v*/service-N/*", times) },
    Case { name: "decide-hot-key", run: |times| decide_keys(1, times) },
    Case { name: "decide-4-keys", run: |times| decide_keys(4, times) },
    Case { name: "decide-1000-keys", run: decide_many },
    Case { name: "request-1-descriptor", run: |times| request(1, times) },
    Case { name: "request-4-descriptors", run: |times| request(4, times) },
    Case { name: "answer-1-descriptor", run: |times| answer(1, times) },
    Case { name: "answer-4-descriptors", run: |times| answer(4, times) },
];

const NOW_MS: u64 = 1_800_000_000_000;
const LIMIT: &str = "rate_limit: {requests_per_unit: 4000000000, unit: day}";
const TERMS: Terms =
    Terms { limit: u32::MAX, window_ms: 86_400_000, algorithm: Algorithm::SlidingWindow, burst: u32::MAX };

fn ruleset(descriptors: impl Iterator<Item = String>) -> Ruleset {
    let mut text = String::from("domain: d\ndescriptors:\n");
    descriptors.for_each(|descriptor| text.push_str(&format!("  - {{{descriptor}}}\n")));
    let loaded = Ruleset::load(&[RuleText { name: "bench".into(), text }], &Options::default());
    match loaded.ruleset {
        Some(ruleset) => ruleset,
        None => panic!("{:?}", loaded.problems),
    }
}

/// Looks up the lists of entries in turns.
fn match_each(rules: &Ruleset, requests: &[Vec<DescriptorEntry<'_>>], times: usize) {
    repeat(times, |turn| {
        let mut identifier = IdentifierBuffer::default();
        let entries = &requests[turn % requests.len()];
        let rule = rules.domain(black_box("d")).and_then(|domain| domain.find(entries, &mut identifier));
        assert!(black_box(rule).is_some());
    });
}

/// A hundred values, spread over all `count` of them: always as many are asked for.
fn spread(count: usize, value: impl Fn(usize) -> String) -> Vec<String> {
    (0..100).map(|n| value(n * 7919 % count)).collect()
}

fn match_values(count: usize, times: usize) {
    let value = |n| format!("/service-{n:05}/items");
    let rules = ruleset((0..count).map(|n| format!("key: path, value: {}, {LIMIT}", value(n))));
    let values = spread(count, value);
    let requests: Vec<_> = values.iter().map(|value| vec![DescriptorEntry { key: "path", value }]).collect();
    match_each(&rules, &requests, times);
}

fn match_nested(times: usize) {
    let value = |n| format!("tenant-{n:05}");
    let below = format!("descriptors: [{{key: path, {LIMIT}}}]");
    let rules = ruleset((0..100).map(|n| format!("key: tenant, value: {}, {below}", value(n))));
    let values = spread(100, value);
    let entries =
        |value| vec![DescriptorEntry { key: "tenant", value }, DescriptorEntry { key: "path", value: "/items" }];
    let requests: Vec<_> = values.iter().map(|value| entries(value.as_str())).collect();
    match_each(&rules, &requests, times);
}

fn match_wildcards(pattern: &str, times: usize) {
    let text = |n: usize| pattern.replace('N', &n.to_string());
    let rules = ruleset((0..1000).map(|n| format!("key: path, value: '{}', {LIMIT}", text(n))));
    let values = spread(1000, |n| text(n).replace('*', "x1"));
    let requests: Vec<_> = values.iter().map(|value| vec![DescriptorEntry { key: "path", value }]).collect();
    match_each(&rules, &requests, times);
}

/// 32 bytes.
fn name(n: usize) -> String {
    format!("{n:032x}")
}

fn identifier(name: &str) -> Vec<u8> {
    let mut buffer = IdentifierBuffer::default();
    buffer.push(name);
    let range = buffer.finish();
    buffer.get(range).to_vec()
}

fn check(identifier: &[u8], group: usize) -> Check<'_> {
    Check { group, ..Check::local(Key::new(Space::new("d", "k"), &TERMS, identifier), TERMS) }
}

fn decision<'a>(table: &'a Table, checks: &'a [Check<'a>], groups: &'a [Group]) -> decide::Case<'a> {
    decide::Case { table, checks, groups, is_shadow: false, now_ms: NOW_MS, views: &StoreViews::ALONE }
}

fn decide_keys(count: usize, times: usize) {
    let table = Table::new(1_000_000);
    let identifiers: Vec<Vec<u8>> = (0..count).map(|n| identifier(&name(n))).collect();
    let checks: Vec<Check<'_>> = identifiers.iter().enumerate().map(|(n, it)| check(it, n)).collect();
    let groups = vec![Group::default(); count];
    repeat(times, |_| {
        black_box(decision(&table, black_box(&checks), &groups).decide());
    });
}

fn decide_many(times: usize) {
    let table = Table::new(1_000_000);
    let identifiers: Vec<Vec<u8>> = (0..1000).map(|n| identifier(&name(n))).collect();
    let checks: Vec<[Check<'_>; 1]> = identifiers.iter().map(|it| [check(it, 0)]).collect();
    repeat(times, |turn| {
        let check = &checks[turn % checks.len()];
        black_box(decision(&table, black_box(check), &[Group::default()]).decide());
    });
}

fn request(descriptors: usize, times: usize) {
    let rules = ruleset([format!("key: api_key, {LIMIT}")].into_iter());
    let engine = Engine::new(1_000_000);
    let names: Vec<String> = (0..descriptors).map(name).collect();
    let descriptors = names.iter().map(|value| Descriptor {
        entries: [DescriptorEntry { key: "api_key", value }].into_iter().collect(),
        hits: Hits::OfRequest(1),
        limit: None,
    });
    let Ok(request) = Request::new("d", descriptors.collect(), &Bounds::default()) else { panic!("it is well formed") };
    repeat(times, |_| {
        black_box(engine.decide(&rules, black_box(&request), Modes::default(), NOW_MS));
    });
}

/// From the bytes of a message to the bytes of its answer.
fn answer(descriptors: usize, times: usize) {
    let rules = ruleset([format!("key: api_key, {LIMIT}")].into_iter());
    let engine = Engine::new(1_000_000);
    let descriptors = (0..descriptors).map(|n| RateLimitDescriptor {
        entries: vec![WireEntry { key: "api_key".into(), value: name(n) }],
        ..RateLimitDescriptor::default()
    });
    let message = RateLimitRequest { domain: "d".into(), descriptors: descriptors.collect(), hits_addend: 0 };
    let message = message.encode_to_vec();
    let options = AnswerOptions {
        headers: None,
        request_headers: None,
        retry_after: true,
        reason_header: ReasonHeader::Denied,
        problem_body: false,
        dynamic_metadata: false,
    };
    repeat(times, |_| {
        let Ok(request) = read::request(black_box(&message), &Bounds::default()) else { panic!("it is well formed") };
        let decision = engine.decide(&rules, &request, Modes::default(), NOW_MS);
        black_box(Answer::write(&decision, &options, None));
    });
}
