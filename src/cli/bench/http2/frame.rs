//! The frames of HTTP/2 (RFC 9113): their numbers, and how they are put together and taken apart.

/// How long the head of a frame is: length, kind, flags and stream.
pub(super) const FRAME_HEAD_BYTES: usize = 9;
/// The longest frame, unless a longer one is agreed upon. Each of our messages fits into one.
pub(crate) const FRAME_BYTES_MAX: usize = 16 * 1024;
pub(super) const STREAM_ID_MAX: u32 = (1 << 31) - 1;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PUSH_PROMISE: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;

pub(super) const HEADER_TABLE_SIZE: u16 = 1;
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;

pub(super) const REFUSED_STREAM: u32 = 7;

/// A breach of the protocol by the server. Nothing that follows can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameError(pub &'static str);

/// A payload without its padding.
pub(super) fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], FrameError> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let (padding, rest) = payload.split_first().ok_or(FrameError("padding without a length"))?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(FrameError("padding is longer than its frame"))?;
    Ok(&rest[..length])
}

/// The number of four bytes at an offset.
pub(super) fn number(payload: &[u8], at: usize) -> Result<u32, FrameError> {
    let bytes = payload.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map(|bytes| u32::from_be_bytes(*bytes)).ok_or(FrameError("a frame is too short"))
}

/// Begins a frame, whose payload is to follow.
pub(super) fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, id: u32) {
    // No frame of ours is longer than FRAME_BYTES_MAX, which three bytes hold.
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [d, e, f, g] = id.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Lets the server send this many bytes more.
pub(super) fn put_window_update(out: &mut Vec<u8>, bytes: u32) {
    put_head(out, 4, WINDOW_UPDATE, 0, 0);
    out.extend(bytes.to_be_bytes());
}
