//! TLS with Redis: whom to trust, and who we are.
//!
//! A name that does not match can be let go ([`AnyName`]), while issuer, dates and signatures are still verified.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::regional::redis::settings::tls_files::TlsFiles;

/// The configuration for dials. Fails with a text that says what can't be used.
pub(super) fn client_config(files: &TlsFiles) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots(files.ca.as_deref())?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|fault| format!("the CA certificates for Redis can't be used: {fault}"))?;
    let verifier: Arc<dyn ServerCertVerifier> =
        if files.any_name { Arc::new(AnyName { inner: verifier }) } else { verifier };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|fault| fault.to_string())?
        // A verifier is only dangerous for what it leaves out; this one leaves out the name at most.
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((certificate, key)) = &files.client else { return Ok(builder.with_no_client_auth()) };
    let unusable = |fault: &dyn std::fmt::Display| {
        format!("REDIS_TLS_CLIENT_CERT and REDIS_TLS_CLIENT_KEY can't be used together: {fault}")
    };
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>().map_err(|fault| unusable(&fault))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|fault| unusable(&fault))?;
    builder.with_client_auth_cert(chain, key).map_err(|fault| unusable(&fault))
}

fn roots(ca: Option<&[u8]>) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let unusable = |fault: &dyn std::fmt::Display| format!("REDIS_TLS_CACERT can't be used: {fault}");
                let certificate = certificate.map_err(|fault| unusable(&fault))?;
                store.add(certificate).map_err(|fault| unusable(&fault))?;
            }
        }
        None => {
            // A system's list may hold certificates that nobody can use any more; the rest still counts.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                return Err("this system trusts no CA: name that of Redis in REDIS_TLS_CACERT".into());
            }
        }
    }
    Ok(store)
}

/// Verifies everything but the name.
#[derive(Debug)]
struct AnyName {
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name comes last: by then the chain has been verified.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
