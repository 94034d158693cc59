//! Numbers that look random and are the same in every run.

/// A small deterministic generator (SplitMix64): tests fail the same way twice.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// A stream of numbers; different seeds give unrelated streams.
    pub fn new(seed: u64) -> Noise {
        Noise(seed)
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// A number of either sign in -1..1.
    pub fn signed(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// A number of either sign that is well away from 0, so that one may divide by it.
    pub fn signed_nonzero(&mut self) -> f64 {
        let number = self.signed();
        number + number.signum() * 0.25
    }

    /// One of `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }
}
