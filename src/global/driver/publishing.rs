//! Turns of publishing: what others should know goes to MySQL.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::block_in_place;
use tokio::time::{sleep, sleep_until};

use crate::global::driver::GlobalDriver;
use crate::global::metrics::{StoreFailure, TurnKind};
use crate::global::mysql::error::{MysqlError, Remedy};
use crate::global::publish::{NextStep, Publication, StatementOutcome};

impl GlobalDriver {
    /// Publishes when that is due, until the process stops.
    pub(super) async fn publish(self: Arc<Self>) {
        while !self.is_leaving.load(Ordering::Relaxed) {
            sleep_until(self.at(self.exchange.publish_at_us())).await;
            if self.is_leaving.load(Ordering::Relaxed) {
                return;
            }
            self.publish_once().await;
        }
    }

    pub(super) async fn publish_once(&self) {
        let _turn = self.publishing.lock().await;
        self.gather().await;
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
}
