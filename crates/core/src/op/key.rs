//! Operations as keys of the cache of decisions.

use std::{
    any::{Any, TypeId},
    hash::{Hash, Hasher},
};

use super::Op;

/// What makes an operation a key: it can be hashed, compared and kept. Every operation that is `Clone`,
/// `Eq` and `Hash` has it.
pub trait OpKey: Any {
    /// Its type and attributes.
    fn hash_key(&self, state: &mut KeyHasher);
    /// Whether the other is of the same type, with the same attributes.
    fn equals(&self, other: &dyn Op) -> bool;
    /// A copy.
    fn boxed(&self) -> Box<dyn Op>;
}

impl<T: Op + Clone + Eq + Hash> OpKey for T {
    #[inline]
    fn hash_key(&self, state: &mut KeyHasher) {
        TypeId::of::<T>().hash(state);
        self.hash(state);
    }

    #[inline]
    fn equals(&self, other: &dyn Op) -> bool {
        (other as &dyn Any).downcast_ref::<T>().is_some_and(|other| other == self)
    }

    fn boxed(&self) -> Box<dyn Op> {
        Box::new(self.clone())
    }
}

/// A fast hash of a few words. Keys are made by the program, not by an attacker, and equality is tested.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyHasher(u64);

impl KeyHasher {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(Self::FACTOR);
    }

    #[inline]
    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    #[inline]
    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    #[inline]
    fn finish(&self) -> u64 {
        // The upper bits are the mixed ones, and tables use the lower.
        self.0 ^ (self.0 >> 32)
    }
}
