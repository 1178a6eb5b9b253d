//! The figures of a fleet under the traffic of one limit, and the bounds that they should keep.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bound::Bound;
use crate::fleet::Seen;
use crate::traffic::Traffic;
use crate::users::{Class, Users};

/// The default of `TIDEGATE_SLACK`: the share by which any limit may be exceeded.
const SLACK: f64 = 0.1;

pub struct Figures {
    /// In the fleet.
    pub processes: usize,
    /// Hits that each user may have in a window.
    pub limit: u32,
    /// Of the limit, and as long as was measured.
    pub window: Duration,
    /// Number of users.
    pub users: usize,
    /// Those of them who ask for more than their limit.
    pub users_above: usize,
    /// Requests that were measured.
    pub requests: u64,
    /// Requests that were answered without Redis because it took too long.
    pub outages: u64,
    /// The figures, in the order of the table.
    pub lines: Vec<Line>,
}

/// A figure with its bound, if there is one.
pub struct Line {
    /// For programs.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// Of figure and bound.
    pub unit: Unit,
    /// Unknown where nothing was asked.
    pub figure: Option<f64>,
    /// The bound that the figure should keep.
    pub bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Percent,
    Times,
    Micros,
    Millis,
    Count,
    Whole,
}

impl Unit {
    fn show(self, figure: f64) -> String {
        let digits = match self {
            Unit::Count => 3,
            Unit::Percent | Unit::Times | Unit::Millis => 2,
            Unit::Micros => 1,
            Unit::Whole => 0,
        };
        format!("{figure:.digits$}{}", self.word())
    }

    fn word(self) -> &'static str {
        match self {
            Unit::Percent => " %",
            Unit::Times => "x",
            Unit::Micros => " us",
            Unit::Millis => " ms",
            Unit::Count | Unit::Whole => "",
        }
    }
}

impl Line {
    fn new(name: &'static str, title: &'static str, unit: Unit, figure: Option<f64>) -> Line {
        Line { name, title, unit, figure, bound: None }
    }

    fn percent(name: &'static str, title: &'static str, share: Option<f64>) -> Line {
        Line::new(name, title, Unit::Percent, share.map(|share| 100.0 * share))
    }

    fn count(name: &'static str, title: &'static str, figure: f64) -> Line {
        Line::new(name, title, Unit::Count, Some(figure))
    }

    fn times(name: &'static str, title: &'static str, figure: f64) -> Line {
        Line::new(name, title, Unit::Times, Some(figure))
    }

    fn millis(name: &'static str, title: &'static str, seen: &Seen, quantile: f64) -> Line {
        Line::new(name, title, Unit::Millis, Some(seen.latency.value_at_quantile(quantile) as f64 / 1e3))
    }

    fn at_most(self, bound: f64) -> Line {
        Line { bound: Some(Bound::AtMost(bound)), ..self }
    }

    pub fn is_met(&self) -> Option<bool> {
        Some(self.bound?.is_met(self.figure?))
    }

    /// `0.31x (<= 0.3x: missed)`.
    pub fn describe(&self) -> String {
        let figure = self.figure.map_or_else(|| "-".to_owned(), |figure| self.unit.show(figure));
        let Some(bound) = self.bound else { return figure };
        let verdict = if self.is_met() == Some(false) { ": missed" } else { "" };
        format!("{figure} ({bound}{}{verdict})", self.unit.word())
    }
}

impl Figures {
    /// `alone` is a process without Redis, `increments` the CPU of INCRBY and EXPIRE.
    pub fn of(
        traffic: &Traffic,
        users: &Users,
        processes: usize,
        seen: &Seen,
        alone: &Seen,
        increments: Duration,
    ) -> Figures {
        let requests = seen.requests_of(&Class::ALL);
        let micros = |cpu: Duration| Some(cpu.as_secs_f64() * 1e6 / requests as f64);
        let per_request = |count: u64| count as f64 / requests as f64;
        let redis_ratio = seen.work.cpu.as_secs_f64() / increments.as_secs_f64();
        let denied_wrongly = seen.ledger.denied_wrongly();
        let lines = vec![
            Line::percent("waited", "requests that wait for Redis", seen.waited(&Class::ALL)),
            Line::percent("waited_below_half", "  users below half", seen.waited(&[Class::BelowHalf])).at_most(1.0),
            Line::percent("waited_from_half", "  from half up to the limit", seen.waited(&[Class::FromHalf])),
            Line::percent("waited_above", "  above the limit", seen.waited(&[Class::Above])),
            Line::new("redis_us", "CPU of Redis per request", Unit::Micros, micros(seen.work.cpu)),
            Line::new("increments_us", "  for INCRBY and EXPIRE", Unit::Micros, micros(increments)),
            Line::times("redis_ratio", "  ratio of both", redis_ratio).at_most(redis_bound(processes, traffic.limit)),
            Line::count("checks", "calls per request: checks", per_request(seen.work.checks)),
            Line::count("replays", "  replays", per_request(seen.work.replays)),
            Line::count("told_cells", "  cells in replays", per_request(seen.work.told_cells)),
            Line::times("worst_window", "worst window / limit", seen.ledger.worst_window()).at_most(1.0 + SLACK),
            Line::times("worst_effective", "worst sliding count / limit", seen.ledger.worst_effective())
                .at_most(1.0 + SLACK),
            Line::new("denied_wrongly", "denied though below the limit", Unit::Whole, Some(denied_wrongly as f64))
                .at_most(0.0),
            Line::millis("p50_ms", "p50", seen, 0.5),
            Line::millis("alone_p50_ms", "  without Redis", alone, 0.5),
            Line::millis("p99_ms", "p99", seen, 0.99),
            Line::millis("alone_p99_ms", "  without Redis", alone, 0.99),
        ];
        Figures {
            processes,
            limit: traffic.limit,
            window: traffic.window,
            users: users.count(),
            users_above: users.count_of(Class::Above),
            requests,
            outages: seen.outages,
            lines,
        }
    }

    pub fn line(&self, name: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.name == name)
    }

    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.window.as_secs_f64()
    }

    pub fn as_json(&self) -> Value {
        let line = |line: &Line| {
            let bound = line.bound.map(|bound| bound.to_string());
            (line.name.to_owned(), json!({ "figure": line.figure, "bound": bound, "is_met": line.is_met() }))
        };
        json!({
            "processes": self.processes,
            "limit": self.limit,
            "users": self.users,
            "users_above": self.users_above,
            "requests": self.requests,
            "requests_per_s": self.requests_per_s(),
            "outages": self.outages,
            "figures": self.lines.iter().map(line).collect::<serde_json::Map<_, _>>(),
        })
    }
}

/// The CPU that Redis may use, against INCRBY and EXPIRE. A larger limit leaves more to memory.
fn redis_bound(processes: usize, limit: u32) -> f64 {
    match (processes, limit) {
        (..=3, 1000..) => 0.3,
        (_, 1000..) => 0.5,
        _ => 1.0,
    }
}
