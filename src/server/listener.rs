//! Where clients connect: a TCP port or a unix socket.

use std::io;

use tokio::net::{TcpListener, UnixListener};

use crate::server::line::Socket;
use crate::server::socket_file::{SocketError, SocketFault, SocketFile};
use crate::server::socket_settings::SocketSettings;

/// Something that accepts connections.
pub(crate) trait Listen: Send {
    fn accept(&self) -> impl Future<Output = io::Result<Socket>> + Send;

    /// Hides itself from new clients, if it can do so before it closes. Clients that have connected can still be accepted.
    fn withdraw(&mut self) {}
}

impl Listen for TcpListener {
    async fn accept(&self) -> io::Result<Socket> {
        let (stream, _) = TcpListener::accept(self).await?;
        Ok(Socket::Tcp(stream))
    }
}

/// A unix socket. Removes its file when it is dropped.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    // Declared first, so dropped first: `socket_file.rs` says why the socket must be open until then. `None`: withdrawn.
    file: Option<SocketFile>,
    listener: UnixListener,
}

impl UnixSocket {
    pub(crate) fn open(settings: &SocketSettings) -> Result<UnixSocket, SocketError> {
        let (file, listener) = SocketFile::create(settings)?;
        let listener = UnixListener::from_std(listener)
            .map_err(|error| SocketError { path: settings.path.clone(), fault: SocketFault::Io(error) })?;
        Ok(UnixSocket { file: Some(file), listener })
    }
}

impl Listen for UnixSocket {
    async fn accept(&self) -> io::Result<Socket> {
        let (stream, _) = self.listener.accept().await?;
        Ok(Socket::Unix(stream))
    }

    fn withdraw(&mut self) {
        self.file = None;
    }
}

/// Where the gRPC port listens.
#[derive(Debug)]
pub(crate) enum GrpcListener {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

impl GrpcListener {
    /// Where to point Envoy, as gRPC clients write it.
    pub(crate) fn address(&self) -> io::Result<String> {
        match self {
            GrpcListener::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            GrpcListener::Unix(UnixSocket { file: Some(file), .. }) => Ok(format!("unix:{}", file.path().display())),
            GrpcListener::Unix(UnixSocket { file: None, .. }) => Ok("a unix socket without a file".to_owned()),
        }
    }
}
