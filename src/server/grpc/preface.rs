//! The first bytes of an HTTP/2 connection, read before h2 sees them.
//!
//! Clients that say nothing, or something else, are recognised here, under a deadline that h2 does not have. The bytes are
//! always the same, so they need not be kept: h2 gets them from the constant, and after them, with no copy in between, what
//! comes from the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Every HTTP/2 connection starts with these bytes.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Every TLS connection starts with this byte: a record that holds a part of the handshake.
const TLS_HANDSHAKE: u8 = 0x16;

/// A connection whose preface was read, and can be read once more.
#[derive(Debug)]
pub(crate) struct PrefacedStream<C> {
    connection: C,
    /// How much of the preface was read once more.
    replayed_bytes: usize,
}

/// Why there is no preface.
#[derive(Debug, Error)]
pub(crate) enum PrefaceError {
    /// Nothing is wrong: load balancers do this to see whether a port is open.
    #[error("the client went away before it said anything")]
    Silent,
    #[error("the client went away in the middle of its first words")]
    Cut,
    #[error("the client speaks TLS, which is off here: turn on --grpc-server-use-tls (GRPC_SERVER_USE_TLS)")]
    Tls,
    #[error("the client does not speak HTTP/2, which gRPC needs")]
    NotHttp2,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl<C: AsyncRead + AsyncWrite + Unpin> PrefacedStream<C> {
    /// Reads the preface, and not a byte more.
    pub(crate) async fn read(mut connection: C) -> Result<PrefacedStream<C>, PrefaceError> {
        let mut bytes = [0; PREFACE.len()];
        let mut length = 0;
        while length < PREFACE.len() {
            match connection.read(&mut bytes[length..]).await {
                Ok(0) | Err(_) if length == 0 => return Err(PrefaceError::Silent),
                Ok(0) => return Err(PrefaceError::Cut),
                Ok(more) => length += more,
                Err(error) => return Err(error.into()),
            }
            let said = &bytes[..length];
            if !PREFACE.starts_with(said) {
                return Err(if said[0] == TLS_HANDSHAKE { PrefaceError::Tls } else { PrefaceError::NotHttp2 });
            }
        }
        Ok(PrefacedStream { connection, replayed_bytes: 0 })
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for PrefacedStream<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let ahead = &PREFACE[self.replayed_bytes..];
        if ahead.is_empty() {
            return Pin::new(&mut self.connection).poll_read(cx, buffer);
        }
        let length = ahead.len().min(buffer.remaining());
        buffer.put_slice(&ahead[..length]);
        self.replayed_bytes += length;
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for PrefacedStream<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
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
        Pin::new(&mut self.connection).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};

    async fn greeted_by(pieces: &[&[u8]]) -> Result<Vec<u8>, PrefaceError> {
        // One byte of room: each write waits until the one before is read.
        let (mut client, server) = duplex(1);
        let pieces = pieces.concat();
        tokio::spawn(async move {
            // A server that refuses does not read on.
            let _ = client.write_all(&pieces).await;
        });
        let mut all = Vec::new();
        PrefacedStream::read(server).await?.read_to_end(&mut all).await?;
        Ok(all)
    }

    #[tokio::test]
    async fn who_reads_next_gets_every_byte_once() {
        let said = greeted_by(&[PREFACE, b"and more"]).await.unwrap();
        assert_eq!(said, [PREFACE, b"and more"].concat());
        assert_eq!(greeted_by(&[PREFACE]).await.unwrap(), PREFACE);
    }

    #[tokio::test]
    async fn what_is_no_preface_is_told_apart() {
        assert!(matches!(greeted_by(&[]).await, Err(PrefaceError::Silent)));
        assert!(matches!(greeted_by(&[&PREFACE[..5]]).await, Err(PrefaceError::Cut)));
        assert!(matches!(greeted_by(&[b"GET / HTTP/1.1\r\n"]).await, Err(PrefaceError::NotHttp2)));
        assert!(matches!(greeted_by(&[b"PRI * HTTP/3"]).await, Err(PrefaceError::NotHttp2)));
    }

    #[tokio::test]
    async fn a_tls_client_is_recognised() {
        assert!(matches!(greeted_by(&[&[0x16, 0x03, 0x01, 0x02]]).await, Err(PrefaceError::Tls)));
    }
}
