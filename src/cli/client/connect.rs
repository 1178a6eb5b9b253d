//! From an address to an HTTP/2 connection that is known to work.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Ping, PingPong};
use http::{HeaderValue, Method, Request, Uri, header};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

use crate::cli::client::ServerFlags;
use crate::cli::client::address::ServerTarget;
use crate::cli::client::tls::ClientTls;

/// How long connecting may take in all, from the lookup to the first sign of HTTP/2.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The one method of the service.
pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// So large that a server never waits for them: answers are small and read at once.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// A server, and what is needed to speak with it.
pub(crate) struct Target {
    /// As the address names it, for errors and reports.
    pub place: ServerTarget,
    tls: Option<ClientTls>,
    /// The head of every call. `call` adds its timeout.
    pub head: Request<()>,
}

/// An open connection: a handle to send on. A task of its own drives it until the last handle is gone.
pub(crate) type Sender = SendRequest<Bytes>;

#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("can't find the host '{host}': {source}")]
    Lookup { host: String, source: io::Error },
    #[error("can't connect to {place}: {source}")]
    Connect { place: ServerTarget, source: io::Error },
    #[error("no TLS with {place}: {source}")]
    Tls { place: ServerTarget, source: io::Error },
    #[error("{place} does not answer as an HTTP/2 server: {source}")]
    Http2 { place: ServerTarget, source: io::Error },
    #[error("{place} closed the connection at once")]
    Closed { place: ServerTarget, is_secure: bool },
    #[error("{place} did not accept a connection within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout { place: ServerTarget },
}

/// A connection before HTTP/2: TCP or a unix socket, with or without TLS.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Target {
    pub(crate) fn new(flags: &ServerFlags) -> anyhow::Result<Target> {
        let place = flags.addr.place.clone();
        let tls = flags.tls.resolve(&flags.addr)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let uri = Uri::builder().scheme(scheme).authority(place.authority()).path_and_query(PATH).build()?;
        let mut head = Request::new(());
        *head.method_mut() = Method::POST;
        *head.uri_mut() = uri;
        head.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        head.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        Ok(Target { place, tls, head })
    }

    /// Connects, and returns as soon as the server has answered a ping. So everything is found out that can be found
    /// out without a request.
    pub(crate) async fn open(&self, streams: usize) -> Result<Sender, ConnectError> {
        match timeout(CONNECT_TIMEOUT, self.try_open(streams)).await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectError::Timeout { place: self.place.clone() }),
        }
    }

    async fn try_open(&self, streams: usize) -> Result<Sender, ConnectError> {
        let not_http2 = |error: h2::Error| {
            let source = if error.is_io() { error.into_io() } else { Some(io::Error::other(error)) };
            self.not_http2(source.unwrap_or_else(|| io::ErrorKind::Other.into()))
        };
        let (sender, mut connection) = Builder::new()
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_max_send_streams(streams)
            .enable_push(false)
            .handshake(self.stream().await?)
            .await
            .map_err(not_http2)?;
        if let Some(mut pings) = connection.ping_pong() {
            tokio::select! {
                // The connection knows better than the ping why there is no answer.
                biased;
                ended = &mut connection => return Err(ended.map_or_else(not_http2, |()| self.closed())),
                answered = ping(&mut pings) => answered.map_err(not_http2)?,
            }
        }
        // The requests on the connection are told what ended it.
        tokio::spawn(async { drop(connection.await) });
        Ok(sender)
    }

    /// Connects, and lets `greet` speak HTTP/2. Returns when the future that it makes does.
    pub(crate) async fn open_raw<T, F>(&self, greet: impl FnOnce(Box<dyn Stream>) -> F) -> Result<T, ConnectError>
    where
        F: Future<Output = io::Result<T>>,
    {
        let opened = async { greet(self.stream().await?).await.map_err(|source| self.not_http2(source)) };
        match timeout(CONNECT_TIMEOUT, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(ConnectError::Timeout { place: self.place.clone() }),
        }
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    async fn stream(&self) -> Result<Box<dyn Stream>, ConnectError> {
        let plain: Box<dyn Stream> = match &self.place {
            ServerTarget::Tcp { host, port } => Box::new(self.tcp(host, *port).await?),
            ServerTarget::Unix(path) => Box::new(UnixStream::connect(path).await.map_err(|error| self.refused(error))?),
        };
        let Some(tls) = &self.tls else { return Ok(plain) };
        let secured = tls.connector.connect(tls.name.clone(), plain).await;
        match secured {
            Ok(stream) => Ok(Box::new(stream)),
            Err(source) => Err(ConnectError::Tls { place: self.place.clone(), source }),
        }
    }

    async fn tcp(&self, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
        let unknown = |source| ConnectError::Lookup { host: host.to_owned(), source };
        let mut refusal = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in lookup_host((host, port)).await.map_err(unknown)? {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(|error| self.refused(error))?;
                    return Ok(stream);
                }
                Err(error) => refusal = error,
            }
        }
        Err(self.refused(refusal))
    }

    fn not_http2(&self, source: io::Error) -> ConnectError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.closed(),
            _ => ConnectError::Http2 { place: self.place.clone(), source },
        }
    }

    fn closed(&self) -> ConnectError {
        ConnectError::Closed { place: self.place.clone(), is_secure: self.is_secure() }
    }

    fn refused(&self, source: io::Error) -> ConnectError {
        ConnectError::Connect { place: self.place.clone(), source }
    }
}

async fn ping(pings: &mut PingPong) -> Result<(), h2::Error> {
    pings.ping(Ping::opaque()).await.map(drop)
}
