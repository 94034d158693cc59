//! The generator: Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).

/// Rounds of the standard variant.
const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// Golden ratio and square root of three less one, as fractions of 2^32.
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Where the random values of one operation come from. Two numbers, so that a checkpoint can hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The same for all operations of a program.
    pub seed: u64,
    /// Different for every one of them.
    pub offset: u64,
}

impl Stream {
    /// The 128 bits of a block.
    #[inline(always)]
    pub(crate) fn block(self, index: u64) -> [u32; 4] {
        let [low, high] = halves(index);
        let [offset_low, offset_high] = halves(self.offset);
        rounds([low, high, offset_low, offset_high], halves(self.seed))
    }
}

/// Philox4x32-10: 128 bits that are a function of a counter and a key, as in the Random123 library.
///
/// ```
/// use dtensor_local::random::philox4x32_10;
///
/// assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    rounds(counter, key)
}

#[inline(always)]
fn rounds(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
        }
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

#[inline(always)]
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}
