//! What to do about it: a hint for everything that commonly keeps a client from its answer.

use std::io;

use rustls::{AlertDescription, CertificateError, Error as TlsError};
use tonic::Code;

use crate::cli::client::connect::ConnectError;
use crate::cli::client::exchange::ExchangeError;

pub(crate) fn on_connect(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::Lookup { .. } => "is the name right, and known here? An IP address works without lookup",
        ConnectError::Connect { source, .. } => match source.kind() {
            io::ErrorKind::ConnectionRefused => "is the server running, and is this its gRPC port? See --addr",
            io::ErrorKind::NotFound => "is the server running, and is this the path of its socket? See --addr",
            io::ErrorKind::PermissionDenied => "may this user write to the socket?",
            _ => "can the server be reached from here? See --addr",
        },
        ConnectError::Tls { source, .. } => on_tls(source).unwrap_or(TLS_UNCLEAR),
        ConnectError::Http2 { source, .. } => on_tls(source).or_else(|| on_alert(source)).unwrap_or(NOT_HTTP2),
        // In TLS 1.3 a client that shows no certificate learns that it should have only by what happens next.
        ConnectError::Closed { is_secure: true, .. } => CERTIFICATE_WANTED,
        ConnectError::Closed { is_secure: false, .. } => NOT_HTTP2,
        ConnectError::Timeout { .. } => "can the server be reached from here, and does it speak gRPC at --addr?",
    }
}

pub(crate) fn on_failure(failure: &ExchangeError) -> &'static str {
    match failure {
        ExchangeError::Closed | ExchangeError::Refused => {
            "the server closes connections as soon as they are used; its log may say why"
        }
        ExchangeError::Broken(error) => error
            .get_io()
            .and_then(|error| on_tls(error).or_else(|| on_alert(error)))
            .unwrap_or("did the server stop? Its log may say why"),
        ExchangeError::Http(_) | ExchangeError::Malformed(_) => {
            "is this the gRPC port of a rate limit service? See --addr"
        }
        ExchangeError::Status { code, .. } => on_code(*code),
    }
}

fn on_code(code: Code) -> &'static str {
    match code {
        Code::Unimplemented => "this gRPC server has no envoy.service.ratelimit.v3.RateLimitService: see --addr",
        Code::DeadlineExceeded => {
            "the server was too slow: see --timeout, and whether it or what it depends on is overloaded"
        }
        Code::Unavailable => "the server is there but can't serve now: has it loaded its rules, or is it stopping?",
        Code::ResourceExhausted => "the server refuses because it is overloaded, or the request is too large",
        Code::InvalidArgument => "the server does not take this request: the message says why",
        Code::Unauthenticated | Code::PermissionDenied => CERTIFICATE_WANTED,
        _ => "the server's log may say more",
    }
}

const TLS_UNCLEAR: &str = "does the server speak TLS at this address? Try without --tls";
const CERTIFICATE_WANTED: &str = "does the server ask for a client certificate? See --cert and --cert-key";
const NOT_HTTP2: &str = "is this a gRPC port? If it expects TLS, add --tls";

/// The advice on a TLS alert. It is known by its text: HTTP/2 keeps no more of the error that broke its connection.
fn on_alert(error: &io::Error) -> Option<&'static str> {
    error.to_string().contains("fatal alert").then_some(CERTIFICATE_WANTED)
}

fn on_tls(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref()?.downcast_ref::<TlsError>()?;
    Some(match error {
        TlsError::InvalidCertificate(error) => match error {
            // A CA that was made anew under its old name is known by name, but its signature does not fit.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "name the CA that issued the server's certificate with --ca"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the certificate is for another name: see --server-name"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired: renew it"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet: is the clock right?"
            }
            _ => "the server's certificate can't be used",
        },
        TlsError::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired | AlertDescription::HandshakeFailure => {
                "the server asks for a client certificate: see --cert and --cert-key"
            }
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::AccessDenied => "the server does not accept our certificate: see --cert and --cert-key",
            AlertDescription::NoApplicationProtocol => "the server does not speak HTTP/2 over TLS: see --addr",
            _ => TLS_UNCLEAR,
        },
        TlsError::InvalidMessage(_) => TLS_UNCLEAR,
        _ => return None,
    })
}
