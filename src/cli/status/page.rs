//! One page of the admin port, by a plain HTTP/1.1 GET: the port is ours, so there is little that can come back.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant};

use thiserror::Error;

/// Where the admin port is unless told otherwise.
const PORT: u16 = 6070;
/// More than any page of ours.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// How much is shown of an answer that refuses the page.
const SHOWN_CHARS_MAX: usize = 200;

/// A host and a port, as they are written in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAddress(String);

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<AdminAddress, String> {
        let text = text.strip_prefix("http://").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        let explained = || format!("'{text}' is no host and port: write 127.0.0.1:{PORT} or [::1]:{PORT}");
        let authority: http::uri::Authority = text.parse().map_err(|_| explained())?;
        // If a user stands before the host, the text does not begin with the host.
        let after = text.strip_prefix(authority.host()).filter(|_| !authority.host().is_empty());
        match after.ok_or_else(explained)? {
            "" => Ok(AdminAddress(format!("{text}:{PORT}"))),
            port => match port.strip_prefix(':').map(str::parse::<u16>) {
                Some(Ok(1..)) => Ok(AdminAddress(text.to_owned())),
                _ => Err(explained()),
            },
        }
    }
}

/// Why there is no page.
#[derive(Debug, Error)]
pub(super) enum PageError {
    #[error("{address} is not known: {fault}")]
    Unknown { address: AdminAddress, fault: std::io::Error },
    #[error("nobody answers at {address}: {fault}")]
    Connect { address: AdminAddress, fault: std::io::Error },
    #[error("{address} gave no answer within {}", humantime::format_duration(*.within))]
    Late { address: AdminAddress, within: Duration },
    #[error("the connection to {address} broke: {fault}")]
    Broken { address: AdminAddress, fault: std::io::Error },
    #[error("{address} answered with {status}: {said}")]
    Refused { address: AdminAddress, status: u16, said: String },
    #[error("{address} does not answer as an admin port does")]
    NotStats { address: AdminAddress },
}

impl PageError {
    /// What to do about it.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            PageError::Unknown { .. } => "write an address that this machine can resolve, as --addr 127.0.0.1:6070",
            PageError::Connect { .. } => {
                "is tidegate running here? Its admin port is at DEBUG_HOST and DEBUG_PORT, 127.0.0.1:6070 unless set, and \
                 then only its own machine or container reaches it; --addr names another"
            }
            PageError::Late { .. } | PageError::Broken { .. } => {
                "the process may be stopped, starved of CPU or about to end: look at its log, and try again with a longer \
                 --timeout"
            }
            PageError::Refused { status: 403, .. } => {
                "on loopback the admin port answers to localhost and IP addresses only: write one of these in --addr"
            }
            PageError::Refused { .. } | PageError::NotStats { .. } => {
                "this is another port, or another version of tidegate: the line 'tidegate: serving' of its log names the \
                 admin port, which goes into --addr"
            }
        }
    }
}

/// Reads a page. All steps together take no longer than `within`.
pub(super) fn get(address: &AdminAddress, path: &str, within: Duration) -> Result<String, PageError> {
    let until = Instant::now() + within;
    let failed = |fault: std::io::Error| match is_late(&fault) {
        true => PageError::Late { address: address.clone(), within },
        false => PageError::Broken { address: address.clone(), fault },
    };
    let mut stream = match connect(address, until) {
        // A process that has no time to take a connection is there all the same.
        Err(PageError::Connect { fault, .. }) if is_late(&fault) => return Err(failed(fault)),
        connected => connected?,
    };
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\naccept: application/json\r\nconnection: close\r\n\r\n");
    stream.set_write_timeout(Some(left(until))).map_err(failed)?;
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    let mut piece = [0; 16 * 1024];
    loop {
        stream.set_read_timeout(Some(left(until))).map_err(failed)?;
        match stream.read(&mut piece).map_err(failed)? {
            0 => break,
            // A server that never stops must not be read forever, however quickly it sends.
            read if answer.len() + read > ANSWER_BYTES_MAX => {
                return Err(PageError::NotStats { address: address.clone() });
            }
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    let (status, body) = split(&answer).ok_or_else(|| PageError::NotStats { address: address.clone() })?;
    if status == 200 {
        return Ok(body);
    }
    let said = body.trim().chars().take(SHOWN_CHARS_MAX).filter(|c| !c.is_control()).collect();
    Err(PageError::Refused { address: address.clone(), status, said })
}

/// When its time is up, a socket reports either of these.
fn is_late(fault: &std::io::Error) -> bool {
    matches!(fault.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Connects to the first of its addresses that answers.
fn connect(address: &AdminAddress, until: Instant) -> Result<TcpStream, PageError> {
    let unknown = |fault| PageError::Unknown { address: address.clone(), fault };
    let places: Vec<SocketAddr> = address.0.to_socket_addrs().map_err(unknown)?.collect();
    let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
    for place in places {
        match TcpStream::connect_timeout(&place, left(until)) {
            Ok(stream) => return Ok(stream),
            Err(fault) => last = fault,
        }
    }
    Err(PageError::Connect { address: address.clone(), fault: last })
}

/// The time that is left. Never zero, which sockets refuse as a timeout.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Status and body of an answer that came whole. Our pages have a length, so nothing comes in chunks.
fn split(answer: &[u8]) -> Option<(u16, String)> {
    let answer = std::str::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn read(text: &str) -> Result<String, String> {
        text.parse::<AdminAddress>().map(|address| address.to_string())
    }

    #[test]
    fn addresses_have_a_host_and_perhaps_a_port() {
        for (typed, meant) in [
            ("127.0.0.1:6070", "127.0.0.1:6070"),
            ("localhost", "localhost:6070"),
            ("[::1]:9000", "[::1]:9000"),
            ("[::1]", "[::1]:6070"),
            ("http://10.0.0.7:6070/", "10.0.0.7:6070"),
        ] {
            assert_eq!(read(typed).as_deref(), Ok(meant));
        }
        for bad in ["", "a b", "::1", "a:0", "a:99999", "a:", "user@a:1", "http://a:1/stats", "a\r\nb"] {
            assert!(read(bad).is_err_and(|why| why.contains("6070")), "{bad}: {:?}", read(bad));
        }
    }

    #[test]
    fn an_answer_is_taken_apart() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(split(whole), Some((200, "{}".into())));
        for other in [&b"HTTP/1.1 200 OK\r\n"[..], b"\x00\x00\x12\x04\r\n\r\n", b"HTTP/1.1 x\r\n\r\n", b"\xff\r\n\r\n"]
        {
            assert_eq!(split(other), None);
        }
    }

    /// Answers one connection with these bytes and closes it, or never.
    fn answering(bytes: &'static [u8], closes: bool) -> AdminAddress {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The request is read, so that closing does not reset what was sent.
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(bytes);
            if !closes {
                std::thread::park();
            }
        });
        address
    }

    #[test]
    fn whoever_answers_something_else_is_named() {
        let get = |address: &AdminAddress| super::get(address, "/stats", Duration::from_millis(500));
        let page = get(&answering(b"HTTP/1.1 200 OK\r\n\r\n{\"a\": 1}", true)).unwrap();
        assert_eq!(page, "{\"a\": 1}");
        let error = get(&answering(b"HTTP/1.1 404 Not Found\r\n\r\nnothing\n", true)).unwrap_err();
        assert!(error.to_string().ends_with("answered with 404: nothing"), "{error}");
        assert!(error.hint().contains("another port"));
        let error = get(&answering(b"SSH-2.0-x\r\n", true)).unwrap_err();
        assert!(matches!(error, PageError::NotStats { .. }), "{error}");
        let error = get(&answering(b"HTTP/1.1 200 OK\r\n", false)).unwrap_err();
        assert!(error.to_string().contains("gave no answer within 500ms"), "{error}");
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = get(&nobody.to_string().parse().unwrap()).unwrap_err();
        assert!(error.hint().contains("DEBUG_PORT"), "{error}");
    }
}
