//! The `f64` cores of functions that would lose too much in `f32`. Accurate to about 2^-36 and 2^-29:
//! enough for a result that is rounded to `f32`.

use super::polynomial;
use crate::simd::mul_add;

/// The natural logarithm of a positive, finite, normal number.
#[inline(always)]
pub(super) fn log<const FMA: bool>(x: f64) -> f64 {
    let (e, ln) = log_in_parts::<FMA>(x);
    mul_add::<FMA, _>(e, std::f64::consts::LN_2, ln)
}

/// As [`log`], to base 2.
#[inline(always)]
pub(super) fn log2<const FMA: bool>(x: f64) -> f64 {
    let (e, ln) = log_in_parts::<FMA>(x);
    mul_add::<FMA, _>(ln, std::f64::consts::LOG2_E, e)
}

/// Two to the power of `x`, which is between -1000 and 1000.
#[inline(always)]
pub(super) fn exp2<const FMA: bool>(x: f64) -> f64 {
    /// Added to a number of moderate size, leaves its nearest integer in the low bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let p = polynomial::<FMA, 7, _>(
        r,
        [
            0.000_153_458_119_484_710_2,
            0.001_339_993_118_257_828_5,
            0.009_618_488_957_142_913,
            0.055_503_287_770_955_78,
            0.240_226_468_906_381_22,
            0.693_147_205_737_195_1,
            1.000_000_000_554_167_2,
        ],
    );
    // The integer goes to the exponent; bits above it are shifted out.
    p * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

/// `x = m 2^e` with `m` between the square roots of 1/2 and 2: `e` and the logarithm of `m`.
#[inline(always)]
fn log_in_parts<const FMA: bool>(x: f64) -> (f64, f64) {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    const ONE: u64 = 0x3ff0_0000_0000_0000;
    /// 2^52, whose last place is 1: an integer in its low bits is added to it.
    const INTEGERS: f64 = 4_503_599_627_370_496.0;
    let bits = x.to_bits().wrapping_sub(SQRT_HALF).wrapping_add(ONE);
    // Not converted as an integer, for which AVX2 has no instruction.
    let e = f64::from_bits((bits >> 52) | INTEGERS.to_bits()) - (INTEGERS + 1023.0);
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(SQRT_HALF));
    let f = (m - 1.0) / (m + 1.0);
    let z = f * f;
    let p = polynomial::<FMA, 4, _>(
        z,
        [
            0.235_821_519_378_294_24,
            0.285_373_085_102_763_7,
            0.400_003_351_913_319_3,
            0.666_666_656_454_547,
        ],
    );
    (e, mul_add::<FMA, _>(p * z, f, 2.0 * f))
}
