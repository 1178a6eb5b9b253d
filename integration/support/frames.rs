//! HTTP/2 by hand, to do what no well-behaved client can be made to do.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::harness::PATIENCE;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const ACK: u8 = 1;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn new(kind: u8, flags: u8, stream: u32, payload: Vec<u8>) -> Frame {
        Frame { kind, flags, stream, payload }
    }

    /// Opens a call of ShouldRateLimit. Without END_STREAM, the message is still to come.
    pub fn call(flags: u8, stream: u32) -> Frame {
        Frame::new(HEADERS, flags, stream, call_headers())
    }

    /// Opens a call whose message is still to come. The first one of a connection has the peer remember its headers; later ones
    /// take six bytes for them.
    pub fn short_call(is_first: bool, stream: u32) -> Frame {
        // Entries of the static table, and places in the dynamic one: the newest is 62.
        const POST: u8 = 0x83;
        const HTTP: u8 = 0x86;
        let remembered = |name: u8, value: &str| [&[0x40 | name, value.len() as u8], value.as_bytes()].concat();
        let mut payload = vec![POST, HTTP];
        if is_first {
            payload.extend(remembered(4, SHOULD_RATE_LIMIT));
            payload.extend(remembered(1, "test"));
            payload.extend(remembered(31, "application/grpc"));
            payload.extend([&[0x40, 2], &b"te"[..], &[8], b"trailers"].concat());
        } else {
            payload.extend([65, 64, 63, 62].map(|place| 0x80 | place));
        }
        Frame::new(HEADERS, END_HEADERS, stream, payload)
    }

    pub fn reset(stream: u32) -> Frame {
        const CANCEL: u32 = 8;
        Frame::new(RST_STREAM, 0, stream, CANCEL.to_be_bytes().to_vec())
    }

    /// The message of a call that was opened, and the end of our side of the call.
    pub fn message(stream: u32, message: &[u8]) -> Frame {
        let mut payload = vec![0];
        payload.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        payload.extend(message);
        Frame::new(DATA, END_STREAM, stream, payload)
    }

    /// Lets the server send this many bytes more.
    pub fn window_update(bytes: u32) -> Frame {
        Frame::new(WINDOW_UPDATE, 0, 0, bytes.to_be_bytes().to_vec())
    }

    /// Announces settings, each a number and its value.
    pub fn settings_of(settings: &[(u16, u32)]) -> Frame {
        let pair = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        Frame::new(SETTINGS, 0, 0, settings.iter().flat_map(pair).collect())
    }

    pub fn ping() -> Frame {
        Frame::new(PING, 0, 0, vec![0; 8])
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// The number at an offset: the error of an RST_STREAM (0) or a GOAWAY (4).
    pub fn number(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.payload[offset..offset + 4].try_into().unwrap())
    }

    /// What a SETTINGS frame announces.
    pub fn settings(&self) -> Vec<(u16, u32)> {
        let setting = |pair: &[u8]| {
            (u16::from_be_bytes(pair[..2].try_into().unwrap()), u32::from_be_bytes(pair[2..].try_into().unwrap()))
        };
        self.payload.chunks(6).map(setting).collect()
    }
}

/// A header in HPACK's plainest form: a literal, never indexed, not compressed.
pub fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x10];
    for text in [name, value] {
        bytes.extend(length(text.len()));
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// An HPACK integer with a prefix of seven bits.
fn length(mut value: usize) -> Vec<u8> {
    if value < 127 {
        return vec![value as u8];
    }
    let mut bytes = vec![127];
    value -= 127;
    while value >= 128 {
        bytes.push((value % 128) as u8 | 128);
        value /= 128;
    }
    bytes.push(value as u8);
    bytes
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub fn call_headers() -> Vec<u8> {
    call_headers_to(SHOULD_RATE_LIMIT)
}

/// The headers of a call of another method.
pub fn call_headers_to(path: &str) -> Vec<u8> {
    headers_of(path, "test")
}

/// The headers of a call with another authority.
pub fn call_headers_with(authority: &str) -> Vec<u8> {
    headers_of(SHOULD_RATE_LIMIT, authority)
}

fn headers_of(path: &str, authority: &str) -> Vec<u8> {
    let pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    pairs.iter().flat_map(|(name, value)| header(name, value)).collect()
}

/// A connection whose frames the test writes and reads itself.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects and greets; the server's answer is still to be read.
    pub fn open(address: SocketAddr) -> Connection {
        Connection::open_with(address, &[])
    }

    /// Connects and greets with settings of our own.
    pub fn open_with(address: SocketAddr, settings: &[(u16, u32)]) -> Connection {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("the gRPC port answers");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        // A connection that is refused may be gone before the greeting.
        let _ = stream.write_all(PREFACE);
        let _ = stream.write_all(&Frame::settings_of(settings).bytes());
        Connection::over(stream)
    }

    /// Connects, greets, and reads the server's greeting.
    pub fn greeted(address: SocketAddr) -> Connection {
        let mut connection = Connection::open(address);
        connection.read_to(SETTINGS).expect("a greeting");
        connection
    }

    /// Goes on with a connection that has been greeted.
    pub fn over(stream: TcpStream) -> Connection {
        Connection(BufReader::new(stream))
    }

    /// Writes bytes. False if the other side has closed the connection.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.get_mut().write_all(bytes).is_ok()
    }

    /// The connection itself, for tests that stop speaking in frames.
    pub fn stream(&self) -> &TcpStream {
        self.0.get_ref()
    }

    /// Reads the next frame; `None` when the connection is closed. Acknowledges settings and pings.
    pub fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        fill(&mut self.0, &mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        fill(&mut self.0, &mut payload)?;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        let frame = Frame { kind: head[3], flags: head[4], stream, payload };
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => self.send(&Frame::new(SETTINGS, ACK, 0, vec![]).bytes()),
            PING if frame.flags & ACK == 0 => self.send(&Frame::new(PING, ACK, 0, frame.payload.clone()).bytes()),
            _ => true,
        };
        Some(frame)
    }

    /// Reads up to the first frame of a kind; `None` when the connection closes before.
    pub fn read_to(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.read()?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }
}

/// Fills the buffer; `None` when the connection is closed. Panics if the server stays silent.
fn fill(stream: &mut impl Read, buffer: &mut [u8]) -> Option<()> {
    match stream.read_exact(buffer) {
        Ok(()) => Some(()),
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => None,
        Err(error) => panic!("the server neither answered nor closed the connection: {error}"),
    }
}
