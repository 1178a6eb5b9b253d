//! The totals of many calls.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::check::plural;
use crate::cli::latency::Latency;

pub(super) struct Summary {
    /// Calls with an answer, by verdict.
    pub answered: BTreeMap<&'static str, u64>,
    /// Calls without an answer, by gRPC code.
    pub errors: BTreeMap<&'static str, u64>,
    latency: Latency,
}

impl Summary {
    pub(super) fn new() -> anyhow::Result<Summary> {
        // Both verdicts are shown, even if one of them never came.
        let answered = BTreeMap::from([("OK", 0), ("OVER_LIMIT", 0)]);
        Ok(Summary { answered, errors: BTreeMap::new(), latency: Latency::new()? })
    }

    pub(super) fn answered(&mut self, verdict: &'static str, took: Duration) {
        *self.answered.entry(verdict).or_default() += 1;
        self.latency.record(took);
    }

    pub(super) fn failed(&mut self, code: &'static str) {
        *self.errors.entry(code).or_default() += 1;
    }

    pub(super) fn calls(&self) -> u64 {
        self.answered.values().chain(self.errors.values()).sum()
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let counted = |counts: &BTreeMap<&str, u64>| {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        writeln!(out, "{}: {}", plural(self.calls() as usize, "call"), counted(&self.answered))?;
        if !self.errors.is_empty() {
            writeln!(out, "errors: {}", counted(&self.errors))?;
        }
        match self.latency.describe() {
            Some(latency) => writeln!(out, "latency: {latency}"),
            None => Ok(()),
        }
    }

    pub(super) fn as_json(&self) -> Value {
        let mut fields = self.latency.as_json();
        fields.insert("calls".into(), json!(self.calls()));
        for (verdict, count) in &self.answered {
            fields.insert(verdict.to_lowercase(), json!(count));
        }
        fields.insert("errors".into(), json!(self.errors));
        json!({"summary": fields})
    }
}
