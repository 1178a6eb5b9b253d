//! The part of the status that is about other regions.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::Deserialize;

use crate::cli::latency::millis;
use crate::cli::status::report::time;

/// What `/stats` says about the exchange between regions.
#[derive(Debug, Deserialize)]
pub(super) struct GlobalReport {
    region: String,
    mysql: Mysql,
    regions: Vec<RegionSeen>,
    turns: BTreeMap<String, TurnReport>,
    published_rows: u64,
    refused_rows: u64,
    imported_rows: u64,
    rows_last_import: u64,
    created_keys: u64,
    contested_keys: u64,
    waiting_keys: u64,
    imported_age_p99_us: Option<f64>,
    role: String,
    /// `None`: the region has no Redis.
    voice: Option<VoiceReport>,
}

#[derive(Debug, Deserialize)]
struct VoiceReport {
    speaker: Option<String>,
    feed_ago_s: Option<f64>,
    spoken_cells: u64,
    mentions: Mentions,
    handed_on: Feed,
    heard: Feed,
    gaps: u64,
}

#[derive(Debug, Deserialize)]
struct Mentions {
    made: u64,
    heard: u64,
}

#[derive(Debug, Deserialize)]
struct Feed {
    entries: u64,
    bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Mysql {
    address: String,
    last_error: Option<TurnErrorReport>,
}

#[derive(Debug, Deserialize)]
struct TurnErrorReport {
    turn: String,
    text: String,
    at_s: u64,
}

#[derive(Debug, Deserialize)]
struct RegionSeen {
    name: String,
    /// `None`: it has told nothing yet.
    changed_ago_ms: Option<u64>,
    is_configured: bool,
}

#[derive(Debug, Deserialize)]
struct TurnReport {
    is_open: bool,
    opened: u64,
    succeeded: Option<u64>,
    failed: u64,
    succeeded_ago_s: Option<f64>,
}

impl GlobalReport {
    pub(super) fn problems(&self) -> Vec<String> {
        let why = self.mysql.last_error.as_ref().map_or("it does not answer", |error| &error.text);
        let mut problems = Vec::new();
        for (name, turn) in &self.turns {
            let is_dead = turn.is_open || (turn.succeeded_ago_s.is_none() && turn.failed > 0);
            let follows = match name.as_str() {
                "publish" => "other regions do not hear of what is admitted here",
                _ => "what other regions admit is not heard of here",
            };
            if is_dead {
                problems.push(format!("nothing can be {}ed through MySQL, so {follows}: {why}", name));
            }
        }
        for seen in self.regions.iter().filter(|seen| !seen.is_configured) {
            problems.push(format!(
                "the region {} publishes counts, but is not in TIDEGATE_REGIONS here: write the same list in all regions",
                seen.name
            ));
        }
        problems
    }

    pub(super) fn print(&self, out: &mut impl Write, now_s: u64) -> io::Result<()> {
        let (told, silent): (Vec<&RegionSeen>, Vec<&RegionSeen>) =
            self.regions.iter().partition(|seen| seen.changed_ago_ms.is_some());
        writeln!(out, "  regions   {} configured, this one is {}", self.configured(), self.region)?;
        let ago = |seen: &&RegionSeen| {
            let ago = Duration::from_secs(seen.changed_ago_ms.unwrap_or_default() / 1000);
            format!("{} ({} ago)", seen.name, humantime::format_duration(ago))
        };
        writeln!(out, "  seen      {}", listed(told.iter().map(ago)))?;
        writeln!(out, "  missing   {}", listed(silent.iter().map(|seen| seen.name.clone())))?;
        writeln!(out, "  mysql     {}", self.mysql.address)?;
        if let Some(error) = &self.mysql.last_error {
            let ago = time(now_s.saturating_sub(error.at_s));
            writeln!(out, "  error     {ago} ago, {}: {}", error.turn, error.text)?;
        }
        for (name, turn) in &self.turns {
            writeln!(out, "  {name:8}  {}", turn.describe())?;
        }
        let age = self.imported_age_p99_us.map_or("nothing heard yet".to_owned(), |us| {
            format!("p99 within {} when it arrives", millis(Duration::from_secs_f64(us / 1e6)))
        });
        writeln!(out, "  news      {age}")?;
        let GlobalReport { published_rows, refused_rows, imported_rows, rows_last_import, .. } = self;
        writeln!(
            out,
            "  rows      {published_rows} published, {refused_rows} refused, {imported_rows} imported, {rows_last_import} at the last import"
        )?;
        if let Some(voice) = &self.voice {
            writeln!(out, "  speaker   {}", voice.describe(&self.role))?;
            let VoiceReport { mentions, handed_on, heard, gaps, spoken_cells, .. } = voice;
            let Mentions { made, heard: mentioned } = mentions;
            writeln!(
                out,
                "  feed      {} entries ({} bytes) handed on, {} ({} bytes) heard, {gaps} gaps; {made} cells mentioned, {mentioned} heard of, {spoken_cells} published for all",
                handed_on.entries, handed_on.bytes, heard.entries, heard.bytes
            )?;
        }
        let GlobalReport { contested_keys, created_keys, waiting_keys, .. } = self;
        writeln!(
            out,
            "  contested {contested_keys} keys that other regions count too; {created_keys} made by imports, {waiting_keys} wait to be published"
        )
    }

    fn configured(&self) -> usize {
        self.regions.iter().filter(|seen| seen.is_configured).count()
    }
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

impl VoiceReport {
    fn describe(&self, role: &str) -> String {
        let ago = self.feed_ago_s.map_or("nothing was heard yet".to_owned(), |ago_s| {
            format!("last word {} ago", millis(Duration::from_secs_f64(ago_s.max(0.0))))
        });
        match (role, &self.speaker) {
            ("speaking", _) => format!("this process, for all of the region; {ago}"),
            ("following", Some(speaker)) => format!("{speaker}; {ago}"),
            ("following", None) => format!("none at the moment; {ago}"),
            _ => format!("each process for itself; {ago}"),
        }
    }
}

impl TurnReport {
    fn describe(&self) -> String {
        let last = match self.succeeded_ago_s {
            Some(ago_s) => format!("last success {} ago", millis(Duration::from_secs_f64(ago_s.max(0.0)))),
            None => "never succeeded".into(),
        };
        let state = if self.is_open { "open" } else { "closed" };
        format!(
            "{last}; {} with rows, {} failed, breaker {state} (opened {} times)",
            self.succeeded.unwrap_or_default(),
            self.failed,
            self.opened
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn exchange(publish: Value, regions: Value) -> GlobalReport {
        let document = json!({
            "region": "eu",
            "mysql": {"address": "db:3306/tidegate", "last_error": {"turn": "publish", "text": "it was closed", "reason": "x", "at_s": 90}},
            "regions": regions,
            "turns": {
                "publish": publish,
                "import": {"is_open": false, "opened": 0, "succeeded": 60, "failed": 0, "succeeded_ago_s": 0.25, "p99_us": 4096.0},
            },
            "published_rows": 12, "refused_rows": 1, "imported_rows": 40, "rows_last_import": 2, "created_keys": 3,
            "contested_keys": 4, "waiting_keys": 0, "imported_age_p99_us": 1_048_576.0,
            "role": "following",
            "voice": {
                "speaker": "00000000000000ab", "feed_ago_s": 0.25, "spoken_cells": 0, "gaps": 1, "malformed": 0,
                "mentions": {"made": 7, "heard": 0}, "handed_on": {"entries": 0, "bytes": 0},
                "heard": {"entries": 60, "bytes": 1200},
            },
        });
        GlobalReport::deserialize(&document).unwrap()
    }

    fn good() -> Value {
        json!({"is_open": false, "opened": 1, "succeeded": 7, "failed": 2, "succeeded_ago_s": 0.5, "p99_us": null})
    }

    fn seen(name: &str, ago_ms: Option<u64>, is_configured: bool) -> Value {
        json!({"name": name, "changed_ago_ms": ago_ms, "is_configured": is_configured})
    }

    #[test]
    fn regions_are_shown_as_seen_and_missing() {
        let regions = json!([seen("eu", Some(500), true), seen("us", Some(61_000), true), seen("ap", None, true)]);
        let global = exchange(good(), regions);
        assert_eq!(global.problems(), Vec::<String>::new());
        let mut out = Vec::new();
        global.print(&mut out, 100).unwrap();
        let expected = "  regions   3 configured, this one is eu
  seen      eu (0s ago), us (1m 1s ago)
  missing   ap
  mysql     db:3306/tidegate
  error     10s ago, publish: it was closed
  import    last success 250.00 ms ago; 60 with rows, 0 failed, breaker closed (opened 0 times)
  publish   last success 500.00 ms ago; 7 with rows, 2 failed, breaker closed (opened 1 times)
  news      p99 within 1048.58 ms when it arrives
  rows      12 published, 1 refused, 40 imported, 2 at the last import
  speaker   00000000000000ab; last word 250.00 ms ago
  feed      0 entries (0 bytes) handed on, 60 (1200 bytes) heard, 1 gaps; 7 cells mentioned, 0 heard of, 0 published for all
  contested 4 keys that other regions count too; 3 made by imports, 0 wait to be published
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn what_keeps_regions_apart_is_a_problem() {
        let open =
            json!({"is_open": true, "opened": 1, "succeeded": 0, "failed": 9, "succeeded_ago_s": null, "p99_us": null});
        let global = exchange(open, json!([seen("eu", None, true), seen("xx", Some(1), false)]));
        let problems = global.problems();
        assert_eq!(problems.len(), 2);
        assert!(problems[0].starts_with("nothing can be published through MySQL, so other regions"), "{}", problems[0]);
        assert!(problems[1].contains("region xx") && problems[1].contains("TIDEGATE_REGIONS"), "{}", problems[1]);
    }
}
