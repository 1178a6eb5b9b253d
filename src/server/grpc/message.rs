//! The message of a unary call, as gRPC frames it: a flag, a length, and that many bytes.

use std::task::{Context, Poll};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use thiserror::Error;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::server::protobuf::PREFIX_BYTES;

/// The name of gRPC for a message that is not compressed.
const IDENTITY: &str = "identity";

/// Why there is no message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum Incomplete {
    #[error("the client has gone away")]
    Gone,
    #[error("the call has no message")]
    Missing,
    #[error("the call ends after {bytes} of the {length} bytes of its message")]
    Short { bytes: usize, length: usize },
    #[error("the call has more than one message")]
    Several,
    #[error("the message has {length} bytes, at most {max} are allowed (TIDEGATE_MAX_MESSAGE_BYTES)")]
    Long { length: usize, max: usize },
    #[error("the message is compressed, which is not supported: send it as it is (grpc-encoding: identity)")]
    Compressed,
    #[error("the message begins with {0}, where 0 would say that it is not compressed")]
    Flag(u8),
}

impl Incomplete {
    /// The status that tells the client, given the headers of the call. `None` if the client is gone.
    pub(crate) fn status(&self, headers: &HeaderMap) -> Option<Status> {
        let text = self.to_string();
        Some(match self {
            Incomplete::Gone => return None,
            Incomplete::Missing | Incomplete::Short { .. } | Incomplete::Several | Incomplete::Flag(_) => {
                Status::internal(text)
            }
            Incomplete::Long { .. } => Status::out_of_range(text),
            // A client that names its encoding learns from the status which one to use instead: none.
            Incomplete::Compressed if headers.get("grpc-encoding").is_some_and(|encoding| encoding != IDENTITY) => {
                let mut status = Status::unimplemented(text);
                status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static(IDENTITY));
                status
            }
            Incomplete::Compressed => Status::internal(text),
        })
    }
}

/// A message that may come in several pieces. A message in one piece is never copied.
///
/// A message that has to be waited for is copied to memory of its own, as much as it announces: a piece as it came may keep
/// alive everything that was read from the connection along with it.
#[derive(Debug)]
pub(crate) struct MessageReader {
    /// The first piece as it came; empty when it was copied to `joined`.
    first: Bytes,
    /// All pieces so far; empty while `first` holds the only one.
    joined: Vec<u8>,
    /// The largest message, without its prefix.
    bytes_max: usize,
}

impl MessageReader {
    pub(crate) fn new(bytes_max: usize) -> MessageReader {
        MessageReader { first: Bytes::new(), joined: Vec::new(), bytes_max }
    }

    /// Reads what is there. Ready when the client has sent all, or when no good message can come of it.
    pub(crate) fn poll(&mut self, body: &mut RecvStream, context: &mut Context<'_>) -> Poll<Result<(), Incomplete>> {
        loop {
            match body.poll_data(context) {
                Poll::Ready(Some(Ok(data))) => {
                    // Fails only for a stream that is gone, which the next poll finds out.
                    let _ = body.flow_control().release_capacity(data.len());
                    self.push(data);
                    self.check()?;
                    if body.is_end_stream() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Incomplete::Gone)),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    self.keep();
                    return Poll::Pending;
                }
            }
        }
    }

    fn push(&mut self, data: Bytes) {
        if self.bytes().is_empty() {
            self.first = data;
        } else if !data.is_empty() {
            self.keep();
            self.joined.extend_from_slice(&data);
            self.make_room();
        }
    }

    /// Copies what has come to memory of its own.
    fn keep(&mut self) {
        if self.joined.is_empty() && !self.first.is_empty() {
            self.joined.reserve_exact(self.announced_bytes().max(self.first.len()));
            self.joined.extend_from_slice(&self.first);
            self.first = Bytes::new();
        }
    }

    /// Makes room for all that is announced, and no more.
    fn make_room(&mut self) {
        let missing = self.announced_bytes().saturating_sub(self.joined.len());
        self.joined.reserve_exact(missing);
    }

    /// How many bytes the whole message takes with its prefix. 0 if that is not known yet, or more than is allowed.
    pub(crate) fn announced_bytes(&self) -> usize {
        self.length().filter(|length| *length <= self.bytes_max).map_or(0, |length| PREFIX_BYTES + length)
    }

    fn bytes(&self) -> &[u8] {
        if self.joined.is_empty() { &self.first } else { &self.joined }
    }

    /// The length that the prefix gives; `None` until the prefix has come.
    fn length(&self) -> Option<usize> {
        let [_flag, length @ ..] = self.bytes().first_chunk::<PREFIX_BYTES>()?;
        Some(u32::from_be_bytes(*length) as usize)
    }

    /// Whether what has come so far can be the beginning of a message.
    fn check(&self) -> Result<(), Incomplete> {
        match self.bytes().first() {
            None | Some(0) => {}
            Some(1) => return Err(Incomplete::Compressed),
            Some(flag) => return Err(Incomplete::Flag(*flag)),
        }
        match self.length() {
            Some(length) if length > self.bytes_max => Err(Incomplete::Long { length, max: self.bytes_max }),
            Some(length) if self.bytes().len() > PREFIX_BYTES + length => Err(Incomplete::Several),
            _ => Ok(()),
        }
    }

    /// The message, after the end of the call.
    pub(crate) fn message(&self) -> Result<&[u8], Incomplete> {
        let Some((_, message)) = self.bytes().split_at_checked(PREFIX_BYTES) else { return Err(Incomplete::Missing) };
        let length = self.length().unwrap_or(0);
        if message.len() < length {
            return Err(Incomplete::Short { bytes: message.len(), length });
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Result<Vec<u8>, Incomplete> {
        let mut reading = MessageReader::new(4);
        for piece in pieces {
            reading.push(Bytes::copy_from_slice(piece));
            reading.check()?;
        }
        reading.message().map(<[u8]>::to_vec)
    }

    #[test]
    fn a_message_may_come_in_any_pieces() {
        let framed = b"\0\0\0\0\x03abc";
        for first in 0..=framed.len() {
            for second in first..=framed.len() {
                let pieces = [&framed[..first], &framed[first..second], &framed[second..]];
                assert_eq!(read(&pieces).unwrap(), b"abc", "{pieces:?}");
            }
        }
        assert_eq!(read(&[b"\0\0\0\0\0"]).unwrap(), b"");
    }

    #[test]
    fn a_message_that_stalls_takes_what_it_announces_and_nothing_of_what_came_with_it() {
        let came_along = Bytes::from(vec![0; 64 * 1024]);
        let mut reading = MessageReader::new(1000);
        reading.push(came_along.slice(..3));
        reading.keep();
        reading.push(Bytes::from_static(&[3, 0xe8, b'a']));
        assert_eq!(reading.check(), Ok(()));
        assert_eq!((reading.announced_bytes(), reading.joined.capacity()), (1005, 1005));
        assert!(came_along.is_unique(), "what was read along with it is free");
        let mut reading = MessageReader::new(1000);
        reading.push(came_along.slice(..2));
        reading.push(Bytes::from_static(&[0xff, 0xff, 0xff]));
        assert_eq!(reading.check(), Err(Incomplete::Long { length: 0xff_ffff, max: 1000 }));
        assert!(reading.joined.capacity() < 100, "nothing is made ready for what is refused");
    }

    #[test]
    fn what_is_no_message_says_why() {
        assert_eq!(read(&[]), Err(Incomplete::Missing));
        assert_eq!(read(&[b"\0\0\0"]), Err(Incomplete::Missing));
        assert_eq!(read(&[b"\0\0\0\0\x03a"]), Err(Incomplete::Short { bytes: 1, length: 3 }));
        assert_eq!(read(&[b"\0\0\0\0\x01ab"]), Err(Incomplete::Several));
        assert_eq!(read(&[b"\0\0\0\0\x05"]), Err(Incomplete::Long { length: 5, max: 4 }));
        assert_eq!(read(&[b"\x01"]), Err(Incomplete::Compressed));
        assert_eq!(read(&[b"\x02"]), Err(Incomplete::Flag(2)));
    }
}
