//! The bytes of a connection: TCP or a unix socket, in plain text or over TLS, and who is at the other end.
//!
//! One type for all of them, so that HTTP/2 above is compiled once and not four times. The variant never changes during a
//! connection, so the choice costs a branch that the processor predicts, next to a system call.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// Who is at the other end: an address for TCP, a process for a unix socket, as far as the system tells its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Address(SocketAddr),
    Process { id: Option<i32>, user: u32 },
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => address.fmt(f),
            Peer::Process { id: Some(id), user } => write!(f, "process {id} of user {user}"),
            Peer::Process { id: None, user } => write!(f, "a process of user {user}"),
        }
    }
}

/// A connection as the system gives it.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Moves the connection to the runtime that calls this, from which its events come then.
    pub(crate) fn moved(self) -> io::Result<Socket> {
        match self {
            Socket::Tcp(stream) => TcpStream::from_std(stream.into_std()?).map(Socket::Tcp),
            Socket::Unix(stream) => UnixStream::from_std(stream.into_std()?).map(Socket::Unix),
        }
    }

    /// Makes the connection ready for small messages, and says who is at the other end.
    pub(crate) fn prepare(&self) -> io::Result<Peer> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_nodelay(true)?;
                Ok(Peer::Address(stream.peer_addr()?))
            }
            Socket::Unix(stream) => {
                let peer = stream.peer_cred()?;
                Ok(Peer::Process { id: peer.pid(), user: peer.uid() })
            }
        }
    }
}

/// A connection as HTTP/2 sees it.
#[derive(Debug)]
pub(crate) enum LineStream {
    Plain(Socket),
    /// Boxed, because it is many times as large.
    Tls(Box<TlsStream<Socket>>),
}

/// Implements reading and writing by calls to whichever variant there is.
macro_rules! hand_on {
    ($name:ident: $($variant:ident),+) => {
        impl AsyncRead for $name {
            #[inline]
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $($name::$variant(inner) => Pin::new(inner).poll_read(cx, buffer),)+
                }
            }
        }

        impl AsyncWrite for $name {
            #[inline]
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $($name::$variant(inner) => Pin::new(inner).poll_write(cx, bytes),)+
                }
            }

            #[inline]
            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $($name::$variant(inner) => Pin::new(inner).poll_flush(cx),)+
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $($name::$variant(inner) => Pin::new(inner).poll_shutdown(cx),)+
                }
            }

            #[inline]
            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $($name::$variant(inner) => Pin::new(inner).poll_write_vectored(cx, slices),)+
                }
            }

            #[inline]
            fn is_write_vectored(&self) -> bool {
                match self {
                    $($name::$variant(inner) => inner.is_write_vectored(),)+
                }
            }
        }
    };
}

hand_on!(Socket: Tcp, Unix);
hand_on!(LineStream: Plain, Tls);
