//! The gRPC port: RateLimitService v3, health and reflection.

mod arriving_body;
pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod http2;
pub(crate) mod lasting_calls;
pub(crate) mod message;
pub(crate) mod preface;
mod rate_limit_call;
pub(crate) mod resets;
mod stall;
mod status;
pub(crate) mod workers;

use std::sync::Arc;

use tonic::service::Routes;
use tonic_health::pb::FILE_DESCRIPTOR_SET as HEALTH_DESCRIPTORS;
use tonic_health::server::HealthReporter;

use crate::server::grpc::call::PortCalls;
use crate::server::rls::DESCRIPTORS;
use crate::server::service::Service;

/// The name of the service whose health Envoy asks for, beside the empty one.
pub(crate) const HEALTH_NAME: &str = "ratelimit";

/// A question of health or reflection holds a name. A longer message is refused before it is read.
const QUESTION_BYTES_MAX: usize = 4 * 1024;

/// Puts the services of the port together. The reporter is the only way to change what health says.
pub(crate) fn calls(
    service: Arc<Service>,
    health: HealthReporter,
    message_bytes_max: usize,
) -> anyhow::Result<PortCalls> {
    let health = tonic_health::server::HealthService::from_health_reporter(health);
    let question_bytes_max = message_bytes_max.min(QUESTION_BYTES_MAX);
    let health =
        tonic_health::pb::health_server::HealthServer::new(health).max_decoding_message_size(question_bytes_max);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(HEALTH_DESCRIPTORS)
            // The descriptors know more services than this port serves.
            .with_service_name("envoy.service.ratelimit.v3.RateLimitService")
            .with_service_name("grpc.health.v1.Health")
    };
    let v1 = reflection().with_service_name("grpc.reflection.v1.ServerReflection").build_v1()?;
    let v1alpha = reflection().with_service_name("grpc.reflection.v1alpha.ServerReflection").build_v1alpha()?;
    let routes = Routes::new(health)
        .add_service(v1.max_decoding_message_size(question_bytes_max))
        .add_service(v1alpha.max_decoding_message_size(question_bytes_max))
        .prepare();
    Ok(PortCalls::new(routes, service, message_bytes_max))
}
