//! The Huffman code of HPACK (RFC 7541, appendix B).
//!
//! The code is canonical: the length of each symbol's code is all there is to know. Codes of one length are consecutive
//! numbers in the order of their symbols, and each length starts where the one before ends.

/// The length of each symbol's code, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const LENGTH_MAX: usize = 30;

/// The codes, ordered for decoding.
pub(super) struct Huffman {
    /// Symbols in the order of their codes.
    symbols: Vec<u8>,
    /// For each length: its first code, how many there are, and where their symbols start.
    levels: [(u32, u32, u32); LENGTH_MAX + 1],
}

impl Huffman {
    pub(super) fn new() -> Huffman {
        let mut symbols: Vec<u8> = (0..=u8::MAX).collect();
        // Stable, so that symbols of one length stay in order.
        symbols.sort_by_key(|symbol| LENGTHS[usize::from(*symbol)]);
        let mut levels = [(0, 0, 0); LENGTH_MAX + 1];
        let (mut code, mut start) = (0, 0);
        for (length, level) in levels.iter_mut().enumerate() {
            let count = LENGTHS.iter().filter(|it| usize::from(**it) == length).count() as u32;
            code *= 2;
            *level = (code, count, start);
            code += count;
            start += count;
        }
        Huffman { symbols, levels }
    }

    /// The text of a Huffman-coded string, `None` if it is not one.
    pub(super) fn decode(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut text = Vec::with_capacity(bytes.len() * 2);
        let (mut code, mut length) = (0, 0);
        for byte in bytes {
            for shift in (0..8).rev() {
                code = code * 2 + u32::from(byte >> shift & 1);
                length += 1;
                let (first, count, start) = *self.levels.get(length)?;
                if code - first < count {
                    text.push(*self.symbols.get((start + code - first) as usize)?);
                    (code, length) = (0, 0);
                }
            }
        }
        // The last byte is filled up with the start of a code that is all ones.
        let is_padding = length < 8 && code == (1 << length) - 1;
        is_padding.then_some(text)
    }

    pub(super) fn encode(&self, text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (mut bits, mut count) = (0u64, 0);
        for symbol in text {
            let length = LENGTHS[usize::from(*symbol)];
            let (first, _, start) = self.levels[usize::from(length)];
            let rank = self.symbols.iter().skip(start as usize).position(|it| it == symbol).unwrap_or_default();
            bits = bits << length | u64::from(first + rank as u32);
            count += length;
            while count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
            }
        }
        if count > 0 {
            bytes.push((bits << (8 - count)) as u8 | 0xff >> count);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification_hold() {
        let huffman = Huffman::new();
        for (text, coded) in [
            ("www.example.com", &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..]),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            ("302", &[0x64, 0x02]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ] {
            assert_eq!(huffman.encode(text.as_bytes()), coded);
            assert_eq!(huffman.decode(coded).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn every_byte_survives_and_bad_padding_does_not() {
        let huffman = Huffman::new();
        let all: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(huffman.decode(&huffman.encode(&all)).unwrap(), all);
        assert_eq!(huffman.decode(&[]).unwrap(), b"");
        assert!(huffman.decode(&[0xff]).is_none(), "a whole byte of padding");
        assert!(huffman.decode(&[0xff; 8]).is_none(), "the code that ends a string");
        assert!(huffman.decode(&[0x00, 0x00]).is_none(), "padding of zeros");
    }
}
