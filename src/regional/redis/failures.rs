//! The last failure of a connection, for people: in the log once a minute, and in the figures.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::clock::wall_time;
use crate::regional::redis::error::OriginError;

/// A failure that lasts is logged again after this time.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

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

/// What has failed last.
#[derive(Default)]
pub(super) struct Failures(Mutex<Known>);

#[derive(Default)]
struct Known {
    last: Option<LastError>,
    /// The last failure that was logged, and when.
    logged: Option<(String, Instant)>,
}

impl Failures {
    /// Remembers a failure, and logs it unless it was logged just before.
    pub(super) fn note(&self, place: &impl fmt::Display, error: &OriginError) {
        let text = error.to_string();
        let mut known = self.0.lock();
        let is_logged = |(logged, at): &(String, Instant)| *logged == text && at.elapsed() < LOGGED_EVERY;
        if !known.logged.as_ref().is_some_and(is_logged) {
            tracing::warn!("Redis at {place}: {text}");
            known.logged = Some((text.clone(), Instant::now()));
        }
        known.last = Some(LastError { text, reason: error.reason(), at: wall_time() });
    }

    pub(super) fn last(&self) -> Option<LastError> {
        self.0.lock().last.clone()
    }
}
