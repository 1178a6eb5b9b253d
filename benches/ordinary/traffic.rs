//! The users of one limit, and everybody who gets their requests at the same time.

use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate::clock::wall_ms;
use tokio::runtime::{Builder, LocalOptions};

use crate::client::Plan;
use crate::figures::Figures;
use crate::fleet::Fleet;
use crate::increments::Increments;
use crate::users::Users;

/// The users are always the same ones.
const SEED: u64 = 21;
/// Until then everybody is connected.
const BEGINS_AFTER: Duration = Duration::from_millis(300);

/// After so long every process has sent the heartbeats that it takes to trust how many they are.
const SETTLED_AFTER_MS: u64 = 5_000;

/// The requests of all users of one limit.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Hits that each user may have in a window.
    pub limit: u32,
    /// In whole seconds.
    pub window: Duration,
    /// There are fewer users if this many would exceed the rate.
    pub users_max: u64,
    /// Most requests per second of all users together.
    pub rate_max: f64,
}

impl Traffic {
    /// The figures of a fleet of each size.
    pub fn run(&self, sizes: &[usize]) -> anyhow::Result<Vec<Figures>> {
        let users = Users::draw(self.users_max, self.rate_max / self.requests_per_s(1.0), SEED)?;
        eprintln!("{} in {:?}: starting the servers", self.limit, self.window);
        let directory = tempfile::tempdir()?;
        let rules = directory.path().join("rules.yaml");
        std::fs::write(&rules, self.rule_file())?;
        let fleets = sizes.iter().map(|size| Fleet::shared(*size, &rules, directory.path()));
        let fleets = fleets.collect::<anyhow::Result<Vec<_>>>()?;
        let alone = Fleet::alone(&rules)?;
        let increments = Increments::start(directory.path())?;

        let plan = self.plan(&users);
        eprintln!(
            "{} in {:?}: {} users, {:.0} requests/s; warming up for {} s, then measuring",
            self.limit,
            self.window,
            users.count(),
            plan.requests_per_s,
            (plan.measured_from_ms - wall_ms()) / 1000
        );
        let (seen, alone, increments) = std::thread::scope(|scope| {
            let plan = &plan;
            let start = |fleet| scope.spawn(move || on_a_runtime(Fleet::ask(fleet, plan)));
            let fleets: Vec<_> = fleets.iter().map(start).collect();
            let alone = start(&alone);
            let increments = scope.spawn(|| on_a_runtime(increments.ask(plan)));
            let fleets = fleets.into_iter().map(ended).collect::<anyhow::Result<Vec<_>>>();
            anyhow::Ok((fleets?, ended(alone)?, ended(increments)?))
        })?;
        let figures = |(size, seen): (&usize, _)| Figures::of(self, &users, *size, seen, &alone, increments);
        Ok(sizes.iter().zip(&seen).map(figures).collect())
    }

    fn rule_file(&self) -> String {
        let (limit, window_s) = (self.limit, self.window.as_secs());
        let rule = format!("{{key: user, rate_limit: {{requests_per_unit: {limit}, window: {window_s}s}}}}");
        format!("domain: edge\ndescriptors:\n- {rule}\n")
    }

    /// Limits that are asked for in a window become requests per second.
    fn requests_per_s(&self, parts: f64) -> f64 {
        parts * f64::from(self.limit) / self.window.as_secs_f64()
    }

    /// Measures a whole window, because every user is new at its begin. A whole one passes before it, and some seconds for the
    /// processes to trust their number: its hits still count, and processes ask about keys that were counted before they came.
    fn plan<'a>(&self, users: &'a Users) -> Plan<'a> {
        let window_ms = self.window.as_millis() as u64;
        let measured_from_ms = (wall_ms() + window_ms + SETTLED_AFTER_MS).next_multiple_of(window_ms);
        Plan {
            users,
            limit: self.limit,
            window_ms,
            requests_per_s: self.requests_per_s(users.parts()),
            seed: rand::random(),
            began: Instant::now() + BEGINS_AFTER,
            measured_from_ms,
            measured_until_ms: measured_from_ms + window_ms,
        }
    }
}

fn on_a_runtime<T>(client: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?.block_on(client)
}

fn ended<T>(client: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    client.join().ok().context("a client panicked")?
}
