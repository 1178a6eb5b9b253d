//! Drives the exchange between regions: clocks, timers, the connection to MySQL, and what the region's processes tell each
//! other over their Redis.
//!
//! One task publishes ([`publishing`]) and one imports ([`importing`]), each at its own pace; two see to it that one process
//! does that for all of its region ([`voice`]). No request waits for any of them.

mod importing;
mod publishing;
mod voice;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::clock::{Clock, Now};
use crate::complaints::Complaints;
use crate::engine::Engine;
use crate::global::exchange::{Exchange, ExchangeOptions};
use crate::global::metrics::{GlobalFigures, GlobalMetrics, TurnKind};
use crate::global::mysql::MySql;
use crate::global::mysql::error::MysqlError;
use crate::regional::redis::Redis;
use crate::rules::Ruleset;

/// How long a clean stop goes on publishing.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait after a migration that failed before trying again.
const MIGRATE_INTERVAL: Duration = Duration::from_secs(5);

/// The connections to the region's Redis over which its processes agree on who speaks for them.
#[derive(Clone)]
pub(crate) struct OriginLinks {
    /// The region's side of its Redis, shared with all else.
    pub calls: Redis,
    /// Waits for what the speaker hands on.
    pub feed: Redis,
}

/// How a driver is started, beside what it works with.
pub(crate) struct GlobalStart {
    /// Where the table is, without secrets.
    pub place: String,
    /// Whether the table is made, or brought up to date.
    pub migrates: bool,
    /// How long the table may be out of reach before it counts as down.
    pub outage_after: Duration,
}

/// The process's part in the exchange, at work.
pub(crate) struct GlobalDriver {
    exchange: Exchange,
    mysql: MySql,
    /// Where the table is, without secrets.
    place: String,
    clock: Clock,
    /// The region's Redis; `None` if it has none.
    origin: Option<OriginLinks>,
    /// Wakes the task that compares sensitive keys that were made with what others told.
    wake: Notify,
    /// Wakes the task that talks to the other processes of the region.
    wake_voice: Notify,
    is_leaving: AtomicBool,
    /// The task that hears the feed, which waits for most of its time.
    follower: OnceLock<AbortHandle>,
    /// One turn at a time: the last one of a stop waits for the one under way.
    publishing: tokio::sync::Mutex<()>,
    /// Keeps warnings to one a minute for each turn and reason.
    complaints: Complaints<(TurnKind, &'static str)>,
    /// Keeps the warning that Redis refuses something to once a minute.
    refusals: Complaints<()>,
    /// How long the table may be out of reach before it counts as down.
    outage_after: Duration,
    is_down: AtomicBool,
    /// Since when the table has been down, for those who ask.
    downtime: Mutex<Downtime>,
    /// Times, failures and ages since the start, as the driver sees them.
    pub metrics: GlobalMetrics,
}

impl fmt::Debug for GlobalDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Global").field("region", &self.exchange.options().region).finish_non_exhaustive()
    }
}

impl GlobalDriver {
    /// Starts to take part. Must be called on the runtime.
    pub(crate) fn start(
        engine: Arc<Engine>,
        mysql: MySql,
        origin: Option<OriginLinks>,
        options: ExchangeOptions,
        GlobalStart { place, migrates, outage_after }: GlobalStart,
    ) -> Arc<GlobalDriver> {
        let clock = Clock::since(Instant::now());
        let global = Arc::new(GlobalDriver {
            exchange: Exchange::new(engine, options, clock.now()),
            mysql,
            place,
            clock,
            origin,
            wake: Notify::new(),
            wake_voice: Notify::new(),
            is_leaving: AtomicBool::new(false),
            follower: OnceLock::new(),
            publishing: tokio::sync::Mutex::default(),
            complaints: Complaints::default(),
            refusals: Complaints::default(),
            outage_after,
            is_down: AtomicBool::new(false),
            downtime: Mutex::default(),
            metrics: GlobalMetrics::default(),
        });
        tokio::spawn(global.clone().prepare(migrates));
        tokio::spawn(global.clone().publish());
        tokio::spawn(global.clone().import());
        tokio::spawn(global.clone().match_digests());
        tokio::spawn(global.clone().watch());
        if global.origin.is_some() {
            tokio::spawn(global.clone().speak());
            let follower = tokio::spawn(global.clone().follow());
            // Set only here.
            let _ = global.follower.set(follower.abort_handle());
        }
        global
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    /// A monotonic time as an instant to sleep until.
    fn at(&self, mono_us: u64) -> tokio::time::Instant {
        self.clock.instant(mono_us).into()
    }

    /// Where the table is, without password.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// Whether other regions can't be heard, or can't hear this one.
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    /// How long it has been down, `None` if it is not, and how often it has been.
    pub(crate) fn downtime(&self) -> (Option<Duration>, u64) {
        let downtime = self.downtime.lock();
        (downtime.since.map(|since| since.elapsed()), downtime.times)
    }

    /// Notices when the table has been out of reach for too long, and when it is not any more.
    async fn watch(self: Arc<Self>) {
        loop {
            sleep(WATCH_INTERVAL).await;
            self.mysql.close_idle();
            let status = self.exchange.status(self.now());
            let too_long_us = u64::try_from(self.outage_after.as_micros()).unwrap_or(u64::MAX);
            let running_us = self.clock.running_us();
            let is_late = |ago_us: Option<u64>| ago_us.unwrap_or(running_us) > too_long_us;
            let is_down =
                is_late(status.imported_ago_us) || (status.is_publish_open && is_late(status.published_ago_us));
            if self.is_down.swap(is_down, Ordering::Relaxed) == is_down {
                continue;
            }
            let mut downtime = self.downtime.lock();
            downtime.since = is_down.then(Instant::now);
            downtime.times += u64::from(is_down);
            if is_down {
                tracing::warn!("MySQL is out of reach: limits hold in the region, on the last counts of the others");
            } else {
                tracing::warn!("MySQL is within reach again: limits hold over all regions");
            }
        }
    }

    pub(crate) fn figures(&self) -> GlobalFigures {
        GlobalFigures::new(&self.exchange, &self.metrics, self.place.clone(), self.now())
    }

    /// Takes over the rules in force.
    pub(crate) fn set_rules(&self, ruleset: &Ruleset) {
        self.exchange.set_rules(ruleset, self.now());
    }

    /// Has sensitive keys compared if the decision has made any. To be called after every decision.
    pub(crate) fn decided(&self) {
        if self.exchange.has_unmatched() {
            self.wake.notify_one();
        }
    }

    /// Migrates, if that was asked for, and says what to do if the table is not as it has to be.
    async fn prepare(self: Arc<Self>, migrates: bool) {
        if migrates {
            self.migrate().await;
        }
        if let Err(error) = self.mysql.check_schema().await {
            self.warn(TurnKind::Publish, &error, "counts are not shared with other regions for now");
        }
    }

    /// Migrates, as soon as MySQL lets us.
    async fn migrate(&self) {
        loop {
            match self.mysql.migrate().await {
                Ok(applied) => {
                    tracing::info!(applied = applied.len(), "the table that regions share is up to date");
                    return;
                }
                Err(error) => self.warn(TurnKind::Publish, &error, "the table could not be migrated: trying again"),
            }
            sleep(MIGRATE_INTERVAL).await;
        }
    }

    /// Compares sensitive keys with what others told, as soon as they are made.
    async fn match_digests(self: Arc<Self>) {
        loop {
            self.wake.notified().await;
            self.exchange.match_digests(self.now());
        }
    }

    /// Warns, but of the same turn and reason only once a minute.
    fn warn(&self, turn: TurnKind, error: &MysqlError, what: &str) {
        if self.complaints.is_due((turn, error.reason()), Instant::now()) {
            tracing::warn!(%error, "{what}");
        } else {
            tracing::debug!(%error, "{what}");
        }
    }

    /// Stops cleanly: publishes what others should know.
    pub(crate) async fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        if let Some(follower) = self.follower.get() {
            follower.abort();
        }
        let farewell = self.exchange.leave();
        if timeout(LEAVE_TIMEOUT, self.publish_once()).await.is_err() {
            tracing::warn!("stopped before other regions knew of all hits");
        }
        if let Some(farewell) = farewell {
            self.say_farewell(&farewell).await;
        }
        let _ = timeout(LEAVE_TIMEOUT, self.mysql.close()).await;
    }
}

/// How often to check whether the table is out of reach.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Since when the table has been out of reach, and how often it was.
#[derive(Debug, Default)]
struct Downtime {
    since: Option<Instant>,
    times: u64,
}
