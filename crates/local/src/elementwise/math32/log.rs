//! Logarithms.

use std::f32::consts::{LOG2_E, LOG10_E};

use super::polynomial;
use crate::simd::mul_add;

/// The bits of the square root of 1/2: mantissas are taken from there to the square root of 2, so that
/// the logarithm of a number near 1 has no exponent to cancel.
const SQRT_HALF: i32 = 0x3f35_04f3;

/// The natural logarithm: minus infinity at zero, NaN below.
#[inline(always)]
pub(crate) fn log<const FMA: bool>(x: f32) -> f32 {
    let (e, f) = in_parts(x);
    with_specials(x, times_two_to::<FMA>(e, f))
}

/// The logarithm to base 2, exact for powers of two.
#[inline(always)]
pub(crate) fn log2<const FMA: bool>(x: f32) -> f32 {
    let (e, f) = in_parts(x);
    let y = log_of_rest::<FMA>(f);
    // (f + y) log2(e), of which f itself is exact.
    let small = mul_add::<FMA, _>(f, LOG2_E - 1.0, y * LOG2_E);
    with_specials(x, (f + small) + e)
}

/// The logarithm to base 10.
#[inline(always)]
pub(crate) fn log10<const FMA: bool>(x: f32) -> f32 {
    let (e, f) = in_parts(x);
    let ln = f + log_of_rest::<FMA>(f);
    // log10(2) in two parts, of which the first times e is exact.
    let y = mul_add::<FMA, _>(ln, LOG10_E, e * 2.487_456_6e-4);
    with_specials(x, mul_add::<FMA, _>(e, 0.300_781_25, y))
}

/// `log(1 + x)`, exact near zero.
#[inline(always)]
pub(crate) fn log1p<const FMA: bool>(x: f32) -> f32 {
    let sum = 1.0 + x;
    let finite = log1p_above::<FMA>(x);
    // Keeps the sign of a zero and the last bit of a subnormal number.
    let result = if x.abs() < 2e-8 { x } else { finite };
    if sum > 0.0 && x < f32::INFINITY { result } else { with_specials(sum, result) }
}

/// `log(1 + x)` for a finite `x` above -1.
#[inline(always)]
pub(super) fn log1p_above<const FMA: bool>(x: f32) -> f32 {
    // 1 + x = (1 + f) 2^k. The exponent is that of the rounded sum; f is not taken from the sum, which has
    // lost bits, but from x itself, until the 1 does not matter any more.
    let bits = ((1.0 + x).to_bits() as i32).wrapping_sub(SQRT_HALF);
    let k = bits >> 23;
    let scale = f32::from_bits(0x3f80_0000_u32.wrapping_sub((k as u32) << 23));
    let exact = mul_add::<FMA, _>(x, scale, scale - 1.0);
    let f = if k < 25 { exact } else { mantissa(bits) };
    times_two_to::<FMA>(k as f32, f)
}

/// `log((1 + f) 2^e)`.
#[inline(always)]
fn times_two_to<const FMA: bool>(e: f32, f: f32) -> f32 {
    // ln 2 in two parts, of which the first times e is exact.
    let y = mul_add::<FMA, _>(e, -2.121_944_4e-4, log_of_rest::<FMA>(f));
    mul_add::<FMA, _>(e, 0.693_359_4, f + y)
}

/// A positive finite number is `(1 + f) 2^e`: `e` and `f`.
#[inline(always)]
fn in_parts(x: f32) -> (f32, f32) {
    // Subnormal numbers are made normal first.
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = (scaled.to_bits() as i32).wrapping_sub(SQRT_HALF);
    ((bits >> 23) as f32 - if tiny { 23.0 } else { 0.0 }, mantissa(bits))
}

#[inline(always)]
fn mantissa(bits: i32) -> f32 {
    f32::from_bits(((bits & 0x007f_ffff) + SQRT_HALF) as u32) - 1.0
}

/// `log(1 + f) - f` for `f` between -0.3 and 0.42.
#[inline(always)]
fn log_of_rest<const FMA: bool>(f: f32) -> f32 {
    let p = polynomial::<FMA, 9, _>(
        f,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333_1e-1,
        ],
    );
    let square = f * f;
    mul_add::<FMA, _>(square, -0.5, p * f * square)
}

/// The logarithm of `x`, given what it is if `x` is positive and finite.
#[inline(always)]
fn with_specials(x: f32, finite: f32) -> f32 {
    let finite = if x == 0.0 { f32::NEG_INFINITY } else { finite };
    let result = if x < 0.0 { f32::NAN } else { finite };
    // An infinity or a NaN is itself.
    if x < f32::INFINITY { result } else { x }
}
