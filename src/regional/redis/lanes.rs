//! The connections in use, and the task that keeps them there.
//!
//! Each lane has one connection or none, and a call takes what is there. Whoever notices that a connection is of no use
//! takes it out at once. One that is only doubted serves until another has taken its place. The connector fills lanes
//! that lack a connection, with a growing pause between attempts. No call ever waits for it.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::wall_time;
use crate::regional::redis::backoff::Backoff;
use crate::regional::redis::dial::dial;
use crate::regional::redis::error::{LinkState, OriginError};
use crate::regional::redis::link::Link;
use crate::regional::redis::settings::RedisSettings;

/// A lane is only well if its connections hold for this long. If they break sooner, the pauses go on growing, even if
/// connecting works.
const STEADY: Duration = Duration::from_secs(1);
/// A call that times out casts doubt on a connection of at least this age. In place of a younger one, a new one would
/// do no better.
const DOUBTED_AFTER: Duration = Duration::from_secs(5);
/// How often a call that is late looks whether it is still worth waiting.
const LATE_LOOK: Duration = Duration::from_millis(20);
/// How long a call that is late waits for its connection when another has taken its place.
const LATE_AFTER_REPLACED: Duration = Duration::from_millis(100);
/// The longest pause between attempts while a lane is empty.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The longest pause between attempts while every lane has a connection, though one is doubted.
const PAUSE_OF_DOUBT_MAX: Duration = Duration::from_secs(5);
/// A failure that lasts is logged again after this time.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// One of the connections. They are apart so that a check never waits behind a replay, and a heartbeat behind neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    Checks,
    Replays,
    Beats,
    /// Waits for what the region's speaker hands on.
    Feed,
}

impl Lane {
    /// Those of a store.
    pub(super) const OF_CALLS: [Lane; 3] = [Lane::Checks, Lane::Replays, Lane::Beats];
}

/// A connection in use.
pub(super) struct Live {
    /// The connection itself; calls clone what they need of it.
    pub link: Link,
    /// Tells it from the connections that had its lane before.
    id: u64,
    since: Instant,
    since_wall: SystemTime,
    is_doubted: AtomicBool,
}

/// How the connections are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Where Redis is, without password.
    pub address: String,
    /// Since when every lane has its connection; `None` while one has none.
    pub connected_since: Option<SystemTime>,
    /// A connection in use has failed a call, and another is sought. In a Cluster it may be a single node.
    pub is_doubted: bool,
    /// Connections made since the start, three at first.
    pub connections: u64,
    /// The last failure of a connection or an attempt at one, which may be long past.
    pub last_error: Option<LastError>,
}

/// A failure of a connection, or of an attempt at one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastError {
    /// The whole failure as the log shows it, without passwords.
    pub text: String,
    /// [`OriginError::reason`]: one word, as in metrics.
    pub reason: &'static str,
    /// When it happened, by the wall clock.
    pub at: SystemTime,
}

/// The connections in use, one for each lane.
pub(super) struct Lanes {
    settings: RedisSettings,
    /// The lanes that there are.
    served: &'static [Lane],
    checks: ArcSwapOption<Live>,
    replays: ArcSwapOption<Live>,
    beats: ArcSwapOption<Live>,
    feed: ArcSwapOption<Live>,
    /// Wakes the connector: a lane lacks a connection that is not doubted.
    is_lacking: Notify,
    connections: AtomicU64,
    failures: Mutex<Failures>,
}

#[derive(Default)]
struct Failures {
    last: Option<LastError>,
    /// The last failure that was logged, and when.
    logged: Option<(String, Instant)>,
}

impl Lanes {
    pub(super) fn new(settings: RedisSettings, served: &'static [Lane]) -> Arc<Lanes> {
        Arc::new(Lanes {
            settings,
            served,
            checks: ArcSwapOption::empty(),
            replays: ArcSwapOption::empty(),
            beats: ArcSwapOption::empty(),
            feed: ArcSwapOption::empty(),
            is_lacking: Notify::new(),
            connections: AtomicU64::new(0),
            failures: Mutex::default(),
        })
    }

    pub(super) fn settings(&self) -> &RedisSettings {
        &self.settings
    }

    fn slot(&self, lane: Lane) -> &ArcSwapOption<Live> {
        match lane {
            Lane::Checks => &self.checks,
            Lane::Replays => &self.replays,
            Lane::Beats => &self.beats,
            Lane::Feed => &self.feed,
        }
    }

    /// The lane's connection, if it has one now.
    pub(super) fn live(&self, lane: Lane) -> Result<Arc<Live>, OriginError> {
        self.slot(lane).load_full().ok_or(OriginError::Down)
    }

    /// Waits for an answer, and judges the connection by it.
    pub(super) async fn answer<T>(
        &self,
        lane: Lane,
        live: &Live,
        within: Duration,
        asking: impl Future<Output = Result<T, OriginError>>,
    ) -> Result<T, OriginError> {
        let answer = tokio::time::timeout(within, asking).await.unwrap_or(Err(OriginError::Timeout { within }));
        match &answer {
            // In a Cluster, one node that answers says nothing about another.
            Ok(_) if !live.link.is_cluster() && live.is_doubted.load(Ordering::Relaxed) => {
                live.is_doubted.store(false, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(error) => self.judge(lane, live, error),
        }
        answer
    }

    /// Waits for an answer even after its time is up, so that the caller knows when nothing of what it has sent can arrive any
    /// more. Tells it when the time is up, with the failure that this is. An answer that has not come by `patience`, or that
    /// does not come although another connection has taken the place of this one, never will: the connection is closed.
    pub(super) async fn answer_at_last<T>(
        &self,
        lane: Lane,
        live: &Live,
        within: Duration,
        patience: Duration,
        asking: impl Future<Output = Result<T, OriginError>>,
        is_late: impl FnOnce(&OriginError),
    ) -> Result<T, OriginError> {
        let began = Instant::now();
        tokio::pin!(asking);
        if let Ok(answer) = tokio::time::timeout(within, asking.as_mut()).await {
            return self.answer(lane, live, within, async { answer }).await;
        }
        let error = OriginError::Timeout { within };
        self.judge(lane, live, &error);
        is_late(&error);
        let mut replaced = None;
        loop {
            if let Ok(answer) = tokio::time::timeout(LATE_LOOK, asking.as_mut()).await {
                return self.answer(lane, live, within, async { answer }).await;
            }
            let is_current = self.slot(lane).load().as_ref().is_some_and(|current| current.id == live.id);
            if !is_current {
                replaced.get_or_insert_with(Instant::now);
            }
            if began.elapsed() >= patience || replaced.is_some_and(|at: Instant| at.elapsed() >= LATE_AFTER_REPLACED) {
                live.link.close();
                return Err(OriginError::Timeout { within: began.elapsed() });
            }
        }
    }

    fn judge(&self, lane: Lane, live: &Live, error: &OriginError) {
        let is_young = live.since.elapsed() < DOUBTED_AFTER;
        match error.verdict() {
            LinkState::Keep => {}
            LinkState::Replace if is_young && matches!(error, OriginError::Timeout { .. }) => {}
            // The other nodes of a Cluster may be well.
            LinkState::TakeOut if !live.link.is_cluster() => self.take_out(lane, live.id, error),
            LinkState::Replace | LinkState::TakeOut => {
                if !live.is_doubted.swap(true, Ordering::Relaxed) {
                    self.note(error);
                    self.is_lacking.notify_one();
                }
            }
        }
    }

    fn take_out(&self, lane: Lane, id: u64, error: &OriginError) {
        let slot = self.slot(lane);
        let current = slot.load_full();
        if current.as_ref().is_some_and(|live| live.id == id) {
            // Changes nothing if another connection has taken its place meanwhile.
            slot.compare_and_swap(&current, None);
            self.note(error);
            self.is_lacking.notify_one();
        }
    }

    /// Puts a connection into use, unless the lane has one that serves better: see [`Link::is_whole`].
    pub(super) async fn offer(self: &Arc<Lanes>, lane: Lane, link: Link) {
        if self.slot(lane).load().is_some() {
            let is_whole = tokio::time::timeout(self.settings.connect_timeout, link.is_whole()).await;
            if !matches!(is_whole, Ok(Ok(true))) {
                return;
            }
        }
        self.install(lane, link);
    }

    /// Puts a connection into use. Calls that are under way on the one before may finish there.
    fn install(self: &Arc<Lanes>, lane: Lane, link: Link) {
        let id = self.connections.fetch_add(1, Ordering::Relaxed);
        let gone = link.gone();
        let live =
            Live { link, id, since: Instant::now(), since_wall: wall_time(), is_doubted: AtomicBool::new(false) };
        self.slot(lane).store(Some(Arc::new(live)));
        tracing::info!("connected to Redis at {} ({lane:?})", self.settings.place);
        let lanes = Arc::downgrade(self);
        tokio::spawn(async move {
            gone.await;
            if let Some(lanes) = Weak::upgrade(&lanes) {
                lanes.take_out(lane, id, &OriginError::Broken("it was closed".into()));
            }
        });
    }

    fn is_lacking(&self, lane: Lane) -> bool {
        self.slot(lane).load().as_ref().is_none_or(|live| live.is_doubted.load(Ordering::Relaxed))
    }

    /// Keeps the lanes filled, for good.
    pub(super) async fn keep_connected(self: Arc<Lanes>) {
        let mut backoff = Backoff::default();
        loop {
            let full_since = Instant::now();
            while !self.served.iter().any(|lane| self.is_lacking(*lane)) {
                self.is_lacking.notified().await;
            }
            if full_since.elapsed() >= STEADY {
                backoff.reset();
            }
            let is_empty = self.served.iter().any(|lane| self.slot(*lane).load().is_none());
            let longest = if is_empty { PAUSE_MAX } else { PAUSE_OF_DOUBT_MAX };
            tokio::time::sleep(backoff.next(longest, rand::random())).await;
            join_all(self.served.iter().map(|lane| self.fill(*lane))).await;
        }
    }

    async fn fill(self: &Arc<Lanes>, lane: Lane) {
        // Another may have filled it during the pause.
        if !self.is_lacking(lane) {
            return;
        }
        match dial(&self.settings).await {
            Ok(link) => self.offer(lane, link).await,
            Err(error) => self.note(&error),
        }
    }

    /// Remembers a failure, and logs it unless it was logged just before.
    pub(super) fn note(&self, error: &OriginError) {
        let text = error.to_string();
        let mut failures = self.failures.lock();
        let is_logged = |(logged, at): &(String, Instant)| *logged == text && at.elapsed() < LOGGED_EVERY;
        if !failures.logged.as_ref().is_some_and(is_logged) {
            tracing::warn!("Redis at {}: {text}", self.settings.place);
            failures.logged = Some((text.clone(), Instant::now()));
        }
        failures.last = Some(LastError { text, reason: error.reason(), at: wall_time() });
    }

    pub(super) fn status(&self) -> ConnectionStatus {
        let lives: Vec<_> = self.served.iter().map(|lane| self.slot(*lane).load_full()).collect();
        let since = |live: &Option<Arc<Live>>| live.as_ref().map(|live| live.since_wall);
        // `None` if one of them has none.
        let connected_since = lives.iter().map(since).collect::<Option<Vec<_>>>();
        let connected_since = connected_since.and_then(|since| since.into_iter().max());
        let is_doubted = lives.iter().flatten().any(|live| live.is_doubted.load(Ordering::Relaxed));
        ConnectionStatus {
            is_doubted,
            address: self.settings.place.to_string(),
            connected_since,
            connections: self.connections.load(Ordering::Relaxed),
            last_error: self.failures.lock().last.clone(),
        }
    }
}
