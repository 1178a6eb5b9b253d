//! An HTTP/2 client for one thing: many small calls of one method, each as cheap as it can be.
//!
//! A general client spends more on a call than many servers do, and then a load generator measures itself. Here a
//! request is a copy of prepared bytes, an answer is read where it lies in the read buffer, and whatever became possible
//! with one read leaves in one write. It is a state machine without IO: bytes of the server go in, frames come out.

mod frame;
pub(crate) mod hpack;
mod huffman;

use std::time::Instant;

use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use ahash::AHashMap;

use crate::cli::bench::http2::frame::*;
use crate::cli::bench::http2::hpack::{Decoder, HeaderBlock, RequestBlocks, TABLE_BYTES};
use crate::cli::bench::tally::verdict;
use crate::cli::client::exchange::{self, PREFIX_BYTES};

pub(super) use crate::cli::bench::http2::frame::{FRAME_BYTES_MAX, FrameError};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first window of streams and of the connection, in bytes, unless another is agreed upon.
const WINDOW_BYTES: i64 = 65_535;
/// The server may always send as much as it likes: answers are read at once.
const RECEIVE_WINDOW_BYTES: u32 = 1 << 30;
/// Far above any answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Answered(Code),
    Failed(&'static str),
    /// The server says that it has not processed it: it may be sent again.
    NotProcessed,
}

/// A request on its way.
struct Flight {
    begun: Instant,
    status: Option<u16>,
    /// The part so far of a message that did not come in one piece.
    message: Vec<u8>,
    verdict: Option<Code>,
}

/// The client's side of a connection.
pub(super) struct Connection {
    decoder: Decoder,
    blocks: RequestBlocks,
    flights: AHashMap<u32, Flight>,
    next_stream: u32,
    streams_max: usize,
    /// How much may still be sent on the connection before the server makes room.
    window_bytes: i64,
    /// How much may be sent on each new stream.
    stream_window_bytes: i64,
    /// How much has come since the server was last given room.
    received_bytes: u32,
    /// A block of headers that did not come in one frame: its stream, the flags it began with, and what has come.
    block: Option<(u32, u8, Vec<u8>)>,
    is_greeted: bool,
    is_leaving: bool,
}

impl Connection {
    /// Makes a connection on which at most so many requests are in flight, and appends to `out` what to send first.
    pub(super) fn new(blocks: RequestBlocks, streams_max: usize, out: &mut Vec<u8>) -> Connection {
        out.extend(PREFACE);
        let settings = [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, RECEIVE_WINDOW_BYTES)];
        put_head(out, settings.len() * 6, SETTINGS, 0, 0);
        for (name, value) in settings {
            out.extend(name.to_be_bytes());
            out.extend(value.to_be_bytes());
        }
        put_window_update(out, RECEIVE_WINDOW_BYTES - WINDOW_BYTES as u32);
        Connection {
            decoder: Decoder::new(),
            blocks,
            flights: AHashMap::with_capacity(streams_max),
            next_stream: 1,
            streams_max,
            window_bytes: WINDOW_BYTES,
            stream_window_bytes: WINDOW_BYTES,
            received_bytes: 0,
            block: None,
            is_greeted: false,
            is_leaving: false,
        }
    }

    /// Whether the server has shown that it speaks HTTP/2.
    pub(super) fn is_greeted(&self) -> bool {
        self.is_greeted
    }

    /// Whether no more requests go onto this connection.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether a message of this length may be sent now.
    pub(super) fn has_room(&self, message_bytes: usize) -> bool {
        !self.is_leaving
            && self.flights.len() < self.streams_max
            && self.window_bytes.min(self.stream_window_bytes) >= message_bytes as i64
    }

    /// Appends a request. `write` appends its message.
    pub(super) fn send(
        &mut self,
        begun: Instant,
        message_bytes: usize,
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let id = self.next_stream;
        let block = if id == 1 { &self.blocks.first } else { &self.blocks.later };
        put_head(out, block.len(), HEADERS, END_HEADERS, id);
        out.extend_from_slice(block);
        put_head(out, message_bytes, DATA, END_STREAM, id);
        write(out);
        self.window_bytes -= message_bytes as i64;
        self.flights.insert(id, Flight { begun, status: None, message: Vec::new(), verdict: None });
        self.next_stream += 2;
        // Ids are used up after a billion requests.
        self.is_leaving |= self.next_stream > STREAM_ID_MAX;
    }

    /// Takes what the server sent, as far as it is whole frames, and returns how many bytes that was. Calls `ended` for
    /// every request that came to an end, with the time at which it began. Appends to `out` what has to be answered.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut ended: impl FnMut(Instant, CallOutcome),
    ) -> Result<usize, FrameError> {
        let mut taken = 0;
        while let Some((head, rest)) = bytes[taken..].split_first_chunk::<FRAME_HEAD_BYTES>() {
            let [a, b, c, kind, flags, id @ ..] = *head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let is_first = !self.is_greeted;
            if length > FRAME_BYTES_MAX || (is_first && (kind != SETTINGS || flags & ACK != 0)) {
                return Err(FrameError("it does not speak HTTP/2"));
            }
            let Some(payload) = rest.get(..length) else { break };
            let id = u32::from_be_bytes(id) & STREAM_ID_MAX;
            if self.block.is_some() && kind != CONTINUATION {
                return Err(FrameError("a block of headers was interrupted"));
            }
            self.frame(kind, flags, id, payload, out, &mut ended)?;
            taken += FRAME_HEAD_BYTES + length;
        }
        if self.received_bytes > RECEIVE_WINDOW_BYTES / 2 {
            put_window_update(out, std::mem::take(&mut self.received_bytes));
        }
        Ok(taken)
    }

    /// Ends every request that is still in flight.
    pub(super) fn fail_all(&mut self, kind: &'static str, mut ended: impl FnMut(Instant, CallOutcome)) {
        self.flights.drain().for_each(|(_, flight)| ended(flight.begun, CallOutcome::Failed(kind)));
    }

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        id: u32,
        payload: &[u8],
        out: &mut Vec<u8>,
        ended: &mut impl FnMut(Instant, CallOutcome),
    ) -> Result<(), FrameError> {
        match kind {
            DATA => {
                self.received_bytes += payload.len() as u32;
                self.data(id, unpadded(flags, payload)?);
                if flags & END_STREAM != 0 {
                    self.end(id, CallOutcome::Failed("malformed"), ended);
                }
            }
            HEADERS => {
                let mut block = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    block = block.get(5..).ok_or(FrameError("a frame of headers is too short"))?;
                }
                if flags & END_HEADERS != 0 {
                    self.headers(id, flags, block, ended)?;
                } else {
                    self.block = Some((id, flags, block.to_vec()));
                }
            }
            CONTINUATION => {
                let Some((of, began_with, mut block)) = self.block.take() else {
                    return Err(FrameError("a continuation of nothing"));
                };
                block.extend(payload);
                if of != id || block.len() > ANSWER_BYTES_MAX {
                    return Err(FrameError("a block of headers has no end"));
                }
                if flags & END_HEADERS != 0 {
                    self.headers(id, began_with, &block, ended)?;
                } else {
                    self.block = Some((of, began_with, block));
                }
            }
            RST_STREAM => match number(payload, 0)? {
                REFUSED_STREAM => self.end(id, CallOutcome::NotProcessed, ended),
                _ => self.end(id, CallOutcome::Failed("reset"), ended),
            },
            SETTINGS if flags & ACK == 0 => self.settings(payload, out)?,
            PING if flags & ACK == 0 => {
                put_head(out, payload.len(), PING, ACK, 0);
                out.extend(payload);
            }
            GOAWAY => {
                self.is_leaving = true;
                let last = number(payload, 0)? & STREAM_ID_MAX;
                let left_out: Vec<u32> = self.flights.keys().copied().filter(|id| *id > last).collect();
                left_out.into_iter().for_each(|id| self.end(id, CallOutcome::NotProcessed, ended));
            }
            WINDOW_UPDATE if id == 0 => self.window_bytes += i64::from(number(payload, 0)?),
            PUSH_PROMISE => return Err(FrameError("it pushes, though it was told not to")),
            // A stream carries one message, which fits its first window, so its updates don't matter. Other kinds are
            // not for us.
            _ => {}
        }
        Ok(())
    }

    fn settings(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
        for pair in payload.chunks_exact(6) {
            let (name, value) = (u16::from_be_bytes([pair[0], pair[1]]), number(pair, 2)?);
            match name {
                // A table that is cut before anything is in it was never used; later, it is easiest to start anew.
                HEADER_TABLE_SIZE if value < TABLE_BYTES && self.next_stream == 1 => self.blocks.forget_table(),
                HEADER_TABLE_SIZE if value < TABLE_BYTES => self.is_leaving = true,
                MAX_CONCURRENT_STREAMS => self.streams_max = self.streams_max.min(value as usize),
                INITIAL_WINDOW_SIZE => self.stream_window_bytes = value.into(),
                _ => {}
            }
        }
        self.is_greeted = true;
        put_head(out, 0, SETTINGS, ACK, 0);
        Ok(())
    }

    fn headers(
        &mut self,
        id: u32,
        flags: u8,
        block: &[u8],
        ended: &mut impl FnMut(Instant, CallOutcome),
    ) -> Result<(), FrameError> {
        // Even if nobody waits for the stream any more: the table has to stay in step.
        let heard = self.decoder.decode(block).ok_or(FrameError("a block of headers can't be read"))?;
        if flags & END_STREAM != 0 {
            let outcome = self.flights.get(&id).map(|flight| outcome(flight, heard));
            outcome.into_iter().for_each(|outcome| self.end(id, outcome, ended));
        } else if let Some(flight) = self.flights.get_mut(&id) {
            flight.status = heard.status;
        }
        Ok(())
    }

    fn data(&mut self, id: u32, payload: &[u8]) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        // Nearly every message comes in one piece, and is read where it is.
        if flight.message.is_empty() && flight.verdict.is_none() {
            flight.verdict = whole(payload).and_then(verdict);
        }
        if flight.verdict.is_none() && flight.message.len() + payload.len() <= ANSWER_BYTES_MAX {
            flight.message.extend_from_slice(payload);
            flight.verdict = whole(&flight.message).and_then(verdict);
        }
    }

    fn end(&mut self, id: u32, outcome: CallOutcome, ended: &mut impl FnMut(Instant, CallOutcome)) {
        if let Some(flight) = self.flights.remove(&id) {
            ended(flight.begun, outcome);
        }
    }
}

/// The outcome of a request whose last headers have come.
fn outcome(flight: &Flight, last: HeaderBlock) -> CallOutcome {
    const GRPC_OK: u16 = 0;
    const HTTP_OK: u16 = 200;
    match (last.grpc_status, flight.verdict) {
        (Some(GRPC_OK), Some(verdict)) => CallOutcome::Answered(verdict),
        (Some(GRPC_OK), None) => CallOutcome::Failed("malformed"),
        (Some(status), _) => CallOutcome::Failed(exchange::name(i32::from(status).into())),
        (None, _) if flight.status.or(last.status) != Some(HTTP_OK) => CallOutcome::Failed("not_grpc"),
        (None, _) => CallOutcome::Failed("malformed"),
    }
}

/// The message, if the bytes are all of it and nothing else, uncompressed.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    let (&[is_compressed, a, b, c, d], message) = bytes.split_first_chunk::<PREFIX_BYTES>()?;
    (is_compressed == 0 && message.len() == u32::from_be_bytes([a, b, c, d]) as usize).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &[u8] = &[0x88];
    const TRAILERS_OK: &[u8] = b"\x00\x0bgrpc-status\x010";

    fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_head(&mut bytes, payload.len(), kind, flags, id);
        bytes.extend(payload);
        bytes
    }

    fn message(verdict: u8) -> Vec<u8> {
        vec![0, 0, 0, 0, 2, 8, verdict]
    }

    fn answer(id: u32, verdict: u8) -> Vec<u8> {
        [
            frame(HEADERS, END_HEADERS, id, HEAD),
            frame(DATA, 0, id, &message(verdict)),
            frame(HEADERS, END_HEADERS | END_STREAM, id, TRAILERS_OK),
        ]
        .concat()
    }

    /// A greeted connection with so many requests in flight.
    fn connected(requests: usize) -> Connection {
        let mut out = Vec::new();
        let mut connection = Connection::new(RequestBlocks::new(false, "a", "/b"), 100, &mut out);
        assert_eq!(heard(&mut connection, &frame(SETTINGS, 0, 0, &[])), Ok(vec![]));
        for _ in 0..requests {
            connection.send(Instant::now(), 10, &mut out, |out| out.extend([0; 10]));
        }
        connection
    }

    fn heard(connection: &mut Connection, bytes: &[u8]) -> Result<Vec<CallOutcome>, FrameError> {
        let mut outcomes = Vec::new();
        let taken = connection.receive(bytes, &mut Vec::new(), |_, outcome| outcomes.push(outcome))?;
        assert_eq!(taken, bytes.len(), "whole frames are taken");
        Ok(outcomes)
    }

    #[test]
    fn answers_come_in_any_order_and_in_pieces() {
        let mut connection = connected(3);
        let bytes = [answer(3, 2), answer(1, 1)].concat();
        assert_eq!(
            heard(&mut connection, &bytes),
            Ok(vec![CallOutcome::Answered(Code::OverLimit), CallOutcome::Answered(Code::Ok)])
        );
        let mut outcomes = Vec::new();
        let (bytes, mut at) = (answer(5, 1), 0);
        for end in 0..=bytes.len() {
            let ended = |_, outcome| outcomes.push(outcome);
            at += connection.receive(&bytes[at..end], &mut Vec::new(), ended).unwrap();
        }
        assert_eq!((outcomes, connection.in_flight()), (vec![CallOutcome::Answered(Code::Ok)], 0));
    }

    #[test]
    fn a_message_in_several_frames_with_padding_is_one_message() {
        let mut connection = connected(1);
        let message = message(1);
        let padded = [&[2][..], &message[3..], &[0, 0]].concat();
        let (head, tail) = TRAILERS_OK.split_at(4);
        let bytes = [
            frame(HEADERS, END_HEADERS, 1, HEAD),
            frame(DATA, 0, 1, &message[..3]),
            frame(DATA, PADDED, 1, &padded),
            frame(HEADERS, END_STREAM, 1, head),
            frame(CONTINUATION, END_HEADERS, 1, tail),
        ]
        .concat();
        assert_eq!(heard(&mut connection, &bytes), Ok(vec![CallOutcome::Answered(Code::Ok)]));
    }

    #[test]
    fn errors_are_told_by_their_kind() {
        let end = END_HEADERS | END_STREAM;
        let unavailable = b"\x88\x00\x0bgrpc-status\x0214";
        for (bytes, kind) in [
            (frame(HEADERS, end, 1, unavailable), "UNAVAILABLE"),
            (frame(HEADERS, end, 1, &[0x8d]), "not_grpc"),
            (frame(HEADERS, end, 1, &[0x88]), "malformed"),
            (frame(HEADERS, end, 1, TRAILERS_OK), "malformed"),
            (frame(RST_STREAM, 0, 1, &[0, 0, 0, 2]), "reset"),
            ([frame(HEADERS, END_HEADERS, 1, HEAD), frame(DATA, END_STREAM, 1, &message(1))].concat(), "malformed"),
        ] {
            assert_eq!(heard(&mut connected(1), &bytes), Ok(vec![CallOutcome::Failed(kind)]));
        }
    }

    #[test]
    fn what_the_server_has_not_processed_may_be_sent_again() {
        let mut connection = connected(3);
        assert_eq!(
            heard(&mut connection, &frame(RST_STREAM, 0, 1, &[0, 0, 0, 7])),
            Ok(vec![CallOutcome::NotProcessed])
        );
        assert!(connection.has_room(10));
        assert_eq!(
            heard(&mut connection, &frame(GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0])),
            Ok(vec![CallOutcome::NotProcessed])
        );
        assert!(!connection.has_room(10) && connection.is_leaving());
        assert_eq!(
            heard(&mut connection, &answer(3, 1)),
            Ok(vec![CallOutcome::Answered(Code::Ok)]),
            "it finishes the rest"
        );
    }

    #[test]
    fn windows_and_stream_limits_are_kept() {
        let mut connection = connected(0);
        assert!(connection.has_room(65_535) && !connection.has_room(65_536));
        connection.send(Instant::now(), 65_000, &mut Vec::new(), |_| {});
        assert!(!connection.has_room(1000));
        heard(&mut connection, &frame(WINDOW_UPDATE, 0, 0, &1000u32.to_be_bytes())).unwrap();
        assert!(connection.has_room(1000));
        let settings = [0, 3, 0, 0, 0, 1, 0, 4, 0, 0, 0, 50];
        heard(&mut connection, &frame(SETTINGS, 0, 0, &settings)).unwrap();
        assert!(!connection.has_room(10), "one stream is all it wants");
        heard(&mut connection, &answer(1, 1)).unwrap();
        assert!(connection.has_room(50) && !connection.has_room(51));
    }

    #[test]
    fn pings_and_settings_are_answered() {
        let mut connection = connected(0);
        let mut out = Vec::new();
        let bytes = [frame(PING, 0, 0, b"12345678"), frame(SETTINGS, 0, 0, &[])].concat();
        connection.receive(&bytes, &mut out, |_, _| {}).unwrap();
        assert_eq!(out, [frame(PING, ACK, 0, b"12345678"), frame(SETTINGS, ACK, 0, &[])].concat());
    }

    #[test]
    fn what_is_not_http2_is_noticed_at_once() {
        let connection = || Connection::new(RequestBlocks::new(false, "a", "/b"), 1, &mut Vec::new());
        for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\x15\x03\x03\x00\x02\x02\x16 and more of it"] {
            assert!(heard(&mut connection(), bytes).is_err());
        }
        assert!(heard(&mut connected(1), &frame(HEADERS, END_HEADERS, 1, &[0xff])).is_err());
        assert!(heard(&mut connected(1), &frame(CONTINUATION, END_HEADERS, 1, HEAD)).is_err());
    }
}
