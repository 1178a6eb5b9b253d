//! The results of runs: medians, ranges, and ratios between runs of the same round.
//!
//! Only runs of the same round met the machine in the same state. So ratios are taken round by round, and their median counts.

use serde::Serialize;

/// One server under one load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    pub requests: u64,
    pub requests_per_s: f64,
    /// CPU time of the server's process for each request; unknown for a server that runs elsewhere.
    pub server_us: Option<f64>,
    pub client_us: Option<f64>,
    /// h2load has no percentiles.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// The share of answers that were OK; h2load does not look into them.
    pub passed: Option<f64>,
    /// How many threads of the client can be busy at once.
    pub client_threads: u64,
    /// How much of one core Redis and MySQL used meanwhile.
    pub stores_cores: Option<f64>,
    /// What the server said about a store that it could not reach when the turn ended.
    pub lost: Option<String>,
    /// How many requests were due but never sent, because earlier ones were late.
    pub unsent: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    RequestsPerS,
    ServerUs,
    ClientUs,
    P50Ms,
    P99Ms,
}

impl Figure {
    pub const ALL: [Figure; 5] =
        [Figure::RequestsPerS, Figure::ServerUs, Figure::ClientUs, Figure::P50Ms, Figure::P99Ms];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Figure::RequestsPerS => "requests_per_s",
            Figure::ServerUs => "server_us",
            Figure::ClientUs => "client_us",
            Figure::P50Ms => "p50_ms",
            Figure::P99Ms => "p99_ms",
        }
    }

    pub fn of(self, run: &Run) -> Option<f64> {
        match self {
            Figure::RequestsPerS => Some(run.requests_per_s),
            Figure::ServerUs => run.server_us,
            Figure::ClientUs => run.client_us,
            Figure::P50Ms => run.p50_ms,
            Figure::P99Ms => run.p99_ms,
        }
    }
}

/// The median of several values, and their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without values, or if one of them is unknown.
    pub fn of(values: impl Iterator<Item = Option<f64>>) -> Option<Spread> {
        let mut values: Vec<f64> = values.collect::<Option<_>>()?;
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let is_odd = values.len() % 2 == 1;
        let median = if is_odd { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Spread { median, min, max })
    }

    pub fn of_runs(runs: &[Run], figure: Figure) -> Option<Spread> {
        Spread::of(runs.iter().map(|run| figure.of(run)))
    }

    /// The spread of the ratios of both sides' figures in each round.
    pub fn of_ratios(runs: &[Run], to: &[Run], figure: Figure) -> Option<Spread> {
        let ratio = |(run, to): (&Run, &Run)| Some(figure.of(run)? / figure.of(to).filter(|to| *to > 0.0)?);
        Spread::of(runs.iter().zip(to).map(ratio))
    }
}
