//! Processes that enforce one limit together, through a Redis of their own; or one process alone, without a Redis.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use tidegate::clock::wall_ms;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::transport::Channel;

use crate::arrivals::Arrival;
use crate::client::{Plan, cpu_of};
use crate::ledger::Ledger;
use crate::redis_server::RedisServer;
use crate::reply::{Decider, Reply};
use crate::tidegate_server::TidegateServer;
use crate::users::Class;

/// Long enough that a busy machine does not look like an outage of Redis, whose policy would then decide.
const ORIGIN_DEADLINE: &str = "500ms";

pub struct Fleet {
    processes: Vec<TidegateServer>,
    redis: Option<RedisServer>,
}

/// The client's view of a fleet, in the measured time unless it says otherwise.
pub struct Seen {
    /// Of all requests, also those of the warm-up.
    pub ledger: Ledger,
    /// Requests of each class.
    requests: [u64; Class::ALL.len()],
    /// Those of them that memory did not decide.
    waited: [u64; Class::ALL.len()],
    /// Requests that were answered without Redis because it took too long.
    pub outages: u64,
    /// Times from request to answer, in microseconds.
    pub latency: Histogram<u64>,
    /// What the fleet's Redis had to do; nothing without one.
    pub work: RedisWork,
}

impl Fleet {
    /// Several processes, which share a Redis.
    pub fn shared(count: usize, rules: &Path, directory: &Path) -> anyhow::Result<Fleet> {
        let redis = RedisServer::start(directory.join(format!("redis-of-{count}.sock")))?;
        Fleet::start(count, rules, Some(redis))
    }

    /// One process, which shares nothing.
    pub fn alone(rules: &Path) -> anyhow::Result<Fleet> {
        Fleet::start(1, rules, None)
    }

    fn start(count: usize, rules: &Path, redis: Option<RedisServer>) -> anyhow::Result<Fleet> {
        let mut settings = vec![
            ("RESPONSE_DYNAMIC_METADATA", "true".to_owned()),
            ("TIDEGATE_ORIGIN_DEADLINE", ORIGIN_DEADLINE.to_owned()),
        ];
        settings.extend(redis.as_ref().map(|redis| ("REDIS_URL", redis.url())));
        let layers: &[&str] = if redis.is_some() { &["regional"] } else { &[] };
        let start = |_| TidegateServer::start(rules, &settings, layers);
        let processes = (0..count).map(start).collect::<anyhow::Result<_>>()?;
        Ok(Fleet { processes, redis })
    }

    pub fn size(&self) -> usize {
        self.processes.len()
    }

    /// Sends it all requests.
    pub async fn ask(&self, plan: &Plan<'_>) -> anyhow::Result<Seen> {
        let mut clients = Vec::new();
        for process in &self.processes {
            clients.push(RateLimitServiceClient::connect(format!("http://{}", process.address())).await?);
        }
        let seen = Rc::new(RefCell::new(Seen::new(plan)?));
        let limit = plan.limit;
        let call = |arrival: Arrival, is_measured| {
            let client = clients[arrival.process % clients.len()].clone();
            ask(client, arrival, limit, is_measured, seen.clone())
        };
        let [before, after] = plan.send(|| self.work(), call).await?;
        for process in &self.processes {
            if let Some(lost) = process.lost_layer()? {
                bail!("one of {} processes has lost its Redis: {lost}", self.size());
            }
        }
        // All calls have ended, and none of them holds it any more.
        let seen = Rc::into_inner(seen).context("a call goes on")?.into_inner();
        Ok(Seen { work: after.since(before), ..seen })
    }

    /// What its Redis has had to do so far.
    fn work(&self) -> anyhow::Result<RedisWork> {
        let Some(redis) = &self.redis else { return Ok(RedisWork::default()) };
        let total =
            |name: &str| self.processes.iter().map(|process| process.counter(name)).sum::<anyhow::Result<u64>>();
        Ok(RedisWork {
            cpu: cpu_of(redis)?,
            checks: total("tidegate_origin_calls_total{operation=\"check\"}")?,
            replays: total("tidegate_origin_calls_total{operation=\"replay\"}")?,
            told_cells: total("tidegate_regional_replayed_cells_total")?,
        })
    }
}

/// What a Redis has to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisWork {
    /// CPU time, whatever it was for.
    pub cpu: Duration,
    /// Calls with requests that wait.
    pub checks: u64,
    /// Calls that tell what memory has decided.
    pub replays: u64,
    /// Cells in these.
    pub told_cells: u64,
}

impl RedisWork {
    fn since(self, before: RedisWork) -> RedisWork {
        RedisWork {
            cpu: self.cpu.saturating_sub(before.cpu),
            checks: self.checks - before.checks,
            replays: self.replays - before.replays,
            told_cells: self.told_cells - before.told_cells,
        }
    }
}

impl Seen {
    fn new(plan: &Plan<'_>) -> anyhow::Result<Seen> {
        Ok(Seen {
            ledger: Ledger::new(plan.limit, plan.window_ms, plan.users.count()),
            requests: [0; Class::ALL.len()],
            waited: [0; Class::ALL.len()],
            outages: 0,
            latency: Histogram::new(3)?,
            work: RedisWork::default(),
        })
    }

    pub fn requests_of(&self, classes: &[Class]) -> u64 {
        classes.iter().map(|class| self.requests[*class as usize]).sum()
    }

    /// The share of their requests that waited for Redis. `None` if there were none.
    pub fn waited(&self, classes: &[Class]) -> Option<f64> {
        let (requests, waited) = (self.requests_of(classes), classes.iter().map(|class| self.waited[*class as usize]));
        (requests > 0).then(|| waited.sum::<u64>() as f64 / requests as f64)
    }

    fn count(&mut self, class: Class, decider: Decider, took: Duration) {
        self.requests[class as usize] += 1;
        self.waited[class as usize] += u64::from(decider != Decider::Memory);
        self.outages += u64::from(decider == Decider::Outage);
        self.latency.saturating_record(took.as_micros() as u64);
    }
}

async fn ask(
    mut client: RateLimitServiceClient<Channel>,
    arrival: Arrival,
    limit: u32,
    is_measured: bool,
    seen: Rc<RefCell<Seen>>,
) -> anyhow::Result<()> {
    seen.borrow_mut().ledger.asked(arrival.user, wall_ms());
    let began = Instant::now();
    let response = client.should_rate_limit(request(arrival.user)).await?;
    let took = began.elapsed();
    let reply = Reply::read(response.get_ref(), limit)?;
    let mut seen = seen.borrow_mut();
    seen.ledger.answered(arrival.user, wall_ms(), reply.is_over);
    if is_measured {
        seen.count(arrival.class, reply.decider, took);
    }
    Ok(())
}

fn request(user: usize) -> RateLimitRequest {
    let entries = vec![Entry { key: "user".into(), value: format!("{user:032}") }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
}
