//! `f32` functions without branches and calls, so that loops of them are vectorised.
//!
//! Errors, measured against `f64` over the whole domain unless a range is given, by `tests/elementwise.rs`:
//!
//! | function | error, in units of the last place |
//! |---|---|
//! | `exp` | 2, also where the result is subnormal |
//! | `log` | 2 |
//! | `tanh` | 3 |
//! | `erf` | 5 |
//! | `sin`, `cos` | 2 where abs(x) is at most 2^20 |
//!
//! The polynomials are those of Cephes (Moshier); `erf` is the rational minimax function that Eigen
//! and XLA use.

// The coefficients are written as their authors published them.
#![allow(clippy::excessive_precision)]

use crate::simd::mul_add;

/// Added to a number of moderate size, leaves its nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// The exponential: overflows to infinity, underflows through the subnormal numbers to zero.
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Beyond these the result is infinite or zero anyway; a NaN passes.
    let x = x.clamp(-104.0, 89.0);
    let shifted = mul_add::<FMA>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // x - n ln 2, with ln 2 in two parts so that nothing is lost.
    let r = mul_add::<FMA>(n, -0.693_359_4, x);
    let r = mul_add::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4;
    p = mul_add::<FMA>(p, r, 1.398_2e-3);
    p = mul_add::<FMA>(p, r, 8.333_452e-3);
    p = mul_add::<FMA>(p, r, 4.166_579_6e-2);
    p = mul_add::<FMA>(p, r, 1.666_666_5e-1);
    p = mul_add::<FMA>(p, r, 5e-1);
    p = mul_add::<FMA>(p, r * r, r) + 1.0;
    // 2^n in two factors: one alone could not reach the largest and the subnormal numbers.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// The natural logarithm: minus infinity at zero, NaN below.
#[inline(always)]
pub(crate) fn log<const FMA: bool>(x: f32) -> f32 {
    // Subnormal numbers are made normal first.
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    // x = m 2^e with m between the square roots of 1/2 and 2.
    let bits = (scaled.to_bits() as i32).wrapping_sub(0x3f35_04f3);
    let e = (bits >> 23) as f32 - if tiny { 23.0 } else { 0.0 };
    let m = f32::from_bits(((bits & 0x007f_ffff) + 0x3f35_04f3) as u32) - 1.0;
    let mut p = 7.037_683_6e-2;
    p = mul_add::<FMA>(p, m, -1.151_461e-1);
    p = mul_add::<FMA>(p, m, 1.167_699_9e-1);
    p = mul_add::<FMA>(p, m, -1.242_014_1e-1);
    p = mul_add::<FMA>(p, m, 1.424_932_3e-1);
    p = mul_add::<FMA>(p, m, -1.666_805_8e-1);
    p = mul_add::<FMA>(p, m, 2.000_071_5e-1);
    p = mul_add::<FMA>(p, m, -2.499_999_4e-1);
    p = mul_add::<FMA>(p, m, 3.333_333_1e-1);
    let square = m * m;
    let mut y = p * m * square;
    y = mul_add::<FMA>(e, -2.121_944_4e-4, y);
    y = mul_add::<FMA>(square, -0.5, y);
    let finite = mul_add::<FMA>(e, 0.693_359_4, m + y);
    let finite = if x == 0.0 { f32::NEG_INFINITY } else { finite };
    let result = if x < 0.0 { f32::NAN } else { finite };
    // An infinity or a NaN is itself.
    if x < f32::INFINITY { result } else { x }
}

/// `log(1 + x)` for `x` between 0 and 1.
#[inline(always)]
pub(crate) fn log_1p_of_fraction<const FMA: bool>(x: f32) -> f32 {
    let sum = 1.0 + x;
    // What the sum has lost, to first order.
    log::<FMA>(sum) + (x - (sum - 1.0)) / sum
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.704_988_7e-3;
    p = mul_add::<FMA>(p, square, 2.063_908_9e-2);
    p = mul_add::<FMA>(p, square, -5.373_971_6e-2);
    p = mul_add::<FMA>(p, square, 1.333_144_2e-1);
    p = mul_add::<FMA>(p, square, -3.333_328_2e-1);
    let near = mul_add::<FMA>(p * square, x, x);
    let far = (1.0 - 2.0 / (exp::<FMA>(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// The logistic function.
#[inline(always)]
pub(crate) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

/// The error function.
#[inline(always)]
pub(crate) fn erf<const FMA: bool>(x: f32) -> f32 {
    // Beyond, the result is 1 in f32.
    let x = x.clamp(-3.832_506_8, 3.832_506_8);
    let z = x * x;
    let mut p = 2.290_506_6e-4;
    p = mul_add::<FMA>(p, z, 3.408_291e-3);
    p = mul_add::<FMA>(p, z, 5.095_569_5e-2);
    p = mul_add::<FMA>(p, z, 1.852_083_2e-1);
    p = mul_add::<FMA>(p, z, std::f32::consts::FRAC_2_SQRT_PI);
    let mut q = -1.179_160_3e-7;
    q = mul_add::<FMA>(q, z, 2.354_796_6e-5);
    q = mul_add::<FMA>(q, z, 1.017_962_5e-3);
    q = mul_add::<FMA>(q, z, 1.407_047e-2);
    q = mul_add::<FMA>(q, z, 1.109_850_5e-1);
    q = mul_add::<FMA>(q, z, 4.974_692_5e-1);
    q = mul_add::<FMA>(q, z, 1.0);
    x * p / q
}

/// The sine; [`cos`] for large arguments says what happens there.
#[inline(always)]
pub(crate) fn sin<const FMA: bool>(x: f32) -> f32 {
    let (r, quarter) = reduce(x);
    sine_of_quarter::<FMA>(r, quarter)
}

/// The cosine. Where abs(x) is more than [`PERIODIC_LIMIT`] the reduction is not exact any more: the
/// caller takes the standard library's function there.
#[inline(always)]
pub(crate) fn cos<const FMA: bool>(x: f32) -> f32 {
    let (r, quarter) = reduce(x);
    sine_of_quarter::<FMA>(r, quarter.wrapping_add(1))
}

/// See [`cos`].
pub(crate) const PERIODIC_LIMIT: f32 = 1_048_576.0;

/// The distance to the nearest multiple of pi / 2, and its number.
#[inline(always)]
fn reduce(x: f32) -> (f32, u32) {
    /// As [`ROUND`], for `f64`.
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
    let mut s = -1.951_529_6e-4;
    s = mul_add::<FMA>(s, z, 8.332_161e-3);
    s = mul_add::<FMA>(s, z, -1.666_665_5e-1);
    let s = mul_add::<FMA>(s * z, r, r);
    let mut c = 2.443_315_7e-5;
    c = mul_add::<FMA>(c, z, -1.388_731_6e-3);
    c = mul_add::<FMA>(c, z, 4.166_664_6e-2);
    let c = mul_add::<FMA>(c * z, z, mul_add::<FMA>(z, -0.5, 1.0));
    let value = if quarter & 1 == 0 { s } else { c };
    f32::from_bits(value.to_bits() ^ ((quarter & 2) << 30))
}
