//! Bytes that processes of a region write for each other: small numbers are short, and names are not repeated.
//!
//! A number has seven bits a byte, the lowest first; all but its last byte have the high bit set. A text has its length
//! before it. Domain and rule of a cell are left out where they are those of the cell before. Whatever is read is checked:
//! bytes that make no sense are no cells, and never a panic.

use crate::engine::table::cell::COUNT_MAX;
use crate::global::row::{CellName, Counts};
use crate::rules::limit::{WINDOW_MS_MAX, WINDOW_MS_MIN};

/// The longest text that a row has.
const TEXT_BYTES_MAX: u64 = 255;

/// Writes.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    /// What was written so far.
    pub bytes: Vec<u8>,
    /// Domain and rule of the cell before.
    before: (Box<[u8]>, Box<[u8]>),
}

impl Packer {
    pub(crate) fn number(&mut self, number: u64) {
        let mut rest = number;
        while rest >= 0x80 {
            self.bytes.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }

    pub(crate) fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text);
    }

    pub(crate) fn counts(&mut self, counts: Counts) {
        // Sums of many regions may be larger than anybody counts.
        let (hits, refunds) = (counts.hits.min(COUNT_MAX), counts.refunds.min(COUNT_MAX));
        // Most cells have no refunds: one bit says so.
        self.number(hits << 1 | u64::from(refunds > 0));
        if refunds > 0 {
            self.number(refunds);
        }
    }

    pub(crate) fn cell(&mut self, cell: &CellName) {
        let is_like_before = (&self.before.0, &self.before.1) == (&cell.workspace, &cell.namespace);
        self.number(is_like_before.into());
        if !is_like_before {
            self.text(&cell.workspace);
            self.text(&cell.namespace);
            self.before = (cell.workspace.clone(), cell.namespace.clone());
        }
        self.text(&cell.identifier);
        self.number(cell.duration_ms);
        self.number(cell.sequence);
    }
}

/// Reads what a [`Packer`] wrote. Everything is `None` where the bytes make no sense.
#[derive(Debug)]
pub(crate) struct Unpacker<'a> {
    rest: &'a [u8],
    before: Option<(&'a [u8], &'a [u8])>,
}

impl<'a> Unpacker<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Unpacker<'a> {
        Unpacker { rest: bytes, before: None }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.number().filter(|length| *length <= TEXT_BYTES_MAX)?;
        self.bytes(usize::try_from(length).ok()?)
    }

    pub(crate) fn counts(&mut self) -> Option<Counts> {
        let packed = self.number()?;
        let refunds = if packed & 1 == 1 { self.number()? } else { 0 };
        let counts = Counts { hits: packed >> 1, refunds };
        (counts.hits <= COUNT_MAX && counts.refunds <= COUNT_MAX).then_some(counts)
    }

    pub(crate) fn cell(&mut self) -> Option<CellName> {
        let (workspace, namespace) = match self.number()? {
            0 => (self.text()?, self.text()?),
            1 => self.before?,
            _ => return None,
        };
        self.before = Some((workspace, namespace));
        let identifier = self.text()?.into();
        let duration_ms = self.number().filter(|window_ms| (WINDOW_MS_MIN..=WINDOW_MS_MAX).contains(window_ms))?;
        let sequence = self.number()?;
        Some(CellName { workspace: workspace.into(), namespace: namespace.into(), identifier, duration_ms, sequence })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = Box<[u8]>> {
        proptest::collection::vec(any::<u8>(), 0..=255).prop_map(Into::into)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            numbers in proptest::collection::vec(any::<u64>(), 0..5),
            texts in proptest::collection::vec((texts(), texts(), texts()), 0..5),
            window_ms in WINDOW_MS_MIN..=WINDOW_MS_MAX, sequence: u64, hits in 0..=COUNT_MAX, refunds in 0..=COUNT_MAX,
        ) {
            let cells: Vec<CellName> = texts.into_iter().map(|(workspace, namespace, identifier)| {
                CellName { workspace, namespace, identifier, duration_ms: window_ms, sequence }
            }).flat_map(|cell| [cell.clone(), cell]).collect();
            let counts = Counts { hits, refunds };
            let mut packer = Packer::default();
            numbers.iter().for_each(|number| packer.number(*number));
            packer.counts(counts);
            cells.iter().for_each(|cell| packer.cell(cell));
            let mut unpacker = Unpacker::new(&packer.bytes);
            for number in numbers {
                prop_assert_eq!(unpacker.number(), Some(number));
            }
            prop_assert_eq!(unpacker.counts(), Some(counts));
            for cell in cells {
                prop_assert_eq!(unpacker.cell(), Some(cell));
            }
            prop_assert!(unpacker.is_at_end());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut unpacker = Unpacker::new(&bytes);
            while unpacker.cell().is_some() && unpacker.counts().is_some() {}
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_none() {
        assert_eq!(Unpacker::new(&[0xff; 10]).number(), None);
        assert_eq!(Unpacker::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).number(), Some(u64::MAX));
        assert_eq!(Unpacker::new(&[0x80]).number(), None);
    }
}
