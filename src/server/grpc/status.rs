//! The status of gRPC with which a call ends that gets no answer.

use bytes::Bytes;
use h2::server::SendResponse;
use http::Response;
use tonic::Status;
use tonic::body::Body;

use crate::server::grpc::lasting_calls::NoLastingPlace;
use crate::server::no_answer::NoAnswer;

pub(super) fn status(error: &NoAnswer) -> Status {
    let text = error.to_string();
    match error {
        NoAnswer::Refused(_) => Status::invalid_argument(text),
        NoAnswer::Malformed(_) => Status::internal(text),
        NoAnswer::NoRules => Status::unavailable(text),
        NoAnswer::Overload { .. } | NoAnswer::ArrivingBytes { .. } => Status::resource_exhausted(text),
        NoAnswer::Deadline => Status::deadline_exceeded(text),
    }
}

/// The status of a call that would last, when too many do.
pub(super) fn crowded(error: &NoLastingPlace) -> Status {
    Status::resource_exhausted(error.to_string())
}

/// Ends a call with a status and nothing else.
pub(super) fn send_status(mut reply: SendResponse<Bytes>, status: Status) {
    let (head, _) = status.into_http::<Body>().into_parts();
    // Fails only if the client is gone.
    let _ = reply.send_response(Response::from_parts(head, ()), true);
}
