//! Measures the exchange between regions: rows, turns, and how old the news of other regions is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::clock::{Now, wall_time};
use crate::global::exchange::{Exchange, ExchangeStatus};
use crate::global::mysql::error::MysqlError;
use crate::measure::histogram::Histogram;
use crate::measure::times::Times;

/// The two kinds of turns at the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TurnKind {
    Publish,
    Import,
}

impl TurnKind {
    pub(crate) const ALL: [TurnKind; 2] = [TurnKind::Publish, TurnKind::Import];

    pub(crate) fn word(self) -> &'static str {
        match self {
            TurnKind::Publish => "publish",
            TurnKind::Import => "import",
        }
    }
}

/// Why a statement failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreFailure {
    /// [`MysqlError::reason`]: one word, by which failures are counted.
    pub reason: &'static str,
    /// The whole failure as the log shows it, without passwords.
    pub text: String,
    /// When it happened, by this machine's wall clock.
    pub at: SystemTime,
}

impl StoreFailure {
    pub(crate) fn of(error: &MysqlError) -> StoreFailure {
        StoreFailure { reason: error.reason(), text: error.to_string(), at: wall_time() }
    }
}

/// Counts since the start, of what the driver sees.
#[derive(Debug, Default)]
pub(crate) struct GlobalMetrics {
    times: [Histogram; 2],
    /// How old rows were at their import, if they told something new.
    ages: Histogram,
    errors: Mutex<BTreeMap<(TurnKind, &'static str), u64>>,
    last_error: Mutex<Option<(TurnKind, StoreFailure)>>,
    conflicts: AtomicU64,
}

impl GlobalMetrics {
    pub(crate) fn took(&self, turn: TurnKind, time: Duration) {
        self.times[turn as usize].record(time);
    }

    pub(crate) fn imported_ages(&self, ages_ms: Vec<u64>) {
        ages_ms.into_iter().for_each(|age_ms| self.ages.record(Duration::from_millis(age_ms)));
    }

    pub(crate) fn failed(&self, turn: TurnKind, failure: StoreFailure) {
        *self.errors.lock().entry((turn, failure.reason)).or_default() += 1;
        *self.last_error.lock() = Some((turn, failure));
    }

    /// Counts a statement that lost against another one, and is tried again.
    pub(crate) fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }
}

/// Everything about the exchange, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct GlobalFigures {
    /// The region of this process.
    pub region: Box<str>,
    /// All regions, as configured.
    pub regions: Vec<Box<str>>,
    /// Where the table is, without password.
    pub place: String,
    /// Breakers, clocks, and what waits, as the state machine has them.
    pub status: ExchangeStatus,
    /// Rows that MySQL took.
    pub published_rows: u64,
    /// Rows that MySQL did not take.
    pub refused_rows: u64,
    /// Rows that were read.
    pub imported_rows: u64,
    /// How often everything was read.
    pub full_reads: u64,
    /// How often the rows of rules that became known were read.
    pub rule_reads: u64,
    /// Keys that were made because other regions had counted them.
    pub created_keys: u64,
    /// Keys that were looked up, because counts of other regions had been left out.
    pub sought_keys: u64,
    /// Rows of the last reading that succeeded or came in part.
    pub rows_last_import: u64,
    /// Rows that were left out, by reason.
    pub ignored_rows: [(&'static str, u64); 3],
    /// How long turns took that succeeded.
    pub times: [(TurnKind, Times); 2],
    /// How old the news of other regions was when it was imported.
    pub ages: Times,
    /// Statements that failed, by turn and reason.
    pub errors: BTreeMap<(TurnKind, &'static str), u64>,
    /// The last failure and the turn that met it, however long ago; `None` if nothing has failed since the start.
    pub last_error: Option<(TurnKind, StoreFailure)>,
    /// Statements that were tried again.
    pub conflicts: u64,
    /// What was told and heard over the region's Redis; `None` if the region has none.
    pub voice: Option<VoiceFigures>,
}

/// What this process has told the others of its region for the sake of other regions, and heard from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VoiceFigures {
    /// Cells that this process has mentioned to the speaker.
    pub mentions_made: u64,
    /// Cells that others have mentioned to this process.
    pub mentions_heard: u64,
    /// Entries of the feed that this process has appended, and their bytes.
    pub handed_on: [u64; 2],
    /// Entries of the feed that it has heard, and their bytes.
    pub heard: [u64; 2],
    /// How often it lacked something of the feed, and read the table itself.
    pub gaps: u64,
    /// Mentions and entries that made no sense.
    pub malformed: u64,
}

impl GlobalFigures {
    pub(crate) fn new(exchange: &Exchange, metrics: &GlobalMetrics, place: String, now: Now) -> GlobalFigures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &exchange.counts;
        GlobalFigures {
            region: exchange.options().region.clone(),
            regions: exchange.options().regions.clone(),
            place,
            status: exchange.status(now),
            published_rows: count(&counts.published_rows),
            refused_rows: count(&counts.refused_rows),
            imported_rows: count(&counts.imported_rows),
            full_reads: count(&counts.full_reads),
            rule_reads: count(&counts.rule_reads),
            created_keys: count(&counts.created_keys),
            sought_keys: count(&counts.sought_keys),
            rows_last_import: count(&counts.rows_last_import),
            ignored_rows: [
                ("absurd", count(&counts.absurd_rows)),
                ("no_rule", count(&counts.unknown_rows)),
                ("no_room", count(&counts.roomless_rows)),
            ],
            times: TurnKind::ALL.map(|turn| (turn, Times::of(&metrics.times[turn as usize]))),
            ages: Times::of(&metrics.ages),
            errors: metrics.errors.lock().clone(),
            last_error: metrics.last_error.lock().clone(),
            conflicts: count(&metrics.conflicts),
            voice: exchange.options().process.map(|_| VoiceFigures {
                mentions_made: count(&counts.mentions_made),
                mentions_heard: count(&counts.mentions_heard),
                handed_on: counts.handed_on.each_ref().map(count),
                heard: counts.heard.each_ref().map(count),
                gaps: count(&counts.gaps),
                malformed: count(&counts.malformed),
            }),
        }
    }

    /// Seconds since each turn last succeeded.
    pub(crate) fn since_success(&self) -> [(TurnKind, Option<f64>); 2] {
        let seconds = |us: Option<u64>| us.map(|us| us as f64 / 1e6);
        let ExchangeStatus { published_ago_us, imported_ago_us, .. } = self.status;
        [(TurnKind::Publish, seconds(published_ago_us)), (TurnKind::Import, seconds(imported_ago_us))]
    }

    /// Of each turn: whether its breaker is open, and how often it has opened.
    pub(crate) fn breakers(&self) -> [(TurnKind, bool, u64); 2] {
        let ExchangeStatus { is_publish_open, is_import_open, publish_opened, import_opened, .. } = self.status;
        [(TurnKind::Publish, is_publish_open, publish_opened), (TurnKind::Import, is_import_open, import_opened)]
    }

    /// How long ago each region last changed a row, in milliseconds by the server's clock; `None` if it never has.
    /// Regions that are not configured, but have rows, come last.
    pub(crate) fn seen(&self) -> Vec<(&str, Option<u64>)> {
        let ago_ms = |at_ms: &u64| self.status.server_ms.unwrap_or(*at_ms).saturating_sub(*at_ms);
        let configured = self.regions.iter().map(|region| (&**region, self.status.seen.get(region).map(ago_ms)));
        let strangers = self.status.seen.iter().filter(|(region, _)| !self.regions.contains(region));
        configured.chain(strangers.map(|(region, at_ms)| (&**region, Some(ago_ms(at_ms))))).collect()
    }
}
