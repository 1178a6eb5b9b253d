//! The certificates for Redis: which files, and whether they hold what they should.
//!
//! They are read at the start, so that a wrong path is refused there, and again at every connect.

use std::fmt;
use std::path::PathBuf;

use crate::pem_file::{self, PemFileError};

/// The files by which we verify Redis, and Redis verifies us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTls {
    /// The CA of Redis' certificate; `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our certificate and its private key; `None`: we show none.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The certificate may be for another name. Its chain is verified all the same.
    pub any_name: bool,
}

/// The content of the files, as PEM: checked to have certificates and a key in them.
pub struct TlsFiles {
    /// The CA certificates to trust; `None`: those of the system.
    pub ca: Option<Vec<u8>>,
    /// Our certificate chain and its private key; `None`: we show none.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// As [`RedisTls::any_name`].
    pub any_name: bool,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One of them is a private key.
        f.debug_struct("TlsFiles").field("any_name", &self.any_name).finish_non_exhaustive()
    }
}

impl RedisTls {
    pub fn read(&self) -> Result<TlsFiles, PemFileError> {
        let ca = self
            .ca
            .as_deref()
            .map(|file| pem_file::certificates(file, "redis-tls-cacert (REDIS_TLS_CACERT)"))
            .transpose()?;
        let client = match &self.client {
            Some((certificate, private)) => Some((
                pem_file::certificates(certificate, "redis-tls-client-cert (REDIS_TLS_CLIENT_CERT)")?,
                pem_file::key(private, "redis-tls-client-key (REDIS_TLS_CLIENT_KEY)")?,
            )),
            None => None,
        };
        Ok(TlsFiles { ca, client, any_name: self.any_name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_what_they_should_hold_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let (ca, private, text) =
            (directory.path().join("ca.pem"), directory.path().join("key.pem"), directory.path().join("text"));
        let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&ca, issued.cert.pem()).unwrap();
        std::fs::write(&private, issued.signing_key.serialize_pem()).unwrap();
        std::fs::write(&text, "nothing\n").unwrap();
        let tls = |ca: &PathBuf, certificate: &PathBuf, key: &PathBuf| RedisTls {
            ca: Some(ca.clone()),
            client: Some((certificate.clone(), key.clone())),
            any_name: true,
        };
        let read = tls(&ca, &ca, &private).read().unwrap();
        assert!(read.ca.is_some() && read.client.is_some() && read.any_name);
        assert_eq!(format!("{read:?}"), "TlsFiles { any_name: true, .. }");
        let missing = directory.path().join("missing");
        for (tls, flag, fault) in [
            (tls(&missing, &ca, &private), "REDIS_TLS_CACERT", "can't be read"),
            (tls(&text, &ca, &private), "REDIS_TLS_CACERT", "no certificate in it"),
            (tls(&ca, &text, &private), "REDIS_TLS_CLIENT_CERT", "no certificate in it"),
            (tls(&ca, &ca, &text), "REDIS_TLS_CLIENT_KEY", "no private key in it"),
            (tls(&ca, &ca, &missing), "REDIS_TLS_CLIENT_KEY", "can't be read"),
        ] {
            let said = tls.read().unwrap_err().to_string();
            assert!(said.contains(flag) && said.contains(fault) && said.contains("name a PEM file"), "{said}");
        }
    }
}
