//! Calls that last: health `Watch` and reflection, open until one of the two sides ends them.
//!
//! To hold one open costs a client nothing, so each counts as open for as long as it lasts. A connection may have a few of
//! them, and all connections together half of the calls that may be open: the other half is for clients that want an answer.
//! A Watch that hears nothing for days is fine. No time limit ends it, unless its client does not take an answer (see
//! `call.rs`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;
use tokio::sync::watch;

use crate::server::admission::Admission;

/// How many may be open on one connection. A client watches a name or two, and a tool asks on one stream.
pub(crate) const PER_CONNECTION_MAX: usize = 16;

/// Resolves when a connection is asked to finish.
pub(crate) type EndSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why there is no place for a call that lasts.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum NoLastingPlace {
    #[error(
        "{PER_CONNECTION_MAX} calls of Watch and reflection are open on this connection, which is the most that is allowed"
    )]
    Connection,
    #[error(
        "{max} calls of Watch and reflection are open, half of TIDEGATE_MAX_IN_FLIGHT, which is the most that is allowed"
    )]
    Process { max: usize },
}

/// The lasting calls of one connection.
#[derive(Debug, Default)]
pub(crate) struct LastingCalls {
    /// How many are open.
    open: Arc<AtomicUsize>,
    /// Whether the connection was asked to finish.
    is_ending: watch::Sender<bool>,
}

/// The place of a lasting call, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct LastingPlace {
    _on_connection: CallCount,
    _in_process: CallCount,
}

/// One that a count includes until this is dropped.
#[derive(Debug)]
struct CallCount(Arc<AtomicUsize>);

impl CallCount {
    /// Counts one more, unless there are `max` already.
    fn within(max: usize, count: &Arc<AtomicUsize>) -> Option<CallCount> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let counted = CallCount(count.clone());
        (before < max).then_some(counted)
    }
}

impl Drop for CallCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LastingCalls {
    /// Admits a call, unless there are too many already.
    pub(crate) fn enter(&self, admission: &Admission) -> Result<LastingPlace, NoLastingPlace> {
        let max = (admission.in_flight_max() / 2).max(1);
        Ok(LastingPlace {
            _on_connection: CallCount::within(PER_CONNECTION_MAX, &self.open).ok_or(NoLastingPlace::Connection)?,
            _in_process: CallCount::within(max, admission.lasting()).ok_or(NoLastingPlace::Process { max })?,
        })
    }

    /// Ends calls that only wait for more questions, because the connection was asked to finish.
    pub(crate) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Resolves when the connection is asked to finish, or when it is gone.
    pub(crate) fn ending(&self) -> EndSignal {
        let mut is_ending = self.is_ending.subscribe();
        Box::pin(async move {
            let _ = is_ending.wait_for(|is_ending| *is_ending).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_few_lasting_calls_and_all_together_leave_half_of_the_places() {
        let admission = Admission::new(10, 1000);
        let max = admission.in_flight_max() / 2;
        assert!(max < PER_CONNECTION_MAX);
        let connections = [LastingCalls::default(), LastingCalls::default()];
        let mut open: Vec<_> =
            (0..max).map(|number| connections[number % 2].enter(&admission).expect("there is room")).collect();
        assert_eq!(connections[0].enter(&admission).unwrap_err(), NoLastingPlace::Process { max });
        assert_eq!(admission.lasting().load(Ordering::Relaxed), max, "a call that was refused has left");
        open.pop();
        open.push(connections[0].enter(&admission).expect("one has gone"));
        drop(open);
        assert_eq!(admission.lasting().load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_that_has_all_it_may_have_is_told_so() {
        let calls = LastingCalls::default();
        calls.open.store(PER_CONNECTION_MAX, Ordering::Relaxed);
        let admission = Admission::new(10, 1000);
        assert_eq!(calls.enter(&admission).unwrap_err(), NoLastingPlace::Connection);
        let counted = [&calls.open, admission.lasting()].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counted, [PER_CONNECTION_MAX, 0]);
    }
}
