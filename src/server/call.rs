//! The calls of the gRPC port: how many may be open, and by when they have to be answered.
//!
//! A call whose deadline (`grpc-timeout`) has passed costs no more work: its caller has stopped listening, and charging
//! it would be wrong. A call whose message does not arrive is ended after [`STALL_MAX`], or as soon as others need its
//! place (see `arrival.rs`).
//!
//! ShouldRateLimit has a path of its own (`rate_limit.rs`). The others, health and reflection, are rare, and tonic's.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame};
use tokio::time::timeout_at;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as TowerService;
use tonic::service::Routes;

use crate::observe::outcome::Failure;
use crate::server::arrival::Arriving;
use crate::server::grpc;
use crate::server::rate_limit::RateLimitCall;
use crate::server::service::{Moment, NoAnswer, Service};

/// The longest that a message may take to arrive.
pub const STALL_MAX: Duration = Duration::from_secs(10);

/// Answered however many calls are open: an overloaded process is not a dead one.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// Answered from the start, question by question: between two of them nothing is open that others could use.
const REFLECTION: &str = "/grpc.reflection.";

/// The calls of a port.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Of all services but RateLimitService.
    routes: Routes,
    service: Arc<Service>,
    message_bytes_max: usize,
}

impl Calls {
    pub fn new(routes: Routes, service: Arc<Service>, message_bytes_max: usize) -> Calls {
        Calls { routes, service, message_bytes_max }
    }

    /// Takes up a call that has arrived some time before now. Most are over when this returns, the others go on as tasks
    /// of their own. Says when it was done.
    pub fn begin(
        &self,
        request: Request<RecvStream>,
        reply: SendResponse<Bytes>,
        arrived: Instant,
        now: Moment,
        context: &mut Context<'_>,
    ) -> Instant {
        let path = request.uri().path();
        if path == grpc::SHOULD_RATE_LIMIT {
            let call = RateLimitCall::new(request, reply, arrived);
            return call.begin(&self.service, self.message_bytes_max, now, context);
        }
        if path.starts_with(grpc::RATE_LIMIT_SERVICE) {
            send_status(reply, Status::unimplemented("there is only ShouldRateLimit"));
            return now.instant;
        }
        let other = OtherCall { routes: self.routes.clone(), service: self.service.clone(), arrived };
        tokio::spawn(other.answer(request, reply));
        now.instant
    }

    /// A call whose connection has ended before it was taken up.
    pub fn give_up(&self) {
        self.service.outcomes().record_failure(Failure::Cancelled);
    }
}

/// Ends a call with a status alone.
pub fn send_status(mut reply: SendResponse<Bytes>, status: Status) {
    let (head, _) = status.into_http::<Body>().into_parts();
    // Who has gone away is not told.
    let _ = reply.send_response(Response::from_parts(head, ()), true);
}

/// A call of health or reflection.
struct OtherCall {
    routes: Routes,
    service: Arc<Service>,
    arrived: Instant,
}

impl OtherCall {
    async fn answer(self, request: Request<RecvStream>, mut reply: SendResponse<Bytes>) {
        let answered = {
            let mut answering = pin!(self.response(request));
            poll_fn(|context| match answering.as_mut().poll(context) {
                Poll::Ready(response) => Poll::Ready(Some(response)),
                // Who has gone away needs no answer.
                Poll::Pending => reply.poll_reset(context).map(|_| None),
            })
            .await
        };
        let Some(response) = answered else { return };
        let (head, body) = response.into_parts();
        if let Ok(stream) = reply.send_response(Response::from_parts(head, ()), body.is_end_stream()) {
            send_body(stream, body).await;
        }
    }

    async fn response(mut self, request: Request<RecvStream>) -> Response<Body> {
        let path = request.uri().path();
        let _in_flight = match self.service.enter() {
            Ok(in_flight) => Some(in_flight),
            Err(_) if path.starts_with(HEALTH) => None,
            Err(overload) => return grpc::status(&overload).into_http(),
        };
        let within = grpc_timeout(request.headers()).unwrap_or(STALL_MAX).min(STALL_MAX);
        let gives_way = !path.starts_with(REFLECTION);
        let service = self.service.clone();
        let request = request.map(|body| Arriving::new(Incoming(body), gives_way.then_some(service)));
        let Ok(answered) = timeout_at((self.arrived + within).into(), self.routes.call(request)).await else {
            return grpc::status(&NoAnswer::Deadline).into_http();
        };
        answered.unwrap_or_else(|never| match never {})
    }
}

/// A message as tonic wants it.
struct Incoming(RecvStream);

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        self.0.poll_data(context).map(|data| {
            let data = match data? {
                Ok(data) => data,
                Err(error) => return Some(Err(error)),
            };
            Some(self.0.flow_control().release_capacity(data.len()).map(|()| Frame::data(data)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// Sends a body as fast as the client takes it, until one of the two ends.
async fn send_body(mut stream: SendStream<Bytes>, mut body: Body) {
    loop {
        let frame = poll_fn(|context| match Pin::new(&mut body).poll_frame(context) {
            Poll::Ready(frame) => Poll::Ready(Some(frame)),
            Poll::Pending => stream.poll_reset(context).map(|_| None),
        });
        let frame = match frame.await {
            None => return,
            Some(None) => break,
            Some(Some(Err(_))) => return stream.send_reset(Reason::INTERNAL_ERROR),
            Some(Some(Ok(frame))) => frame,
        };
        let sent = match frame.into_data() {
            Ok(data) => send_data(&mut stream, data).await,
            Err(frame) => match frame.into_trailers() {
                // The last that is sent.
                Ok(trailers) => return drop(stream.send_trailers(trailers)),
                Err(_) => continue,
            },
        };
        if sent.is_err() {
            return;
        }
    }
    // Without trailers.
    let _ = stream.send_data(Bytes::new(), true);
}

/// Sends data as fast as the client takes it.
pub async fn send_data(stream: &mut SendStream<Bytes>, mut data: Bytes) -> Result<(), h2::Error> {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let Some(room) = poll_fn(|context| stream.poll_capacity(context)).await else {
            return Err(Reason::CANCEL.into());
        };
        let part = data.split_to(room?.min(data.len()));
        stream.send_data(part, false)?;
    }
    Ok(())
}

/// How long the caller waits, as `grpc-timeout` says: at most eight digits and a unit. What can't be read is no timeout.
pub fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 60 * 60),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        grpc_timeout(&headers)
    }

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        assert_eq!(read("18m"), Some(Duration::from_millis(18)));
        assert_eq!(read("0n"), Some(Duration::ZERO));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for nonsense in ["", "5", "m", "123456789m", "-1m", "1 m", "1x", "1.5S"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
        assert_eq!(grpc_timeout(&HeaderMap::new()), None);
    }
}
