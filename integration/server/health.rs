//! What probes and tools ask: gRPC health, reflection, and the paths of the HTTP port.

use std::collections::BTreeSet;

use prost::Message;
use tonic::Code;
use tonic::codegen::tokio_stream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ErrorResponse, ServerReflectionRequest};

use crate::support::harness::Service;

const RULES: &str = "
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 10, unit: year}}
";

fn named(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

#[tokio::test]
async fn health_knows_the_service_by_two_names() {
    let service = Service::start(RULES, &[]);
    let mut health = HealthClient::new(service.channel().await);
    for name in ["", "ratelimit"] {
        let response = health.check(named(name)).await.expect("a known name").into_inner();
        assert_eq!(response.status(), ServingStatus::Serving, "{name:?}");
    }
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "RateLimit", "x"] {
        let error = health.check(named(name)).await.expect_err("an unknown name");
        assert_eq!(error.code(), Code::NotFound, "{name}");
    }
}

#[tokio::test]
async fn a_watch_says_at_once_how_it_is() {
    let service = Service::start(RULES, &[]);
    let mut health = HealthClient::new(service.channel().await);
    for name in ["", "ratelimit"] {
        let mut watch = health.watch(named(name)).await.expect("a known name").into_inner();
        let first = watch.message().await.unwrap().expect("a first message");
        assert_eq!(first.status(), ServingStatus::Serving, "{name:?}");
    }
}

async fn reflect(service: &Service, asked: MessageRequest) -> MessageResponse {
    let mut reflection = ServerReflectionClient::new(service.channel().await);
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(asked) };
    let mut answers = reflection.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    match answers.message().await {
        Ok(answer) => answer.and_then(|answer| answer.message_response).expect("an answer that says something"),
        // This server ends the stream instead of sending an error as a message.
        Err(status) => MessageResponse::ErrorResponse(ErrorResponse {
            error_code: status.code() as i32,
            error_message: status.message().to_owned(),
        }),
    }
}

#[tokio::test]
async fn reflection_lists_the_services_and_describes_the_request() {
    let service = Service::start(RULES, &[]);
    let MessageResponse::ListServicesResponse(list) = reflect(&service, MessageRequest::ListServices("*".into())).await
    else {
        panic!("not a list");
    };
    let names: BTreeSet<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    for name in &names {
        let is_served = name.starts_with("grpc.") || *name == "envoy.service.ratelimit.v3.RateLimitService";
        assert!(is_served, "{name} is listed, but not served");
    }

    let symbol = "envoy.service.ratelimit.v3.RateLimitRequest";
    let asked = MessageRequest::FileContainingSymbol(symbol.into());
    let MessageResponse::FileDescriptorResponse(files) = reflect(&service, asked).await else {
        panic!("not a file");
    };
    let file = files.file_descriptor_proto.first().expect("a file").as_slice();
    let file = FileProto::decode(file).expect("a file descriptor");
    assert_eq!(file.name, "envoy/service/ratelimit/v3/rls.proto");
    assert!(file.messages.iter().any(|message| message.name == "RateLimitRequest"), "{file:?}");
    assert!(!file.dependencies.is_empty());
    for dependency in &file.dependencies {
        let asked = MessageRequest::FileByFilename(dependency.clone());
        let answer = reflect(&service, asked).await;
        assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{dependency}: {answer:?}");
    }
    let asked = MessageRequest::FileContainingSymbol("no.such.Message".into());
    let answer = reflect(&service, asked).await;
    assert!(
        matches!(&answer, MessageResponse::ErrorResponse(error) if error.error_code == Code::NotFound as i32),
        "{answer:?}"
    );
}

/// The part of a FileDescriptorProto that the test looks at.
#[derive(Clone, PartialEq, Message)]
struct FileProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "3")]
    dependencies: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    messages: Vec<MessageProto>,
}

#[derive(Clone, PartialEq, Message)]
struct MessageProto {
    #[prost(string, tag = "1")]
    name: String,
}

#[test]
fn the_http_port_has_probes() {
    let service = Service::start(RULES, &[]);
    for path in ["/healthcheck", "/livez", "/readyz"] {
        let answer = service.get(path);
        assert_eq!((answer.status, answer.body.as_str()), (200, "OK"), "{path}");
    }
    for path in ["/", "/healthcheck/", "/metrics", "/json/x", "/rlconfig"] {
        assert_eq!(service.get(path).status, 404, "{path}");
    }
}
