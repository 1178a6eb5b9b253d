//! Headers as they are on the wire (HPACK, RFC 7541), as far as calls of one method need them.
//!
//! Outgoing headers are the same for every request, and made once. Of incoming ones only two fields matter, `:status`
//! and `grpc-status`; the others are followed only so far that the table stays in step with the server's.

use std::collections::VecDeque;

use crate::cli::bench::http2::huffman::Huffman;

/// The table's size unless something else is agreed upon.
pub(crate) const TABLE_BYTES: u32 = 4096;
/// How much an entry of the table counts besides its name and value.
const ENTRY_BYTES: usize = 32;

/// The lengths of the names in the static table, from index 1.
#[rustfmt::skip]
const STATIC_NAME_BYTES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13, 12,
    6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3, 16,
];
/// The static entries of `:status`, from index 8.
const STATIC_STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
const STATIC_STATUS_FIRST: usize = 8;

/// What a header means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderMeaning {
    Status(u16),
    GrpcStatus(u16),
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Status,
    GrpcStatus,
    Other,
}

impl Name {
    fn of(text: &[u8]) -> Name {
        match text {
            b":status" => Name::Status,
            b"grpc-status" => Name::GrpcStatus,
            _ => Name::Other,
        }
    }

    /// A value that is no number is read as `u16::MAX`, which nobody sends.
    fn field(self, value: &[u8]) -> HeaderMeaning {
        let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(u16::MAX);
        match self {
            Name::Status => HeaderMeaning::Status(number()),
            Name::GrpcStatus => HeaderMeaning::GrpcStatus(number()),
            Name::Other => HeaderMeaning::Other,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct HeaderEntry {
    name: Name,
    name_bytes: usize,
    field: HeaderMeaning,
    /// How much it counts in the table; 0 for a static entry.
    bytes: usize,
}

/// What a block of headers said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderBlock {
    /// The HTTP status. `None` in trailers.
    pub status: Option<u16>,
    /// The code of gRPC. `None` in headers that a message follows.
    pub grpc_status: Option<u16>,
}

/// Reads the server's headers.
pub(crate) struct Decoder {
    huffman: Huffman,
    /// The newest first.
    table: VecDeque<HeaderEntry>,
    /// How much all entries count together.
    bytes: usize,
    /// How much they may count: what the server has set, at most `TABLE_BYTES`.
    bytes_max: usize,
}

impl Decoder {
    pub(crate) fn new() -> Decoder {
        Decoder { huffman: Huffman::new(), table: VecDeque::new(), bytes: 0, bytes_max: TABLE_BYTES as usize }
    }

    /// Reads a block. `None` if it can't be read; then nothing that follows can be.
    pub(crate) fn decode(&mut self, mut block: &[u8]) -> Option<HeaderBlock> {
        let mut heard = HeaderBlock::default();
        while let Some(first) = block.first() {
            let field = match first {
                0x80.. => {
                    let index = integer(&mut block, 7)?;
                    self.entry(index)?.field
                }
                0x40.. => self.literal(&mut block, 6, true)?,
                0x20.. => {
                    let bytes_max = integer(&mut block, 5)?;
                    if bytes_max > TABLE_BYTES as usize {
                        return None;
                    }
                    self.bytes_max = bytes_max;
                    self.make_room(0);
                    continue;
                }
                _ => self.literal(&mut block, 4, false)?,
            };
            match field {
                HeaderMeaning::Status(status) => heard.status = Some(status),
                HeaderMeaning::GrpcStatus(status) => heard.grpc_status = Some(status),
                HeaderMeaning::Other => {}
            }
        }
        Some(heard)
    }

    fn literal(&mut self, block: &mut &[u8], prefix_bits: u32, is_kept: bool) -> Option<HeaderMeaning> {
        let (name, name_bytes) = match integer(block, prefix_bits)? {
            0 => self.string(block, Name::of)?,
            index => {
                let entry = self.entry(index)?;
                (entry.name, entry.name_bytes)
            }
        };
        let (field, value_bytes) = self.string(block, |value| name.field(value))?;
        if is_kept {
            let entry = HeaderEntry { name, name_bytes, field, bytes: name_bytes + value_bytes + ENTRY_BYTES };
            self.make_room(entry.bytes);
            // An entry that is larger than the whole table empties it and is not kept.
            if entry.bytes <= self.bytes_max {
                self.bytes += entry.bytes;
                self.table.push_front(entry);
            }
        }
        Some(field)
    }

    /// Reads a string, and says what it means and how long it is.
    fn string<T>(&self, block: &mut &[u8], meaning: impl Fn(&[u8]) -> T) -> Option<(T, usize)> {
        const HUFFMAN: u8 = 0x80;
        let is_coded = block.first()? & HUFFMAN != 0;
        let length = integer(block, 7)?;
        let (text, rest) = block.split_at_checked(length)?;
        *block = rest;
        if !is_coded {
            return Some((meaning(text), text.len()));
        }
        let text = self.huffman.decode(text)?;
        Some((meaning(&text), text.len()))
    }

    fn entry(&self, index: usize) -> Option<HeaderEntry> {
        let Some(&name_bytes) = STATIC_NAME_BYTES.get(index.checked_sub(1)?) else {
            return self.table.get(index - 1 - STATIC_NAME_BYTES.len()).copied();
        };
        let status = index.checked_sub(STATIC_STATUS_FIRST).and_then(|at| STATIC_STATUSES.get(at));
        let (name, field) = match status {
            Some(status) => (Name::Status, HeaderMeaning::Status(*status)),
            None => (Name::Other, HeaderMeaning::Other),
        };
        Some(HeaderEntry { name, name_bytes: name_bytes.into(), field, bytes: 0 })
    }

    /// Drops the oldest entries until there is room for so many bytes.
    fn make_room(&mut self, bytes: usize) {
        while self.bytes + bytes > self.bytes_max {
            let Some(oldest) = self.table.pop_back() else { return };
            self.bytes -= oldest.bytes;
        }
    }
}

/// An integer whose first bits share a byte with something else.
fn integer(block: &mut &[u8], prefix_bits: u32) -> Option<usize> {
    let mask = (1 << prefix_bits) - 1;
    let (first, mut rest) = block.split_first()?;
    let mut value = usize::from(first & mask);
    if value == usize::from(mask) {
        for shift in (0..=21).step_by(7) {
            let (byte, after) = rest.split_first()?;
            rest = after;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                *block = rest;
                return Some(value);
            }
        }
        // Longer than any block of headers.
        return None;
    }
    *block = rest;
    Some(value)
}

/// Appends an integer. `pattern` is the bits that come before it, and `prefix_bits` is how many bits of the first byte
/// are its own.
fn put_integer(block: &mut Vec<u8>, (pattern, prefix_bits): (u8, u32), value: usize) {
    let mask = (1usize << prefix_bits) - 1;
    if value < mask {
        return block.push(pattern | value as u8);
    }
    block.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

/// The headers of our calls: in full for the first on a connection, and shorter for all that follow, because the server
/// keeps what does not change. The path is sent in full each time, as Envoy does.
#[derive(Clone)]
pub(crate) struct RequestBlocks {
    /// For the first request on a connection, which fills the server's table.
    pub first: Vec<u8>,
    /// For all others, which refer to the table.
    pub later: Vec<u8>,
    /// For servers that keep nothing, in place of both.
    full: Vec<u8>,
}

impl RequestBlocks {
    pub(crate) fn new(is_secure: bool, authority: &str, path: &str) -> RequestBlocks {
        const METHOD_POST: u8 = 0x83;
        const SCHEME_HTTP: u8 = 0x86;
        const SCHEME_HTTPS: u8 = 0x87;
        const PATH: usize = 4;
        const NO_TABLE: u8 = 0x20;
        const LITERAL: (u8, u32) = (0x00, 4);
        const LITERAL_KEPT: (u8, u32) = (0x40, 6);
        const INDEXED: (u8, u32) = (0x80, 7);
        let huffman = Huffman::new();
        let string = |block: &mut Vec<u8>, text: &str| {
            let coded = huffman.encode(text.as_bytes());
            put_integer(block, INDEXED, coded.len());
            block.extend(coded);
        };
        let mut later = vec![METHOD_POST, if is_secure { SCHEME_HTTPS } else { SCHEME_HTTP }];
        put_integer(&mut later, LITERAL, PATH);
        string(&mut later, path);
        let mut first = later.clone();
        let mut full = [&[NO_TABLE][..], &later].concat();
        // Kept by the server in this order, so that the last is the newest.
        let kept = [(":authority", authority), ("content-type", "application/grpc"), ("te", "trailers")];
        for (index, (name, value)) in kept.iter().enumerate() {
            for (block, form) in [(&mut first, LITERAL_KEPT), (&mut full, LITERAL)] {
                put_integer(block, form, 0);
                string(block, name);
                string(block, value);
            }
            put_integer(&mut later, INDEXED, STATIC_NAME_BYTES.len() + kept.len() - index);
        }
        RequestBlocks { first, later, full }
    }

    /// From now on everything is sent in full: the server has no table, or a smaller one than we count on.
    pub(crate) fn forget_table(&mut self) {
        self.first.clone_from(&self.full);
        self.later.clone_from(&self.full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(pattern: u8, name: &str, value: &str) -> Vec<u8> {
        let mut block = vec![pattern];
        for text in [name, value] {
            put_integer(&mut block, (0, 7), text.len());
            block.extend(text.as_bytes());
        }
        block
    }

    #[test]
    fn statuses_are_heard_in_every_form() {
        let mut decoder = Decoder::new();
        let heard = |status, grpc_status| Some(HeaderBlock { status, grpc_status });
        assert_eq!(decoder.decode(&[0x88]), heard(Some(200), None));
        assert_eq!(decoder.decode(&[0x8d]), heard(Some(404), None));
        let kept = [literal(0x40, "x", "y"), literal(0x40, "grpc-status", "14")].concat();
        assert_eq!(decoder.decode(&kept), heard(None, Some(14)));
        assert_eq!(decoder.decode(&[0x80 | 62]), heard(None, Some(14)), "the newest comes first");
        assert_eq!(decoder.decode(&[0x80 | 63]), heard(None, None));
        assert_eq!(decoder.decode(&[0x0f, 62 - 15, 1, b'0']), heard(None, Some(0)), "a name from the table");
        assert_eq!(decoder.decode(&literal(0x10, "grpc-status", "0")), heard(None, Some(0)), "never kept");
        assert_eq!(decoder.decode(&literal(0x00, ":status", "503")), heard(Some(503), None));
        assert_eq!(decoder.table.len(), 2);
    }

    #[test]
    fn the_table_stays_within_its_size() {
        let mut decoder = Decoder::new();
        let large = "v".repeat(1000);
        for _ in 0..10 {
            decoder.decode(&literal(0x40, "n", &large)).unwrap();
        }
        assert_eq!((decoder.table.len(), decoder.bytes), (3, 3 * 1033));
        decoder.decode(&literal(0x40, "grpc-status", "0")).unwrap();
        assert_eq!((decoder.table.len(), decoder.bytes), (4, 3 * 1033 + 44));
        decoder.decode(&literal(0x40, "n", &"v".repeat(5000))).unwrap();
        assert_eq!((decoder.table.len(), decoder.bytes), (0, 0), "larger than the table");
        decoder.decode(&literal(0x40, "grpc-status", "0")).unwrap();
        decoder.decode(&[0x20]).unwrap();
        assert_eq!(decoder.table.len(), 0, "the server gave it up");
    }

    #[test]
    fn what_is_cut_short_or_out_of_range_is_refused() {
        for bad in
            [&[0x80][..], &[0xff], &[0x80 | 62], &[0x40, 5, b'a'], &[0x3f, 0xff, 0xff, 0x7f], &[0x00, 0x82, 0xff]]
        {
            assert_eq!(Decoder::new().decode(bad), None, "{bad:x?}");
        }
    }

    /// What a server makes of our blocks, by a decoder that is not ours.
    #[tokio::test]
    async fn a_server_reads_the_same_from_all_blocks() {
        use tokio::io::AsyncWriteExt;
        for has_table in [true, false] {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            let mut blocks = RequestBlocks::new(false, "host:8081", "/service/Method");
            if !has_table {
                blocks.forget_table();
            }
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
            for (stream, block) in [(1, &blocks.first), (3, &blocks.later), (5, &blocks.later)] {
                bytes.extend([0, 0, block.len() as u8, 1, 5, 0, 0, 0, stream]);
                bytes.extend(block);
            }
            client.write_all(&bytes).await.unwrap();
            let mut connection = h2::server::handshake(server).await.unwrap();
            for _ in 0..3 {
                let (request, _) = connection.accept().await.unwrap().unwrap();
                assert_eq!(request.method(), http::Method::POST);
                assert_eq!(request.uri().to_string(), "http://host:8081/service/Method");
                assert_eq!(request.headers()["content-type"], "application/grpc");
                assert_eq!(request.headers()["te"], "trailers");
            }
        }
    }
}
