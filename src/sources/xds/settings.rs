//! The management server that rules come from, as flags and as checked.
//!
//! The names are envoyproxy/ratelimit's. Everything that can be found wrong before a connection is made is refused
//! here, unreadable files included. Files are read again at every connect, because certificates rotate.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use http::{HeaderName, HeaderValue, Uri};
use thiserror::Error;

use crate::flag_value::{boolean, duration};

const INTERVAL_MIN: Duration = Duration::from_millis(1);
const MESSAGE_BYTES: usize = 32 * 1024 * 1024;

#[derive(Args, Clone, Debug)]
pub struct XdsFlags {
    /// The server, as host:port
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_URL", value_name = "HOST:PORT", default_value = "localhost:18000")]
    #[arg(help_heading = "Rules by xDS")]
    pub config_grpc_xds_server_url: String,

    /// Who we are
    #[arg(long, env = "CONFIG_GRPC_XDS_NODE_ID", value_name = "ID", default_value = "default")]
    #[arg(help_heading = "Rules by xDS")]
    pub config_grpc_xds_node_id: String,

    /// What else the server should know of us, as name=value,name2=value2
    #[arg(long, env = "CONFIG_GRPC_XDS_NODE_METADATA", value_name = "PAIRS", default_value = "")]
    #[arg(hide_default_value = true, help_heading = "Rules by xDS")]
    pub config_grpc_xds_node_metadata: String,

    /// Headers for the server, as name:value,name2:value2
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", value_name = "PAIRS", default_value = "")]
    #[arg(hide_default_value = true, hide_env_values = true, help_heading = "Rules by xDS")]
    pub config_grpc_xds_client_additional_headers: String,

    /// The pause before a stream that ended is opened again
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", value_name = "DURATION", default_value = "3s")]
    #[arg(value_parser = duration, help_heading = "Rules by xDS")]
    pub config_grpc_xds_server_connect_retry_interval: Duration,

    /// Speak TLS with the server
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_USE_TLS", value_name = "BOOL", default_value = "false")]
    #[arg(num_args = 0..=1, default_missing_value = "true", value_parser = boolean, action = clap::ArgAction::Set)]
    #[arg(help_heading = "Rules by xDS")]
    pub config_grpc_xds_server_use_tls: bool,

    /// PEM file of our certificate, for a server that asks for one
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", value_name = "FILE", help_heading = "Rules by xDS")]
    pub config_grpc_xds_client_tls_cert: Option<PathBuf>,

    /// PEM file of its private key
    #[arg(long, env = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", value_name = "FILE", help_heading = "Rules by xDS")]
    pub config_grpc_xds_client_tls_key: Option<PathBuf>,

    /// PEM file of the CA of the server's certificate, in place of those that the system trusts
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", value_name = "FILE", help_heading = "Rules by xDS")]
    pub config_grpc_xds_server_tls_cacert: Option<PathBuf>,

    /// The name that the server's certificate must be for, if not its host
    #[arg(long, env = "CONFIG_GRPC_XDS_SERVER_TLS_SAN", value_name = "NAME", help_heading = "Rules by xDS")]
    pub config_grpc_xds_server_tls_san: Option<String>,

    /// The longest pause between attempts to connect; the first is the retry interval, and they double
    #[arg(long, env = "XDS_CLIENT_BACKOFF_MAX_INTERVAL", value_name = "DURATION", default_value = "60s")]
    #[arg(value_parser = duration, help_heading = "Rules by xDS")]
    pub xds_client_backoff_max_interval: Duration,

    /// The largest message of the server; 0 is 32 MiB
    #[arg(long, env = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", value_name = "BYTES", default_value_t = 0)]
    #[arg(help_heading = "Rules by xDS")]
    pub xds_client_max_msg_size_in_bytes: usize,
}

/// A management server, and who asks it for rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XdsSettings {
    /// Host and port as typed, for logs and pages.
    pub place: String,
    /// Host and port, with `https` if TLS is spoken.
    pub uri: Uri,
    /// Tells the server who asks.
    pub node_id: String,
    /// Sent along with the id, as strings; may be empty.
    pub node_metadata: Vec<(String, String)>,
    /// Added to the request that opens the stream; may be empty.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The first pause before a stream is opened again. Each further one is twice as long, until rules come into force.
    pub retry_interval: Duration,
    /// The longest pause, at least `retry_interval`.
    pub retry_interval_max: Duration,
    /// The largest message that is taken from the server; never 0.
    pub message_bytes_max: usize,
    /// `None` is plain text.
    pub tls: Option<XdsTls>,
}

/// Whom to trust, and who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XdsTls {
    /// PEM file of the server's CA. `None` trusts what the system trusts.
    pub ca: Option<PathBuf>,
    /// PEM files of our certificate and its private key, for a server that asks.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must be for. `None` is the host.
    pub name: Option<String>,
}

/// A setting of the management server that can't be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum XdsSettingError {
    #[error("CONFIG_GRPC_XDS_SERVER_URL is '{0}', which is no host and port: write envoy-gateway:18001 or the like")]
    Place(String),
    #[error("{name} has '{pair}', which is no pair: write name{separator}value, separated by commas")]
    Pair { name: &'static str, pair: String, separator: char },
    #[error("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS has '{0}', which can't be a header")]
    Header(String),
    #[error("{name} is {}: write at least 1ms", humantime::format_duration(*.value))]
    Interval { name: &'static str, value: Duration },
    #[error("{given} is set, but {missing} is not: a certificate needs its private key")]
    Half { given: &'static str, missing: &'static str },
    #[error("{name} is set without CONFIG_GRPC_XDS_SERVER_USE_TLS: set it to true, or leave {name} away")]
    NoTls { name: &'static str },
    #[error("{name}: can't read {file}: {why}")]
    File { name: &'static str, file: String, why: String },
}

impl XdsSettings {
    pub(crate) fn new(flags: &XdsFlags) -> Result<XdsSettings, XdsSettingError> {
        let place = flags.config_grpc_xds_server_url.trim().to_owned();
        let no_place = || XdsSettingError::Place(place.clone());
        let scheme = if flags.config_grpc_xds_server_use_tls { "https" } else { "http" };
        let uri: Uri = format!("{scheme}://{place}").parse().map_err(|_| no_place())?;
        if uri.port_u16().is_none() || uri.host().is_none_or(str::is_empty) || uri.path() != "/" {
            return Err(no_place());
        }
        let retry_interval = flags.config_grpc_xds_server_connect_retry_interval;
        let intervals = [
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", retry_interval),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", flags.xds_client_backoff_max_interval),
        ];
        for (name, value) in intervals {
            if value < INTERVAL_MIN {
                return Err(XdsSettingError::Interval { name, value });
            }
        }
        let bytes_max = flags.xds_client_max_msg_size_in_bytes;
        Ok(XdsSettings {
            uri,
            node_id: flags.config_grpc_xds_node_id.clone(),
            node_metadata: pairs("CONFIG_GRPC_XDS_NODE_METADATA", &flags.config_grpc_xds_node_metadata, '=')?,
            headers: headers(&flags.config_grpc_xds_client_additional_headers)?,
            retry_interval,
            retry_interval_max: flags.xds_client_backoff_max_interval.max(retry_interval),
            message_bytes_max: if bytes_max == 0 { MESSAGE_BYTES } else { bytes_max },
            tls: tls(flags)?,
            place,
        })
    }
}

fn pairs(name: &'static str, text: &str, separator: char) -> Result<Vec<(String, String)>, XdsSettingError> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let pair = part.split_once(separator).filter(|(key, _)| !key.trim().is_empty());
            let no_pair = || XdsSettingError::Pair { name, pair: part.to_owned(), separator };
            pair.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).ok_or_else(no_pair)
        })
        .collect()
}

fn headers(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, XdsSettingError> {
    let pairs = pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", text, ':')?;
    let header = |(name, value): (String, String)| {
        let no_header = || XdsSettingError::Header(name.clone());
        let value = HeaderValue::try_from(value).map_err(|_| no_header())?;
        Ok((HeaderName::try_from(&*name).map_err(|_| no_header())?, value))
    };
    pairs.into_iter().map(header).collect()
}

fn tls(flags: &XdsFlags) -> Result<Option<XdsTls>, XdsSettingError> {
    const CERT: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
    const KEY: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY";
    const CA: &str = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT";
    const SAN: &str = "CONFIG_GRPC_XDS_SERVER_TLS_SAN";
    let set = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
    let (cert, key) = (set(&flags.config_grpc_xds_client_tls_cert), set(&flags.config_grpc_xds_client_tls_key));
    let ca = set(&flags.config_grpc_xds_server_tls_cacert);
    let name = flags.config_grpc_xds_server_tls_san.clone().filter(|name| !name.is_empty());
    if !flags.config_grpc_xds_server_use_tls {
        let given = [(CERT, cert.is_some()), (KEY, key.is_some()), (CA, ca.is_some()), (SAN, name.is_some())];
        return match given.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => Err(XdsSettingError::NoTls { name }),
            None => Ok(None),
        };
    }
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((readable(CERT, &cert)?, readable(KEY, &key)?)),
        (None, None) => None,
        (Some(_), None) => return Err(XdsSettingError::Half { given: CERT, missing: KEY }),
        (None, Some(_)) => return Err(XdsSettingError::Half { given: KEY, missing: CERT }),
    };
    let ca = ca.map(|ca| readable(CA, &ca)).transpose()?;
    Ok(Some(XdsTls { ca, identity, name }))
}

fn readable(name: &'static str, file: &Path) -> Result<PathBuf, XdsSettingError> {
    let unreadable = |error: std::io::Error| XdsSettingError::File {
        name,
        file: file.display().to_string(),
        why: error.to_string(),
    };
    std::fs::read(file).map_err(unreadable)?;
    Ok(file.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: XdsFlags,
    }

    fn settings(args: &[&str]) -> Result<XdsSettings, XdsSettingError> {
        XdsSettings::new(&Command::try_parse_from(std::iter::once(&"serve").chain(args)).unwrap().flags)
    }

    fn said(args: &[&str]) -> String {
        settings(args).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_those_of_the_reference() {
        let settings = settings(&[]).unwrap();
        assert_eq!((&*settings.place, &*settings.node_id), ("localhost:18000", "default"));
        assert_eq!((settings.retry_interval.as_secs(), settings.retry_interval_max.as_secs()), (3, 60));
        assert_eq!((settings.tls, settings.headers), (None, Vec::new()));
    }

    #[test]
    fn pairs_are_taken_apart() {
        let settings = settings(&[
            "--config-grpc-xds-node-metadata",
            "zone=a, team = b=c",
            "--config-grpc-xds-client-additional-headers",
            "x-tenant: one,authorization:Bearer t",
        ])
        .unwrap();
        assert_eq!(settings.node_metadata, [("zone".into(), "a".into()), ("team".into(), "b=c".into())]);
        assert_eq!(settings.headers[1].1, "Bearer t");
    }

    #[test]
    fn what_can_not_be_used_is_named() {
        for bad in ["", "host", "host:x", "http://host:1", "host:1/path"] {
            assert!(said(&["--config-grpc-xds-server-url", bad]).contains("no host and port"), "{bad}");
        }
        assert!(said(&["--config-grpc-xds-node-metadata", "zone"]).contains("write name=value"));
        assert!(said(&["--config-grpc-xds-client-additional-headers", "a b: c"]).contains("can't be a header"));
        assert!(said(&["--config-grpc-xds-server-connect-retry-interval", "0s"]).contains("at least 1ms"));
        assert!(said(&["--config-grpc-xds-server-tls-san", "x"]).contains("without CONFIG_GRPC_XDS_SERVER_USE_TLS"));
        let tls = "--config-grpc-xds-server-use-tls";
        assert!(said(&[tls, "--config-grpc-xds-client-tls-cert", "/x"]).contains("TLS_KEY is not"));
        assert!(said(&[tls, "--config-grpc-xds-server-tls-cacert", "/nowhere"]).contains("can't read /nowhere"));
    }
}
