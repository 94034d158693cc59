//! The checksum of everything that a checkpoint holds: XXH3 of 128 bits.
//!
//! It is as fast as memory, finds every flipped bit, and two different pieces of data share a checksum once in
//! 2^128. It is no signature: who wants to forge a checkpoint can.

use twox_hash::XxHash3_128;

/// Bytes of a tensor that have one checksum, so that a part can be verified without the rest.
pub const BLOCK: usize = 1 << 20;

/// Hexadecimal digits of a checksum.
pub(crate) const DIGITS: usize = 32;

/// The checksum of these bytes.
pub fn xxh3(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// The checksum of bytes that come in pieces, one after the other.
pub(crate) fn xxh3_of_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u128 {
    let mut hasher = XxHash3_128::new();
    pieces.into_iter().for_each(|piece| hasher.write(piece));
    hasher.finish_128()
}

/// A checksum as text: 32 digits, lower case.
pub fn to_hex(hash: u128) -> String {
    format!("{hash:0DIGITS$x}")
}

/// A checksum from its text, which has no second form: 32 digits, lower case.
pub fn from_hex(text: &str) -> Option<u128> {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match text.len() == DIGITS && text.bytes().all(digit) {
        true => u128::from_str_radix(text, 16).ok(),
        false => None,
    }
}

/// The checksums of consecutive blocks of bytes that come in pieces of any size.
pub(crate) struct BlockHasher {
    /// Of the block that has begun.
    begun: XxHash3_128,
    /// Bytes of that block so far.
    bytes: usize,
    done: Vec<u128>,
}

impl BlockHasher {
    pub(crate) fn new() -> BlockHasher {
        BlockHasher { begun: XxHash3_128::new(), bytes: 0, done: Vec::new() }
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(bytes.len().min(BLOCK - self.bytes));
            match now.len() == BLOCK {
                // A block in one piece needs no state between pieces.
                true => self.done.push(xxh3(now)),
                false => {
                    self.begun.write(now);
                    self.bytes += now.len();
                }
            }
            if self.bytes == BLOCK {
                self.end_block();
            }
            bytes = rest;
        }
    }

    /// The checksums of what came since the last call; the last block may be short.
    pub(crate) fn finish(&mut self) -> Vec<u128> {
        if self.bytes > 0 {
            self.end_block();
        }
        std::mem::take(&mut self.done)
    }

    fn end_block(&mut self) {
        self.done.push(std::mem::take(&mut self.begun).finish_128());
        self.bytes = 0;
    }
}

/// The number of blocks of so many bytes.
pub(crate) fn n_blocks(bytes: u64) -> usize {
    bytes.div_ceil(BLOCK as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_has_one_text() {
        let hash = xxh3(b"dtensor");
        let text = to_hex(hash);
        assert_eq!(from_hex(&text), Some(hash));
        assert_eq!(from_hex(&text.to_uppercase()), None);
        assert_eq!(from_hex(&text[1..]), None);
        assert_eq!(from_hex(&format!("+{}", &text[1..])), None);
        assert_eq!(to_hex(7), format!("{}7", "0".repeat(31)));
    }

    #[test]
    fn blocks_do_not_depend_on_the_pieces_in_which_they_come() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 777).map(|i| (i * 31 % 251) as u8).collect();
        let want: Vec<u128> = bytes.chunks(BLOCK).map(xxh3).collect();
        let mut hasher = BlockHasher::new();
        for piece in [1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, bytes.len()] {
            bytes.chunks(piece).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish(), want, "pieces of {piece}");
        }
        assert_eq!((want.len(), hasher.finish().len()), (n_blocks(bytes.len() as u64), 0));
    }
}
