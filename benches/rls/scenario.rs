//! What is asked of the servers, and the results that we aim at.

use crate::bound::Bound;
use crate::figures::Figure;
use crate::servers::{TIDEGATE, TIDEGATE_WITH_STORES, TONIC};

/// As many keys as Tidegate holds by default.
pub const MANY_KEYS: u64 = 1_000_000;

/// One load, under which all servers take turns.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub title: &'static str,
    pub load: Load,
    pub limit: Limit,
    pub keys: u64,
    pub zipf: Option<f64>,
    pub descriptors: u64,
    pub connections: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// As fast as answers come.
    Full,
    /// Half of what the constant tonic server answers at most.
    HalfOfTonic,
    /// As fast as answers come, by a client that is not ours.
    H2load,
}

/// How near the requests come to the limit of their rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// They never come near it.
    Far,
    /// About half of them pass, and never many more.
    Near,
    /// Nearly none of them pass.
    Exceeded,
}

/// What the ratio between two servers should be.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    pub of: &'static str,
    pub to: &'static str,
    pub figure: Figure,
    pub bound: Bound,
}

const HOT: Scenario = Scenario {
    name: "hot",
    title: "one hot key",
    load: Load::Full,
    limit: Limit::Far,
    keys: 1,
    zipf: None,
    descriptors: 1,
    connections: 4,
};

/// The scenarios with a million keys come last, so that the others do not run with full tables.
pub const SCENARIOS: [Scenario; 10] = [
    HOT,
    Scenario { name: "h2load", title: "one hot key, asked by h2load", load: Load::H2load, ..HOT },
    Scenario { name: "connections-1", title: "one hot key, 1 connection", connections: 1, ..HOT },
    Scenario { name: "connections-2", title: "one hot key, 2 connections", connections: 2, ..HOT },
    // With one key, all four descriptors would be the same.
    Scenario { name: "descriptors-4", title: "4 descriptors, 1000 keys", descriptors: 4, keys: 1000, ..HOT },
    Scenario { name: "near", title: "one key near its limit", limit: Limit::Near, ..HOT },
    Scenario { name: "denied", title: "one key, mostly denied", limit: Limit::Exceeded, ..HOT },
    Scenario { name: "latency", title: "one hot key, half of tonic's saturation", load: Load::HalfOfTonic, ..HOT },
    Scenario { name: "uniform", title: "1M keys, all alike", keys: MANY_KEYS, ..HOT },
    Scenario { name: "zipf", title: "1M keys, zipf 1.1", keys: MANY_KEYS, zipf: Some(1.1), ..HOT },
];

impl Scenario {
    pub fn named(name: &str) -> Option<&'static Scenario> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    /// The aims of the project. Whether they are met depends on the machine.
    pub fn aims(&self) -> Vec<Aim> {
        let aim = |of, to, figure, bound| Aim { of, to, figure, bound };
        if self.load == Load::HalfOfTonic {
            return vec![aim(TIDEGATE, TONIC, Figure::P99Ms, Bound::AtMost(1.0))];
        }
        let mut aims = match self.descriptors {
            1 => vec![
                aim(TIDEGATE, TONIC, Figure::RequestsPerS, Bound::AtLeast(2.0)),
                aim(TIDEGATE, TONIC, Figure::ServerUs, Bound::AtMost(0.5)),
            ],
            _ => vec![aim(TIDEGATE, TONIC, Figure::RequestsPerS, Bound::AtLeast(1.6))],
        };
        aims.push(aim(TIDEGATE_WITH_STORES, TIDEGATE, Figure::RequestsPerS, Bound::AtLeast(0.95)));
        aims
    }
}

/// A rule by which a server decides: every value of a key has this limit.
#[derive(Clone, Debug)]
pub struct Rule {
    pub key: String,
    /// `None`: a limit that nobody reaches.
    pub limit_per_s: Option<u64>,
}

/// All keys have the same length, so that all requests have it, too.
impl Rule {
    pub fn far() -> Rule {
        Rule { key: "remote_address".into(), limit_per_s: None }
    }

    pub fn exceeded() -> Rule {
        Rule { key: "mostly__denied".into(), limit_per_s: Some(100) }
    }

    fn near(limit: u64) -> Rule {
        Rule { key: format!("near__{limit:08}"), limit_per_s: Some(limit) }
    }

    /// The rule whose limit is nearest to half of the requests. How fast a server is shows only when it runs, so there is a
    /// limit for any speed.
    pub fn near_for(requests_per_s: f64) -> Rule {
        let distance = |limit: &u64| (*limit as f64 - requests_per_s / 2.0).abs();
        let nearest = near_limits().min_by(|one, other| distance(one).total_cmp(&distance(other)));
        Rule::near(nearest.unwrap_or_default())
    }
}

fn near_limits() -> impl Iterator<Item = u64> {
    (0..=22).map(|step| (1000.0 * 2f64.powf(f64::from(step) / 2.0)) as u64)
}

/// The rules of all scenarios, as one file.
pub fn rule_file() -> String {
    let rules = [Rule::far(), Rule::exceeded()].into_iter().chain(near_limits().map(Rule::near));
    let line = |Rule { key, limit_per_s }: Rule| {
        let (limit, unit) = limit_per_s.map_or((4_000_000_000, "year"), |limit| (limit, "second"));
        format!("  - {{key: {key}, rate_limit: {{requests_per_unit: {limit}, unit: {unit}}}}}\n")
    };
    "domain: edge\ndescriptors:\n".to_owned() + &rules.map(line).collect::<String>()
}
