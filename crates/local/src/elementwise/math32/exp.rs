//! Exponentials.

use super::polynomial;
use crate::simd::mul_add;

/// Added to a number of moderate size, leaves its nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// The exponential: overflows to infinity, underflows through the subnormal numbers to zero.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Beyond these the result is infinite or zero anyway; a NaN passes.
    let (rest, n) = exp_in_parts::<FMA>(x.clamp(-104.0, 89.0));
    times_power_of_two(rest + 1.0, n)
}

/// As [`exp`] for `x <= 0`, cheaper: at -87 and below, where it is next to nothing beside 1, it is
/// `exp(-87)`, about 1.6e-38.
#[inline(always)]
pub(crate) fn exp_of_nonpositive<const FMA: bool>(x: f32) -> f32 {
    // A comparison that a NaN passes through.
    let (rest, n) = exp_in_parts::<FMA>(if x < -87.0 { -87.0 } else { x });
    (rest + 1.0) * power_of_two(n)
}

/// As [`exp`], cheaper: results below the normal numbers are zero.
#[inline(always)]
pub(crate) fn exp_to_normal<const FMA: bool>(x: f32) -> f32 {
    const SMALLEST: f32 = -87.33;
    const LARGEST: f32 = 88.722_83;
    let (rest, n) = exp_in_parts::<FMA>(x.clamp(SMALLEST, LARGEST));
    // To the exponent instead of by a factor: 2^128 is no number, but half of it twice is in reach.
    let scaled = f32::from_bits((rest + 1.0).to_bits().wrapping_add((n as u32) << 23));
    let scaled = if x < SMALLEST { 0.0 } else { scaled };
    let scaled = if x > LARGEST { f32::INFINITY } else { scaled };
    if x.is_nan() { x } else { scaled }
}

/// Two to the power of `x`, exact for integers.
#[inline(always)]
pub(crate) fn exp2<const FMA: bool>(x: f32) -> f32 {
    let x = x.clamp(-151.0, 129.0);
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let q = polynomial::<FMA, 6, _>(
        r,
        [1.546_973_5e-4, 1.339_086_7e-3, 9.618_031e-3, 5.550_357e-2, 2.402_265_1e-1, 6.931_472e-1],
    );
    times_power_of_two(mul_add::<FMA, _>(q, r, 1.0), integer(shifted))
}

/// `exp(x) - 1`, exact near zero.
#[inline(always)]
pub(crate) fn expm1<const FMA: bool>(x: f32) -> f32 {
    let (rest, n) = exp_in_parts::<FMA>(x.clamp(-20.0, 89.0));
    // rest 2^n + (2^n - 1), at half its size so that 2^128 is within reach.
    let half = power_of_two(n - 1);
    let sum = 2.0 * mul_add::<FMA, _>(rest, half, half - 0.5);
    // Keeps the sign of a zero and the last bit of a subnormal number.
    if x.abs() < 2e-8 { x } else { sum }
}

/// `exp(x) = (1 + rest) 2^n` for `x` between -126 and 90: `rest`, which is between -0.3 and 0.42, and `n`.
#[inline(always)]
pub(super) fn exp_in_parts<const FMA: bool>(x: f32) -> (f32, i32) {
    let shifted = mul_add::<FMA, _>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // x - n ln 2, with ln 2 in two parts so that nothing is lost.
    let r = mul_add::<FMA, _>(n, -0.693_359_4, x);
    let r = mul_add::<FMA, _>(n, 2.121_944_4e-4, r);
    let q = polynomial::<FMA, 6, _>(
        r,
        [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1],
    );
    (mul_add::<FMA, _>(q, r * r, r), integer(shifted))
}

/// `x 2^n`, in two factors: one alone could not reach the largest and the subnormal numbers.
#[inline(always)]
pub(super) fn times_power_of_two(x: f32, n: i32) -> f32 {
    let (first, second) = powers_of_two(n);
    x * first * second
}

/// Two factors of `2^n`.
#[inline(always)]
pub(super) fn powers_of_two(n: i32) -> (f32, f32) {
    let half = n >> 1;
    (power_of_two(half), power_of_two(n.wrapping_sub(half)))
}

/// For `n` from -126 to 127.
#[inline(always)]
pub(super) fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// The integer that was added to [`ROUND`].
#[inline(always)]
fn integer(shifted: f32) -> i32 {
    (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32)
}
