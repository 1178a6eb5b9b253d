//! How commands reach a server of `envoy.service.ratelimit.v3`, ours or another.
//!
//! On `h2` itself rather than on tonic's channel: a load generator has to cost less than the server it measures, errors
//! arrive here before anybody has flattened them into a status, and it is known whether a request was processed.

pub(crate) mod address;
pub(crate) mod advice;
pub(crate) mod connect;
pub(crate) mod exchange;
pub(crate) mod tls;

use clap::Args;

use crate::cli::client::address::ServerAddress;
use crate::cli::client::tls::ClientTlsFlags;

/// Which server, and how to speak with it.
#[derive(Args, Clone, Debug)]
pub struct ServerFlags {
    /// host:port, [::1]:8081, unix:/path, or a URL with http:// or https://
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", help_heading = "Server")]
    pub addr: ServerAddress,

    #[command(flatten)]
    pub tls: ClientTlsFlags,
}
