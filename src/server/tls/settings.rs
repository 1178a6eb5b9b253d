//! TLS of the gRPC port: its flags, and the settings that they come to.
//!
//! An operator who sets anything about clients' certificates believes that clients are checked. So settings that leave
//! them unchecked are an error and not a warning. `server/tls/mod.rs` reads the files, at the start and whenever they
//! change.

use std::path::PathBuf;

use clap::Args;
use rustls::pki_types::DnsName;
use thiserror::Error;

use crate::flag_value::boolean;

#[derive(Args, Clone, Debug)]
pub struct ServerTlsFlags {
    /// Speak TLS 1.2 and 1.3 on the gRPC port
    #[arg(long, env = "GRPC_SERVER_USE_TLS", help_heading = "TLS", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    pub grpc_server_use_tls: bool,

    /// PEM file of the server's certificate, followed by those between it and the CA; read again when it changes
    #[arg(long, env = "GRPC_SERVER_TLS_CERT", value_name = "FILE", help_heading = "TLS")]
    pub grpc_server_tls_cert: Option<PathBuf>,

    /// PEM file of the certificate's private key; read again when it changes
    #[arg(long, env = "GRPC_SERVER_TLS_KEY", value_name = "FILE", help_heading = "TLS")]
    pub grpc_server_tls_key: Option<PathBuf>,

    /// PEM file of CA certificates: clients must have a certificate of one of them; read again when it changes
    #[arg(long, env = "GRPC_CLIENT_TLS_CACERT", value_name = "FILE", help_heading = "TLS")]
    pub grpc_client_tls_cacert: Option<PathBuf>,

    /// Clients' certificates must have one of these as DNS or URI name (comma-separated)
    #[arg(long, env = "GRPC_CLIENT_TLS_SAN", value_name = "NAMES", help_heading = "TLS")]
    pub grpc_client_tls_san: Option<String>,
}

impl ServerTlsFlags {
    /// Warns of settings that let in nobody who should not be, but are hardly what was meant.
    pub fn warning(&self) -> Option<&'static str> {
        let is_unused = self.grpc_server_tls_cert.is_some() || self.grpc_server_tls_key.is_some();
        (is_unused && !self.grpc_server_use_tls).then_some(
            "a certificate or key is set, but TLS is off and gRPC is served in plain text: \
             turn on --grpc-server-use-tls (GRPC_SERVER_USE_TLS)",
        )
    }
}

/// Where certificates are, and whom they let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    /// PEM file of our certificate, followed by those between it and the CA.
    pub certificate: PathBuf,
    /// PEM file of the private key that belongs to our certificate.
    pub key: PathBuf,
    /// `None`: clients need no certificate.
    pub clients: Option<ClientSettings>,
    /// How errors call the settings of certificate and key.
    pub names: PairNames,
    /// The protocol inside TLS, by its ALPN name.
    pub protocol: &'static [u8],
}

/// The names of two settings, so that an error can say which one to mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairNames {
    /// The flag, and the variable if there is one, of the certificate's file.
    pub certificate: &'static str,
    /// The flag, and the variable if there is one, of the private key's file.
    pub key: &'static str,
}

impl PairNames {
    pub(crate) const GRPC: PairNames = PairNames {
        certificate: "--grpc-server-tls-cert (GRPC_SERVER_TLS_CERT)",
        key: "--grpc-server-tls-key (GRPC_SERVER_TLS_KEY)",
    };
}

/// Which certificates of clients are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientSettings {
    /// PEM file of CA certificates: a client's certificate has to come from one of them.
    pub ca: PathBuf,
    /// Empty: any name will do.
    pub names: Vec<ClientName>,
}

/// A name that lets a client in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientName {
    Dns(DnsName<'static>),
    Uri(String),
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum TlsSettingError {
    #[error(
        "--grpc-server-use-tls (GRPC_SERVER_USE_TLS) is on, but --{flag} ({env}) is not set: \
         set it to the PEM file of {what}, or turn TLS off"
    )]
    Missing { flag: &'static str, env: &'static str, what: &'static str },
    #[error(
        "--{flag} ({env}) is set, but TLS is off, so that no client would be checked: \
         turn on --grpc-server-use-tls (GRPC_SERVER_USE_TLS), or leave --{flag} out"
    )]
    ClientsUnchecked { flag: &'static str, env: &'static str },
    #[error(
        "--grpc-client-tls-san (GRPC_CLIENT_TLS_SAN) is set, but no CA is, and anybody can write a name into a \
         certificate: set --grpc-client-tls-cacert (GRPC_CLIENT_TLS_CACERT) to the PEM file of the clients' CA"
    )]
    NamesWithoutCa,
    #[error(
        "--grpc-client-tls-san (GRPC_CLIENT_TLS_SAN) has '{0}', which is neither a DNS name nor a URI: \
         write whole names such as edge.example.com or spiffe://example.com/edge, separated by commas"
    )]
    Name(String),
    #[error(
        "--grpc-client-tls-san (GRPC_CLIENT_TLS_SAN) has no name in it: \
         write names such as edge.example.com, or leave it out to accept any name"
    )]
    NoNames,
}

impl TlsSettings {
    /// `None`: no TLS.
    pub(crate) fn new(flags: &ServerTlsFlags) -> Result<Option<TlsSettings>, TlsSettingError> {
        if !flags.grpc_server_use_tls {
            let unchecked = |flag, env| Err(TlsSettingError::ClientsUnchecked { flag, env });
            return match (&flags.grpc_client_tls_cacert, &flags.grpc_client_tls_san) {
                (Some(_), _) => unchecked("grpc-client-tls-cacert", "GRPC_CLIENT_TLS_CACERT"),
                (_, Some(_)) => unchecked("grpc-client-tls-san", "GRPC_CLIENT_TLS_SAN"),
                (None, None) => Ok(None),
            };
        }
        let needed =
            |file: &Option<PathBuf>, flag, env, what| file.clone().ok_or(TlsSettingError::Missing { flag, env, what });
        let names = flags.grpc_client_tls_san.as_deref().map(names).transpose()?;
        let clients = match (&flags.grpc_client_tls_cacert, names) {
            (Some(ca), names) => Some(ClientSettings { ca: ca.clone(), names: names.unwrap_or_default() }),
            (None, Some(_)) => return Err(TlsSettingError::NamesWithoutCa),
            (None, None) => None,
        };
        Ok(Some(TlsSettings {
            certificate: needed(
                &flags.grpc_server_tls_cert,
                "grpc-server-tls-cert",
                "GRPC_SERVER_TLS_CERT",
                "the server's certificate",
            )?,
            key: needed(
                &flags.grpc_server_tls_key,
                "grpc-server-tls-key",
                "GRPC_SERVER_TLS_KEY",
                "the certificate's private key",
            )?,
            clients,
            names: PairNames::GRPC,
            protocol: b"h2",
        }))
    }

    /// All files that are read, to be watched for changes.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let ca = self.clients.as_ref().map(|clients| clients.ca.clone());
        [self.certificate.clone(), self.key.clone()].into_iter().chain(ca).collect()
    }
}

fn names(text: &str) -> Result<Vec<ClientName>, TlsSettingError> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let names = names.map(name).collect::<Result<Vec<_>, _>>()?;
    if names.is_empty() { Err(TlsSettingError::NoNames) } else { Ok(names) }
}

fn name(text: &str) -> Result<ClientName, TlsSettingError> {
    if text.contains("://") {
        return Ok(ClientName::Uri(text.to_owned()));
    }
    match DnsName::try_from(text.to_owned()) {
        Ok(name) => Ok(ClientName::Dns(name)),
        Err(_) => Err(TlsSettingError::Name(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: ServerTlsFlags,
    }

    fn flags(args: &str) -> ServerTlsFlags {
        let args = std::iter::once("serve").chain(args.split_whitespace());
        Command::try_parse_from(args).unwrap().flags
    }

    fn settings(args: &str) -> Result<Option<TlsSettings>, TlsSettingError> {
        TlsSettings::new(&flags(args))
    }

    const PAIR: &str = "--grpc-server-use-tls --grpc-server-tls-cert c.pem --grpc-server-tls-key k.pem";

    #[test]
    fn tls_is_off_unless_it_is_turned_on() {
        assert_eq!(settings(""), Ok(None));
        let unused = "--grpc-server-tls-cert c.pem --grpc-server-tls-key k.pem";
        assert_eq!(settings(unused), Ok(None));
        assert!(flags(unused).warning().is_some_and(|warning| warning.contains("plain text")));
        assert_eq!(flags(PAIR).warning(), None);
        let plain = settings(PAIR).unwrap().unwrap();
        assert_eq!(plain.files(), [PathBuf::from("c.pem"), PathBuf::from("k.pem")]);
        assert_eq!(plain.clients, None);
    }

    #[test]
    fn clients_are_checked_by_ca_and_by_name() {
        let any_name = settings(&format!("{PAIR} --grpc-client-tls-cacert ca.pem")).unwrap().unwrap();
        assert_eq!(any_name.clients.as_ref().unwrap().names, []);
        assert_eq!(any_name.files().len(), 3);
        let named = format!("{PAIR} --grpc-client-tls-cacert ca.pem --grpc-client-tls-san Edge.test,,spiffe://x/y,");
        let names = settings(&named).unwrap().unwrap().clients.unwrap().names;
        let dns = ClientName::Dns(DnsName::try_from("edge.test").unwrap());
        assert_eq!(names, [dns, ClientName::Uri("spiffe://x/y".into())]);
    }

    #[test]
    fn what_would_leave_clients_unchecked_is_refused() {
        let said = |args: &str| settings(args).unwrap_err().to_string();
        let text = said("--grpc-server-use-tls --grpc-server-tls-key k.pem");
        assert!(text.contains("--grpc-server-tls-cert (GRPC_SERVER_TLS_CERT) is not set"), "{text}");
        let text = said("--grpc-server-use-tls --grpc-server-tls-cert c.pem");
        assert!(text.contains("--grpc-server-tls-key (GRPC_SERVER_TLS_KEY) is not set"), "{text}");
        let text = said("--grpc-client-tls-cacert ca.pem");
        assert!(text.contains("--grpc-client-tls-cacert (GRPC_CLIENT_TLS_CACERT) is set, but TLS is off"), "{text}");
        let text = said("--grpc-client-tls-san a");
        assert!(text.contains("--grpc-client-tls-san (GRPC_CLIENT_TLS_SAN) is set, but TLS is off"), "{text}");
        assert!(said(&format!("{PAIR} --grpc-client-tls-san a")).contains("no CA is"));
        for names in ["*.test", "10.0.0.1", "a_b!", "a,b..c"] {
            let text = said(&format!("{PAIR} --grpc-client-tls-cacert ca.pem --grpc-client-tls-san {names}"));
            assert!(text.contains("neither a DNS name nor a URI"), "{text}");
        }
        assert!(said(&format!("{PAIR} --grpc-client-tls-cacert ca.pem --grpc-client-tls-san ,")).contains("no name"));
    }
}
