//! The engine as its callers meet it: rules in YAML, requests, time as an argument.

mod concurrency;
mod few;
mod model;
mod policy;
mod scenarios;
pub(crate) mod seed;
mod steps;
mod table;
mod twins;
mod weight;

use crate::engine::{Decision, Engine, Modes, StatusKind};
use crate::request::{Bounds, Descriptor, DescriptorEntry, Hits, LimitOverride, Request};
use crate::rules::{Options, RuleText, Ruleset};
use crate::simulate::random::Random;

/// A whole number of minutes, hours and days, so that windows start where tests expect them to.
pub(super) const START_MS: u64 = 20_000 * 24 * 60 * 60 * 1000;

pub(super) fn ruleset(yaml: &str) -> Ruleset {
    let loaded = Ruleset::load(&[RuleText { name: "test.yaml".into(), text: yaml.to_owned() }], &Options::default());
    loaded.ruleset.unwrap_or_else(|| panic!("{:#?}", loaded.problems))
}

/// One descriptor to ask about.
#[derive(Clone, Debug)]
pub(super) struct Ask<'a> {
    /// As `k=v,k2=v2`.
    pub(super) entries: &'a str,
    /// [`ask`] asks for one of the request's own.
    pub(super) hits: Hits,
    /// Tests set it where they try overrides.
    pub(super) limit: Option<LimitOverride>,
}

pub(super) fn ask(entries: &str) -> Ask<'_> {
    Ask { entries, hits: Hits::OfRequest(1), limit: None }
}

pub(super) fn ask_for(entries: &str, hits: Hits) -> Ask<'_> {
    Ask { entries, hits, limit: None }
}

pub(super) fn request<'a>(domain: &'a str, asks: &[Ask<'a>]) -> Request<'a> {
    let descriptors = asks.iter().map(|ask| Descriptor {
        entries: ask
            .entries
            .split(',')
            .filter_map(|entry| entry.split_once('='))
            .map(|(key, value)| DescriptorEntry { key, value })
            .collect(),
        hits: ask.hits,
        limit: ask.limit,
    });
    Request::new(domain, descriptors.collect(), &Bounds { descriptors_max: 1000, entries_max: 16 }).unwrap()
}

/// An engine with rules, asked at chosen moments.
pub(super) struct Bench {
    /// Shares its counts with nobody.
    pub(super) engine: Engine,
    /// Loaded from the test's YAML.
    pub(super) rules: Ruleset,
    /// All off, unless a test sets them.
    pub(super) modes: Modes,
}

impl Bench {
    pub(super) fn new(yaml: &str) -> Bench {
        Bench::seeded(yaml, 100_000, seed::seed())
    }

    /// A bench whose table hashes as a seed says.
    pub(super) fn seeded(yaml: &str, keys_max: usize, seed: u64) -> Bench {
        let engine = Engine::new(keys_max).hashed_by(Random::new(seed).hasher());
        Bench { engine, rules: ruleset(yaml), modes: Modes::default() }
    }

    pub(super) fn decide(&self, asks: &[Ask<'_>], at_ms: u64) -> Decision<'_> {
        self.engine.decide(&self.rules, &request("d", asks), self.modes, START_MS + at_ms)
    }

    /// The verdict on each descriptor in short: `OK 9`, `OVER 0`, `-` without a limit, `*` when unlimited.
    pub(super) fn said(&self, asks: &[Ask<'_>], at_ms: u64) -> String {
        said(&self.decide(asks, at_ms))
    }
}

pub(super) fn said(decision: &Decision<'_>) -> String {
    let status = |status: &crate::engine::Status<'_>| match &status.kind {
        StatusKind::Unmatched => "-".to_owned(),
        StatusKind::Unlimited => "*".to_owned(),
        StatusKind::Limited(limited) => {
            format!("{} {}", if status.is_over { "OVER" } else { "OK" }, limited.verdict.remaining)
        }
    };
    let statuses: Vec<String> = decision.statuses.iter().map(status).collect();
    format!("{}: {}", if decision.is_over { "OVER" } else { "OK" }, statuses.join(", "))
}
