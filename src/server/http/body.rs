//! The body of a request to the HTTP port, while it arrives.
//!
//! A body that has to be waited for reserves the length that it announces, or what it takes so far if it announces none. All
//! messages that arrive, on this port and the gRPC port, share the bytes that may be reserved
//! ([`incomplete_calls`](crate::server::incomplete_calls)). When there are none left, the messages that have waited longest
//! give way.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body;
use thiserror::Error;

use crate::server::incomplete_calls::{IncompleteCalls, IncompletePlace};
use crate::server::no_answer::NoAnswer;

/// Why there is no body.
#[derive(Debug, Error)]
pub(crate) enum NoBody {
    #[error(transparent)]
    Overload(#[from] NoAnswer),
    #[error("the body has more than {max} bytes, which is the most that is allowed")]
    Long { max: usize },
    #[error("{0}")]
    Broken(String),
}

/// Reads a body to its end.
pub(crate) async fn read<B>(body: B, calls: &Arc<IncompleteCalls>, bytes_max: usize) -> Result<Vec<u8>, NoBody>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    let announced = body.size_hint().exact().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut arriving = BodyReader { body, calls, bytes: Vec::new(), announced, bytes_max, place: None };
    arriving.check()?;
    poll_fn(|context| arriving.poll(context)).await?;
    Ok(arriving.bytes)
}

/// A body that is being read.
struct BodyReader<'a, B> {
    body: B,
    calls: &'a Arc<IncompleteCalls>,
    /// A copy, because a piece as it came may keep alive everything that was read from the connection along with it.
    bytes: Vec<u8>,
    /// The length that the headers announce; 0 if they announce none.
    announced: usize,
    bytes_max: usize,
    /// Taken at the first wait.
    place: Option<IncompletePlace>,
}

impl<B> BodyReader<'_, B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
{
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NoBody>> {
        while let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            match frame {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(NoBody::Broken(error.to_string()))),
                Some(Ok(frame)) => {
                    // Trailers are of no interest.
                    if let Ok(data) = frame.into_data() {
                        self.bytes.reserve_exact(self.announced.saturating_sub(self.bytes.len()));
                        self.bytes.extend_from_slice(&data);
                        self.check()?;
                    }
                }
            }
        }
        let reserved = self.announced.max(self.bytes.capacity());
        if reserved > self.calls.bytes_max() {
            // Even without all others there would be too little room.
            return Poll::Ready(Err(self.calls.too_many_bytes().into()));
        }
        let place = self.place.get_or_insert_with(|| IncompletePlace::of_bytes(self.calls.clone()));
        place.reserve(reserved);
        place.poll_ended(context).map(|overload| Err(overload.into()))
    }

    fn check(&self) -> Result<(), NoBody> {
        if self.bytes.len().max(self.announced) > self.bytes_max {
            return Err(NoBody::Long { max: self.bytes_max });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::{Frame, SizeHint};
    use std::convert::Infallible;
    use std::task::Waker;

    /// A body that sends some bytes, and then nothing.
    struct BodyStall {
        come: Option<Bytes>,
        announced: Option<u64>,
    }

    fn stalled(come: usize, announced: Option<u64>) -> BodyStall {
        BodyStall { come: Some(vec![b' '; come].into()), announced }
    }

    impl Body for BodyStall {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.come.take() {
                Some(come) => Poll::Ready(Some(Ok(Frame::data(come)))),
                None => Poll::Pending,
            }
        }

        fn size_hint(&self) -> SizeHint {
            self.announced.map(SizeHint::with_exact).unwrap_or_default()
        }
    }

    #[test]
    fn bodies_that_stall_reserve_no_more_than_there_may_be() {
        let calls = Arc::new(IncompleteCalls::new(10, 1000));
        let context = &mut Context::from_waker(Waker::noop());
        let mut first = Box::pin(read(stalled(1, Some(600)), &calls, 4000));
        let mut second = Box::pin(read(stalled(400, None), &calls, 4000));
        assert!(first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending());
        assert_eq!(calls.bytes(), 1000, "what is announced, and what has come");
        let mut third = Box::pin(read(stalled(1, Some(1)), &calls, 4000));
        assert!(third.as_mut().poll(context).is_pending());
        let Poll::Ready(Err(NoBody::Overload(overload))) = first.as_mut().poll(context) else { panic!("it waits on") };
        assert_eq!(overload, NoAnswer::ArrivingBytes { max: 1000 });
        drop(first);
        assert!(second.as_mut().poll(context).is_pending() && third.as_mut().poll(context).is_pending());
        // A body that can never fit does not make others go.
        let mut large = Box::pin(read(stalled(1, Some(1001)), &calls, 4000));
        assert!(matches!(large.as_mut().poll(context), Poll::Ready(Err(NoBody::Overload(_)))));
        assert!(second.as_mut().poll(context).is_pending());
        // Bodies hold no place, so none of them is ended for one.
        assert!(!calls.end_longest());
        drop((second, third, large));
        assert_eq!(calls.bytes(), 0);
    }

    #[test]
    fn a_body_that_is_there_reserves_nothing_and_one_that_is_too_long_is_not_waited_for() {
        let calls = Arc::new(IncompleteCalls::new(10, 1000));
        let context = &mut Context::from_waker(Waker::noop());
        let whole = axum::body::Body::from(vec![b'a'; 3000]);
        let mut whole = Box::pin(read(whole, &calls, 4000));
        assert!(matches!(whole.as_mut().poll(context), Poll::Ready(Ok(bytes)) if bytes.len() == 3000));
        for long in [stalled(0, Some(4001)), stalled(4001, None)] {
            let mut long = Box::pin(read(long, &calls, 4000));
            assert!(matches!(long.as_mut().poll(context), Poll::Ready(Err(NoBody::Long { max: 4000 }))));
        }
    }
}
