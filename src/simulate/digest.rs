//! A run in one number: two runs with the same digest had the same decisions, calls and published rows, in order.

use crate::global::row::OwnRow;
use crate::regional::call::Call;
use crate::regional::redis::codec;

/// FNV-1a over everything that was decided and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Digest {
        Digest(0xCBF2_9CE4_8422_2325)
    }
}

impl Digest {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    pub fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.bytes(&number.to_le_bytes()));
    }

    /// Adds rows that are published.
    pub fn rows(&mut self, rows: &[OwnRow]) {
        for OwnRow { cell, counts } in rows {
            self.bytes(&cell.identifier);
            self.numbers(&[cell.duration_ms, cell.sequence, counts.hits, counts.refunds]);
        }
    }

    /// Adds a call as Redis would read it.
    pub fn call(&mut self, call: &Call) {
        let written = codec::encode(call);
        for text in written.keys.iter().chain(&written.args) {
            self.numbers(&[text.len() as u64]);
            self.bytes(text);
        }
    }
}
