//! Calls whose message is still to come, and which of them gives way when there is no room for another call or message.
//!
//! To open a call costs a client a few bytes, so calls that never say anything could take every place there is. When all
//! places are taken, the call that has waited longest for its message is ended, and the newcomer has its place. Clients
//! send a message right after its headers: to push one of them out in that moment, a stranger would have to open as many
//! calls as there are places. A call whose message came along with it needs no place: it is decided at once, or joins those
//! that wait for Redis, which are counted apart.
//!
//! Messages that begin and do not end could fill the memory long before all places are taken. So each message reserves the
//! length that it announces. When they reserve more than is allowed together, the calls that have waited longest are ended
//! in the same way.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::server::no_answer::NoAnswer;

/// The calls whose message is still to come, and the bounds that they keep together.
#[derive(Debug)]
pub(crate) struct IncompleteCalls {
    /// How many calls may be open, complete or not. A call that has to give way is told so.
    places_max: usize,
    /// How many bytes their messages may reserve together.
    bytes_max: usize,
    queue: Mutex<ArrivalQueue>,
}

/// The calls in the order in which they began to wait.
#[derive(Debug, Default)]
struct ArrivalQueue {
    /// The number of the next call. The lowest number has waited longest.
    next: u64,
    calls: BTreeMap<u64, IncompleteCall>,
    /// How many bytes all of them have reserved.
    bytes: usize,
}

/// A call that waits.
#[derive(Debug)]
struct IncompleteCall {
    /// Tells the call that it has to give way, and for what.
    end: oneshot::Sender<Scarce>,
    /// How many bytes its message has reserved.
    bytes: usize,
    /// It may be ended so that another call gets its place.
    gives_place: bool,
}

/// Why a call has to give way: another one needs its place, or its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scarce {
    Places,
    Bytes,
}

impl ArrivalQueue {
    /// Ends the call that has waited longest, of those that make room for what is scarce. False if there is none.
    fn end_longest(&mut self, scarce: Scarce) -> bool {
        let is_asked = |call: &IncompleteCall| scarce == Scarce::Bytes || call.gives_place;
        let longest = self.calls.iter().find(|(_, call)| is_asked(call)).map(|(number, _)| *number);
        let Some(call) = longest.and_then(|number| self.calls.remove(&number)) else { return false };
        self.bytes -= call.bytes;
        // The call may have ended by itself.
        let _ = call.end.send(scarce);
        true
    }
}

impl IncompleteCalls {
    pub(crate) fn new(places_max: usize, bytes_max: usize) -> IncompleteCalls {
        IncompleteCalls { places_max, bytes_max, queue: Mutex::default() }
    }

    /// Ends the call that has waited longest, so that another one gets its place. False if none waits.
    pub(crate) fn end_longest(&self) -> bool {
        self.queue.lock().end_longest(Scarce::Places)
    }

    /// How many bytes messages may reserve together while they arrive.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Why a message that finds no room gets no answer.
    pub(crate) fn too_many_bytes(&self) -> NoAnswer {
        NoAnswer::ArrivingBytes { max: self.bytes_max }
    }

    /// Bytes of messages that are reserved now.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.queue.lock().bytes
    }

    fn leave(&self, number: u64) {
        let mut waiting = self.queue.lock();
        if let Some(call) = waiting.calls.remove(&number) {
            waiting.bytes -= call.bytes;
        }
    }
}

/// A call's place among those that wait. It keeps the place to the end of its message: a byte now and then does not make it a
/// newcomer.
#[derive(Debug)]
pub(crate) struct IncompletePlace {
    calls: Arc<IncompleteCalls>,
    number: u64,
    ended: oneshot::Receiver<Scarce>,
}

impl IncompletePlace {
    pub(crate) fn take(calls: Arc<IncompleteCalls>) -> IncompletePlace {
        IncompletePlace::new(calls, true)
    }

    /// For a request to the HTTP port. That port has few of them, so one gives way only for bytes, never for a place.
    pub(crate) fn of_bytes(calls: Arc<IncompleteCalls>) -> IncompletePlace {
        IncompletePlace::new(calls, false)
    }

    fn new(calls: Arc<IncompleteCalls>, gives_place: bool) -> IncompletePlace {
        let (end, ended) = oneshot::channel();
        let number = {
            let mut waiting = calls.queue.lock();
            let number = waiting.next;
            waiting.next += 1;
            waiting.calls.insert(number, IncompleteCall { end, bytes: 0, gives_place });
            number
        };
        IncompletePlace { calls, number, ended }
    }

    /// Reserves the bytes of the call's message. If all messages then reserve too much, the calls that have waited longest
    /// are ended, which may include this one.
    pub(crate) fn reserve(&self, bytes: usize) {
        let mut waiting = self.calls.queue.lock();
        let Some(call) = waiting.calls.get_mut(&self.number) else { return };
        let before = std::mem::replace(&mut call.bytes, bytes);
        waiting.bytes = waiting.bytes - before + bytes;
        while waiting.bytes > self.calls.bytes_max && waiting.end_longest(Scarce::Bytes) {}
    }

    /// Ready when the call has to give way.
    pub(crate) fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<NoAnswer> {
        Pin::new(&mut self.ended).poll(context).map(|scarce| match scarce {
            Ok(Scarce::Bytes) => self.calls.too_many_bytes(),
            Ok(Scarce::Places) | Err(_) => NoAnswer::Overload { max: self.calls.places_max },
        })
    }
}

impl Drop for IncompletePlace {
    fn drop(&mut self) {
        self.calls.leave(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    #[test]
    fn messages_that_stall_reserve_no_more_than_there_may_be() {
        let max = 1000;
        let calls = Arc::new(IncompleteCalls::new(10, max));
        let context = &mut Context::from_waker(Waker::noop());
        let mut places = [(); 4].map(|()| IncompletePlace::take(calls.clone()));
        let [first, second, third, fourth] = &mut places;
        first.reserve(max / 2);
        second.reserve(max / 2);
        assert_eq!(calls.bytes(), max);
        assert!(first.poll_ended(context).is_pending(), "as much as there may be is no reason to end");
        third.reserve(1);
        assert_eq!(first.poll_ended(context), Poll::Ready(NoAnswer::ArrivingBytes { max }));
        assert!(second.poll_ended(context).is_pending() && third.poll_ended(context).is_pending());
        assert_eq!(calls.bytes(), max / 2 + 1);
        // A call that is too large by itself is ended as well, after those before it.
        fourth.reserve(max + 1);
        assert!([second, third, fourth].into_iter().all(|place| place.poll_ended(context).is_ready()));
        assert_eq!(calls.bytes(), 0);
        drop(places);
        let place = IncompletePlace::take(calls.clone());
        place.reserve(5);
        drop(place);
        assert_eq!(calls.bytes(), 0, "a place that is given up reserves nothing");
    }
}
