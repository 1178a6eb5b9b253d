//! The load: threads with a runtime each and their share of the connections, so that no request crosses from one core
//! to another.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cli::bench::choice::{KeyChoice, Spread};
use crate::cli::bench::http2::hpack::RequestBlocks;
use crate::cli::bench::link::{BenchLink, Site, keep_asking};
use crate::cli::bench::message::Template;
use crate::cli::bench::pace::{Pace, Ticks};
use crate::cli::bench::tally::{self, BenchTally};
use crate::cli::client::connect::{ConnectError, Target};

/// How long answers are awaited when the run is over.
const LATE_ANSWERS: Duration = Duration::from_secs(2);

/// What all threads work on.
pub(super) struct LoadPlan {
    /// The server, and how to connect to it.
    pub target: Target,
    /// The headers of requests. Each connection has a copy.
    pub blocks: RequestBlocks,
    /// The message of every request, but for its values.
    pub template: Template,
    /// How often each key is asked for.
    pub spread: Spread,
    /// At least 1, and never more than `connections`.
    pub threads: usize,
    /// In all threads together.
    pub connections: usize,
    /// Requests in flight on a connection.
    pub streams: usize,
    /// Requests per second of all threads together; `None` is the closed loop.
    pub rate: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum LoadPhase {
    /// Connections are being opened.
    Opening,
    Running(LoadStart),
    Over,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LoadStart {
    /// When the first request goes out, warm-up included.
    pub at: Instant,
    /// Requests that begin earlier are warm-up and not counted.
    pub counted_from: Instant,
}

/// A thread of the load.
pub(super) struct LoadWorker {
    /// What this thread has counted so far. Others may read it at any time.
    pub tally: Arc<Mutex<BenchTally>>,
    /// A permit for each request that is due, if there is a rate.
    pub due: Arc<Semaphore>,
    /// Gets one message, when all connections are open or one can't be opened.
    pub opened: oneshot::Receiver<Result<(), ConnectError>>,
    /// Closes when the thread has counted its last answer.
    pub ended: oneshot::Receiver<()>,
}

impl LoadWorker {
    pub(super) fn start(
        plan: Arc<LoadPlan>,
        number: usize,
        phase: watch::Receiver<LoadPhase>,
    ) -> anyhow::Result<LoadWorker> {
        let tally = Arc::new(Mutex::new(BenchTally::new()?));
        let due = Arc::new(Semaphore::new(0));
        let (tell_opened, opened) = oneshot::channel();
        let (tell_ended, ended) = oneshot::channel::<()>();
        let worker = LoadWorker { tally: tally.clone(), due: due.clone(), opened, ended };
        thread::Builder::new().name(format!("load-{number}")).spawn(move || {
            let _ended = tell_ended;
            let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
            runtime.block_on(work(plan, number, phase, tally, due, tell_opened));
            io::Result::Ok(())
        })?;
        Ok(worker)
    }
}

async fn work(
    plan: Arc<LoadPlan>,
    number: usize,
    mut phase: watch::Receiver<LoadPhase>,
    tally: Arc<Mutex<BenchTally>>,
    due: Arc<Semaphore>,
    tell_opened: oneshot::Sender<Result<(), ConnectError>>,
) {
    let mut opened = Vec::new();
    for _ in (number..plan.connections).step_by(plan.threads) {
        match BenchLink::open(&plan).await {
            Ok(link) => opened.push(link),
            Err(error) => return drop(tell_opened.send(Err(error))),
        }
    }
    let _ = tell_opened.send(Ok(()));
    // If the channel is closed, nobody waits for this any more.
    let Ok(LoadPhase::Running(start)) =
        phase.wait_for(|phase| !matches!(phase, LoadPhase::Opening)).await.map(|it| *it)
    else {
        return;
    };
    let beat = plan.rate.map(|rate| (Ticks::new(start.at, rate, number, plan.threads), due));
    let choice = RefCell::new(KeyChoice::new(plan.spread, rand::random()));
    let site = Rc::new(Site {
        pace: Pace::new(beat),
        plan,
        choice,
        tally,
        counted_from: start.counted_from,
        in_flight: Cell::new(0),
    });
    let mut links = JoinSet::new();
    for link in opened {
        links.spawn_local(keep_asking(site.clone(), link));
    }
    let _ = phase.wait_for(|phase| matches!(phase, LoadPhase::Over)).await;
    let unsent = site.pace.end();
    let _ = timeout(LATE_ANSWERS, async { while links.join_next().await.is_some() {} }).await;
    let mut tally = site.tally.lock();
    if site.counted_from < Instant::now() {
        tally.failed(tally::UNSENT, unsent);
    }
    tally.failed(tally::UNANSWERED, site.in_flight.get());
}
