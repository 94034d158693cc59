//! Functions of neural networks that are not a simple composition of others.

use super::{
    exp::{exp, exp_in_parts, powers_of_two},
    log::log1p_above,
};
use crate::simd::mul_add;

/// From this on `x exp(-x)` is zero.
const GREATEST: f32 = 110.0;

/// The logistic function.
#[inline(always)]
pub(crate) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    // Of a magnitude, so that nothing overflows where the result is a small number.
    let e = exp::<FMA>(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

/// `x sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu<const FMA: bool>(x: f32) -> f32 {
    let magnitude = x.abs().clamp(0.0, GREATEST);
    let (rest, n) = exp_in_parts::<FMA>(-magnitude);
    // In two factors, of which the second comes last: exp(x) alone may be subnormal where x exp(x) is not.
    let (first, second) = powers_of_two(n);
    let half = (rest + 1.0) * first;
    let quotient = 1.0 / mul_add::<FMA, _>(half, second, 1.0);
    let above = x * quotient;
    let below = (-magnitude * half) * quotient * second;
    let below = if x == f32::NEG_INFINITY { f32::NAN } else { below };
    if x < 0.0 { below } else { above }
}

/// `log(1 + exp(x))`.
#[inline(always)]
pub(crate) fn softplus<const FMA: bool>(x: f32) -> f32 {
    let small = log1p_above::<FMA>(exp::<FMA>(-x.abs()));
    if x < 0.0 { small } else { x + small }
}

/// `x tanh(log(1 + exp(x)))`.
#[inline(always)]
pub(crate) fn mish<const FMA: bool>(x: f32) -> f32 {
    // With e = exp(x): tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2), which is 1 from 20 on.
    let clamped = x.clamp(-GREATEST, 20.0);
    let (rest, n) = exp_in_parts::<FMA>(clamped);
    let (first, second) = powers_of_two(n);
    let half = (rest + 1.0) * first;
    let e = half * second;
    let quotient = (e + 2.0) / mul_add::<FMA, _>(e, e + 2.0, 2.0);
    // The second factor last, as in `silu`.
    let below = (clamped * half) * quotient * second;
    let below = if x == f32::NEG_INFINITY { f32::NAN } else { below };
    if x > 20.0 { x } else { below }
}

/// The logarithm of the sum of two exponentials.
#[inline(always)]
pub(crate) fn log_add_exp<const FMA: bool>(a: f32, b: f32) -> f32 {
    let (high, low) = if a.is_nan() || a > b { (a, b) } else { (b, a) };
    let sum = high + log1p_above::<FMA>(exp::<FMA>(low - high));
    // Of two equal infinities the difference is none.
    if high == low { high + std::f32::consts::LN_2 } else { sum }
}
