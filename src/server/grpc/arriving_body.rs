//! The body of a call while it arrives, as tonic reads it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};

use crate::server::grpc::status::status;
use crate::server::incomplete_calls::{IncompleteCalls, IncompletePlace};

/// The body of a call. While some of it is missing, the call may be ended in favour of another. It is dropped when the
/// message is read, so a call that is being decided is not among those that wait.
#[derive(Debug)]
pub(super) struct ArrivingBody<B> {
    body: B,
    /// `None` for a call that holds no place while it waits.
    calls: Option<Arc<IncompleteCalls>>,
    /// Taken at the first wait.
    place: Option<IncompletePlace>,
}

impl<B> ArrivingBody<B> {
    /// A body that takes a place among these calls, if they are given, as soon as it has to be waited for.
    pub(super) fn new(body: B, calls: Option<Arc<IncompleteCalls>>) -> ArrivingBody<B> {
        ArrivingBody { body, calls, place: None }
    }
}

impl<B> Body for ArrivingBody<B>
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
        let Some(calls) = &this.calls else { return Poll::Pending };
        let place = this.place.get_or_insert_with(|| IncompletePlace::take(calls.clone()));
        place.poll_ended(context).map(|overload| Some(Err(status(&overload).into())))
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
    use crate::server::admission::Admission;
    use std::convert::Infallible;
    use std::task::Waker;

    /// A body that never sends anything.
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

    fn is_ended(body: &mut ArrivingBody<Silent>) -> bool {
        Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn when_all_places_are_taken_the_longest_wait_ends_and_then_nobody_is_let_in() {
        let max = 10;
        let admission = Arc::new(Admission::new(max, 1000));
        let mut open: Vec<_> = (0..max).map(|_| admission.enter().unwrap()).collect();
        let mut bodies = [(); 3].map(|()| ArrivingBody::new(Silent, Some(admission.incomplete().clone())));
        assert!(bodies.iter_mut().all(|body| !is_ended(body)), "they wait");
        let [mut first, second, mut third] = bodies;
        // Its message has come.
        drop(second);
        open.push(admission.enter().expect("the first gives way"));
        assert_eq!([is_ended(&mut first), is_ended(&mut third)], [true, false]);
        open.push(admission.enter().expect("the third gives way"));
        assert!(is_ended(&mut third));
        assert!(admission.enter().is_err(), "nobody waits any more: all the others are being decided");
        assert_eq!(admission.in_flight(), open.len(), "a refused call has left");
    }
}
