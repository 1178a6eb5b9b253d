//! The calls of the gRPC port: how many may be open, and by when they have to be answered.
//!
//! A call whose deadline (`grpc-timeout`) has passed costs no more work: its caller has stopped listening, and charging
//! it would be wrong. A call whose message does not arrive is ended after [`STALL_MAX`], or as soon as others need its
//! place (see `incomplete_calls.rs`).
//!
//! ShouldRateLimit has a path of its own (`rate_limit_call.rs`). The other calls, health and reflection, are rare, and tonic
//! serves them. Those that last have places of their own (`lasting_calls.rs`), but their clients have no more time than others
//! to take an answer.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame};
use tokio::time::{timeout, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as TowerService;
use tonic::service::Routes;

use crate::clock::Moment;
use crate::observe::outcome::NoDecision;
use crate::server::admission::InFlight;
use crate::server::grpc::arriving_body::ArrivingBody;
use crate::server::grpc::lasting_calls::{EndSignal, LastingCalls, LastingPlace};
use crate::server::grpc::rate_limit_call::RateLimitCall;
use crate::server::grpc::stall::{STALL_MAX, grpc_timeout, send_data};
use crate::server::grpc::status::{crowded, send_status, status};
use crate::server::no_answer::NoAnswer;
use crate::server::rls;
use crate::server::service::Service;

/// Answered however many calls are open: an overloaded process is not a dead one.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// Lasts: health is told whenever it changes.
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Lasts: each question is answered as it comes, for as long as the client has any.
const REFLECTION: &str = "/grpc.reflection.";

/// The calls of a port.
#[derive(Clone, Debug)]
pub(crate) struct PortCalls {
    /// All services except RateLimitService.
    routes: Routes,
    service: Arc<Service>,
    /// The largest message of ShouldRateLimit, without its prefix.
    message_bytes_max: usize,
    /// The places of one connection, see [`PortCalls::on_connection`].
    lasting: Arc<LastingCalls>,
}

impl PortCalls {
    pub(crate) fn new(routes: Routes, service: Arc<Service>, message_bytes_max: usize) -> PortCalls {
        PortCalls { routes, service, message_bytes_max, lasting: Arc::default() }
    }

    /// The calls of one connection, which has its own places for calls that last.
    pub(crate) fn on_connection(self) -> PortCalls {
        PortCalls { lasting: Arc::default(), ..self }
    }

    /// Ends calls that only wait, so that they do not hold up a connection that was asked to finish.
    pub(crate) fn finish(&self) {
        self.lasting.end();
    }

    /// Takes up a call, which has arrived some time before `now`. Most calls are over when this returns, the others go on
    /// as tasks of their own. Returns the time at which it was done.
    pub(crate) fn begin(
        &self,
        request: Request<RecvStream>,
        reply: SendResponse<Bytes>,
        arrived: Instant,
        now: Moment,
        context: &mut Context<'_>,
    ) -> Instant {
        let path = request.uri().path();
        if let Some(no_call) = NoCall::find(&request) {
            if path == rls::SHOULD_RATE_LIMIT {
                self.service.outcomes().record_failure(NoDecision::Malformed);
            }
            no_call.refuse(reply);
            return now.instant;
        }
        if path == rls::SHOULD_RATE_LIMIT {
            let call = RateLimitCall::new(request, reply, arrived);
            return call.begin(&self.service, self.message_bytes_max, now, context);
        }
        if path.starts_with(rls::RATE_LIMIT_SERVICE) {
            send_status(reply, Status::unimplemented("there is only ShouldRateLimit"));
            return now.instant;
        }
        match self.place(path) {
            Ok(place) => {
                let ending = path.starts_with(REFLECTION).then(|| self.lasting.ending());
                let (routes, service) = (self.routes.clone(), self.service.clone());
                let other = OtherCall { routes, service, arrived, ending, _place: place };
                tokio::spawn(other.answer(request, reply));
            }
            Err(status) => send_status(reply, status),
        }
        now.instant
    }

    /// Admits a call of health or reflection.
    fn place(&self, path: &str) -> Result<OtherPlace, Status> {
        let lasting = match path == WATCH || path.starts_with(REFLECTION) {
            true => Some(self.lasting.enter(self.service.admission()).map_err(|reason| crowded(&reason))?),
            false => None,
        };
        let in_flight = match self.service.admission().enter() {
            Ok(in_flight) => Some(in_flight),
            Err(_) if path.starts_with(HEALTH) => None,
            Err(overload) => return Err(status(&overload)),
        };
        Ok(OtherPlace { _lasting: lasting, _in_flight: in_flight })
    }

    /// Counts a call that HTTP/2 itself has reset.
    pub(crate) fn reset(&self) {
        self.service.outcomes().record_failure(NoDecision::Protocol);
    }

    /// Counts a call whose connection has ended before the call was taken up.
    pub(crate) fn give_up(&self) {
        self.service.outcomes().record_failure(NoDecision::Cancelled);
    }
}

/// Why a request is not a call of gRPC. Any page can make a browser send such requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoCall {
    Method,
    ContentType,
}

impl NoCall {
    fn find<B>(request: &Request<B>) -> Option<NoCall> {
        if request.method() != Method::POST {
            return Some(NoCall::Method);
        }
        let is_grpc = request.headers().get(CONTENT_TYPE).is_some_and(|of| is_grpc(of.as_bytes()));
        (!is_grpc).then_some(NoCall::ContentType)
    }

    /// Answers as other servers of gRPC do: HTTP clients see the code, gRPC clients see the status.
    fn refuse(self, mut reply: SendResponse<Bytes>) {
        let (code, status) = match self {
            NoCall::Method => (StatusCode::METHOD_NOT_ALLOWED, Status::internal("calls of gRPC are made by POST")),
            NoCall::ContentType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Status::invalid_argument("calls of gRPC have the content type application/grpc"),
            ),
        };
        let (mut head, _) = status.into_http::<Body>().into_parts();
        head.status = code;
        if self == NoCall::Method {
            head.headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        // Fails only if the client is gone.
        let _ = reply.send_response(Response::from_parts(head, ()), true);
    }
}

/// Whether a content type is that of gRPC, with or without a format of messages such as `+proto`. A type that merely begins
/// like it, as that of gRPC-Web does, is something else.
fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((begin, rest)) = content_type.split_at_checked(GRPC.len()) else { return false };
    begin.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';'))
}

/// The places that a call of health or reflection holds to its end.
struct OtherPlace {
    /// `None` if it does not last.
    _lasting: Option<LastingPlace>,
    /// `None` for health when there is no room.
    _in_flight: Option<InFlight>,
}

/// A call of health or reflection.
struct OtherCall {
    routes: Routes,
    service: Arc<Service>,
    arrived: Instant,
    /// For a call of many questions: tells it to take no more of them.
    ending: Option<EndSignal>,
    _place: OtherPlace,
}

impl OtherCall {
    async fn answer(mut self, request: Request<RecvStream>, mut reply: SendResponse<Bytes>) {
        let answered = {
            let mut answering = pin!(self.response(request));
            poll_fn(|context| match answering.as_mut().poll(context) {
                Poll::Ready(response) => Poll::Ready(Some(response)),
                // The client is gone.
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

    async fn response(&mut self, request: Request<RecvStream>) -> Response<Body> {
        let within = grpc_timeout(request.headers()).unwrap_or(STALL_MAX).min(STALL_MAX);
        let ending = self.ending.take();
        // A call of many questions holds no place while it waits for the next one.
        let gives_way = ending.is_none().then(|| self.service.admission().incomplete().clone());
        let request = request.map(|stream| ArrivingBody::new(Incoming { stream, ending }, gives_way));
        let Ok(answered) = timeout_at((self.arrived + within).into(), self.routes.call(request)).await else {
            return status(&NoAnswer::Deadline).into_http();
        };
        answered.unwrap_or_else(|never| match never {})
    }
}

/// What a client sends, as a body that tonic can read.
struct Incoming {
    stream: RecvStream,
    /// Ends the body when it resolves, even if the client has not finished.
    ending: Option<EndSignal>,
}

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match self.stream.poll_data(context) {
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(Some(Ok(data))) => {
                let released = self.stream.flow_control().release_capacity(data.len());
                Poll::Ready(Some(released.map(|()| Frame::data(data))))
            }
            Poll::Pending => match &mut self.ending {
                Some(ending) => ending.as_mut().poll(context).map(|()| None),
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

/// Sends a body as fast as the client takes it, until the body ends or the client is gone. The body may take its time; the
/// client has [`STALL_MAX`] to take each part of it.
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
            Ok(data) => match timeout(STALL_MAX, send_data(&mut stream, data)).await {
                Ok(sent) => sent,
                Err(_) => return stream.send_reset(Reason::CANCEL),
            },
            Err(frame) => match frame.into_trailers() {
                // Trailers come last, so there is nothing more to send.
                Ok(trailers) => return drop(stream.send_trailers(trailers)),
                Err(_) => continue,
            },
        };
        if sent.is_err() {
            return;
        }
    }
    // The body had no trailers to end with.
    let _ = stream.send_data(Bytes::new(), true);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_call_of_grpc_is_told_apart() {
        let request = |method: Method, content_type: Option<&str>| {
            let mut request = Request::new(());
            *request.method_mut() = method;
            if let Some(content_type) = content_type {
                request.headers_mut().insert(CONTENT_TYPE, content_type.parse().unwrap());
            }
            NoCall::find(&request)
        };
        for good in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8", "Application/gRPC"]
        {
            assert_eq!(request(Method::POST, Some(good)), None, "{good}");
        }
        for bad in ["text/plain", "application/grp", "application/grpc-web", "application/json", ""] {
            assert_eq!(request(Method::POST, Some(bad)), Some(NoCall::ContentType), "{bad:?}");
        }
        assert_eq!(request(Method::POST, None), Some(NoCall::ContentType));
        assert_eq!(request(Method::GET, Some("application/grpc")), Some(NoCall::Method));
    }
}
