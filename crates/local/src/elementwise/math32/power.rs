//! Powers and lengths.

use super::wide;
use crate::simd::mul_add;

/// From 2^24 on every `f32` is an even integer.
const EVEN_ABOVE: f32 = 16_777_216.0;

/// `x` to the power of `y`, with the special cases of C's `pow`.
#[inline(always)]
pub(crate) fn pow<const FMA: bool>(x: f32, y: f32) -> f32 {
    let a = x.abs();
    let log = wide::log2::<FMA>(f64::from(a));
    let log = if a == 0.0 { f64::NEG_INFINITY } else { log };
    let log = if a < f32::INFINITY { log } else { f64::from(a) };
    // Beyond these the result is infinite or zero in f32; a NaN passes.
    let exponent = (f64::from(y) * log).clamp(-200.0, 200.0);
    let power = wide::exp2::<FMA>(exponent) as f32;
    // A negative base: whole exponents have a result, odd ones a negative. An infinity counts as even.
    let whole = y.clamp(-EVEN_ABOVE, EVEN_ABOVE) as i32;
    let is_whole = (whole as f32 == y) | (y.abs() >= EVEN_ABOVE);
    let is_odd = is_whole & (whole & 1 == 1);
    let power = if (x < 0.0) & (a < f32::INFINITY) & !is_whole { f32::NAN } else { power };
    let sign = if is_odd { x.to_bits() & 0x8000_0000 } else { 0 };
    let power = f32::from_bits(power.to_bits() ^ sign);
    let is_one = (y == 0.0) | (x == 1.0) | ((a == 1.0) & (y.abs() == f32::INFINITY));
    if is_one { 1.0 } else { power }
}

/// The length of the hypotenuse: infinite if a side is, even beside a NaN.
#[inline(always)]
pub(crate) fn hypot<const FMA: bool>(x: f32, y: f32) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    // The squares are exact in f64 and cannot overflow.
    let length = mul_add::<FMA, _>(a, a, b * b).sqrt() as f32;
    let infinite = (x.abs() == f32::INFINITY) | (y.abs() == f32::INFINITY);
    if infinite { f32::INFINITY } else { length }
}
