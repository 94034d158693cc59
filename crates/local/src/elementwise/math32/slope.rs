//! Derivatives of the functions of neural networks. `gelu` and `gelu_tanh` are within 3 units of the last place of 1,
//! `silu` within 5 of that of the larger of its two terms; `tests/activation_backward.rs` asserts it.

use super::{
    error::erf_roughly,
    exp::{exp, exp_of_nonpositive},
};
use crate::simd::mul_add;

/// The derivative of `x Phi(x)`, where `Phi` is the normal distribution function.
#[inline(always)]
pub(crate) fn gelu<const FMA: bool>(x: f32) -> f32 {
    const FRAC_1_SQRT_TAU: f32 = 0.398_942_28;
    // Beyond, the density is next to nothing; infinity times that would be none. A NaN passes.
    let x = x.clamp(-20.0, 20.0);
    let distribution = 0.5 + 0.5 * erf_roughly::<FMA>(x * std::f32::consts::FRAC_1_SQRT_2);
    let density = FRAC_1_SQRT_TAU * exp_of_nonpositive::<FMA>(-0.5 * x * x);
    mul_add::<FMA, _>(x, density, distribution)
}

/// The derivative of `x s(u)`, where `s` is the logistic function and `u = a x (1 + b x^2)`.
#[inline(always)]
pub(crate) fn gelu_tanh<const FMA: bool>(x: f32) -> f32 {
    // Beyond, it is 0 or 1, and the factor may overflow.
    let x = x.clamp(-11.0, 11.0);
    let square = x * x;
    let u = 1.595_769_2 * x * mul_add::<FMA, _>(0.044_715, square, 1.0);
    let e = exp_of_nonpositive::<FMA>(-u.abs());
    // x u'
    let factor = 1.595_769_2 * x * mul_add::<FMA, _>(0.134_145, square, 1.0);
    logistic_and_slope::<FMA>(u, e, factor)
}

/// The derivative of `x s(x)`, where `s` is the logistic function.
#[inline(always)]
pub(crate) fn silu<const FMA: bool>(x: f32) -> f32 {
    // Beyond, it is 0 or 1; infinity times zero would be none.
    let x = x.clamp(-110.0, 110.0);
    logistic_and_slope::<FMA>(x, exp::<FMA>(-x.abs()), x)
}

/// `s(x) + factor s'(x)`, where `s` is the logistic function and `e = exp(-|x|)`.
#[inline(always)]
fn logistic_and_slope<const FMA: bool>(x: f32, e: f32, factor: f32) -> f32 {
    let quotient = 1.0 / (1.0 + e);
    let value = if x < 0.0 { e * quotient } else { quotient };
    mul_add::<FMA, _>(factor, e * quotient * quotient, value)
}
