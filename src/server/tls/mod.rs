//! TLS of the gRPC port and of the webhook: which certificates are in force, and how a handshake goes.
//!
//! Certificates are replaced while the service runs. A connection takes those in force when it begins and keeps them,
//! so open connections go on over any change. Certificates that can't be used are refused: the old ones stay in force,
//! and the log says why. The files are read when they change and on SIGHUP.

pub(crate) mod certificates;
pub(crate) mod named_clients;
pub(crate) mod settings;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::server::Acceptor;
use rustls::{CertificateError, InvalidMessage, OtherError, ServerConfig};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::server::tls::certificates::{CertificateFault, Certificates};
use crate::server::tls::settings::TlsSettings;
use crate::sources::changes::Changes;

/// The certificates in force, and how often they were replaced.
#[derive(Debug)]
pub(crate) struct ServerTls {
    settings: TlsSettings,
    in_force: ArcSwap<ServerConfig>,
    /// Held while files are read and put into force, so that older files never replace newer ones.
    reload: Mutex<()>,
    reloads: AtomicU64,
    reload_failures: AtomicU64,
}

/// Why there is no TLS connection. Where the client's operator can do something about it, the text says what.
#[derive(Debug, Error)]
pub(crate) enum HandshakeFailure {
    /// Nothing is wrong: load balancers do this to see whether a port is open.
    #[error("the client went away before it said anything")]
    Silent,
    #[error("the client does not speak TLS, which is on here: set the client up for TLS")]
    NotTls,
    #[error("the client has no certificate, and --grpc-client-tls-cacert (GRPC_CLIENT_TLS_CACERT) asks for one")]
    NoCertificate,
    #[error("the client's certificate is not from the CA of --grpc-client-tls-cacert (GRPC_CLIENT_TLS_CACERT)")]
    UnknownCa,
    #[error("the client's certificate can't be accepted: {0}")]
    BadCertificate(String),
    #[error("the client refused our certificate or gave up: {0:?}")]
    GivenUp(rustls::AlertDescription),
    #[error("the TLS handshake failed: {0}")]
    Other(io::Error),
}

impl ServerTls {
    /// Reads the certificates and follows their changes from then on. Must be called on the runtime.
    pub(crate) fn start(settings: TlsSettings) -> Result<Arc<ServerTls>, CertificateFault> {
        let files = settings.files();
        // Before the files are read, so that no change is missed.
        let mut changes = Changes::of(move || files.clone());
        let read = certificates::read(&settings)?;
        warn_of(&read);
        let tls = Arc::new(ServerTls {
            settings,
            in_force: ArcSwap::from_pointee(read.config),
            reload: Mutex::new(()),
            reloads: AtomicU64::new(0),
            reload_failures: AtomicU64::new(0),
        });
        let follower = tls.clone();
        tokio::spawn(async move {
            loop {
                changes.next().await;
                let tls = follower.clone();
                // Reading files may block. If it panics, the next change is another try.
                let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
            }
        });
        Ok(tls)
    }

    /// Reads the certificates again. Bad ones change nothing.
    pub(crate) fn reload(&self) {
        let _reload = self.reload.lock();
        match certificates::read(&self.settings) {
            Ok(read) => {
                tracing::info!("the certificates were reloaded");
                warn_of(&read);
                self.in_force.store(Arc::new(read.config));
                self.reloads.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.reload_failures.fetch_add(1, Ordering::Relaxed);
                tracing::error!("the certificates were not reloaded, those from before stay in force: {error}");
            }
        }
    }

    /// How often certificates were replaced since the start.
    pub(crate) fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// How often new certificates were refused since the start.
    pub(crate) fn reload_failures(&self) -> u64 {
        self.reload_failures.load(Ordering::Relaxed)
    }

    /// Makes the server's side of a handshake. Has no deadline of its own.
    pub(crate) async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, HandshakeFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let hello = match LazyConfigAcceptor::new(Acceptor::default(), stream).await {
            Ok(hello) => hello,
            Err(error) if is_gone(&error) => return Err(HandshakeFailure::Silent),
            Err(error) => return Err(failure(error)),
        };
        hello.into_stream(self.in_force.load_full()).await.map_err(failure)
    }
}

fn warn_of(read: &Certificates) {
    if let Some(warning) = &read.dates_warning {
        tracing::warn!("{warning}");
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

fn failure(error: io::Error) -> HandshakeFailure {
    let Some(reason) = error.get_ref().and_then(|reason| reason.downcast_ref::<rustls::Error>()) else {
        return HandshakeFailure::Other(error);
    };
    match reason {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => HandshakeFailure::NotTls,
        rustls::Error::NoCertificatesPresented => HandshakeFailure::NoCertificate,
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => HandshakeFailure::UnknownCa,
        // Our own error, from `named_clients.rs`.
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(fault))) => {
            HandshakeFailure::BadCertificate(fault.to_string())
        }
        rustls::Error::InvalidCertificate(fault) => HandshakeFailure::BadCertificate(fault.to_string()),
        rustls::Error::AlertReceived(alert) => HandshakeFailure::GivenUp(*alert),
        _ => HandshakeFailure::Other(error),
    }
}
