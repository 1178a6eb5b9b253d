//! The gRPC port: RateLimitService v3, health and reflection.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Buf;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::Service as TowerService;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::pb::FILE_DESCRIPTOR_SET as HEALTH_DESCRIPTORS;
use tonic_health::server::HealthReporter;

use crate::server::call::{Calls, grpc_timeout};
use crate::server::service::{Answer, Answered, NoAnswer, Service};
use crate::server::skim::Announced;

/// The descriptors of RateLimitService and all it needs: the part of envoy-types' own set that starts at
/// `envoy/service/ratelimit/v3/rls.proto`, without comments. Serves reflection and the JSON form.
pub const DESCRIPTORS: &[u8] = include_bytes!("rls.bin");

/// The name under which Envoy's health checks ask, beside the empty one.
pub const HEALTH_NAME: &str = "ratelimit";

/// The one method of RateLimitService.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// RateLimitService, by hand rather than generated: messages are skimmed before they are decoded, and an answer that is
/// there at once needs no future on the heap.
#[derive(Clone)]
struct RateLimit {
    service: Arc<Service>,
    message_bytes_max: usize,
}

impl NamedService for RateLimit {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl<B> TowerService<http::Request<B>> for RateLimit
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(async { Ok(Status::unimplemented("there is only ShouldRateLimit").into_http()) });
        }
        let codec = Skimming(self.service.clone());
        let mut grpc = Grpc::new(codec).max_decoding_message_size(self.message_bytes_max);
        let method = ShouldRateLimit(self.service.clone());
        Box::pin(async move { Ok(grpc.unary(method, request).await) })
    }
}

struct ShouldRateLimit(Arc<Service>);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Answering;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        match self.0.answer(request.get_ref()) {
            Ok(Answered::Now(answer)) => Answering::Now(Some(Ok(answer))),
            Err(error) => Answering::Now(Some(Err(error))),
            Ok(Answered::Later(later)) => {
                let service = self.0.clone();
                let timeout = grpc_timeout(request.metadata().as_ref());
                Answering::Later(Box::pin(
                    async move { service.answer_later(request.get_ref(), *later, timeout).await },
                ))
            }
        }
    }
}

/// An answer that is there, or one that waits for the origin.
#[expect(clippy::large_enum_variant, reason = "nearly every answer is there at once, and needs no heap for it")]
enum Answering {
    Now(Option<Result<Answer, NoAnswer>>),
    Later(Pin<Box<dyn Future<Output = Result<Answer, NoAnswer>> + Send>>),
}

impl Future for Answering {
    type Output = Result<Response<RateLimitResponse>, Status>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answered = match self.get_mut() {
            Answering::Now(answered) => match answered.take() {
                Some(answered) => answered,
                None => return Poll::Pending,
            },
            Answering::Later(answering) => match answering.as_mut().poll(context) {
                Poll::Ready(answered) => answered,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(answered.map(|answer| Response::new(answer.response)).map_err(|error| status(&error)))
    }
}

/// Refuses a message with too many parts before it takes any memory.
struct Skimming(Arc<Service>);

impl Codec for Skimming {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = Answers;
    type Decoder = Skimming;

    fn encoder(&mut self) -> Answers {
        Answers
    }

    fn decoder(&mut self) -> Skimming {
        Skimming(self.0.clone())
    }
}

/// Writes answers.
struct Answers;

impl Encoder for Answers {
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(&mut self, response: RateLimitResponse, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        response.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Skimming {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        self.0.skim(Announced::in_protobuf(buffer.chunk())).map_err(|refused| status(&refused))?;
        RateLimitRequest::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

pub fn status(error: &NoAnswer) -> Status {
    let text = error.to_string();
    match error {
        NoAnswer::Refused(_) => Status::invalid_argument(text),
        NoAnswer::NoRules => Status::unavailable(text),
        NoAnswer::Overload { .. } => Status::resource_exhausted(text),
        NoAnswer::Deadline => Status::deadline_exceeded(text),
    }
}

/// The services of the port. The reporter is the only way to change what health says.
pub fn calls(service: Arc<Service>, health: HealthReporter, message_bytes_max: usize) -> anyhow::Result<Calls> {
    let rate_limit = RateLimit { service: service.clone(), message_bytes_max };
    let health = tonic_health::server::HealthService::from_health_reporter(health);
    let health =
        tonic_health::pb::health_server::HealthServer::new(health).max_decoding_message_size(message_bytes_max);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(HEALTH_DESCRIPTORS)
            // The descriptors know more services than this port serves.
            .with_service_name("envoy.service.ratelimit.v3.RateLimitService")
            .with_service_name("grpc.health.v1.Health")
    };
    let routes = Routes::new(rate_limit)
        .add_service(health)
        .add_service(reflection().with_service_name("grpc.reflection.v1.ServerReflection").build_v1()?)
        .add_service(reflection().with_service_name("grpc.reflection.v1alpha.ServerReflection").build_v1alpha()?)
        .prepare();
    Ok(Calls::new(routes, service))
}
