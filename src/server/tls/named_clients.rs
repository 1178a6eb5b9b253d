//! Which clients may connect, by the names in their certificates.
//!
//! First rustls verifies the chain against the clients' CA. Then one of the certificate's names has to be on the list. DNS
//! names are compared as TLS does: whatever the case, and `*.example.com` in the certificate stands for one label. URIs,
//! such as SPIFFE's, are compared byte for byte.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme};
use webpki::EndEntityCert;

use crate::server::tls::settings::ClientName;

/// How many of a certificate's names a refusal repeats to the operator.
const NAMES_TOLD_MAX: usize = 8;
/// How much of each name it repeats.
const NAME_CHARS_TOLD_MAX: usize = 256;

/// Lets in clients with a good chain and one of some names.
#[derive(Debug)]
pub(crate) struct NamedClients {
    /// Verifies the chain.
    pub chain: Arc<dyn ClientCertVerifier>,
    /// One of these has to be in the certificate. Never empty: without names only the chain is verified.
    pub allowed: Vec<ClientName>,
}

#[derive(Debug, thiserror::Error)]
#[error("none of its names ({0}) is in --grpc-client-tls-san (GRPC_CLIENT_TLS_SAN)")]
struct NotAllowed(String);

impl NamedClients {
    fn check(&self, certificate: &EndEntityCert<'_>) -> Result<(), NotAllowed> {
        let is_allowed = |allowed: &ClientName| match allowed {
            ClientName::Dns(name) => {
                certificate.verify_is_valid_for_subject_name(&ServerName::DnsName(name.borrow())).is_ok()
            }
            ClientName::Uri(uri) => certificate.valid_uri_names().any(|name| name == uri),
        };
        if self.allowed.iter().any(is_allowed) {
            return Ok(());
        }
        let names = certificate.valid_dns_names().chain(certificate.valid_uri_names()).take(NAMES_TOLD_MAX);
        // A URI may be anything: it must not become a line of its own in the log.
        let printable = |name: &str| name.chars().take(NAME_CHARS_TOLD_MAX).flat_map(char::escape_debug).collect();
        let names: Vec<String> = names.map(printable).collect();
        Err(NotAllowed(if names.is_empty() { "it has none".to_owned() } else { names.join(", ") }))
    }
}

impl ClientCertVerifier for NamedClients {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = EndEntityCert::try_from(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        match self.check(&certificate) {
            Ok(()) => Ok(verified),
            Err(error) => Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))),
        }
    }

    // Everything else is as for any certificate of the CA.

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SanType};
    use rustls::pki_types::DnsName;
    use rustls::server::NoClientAuth;

    fn is_let_in(allowed: &str, names: &[&str]) -> Result<(), String> {
        let san = |name: &&str| match name.contains("://") {
            true => SanType::URI((*name).try_into().unwrap()),
            false => SanType::DnsName((*name).try_into().unwrap()),
        };
        let mut params = CertificateParams::default();
        params.subject_alt_names = names.iter().map(san).collect();
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let allowed = allowed.split(',').map(|name| match name.contains("://") {
            true => ClientName::Uri(name.to_owned()),
            false => ClientName::Dns(DnsName::try_from(name.to_owned()).unwrap()),
        });
        let clients = NamedClients { chain: Arc::new(NoClientAuth), allowed: allowed.collect() };
        clients.check(&EndEntityCert::try_from(certificate.der()).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn dns_names_are_compared_as_tls_does() {
        assert_eq!(is_let_in("edge.test", &["other.test", "EDGE.Test"]), Ok(()));
        assert_eq!(is_let_in("a.test,EDGE.test", &["edge.test"]), Ok(()));
        assert_eq!(is_let_in("edge.site.test", &["*.site.test"]), Ok(()));
        for names in [&["edge.test.evil"][..], &["my.edge.test"], &["dge.test"], &["*.edge.test"], &[]] {
            assert!(is_let_in("edge.test", names).is_err(), "{names:?}");
        }
        assert!(is_let_in("a.edge.site.test", &["*.site.test"]).is_err(), "a wildcard stands for one label");
        assert!(is_let_in("edge.test", &["*.test"]).is_err(), "and not for all names of a top-level domain");
    }

    #[test]
    fn uris_are_compared_byte_for_byte() {
        let workload = "spiffe://example.org/ns/edge";
        assert_eq!(is_let_in(workload, &["edge.test", workload]), Ok(()));
        for name in ["spiffe://example.org/ns/edge2", "spiffe://EXAMPLE.org/ns/edge", "spiffe://example.org/ns/"] {
            assert!(is_let_in(workload, &[name]).is_err(), "{name}");
        }
    }

    #[test]
    fn a_refusal_tells_the_names() {
        let told = is_let_in("edge.test", &["a.test", "spiffe://b"]).unwrap_err();
        assert!(told.contains("(a.test, spiffe://b)"), "{told}");
        assert!(is_let_in("edge.test", &[]).unwrap_err().contains("it has none"));
        let told = is_let_in("edge.test", &[&format!("a://\n{}", "x".repeat(10_000))]).unwrap_err();
        assert!(told.contains(r"a://\nxxx") && told.len() < 400, "{told}");
    }
}
