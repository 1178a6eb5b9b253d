//! Talks to the other processes of the region: who speaks with MySQL, what should be published, what was heard.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::block_in_place;
use tokio::time::{sleep, sleep_until};

use crate::global::driver::{GlobalDriver, OriginLinks};
use crate::global::spoken_cells::CellsRead;
use crate::global::voice::Role;
use crate::regional::node_map::NodeId;
use crate::regional::redis::cluster_slot::{cluster_slot, voice_slot};
use crate::regional::redis::{Lane, OriginError};
use crate::regional::voice::VoiceCall;

/// How long a call may take. The speaker's lease outlasts several of these.
const VOICE_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause after a call that failed.
const TALK_PAUSE: Duration = Duration::from_millis(100);
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
        let is_heard = self.talk(true).await;
        let map = calls.maps().borrow().clone();
        // One that has just let its time pass is not waited for again.
        let silent = (!is_heard).then(|| map.of(voice_slot()));
        let mut reads: BTreeMap<NodeId, Vec<CellsRead>> = BTreeMap::new();
        for read in block_in_place(|| self.exchange.cells_to_read(calls.is_cluster(), self.now())) {
            let node = map.of(read.call.parts.first().map_or(0, |part| cluster_slot(&part.key)));
            if Some(node) != silent {
                reads.entry(node).or_default().push(read);
            }
        }
        // What can't be read is published as it was mentioned.
        each_node(reads, |read| async move {
            match calls.call(Lane::Replays, &read.call, VOICE_TIMEOUT).await {
                Ok(reply) => self.exchange.cells_read(&read, &reply, self.now()),
                Err(error) => return error.is_misdirected(),
            }
            true
        })
        .await;
    }

    /// Hears the feed, for good.
    pub(super) async fn follow(self: Arc<Self>) {
        let Some(OriginLinks { feed, .. }) = &self.origin else { return };
        loop {
            match feed.listen(self.exchange.feed_place()).await {
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

/// Asks nodes side by side, and each of them one thing after the other until it fails: one that hangs holds nobody else up,
/// and costs the time of one call. `ask` says whether to go on with the node.
async fn each_node<T, F: Future<Output = bool>>(of_node: BTreeMap<NodeId, Vec<T>>, ask: impl Fn(T) -> F) {
    let ask = &ask;
    let asking = of_node.into_values().map(|things| async move {
        for thing in things {
            if !ask(thing).await {
                return;
            }
        }
    });
    join_all(asking).await;
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;

    /// What goes to a node was not read any more after another one had failed.
    #[tokio::test]
    async fn a_node_that_hangs_holds_up_no_reads_of_others() {
        let numbers = |first: u32| (first..first + 3).collect::<Vec<_>>();
        let of_node = BTreeMap::from([(NodeId(1), numbers(10)), (NodeId(2), numbers(20)), (NodeId(3), numbers(30))]);
        let (asked, others) = (Mutex::new(Vec::new()), Notify::new());
        each_node(of_node, |number| {
            let (asked, others) = (&asked, &others);
            async move {
                asked.lock().push(number);
                match number {
                    // Fails only when the others have been asked everything.
                    10 => others.notified().await,
                    32 => others.notify_one(),
                    _ => {}
                }
                number != 10 && number != 21
            }
        })
        .await;
        let mut asked = asked.into_inner();
        asked.sort_unstable();
        assert_eq!(asked, [10, 20, 21, 30, 31, 32]);
    }
}
