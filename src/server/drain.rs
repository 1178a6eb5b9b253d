//! Stopping without a failed call.
//!
//! Envoy must hear NOT_SERVING before connections go away. So a stop has three phases: say so and go on accepting and
//! answering for the drain delay; then ask every connection to finish (GOAWAY); then, after the drain timeout, close what
//! is left.

use tokio::sync::watch;

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrainPhase {
    Serving,
    /// Health says NOT_SERVING, but the ports still accept and answer.
    Announced,
    /// No new connections; open ones finish.
    Closing,
}

/// Tells everyone which phase it is.
#[derive(Debug)]
pub(crate) struct Drainer(watch::Sender<DrainPhase>);

/// Knows which phase it is.
#[derive(Clone, Debug)]
pub(crate) struct Drain(watch::Receiver<DrainPhase>);

pub(crate) fn channel() -> (Drainer, Drain) {
    let (sender, receiver) = watch::channel(DrainPhase::Serving);
    (Drainer(sender), Drain(receiver))
}

impl Drainer {
    pub(crate) fn enter(&self, phase: DrainPhase) {
        self.0.send_replace(phase);
    }
}

impl Drain {
    pub(crate) fn has_begun(&self) -> bool {
        *self.0.borrow() > DrainPhase::Serving
    }

    /// Waits until connections have to finish.
    pub(crate) async fn closing(&mut self) {
        // The sender lives as long as the service; without it there is nothing left to serve either.
        let _ = self.0.wait_for(|phase| *phase >= DrainPhase::Closing).await;
    }
}
