//! Sine, cosine and tangent.

use super::polynomial;
use crate::simd::mul_add;

/// Where the magnitude of an argument is larger, the reduction to a quarter of a turn is not exact any
/// more.
pub(crate) const PERIODIC_LIMIT: f32 = 1_048_576.0;

/// Below this magnitude sine and tangent are the argument, whose sign of zero the polynomials would lose.
const TINY: f32 = 1e-4;

/// The sine, up to [`PERIODIC_LIMIT`].
#[inline(always)]
pub(crate) fn sin<const FMA: bool>(x: f32) -> f32 {
    let (r, quarter) = reduce(x);
    let sine = sine_of_quarter::<FMA>(r, quarter);
    if x.abs() < TINY { x } else { sine }
}

/// The cosine, up to [`PERIODIC_LIMIT`].
#[inline(always)]
pub(crate) fn cos<const FMA: bool>(x: f32) -> f32 {
    let (r, quarter) = reduce(x);
    sine_of_quarter::<FMA>(r, quarter.wrapping_add(1))
}

/// The tangent, up to [`PERIODIC_LIMIT`].
#[inline(always)]
pub(crate) fn tan<const FMA: bool>(x: f32) -> f32 {
    let (r, quarter) = reduce(x);
    let z = r * r;
    let p = polynomial::<FMA, 6, _>(
        z,
        [
            9.396_526e-3,
            3.101_482_3e-3,
            2.444_139_1e-2,
            5.340_820_2e-2,
            1.333_883_6e-1,
            3.333_315_6e-1,
        ],
    );
    let near = mul_add::<FMA, _>(p * z, r, r);
    let tangent = if quarter & 1 == 0 { near } else { -1.0 / near };
    if x.abs() < TINY { x } else { tangent }
}

/// The distance to the nearest multiple of pi / 2, and its number.
#[inline(always)]
fn reduce(x: f32) -> (f32, u32) {
    /// Added to a number of moderate size, leaves its nearest integer in the low bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    // The first part of pi / 2 has 33 bits: its product with a number of 20 bits is exact.
    let r = (x - n * 1.570_796_326_734_125_6) - n * 6.077_100_506_506_192e-11;
    (r as f32, shifted.to_bits() as u32)
}

#[inline(always)]
fn sine_of_quarter<const FMA: bool>(r: f32, quarter: u32) -> f32 {
    let z = r * r;
    let s = polynomial::<FMA, 3, _>(z, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let s = mul_add::<FMA, _>(s * z, r, r);
    let c = polynomial::<FMA, 3, _>(z, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let c = mul_add::<FMA, _>(c * z, z, mul_add::<FMA, _>(z, -0.5, 1.0));
    let value = if quarter & 1 == 0 { s } else { c };
    f32::from_bits(value.to_bits() ^ ((quarter & 2) << 30))
}
