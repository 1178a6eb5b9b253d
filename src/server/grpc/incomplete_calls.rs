//! Calls whose message is still to come, and which of them gives way when there is no room for another call or message.
//!
//! To open a call costs a client a few bytes, so calls that never say anything could take every place there is. When all
//! places are taken, the call that has waited longest for its message is ended, and the newcomer has its place. Clients
//! send a message right after its headers: to push one of them out in that moment, a stranger would have to open as many
//! calls as there are places. A call whose message came along with it needs no place: it is decided at once, or joins those
//! that wait for Redis, who are counted on their own.
//!
//! Messages that are begun and not finished could fill the memory long before the places are taken. So each reserves the
//! length that it announces, and when all of them together reserve more than there may be, those that have waited longest
//! are ended in the same way.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::server::grpc;
use crate::server::service::{NoAnswer, Service};

/// The calls that wait, in the order in which they began to.
#[derive(Debug, Default)]
pub struct Arrivals(Mutex<IncompleteCall>);

#[derive(Debug, Default)]
struct IncompleteCall {
    next: u64,
    calls: BTreeMap<u64, Call>,
    /// What all of them have reserved.
    bytes: usize,
}

/// A call that waits.
#[derive(Debug)]
struct Call {
    end: oneshot::Sender<Scarce>,
    bytes: usize,
    /// It may be ended so that another one has its place.
    gives_place: bool,
}

/// What a call has to give way for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scarce {
    Places,
    Bytes,
}

impl IncompleteCall {
    /// Ends the call that has waited longest. False if none waits.
    fn end_longest(&mut self, scarce: Scarce) -> bool {
        let is_asked = |call: &Call| scarce == Scarce::Bytes || call.gives_place;
        let longest = self.calls.iter().find(|(_, call)| is_asked(call)).map(|(number, _)| *number);
        let Some(call) = longest.and_then(|number| self.calls.remove(&number)) else { return false };
        self.bytes -= call.bytes;
        // Whoever has gone needs no reason.
        let _ = call.end.send(scarce);
        true
    }
}

impl Arrivals {
    /// Ends the call that has waited longest, so that another one has its place. False if none waits.
    pub fn end_longest(&self) -> bool {
        self.0.lock().end_longest(Scarce::Places)
    }

    /// Bytes of messages that are reserved now.
    pub fn bytes(&self) -> usize {
        self.0.lock().bytes
    }

    fn leave(&self, number: u64) {
        let mut waiting = self.0.lock();
        if let Some(call) = waiting.calls.remove(&number) {
            waiting.bytes -= call.bytes;
        }
    }
}

/// A place among those that wait. Held to the end of the message: who sends a byte now and then does not become a newcomer
/// by it.
#[derive(Debug)]
pub struct CallSlot {
    service: Arc<Service>,
    number: u64,
    ended: oneshot::Receiver<Scarce>,
}

impl CallSlot {
    pub fn take(service: Arc<Service>) -> CallSlot {
        CallSlot::new(service, true)
    }

    /// For a request to the HTTP port, which has few: it gives way only to others' bytes.
    pub fn of_bytes(service: Arc<Service>) -> CallSlot {
        CallSlot::new(service, false)
    }

    fn new(service: Arc<Service>, gives_place: bool) -> CallSlot {
        let (end, ended) = oneshot::channel();
        let number = {
            let mut waiting = service.arrivals().0.lock();
            let number = waiting.next;
            waiting.next += 1;
            waiting.calls.insert(number, Call { end, bytes: 0, gives_place });
            number
        };
        CallSlot { service, number, ended }
    }

    /// Reserves the bytes of the call's message. If that is more than there may be, those give way that have waited longest,
    /// and that may be this call itself.
    pub fn reserve(&self, bytes: usize) {
        let mut waiting = self.service.arrivals().0.lock();
        let Some(call) = waiting.calls.get_mut(&self.number) else { return };
        let before = std::mem::replace(&mut call.bytes, bytes);
        waiting.bytes = waiting.bytes - before + bytes;
        while waiting.bytes > self.service.options().arriving_bytes_max && waiting.end_longest(Scarce::Bytes) {}
    }

    /// Ready once the call has to give way.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<NoAnswer> {
        Pin::new(&mut self.ended).poll(context).map(|scarce| match scarce {
            Ok(Scarce::Bytes) => self.service.too_many_bytes(),
            Ok(Scarce::Places) | Err(_) => self.service.overload(),
        })
    }
}

impl Drop for CallSlot {
    fn drop(&mut self) {
        self.service.arrivals().leave(self.number);
    }
}

/// The body of a call. While it is not all there, the call may be ended in favour of another. It is dropped once the
/// message is read, so a call that is being decided is not among those that wait.
#[derive(Debug)]
pub struct Arriving<B> {
    body: B,
    /// `None` for a call that holds no place while it waits.
    service: Option<Arc<Service>>,
    /// Taken at the first wait.
    place: Option<CallSlot>,
}

impl<B> Arriving<B> {
    /// A body that is waited for, at the cost of a place in the service if there is one given.
    pub fn new(body: B, service: Option<Arc<Service>>) -> Arriving<B> {
        Arriving { body, service, place: None }
    }
}

impl<B> Body for Arriving<B>
where
    B: Body + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = B::Data;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Self::Error>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(service) = &this.service else { return Poll::Pending };
        let place = this.place.get_or_insert_with(|| CallSlot::take(service.clone()));
        place.poll_ended(context).map(|overload| Some(Err(grpc::status(&overload).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::service;
    use std::convert::Infallible;
    use std::task::Waker;

    /// A body of which nothing comes.
    struct Silent;

    impl Body for Silent {
        type Data = bytes::Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
            Poll::Pending
        }
    }

    fn is_ended(body: &mut Arriving<Silent>) -> bool {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn when_all_places_are_taken_the_longest_wait_ends_and_then_nobody_is_let_in() {
        let service = service::idle();
        let max = service.options().in_flight_max;
        let mut open: Vec<_> = (0..max).map(|_| service.enter().unwrap()).collect();
        let mut bodies = [(); 3].map(|()| Arriving::new(Silent, Some(service.clone())));
        assert!(bodies.iter_mut().all(|body| !is_ended(body)), "they wait");
        let [mut first, second, mut third] = bodies;
        // Its message has come.
        drop(second);
        open.push(service.enter().expect("the first gives way"));
        assert_eq!([is_ended(&mut first), is_ended(&mut third)], [true, false]);
        open.push(service.enter().expect("the third gives way"));
        assert!(is_ended(&mut third));
        assert!(service.enter().is_err(), "nobody waits any more: all the others are being decided");
        assert_eq!(service.in_flight(), open.len(), "a refused call has left");
    }

    #[test]
    fn messages_that_stall_reserve_no_more_than_there_may_be() {
        let service = service::idle();
        let max = service.options().arriving_bytes_max;
        let context = &mut Context::from_waker(Waker::noop());
        let mut places = [(); 4].map(|()| CallSlot::take(service.clone()));
        let [first, second, third, fourth] = &mut places;
        first.reserve(max / 2);
        second.reserve(max / 2);
        assert_eq!(service.arrivals().bytes(), max);
        assert!(first.poll_ended(context).is_pending(), "as much as there may be is no reason to end");
        third.reserve(1);
        assert_eq!(first.poll_ended(context), Poll::Ready(NoAnswer::ArrivingBytes { max }));
        assert!(second.poll_ended(context).is_pending() && third.poll_ended(context).is_pending());
        assert_eq!(service.arrivals().bytes(), max / 2 + 1);
        // One alone that is too large goes as well, after those that came before it.
        fourth.reserve(max + 1);
        assert!([second, third, fourth].into_iter().all(|place| place.poll_ended(context).is_ready()));
        assert_eq!(service.arrivals().bytes(), 0);
        drop(places);
        let place = CallSlot::take(service.clone());
        place.reserve(5);
        drop(place);
        assert_eq!(service.arrivals().bytes(), 0, "who has gone reserves nothing");
    }
}
