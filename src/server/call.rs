//! What surrounds every gRPC call: how many may be open, and by when they have to be answered.
//!
//! A call whose deadline (`grpc-timeout`) has passed costs no more work: its caller has stopped listening, and charging
//! it would be wrong. A call whose message does not arrive is ended after [`STALL_MAX`], or as soon as others need its
//! place (see `arrival.rs`). The deadlines need a timer only for the rare call that can't be answered at once, so that the
//! others pay for reading the clock alone.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response};
use tokio::time::timeout_at;
use tonic::body::Body;
use tonic::codegen::Service as TowerService;
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::observe::outcome::Failure;
use crate::server::arrival::Arriving;
use crate::server::grpc;
use crate::server::service::{NoAnswer, Service};

/// The longest that a message may take to arrive.
const STALL_MAX: Duration = Duration::from_secs(10);

/// Answered however many calls are open: an overloaded process is not a dead one.
const HEALTH: &str = "/grpc.health.v1.Health/";
/// Answered from the start, question by question: between two of them nothing is open that others could use.
const REFLECTION: &str = "/grpc.reflection.";

/// The calls of a port.
#[derive(Clone, Debug)]
pub struct Calls {
    routes: Routes,
    service: Arc<Service>,
}

impl Calls {
    pub fn new(routes: Routes, service: Arc<Service>) -> Calls {
        Calls { routes, service }
    }
}

impl<B> TowerService<Request<B>> for Calls
where
    B: http_body::Body<Data = bytes::Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let arrived = Instant::now();
        let service = self.service.clone();
        let path = request.uri().path();
        let is_rate_limit = path == grpc::SHOULD_RATE_LIMIT;
        let watch = is_rate_limit.then(|| Watch { service: service.clone(), arrived });
        let in_flight = match service.enter() {
            Ok(in_flight) => Some(in_flight),
            Err(_) if path.starts_with(HEALTH) => None,
            Err(overload) => {
                let refused = refuse(&overload, watch.as_ref());
                return Box::pin(async move { refused });
            }
        };
        let timeout = grpc_timeout(request.headers());
        let within = timeout.unwrap_or(STALL_MAX).min(STALL_MAX);
        let gives_way = !path.starts_with(REFLECTION);
        let body_of = gives_way.then(|| service.clone());
        let answered = self.routes.call(request.map(|body| Arriving::new(body, body_of)));
        Box::pin(async move {
            let _in_flight = in_flight;
            if timeout.is_some_and(|timeout| arrived.elapsed() >= timeout) {
                return refuse(&NoAnswer::Deadline, watch.as_ref());
            }
            let mut answered = pin!(answered);
            let at_once = poll_fn(|context| Poll::Ready(answered.as_mut().poll(context))).await;
            let response = match at_once {
                Poll::Ready(response) => response?,
                Poll::Pending => match timeout_at((arrived + within).into(), answered).await {
                    Ok(response) => response?,
                    Err(_) => return refuse(&NoAnswer::Deadline, watch.as_ref()),
                },
            };
            if let Some(watch) = watch {
                watch.observe(&response);
            }
            Ok(response)
        })
    }
}

fn refuse(reason: &NoAnswer, watch: Option<&Watch>) -> Result<Response<Body>, Infallible> {
    let response = grpc::status(reason).into_http();
    if let Some(watch) = watch {
        watch.observe(&response);
    }
    Ok(response)
}

/// Counts how a call of ShouldRateLimit ended and how long it took. Those of other methods are not counted.
struct Watch {
    service: Arc<Service>,
    arrived: Instant,
}

impl Watch {
    fn observe(&self, response: &Response<Body>) {
        let outcomes = self.service.outcomes();
        outcomes.response_time.record(self.arrived.elapsed());
        let Some(status) = response.headers().get(Status::GRPC_STATUS) else { return };
        match Code::from_bytes(status.as_bytes()) {
            // The service itself has counted why.
            Code::Ok | Code::InvalidArgument | Code::Unavailable => {}
            Code::ResourceExhausted => outcomes.record_failure(Failure::Overload),
            Code::DeadlineExceeded => outcomes.record_failure(Failure::Deadline),
            // The connection or the stream ended before the message was there.
            Code::Cancelled | Code::Unknown | Code::Aborted => outcomes.record_failure(Failure::Cancelled),
            Code::Internal if is_without_message(response) => outcomes.record_failure(Failure::Cancelled),
            _ => outcomes.record_failure(Failure::Malformed),
        }
    }
}

/// A stream that its client resets looks to tonic like one that ends without a message.
fn is_without_message(response: &Response<Body>) -> bool {
    response.headers().get(Status::GRPC_MESSAGE).is_some_and(|text| text.as_bytes().starts_with(b"Missing"))
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
