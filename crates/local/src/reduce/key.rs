//! Elements as integers that sort as they do.

use crate::{Element, bf16, f16};

/// An element with a key of the same order: NaN above all others, as in PyTorch, and the two zeros equal.
pub(super) trait Key: Element {
    /// Whether 32 bits hold the key.
    const SHORT: bool = size_of::<Self>() <= 4;

    fn key(self) -> u64;
}

impl Key for f32 {
    fn key(self) -> u64 {
        if self.is_nan() {
            return u64::from(u32::MAX);
        }
        // Adding zero makes minus zero plus zero.
        let bits = (self + 0.0).to_bits();
        // Positive numbers sort as their bits, negative ones the other way round and below.
        u64::from(if bits >> 31 == 0 { bits | 1 << 31 } else { !bits })
    }
}

impl Key for f64 {
    fn key(self) -> u64 {
        if self.is_nan() {
            return u64::MAX;
        }
        let bits = (self + 0.0).to_bits();
        if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
    }
}

impl Key for bf16 {
    fn key(self) -> u64 {
        self.to_f32().key()
    }
}

impl Key for f16 {
    fn key(self) -> u64 {
        self.to_f32().key()
    }
}

impl Key for i64 {
    fn key(self) -> u64 {
        (self as u64) ^ (1 << 63)
    }
}

impl Key for i32 {
    fn key(self) -> u64 {
        u64::from((self as u32) ^ (1 << 31))
    }
}

impl Key for u8 {
    fn key(self) -> u64 {
        u64::from(self)
    }
}

impl Key for bool {
    fn key(self) -> u64 {
        u64::from(self)
    }
}
