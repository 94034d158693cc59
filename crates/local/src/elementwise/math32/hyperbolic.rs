//! Hyperbolic functions and their inverses.

use super::{
    exp::{exp_in_parts, power_of_two, times_power_of_two},
    polynomial, wide,
};
use crate::simd::mul_add;

/// Below this magnitude the inverses are two terms of their series.
const SMALL: f32 = 2e-4;

/// The hyperbolic sine.
#[inline(always)]
pub(crate) fn sinh<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let p = polynomial::<FMA, 4, _>(
        z,
        [2.782_213_2e-6, 1.984_289_6e-4, 8.333_310_5e-3, 1.666_666_7e-1],
    );
    let near = mul_add::<FMA, _>(p * z, a, a);
    let half = half_exp::<FMA>(a);
    let far = half - 0.25 / half;
    (if a < 1.0 { near } else { far }).copysign(x)
}

/// The hyperbolic cosine.
#[inline(always)]
pub(crate) fn cosh<const FMA: bool>(x: f32) -> f32 {
    let half = half_exp::<FMA>(x.abs());
    half + 0.25 / half
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<const FMA: bool>(x: f32) -> f32 {
    // q / (q + 2) with q = exp(2 |x|) - 1, which is exact near zero. From 9.02 on the result is 1.
    let (rest, n) = exp_in_parts::<FMA>(2.0 * x.abs().clamp(0.0, 10.0));
    let power = power_of_two(n);
    let q = mul_add::<FMA, _>(rest, power, power - 1.0);
    (q / (q + 2.0)).copysign(x)
}

/// The inverse hyperbolic sine.
#[inline(always)]
pub(crate) fn asinh<const FMA: bool>(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let far = wide::log::<FMA>(a + (a * a + 1.0).sqrt()) as f32;
    let near = mul_add::<FMA, _>(x * x, x.abs() * (-1.0 / 6.0), x.abs());
    let y = if x.abs() < SMALL { near } else { far };
    // An infinity or a NaN is itself.
    if x.abs() < f32::INFINITY { y.copysign(x) } else { x }
}

/// The inverse hyperbolic cosine: NaN below 1.
#[inline(always)]
pub(crate) fn acosh<const FMA: bool>(x: f32) -> f32 {
    let a = f64::from(x);
    // Exact in f64 up to the root.
    let y = wide::log::<FMA>(a + (a * a - 1.0).sqrt()) as f32;
    let y = if x < 1.0 { f32::NAN } else { y };
    if x < f32::INFINITY { y } else { x }
}

/// The inverse hyperbolic tangent: infinite at 1, NaN beyond.
#[inline(always)]
pub(crate) fn atanh<const FMA: bool>(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let far = (0.5 * wide::log::<FMA>((1.0 + a) / (1.0 - a))) as f32;
    let near = mul_add::<FMA, _>(x * x, x.abs() * (1.0 / 3.0), x.abs());
    let y = if x.abs() < SMALL { near } else { far };
    let y = if x.abs() < 1.0 { y } else { f32::INFINITY };
    // Not `> 1`, which a NaN would pass.
    if x.abs() <= 1.0 { y.copysign(x) } else { f32::NAN }
}

/// Half the exponential of a number that is not negative: finite where the hyperbolic functions are.
#[inline(always)]
fn half_exp<const FMA: bool>(a: f32) -> f32 {
    let (rest, n) = exp_in_parts::<FMA>(a.clamp(0.0, 90.0));
    times_power_of_two(rest + 1.0, n - 1)
}
