//! Drives the exchange between regions: clocks, timers and the connection to MySQL.
//!
//! One task publishes and one imports, each at its own pace. No request waits for either.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::{sleep, sleep_until, timeout};

use crate::clock::{Clock, Now};
use crate::complaints::Complaints;
use crate::engine::Engine;
use crate::global::exchange::{Exchange, ExchangeOptions, TURN_STATEMENTS};
use crate::global::import::ReadScope;
use crate::global::metrics::{GlobalFigures, GlobalMetrics, StoreFailure, TurnKind};
use crate::global::mysql::MySql;
use crate::global::mysql::error::{MysqlError, Remedy};
use crate::global::publish::{NextStep, Publication, StatementOutcome};
use crate::rules::Ruleset;

/// How long a clean stop goes on publishing.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long lookups may go on in one turn: the next import should not wait for them.
const SEEK_MAX: Duration = Duration::from_millis(500);
/// How long to wait after a migration that failed before trying again.
const MIGRATE_INTERVAL: Duration = Duration::from_secs(5);

/// The process's part in the exchange, at work.
pub(crate) struct GlobalDriver {
    exchange: Exchange,
    mysql: MySql,
    /// Where the table is, without secrets.
    place: String,
    clock: Clock,
    /// Wakes the task that compares sensitive keys that were made with what others told.
    wake: Notify,
    is_leaving: AtomicBool,
    /// One turn at a time: the last one of a stop waits for the one under way.
    publishing: tokio::sync::Mutex<()>,
    /// Keeps warnings to one a minute for each turn and reason.
    complaints: Complaints<(TurnKind, &'static str)>,
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
        place: String,
        options: ExchangeOptions,
        migrates: bool,
        outage_after: Duration,
    ) -> Arc<GlobalDriver> {
        let clock = Clock::since(Instant::now());
        let global = Arc::new(GlobalDriver {
            exchange: Exchange::new(engine, options, clock.now()),
            mysql,
            place,
            clock,
            wake: Notify::new(),
            is_leaving: AtomicBool::new(false),
            publishing: tokio::sync::Mutex::default(),
            complaints: Complaints::default(),
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

    async fn publish(self: Arc<Self>) {
        while !self.is_leaving.load(Ordering::Relaxed) {
            sleep_until(self.at(self.exchange.publish_at_us())).await;
            if self.is_leaving.load(Ordering::Relaxed) {
                return;
            }
            self.publish_once().await;
        }
    }

    async fn publish_once(&self) {
        let _turn = self.publishing.lock().await;
        let mut sending = block_in_place(|| self.exchange.collect(self.now()));
        if sending.is_empty() {
            return self.published_nothing().await;
        }
        let began = Instant::now();
        let region = &self.exchange.options().region;
        while let Some(rows) = sending.next() {
            let outcome = self.mysql.publish(region, rows).await;
            let sent = self.sent(&outcome);
            match sending.sent(sent) {
                NextStep::Go => {}
                // Random, so as not to stay in step with whoever was in the way.
                NextStep::Pause { for_us } => {
                    sleep(Duration::from_micros(for_us + rand::random_range(0..=for_us))).await
                }
                NextStep::End => break,
            }
        }
        self.publish_ended(&sending, began);
    }

    /// Ends a turn without rows. From time to time it asks whether MySQL would have taken any.
    async fn published_nothing(&self) {
        let mut does_answer = None;
        if self.exchange.wants_ping(self.now()) {
            let answer = self.mysql.server_now_ms().await;
            if let Err(error) = &answer {
                self.metrics.failed(TurnKind::Publish, StoreFailure::of(error));
                self.warn(TurnKind::Publish, error, "counts could not be published now");
            }
            does_answer = Some(answer.is_ok());
        }
        self.exchange.published_nothing(does_answer, self.now());
    }

    fn sent(&self, outcome: &Result<(), MysqlError>) -> StatementOutcome {
        let Err(error) = outcome else { return StatementOutcome::Done };
        match error.remedy() {
            Remedy::Retry => {
                self.metrics.conflict();
                StatementOutcome::Conflict
            }
            Remedy::Bisect => {
                self.metrics.failed(TurnKind::Publish, StoreFailure::of(error));
                self.warn(TurnKind::Publish, error, "some counts can't be published: the others are");
                StatementOutcome::Refused
            }
            Remedy::GiveUp => {
                self.metrics.failed(TurnKind::Publish, StoreFailure::of(error));
                self.warn(TurnKind::Publish, error, "counts can't be published: they are, as soon as MySQL takes them");
                if matches!(error, MysqlError::Schema(_)) {
                    self.exchange.doubt();
                }
                StatementOutcome::Failed
            }
        }
    }

    fn publish_ended(&self, sending: &Publication, began: Instant) {
        if sending.failed.is_empty() {
            self.metrics.took(TurnKind::Publish, began.elapsed());
        } else {
            tracing::debug!(rows = sending.failed.len(), "rows wait for the next turn");
        }
        self.exchange.published(sending, self.now());
    }

    async fn import(self: Arc<Self>) {
        while !self.is_leaving.load(Ordering::Relaxed) {
            // Looks again every 100 ms: rules that come into force want a turn at once.
            let at = self.at(self.exchange.import_at_us());
            tokio::select! {
                () = sleep_until(at) => self.import_once().await,
                () = sleep(Duration::from_millis(100)) => {}
            }
        }
    }

    async fn import_once(&self) {
        let began = Instant::now();
        let (reading, mut hearing) = self.exchange.reading(self.now());
        let mut clock = None;
        if !matches!(reading, ReadScope::Since { .. }) {
            match self.mysql.server_now_ms().await {
                // If the table is too large to be read at once, what changes is followed from here on.
                Ok(server_ms) => clock = Some(server_ms),
                Err(error) => return self.import_failed(&error, &reading),
            }
            // This looks at all keys, which takes its time.
            block_in_place(|| self.exchange.forget_told(&mut hearing));
        }
        let outcome = {
            // Each row has a time of its own: a full reading may take longer than a window.
            let mut each = |row| self.exchange.hear(&mut hearing, row, self.now());
            match &reading {
                ReadScope::All { from } => self.mysql.all_live(from.as_ref(), &mut each).await,
                ReadScope::Rules { names, from } => self.mysql.live_of_rules(names, from.as_ref(), &mut each).await,
                ReadScope::Since { ms } => self.mysql.changed_since(*ms, &mut each).await,
            }
        };
        match outcome {
            Ok(server_ms) => {
                let ages_ms = block_in_place(|| self.exchange.imported(hearing, &reading, server_ms, self.now()));
                self.metrics.took(TurnKind::Import, began.elapsed());
                ages_ms.into_iter().for_each(|age_ms| self.metrics.imported_age(Duration::from_millis(age_ms)));
                self.seek().await;
            }
            Err(error) => match clock {
                // Whoever ended it, this side, the server or the network between: the next part goes on there.
                Some(server_ms) if hearing.rows() > 0 => {
                    self.metrics.failed(TurnKind::Import, StoreFailure::of(&error));
                    self.warn(
                        TurnKind::Import,
                        &error,
                        "not all counts of other regions could be read at once: following what changes, the rest comes in parts",
                    );
                    block_in_place(|| self.exchange.partly_imported(hearing, &reading, server_ms, self.now()));
                }
                _ => self.import_failed(&error, &reading),
            },
        }
    }

    /// Looks up keys of which counts of other regions were left out. If that fails, the import has not: what others
    /// told was heard.
    async fn seek(&self) {
        let began = Instant::now();
        for _ in 0..TURN_STATEMENTS {
            let Some(mut lookup) = block_in_place(|| self.exchange.seek(self.now())) else { return };
            let cells = std::mem::take(&mut lookup.cells);
            let mut each = |row| self.exchange.found(&mut lookup, row, self.now());
            match self.mysql.find(&cells, &mut each).await {
                Ok(()) => self.exchange.sought(lookup, self.now()),
                Err(error) => {
                    self.metrics.failed(TurnKind::Import, StoreFailure::of(&error));
                    self.warn(TurnKind::Import, &error, "counts of other regions can't be looked up now");
                    return self.exchange.not_sought(lookup);
                }
            }
            if began.elapsed() > SEEK_MAX {
                return;
            }
        }
    }

    fn import_failed(&self, error: &MysqlError, reading: &ReadScope) {
        self.metrics.failed(TurnKind::Import, StoreFailure::of(error));
        self.warn(TurnKind::Import, error, "counts of other regions can't be imported: the last known ones stay");
        if matches!(error, MysqlError::Schema(_)) {
            self.exchange.doubt();
        }
        self.exchange.not_imported(reading, self.now());
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
        if timeout(LEAVE_TIMEOUT, self.publish_once()).await.is_err() {
            tracing::warn!("stopped before other regions knew of all hits");
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
