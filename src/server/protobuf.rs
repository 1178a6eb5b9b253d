//! The bytes of protobuf messages: read in place, and written into one buffer.
//!
//! This reads and refuses the same bytes as prost, but copies no field: a request borrows from the bytes that came off the
//! wire. `src/server/rls/tests.rs` and `fuzz/` compare the two.

use thiserror::Error;

/// The length of the prefix that gRPC puts before a message: one byte says whether it is compressed, four give its length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// How deeply groups and messages may be nested, as in prost.
const DEPTH_MAX: usize = 100;

/// Why bytes are not a message, and where.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the message can't be read: {fault} at byte {at}")]
pub struct Malformed {
    fault: WireFault,
    /// How many bytes of the outermost message come before it.
    at: usize,
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
enum WireFault {
    #[error("a number without an end")]
    Number,
    #[error("a field without a number")]
    Tag,
    #[error("a field of an unknown kind")]
    Kind,
    #[error("a field of another kind than its number has")]
    OtherKind,
    #[error("a field longer than what is left")]
    Length,
    #[error("text that is not UTF-8")]
    Text,
    #[error("a group that begins or ends nowhere")]
    Group,
    #[error("groups too deep in each other")]
    Depth,
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(u64),
    /// Text, bytes, or a message.
    Bytes(&'a [u8]),
    /// Of a kind that no field has which is read here.
    Skipped,
}

/// The fields of a message, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct MessageFields<'a> {
    /// The outermost message: faults are located in it.
    whole: &'a [u8],
    rest: &'a [u8],
    /// How many messages this one is nested in.
    depth: usize,
}

impl<'a> MessageFields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> MessageFields<'a> {
        MessageFields { whole: message, rest: message, depth: 0 }
    }

    /// The fields of a message nested in this one.
    pub(crate) fn inner(&self, value: Value<'a>) -> Result<MessageFields<'a>, Malformed> {
        Ok(MessageFields { whole: self.whole, rest: self.bytes(value)?, depth: self.depth + 1 })
    }

    /// Reads the number and value of the next field; `None` at the end.
    #[inline]
    pub(crate) fn read(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, kind) = self.tag()?;
        let value = match kind {
            0 => Value::Number(self.number()?),
            2 => {
                let length = self.number()?;
                Value::Bytes(self.take(length)?)
            }
            kind => {
                self.skip(number, kind, self.depth)?;
                Value::Skipped
            }
        };
        Ok(Some((number, value)))
    }

    pub(crate) fn text(&self, value: Value<'a>) -> Result<&'a str, Malformed> {
        let bytes = self.bytes(value)?;
        std::str::from_utf8(bytes).map_err(|_| Malformed { fault: WireFault::Text, at: self.place(bytes) })
    }

    pub(crate) fn integer(&self, value: Value<'a>) -> Result<u64, Malformed> {
        match value {
            Value::Number(number) => Ok(number),
            Value::Bytes(_) | Value::Skipped => Err(self.fault(WireFault::OtherKind)),
        }
    }

    fn bytes(&self, value: Value<'a>) -> Result<&'a [u8], Malformed> {
        match value {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) | Value::Skipped => Err(self.fault(WireFault::OtherKind)),
        }
    }

    fn fault(&self, fault: WireFault) -> Malformed {
        Malformed { fault, at: self.place(self.rest) }
    }

    /// Where a part of the whole message begins in it.
    fn place(&self, part: &[u8]) -> usize {
        (part.as_ptr() as usize).saturating_sub(self.whole.as_ptr() as usize)
    }

    #[inline]
    fn tag(&mut self) -> Result<(u32, u8), Malformed> {
        let tag = self.number()?;
        match u32::try_from(tag) {
            Ok(tag) if tag >> 3 > 0 => Ok((tag >> 3, (tag & 7) as u8)),
            _ => Err(self.fault(WireFault::Tag)),
        }
    }

    #[inline]
    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((taken, rest)) = self.rest.split_at_checked(length) else { return Err(self.fault(WireFault::Length)) };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn number(&mut self) -> Result<u64, Malformed> {
        match self.rest {
            // Nearly all numbers: tags, lengths and small counts.
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for (index, byte) in self.rest.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * index);
            let is_last = *byte < 0x80;
            // The tenth byte has room for one bit.
            if index == 9 && *byte > 1 {
                break;
            }
            if is_last {
                self.rest = &self.rest[index + 1..];
                return Ok(number);
            }
        }
        Err(self.fault(WireFault::Number))
    }

    /// Skips a field that is neither a number nor bytes.
    fn skip(&mut self, number: u32, kind: u8, depth: usize) -> Result<(), Malformed> {
        if depth >= DEPTH_MAX {
            return Err(self.fault(WireFault::Depth));
        }
        match kind {
            0 => self.number().map(drop),
            1 => self.take(8).map(drop),
            2 => {
                let length = self.number()?;
                self.take(length).map(drop)
            }
            3 => loop {
                let (inner, kind) = self.tag()?;
                match kind {
                    4 if inner == number => return Ok(()),
                    4 => return Err(self.fault(WireFault::Group)),
                    kind => self.skip(inner, kind, depth + 1)?,
                }
            },
            4 => Err(self.fault(WireFault::Group)),
            5 => self.take(4).map(drop),
            _ => Err(self.fault(WireFault::Kind)),
        }
    }
}

/// How many bytes a number takes as a varint.
pub(crate) const fn number_bytes(number: u64) -> usize {
    // Seven bits a byte, and one byte for zero.
    ((70 - (number | 1).leading_zeros()) / 7) as usize
}

/// The size of a field that holds a number: nothing for zero, which is left out. All field numbers here take one byte.
pub(crate) const fn number_field(number: u64) -> usize {
    if number == 0 { 0 } else { 1 + number_bytes(number) }
}

/// The size of a field that holds this many bytes.
pub(crate) const fn bytes_field(length: usize) -> usize {
    1 + number_bytes(length as u64) + length
}

/// Writes fields. The size of a nested message has to be known before it is written.
pub(crate) trait Write {
    fn number(&mut self, number: u64);
    /// Left out if it is zero.
    fn number_field(&mut self, field: u8, number: u64);
    /// Begins a nested message of this many bytes.
    fn message_field(&mut self, field: u8, size: usize);
    fn bytes_field(&mut self, field: u8, bytes: &[u8]);
    /// Left out if it is empty.
    fn text_field(&mut self, field: u8, text: &str);
}

impl Write for Vec<u8> {
    #[inline]
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.push(number as u8);
    }

    #[inline]
    fn number_field(&mut self, field: u8, number: u64) {
        if number > 0 {
            self.push(field << 3);
            self.number(number);
        }
    }

    #[inline]
    fn message_field(&mut self, field: u8, size: usize) {
        self.push(field << 3 | 2);
        self.number(size as u64);
    }

    #[inline]
    fn bytes_field(&mut self, field: u8, bytes: &[u8]) {
        self.message_field(field, bytes.len());
        self.extend_from_slice(bytes);
    }

    #[inline]
    fn text_field(&mut self, field: u8, text: &str) {
        if !text.is_empty() {
            self.bytes_field(field, text.as_bytes());
        }
    }
}
