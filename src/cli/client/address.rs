//! Where a server is, as people type it: `host:port`, `[::1]:8081`, `unix:/path`, or a URL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The gRPC port of this service and of envoyproxy/ratelimit.
const PORT: u16 = 8081;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host and port, or a socket. The port is filled in.
    pub place: ServerTarget,
    /// What a URL says about TLS; `None` if it was not a URL.
    pub scheme: Option<Scheme>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTarget {
    /// A name or an IP address (IPv6 without its brackets), and a port.
    Tcp {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path.strip_prefix("//").unwrap_or(path));
        }
        if text.starts_with('/') {
            return unix(text);
        }
        let (scheme, rest, port) = match text.split_once("://") {
            None => (None, text, PORT),
            Some(("http", rest)) => (Some(Scheme::Http), rest, 80),
            Some(("https", rest)) => (Some(Scheme::Https), rest, 443),
            Some((other, _)) => return Err(format!("'{other}://' is not known: write http:// or https://")),
        };
        let rest = if scheme.is_some() { rest.strip_suffix('/').unwrap_or(rest) } else { rest };
        let (host, port) = host_and_port(rest, port)?;
        Ok(ServerAddress { place: ServerTarget::Tcp { host, port }, scheme })
    }
}

fn unix(path: &str) -> Result<ServerAddress, String> {
    if path.is_empty() {
        return Err("the path of the socket is missing: write unix:/path".into());
    }
    Ok(ServerAddress { place: ServerTarget::Unix(path.into()), scheme: None })
}

fn host_and_port(text: &str, default_port: u16) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("the ']' of an IPv6 address is missing")?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("'{host}' is not an IPv6 address"));
            }
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(format!("'{after}' after the ']': write [::1]:{PORT}")),
            }
        }
        None if text.matches(':').count() > 1 => {
            return Err(format!("an IPv6 address goes into brackets: write [::1]:{PORT}"));
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(format!("the host is missing: write 127.0.0.1:{PORT}"));
    }
    // The host goes into the request's `:authority`, which allows nothing else.
    if host.chars().any(|c| !c.is_ascii_alphanumeric() && !"-._:".contains(c)) {
        return Err(format!(
            "'{host}' is not a host: write host:port, [::1]:{PORT}, unix:/path or a URL without a path"
        ));
    }
    let port = match port {
        None => default_port,
        Some(port) => match port.parse() {
            Ok(0) | Err(_) => return Err(format!("'{port}' is not a port: write a number from 1 to 65535")),
            Ok(port) => port,
        },
    };
    Ok((host.to_owned(), port))
}

impl ServerTarget {
    /// What stands for the place in a request's `:authority`.
    pub fn authority(&self) -> String {
        match self {
            ServerTarget::Tcp { .. } => self.to_string(),
            ServerTarget::Unix(_) => "localhost".into(),
        }
    }

    /// The name that a certificate has to be for, unless another is asked for.
    pub fn server_name(&self) -> &str {
        match self {
            ServerTarget::Tcp { host, .. } => host,
            ServerTarget::Unix(_) => "localhost",
        }
    }
}

impl fmt::Display for ServerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerTarget::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServerTarget::Tcp { host, port } => write!(f, "{host}:{port}"),
            ServerTarget::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (String, Option<Scheme>) {
        let address: ServerAddress = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        (address.place.to_string(), address.scheme)
    }

    fn refused(text: &str) -> String {
        text.parse::<ServerAddress>().expect_err(text)
    }

    #[test]
    fn addresses_are_hosts_sockets_and_urls() {
        assert_eq!(read("127.0.0.1:9000"), ("127.0.0.1:9000".into(), None));
        assert_eq!(read("ratelimit.default.svc:9000"), ("ratelimit.default.svc:9000".into(), None));
        assert_eq!(read("localhost"), ("localhost:8081".into(), None));
        assert_eq!(read("[::1]:9000"), ("[::1]:9000".into(), None));
        assert_eq!(read("[::1]"), ("[::1]:8081".into(), None));
        assert_eq!(read("unix:/run/rl.sock"), ("unix:/run/rl.sock".into(), None));
        assert_eq!(read("unix:///run/rl.sock"), ("unix:/run/rl.sock".into(), None));
        assert_eq!(read("unix:rl.sock"), ("unix:rl.sock".into(), None));
        assert_eq!(read("/run/rl.sock"), ("unix:/run/rl.sock".into(), None));
        assert_eq!(read("http://a:9000/"), ("a:9000".into(), Some(Scheme::Http)));
        assert_eq!(read("http://a"), ("a:80".into(), Some(Scheme::Http)));
        assert_eq!(read("https://[::1]"), ("[::1]:443".into(), Some(Scheme::Https)));
    }

    #[test]
    fn what_is_no_address_says_what_to_write() {
        assert!(refused("::1").contains("write [::1]:8081"));
        assert!(refused("[::1").contains("']'"));
        assert!(refused("[::1]8081").contains("write [::1]:8081"));
        assert!(refused("[localhost]:1").contains("not an IPv6 address"));
        assert!(refused("a:b").contains("not a port"));
        assert!(refused("a:0").contains("not a port"));
        assert!(refused(":8081").contains("host is missing"));
        assert!(refused("ftp://a").contains("write http:// or https://"));
        assert!(refused("http://a/path").contains("without a path"));
        assert!(refused("http://user@a").contains("not a host"));
        assert!(refused("unix:").contains("write unix:/path"));
        assert!(refused("").contains("host is missing"));
    }
}
