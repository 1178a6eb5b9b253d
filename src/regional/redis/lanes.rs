//! The connections to a server in use, and the task that keeps them there.
//!
//! Each lane has one connection or none, and a call takes what is there. Whoever notices that a connection is of no use
//! takes it out at once. One that is only doubted serves until another has taken its place. The connector fills lanes
//! that lack a connection, with a growing pause between attempts. No call ever waits for it.
//!
//! A connection is doubted when the server owes an answer and nothing at all has come for a while. An answer that takes its
//! time is no reason for another connection: that would not be answered any sooner.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use futures_util::future::join_all;
use tokio::sync::Notify;

use crate::clock::wall_time;
use crate::regional::redis::backoff::Backoff;
use crate::regional::redis::dial::dial;
use crate::regional::redis::error::{LinkState, OriginError};
use crate::regional::redis::failures::{Failures, LastError};
use crate::regional::redis::link::Link;
use crate::regional::redis::settings::RedisSettings;

/// A lane is only well if its connections hold for this long. If they break sooner, the pauses go on growing, even if
/// connecting works.
const STEADY: Duration = Duration::from_secs(1);
/// A connection of at least this age is doubted. In place of a younger one, a new one would do no better.
const DOUBTED_AFTER: Duration = Duration::from_secs(5);
/// And only if nothing has come over it for this long, or for as long as the caller has waited, though an answer is owed.
const SILENCE: Duration = Duration::from_millis(500);
/// How often a call that is late looks whether it is still worth waiting.
const LATE_LOOK: Duration = Duration::from_millis(20);
/// How long a call that is late waits for its connection when another has taken its place.
const LATE_AFTER_REPLACED: Duration = Duration::from_millis(100);
/// The longest pause between attempts while a lane is empty, or nothing comes over its connection: another server may have
/// taken over.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The longest pause between attempts while every lane has a connection that is answered, if only with refusals.
const PAUSE_OF_DOUBT_MAX: Duration = Duration::from_secs(5);

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
    since_wall: SystemTime,
    is_doubted: AtomicBool,
}

impl Live {
    /// The server owes an answer, and has said nothing for a while.
    fn is_silent(&self) -> bool {
        self.link.signs().silence() >= SILENCE
    }
}

/// How the connections are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Where Redis is, without password.
    pub address: String,
    /// Since when every lane has its connection; `None` while one has none. In a Cluster: since when a node has them all.
    pub connected_since: Option<SystemTime>,
    /// Nothing comes over a connection in use, and another is sought; or a node of a Cluster has none.
    pub is_doubted: bool,
    /// Connections made since the start, three to a server at first.
    pub connections: u64,
    /// The last failure of a connection or an attempt at one, which may be long past.
    pub last_error: Option<LastError>,
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
    /// Told of every call that fails: the slots of a Cluster may have moved.
    trouble: Arc<Notify>,
    connections: AtomicU64,
    failures: Failures,
}

impl Lanes {
    pub(super) fn new(settings: RedisSettings, served: &'static [Lane], trouble: Arc<Notify>) -> Arc<Lanes> {
        Arc::new(Lanes {
            settings,
            served,
            checks: ArcSwapOption::empty(),
            replays: ArcSwapOption::empty(),
            beats: ArcSwapOption::empty(),
            feed: ArcSwapOption::empty(),
            is_lacking: Notify::new(),
            trouble,
            connections: AtomicU64::new(0),
            failures: Failures::default(),
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
            Ok(_) if live.is_doubted.load(Ordering::Relaxed) => live.is_doubted.store(false, Ordering::Relaxed),
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
        self.trouble.notify_one();
        let signs = live.link.signs();
        let is_heard = |within: Duration| signs.age() < DOUBTED_AFTER || signs.silence() < SILENCE.max(within);
        match error.verdict() {
            LinkState::Keep => {}
            LinkState::Replace if matches!(error, OriginError::Timeout { within } if is_heard(*within)) => {}
            LinkState::TakeOut => self.take_out(lane, live.id, error),
            LinkState::Replace => {
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

    /// Puts a connection into use. Calls that are under way on the one before may finish there.
    fn install(self: &Arc<Lanes>, lane: Lane, link: Link) {
        let id = self.connections.fetch_add(1, Ordering::Relaxed);
        let gone = link.gone();
        let live = Live { link, id, since_wall: wall_time(), is_doubted: AtomicBool::new(false) };
        self.slot(lane).store(Some(Arc::new(live)));
        tracing::info!("connected to Redis at {} ({lane:?})", self.settings.place);
        let lanes = Arc::downgrade(self);
        tokio::spawn(async move {
            gone.await;
            if let Some(lanes) = Weak::upgrade(&lanes) {
                lanes.trouble.notify_one();
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
        let mut has_failed = false;
        loop {
            let full_since = Instant::now();
            while !self.served.iter().any(|lane| self.is_lacking(*lane)) {
                self.is_lacking.notified().await;
            }
            if full_since.elapsed() >= STEADY {
                backoff.reset();
            }
            let is_empty = self.served.iter().any(|lane| self.slot(*lane).load().is_none());
            let is_silent = |lane: &Lane| self.slot(*lane).load().as_ref().is_some_and(|live| live.is_silent());
            let is_urgent = is_empty || self.served.iter().any(is_silent);
            let longest = if is_urgent { PAUSE_MAX } else { PAUSE_OF_DOUBT_MAX };
            tokio::time::sleep(backoff.next(longest, rand::random())).await;
            has_failed = !self.fill_all(has_failed || !is_empty).await;
        }
    }

    /// Fills the lanes that lack a connection. With `one_first`, one of them finds out whether the server takes connections.
    /// False if that fails.
    async fn fill_all(self: &Arc<Lanes>, one_first: bool) -> bool {
        if !one_first {
            return join_all(self.served.iter().map(|lane| self.fill(*lane))).await.iter().all(|is_filled| *is_filled);
        }
        for lane in self.served {
            if !self.fill(*lane).await {
                return false;
            }
        }
        true
    }

    /// Makes a connection for a lane that lacks one. False if that fails.
    async fn fill(self: &Arc<Lanes>, lane: Lane) -> bool {
        // It may have been filled, or be heard of again.
        if !self.is_lacking(lane) {
            return true;
        }
        match dial(&self.settings).await {
            Ok(link) => self.install(lane, link),
            Err(error) => {
                self.note(&error);
                return false;
            }
        }
        true
    }

    /// Whether every lane has its connection.
    pub(super) fn is_connected(&self) -> bool {
        self.served.iter().all(|lane| self.slot(*lane).load().is_some())
    }

    /// Closes all connections, for good: the server has nothing to do with us any more. The connector has to be stopped before.
    pub(super) fn close(&self) {
        for live in self.served.iter().filter_map(|lane| self.slot(*lane).swap(None)) {
            live.link.close();
        }
    }

    fn note(&self, error: &OriginError) {
        self.failures.note(&self.settings.place, error);
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
            last_error: self.failures.last(),
        }
    }
}
