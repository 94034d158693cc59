//! Functions of one operand.

use super::{
    int::Int,
    kinds::{FloatKernels, float, float_kernels, kernel, same, same_kernels, test, test_kernels},
    math32::{self, PERIODIC_LIMIT},
    math64,
};
use crate::{DType, Result, Tensor};

/// Rows of methods without arguments.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident by $kind:ident: $kernels:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Result<Tensor> {
                    $kind(stringify!($name), [self.into()], &$kernels)
                }
            )*
        }
    };
}

unary! {
    /// Minus the value. Integers wrap; bools have none.
    neg by same: same_kernels!(|x| float: -x, int: x.wrapping_neg());
    /// Magnitude. That of the smallest integer wraps.
    abs by same: same_kernels!(|x| float: x.abs(), int: x.magnitude(), bool: x);
    /// -1, 0 or 1; 0 for NaN, as in PyTorch.
    sign by same: same_kernels!(|x|
        float: if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { 0.0 }, int: x.sign(), bool: x);
    /// The value times itself. Integers wrap.
    square by same: same_kernels!(|x| float: x * x, int: x.wrapping_mul(x), bool: x);
    /// Exponential, base e.
    exp by float: float_kernels!(|x| f32: math32::exp::<FMA>(x), f64: x.exp());
    /// Exponential, base 2.
    exp2 by float: float_kernels!(|x| f32: math32::exp2::<FMA>(x), f64: x.exp2());
    /// `exp(x) - 1`, exact near zero.
    expm1 by float: float_kernels!(|x| f32: math32::expm1::<FMA>(x), f64: x.exp_m1());
    /// Natural logarithm: minus infinity at 0, NaN below.
    log by float: float_kernels!(|x| f32: math32::log::<FMA>(x), f64: x.ln());
    /// Logarithm, base 2.
    log2 by float: float_kernels!(|x| f32: math32::log2::<FMA>(x), f64: x.log2());
    /// Logarithm, base 10.
    log10 by float: float_kernels!(|x| f32: math32::log10::<FMA>(x), f64: x.log10());
    /// `log(1 + x)`, exact near zero.
    log1p by float: float_kernels!(|x| f32: math32::log1p::<FMA>(x), f64: x.ln_1p());
    /// Square root: NaN below zero.
    sqrt by float: float_kernels!(|x| f32: x.sqrt(), f64: x.sqrt());
    /// One over the square root.
    rsqrt by float: float_kernels!(|x| f32: 1.0 / x.sqrt(), f64: 1.0 / x.sqrt());
    /// One over the value.
    reciprocal by float: float_kernels!(|x| f32: 1.0 / x, f64: 1.0 / x);
    /// Tangent.
    tan by float: FloatKernels {
        f32: &|[x], out| periodic(kernel!(f32 => f32, |x| math32::tan::<FMA>(x)), f32::tan, x, out),
        f64: kernel!(f64 => f64, |x| x.tan()),
    };
    /// Inverse sine.
    asin by float: float_kernels!(|x| f32: math32::asin::<FMA>(x), f64: x.asin());
    /// Inverse cosine.
    acos by float: float_kernels!(|x| f32: math32::acos::<FMA>(x), f64: x.acos());
    /// Inverse tangent.
    atan by float: float_kernels!(|x| f32: math32::atan::<FMA>(x), f64: x.atan());
    /// Hyperbolic sine.
    sinh by float: float_kernels!(|x| f32: math32::sinh::<FMA>(x), f64: x.sinh());
    /// Hyperbolic cosine.
    cosh by float: float_kernels!(|x| f32: math32::cosh::<FMA>(x), f64: x.cosh());
    /// Hyperbolic tangent.
    tanh by float: float_kernels!(|x| f32: math32::tanh::<FMA>(x), f64: x.tanh());
    /// Inverse hyperbolic sine.
    asinh by float: float_kernels!(|x| f32: math32::asinh::<FMA>(x), f64: x.asinh());
    /// Inverse hyperbolic cosine.
    acosh by float: float_kernels!(|x| f32: math32::acosh::<FMA>(x), f64: x.acosh());
    /// Inverse hyperbolic tangent.
    atanh by float: float_kernels!(|x| f32: math32::atanh::<FMA>(x), f64: x.atanh());
    /// Error function.
    erf by float: float_kernels!(|x| f32: math32::erf::<FMA>(x), f64: math64::erf(x));
    /// One minus the error function, exact in its tail.
    erfc by float: float_kernels!(|x| f32: math32::erfc::<FMA>(x), f64: math64::erfc(x));
    /// Sine.
    sin by float: FloatKernels {
        f32: &|[x], out| periodic(kernel!(f32 => f32, |x| math32::sin::<FMA>(x)), f32::sin, x, out),
        f64: kernel!(f64 => f64, |x| x.sin()),
    };
    /// Cosine.
    cos by float: FloatKernels {
        f32: &|[x], out| periodic(kernel!(f32 => f32, |x| math32::cos::<FMA>(x)), f32::cos, x, out),
        f64: kernel!(f64 => f64, |x| x.cos()),
    };
    /// Nearest integer below or equal. Integers stay.
    floor by same: same_kernels!(|x| float: x.floor(), int: x);
    /// Nearest integer above or equal. Integers stay.
    ceil by same: same_kernels!(|x| float: x.ceil(), int: x);
    /// Nearest integer, ties to even. Integers stay.
    round by same: same_kernels!(|x| float: x.round_ties_even(), int: x);
    /// Integer part. Integers stay.
    trunc by same: same_kernels!(|x| float: x.trunc(), int: x);
    /// What [`trunc`](Tensor::trunc) leaves, with the sign of the value.
    frac by same: same_kernels!(|x| float: x - x.trunc(), int: x.wrapping_sub(x));
    /// Whether the value is zero (false).
    logical_not by test: test_kernels!(|x| is_zero(x));
}

/// Whether it is the zero of its type. (An `==` with a default whose type is not named is ambiguous as
/// soon as another crate can be compared with numbers.)
#[inline(always)]
fn is_zero<T: Default + PartialEq>(x: T) -> bool {
    x == T::default()
}

/// Rows of questions that only floats can answer with yes.
macro_rules! float_tests {
    ($($(#[$doc:meta])* $name:ident else $other:literal: |$x:ident| $test:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> Result<Tensor> {
                    use super::driver::apply;
                    let (op, args) = (stringify!($name), [self.into()]);
                    match self.dtype() {
                        DType::F64 => apply(op, args, DType::Bool, kernel!(f64 => bool, |$x| $test)),
                        dtype if dtype.is_float() => {
                            apply(op, args, DType::Bool, kernel!(f32 => bool, |$x| $test))
                        }
                        _ => apply(op, args, DType::Bool, kernel!(bool => bool, |_x| $other)),
                    }
                }
            )*
        }
    };
}

float_tests! {
    /// Whether the value is not a number.
    isnan else false: |x| x.is_nan();
    /// Whether the value is an infinity.
    isinf else false: |x| x.is_infinite();
    /// Whether the value is a number and not an infinity.
    isfinite else true: |x| x.is_finite();
}

/// A periodic function: vectorised, but for large arguments, which are rare, by the standard library.
/// Which of the two computes a value depends on that value alone.
fn periodic(
    vectorised: impl Fn([&[f32]; 1], &mut [f32]),
    standard: fn(f32) -> f32,
    x: &[f32],
    out: &mut [f32],
) {
    vectorised([x], out);
    let is_large = |x: &f32| x.is_nan() || x.abs() > PERIODIC_LIMIT;
    if x.iter().fold(false, |any, x| any | is_large(x)) {
        for (out, x) in out.iter_mut().zip(x).filter(|(_, x)| is_large(x)) {
            *out = standard(*x);
        }
    }
}
