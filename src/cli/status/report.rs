//! What `/stats` says, as far as people want to know it, and what of that is a problem.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::cli::check::plural;
use crate::cli::latency::millis;
use crate::cli::status::layers::Layer;
use crate::cli::status::regions::GlobalReport;
use crate::rules::explain_text::window;

/// The part of `/stats` that is shown.
#[derive(Debug, Deserialize)]
pub(super) struct Stats {
    version: String,
    now_s: u64,
    uptime_s: u64,
    config: ConfigReport,
    keys: Keys,
    requests: Requests,
    /// The widest first; none if nothing is shared.
    #[serde(default)]
    layers: Vec<Layer>,
    /// `None`: counts are not shared.
    regional: Option<RegionalReport>,
    /// `None`: counts stay in the region.
    global: Option<GlobalReport>,
}

#[derive(Debug, Deserialize)]
struct ConfigReport {
    generation: u64,
    domains: usize,
    rules: usize,
    loaded_at_s: Option<u64>,
    last_load_ok: Option<bool>,
    last_load_errors: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Keys {
    held: u64,
    max: u64,
    bytes: Option<u64>,
    bytes_max: Option<u64>,
    evicted: u64,
}

#[derive(Debug, Deserialize)]
struct Requests {
    in_flight: u64,
    decisions: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct RegionalReport {
    process: String,
    live_processes: u64,
    redis: RedisReport,
    breakers: BTreeMap<String, BreakerReport>,
    decisions: Decisions,
    /// Absent from pages of processes that do not tell.
    #[serde(default)]
    closed_limits: ClosedLimitsReport,
    calls: BTreeMap<String, CallReport>,
    pending_hits: u64,
    #[serde(default)]
    held_hits: u64,
    lost_hits: u64,
    heals: u64,
    lag_s: f64,
    clock_offset_ms: i64,
}

/// Limits that are small for the number of processes.
#[derive(Debug, Default, Deserialize)]
struct ClosedLimitsReport {
    count: usize,
    first: Vec<ClosedLimitReport>,
}

#[derive(Debug, Deserialize)]
struct ClosedLimitReport {
    domain: String,
    rule: String,
    limit: u32,
    window_ms: u64,
    opening_slack: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct RedisReport {
    address: String,
    connected_since_s: Option<u64>,
    is_doubted: bool,
    connections: u64,
    last_error: Option<LastErrorReport>,
}

#[derive(Debug, Deserialize)]
struct LastErrorReport {
    text: String,
    at_s: u64,
}

#[derive(Debug, Deserialize)]
struct BreakerReport {
    is_open: bool,
    opened: u64,
}

#[derive(Debug, Deserialize)]
struct Decisions {
    memory: u64,
    #[serde(default)]
    memory_old: u64,
    #[serde(default)]
    memory_cold: u64,
    origin: u64,
    #[serde(default)]
    owner: u64,
    outage: u64,
    #[serde(default)]
    overload: u64,
}

/// The calls of one operation. Times are bounds of the histogram's buckets, which double; `None` is beyond the last of
/// them.
#[derive(Debug, Deserialize)]
struct CallReport {
    answered: u64,
    failed: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl Stats {
    pub(super) fn read(document: &Value) -> Result<Stats, serde_json::Error> {
        Stats::deserialize(document)
    }

    /// What is degraded, and what follows from it. Empty if all is well.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.config.generation == 0 {
            problems.push("no rules are loaded: every call gets UNAVAILABLE".into());
        }
        if self.config.last_load_ok == Some(false) {
            let errors = plural(self.config.last_load_errors.unwrap_or_default(), "error");
            problems.push(format!(
                "the last rules were refused with {errors}: /config/status and tidegate check name every one"
            ));
        }
        problems.extend(self.layers.iter().filter_map(Layer::problem));
        problems.extend(self.regional.iter().flat_map(RegionalReport::problems));
        problems.extend(self.global.iter().flat_map(GlobalReport::problems));
        problems
    }

    /// For people.
    pub(super) fn print(&self, out: &mut impl Write, address: &str, problems: &[String]) -> io::Result<()> {
        let state = if problems.is_empty() { "healthy" } else { "degraded" };
        writeln!(out, "{state}: tidegate {} at {address}, up {}", self.version, time(self.uptime_s))?;
        for problem in problems {
            writeln!(out, "  problem   {problem}")?;
        }
        writeln!(out, "  rules     {}", self.rules())?;
        let Keys { held, max, evicted, .. } = self.keys;
        let bytes = match (self.keys.bytes, self.keys.bytes_max) {
            (Some(bytes), Some(bytes_max)) => format!(", {bytes} of {bytes_max} bytes"),
            (Some(bytes), None) => format!(", {bytes} bytes"),
            (None, _) => String::new(),
        };
        writeln!(out, "  keys      {held} of at most {max}{bytes}, {evicted} given up for others")?;
        writeln!(out, "  requests  {}", self.requests.describe())?;
        self.layers.iter().try_for_each(|layer| layer.print(out))?;
        match &self.regional {
            Some(regional) => regional.print(out, self.now_s),
            None => writeln!(out, "  region    none: without REDIS_URL every limit holds for this process alone"),
        }?;
        match &self.global {
            Some(global) => global.print(out, self.now_s),
            None => writeln!(out, "  regions   none: without MYSQL_URL counts stay in the region"),
        }
    }

    fn rules(&self) -> String {
        let ConfigReport { generation, domains, rules, loaded_at_s, .. } = self.config;
        match loaded_at_s {
            Some(at_s) => format!(
                "{} in {}, generation {generation}, loaded {} ago",
                plural(rules, "rule"),
                plural(domains, "domain"),
                time(self.now_s.saturating_sub(at_s))
            ),
            None => "none".into(),
        }
    }
}

impl Requests {
    fn describe(&self) -> String {
        let outcomes: Vec<String> =
            self.decisions.iter().map(|(outcome, count)| format!("{count} {outcome}")).collect();
        let errors: u64 = self.errors.values().sum();
        format!("{} open; {}, {errors} without a decision", self.in_flight, outcomes.join(", "))
    }
}

impl RegionalReport {
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let redis = &self.redis;
        if redis.connected_since_s.is_none() {
            let why = redis.last_error.as_ref().map_or("not connected yet", |error| &error.text);
            problems.push(format!("no connection to Redis at {}, so on_outage decides: {why}", redis.address));
        }
        for (name, _) in self.breakers.iter().filter(|(_, breaker)| breaker.is_open) {
            // In a Cluster the node comes after the kind.
            let follows = match name.split(' ').next() {
                Some("checks" | "strict") => "on_outage of each rule decides",
                _ => "the other processes do not hear of what is admitted here",
            };
            problems.push(format!("the breaker of {name} is open, Redis does not answer: {follows}"));
        }
        problems
    }

    fn print(&self, out: &mut impl Write, now_s: u64) -> io::Result<()> {
        let ago = |at_s: u64| time(now_s.saturating_sub(at_s));
        let live = match self.live_processes {
            1 => "1 live process".to_owned(),
            more => format!("{more} live processes"),
        };
        writeln!(out, "  region    {live}, this one is {}", self.process)?;
        let RedisReport { address, connected_since_s, is_doubted, connections, last_error } = &self.redis;
        let connected = match connected_since_s {
            Some(since_s) if *is_doubted => {
                format!("connected for {}, but another connection is sought", ago(*since_s))
            }
            Some(since_s) => format!("connected for {}", ago(*since_s)),
            None => "not connected".into(),
        };
        writeln!(out, "  redis     {address}, {connected}; {connections} connections made")?;
        if let Some(error) = last_error {
            writeln!(out, "  error     {} ago: {}", ago(error.at_s), error.text)?;
        }
        // A Cluster has many: those that have never opened are not worth a word each.
        let is_shown = |(name, breaker): &(&String, &BreakerReport)| !name.contains(' ') || breaker.opened > 0;
        let (shown, others): (Vec<_>, Vec<_>) = self.breakers.iter().partition(is_shown);
        let mut breakers: Vec<String> = shown
            .iter()
            .map(|(name, breaker)| {
                let state = if breaker.is_open { "open" } else { "closed" };
                format!("{name} {state} (opened {} times)", breaker.opened)
            })
            .collect();
        if !others.is_empty() {
            breakers.push(format!("{} never opened", others.len()));
        }
        writeln!(out, "  breakers  {}", breakers.join(", "))?;
        writeln!(out, "  decided   {}", self.decisions.describe())?;
        self.closed_limits.print(out)?;
        let RegionalReport { pending_hits, held_hits, lost_hits, lag_s, heals, .. } = self;
        writeln!(
            out,
            "  pending   {pending_hits} hits, behind for {}; {held_hits} held back",
            millis(Duration::from_secs_f64(lag_s.max(0.0)))
        )?;
        writeln!(out, "  lost      {lost_hits} hits; all counts were told again {heals} times")?;
        writeln!(out, "  clock     {}", clock(self.clock_offset_ms))?;
        for (operation, calls) in &self.calls {
            writeln!(out, "  {operation:8}  {}", calls.describe())?;
        }
        Ok(())
    }
}

impl ClosedLimitsReport {
    /// Nothing if there are none.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let limits = plural(self.count, "limit");
        writeln!(out, "  closed    {limits} with less than one hit of slack a process: Redis decides every request")?;
        self.first.iter().try_for_each(|closed| writeln!(out, "            {}", closed.describe()))?;
        match self.count.saturating_sub(self.first.len()) {
            0 => Ok(()),
            more => writeln!(out, "            and {more} more"),
        }
    }
}

impl ClosedLimitReport {
    fn describe(&self) -> String {
        let opens = match self.opening_slack {
            Some(slack) => format!("slack >= {slack} opens it"),
            None => "no slack opens it".to_owned(),
        };
        let ClosedLimitReport { domain, rule, limit, window_ms, .. } = self;
        let line = format!("{rule} in {domain}: {limit} per {}; {opens}", window(*window_ms));
        // A rule may name any characters, and this is one line.
        line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    }
}

impl Decisions {
    fn describe(&self) -> String {
        let Decisions { memory, memory_old, memory_cold, origin, owner, outage, overload } = *self;
        let memory = memory + memory_old + memory_cold;
        let all = memory + origin + owner + outage + overload;
        if all == 0 {
            return "nothing yet".into();
        }
        let share = |count: u64| format!("{:.1} %", 100.0 * count as f64 / all as f64);
        let mut parts = vec![
            format!("{} from memory", share(memory)),
            format!("{} by Redis", share(origin)),
            format!("{} by on_outage", share(outage)),
        ];
        parts.extend((owner > 0).then(|| format!("{} by the owner of strict limits", share(owner))));
        parts.extend((overload > 0).then(|| format!("{} under overload", share(overload))));
        format!("{}, of {all}", parts.join(", "))
    }
}

impl CallReport {
    fn describe(&self) -> String {
        let CallReport { answered, failed, p50_us, p99_us } = self;
        let within = |bound_us: &Option<f64>| match bound_us {
            Some(us) => format!("within {}", millis(Duration::from_secs_f64(us / 1e6))),
            None => "above 1 s".into(),
        };
        match answered {
            0 => format!("0 answered, {failed} failed"),
            _ => format!("{answered} answered, {failed} failed; p50 {}, p99 {}", within(p50_us), within(p99_us)),
        }
    }
}

fn clock(offset_ms: i64) -> String {
    match offset_ms {
        0 => "that of Redis agrees".into(),
        1.. => format!("that of Redis is {offset_ms} ms ahead"),
        _ => format!("that of Redis is {} ms behind", offset_ms.unsigned_abs()),
    }
}

pub(super) fn time(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page(regional: Value) -> Value {
        json!({
            "version": "1.2.3", "now_s": 10_000, "uptime_s": 3_725,
            "config": {"generation": 2, "domains": 1, "rules": 5, "loaded_at_s": 9_940, "last_load_ok": true,
                "last_load_errors": 0},
            "keys": {"held": 7, "max": 1000, "expired": 1, "evicted": 0, "evicted_over_limit": 0},
            "requests": {"in_flight": 1, "in_flight_max": 10, "decisions": {"ok": 90, "over_limit": 10},
                "errors": {"deadline": 2, "invalid": 1}, "unknown_domain": 0},
            "connections": {}, "process": {},
            "regional": regional,
        })
    }

    fn region() -> Value {
        json!({
            "process": "00000000000000ab", "live_processes": 3,
            "redis": {"address": "redis:6379", "connected_since_s": 9_000, "is_doubted": false, "connections": 2,
                "last_error": null},
            "breakers": {"checks": {"is_open": false, "opened": 1}, "replays": {"is_open": false, "opened": 0}},
            "decisions": {"memory": 985, "origin": 10, "outage": 5},
            "calls": {
                "beat": {"answered": 4, "failed": 0, "p50_us": 256.0, "p99_us": null},
                "check": {"answered": 10, "failed": 1, "p50_us": 512.0, "p99_us": 1024.0},
                "replay": {"answered": 0, "failed": 0, "p50_us": null, "p99_us": null},
            },
            "checks": 8, "hydrations": 2, "replayed_cells": 40, "heals": 1, "pending_hits": 12, "held_hits": 3, "lost_hits": 0,
            "lag_s": 0.031, "clock_offset_ms": -2,
        })
    }

    fn printed(document: &Value) -> (Vec<String>, String) {
        let stats = Stats::read(document).unwrap();
        let problems = stats.problems();
        let mut out = Vec::new();
        stats.print(&mut out, "127.0.0.1:6070", &problems).unwrap();
        (problems, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_process_on_its_own_is_healthy() {
        let (problems, text) = printed(&page(Value::Null));
        assert_eq!(problems, Vec::<String>::new());
        let expected = "\
healthy: tidegate 1.2.3 at 127.0.0.1:6070, up 1h 2m 5s
  rules     5 rules in 1 domain, generation 2, loaded 1m ago
  keys      7 of at most 1000, 0 given up for others
  requests  1 open; 90 ok, 10 over_limit, 3 without a decision
  region    none: without REDIS_URL every limit holds for this process alone
  regions   none: without MYSQL_URL counts stay in the region
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_region_is_shown_in_full() {
        let (problems, text) = printed(&page(region()));
        assert_eq!(problems, Vec::<String>::new(), "a breaker that has been open is not a problem any more");
        let expected = "
  region    3 live processes, this one is 00000000000000ab
  redis     redis:6379, connected for 16m 40s; 2 connections made
  breakers  checks closed (opened 1 times), replays closed (opened 0 times)
  decided   98.5 % from memory, 1.0 % by Redis, 0.5 % by on_outage, of 1000
  pending   12 hits, behind for 31.00 ms; 3 held back
  lost      0 hits; all counts were told again 1 times
  clock     that of Redis is 2 ms behind
  beat      4 answered, 0 failed; p50 within 0.26 ms, p99 above 1 s
  check     10 answered, 1 failed; p50 within 0.51 ms, p99 within 1.02 ms
  replay    0 answered, 0 failed
  regions   none: without MYSQL_URL counts stay in the region
";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn closed_limits_are_named_and_no_problem() {
        let mut document = page(region());
        let closed = |rule: &str, opening: Value| json!({"domain": "d", "rule": rule, "limit": 10, "window_ms": 1000, "opening_slack": opening});
        document["regional"]["closed_limits"] =
            json!({"count": 5, "first": [closed("ip", json!(0.3)), closed("a\nb", Value::Null)]});
        let (problems, text) = printed(&document);
        assert_eq!(problems, Vec::<String>::new());
        let expected = "
  closed    5 limits with less than one hit of slack a process: Redis decides every request
            ip in d: 10 per second; slack >= 0.3 opens it
            a\u{fffd}b in d: 10 per second; no slack opens it
            and 3 more
  pending ";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn of_the_nodes_of_a_cluster_those_are_named_that_were_given_up() {
        let mut document = page(region());
        document["regional"]["breakers"] = json!({
            "checks a:1": {"is_open": true, "opened": 2},
            "checks b:2": {"is_open": false, "opened": 0},
            "replays a:1": {"is_open": false, "opened": 1},
            "replays b:2": {"is_open": false, "opened": 0},
        });
        let (problems, text) = printed(&document);
        assert_eq!(
            problems,
            ["the breaker of checks a:1 is open, Redis does not answer: on_outage of each rule decides"]
        );
        let line =
            "  breakers  checks a:1 open (opened 2 times), replays a:1 closed (opened 1 times), 2 never opened\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn what_is_degraded_is_named_first() {
        let mut document = page(region());
        document["config"]["last_load_ok"] = json!(false);
        document["config"]["last_load_errors"] = json!(1);
        document["regional"]["redis"]["connected_since_s"] = Value::Null;
        document["regional"]["redis"]["last_error"] = json!({"text": "it was closed", "reason": "io", "at_s": 9_990});
        document["regional"]["breakers"]["checks"]["is_open"] = json!(true);
        document["regional"]["breakers"]["replays"]["is_open"] = json!(true);
        let (problems, text) = printed(&document);
        assert_eq!(problems.len(), 4, "{problems:?}");
        let expected = "\
degraded: tidegate 1.2.3 at 127.0.0.1:6070, up 1h 2m 5s
  problem   the last rules were refused with 1 error: /config/status and tidegate check name every one
  problem   no connection to Redis at redis:6379, so on_outage decides: it was closed
  problem   the breaker of checks is open, Redis does not answer: on_outage of each rule decides
  problem   the breaker of replays is open, Redis does not answer: the other processes do not hear of what is admitted here
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("  error     10s ago: it was closed\n"), "{text}");
        assert!(text.contains("redis:6379, not connected; 2 connections made"), "{text}");
    }

    #[test]
    fn layers_are_shown_and_missed() {
        let mut document = page(region());
        document["layers"] = json!([
            {"layer": "global", "is_up": false, "down_for_s": 12.5, "lost": 1, "place": "mysql:3306"},
            {"layer": "regional", "is_up": true, "down_for_s": null, "lost": 0, "place": "redis:6379"},
        ]);
        let (problems, text) = printed(&document);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("the global layer is down for 12s, mysql:3306: limits hold in the region"));
        assert!(text.contains("  layer     global is down for 12s, at mysql:3306; given up 1 times\n"), "{text}");
        assert!(text.contains("  layer     regional is up, at redis:6379; given up 0 times\n"), "{text}");
    }

    #[test]
    fn a_start_without_rules_is_degraded() {
        let mut document = page(Value::Null);
        document["config"]["generation"] = json!(0);
        document["config"]["loaded_at_s"] = Value::Null;
        let (problems, text) = printed(&document);
        assert_eq!(problems, ["no rules are loaded: every call gets UNAVAILABLE"]);
        assert!(text.contains("  rules     none\n"), "{text}");
    }

    #[test]
    fn pages_of_something_else_are_refused() {
        assert!(Stats::read(&json!({})).is_err() && Stats::read(&json!([])).is_err());
        assert!(Stats::read(&page(json!({"live_processes": 1}))).is_err());
    }
}
