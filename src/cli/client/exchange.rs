//! One call: a message out, an answer back, or how it failed.
//!
//! A failure says whether the request may have been processed: one that was not can be sent again without counting twice.

use std::future::poll_fn;

use bytes::{BufMut, Bytes, BytesMut};
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderName, Request};
use thiserror::Error;
use tonic::Code;

use crate::cli::client::connect::Sender;

/// How long the head of every gRPC message is: a flag and a length.
pub(crate) const PREFIX_BYTES: usize = 5;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Far above the length of any answer.
const ANSWER_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    /// The connection takes no more requests; nothing was sent.
    #[error("the connection closed before the request was sent")]
    Closed,
    /// The server says that it has not processed this request.
    #[error("the server closed the connection or refused the request before it processed it")]
    Refused,
    /// The connection or the stream broke while the request was on it.
    #[error("the connection broke: {0}")]
    Broken(h2::Error),
    /// The server answered with a gRPC error.
    #[error("{}: {message}", name(*code))]
    Status { code: Code, message: String },
    #[error("HTTP status {0} and no gRPC status: this is not a gRPC server")]
    Http(u16),
    #[error("the answer is not a gRPC message: {0}")]
    Malformed(&'static str),
}

impl From<h2::Error> for ExchangeError {
    fn from(error: h2::Error) -> ExchangeError {
        let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
        // A GOAWAY is an error only for streams above the last one that it promises to finish.
        let is_left_out = error.is_go_away() && error.is_remote();
        if is_refused || is_left_out { ExchangeError::Refused } else { ExchangeError::Broken(error) }
    }
}

/// A message with its prefix, ready to be sent.
pub(crate) fn framed(message: &impl prost::Message) -> BytesMut {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    // A message is made of a command line, which is shorter than 4 GiB.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes
}

/// Sends a framed message and returns the answer's message, without its prefix.
pub(crate) async fn ask(sender: &mut Sender, head: Request<()>, message: Bytes) -> Result<Bytes, ExchangeError> {
    poll_fn(|context| sender.poll_ready(context)).await.map_err(|_| ExchangeError::Closed)?;
    let (response, mut body) = sender.send_request(head, false).map_err(|_| ExchangeError::Closed)?;
    body.send_data(message, true)?;
    let (head, mut answer) = response.await?.into_parts();
    if head.headers.contains_key(&GRPC_STATUS) {
        // An error that comes without a message.
        check(&head.headers)?;
        return Err(ExchangeError::Malformed("no message"));
    }
    if head.status != http::StatusCode::OK {
        return Err(ExchangeError::Http(head.status.as_u16()));
    }
    let message = collect(&mut answer).await?;
    match answer.trailers().await? {
        Some(trailers) => check(&trailers)?,
        None => return Err(ExchangeError::Malformed("no trailers")),
    }
    unframed(message)
}

async fn collect(answer: &mut RecvStream) -> Result<Bytes, ExchangeError> {
    let mut whole = Bytes::new();
    while let Some(part) = answer.data().await {
        let part = part?;
        answer.flow_control().release_capacity(part.len())?;
        if whole.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(ExchangeError::Malformed("too long"));
        }
        // Nearly every answer is of one part, which is kept as it is.
        whole = if whole.is_empty() { part } else { [whole, part].concat().into() };
    }
    Ok(whole)
}

fn check(trailers: &HeaderMap) -> Result<(), ExchangeError> {
    let Some(status) = trailers.get(&GRPC_STATUS) else { return Err(ExchangeError::Malformed("no grpc-status")) };
    match Code::from_bytes(status.as_bytes()) {
        Code::Ok => Ok(()),
        code => {
            let message = trailers.get(&GRPC_MESSAGE).map_or(&b""[..], |value| value.as_bytes());
            Err(ExchangeError::Status { code, message: percent_decoded(message) })
        }
    }
}

fn unframed(message: Bytes) -> Result<Bytes, ExchangeError> {
    let Some((&[flag, a, b, c, d], rest)) = message.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(ExchangeError::Malformed("shorter than its prefix"));
    };
    if flag != 0 {
        return Err(ExchangeError::Malformed("compressed, though nobody asked for that"));
    }
    if rest.len() != u32::from_be_bytes([a, b, c, d]) as usize {
        return Err(ExchangeError::Malformed("its length is not what its prefix says"));
    }
    Ok(message.slice(PREFIX_BYTES..))
}

/// `grpc-message` is percent-encoded; what can't be decoded stays as it is.
fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'%').then(|| after.get(..2)).flatten().and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The name of a code as the gRPC documentation writes it.
pub(crate) const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_errors_are_percent_decoded() {
        assert_eq!(percent_decoded(b"no rules%3A %C3%A4"), "no rules: ä");
        assert_eq!(percent_decoded(b"100% of %zz %4"), "100% of %zz %4");
    }

    #[test]
    fn a_frame_holds_exactly_its_message() {
        assert_eq!(unframed(Bytes::from_static(b"\0\0\0\0\x02ab")).unwrap(), "ab");
        assert_eq!(unframed(Bytes::from_static(b"\0\0\0\0\0")).unwrap(), "");
        for bad in [&b"\0\0\0\0"[..], b"\0\0\0\0\x01ab", b"\0\0\0\0\x03ab", b"\x01\0\0\0\x02ab"] {
            assert!(matches!(unframed(Bytes::from_static(bad)), Err(ExchangeError::Malformed(_))), "{bad:?}");
        }
    }
}
