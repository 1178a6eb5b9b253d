//! Makes connections: by TCP, TLS or a unix socket, after asking the sentinels.
//!
//! Every dial starts from nothing. It reads the files again, resolves names again and asks the sentinels again, because
//! a dial is made when something has changed. Connections are dialled here rather than by the client library: we then own
//! the task that drives each, know at once when it ends, and see when bytes come.
//!
//! Any server may hang at any point, and a server may be far away. So each step of a dial has its own time: connecting, the
//! handshake, the login, and the first answer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::regional::redis::error::OriginError;
use crate::regional::redis::link::Link;
use crate::regional::redis::settings::RedisSettings;
use crate::regional::redis::settings::address::{Credentials, RedisNode, RedisTarget};
use crate::regional::redis::signs_of_life::{ListenedStream, SignsOfLife};
use crate::regional::redis::{sentinel, tls};

/// A peer that vanishes without a word is noticed after about 11 s: this long idle, then three probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;
/// How long the peer's system may leave sent data unacknowledged. That says nothing about a server that is only slow.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(5);
/// How many calls may be on their way to the socket. More wait, within their own time.
const QUEUED_MAX: usize = 1024;
/// The settings of a dial, with the files as they were just read.
pub(super) struct Fresh {
    /// Whom to log in as at the servers; `None`: no login.
    pub credentials: Option<Credentials>,
    /// Whom to log in as at the sentinels; `None`: no login.
    pub sentinel_credentials: Option<Credentials>,
    /// `None`: plain text.
    pub tls: Option<FreshTls>,
    /// How long each step may take, and a sentinel in all.
    pub connect_timeout: Duration,
    database: i64,
}

/// The configuration that the TLS files make, read once for all connections of a dial.
#[derive(Clone)]
pub(super) struct FreshTls {
    config: Arc<ClientConfig>,
}

impl Fresh {
    /// How to dial the sentinels, which have logins of their own and no databases.
    pub(super) fn for_sentinels(&self) -> Fresh {
        Fresh {
            credentials: self.sentinel_credentials.clone(),
            sentinel_credentials: None,
            tls: self.tls.clone(),
            connect_timeout: self.connect_timeout,
            database: 0,
        }
    }
}

/// Connects and makes sure that the other side answers. A Cluster is dialled node by node.
pub(super) async fn dial(settings: &RedisSettings) -> Result<Link, OriginError> {
    let fresh = read(settings).await?;
    let link = match &settings.place {
        RedisTarget::Single(node) => single(node, fresh.credentials.as_ref(), &fresh).await?,
        RedisTarget::Unix(path) => unix(path, &fresh).await?,
        RedisTarget::Cluster(_) => return Err(OriginError::Down),
        RedisTarget::Sentinel { master, sentinels } => {
            let node = sentinel::master(master, sentinels, &fresh).await?;
            let link = single(&node, fresh.credentials.as_ref(), &fresh).await?;
            step(&fresh, sentinel::expect_master(&link)).await.map_err(|error| error.at(&node))?;
            link
        }
    };
    step(&fresh, link.ping()).await?;
    Ok(link)
}

/// Gives a step of a dial its time.
async fn step<T, E>(fresh: &Fresh, doing: impl Future<Output = Result<T, E>>) -> Result<T, OriginError>
where
    OriginError: From<E>,
{
    let within = fresh.connect_timeout;
    let done = tokio::time::timeout(within, doing).await.map_err(|_| OriginError::Timeout { within })?;
    Ok(done?)
}

/// Reads the files off the runtime's own threads, because files may take their time.
async fn read(settings: &RedisSettings) -> Result<Fresh, OriginError> {
    let settings = settings.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let credentials = settings.login.read().map_err(|error| OriginError::Broken(error.to_string()))?;
        let files = settings.tls.as_ref().map(|tls| tls.read()).transpose();
        let tls = match files.map_err(|error| OriginError::Broken(error.to_string()))? {
            Some(files) => {
                let config = Arc::new(tls::client_config(&files).map_err(OriginError::Broken)?);
                Some(FreshTls { config })
            }
            None => None,
        };
        Ok(Fresh {
            credentials,
            sentinel_credentials: settings.sentinel_login,
            tls,
            connect_timeout: settings.connect_timeout,
            database: settings.database,
        })
    });
    // The task does not panic, so it can only have been stopped with the runtime.
    reading.await.unwrap_or(Err(OriginError::Down))
}

/// One server by TCP, with TLS if that is on.
pub(super) async fn single(
    node: &RedisNode,
    credentials: Option<&Credentials>,
    fresh: &Fresh,
) -> Result<Link, OriginError> {
    let reaching = async {
        let stream = step(fresh, TcpStream::connect((node.host.as_str(), node.port))).await?;
        configure(&stream)?;
        let Some(tls) = &fresh.tls else { return login(stream, credentials, fresh).await };
        let name = ServerName::try_from(node.host.clone())
            .map_err(|_| OriginError::Broken("the host can't be the name in a certificate".into()))?;
        let stream = step(fresh, TlsConnector::from(tls.config.clone()).connect(name, stream)).await?;
        login(stream, credentials, fresh).await
    };
    reaching.await.map_err(|error: OriginError| error.at(node))
}

async fn unix(path: &std::path::Path, fresh: &Fresh) -> Result<Link, OriginError> {
    let reaching = async {
        let stream = step(fresh, UnixStream::connect(path)).await?;
        login(stream, fresh.credentials.as_ref(), fresh).await
    };
    reaching.await.map_err(|error: OriginError| error.at(&path.display()))
}

async fn login<S>(stream: S, credentials: Option<&Credentials>, fresh: &Fresh) -> Result<Link, OriginError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut info = RedisConnectionInfo::default().set_db(fresh.database).set_skip_set_lib_name();
    if let Some(Credentials { user, password }) = credentials {
        info = info.set_password(password.expose());
        if let Some(user) = user {
            info = info.set_username(user);
        }
    }
    let signs = SignsOfLife::default();
    let stream = ListenedStream::new(stream, signs.clone());
    // Callers limit the time of their calls.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUED_MAX);
    let (connection, driver) = step(fresh, MultiplexedConnection::new_with_config(&info, stream, config)).await?;
    Ok(Link::new(connection, driver, signs))
}

fn keepalive() -> socket2::TcpKeepalive {
    socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES)
}

fn configure(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive())?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(())
}
