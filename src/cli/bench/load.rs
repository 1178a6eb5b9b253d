//! The load: threads, connections, and streams that ask.
//!
//! Each thread has a runtime of its own and its share of the connections, so that no request crosses from one core to
//! another. On a connection every stream in flight is a small loop. Requests that become possible together (their
//! answers came in one read) leave in one write.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::cli::bench::choice::{Choice, Spread};
use crate::cli::bench::message::Template;
use crate::cli::bench::pace::{Beat, Pace};
use crate::cli::bench::tally::{self, Tally, kind, verdict};
use crate::cli::client::connect::{ConnectError, Sender, Target};
use crate::cli::client::exchange::{Failure, ask};

/// How long answers are waited for when the run is over.
const LATE_ANSWERS: Duration = Duration::from_secs(2);
/// How long to wait before a server that went away is tried again: this at first, then twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What all threads work on.
pub struct Plan {
    pub target: Target,
    pub template: Template,
    pub spread: Spread,
    pub threads: usize,
    pub connections: usize,
    pub streams: usize,
    /// Requests per second of all threads together; `None` is the closed loop.
    pub rate: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
pub enum Phase {
    /// Connections are being opened.
    Opening,
    Running(Start),
    Over,
}

#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub at: Instant,
    /// What begins earlier is warm-up, and not counted.
    pub counted_from: Instant,
}

/// A thread of the load.
pub struct Worker {
    pub tally: Arc<Mutex<Tally>>,
    /// Requests that are due, where there is a rate.
    pub due: Arc<Semaphore>,
    /// Told once, when all connections are open or one can't be opened.
    pub opened: oneshot::Receiver<Result<(), ConnectError>>,
    /// Closes when the thread has counted its last answer.
    pub ended: oneshot::Receiver<()>,
}

impl Worker {
    pub fn start(plan: Arc<Plan>, number: usize, phase: watch::Receiver<Phase>) -> anyhow::Result<Worker> {
        let tally = Arc::new(Mutex::new(Tally::new()?));
        let due = Arc::new(Semaphore::new(0));
        let (tell_opened, opened) = oneshot::channel();
        let (tell_ended, ended) = oneshot::channel::<()>();
        let worker = Worker { tally: tally.clone(), due: due.clone(), opened, ended };
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
    plan: Arc<Plan>,
    number: usize,
    mut phase: watch::Receiver<Phase>,
    tally: Arc<Mutex<Tally>>,
    due: Arc<Semaphore>,
    tell_opened: oneshot::Sender<Result<(), ConnectError>>,
) {
    let mut senders = Vec::new();
    for _ in (number..plan.connections).step_by(plan.threads) {
        match plan.target.open(plan.streams).await {
            Ok(sender) => senders.push(sender),
            Err(error) => return drop(tell_opened.send(Err(error))),
        }
    }
    let _ = tell_opened.send(Ok(()));
    // A channel that closes says that nobody waits for this any more.
    let Ok(Phase::Running(start)) = phase.wait_for(|phase| !matches!(phase, Phase::Opening)).await.map(|it| *it) else {
        return;
    };
    let beat = plan.rate.map(|rate| (Beat::new(start.at, rate, number, plan.threads), due));
    let choice = RefCell::new(Choice::new(plan.spread, rand::random()));
    let site = Rc::new(Site {
        pace: Pace::new(beat),
        plan,
        choice,
        tally,
        counted_from: start.counted_from,
        in_flight: Cell::new(0),
    });
    let mut links = JoinSet::new();
    for sender in senders {
        links.spawn_local(link(site.clone(), sender));
    }
    let _ = phase.wait_for(|phase| matches!(phase, Phase::Over)).await;
    let unsent = site.pace.end();
    let _ = timeout(LATE_ANSWERS, async { while links.join_next().await.is_some() {} }).await;
    let mut tally = site.tally.lock();
    if site.counted_from < Instant::now() {
        tally.failed(tally::UNSENT, unsent);
    }
    tally.failed(tally::UNANSWERED, site.in_flight.get());
}

/// What the streams of a thread share.
struct Site {
    plan: Arc<Plan>,
    choice: RefCell<Choice>,
    pace: Pace,
    /// Locked by its own thread all the time and by the one that shows progress now and then.
    tally: Arc<Mutex<Tally>>,
    counted_from: Instant,
    /// Counted requests that have no answer yet.
    in_flight: Cell<u64>,
}

impl Site {
    fn message(&self) -> Bytes {
        let mut choice = self.choice.borrow_mut();
        self.plan.template.message(|| choice.next())
    }

    fn failed(&self, kind: &'static str) {
        if Instant::now() >= self.counted_from {
            self.tally.lock().failed(kind, 1);
        }
    }
}

/// A connection, opened again whenever it ends.
async fn link(site: Rc<Site>, first: Sender) {
    let mut opened = Some(first);
    let mut pause = PAUSE_MIN;
    while !site.pace.is_over() {
        let sender = match opened.take() {
            Some(sender) => sender,
            None => match site.plan.target.open(site.plan.streams).await {
                Ok(sender) => sender,
                Err(_) => {
                    site.failed(tally::CONNECT);
                    pause = rest(pause).await;
                    continue;
                }
            },
        };
        let outcomes = Rc::new(Cell::new(0));
        let mut streams = JoinSet::new();
        for _ in 0..site.plan.streams {
            streams.spawn_local(stream(site.clone(), sender.clone(), outcomes.clone()));
        }
        drop(sender);
        while streams.join_next().await.is_some() {}
        if outcomes.get() > 0 {
            pause = PAUSE_MIN;
        } else if !site.pace.is_over() {
            // One that closes every connection unused must not make this loop spin.
            site.failed(tally::TURNED_AWAY);
            pause = rest(pause).await;
        }
    }
}

/// Waits, and says how long to wait the next time.
async fn rest(pause: Duration) -> Duration {
    sleep(pause).await;
    (pause * 2).min(PAUSE_MAX)
}

/// Asks again and again, until the connection takes no more or the run is over.
async fn stream(site: Rc<Site>, mut sender: Sender, outcomes: Rc<Cell<u64>>) {
    while let Some(begun) = site.pace.next().await {
        let is_counted = begun >= site.counted_from;
        let counted = u64::from(is_counted);
        site.in_flight.set(site.in_flight.get() + counted);
        let answered = ask(&mut sender, site.plan.target.head.clone(), site.message()).await;
        site.in_flight.set(site.in_flight.get() - counted);
        let failure = match answered.map(|answer| verdict(&answer)) {
            Ok(Some(verdict)) => {
                outcomes.set(outcomes.get() + 1);
                if is_counted {
                    site.tally.lock().answered(verdict, begun.elapsed());
                }
                continue;
            }
            Ok(None) => Failure::Malformed("not a RateLimitResponse"),
            Err(Failure::Closed) => return site.pace.put_back(begun),
            Err(Failure::Refused) => {
                site.pace.put_back(begun);
                // The connection closes, or the server has enough for now.
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(failure) => failure,
        };
        outcomes.set(outcomes.get() + 1);
        if is_counted {
            site.tally.lock().failed(kind(&failure), 1);
        }
    }
}
