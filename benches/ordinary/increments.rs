//! The load that the Go service puts on Redis: INCRBY and EXPIRE for every request, both in one round trip.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};
use tidegate::clock::wall_ms;

use crate::arrivals::Arrival;
use crate::client::{Plan, cpu_of};
use crate::redis_server::RedisServer;

/// Three of its processes have as many in their pools. Few requests are under way at a time, so two of them hardly ever
/// share one.
const CONNECTIONS: usize = 30;

pub struct Increments {
    redis: RedisServer,
}

impl Increments {
    pub fn start(directory: &Path) -> anyhow::Result<Increments> {
        Ok(Increments { redis: RedisServer::start(directory.join("redis-of-increments.sock"))? })
    }

    /// Sends all requests. Returns the CPU that Redis used in the measured time.
    pub async fn ask(&self, plan: &Plan<'_>) -> anyhow::Result<Duration> {
        let client = Client::open(self.redis.url())?;
        let patient = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(client.get_multiplexed_async_connection_with_config(&patient).await?);
        }
        let turn = std::cell::Cell::new(0);
        let window_s = plan.window_ms / 1000;
        let call = |arrival: Arrival, _| {
            turn.set((turn.get() + 1) % CONNECTIONS);
            count(connections[turn.get()].clone(), arrival.user, window_s)
        };
        let [before, after] = plan.send(|| cpu_of(&self.redis), call).await?;
        Ok(after.saturating_sub(before))
    }
}

async fn count(mut connection: MultiplexedConnection, user: usize, window_s: u64) -> anyhow::Result<()> {
    let began_s = (wall_ms() / 1000) / window_s * window_s;
    let key = format!("edge_user_{user:032}_{began_s}");
    let mut pipe = redis::pipe();
    pipe.cmd("INCRBY").arg(&key).arg(1).cmd("EXPIRE").arg(&key).arg(window_s);
    let (count, is_set): (u64, bool) = pipe.query_async(&mut connection).await.context("INCRBY and EXPIRE")?;
    ensure!(count > 0 && is_set, "INCRBY says {count}, EXPIRE {is_set}");
    Ok(())
}
