//! Turns PEM files into the configuration that rustls serves with, or says why it can't.
//!
//! Each error tells the operator which setting, which file, what is wrong with it and what to do. The same errors say why
//! a reload was refused.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, InconsistentKeys, RootCertStore, ServerConfig};
use thiserror::Error;

use crate::server::tls::named_clients::NamedClients;
use crate::server::tls::settings::{ClientSettings, TlsSettings};
use crate::sources::files::open_regular;

/// Larger files are refused: the certificates of all public CAs are a quarter of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

const CLIENT_CA: &str = "--grpc-client-tls-cacert (GRPC_CLIENT_TLS_CACERT)";

/// Why the files can't be served with. `setting` is the name of the setting to mend.
#[derive(Debug, Error)]
pub(crate) enum CertificateFault {
    #[error("{setting}: {file} can't be read: {error}: check the path and the permissions")]
    Unreadable { setting: &'static str, file: PathBuf, error: io::Error },
    #[error("{setting}: {file} is larger than {} KiB: is it the right file?", FILE_BYTES_MAX / 1024)]
    TooLarge { setting: &'static str, file: PathBuf },
    #[error("{setting}: {file} is damaged: {error}: write the whole file again")]
    Damaged { setting: &'static str, file: PathBuf, error: pem::Error },
    #[error("{setting}: {file} has no certificate in it: it has to be PEM, with -----BEGIN CERTIFICATE-----")]
    NoCertificate { setting: &'static str, file: PathBuf },
    #[error("{setting}: {file} has a certificate that can't be used: {error}: have it issued anew")]
    BadCertificate { setting: &'static str, file: PathBuf, error: rustls::Error },
    #[error("{setting}: {file} has no private key in it: it has to be PEM, with -----BEGIN PRIVATE KEY-----")]
    NoKey { setting: &'static str, file: PathBuf },
    #[error("{setting}: {file} is encrypted: store the key without a passphrase, as openssl pkey does")]
    EncryptedKey { setting: &'static str, file: PathBuf },
    #[error("{setting}: {file} has a key that can't be used: {error}: use RSA of 2048 bits or more, ECDSA or Ed25519")]
    BadKey { setting: &'static str, file: PathBuf, error: rustls::Error },
    #[error(
        "{setting}: the key in {key} does not belong to the certificate in {certificate}: use the pair as it was issued"
    )]
    NotAPair { setting: &'static str, certificate: PathBuf, key: PathBuf },
    #[error("TLS can't be set up: {0}")]
    Rustls(#[from] rustls::Error),
    #[error("{CLIENT_CA}: {file} can't be used: {error}")]
    ClientCa { file: PathBuf, error: rustls::server::VerifierBuilderError },
}

/// The content of the files, ready to serve with.
#[derive(Debug)]
pub(crate) struct Certificates {
    /// Connections are served with this.
    pub config: ServerConfig,
    /// A warning if our own certificate is expired or not valid yet, `None` if its dates are good. It is not a fault:
    /// clients check the dates, and their clocks may be right where ours is wrong.
    pub dates_warning: Option<String>,
}

/// Reads the files.
pub(crate) fn read(settings: &TlsSettings) -> Result<Certificates, CertificateFault> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pair = pair(settings, &provider)?;
    let dates_warning =
        pair.cert.first().and_then(|certificate| dates_warning(settings.names.certificate, certificate, &provider));
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &settings.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(verifier(clients, provider)?),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![settings.protocol.to_vec()];
    // A resumed session would not look at the client's certificate again. Connections live for minutes, so there is
    // little to save.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Certificates { config, dates_warning })
}

fn dates_warning(setting: &str, certificate: &CertificateDer<'_>, provider: &CryptoProvider) -> Option<String> {
    // rustls checks dates before the chain, so that it does not matter that there are no roots here.
    let verified = rustls::client::verify_server_cert_signed_by_trust_anchor(
        &ParsedCertificate::try_from(certificate).ok()?,
        &RootCertStore::empty(),
        &[],
        UnixTime::now(),
        provider.signature_verification_algorithms.all,
    );
    let Err(rustls::Error::InvalidCertificate(fault)) = verified else { return None };
    let when = |time: UnixTime| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    let what = match fault {
        CertificateError::ExpiredContext { not_after, .. } => format!("expired at {}", when(not_after)),
        CertificateError::NotValidYetContext { not_before, .. } => format!("is valid from {} on", when(not_before)),
        _ => return None,
    };
    Some(format!("{setting}: the certificate {what}, so that clients will refuse it now: have a new one issued"))
}

fn pair(settings: &TlsSettings, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateFault> {
    let chain = certificates(settings.names.certificate, &settings.certificate)?;
    let key = provider
        .key_provider
        .load_private_key(key(settings.names.key, &settings.key)?)
        .map_err(|error| CertificateFault::BadKey { setting: settings.names.key, file: settings.key.clone(), error })?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        // Unknown: the key does not tell its public half. All keys of this provider do.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(pair),
        Err(rustls::Error::InconsistentKeys(_)) => Err(CertificateFault::NotAPair {
            setting: settings.names.key,
            certificate: settings.certificate.clone(),
            key: settings.key.clone(),
        }),
        Err(error) => Err(CertificateFault::BadCertificate {
            setting: settings.names.certificate,
            file: settings.certificate.clone(),
            error,
        }),
    }
}

fn verifier(
    clients: &ClientSettings,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, CertificateFault> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(CLIENT_CA, &clients.ca)? {
        roots.add(certificate).map_err(|error| CertificateFault::BadCertificate {
            setting: CLIENT_CA,
            file: clients.ca.clone(),
            error,
        })?;
    }
    let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| CertificateFault::ClientCa { file: clients.ca.clone(), error })?;
    if clients.names.is_empty() {
        return Ok(chain);
    }
    Ok(Arc::new(NamedClients { chain, allowed: clients.names.clone() }))
}

fn certificates(setting: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateFault> {
    let text = text(setting, file)?;
    let certificates = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| CertificateFault::Damaged { setting, file: file.to_owned(), error })?;
    if certificates.is_empty() {
        return Err(CertificateFault::NoCertificate { setting, file: file.to_owned() });
    }
    Ok(certificates)
}

fn key(setting: &'static str, file: &Path) -> Result<PrivateKeyDer<'static>, CertificateFault> {
    let text = text(setting, file)?;
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) if is_encrypted(&text) => {
            Err(CertificateFault::EncryptedKey { setting, file: file.to_owned() })
        }
        Err(pem::Error::NoItemsFound) => Err(CertificateFault::NoKey { setting, file: file.to_owned() }),
        Err(error) => Err(CertificateFault::Damaged { setting, file: file.to_owned(), error }),
    }
}

fn is_encrypted(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).contains("BEGIN ENCRYPTED PRIVATE KEY")
}

fn text(setting: &'static str, file: &Path) -> Result<Vec<u8>, CertificateFault> {
    let unreadable = |error| CertificateFault::Unreadable { setting, file: file.to_owned(), error };
    let mut bytes = Vec::new();
    open_regular(file).map_err(unreadable)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(CertificateFault::TooLarge { setting, file: file.to_owned() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tls::settings::PairNames;
    use rcgen::{CertificateParams, KeyPair};
    use std::fs;
    use tempfile::TempDir;

    struct Files {
        directory: TempDir,
        settings: TlsSettings,
    }

    impl Files {
        fn of(params: CertificateParams) -> Files {
            let directory = tempfile::tempdir().unwrap();
            let [certificate, key, ca] = ["c.pem", "k.pem", "ca.pem"].map(|name| directory.path().join(name));
            let key_pair = KeyPair::generate().unwrap();
            fs::write(&certificate, params.self_signed(&key_pair).unwrap().pem()).unwrap();
            fs::copy(&certificate, &ca).unwrap();
            fs::write(&key, key_pair.serialize_pem()).unwrap();
            let clients = Some(ClientSettings { ca, names: vec![] });
            Files {
                directory,
                settings: TlsSettings { certificate, key, clients, names: PairNames::GRPC, protocol: b"h2" },
            }
        }

        fn fault_with(&self, name: &str, text: &str) -> String {
            let file = self.directory.path().join(name);
            let before = fs::read(&file).unwrap();
            fs::write(&file, text).unwrap();
            let fault = read(&self.settings).expect_err("a fault").to_string();
            fs::write(&file, before).unwrap();
            fault
        }
    }

    #[test]
    fn good_files_are_taken() {
        let files = Files::of(CertificateParams::new(["localhost".to_owned()]).unwrap());
        assert_eq!(read(&files.settings).unwrap().dates_warning, None);
    }

    #[test]
    fn every_fault_names_setting_file_and_remedy() {
        let files = Files::of(CertificateParams::new(["localhost".to_owned()]).unwrap());
        let other_key = KeyPair::generate().unwrap().serialize_pem();
        let half = fs::read_to_string(&files.settings.certificate).unwrap();
        let half = &half[..half.len() / 2];
        let not_der = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        let not_a_key = "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n";
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\naGVsbG8=\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let large = "x".repeat(2 * 1024 * 1024);
        for (name, text, told) in [
            ("c.pem", "", "(GRPC_SERVER_TLS_CERT): FILE has no certificate in it"),
            ("c.pem", &other_key, "(GRPC_SERVER_TLS_CERT): FILE has no certificate in it"),
            ("c.pem", half, "(GRPC_SERVER_TLS_CERT): FILE is damaged"),
            ("c.pem", not_der, "(GRPC_SERVER_TLS_CERT): FILE has a certificate that can't be used"),
            ("c.pem", &large, "(GRPC_SERVER_TLS_CERT): FILE is larger than 1024 KiB"),
            ("k.pem", "", "(GRPC_SERVER_TLS_KEY): FILE has no private key in it"),
            ("k.pem", encrypted, "(GRPC_SERVER_TLS_KEY): FILE is encrypted"),
            ("k.pem", not_a_key, "(GRPC_SERVER_TLS_KEY): FILE has a key that can't be used"),
            ("k.pem", &other_key, "(GRPC_SERVER_TLS_KEY): the key in FILE does not belong to the certificate in"),
            ("ca.pem", "nothing", "(GRPC_CLIENT_TLS_CACERT): FILE has no certificate in it"),
            ("ca.pem", not_der, "(GRPC_CLIENT_TLS_CACERT): FILE has a certificate that can't be used"),
        ] {
            let file = files.directory.path().join(name).display().to_string();
            let fault = files.fault_with(name, text);
            assert!(fault.contains(&told.replace("FILE", &file)), "{name}: {fault}");
        }
        fs::remove_file(&files.settings.key).unwrap();
        let fault = read(&files.settings).unwrap_err().to_string();
        assert!(fault.contains("k.pem can't be read: No such file"), "{fault}");
    }

    #[test]
    fn dates_of_our_own_certificate_are_a_warning() {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2020, 1, 2);
        let files = Files::of(params);
        assert!(read(&files.settings).unwrap().dates_warning.unwrap().contains("expired at 2020-01-02T00:00:00Z"));

        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(4000, 1, 1);
        let files = Files::of(params);
        assert!(read(&files.settings).unwrap().dates_warning.unwrap().contains("valid from 4000-01-01T00:00:00Z on"));
    }
}
