//! Certificates, good and bad, and clients that have them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::support::harness::{Client, PATIENCE, answer, ask_one};

/// The name that servers have in tests.
pub const SERVER: &str = "tidegate.test";

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = params(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.extended_key_usages.clear();
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server or a client with these DNS names and URIs.
    pub fn issue(&self, names: &[&str]) -> Pair {
        self.sign(&params("leaf", names))
    }

    pub fn issue_expired(&self, names: &[&str]) -> Pair {
        let mut params = params("leaf", names);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn params(common_name: &str, names: &[&str]) -> CertificateParams {
    let san = |name: &&str| match name.contains("://") {
        true => SanType::URI((*name).try_into().unwrap()),
        false => SanType::DnsName((*name).try_into().unwrap()),
    };
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = names.iter().map(san).collect();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

impl Pair {
    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()
    }
}

/// The three files of a service with TLS, in a directory.
pub struct Files {
    pub directory: PathBuf,
}

impl Files {
    /// Writes the files.
    pub fn in_directory(directory: &Path, pair: &Pair, clients: &Authority) -> Files {
        let files = Files { directory: directory.to_owned() };
        files.replace(&[("tls.crt", &pair.certificate), ("tls.key", &pair.key), ("ca.crt", &clients.pem())]);
        files
    }

    /// Replaces files the way careful programs do it.
    pub fn replace(&self, files: &[(&str, &str)]) {
        for (name, text) in files {
            let new = self.directory.join(format!("{name}.new"));
            std::fs::write(&new, text).unwrap();
            std::fs::rename(new, self.directory.join(name)).unwrap();
        }
    }

    pub fn replace_pair(&self, pair: &Pair) {
        self.replace(&[("tls.crt", &pair.certificate), ("tls.key", &pair.key)]);
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().expect("temporary paths are UTF-8").to_owned()
    }

    /// The flags for TLS that does not ask clients for certificates.
    pub fn tls_flags(&self) -> Vec<String> {
        let [certificate, key] = [self.path("tls.crt"), self.path("tls.key")];
        ["--grpc-server-use-tls", "--grpc-server-tls-cert", &certificate, "--grpc-server-tls-key", &key]
            .map(str::to_owned)
            .to_vec()
    }

    /// The flags for TLS that asks clients for certificates.
    pub fn mtls_flags(&self) -> Vec<String> {
        let mut flags = self.tls_flags();
        flags.extend(["--grpc-client-tls-cacert".to_owned(), self.path("ca.crt")]);
        flags
    }
}

#[derive(Clone, Debug)]
pub enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Target {
    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Target::Tcp(address) => Box::new(TcpStream::connect(address).await?),
            Target::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}

/// Connects a client, and remembers the certificate that the server showed.
#[derive(Clone)]
pub struct Connector {
    target: Target,
    tls: Option<Arc<ClientConfig>>,
    server_name: &'static str,
    pub connects: Arc<AtomicUsize>,
    seen: Arc<Mutex<Option<CertificateDer<'static>>>>,
}

impl Connector {
    /// In plain text.
    pub fn plain(target: Target) -> Connector {
        Connector { target, tls: None, server_name: SERVER, connects: Arc::default(), seen: Arc::default() }
    }

    /// Over TLS, with a server that the authority vouches for.
    pub fn tls(target: Target, trusted: &Authority, own: Option<&Pair>) -> Connector {
        Connector::tls_of(rustls::DEFAULT_VERSIONS, target, trusted, own)
    }

    pub fn tls_of(
        versions: &[&'static SupportedProtocolVersion],
        target: Target,
        trusted: &Authority,
        own: Option<&Pair>,
    ) -> Connector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![pair.der()], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Connector { tls: Some(Arc::new(config)), ..Connector::plain(target) }
    }

    pub fn expecting(self, server_name: &'static str) -> Connector {
        Connector { server_name, ..self }
    }

    /// A copy that counts its connections from zero.
    pub fn anew(&self) -> Connector {
        Connector { connects: Arc::default(), seen: Arc::default(), ..self.clone() }
    }

    pub fn tls_config(&self) -> Option<Arc<ClientConfig>> {
        self.tls.clone()
    }

    /// The certificate that the server showed at the last connect.
    pub fn seen(&self) -> Option<CertificateDer<'static>> {
        self.seen.lock().unwrap().clone()
    }

    fn endpoint() -> Endpoint {
        Endpoint::from_static("http://tidegate.test").timeout(PATIENCE).connect_timeout(PATIENCE)
    }

    /// Connects at the first call.
    pub fn channel(&self) -> Channel {
        Connector::endpoint().connect_with_connector_lazy(self.clone())
    }

    pub async fn client(&self) -> Result<Client, String> {
        let channel = Connector::endpoint().connect_with_connector(self.clone()).await;
        Ok(Client::new(channel.map_err(|error| format!("{error:?}"))?))
    }

    /// A call on a connection of its own.
    pub async fn call(&self) -> Result<(), String> {
        let request = self.client().await?.should_rate_limit(ask_one("a=x")).await;
        request.map(|_| ()).map_err(|status| format!("{status:?}"))
    }

    /// A client that has been answered once.
    pub async fn answered(&self) -> Client {
        let mut client = self.client().await.expect("the gRPC port answers");
        answer(&mut client, ask_one("a=x")).await;
        client
    }
}

impl tonic::codegen::Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            this.connects.fetch_add(1, Ordering::Relaxed);
            let stream = this.target.connect().await?;
            let Some(config) = this.tls else { return Ok(TokioIo::new(stream)) };
            let name = ServerName::try_from(this.server_name).unwrap();
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            *this.seen.lock().unwrap() = certificates.first().map(|certificate| certificate.clone().into_owned());
            Ok(TokioIo::new(Box::new(stream)))
        })
    }
}
