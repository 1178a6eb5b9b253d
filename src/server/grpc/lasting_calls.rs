//! Calls that last: health `Watch` and reflection, open until one of the two has had enough.
//!
//! To hold one open costs a client nothing, so each counts as open for as long as it lasts. A connection has few of them,
//! and all connections together as many as half of the calls that may be open: the rest is for who wants to be answered. A
//! Watch that hears nothing for days is as it should be; only an answer that its client does not take ends it (see
//! `call.rs`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thiserror::Error;
use tokio::sync::watch;

use crate::server::admission::Admission;

/// On one connection. A client watches a name or two, and a tool asks on one stream.
pub(crate) const PER_CONNECTION_MAX: usize = 16;

/// Resolves when a connection is asked to finish.
pub(crate) type EndSignal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why a call may not last.
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
    open: Arc<AtomicUsize>,
    is_ending: watch::Sender<bool>,
}

/// The place of one of them, for as long as this lives.
#[derive(Debug)]
pub(crate) struct LastingPlace {
    _on_connection: CallCount,
    _in_process: CallCount,
}

/// One of those that are counted, for as long as this lives.
#[derive(Debug)]
struct CallCount(Arc<AtomicUsize>);

impl CallCount {
    /// Counts one more, unless there are as many as may be.
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

    /// The connection is asked to finish: whoever only waits for more questions hears no more of them.
    pub(crate) fn end(&self) {
        self.is_ending.send_replace(true);
    }

    /// Resolves when it is, or when the connection is gone.
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
