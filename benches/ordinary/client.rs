//! A thread that sends all requests to one place, each when it is due, whether earlier ones have been answered or not.

use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate::clock::wall_ms;
use tidegate::observe::process::ProcessFigures;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;

use crate::arrivals::{Arrival, Arrivals};
use crate::redis_server::RedisServer;
use crate::users::Users;

/// The requests that all clients send, and the times at which they do.
pub struct Plan<'a> {
    /// The users who ask.
    pub users: &'a Users,
    /// Hits that each user may have in a window.
    pub limit: u32,
    /// Windows begin at multiples of it, by the wall clock.
    pub window_ms: u64,
    /// Of all users.
    pub requests_per_s: f64,
    /// Of the arrivals.
    pub seed: u64,
    /// The moment from which requests are due.
    pub began: Instant,
    /// The client measures requests that it sends from then on, by the wall clock.
    pub measured_from_ms: u64,
    /// The client stops then.
    pub measured_until_ms: u64,
}

impl Plan<'_> {
    /// Makes a call of each request and waits for all of them. Returns what there was to see when the measured time began,
    /// and after all calls.
    pub async fn send<Call, Sight>(
        &self,
        look: impl Fn() -> anyhow::Result<Sight>,
        call: impl Fn(Arrival, bool) -> Call,
    ) -> anyhow::Result<[Sight; 2]>
    where
        Call: Future<Output = anyhow::Result<()>> + 'static,
    {
        let mut arrivals = Arrivals::new(self.users, self.requests_per_s, self.seed)?;
        let mut calls = JoinSet::new();
        let mut before = None;
        loop {
            let arrival = arrivals.next();
            let due = self.began + arrival.after;
            if due > Instant::now() {
                sleep_until(due.into()).await;
            }
            let now_ms = wall_ms();
            if before.is_none() && now_ms >= self.measured_from_ms {
                before = Some(look()?);
            }
            if now_ms >= self.measured_until_ms {
                break;
            }
            calls.spawn_local(call(arrival, before.is_some()));
            while let Some(done) = calls.try_join_next() {
                concluded(done)?;
            }
        }
        while let Some(done) = calls.join_next().await {
            concluded(done)?;
        }
        Ok([before.context("the measured time never began")?, look()?])
    }
}

fn concluded(done: Result<anyhow::Result<()>, JoinError>) -> anyhow::Result<()> {
    done.context("a call panicked")?
}

/// The CPU time that Redis has used so far.
pub fn cpu_of(redis: &RedisServer) -> anyhow::Result<Duration> {
    Ok(ProcessFigures::of(&redis.pid().to_string()).context("Redis has ended")?.cpu)
}
