//! TLS from the client's side: whom to trust, and who we are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::cli::client::address::{Scheme, ServerAddress};

/// Where systems keep the certificates they trust.
const SYSTEM_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

#[derive(Args, Clone, Debug, Default)]
pub struct ClientTlsFlags {
    /// Speak TLS; any of the flags below and an https:// address imply it
    #[arg(long, help_heading = "TLS")]
    pub tls: bool,

    /// Trust the certificates of this PEM file, in place of those that the system trusts
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub ca: Option<PathBuf>,

    /// Our certificate, for servers that ask for one (PEM, with its chain)
    #[arg(long, value_name = "FILE", requires = "cert_key", help_heading = "TLS")]
    pub cert: Option<PathBuf>,

    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    pub cert_key: Option<PathBuf>,

    /// The name that the server's certificate must be for, if not the host of the address
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    pub server_name: Option<String>,
}

/// How to speak TLS, and with whom.
#[derive(Clone)]
pub struct ClientTls {
    /// Knows which CAs to trust, and our certificate if there is one.
    pub connector: TlsConnector,
    /// What the server's certificate must be for.
    pub name: ServerName<'static>,
}

impl ClientTlsFlags {
    fn is_wanted(&self) -> bool {
        self.tls || self.ca.is_some() || self.cert.is_some() || self.server_name.is_some()
    }

    /// Reads the files. `None` is plain text.
    pub fn resolve(&self, address: &ServerAddress) -> anyhow::Result<Option<ClientTls>> {
        match address.scheme {
            Some(Scheme::Http) if self.is_wanted() => bail!("http:// is without TLS: write https://{}", address.place),
            Some(Scheme::Https) => {}
            _ if self.is_wanted() => {}
            _ => return Ok(None),
        }
        let name = self.server_name.as_deref().unwrap_or_else(|| address.place.server_name());
        let name = ServerName::try_from(name.to_owned())
            .with_context(|| format!("'{name}' can't be the name in a certificate: see --server-name"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(self.ca.as_deref())?);
        let mut config = match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_file(key)
                    .with_context(|| format!("can't read the private key {} (--cert-key)", key.display()))?;
                let chain = certificates(cert, "--cert")?;
                builder.with_client_auth_cert(chain, key).context("--cert and --cert-key can't be used together")?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Some(ClientTls { connector: TlsConnector::from(Arc::new(config)), name }))
    }
}

fn roots(ca: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    match ca {
        Some(file) => {
            for certificate in certificates(file, "--ca")? {
                let added = store.add(certificate);
                added.with_context(|| format!("a certificate of {} (--ca) can't be used", file.display()))?;
            }
        }
        None => {
            let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
            let known = SYSTEM_BUNDLES.iter().map(PathBuf::from);
            let Some(bundle) = named.into_iter().chain(known).find(|path| path.exists()) else {
                bail!("no list of trusted certificates on this system: name the server's CA with --ca");
            };
            // A system's list may have certificates that can't be used any more. The rest still counts.
            store.add_parsable_certificates(certificates(&bundle, "SSL_CERT_FILE")?);
        }
    }
    Ok(store)
}

fn certificates(file: &Path, flag: &str) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let unreadable = || format!("can't read certificates from {} ({flag})", file.display());
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(file).and_then(Iterator::collect).with_context(unreadable)?;
    if certificates.is_empty() {
        bail!("no certificate in {} ({flag}): it should have a line -----BEGIN CERTIFICATE-----", file.display());
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flags: &ClientTlsFlags, address: &str) -> anyhow::Result<Option<ClientTls>> {
        flags.resolve(&address.parse().expect("an address"))
    }

    #[test]
    fn tls_is_on_by_a_flag_or_a_url() {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&ca, issued.cert.pem()).unwrap();
        let trusting = ClientTlsFlags { ca: Some(ca), ..ClientTlsFlags::default() };
        assert!(resolve(&ClientTlsFlags::default(), "localhost").unwrap().is_none());
        assert!(resolve(&ClientTlsFlags::default(), "http://localhost").unwrap().is_none());
        assert!(resolve(&trusting, "localhost").unwrap().is_some());
        assert!(resolve(&trusting, "https://127.0.0.1").unwrap().is_some());
        assert_eq!(resolve(&trusting, "/run/x").unwrap().unwrap().name.to_str(), "localhost");
        let named = ClientTlsFlags { server_name: Some("a.example".into()), ..trusting.clone() };
        assert_eq!(resolve(&named, "localhost").unwrap().unwrap().name.to_str(), "a.example");
        let said = resolve(&trusting, "http://a").map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("write https://a:80"), "{said}");
    }

    #[test]
    fn a_file_without_certificates_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty.pem");
        std::fs::write(&empty, "nothing\n").unwrap();
        for file in [empty, directory.path().join("missing.pem")] {
            let flags = ClientTlsFlags { ca: Some(file.clone()), ..ClientTlsFlags::default() };
            let said = resolve(&flags, "localhost").map(|_| ()).unwrap_err().to_string();
            assert!(said.contains("--ca") && said.contains(&file.display().to_string()), "{said}");
        }
    }
}
