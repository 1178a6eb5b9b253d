//! Servers taking turns under one load.

use std::time::Duration;

use anyhow::{Context, ensure};

use crate::client::{Ask, fill};
use crate::figures::{Figure, Run, Spread};
use crate::report::{Measured, Outcome};
use crate::scenario::{Limit, Load, MANY_KEYS, Rule, Scenario};
use crate::servers::{Kind, Server, TONIC};

/// At the beginning of each turn, connections are new and caches are full of the server before. This long is not counted.
const WARMUP: Duration = Duration::from_millis(200);
/// The warm-up if a limit is reached: until then, requests pass on what was left of the limit before.
const WINDOW: Duration = Duration::from_secs(1);
/// By which factor the requests that pass in a second may differ from the limit: a sliding window weighs the window before, and
/// so is not exact.
const INEXACT: f64 = 1.5;
const SATURATION_ROUNDS: u32 = 3;
/// If the client's threads are busy for more than this share of their time, they limit the figures.
const BUSY: f64 = 0.9;

pub struct Rounds<'a> {
    servers: &'a [Server],
    count: u32,
    duration: Duration,
    /// Whether servers were asked for many keys already.
    is_filled: bool,
}

impl<'a> Rounds<'a> {
    pub fn new(servers: &'a [Server], count: u32, duration: Duration) -> Rounds<'a> {
        Rounds { servers, count, duration, is_filled: false }
    }

    pub fn take(&mut self, scenario: &'static Scenario) -> anyhow::Result<Outcome> {
        if scenario.keys == MANY_KEYS && !self.is_filled {
            self.fill(scenario)?;
        }
        let rate = match scenario.load {
            Load::HalfOfTonic => Some(self.half_of_tonic(scenario)?),
            Load::Full | Load::H2load => None,
        };
        let rule = |server| self.warm_up(scenario, server, rate);
        let rules = self.servers.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        let asks: Vec<Ask<'_>> = rules.iter().map(|rule| self.ask(scenario, rule, rate)).collect();
        let mut runs = vec![Vec::new(); self.servers.len()];
        for round in 0..self.count {
            for turn in 0..self.servers.len() {
                // Every other round goes the other way round, so that no server always comes after the same one.
                let at = if round % 2 == 0 { turn } else { self.servers.len() - 1 - turn };
                eprintln!("{}: round {} of {}, {}", scenario.name, round + 1, self.count, self.servers[at].name);
                let run = asks[at].run(&self.servers[at])?;
                check(asks[at].rule, &self.servers[at], &run)?;
                runs[at].push(run);
            }
        }
        let notes = self.notes(scenario, &runs, rate);
        let measured = |((server, ask), runs): ((&Server, &Ask<'_>), Vec<Run>)| Measured {
            name: server.name.clone(),
            kind: server.kind,
            command: ask.command_line(server),
            runs,
        };
        let servers = self.servers.iter().zip(&asks).zip(runs).map(measured).collect();
        Ok(Outcome { scenario, servers, notes })
    }

    fn ask<'b>(&self, scenario: &'b Scenario, rule: &'b Rule, rate: Option<f64>) -> Ask<'b> {
        let warmup = if rule.limit_per_s.is_some() { WINDOW } else { WARMUP };
        Ask { scenario, rule, descriptors: scenario.descriptors, rate, warmup, duration: self.duration }
    }

    /// Makes the keys of all servers but the constant ones, which hold none.
    fn fill(&mut self, scenario: &Scenario) -> anyhow::Result<()> {
        for server in self.servers.iter().filter(|server| server.kind != Kind::Constant) {
            eprintln!("{}: making the keys of {}", scenario.name, server.name);
            fill(server, scenario)?;
        }
        self.is_filled = true;
        Ok(())
    }

    /// The load for all servers: half of what the constant server can do at this time on this machine.
    fn half_of_tonic(&self, scenario: &Scenario) -> anyhow::Result<f64> {
        let tonic = self.servers.iter().find(|server| server.name == TONIC).context("no tonic server")?;
        let full = Scenario { load: Load::Full, ..*scenario };
        let rule = Rule::far();
        let ask = self.ask(&full, &rule, None);
        let mut runs = Vec::new();
        for round in 1..=SATURATION_ROUNDS {
            eprintln!("{}: saturation of {TONIC}, round {round} of {SATURATION_ROUNDS}", scenario.name);
            runs.push(ask.run(tonic)?);
        }
        let saturation = Spread::of_runs(&runs, Figure::RequestsPerS).context("no rounds")?;
        Ok((saturation.median / 2.0).round())
    }

    /// Chooses the rule by which a server is asked to decide, in turns that are not counted.
    fn warm_up(&self, scenario: &Scenario, server: &Server, rate: Option<f64>) -> anyhow::Result<Rule> {
        eprintln!("{}: warming up {}", scenario.name, server.name);
        let turn = |rule: &Rule| self.ask(scenario, rule, rate).run(server);
        let rule = match scenario.limit {
            Limit::Far => Rule::far(),
            Limit::Exceeded => Rule::exceeded(),
            Limit::Near => Rule::near_for(turn(&Rule::far())?.requests_per_s),
        };
        let run = turn(&rule)?;
        // A server can be slower near a limit, and then another limit is the nearest.
        Ok(if scenario.limit == Limit::Near { Rule::near_for(run.requests_per_s) } else { rule })
    }

    fn notes(&self, scenario: &Scenario, runs: &[Vec<Run>], rate: Option<f64>) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(rate) = rate {
            notes.push(format!("{rate:.0} requests/s: half of what {TONIC} answers at most"));
        }
        for (server, runs) in self.servers.iter().zip(runs) {
            let name = &server.name;
            let median = |of: fn(&Run) -> Option<f64>| Spread::of(runs.iter().map(of)).map(|spread| spread.median);
            let is_limited = scenario.limit != Limit::Far && server.kind != Kind::Constant;
            if let Some(passed) = median(|run| run.passed).filter(|_| is_limited) {
                notes.push(format!("{name}: {:.1} % of the requests passed", 100.0 * passed));
            }
            let busy = |run: &Run| Some(run.client_us? * run.requests_per_s / 1e6 / run.client_threads as f64);
            if median(busy).is_some_and(|share| share > BUSY) {
                notes.push(format!("{name}: the client was always busy, the server could do more"));
            }
            if let Some(cores) = median(|run| run.stores_cores) {
                notes.push(format!("{name}: Redis and MySQL used {cores:.2} of a core"));
            }
            let unsent: u64 = runs.iter().map(|run| run.unsent).sum();
            if unsent > 0 {
                notes.push(format!("{name}: {unsent} requests were due and not sent when a turn ended"));
            }
            let lost: Vec<&String> = runs.iter().filter_map(|run| run.lost.as_ref()).collect();
            if let Some(last) = lost.last() {
                notes.push(format!("{name}: without a store at the end of {} rounds: {last}", lost.len()));
            }
        }
        notes
    }
}

/// A server that passes what it should deny, or the other way round, is fast for the wrong reason.
fn check(rule: &Rule, server: &Server, run: &Run) -> anyhow::Result<()> {
    // h2load does not look at answers, and nobody knows what rules a peer has.
    let Some(passed) = run.passed.filter(|_| server.kind != Kind::Peer) else { return Ok(()) };
    let is_right = match (server.kind, rule.limit_per_s) {
        (Kind::Tidegate, Some(limit)) => {
            let (limit, passed_per_s) = (limit as f64, passed * run.requests_per_s);
            (limit.min(run.requests_per_s) / INEXACT..=limit * INEXACT).contains(&passed_per_s)
        }
        _ => passed == 1.0,
    };
    ensure!(is_right, "{} answers wrongly: of {rule:?} {:.1} % passed in {run:?}", server.name, 100.0 * passed);
    Ok(())
}
