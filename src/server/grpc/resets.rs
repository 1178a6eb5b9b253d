//! Finds calls that HTTP/2 itself resets, before anybody here sees them.
//!
//! h2 answers a call with malformed headers by a reset, and tells nobody. To Envoy that is a failure like any other, so it
//! lets the request pass unless told otherwise. The cause is most often one setting: an `:authority` that is no host name. So
//! everything that h2 writes is searched for such resets. Frames are small and come whole, and only the head of each is read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length, kind, flags and stream of a frame.
const HEAD_BYTES: usize = 9;
const RST_STREAM: u8 = 3;
/// The content of a reset: a reason.
const REASON_BYTES: usize = 4;
/// A whole reset.
const RESET_BYTES: usize = HEAD_BYTES + REASON_BYTES;
/// The reason of a reset for breaking the protocol. Only h2 gives it.
const PROTOCOL_ERROR: [u8; REASON_BYTES] = [0, 0, 0, 1];

/// Finds the resets in bytes that are written in any pieces.
#[derive(Debug, Default)]
struct Frames {
    /// The beginning of a frame, as far as it has come.
    begun: [u8; RESET_BYTES],
    /// How many bytes of `begun` have come.
    begun_bytes: usize,
    /// How many bytes are left of a frame that does not matter.
    skipped_bytes: usize,
}

impl Frames {
    /// Reads the next bytes. Returns how many calls they reset for breaking the protocol.
    fn read(&mut self, mut bytes: &[u8]) -> usize {
        let mut resets = 0;
        while !bytes.is_empty() {
            if self.skipped_bytes > 0 {
                let length = self.skipped_bytes.min(bytes.len());
                self.skipped_bytes -= length;
                bytes = &bytes[length..];
                continue;
            }
            let wanted = if self.begun_bytes < HEAD_BYTES { HEAD_BYTES } else { RESET_BYTES };
            let length = (wanted - self.begun_bytes).min(bytes.len());
            let (now, later) = bytes.split_at(length);
            self.begun[self.begun_bytes..][..length].copy_from_slice(now);
            self.begun_bytes += length;
            bytes = later;
            match self.begun_bytes {
                HEAD_BYTES => self.skip_unless_reset(),
                RESET_BYTES => {
                    resets += usize::from(self.begun[HEAD_BYTES..] == PROTOCOL_ERROR);
                    self.begun_bytes = 0;
                }
                _ => {}
            }
        }
        resets
    }

    fn skip_unless_reset(&mut self) {
        let [high, middle, low, kind, ..] = self.begun;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        if kind != RST_STREAM || length != REASON_BYTES {
            self.skipped_bytes = length;
            self.begun_bytes = 0;
        }
    }
}

/// A connection that tells when calls are reset on it.
#[derive(Debug)]
pub(crate) struct ResetWatch<C, T> {
    connection: C,
    written: Frames,
    tell: T,
}

impl<C, T: FnMut(usize)> ResetWatch<C, T> {
    /// Calls `tell` with the number of calls that were reset, whenever some were.
    pub(crate) fn new(connection: C, tell: T) -> ResetWatch<C, T> {
        ResetWatch { connection, written: Frames::default(), tell }
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let resets = self.written.read(bytes);
        if resets > 0 {
            (self.tell)(resets);
        }
    }
}

impl<C: AsyncRead + Unpin, T: Unpin> AsyncRead for ResetWatch<C, T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, buffer)
    }
}

impl<C: AsyncWrite + Unpin, T: FnMut(usize) + Unpin> AsyncWrite for ResetWatch<C, T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(cx, bytes);
        if let Poll::Ready(Ok(length)) = &written {
            self.wrote(&bytes[..*length]);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(cx, slices);
        if let Poll::Ready(Ok(mut length)) = written {
            for slice in slices {
                let part = length.min(slice.len());
                self.wrote(&slice[..part]);
                length -= part;
            }
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 7], payload].concat()
    }

    #[test]
    fn resets_for_a_broken_protocol_are_found_in_whatever_pieces_they_come() {
        let written = [
            frame(4, &[]),
            frame(RST_STREAM, &PROTOCOL_ERROR),
            // Data that looks like one.
            frame(0, &frame(RST_STREAM, &PROTOCOL_ERROR)),
            frame(RST_STREAM, &[0, 0, 0, 8]),
            frame(1, &[0x88]),
            frame(RST_STREAM, &PROTOCOL_ERROR),
        ]
        .concat();
        for length in 1..=written.len() {
            let mut frames = Frames::default();
            let resets: usize = written.chunks(length).map(|piece| frames.read(piece)).sum();
            assert_eq!(resets, 2, "in pieces of {length}");
        }
    }
}
