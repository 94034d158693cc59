//! `f32` functions without branches and calls, so that loops of them are vectorised.
//!
//! Errors against `f64` over the whole domain, subnormal numbers and results included, in units of the
//! last place; `tests/ulp.rs` asserts them.
//!
//! | bound | functions |
//! |---|---|
//! | 1 | `log`, `asinh`, `acosh`, `atanh`, `erfc`, `pow`, `hypot` |
//! | 1.5 | `exp`, `exp2`, `log2`, `acos`, `erf` |
//! | 2 | `expm1`, `log10`, `log1p`, `sin`, `cos`, `asin`, `sinh`, `cosh`, `softplus` |
//! | 3 | `tan`, `atan`, `atan2`, `tanh`, `sigmoid` |
//! | 4 | `silu`, `mish` |
//!
//! Where a result of `f32` arithmetic would not be accurate enough, a few steps are made in `f64`
//! ([`wide`]): half as many values per instruction, but without the several corrections that pairs of
//! `f32` need.
//!
//! The polynomials of `exp`, `log`, `sin` and `cos` are those of Cephes (Moshier); the others are minimax
//! fits (Remez) of our own. `sin`, `cos` and `tan` hold up to [`PERIODIC_LIMIT`]; their caller takes the
//! standard library's function beyond.

// The coefficients are written as they were published or fitted.
#![allow(clippy::excessive_precision)]

mod activation;
mod error;
mod exp;
mod hyperbolic;
mod inverse_trig;
mod log;
mod power;
pub(crate) mod slope;
mod trig;
mod wide;

pub(crate) use activation::{log_add_exp, mish, sigmoid, silu, softplus};
pub(crate) use error::{erf, erf_roughly, erfc};
pub(crate) use exp::{exp, exp_of_nonpositive, exp_to_normal, exp2, expm1};
pub(crate) use hyperbolic::{acosh, asinh, atanh, cosh, sinh, tanh};
pub(crate) use inverse_trig::{acos, asin, atan, atan2};
pub(crate) use log::{log, log1p, log2, log10};
pub(crate) use power::{hypot, pow};
pub(crate) use trig::{PERIODIC_LIMIT, cos, sin, tan};

use crate::simd::{Fused, mul_add};

/// A polynomial in `x`, the highest coefficient first.
///
/// The odd and the even powers are two sums: each step waits for the one before, and a processor has
/// time for both.
#[inline(always)]
fn polynomial<const FMA: bool, const N: usize, T: Fused>(x: T, coefficients: [T; N]) -> T {
    let square = x * x;
    let (mut first, mut second) = (coefficients[0], coefficients[1]);
    for pair in coefficients[2..].chunks(2) {
        first = mul_add::<FMA, _>(first, square, pair[0]);
        if let Some(next) = pair.get(1) {
            second = mul_add::<FMA, _>(second, square, *next);
        }
    }
    if N.is_multiple_of(2) {
        mul_add::<FMA, _>(first, x, second)
    } else {
        mul_add::<FMA, _>(second, x, first)
    }
}

#[cfg(test)]
mod tests {
    /// A name, the function, the one of the standard library, and the bound.
    type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);

    /// The largest error, in units of the last place, of a function without fused multiplication: what a
    /// processor that lacks it computes. `tests/ulp.rs` sees only that of the machine it runs on.
    fn worst(function: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        let errors = (-40_000..40_000).map(|i| {
            let x = i as f32 * 1.1e-4;
            let want = exact(f64::from(x));
            let nearest = (want as f32).abs().max(f32::MIN_POSITIVE);
            let unit = f64::from(nearest.next_up()) - f64::from(nearest);
            let error = (f64::from(function(x)) - want).abs() / unit;
            match want.is_finite() {
                true if error.is_nan() => f64::INFINITY,
                true => error,
                false => 0.0,
            }
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_within_their_bounds_without_fused_multiplication() {
        let functions: [Case; 21] = [
            ("exp", super::exp::<false>, f64::exp, 1.5),
            ("exp_to_normal", super::exp_to_normal::<false>, f64::exp, 1.5),
            ("exp2", super::exp2::<false>, f64::exp2, 1.5),
            ("expm1", super::expm1::<false>, f64::exp_m1, 2.0),
            ("log", super::log::<false>, f64::ln, 1.0),
            ("log2", super::log2::<false>, f64::log2, 1.5),
            ("log10", super::log10::<false>, f64::log10, 2.0),
            ("log1p", super::log1p::<false>, f64::ln_1p, 2.0),
            ("sin", super::sin::<false>, f64::sin, 2.0),
            ("cos", super::cos::<false>, f64::cos, 2.0),
            ("tan", super::tan::<false>, f64::tan, 3.0),
            ("asin", super::asin::<false>, f64::asin, 2.0),
            ("acos", super::acos::<false>, f64::acos, 1.5),
            ("atan", super::atan::<false>, f64::atan, 3.0),
            ("sinh", super::sinh::<false>, f64::sinh, 2.0),
            ("cosh", super::cosh::<false>, f64::cosh, 2.0),
            ("tanh", super::tanh::<false>, f64::tanh, 3.0),
            ("asinh", super::asinh::<false>, f64::asinh, 1.0),
            ("acosh", super::acosh::<false>, f64::acosh, 1.0),
            ("atanh", super::atanh::<false>, f64::atanh, 1.0),
            ("erfc", super::erfc::<false>, |x| crate::elementwise::math64::erfc(x), 1.0),
        ];
        for (name, function, exact, bound) in functions {
            let worst = worst(function, exact);
            assert!(worst <= bound, "{name}: {worst}");
        }
    }
}
