//! Talks to the other processes of the region: who speaks with MySQL, what should be published, what was heard.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::block_in_place;
use tokio::time::{sleep, sleep_until};

use crate::global::driver::{GlobalDriver, OriginLinks};
use crate::global::voice::Role;
use crate::regional::redis::{Lane, OriginError};
use crate::regional::voice::VoiceCall;

/// How long a call may take. The speaker's lease outlasts several of these.
const VOICE_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause after a call that failed.
const TALK_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait for an entry of the feed before asking again.
const LISTEN_WAIT: Duration = Duration::from_secs(1);
/// The pause before listening again after a failure.
const LISTEN_PAUSE: Duration = Duration::from_millis(200);
/// Likewise after one that does not pass by itself.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(30);
/// The shortest and the longest wait between looks at what is due, unless something wakes the task.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_secs(1);

impl GlobalDriver {
    /// Makes the calls that are due, until the process stops.
    pub(super) async fn speak(self: Arc<Self>) {
        while !self.is_leaving.load(Ordering::Relaxed) {
            let (soonest, latest) = (Instant::now() + LOOK_MIN, Instant::now() + LOOK_MAX);
            let at = self.exchange.voice_at_us().map_or(latest, |at_us| self.clock.instant(at_us));
            let at = at.clamp(soonest, latest);
            tokio::select! {
                () = sleep_until(at.into()) => {}
                () = self.wake_voice.notified() => {}
            }
            if !self.talk(false).await {
                // Without a connection a call fails at once, and what it had to say is still due.
                sleep(TALK_PAUSE).await;
            }
        }
    }

    /// Makes the call that is due, if there is one. False if it fails.
    pub(super) async fn talk(&self, is_turn: bool) -> bool {
        let Some(OriginLinks { calls, .. }) = &self.origin else { return true };
        let asked = self.now();
        let Some(call) = block_in_place(|| self.exchange.voice_call(is_turn, asked)) else { return true };
        let before = self.exchange.role();
        let answer = calls.speak(&call, VOICE_TIMEOUT).await;
        let is_heard = answer.is_ok();
        match answer {
            Ok(reply) => self.exchange.voice_replied(&call, asked.mono_us, &reply, self.now()),
            Err(error) => {
                let is_refused = error.is_forbidden();
                if is_refused {
                    self.warn_of_refusal(&error);
                }
                self.exchange.voice_failed(&call, is_refused, self.now());
            }
        }
        let role = self.exchange.role();
        if role != before {
            tracing::info!(role = role.word(), "who speaks with MySQL for the region has changed");
        }
        if is_heard {
            // There may be more to say.
            self.wake_voice.notify_one();
        }
        is_heard
    }

    /// Gives the lease up, so that another process takes it at once.
    pub(super) async fn say_farewell(&self, call: &VoiceCall) {
        if let Some(OriginLinks { calls, .. }) = &self.origin {
            // If it can't be said, the lease ends by itself.
            let _ = calls.speak(call, VOICE_TIMEOUT).await;
        }
    }

    /// Before the speaker publishes: finds out what others have mentioned, and how the origin counts that.
    pub(super) async fn gather(&self) {
        let Some(OriginLinks { calls, .. }) = self.origin.as_ref().filter(|_| self.exchange.role() == Role::Speaking)
        else {
            return;
        };
        self.talk(true).await;
        for read in block_in_place(|| self.exchange.cells_to_read(calls.is_cluster(), self.now())) {
            match calls.call(Lane::Replays, &read.call, VOICE_TIMEOUT).await {
                Ok(reply) => self.exchange.cells_read(&read, &reply, self.now()),
                // What can't be read is published as it was mentioned.
                Err(_) => return,
            }
        }
    }

    /// Hears the feed, for good.
    pub(super) async fn follow(self: Arc<Self>) {
        let Some(OriginLinks { feed, .. }) = &self.origin else { return };
        loop {
            match feed.listen(self.exchange.feed_place(), LISTEN_WAIT).await {
                Ok(items) if items.is_empty() => {}
                Ok(items) => {
                    for item in items {
                        let ages_ms = block_in_place(|| self.exchange.hear_feed(item, self.now()));
                        self.metrics.imported_ages(ages_ms);
                    }
                    self.seek().await;
                }
                Err(error) if error.is_forbidden() => {
                    self.warn_of_refusal(&error);
                    sleep(FORBIDDEN_PAUSE).await;
                }
                Err(_) => sleep(LISTEN_PAUSE).await,
            }
        }
    }

    fn warn_of_refusal(&self, error: &OriginError) {
        if self.refusals.is_due((), Instant::now()) {
            tracing::warn!(
                %error,
                "this process publishes and imports for itself: its Redis user may not do what it takes to share that"
            );
        }
    }
}
