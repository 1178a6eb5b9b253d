//! A call of ShouldRateLimit, from its headers to its answer.
//!
//! It is served on h2 itself, without tonic. A call whose message came along with its headers, as Envoy sends them, is read,
//! decided and answered where the connection found it, without a task, a future or a copy of its own. Only a call that has
//! to wait, for the rest of its message or for Redis, becomes a task.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use tokio::time::{sleep_until, timeout};

use crate::clock::Moment;
use crate::observe::outcome::NoDecision;
use crate::server::admission::InFlight;
use crate::server::grpc::message::{Incomplete, MessageReader};
use crate::server::grpc::stall::{STALL_MAX, grpc_timeout, send_data};
use crate::server::grpc::status::{send_status, status};
use crate::server::incomplete_calls::IncompletePlace;
use crate::server::no_answer::NoAnswer;
use crate::server::rls::should_rate_limit::{self, RateLimitAnswer, WaitingRequest};
use crate::server::rls::write::Answer;
use crate::server::service::Service;

/// The headers of every answer, put together once.
static HEAD: LazyLock<HeaderMap> = LazyLock::new(|| single(CONTENT_TYPE, "application/grpc"));
/// The trailers of every answer, put together once.
static TRAILERS: LazyLock<HeaderMap> = LazyLock::new(|| single(HeaderName::from_static("grpc-status"), "0"));

fn single(name: HeaderName, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
}

/// Sends an answer to a client that does not take it yet. The call needs a place among the open calls and has [`STALL_MAX`]
/// for this, so that answers that nobody takes do not fill the memory.
async fn send_slowly(mut stream: SendStream<Bytes>, framed: Bytes, in_flight: Option<InFlight>) {
    let Some(_in_flight) = in_flight else { return stream.send_reset(Reason::ENHANCE_YOUR_CALM) };
    match timeout(STALL_MAX, send_data(&mut stream, framed)).await {
        Ok(Ok(())) => drop(stream.send_trailers(TRAILERS.clone())),
        // The client is gone.
        Ok(Err(_)) => {}
        Err(_) => stream.send_reset(Reason::CANCEL),
    }
}

/// A call that is open.
pub(super) struct RateLimitCall {
    body: RecvStream,
    reply: SendResponse<Bytes>,
    headers: HeaderMap,
    arrived: Instant,
    /// How long the caller waits; `None` if it has not said.
    timeout: Option<Duration>,
}

impl RateLimitCall {
    pub(super) fn new(request: Request<RecvStream>, reply: SendResponse<Bytes>, arrived: Instant) -> RateLimitCall {
        let (head, body) = request.into_parts();
        let timeout = grpc_timeout(&head.headers);
        RateLimitCall { body, reply, headers: head.headers, arrived, timeout }
    }

    /// Answers the call if its message is there and memory can decide it. Otherwise the call goes on as a task. Returns the
    /// time at which this was done.
    pub(super) fn begin(
        mut self,
        service: &Arc<Service>,
        message_bytes_max: usize,
        now: Moment,
        context: &mut Context<'_>,
    ) -> Instant {
        let mut reading = MessageReader::new(message_bytes_max);
        match reading.poll(&mut self.body, context) {
            Poll::Ready(Ok(())) => self.decide(service, reading, now, None),
            Poll::Ready(Err(incomplete)) => self.give_up(service, &incomplete, now.instant),
            // A call that waits for its message needs a place among the open ones. A call whose message is there does not.
            Poll::Pending => match service.admission().enter() {
                Ok(in_flight) => {
                    tokio::spawn(self.read_on(service.clone(), reading, in_flight));
                    now.instant
                }
                Err(overload) => self.refuse(service, &overload, now.instant),
            },
        }
    }

    /// By when there has to be an answer.
    fn deadline(&self) -> Instant {
        self.arrived + self.timeout.unwrap_or(STALL_MAX).min(STALL_MAX)
    }

    /// Waits for the rest of the message.
    async fn read_on(mut self, service: Arc<Service>, mut reading: MessageReader, in_flight: InFlight) {
        let read = {
            let mut place = IncompletePlace::take(service.admission().incomplete().clone());
            let mut late = pin!(sleep_until(self.deadline().into()));
            let mut reserved = 0;
            poll_fn(|context| {
                if let Poll::Ready(read) = reading.poll(&mut self.body, context) {
                    return Poll::Ready(Ok(read));
                }
                if reserved != reading.announced_bytes() {
                    reserved = reading.announced_bytes();
                    place.reserve(reserved);
                }
                if let Poll::Ready(overload) = place.poll_ended(context) {
                    return Poll::Ready(Err(overload));
                }
                late.as_mut().poll(context).map(|()| Err(NoAnswer::Deadline))
            })
            .await
        };
        match read {
            Ok(Ok(())) => self.decide(&service, reading, Moment::now(), Some(in_flight)),
            Ok(Err(incomplete)) => self.give_up(&service, &incomplete, Instant::now()),
            Err(reason) => self.refuse(&service, &reason, Instant::now()),
        };
    }

    fn decide(
        self,
        service: &Arc<Service>,
        reading: MessageReader,
        now: Moment,
        in_flight: Option<InFlight>,
    ) -> Instant {
        let message = match reading.message() {
            Ok(message) => message,
            Err(incomplete) => return self.give_up(service, &incomplete, now.instant),
        };
        if self.timeout.is_some_and(|timeout| now.instant.duration_since(self.arrived) >= timeout) {
            return self.refuse(service, &NoAnswer::Deadline, now.instant);
        }
        match should_rate_limit::answer(service, message, now) {
            Ok(RateLimitAnswer::Ready { answer, finished }) => self.send(service, answer, finished),
            Ok(RateLimitAnswer::Waits(waiting)) => {
                // Calls that wait for Redis are counted apart, so they may go on without a place among the open ones.
                let in_flight = in_flight.or_else(|| service.admission().enter_if_room());
                tokio::spawn(self.wait(service.clone(), *waiting, in_flight));
                now.instant
            }
            Err(reason) => self.send_failure(service, &reason, Instant::now()),
        }
    }

    /// Waits for Redis until there is an answer, the deadline has passed or the client is gone.
    async fn wait(mut self, service: Arc<Service>, waiting: WaitingRequest, in_flight: Option<InFlight>) {
        let _in_flight = in_flight;
        let answered = {
            let mut answering = pin!(waiting.answer(&service, Some(self.deadline())));
            let mut late = pin!(sleep_until(self.deadline().into()));
            poll_fn(|context| {
                if let Poll::Ready(answer) = answering.as_mut().poll(context) {
                    return Poll::Ready(Some(Ok(answer)));
                }
                if late.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Some(Err(NoAnswer::Deadline)));
                }
                self.reply.poll_reset(context).map(|_| None)
            })
            .await
        };
        match answered {
            Some(Ok(answer)) => self.send(&service, answer, Instant::now()),
            Some(Err(reason)) => self.refuse(&service, &reason, Instant::now()),
            None => {
                service.outcomes().record_failure(NoDecision::Cancelled);
                self.observe(&service, Instant::now())
            }
        };
    }

    /// Records how long the call took. Hands `finished` back.
    fn observe(&self, service: &Service, finished: Instant) -> Instant {
        service.outcomes().response_time.record(finished.duration_since(self.arrived));
        finished
    }

    fn send(mut self, service: &Arc<Service>, answer: Answer, finished: Instant) -> Instant {
        let mut head = Response::new(());
        *head.headers_mut() = HEAD.clone();
        // Fails only if the client is gone.
        if let Ok(mut stream) = self.reply.send_response(head, false) {
            let framed = answer.into_framed();
            stream.reserve_capacity(framed.len());
            if stream.capacity() >= framed.len() {
                let _ = stream.send_data(framed, false);
                let _ = stream.send_trailers(TRAILERS.clone());
            } else {
                tokio::spawn(send_slowly(stream, framed, service.admission().enter_if_room()));
            }
        }
        self.observe(service, finished)
    }

    /// Ends a call whose message never completed.
    fn give_up(self, service: &Service, incomplete: &Incomplete, finished: Instant) -> Instant {
        let finished = self.observe(service, finished);
        let outcomes = service.outcomes();
        match incomplete.status(&self.headers) {
            None => outcomes.record_failure(NoDecision::Cancelled),
            Some(status) => {
                outcomes.record_failure(NoDecision::Malformed);
                send_status(self.reply, status);
            }
        }
        finished
    }

    fn refuse(self, service: &Service, reason: &NoAnswer, finished: Instant) -> Instant {
        service.outcomes().record_failure(reason.failure());
        self.send_failure(service, reason, finished)
    }

    /// Tells the client why there is no answer. The failure is counted already.
    fn send_failure(self, service: &Service, reason: &NoAnswer, finished: Instant) -> Instant {
        let finished = self.observe(service, finished);
        send_status(self.reply, status(reason));
        finished
    }
}
