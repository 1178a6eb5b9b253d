//! Makes connections: by TCP, TLS or a unix socket, after asking the sentinels, or to a whole Cluster.
//!
//! Every dial starts from nothing. It reads the files again, resolves names again and asks the sentinels again, because
//! a dial is made when something has changed. A single connection is dialled here rather than by the client library: we
//! then own the task that drives it, and know at once when it ends.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, ConnectionAddr, RedisConnectionInfo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::regional::redis::error::OriginError;
use crate::regional::redis::link::{Driver, Link};
use crate::regional::redis::settings::RedisSettings;
use crate::regional::redis::settings::address::{Credentials, RedisNode, RedisTarget};
use crate::regional::redis::settings::tls_files::TlsFiles;
use crate::regional::redis::{sentinel, tls};

/// A peer that vanishes without a word is noticed after about 11 s: this long idle, then three probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;
const CLUSTER_KEEPALIVE_PROBES: u32 = 30;
/// How long the peer's system may leave sent data unacknowledged. That says nothing about a server that is only slow.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(5);
/// How many calls may be on their way to the socket. More wait, within their own time.
const QUEUED_MAX: usize = 1024;
/// A Cluster's slots may have moved more than once since they were read.
const CLUSTER_RETRIES: u32 = 4;
const CLUSTER_RETRY_WAIT_MIN_MS: u64 = 1;
const CLUSTER_RETRY_WAIT_MAX_MS: u64 = 20;
/// Callers give up on a node that hangs long before this. It frees what the client library keeps of their calls.
const CLUSTER_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of a dial, with the files as they were just read.
pub(super) struct Fresh {
    /// Whom to log in as at the servers; `None`: no login.
    pub credentials: Option<Credentials>,
    /// Whom to log in as at the sentinels; `None`: no login.
    pub sentinel_credentials: Option<Credentials>,
    /// `None`: plain text.
    pub tls: Option<FreshTls>,
    /// How long to wait for one sentinel, or for one node of a Cluster.
    pub connect_timeout: Duration,
    database: i64,
}

/// The TLS files and the configuration that they make, read once for all connections of a dial.
#[derive(Clone)]
pub(super) struct FreshTls {
    files: Arc<TlsFiles>,
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

/// Connects and makes sure that the other side answers.
pub(super) async fn dial(settings: &RedisSettings) -> Result<Link, OriginError> {
    let fresh = read(settings).await?;
    let within = settings.connect_timeout;
    // Each round has the time of one connect, because any server may hang. With sentinels: the sentinels, then a
    // server. With a Cluster: the named nodes, its slots, then the nodes that the slots are on.
    let rounds = match settings.place {
        RedisTarget::Single(_) | RedisTarget::Unix(_) => 1,
        RedisTarget::Sentinel { .. } => 2,
        RedisTarget::Cluster(_) => 3,
    };
    let dialling = async {
        match &settings.place {
            RedisTarget::Single(node) => single(node, fresh.credentials.as_ref(), &fresh).await,
            RedisTarget::Unix(path) => unix(path, &fresh).await,
            RedisTarget::Cluster(nodes) => cluster(nodes, &fresh).await,
            RedisTarget::Sentinel { master, sentinels } => {
                let node = sentinel::master(master, sentinels, &fresh).await?;
                let link = single(&node, fresh.credentials.as_ref(), &fresh).await?;
                sentinel::expect_master(&link).await.map_err(|error| error.at(&node))?;
                Ok(link)
            }
        }
    };
    let timeout = |_| OriginError::Timeout { within };
    let link = tokio::time::timeout(within * rounds, dialling).await.map_err(timeout)??;
    tokio::time::timeout(within, link.ping()).await.map_err(timeout)??;
    Ok(link)
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
                Some(FreshTls { files: Arc::new(files), config })
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
    let broken = |fault: std::io::Error| OriginError::Broken(fault.to_string()).at(node);
    let stream = TcpStream::connect((node.host.as_str(), node.port)).await.map_err(broken)?;
    configure(&stream).map_err(broken)?;
    let Some(tls) = &fresh.tls else {
        return login(stream, credentials, fresh.database).await.map_err(|error| error.at(node));
    };
    let name = ServerName::try_from(node.host.clone())
        .map_err(|_| OriginError::Broken("the host can't be the name in a certificate".into()).at(node))?;
    let stream = TlsConnector::from(tls.config.clone()).connect(name, stream).await.map_err(broken)?;
    login(stream, credentials, fresh.database).await.map_err(|error| error.at(node))
}

async fn unix(path: &std::path::Path, fresh: &Fresh) -> Result<Link, OriginError> {
    let shown = path.display();
    let stream = UnixStream::connect(path).await;
    let stream = stream.map_err(|fault| OriginError::Broken(fault.to_string()).at(&shown))?;
    login(stream, fresh.credentials.as_ref(), fresh.database).await.map_err(|error| error.at(&shown))
}

async fn login<S>(stream: S, credentials: Option<&Credentials>, database: i64) -> Result<Link, OriginError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut info = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
    if let Some(Credentials { user, password }) = credentials {
        info = info.set_password(password.expose());
        if let Some(user) = user {
            info = info.set_username(user);
        }
    }
    // Callers limit the time of their calls.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUED_MAX);
    let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
    Ok(Link::Single { connection, driver: Driver::spawn(driver) })
}

async fn cluster(nodes: &[RedisNode], fresh: &Fresh) -> Result<Link, OriginError> {
    let addresses = nodes.iter().map(|node| {
        let RedisNode { host, port } = node.clone();
        match &fresh.tls {
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            None => ConnectionAddr::Tcp(host, port),
        }
    });
    let mut builder = ClusterClientBuilder::new(addresses)
        .connection_timeout(fresh.connect_timeout)
        .response_timeout(CLUSTER_RESPONSE_TIMEOUT)
        .overall_response_timeout(None)
        .retries(CLUSTER_RETRIES)
        .min_retry_wait(CLUSTER_RETRY_WAIT_MIN_MS)
        .max_retry_wait(CLUSTER_RETRY_WAIT_MAX_MS)
        .tcp_settings(tcp_settings());
    if let Some(tls) = &fresh.tls {
        builder = builder.certs(tls::certificates(&tls.files)).danger_accept_invalid_hostnames(tls.files.any_name);
    }
    if let Some(Credentials { user, password }) = &fresh.credentials {
        builder = builder.password(password.expose());
        if let Some(user) = user {
            builder = builder.username(user);
        }
    }
    Ok(Link::Cluster(builder.build()?.get_async_connection().await?))
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

/// For a Cluster. A connection to a node that has vanished is given up late: as long as there is one, only calls to
/// that node fail. Without one, the client library tries to make one while calls to all nodes wait.
fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive().with_retries(CLUSTER_KEEPALIVE_PROBES))
}
