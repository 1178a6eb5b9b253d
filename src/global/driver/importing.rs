//! Turns of importing: what others have published comes from MySQL.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::block_in_place;
use tokio::time::{sleep, sleep_until};

use crate::global::driver::GlobalDriver;
use crate::global::exchange::TURN_STATEMENTS;
use crate::global::import::ReadScope;
use crate::global::metrics::{StoreFailure, TurnKind};
use crate::global::mysql::error::MysqlError;

/// How long lookups may go on in one turn: the next import should not wait for them.
const SEEK_MAX: Duration = Duration::from_millis(500);

impl GlobalDriver {
    /// Imports when that is due, until the process stops.
    pub(super) async fn import(self: Arc<Self>) {
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
        if !self.exchange.wants_reading(self.now()) {
            return self.exchange.passed_import(self.now());
        }
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
                self.metrics.imported_ages(ages_ms);
                // What was heard is handed on first.
                self.talk(false).await;
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
    pub(super) async fn seek(&self) {
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
}
