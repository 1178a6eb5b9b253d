//! Servers that are not Tidegate, for tests of clients: another service, a slow service, TLS, a socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tidegate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::net::UnixListener;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

/// Answers OK, after some time.
#[derive(Clone, Copy)]
pub struct Always {
    pub after: Duration,
}

impl Always {
    pub const AT_ONCE: Always = Always { after: Duration::ZERO };
}

#[tonic::async_trait]
impl RateLimitService for Always {
    async fn should_rate_limit(
        &self,
        _request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        tokio::time::sleep(self.after).await;
        let overall_code = Code::Ok as i32;
        Ok(Response::new(RateLimitResponse { overall_code, ..RateLimitResponse::default() }))
    }
}

/// Serves on a free port for as long as the test's runtime lives, and returns the address.
pub fn rate_limit_service(service: Always, tls: Option<ServerTlsConfig>) -> String {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    let mut server = Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).unwrap();
    }
    tokio::spawn(server.add_service(RateLimitServiceServer::new(service)).serve_with_incoming(incoming));
    address
}

/// Serves on a unix socket, and answers OK at once.
pub fn rate_limit_service_at(path: &Path) {
    let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let service = RateLimitServiceServer::new(Always::AT_ONCE);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
}

/// A gRPC server that knows nothing of rate limits.
pub fn another_service() -> String {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    let (_, health) = tonic_health::server::health_reporter();
    tokio::spawn(Server::builder().add_service(health).serve_with_incoming(incoming));
    address
}

/// A certificate authority, and files of everything that it has issued.
pub struct Authority {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Authority { directory: tempfile::tempdir().unwrap(), issuer };
        std::fs::write(authority.file("ca.pem"), authority.issuer.pem()).unwrap();
        authority
    }

    /// The path of a file, as an argument.
    pub fn file(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Issues a certificate for a name: NAME.pem and NAME.key.
    pub fn issue(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        Identity::from_pem(certificate.pem(), key.serialize_pem())
    }

    pub fn certificate(&self) -> Certificate {
        Certificate::from_pem(self.issuer.pem())
    }
}
