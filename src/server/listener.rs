//! What clients connect to: a TCP port or a unix socket, and who they are.
//!
//! Everything above this is written once for both, as generic code rather than behind a pointer: a read or write of a
//! TCP connection costs what it costs without the choice.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::server::socket_file::{SocketError, SocketFault, SocketFile};
use crate::settings::socket::SocketSettings;

/// Something that accepts connections.
pub trait Listen: Send {
    type Stream: Transport;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Keeps newcomers from trying, where that can be done before the end. Who has connected can still be accepted.
    fn withdraw(&mut self) {}
}

/// A connection as the system gives it.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send + Sized + 'static {
    /// Moves the connection to the runtime on which this is called: events of it then come from there.
    fn moved(self) -> io::Result<Self>;

    /// Makes the connection ready for small messages, and says who is at the other end.
    fn prepare(&self) -> io::Result<Peer>;
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
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

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        Ok(stream)
    }
}

impl Transport for TcpStream {
    fn moved(self) -> io::Result<TcpStream> {
        TcpStream::from_std(self.into_std()?)
    }

    fn prepare(&self) -> io::Result<Peer> {
        self.set_nodelay(true)?;
        Ok(Peer::Address(self.peer_addr()?))
    }
}

/// A unix socket with its file, which goes with it.
#[derive(Debug)]
pub struct UnixSocket {
    // Goes first: see `socket_file.rs` on why the socket must be open until then.
    file: Option<SocketFile>,
    listener: UnixListener,
}

impl UnixSocket {
    pub fn open(settings: &SocketSettings) -> Result<UnixSocket, SocketError> {
        let (file, listener) = SocketFile::create(settings)?;
        let listener = UnixListener::from_std(listener)
            .map_err(|error| SocketError { path: settings.path.clone(), fault: SocketFault::Io(error) })?;
        Ok(UnixSocket { file: Some(file), listener })
    }
}

impl Listen for UnixSocket {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        Ok(stream)
    }

    fn withdraw(&mut self) {
        self.file = None;
    }
}

impl Transport for UnixStream {
    fn moved(self) -> io::Result<UnixStream> {
        UnixStream::from_std(self.into_std()?)
    }

    fn prepare(&self) -> io::Result<Peer> {
        let peer = self.peer_cred()?;
        Ok(Peer::Process { id: peer.pid(), user: peer.uid() })
    }
}

/// What the gRPC port is on.
#[derive(Debug)]
pub enum GrpcListener {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

impl GrpcListener {
    /// Where to point Envoy, as gRPC clients write it.
    pub fn address(&self) -> io::Result<String> {
        match self {
            GrpcListener::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            GrpcListener::Unix(UnixSocket { file: Some(file), .. }) => Ok(format!("unix:{}", file.path().display())),
            GrpcListener::Unix(UnixSocket { file: None, .. }) => Ok("a unix socket without a file".to_owned()),
        }
    }
}
