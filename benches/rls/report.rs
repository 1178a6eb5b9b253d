//! The results of a scenario, for people and programs.

use serde_json::{Value, json};

use crate::figures::{Figure, Run, Spread};
use crate::scenario::{Aim, Scenario};
use crate::servers::{Kind, TIDEGATE, TIDEGATE_WITH_STORES, TONIC};

/// All rounds of a scenario.
pub struct Outcome {
    pub scenario: &'static Scenario,
    pub servers: Vec<Measured>,
    pub notes: Vec<String>,
}

/// One server's rounds.
pub struct Measured {
    pub name: String,
    pub kind: Kind,
    pub command: String,
    pub runs: Vec<Run>,
}

/// One server's rounds compared with another's.
struct Comparison<'a> {
    of: &'a Measured,
    to: &'a Measured,
    aims: Vec<Aim>,
}

impl Comparison<'_> {
    fn ratio(&self, figure: Figure) -> Option<Spread> {
        Spread::of_ratios(&self.of.runs, &self.to.runs, figure)
    }

    fn aim(&self, figure: Figure) -> Option<&Aim> {
        self.aims.iter().find(|aim| aim.figure == figure)
    }

    /// Why the ratios can't say whether an aim is met, however good they look. `None` if they can.
    fn flaw(&self) -> Option<&'static str> {
        let runs = || self.of.runs.iter().chain(&self.to.runs);
        if runs().any(|run| run.lost.is_some()) {
            return Some("a store was not reached");
        }
        // The latency of requests that were never sent is unknown, and would have been the longest.
        let is_late = |run: &Run| run.unsent as f64 > UNSENT_MAX * run.requests as f64;
        runs().any(is_late).then_some("too many requests were due and not sent")
    }

    /// Whether an aim is met. `None` if there is no ratio, or if the ratio has a flaw.
    fn is_met(&self, aim: &Aim) -> Option<bool> {
        let ratio = self.ratio(aim.figure).filter(|_| self.flaw().is_none())?;
        Some(aim.bound.is_met(ratio.median))
    }
}

/// If more than this share of requests has no latency, a 99th percentile is not one.
const UNSENT_MAX: f64 = 0.001;

const NAME: usize = 28;
/// Wide enough for `123,456 (101,234–145,678)`, and for ratios.
const COLUMNS: [usize; 5] = [27, 22, 22, 22, 22];

impl Outcome {
    pub fn measured(&self, name: &str) -> Option<&Measured> {
        self.servers.iter().find(|server| server.name == name)
    }

    /// Compares every server with tonic, and Tidegate with stores with Tidegate alone.
    fn comparisons(&self) -> Vec<Comparison<'_>> {
        let all_aims = self.scenario.aims();
        let compare = |of: &str, to: &str| {
            let aims = all_aims.iter().filter(|aim| aim.of == of && aim.to == to).copied().collect();
            Some(Comparison { of: self.measured(of)?, to: self.measured(to)?, aims })
        };
        let others = self.servers.iter().filter(|server| server.name != TONIC);
        let to_tonic = others.map(|server| compare(&server.name, TONIC));
        to_tonic.chain([compare(TIDEGATE_WITH_STORES, TIDEGATE)]).flatten().collect()
    }

    pub fn print(&self) {
        println!("\n{}: {}", self.scenario.name, self.scenario.title);
        let heads = ["requests/s", "server us/request", "client us/request", "p50 ms", "p99 ms"];
        print_row("", heads.map(str::to_owned));
        for server in &self.servers {
            let cell = |figure: Figure| {
                let digits = if figure == Figure::RequestsPerS { Digits::Thousands } else { Digits::Two };
                describe(Spread::of_runs(&server.runs, figure), digits)
            };
            print_row(&server.name, Figure::ALL.map(cell));
        }
        for comparison in self.comparisons() {
            let name = format!("{} / {}", short(&comparison.of.name), comparison.to.name);
            print_row(&name, Figure::ALL.map(|figure| describe(comparison.ratio(figure), Digits::Two)));
        }
        for comparison in self.comparisons() {
            comparison.aims.iter().for_each(|aim| println!("  {}", describe_aim(&comparison, aim)));
        }
        self.notes.iter().for_each(|note| println!("  {note}"));
    }

    pub fn as_json(&self) -> Value {
        let figures = |of: &dyn Fn(Figure) -> Value| -> Value {
            Figure::ALL.into_iter().map(|figure| (figure.name().to_owned(), of(figure))).collect()
        };
        let server = |server: &Measured| {
            json!({
                "name": server.name,
                "command": server.command,
                "figures": figures(&|figure| json!(Spread::of_runs(&server.runs, figure))),
                "rounds": server.runs,
            })
        };
        let comparison = |comparison: &Comparison<'_>| {
            let ratio = |figure: Figure| {
                let aim = comparison.aim(figure);
                json!({
                    "ratio": comparison.ratio(figure),
                    "aim": aim.map(|aim| aim.bound.to_string()),
                    "is_met": aim.and_then(|aim| comparison.is_met(aim)),
                })
            };
            json!({
                "of": comparison.of.name,
                "to": comparison.to.name,
                "ratios": figures(&ratio),
                "flaw": comparison.flaw(),
            })
        };
        json!({
            "name": self.scenario.name,
            "title": self.scenario.title,
            "servers": self.servers.iter().map(server).collect::<Vec<_>>(),
            "ratios": self.comparisons().iter().map(comparison).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// A name that is short enough for two of them to fit.
fn short(name: &str) -> &str {
    if name == TIDEGATE_WITH_STORES { "Redis and MySQL" } else { name }
}

fn print_row(name: &str, cells: [String; 5]) {
    let cells = cells.iter().zip(COLUMNS).map(|(cell, width)| format!("{cell:>width$}"));
    println!("  {name:NAME$}{}", cells.collect::<String>());
}

#[derive(Clone, Copy)]
enum Digits {
    Thousands,
    Two,
}

fn describe(spread: Option<Spread>, digits: Digits) -> String {
    let Some(Spread { median, min, max }) = spread else { return "-".into() };
    let figure = |value: f64| match digits {
        Digits::Thousands => thousands(value),
        Digits::Two => format!("{value:.2}"),
    };
    format!("{} ({}–{})", figure(median), figure(min), figure(max))
}

/// `12,345`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let first = digits.len() % 3;
    let groups = digits.as_bytes()[first..].chunks(3).map(String::from_utf8_lossy);
    let head = (first > 0).then(|| digits[..first].into());
    head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
}

fn describe_aim(comparison: &Comparison<'_>, aim: &Aim) -> String {
    let what = match aim.figure {
        Figure::RequestsPerS => "requests/s",
        Figure::ServerUs => "server CPU per request",
        Figure::ClientUs => "client CPU per request",
        Figure::P50Ms => "p50",
        Figure::P99Ms => "p99",
    };
    let start = format!("aim: {what} of {} {} of {}", aim.of, aim.bound, aim.to);
    let Some(ratio) = comparison.ratio(aim.figure) else { return format!("{start}: not measured") };
    let verdict = match comparison.is_met(aim) {
        Some(true) => "met".into(),
        Some(false) => "missed".into(),
        None => format!("can't be said, as {}", comparison.flaw().unwrap_or("it is unknown")),
    };
    format!("{start}: {verdict}, {:.2}", ratio.median)
}
