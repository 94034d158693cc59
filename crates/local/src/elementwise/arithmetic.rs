//! Arithmetic on two operands.

use super::{
    int::Int,
    kinds::{SameKernels, float, float_kernels, kernel, same, same_kernels},
    math32, math64,
    promote::{Arg, Scalar, common_dtype},
    values::{Values, with_values},
};
use crate::{LocalError, Result, Tensor};

/// Rows of operations on two tensors and on a tensor and a scalar; the dtype is that of [`promote`](crate::promote).
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident, $scalar_name:ident by $kind:ident: $kernels:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// Operands are broadcast and promoted ([`promote`](crate::promote)).
                pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                    $name(stringify!($name), [self.into(), other.into()])
                }

                #[doc = concat!("[`", stringify!($name), "`](Tensor::", stringify!($name), ") with a number as the second operand.")]
                pub fn $scalar_name(&self, other: impl Into<Scalar>) -> Result<Tensor> {
                    $name(stringify!($scalar_name), [self.into(), other.into().into()])
                }
            )*
        }
        $(
            fn $name(op: &'static str, args: [Arg; 2]) -> Result<Tensor> {
                $kind(op, args, &$kernels)
            }
        )*
    };
}

binary! {
    /// Sum; of bools, *or*. Integers wrap.
    add, add_scalar by same: same_kernels!(|a, b| float: a + b, int: a.wrapping_add(b), bool: a | b);
    /// Difference. Integers wrap; bools have none.
    sub, sub_scalar by same: same_kernels!(|a, b| float: a - b, int: a.wrapping_sub(b));
    /// Product; of bools, *and*. Integers wrap.
    mul, mul_scalar by same: same_kernels!(|a, b| float: a * b, int: a.wrapping_mul(b), bool: a & b);
    /// Quotient. That of integers is a float, `f32`.
    div, div_scalar by float: float_kernels!(|a, b| f32: a / b, f64: a / b);
    /// The larger; NaN if one is.
    maximum, maximum_scalar by same: same_kernels!(|a, b|
        float: if a.is_nan() || a > b { a } else { b }, int: a.max(b), bool: a | b);
    /// The smaller; NaN if one is.
    minimum, minimum_scalar by same: same_kernels!(|a, b|
        float: if a.is_nan() || a < b { a } else { b }, int: a.min(b), bool: a & b);
    /// Quotient rounded towards minus infinity. A divisor of zero is an error for integers.
    floor_div, floor_div_scalar by divided: same_kernels!(|a, b|
        float: {
            // As Python's: exact where the rounded quotient would be one too large.
            let rem = a % b;
            let quotient = (a - rem) / b - if rem != 0.0 && (b < 0.0) != (rem < 0.0) { 1.0 } else { 0.0 };
            let floor = quotient.floor();
            let floor = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
            if b == 0.0 { a / b } else if quotient == 0.0 { quotient.copysign(a / b) } else { floor }
        },
        int: a.floor_div(b));
    /// Remainder with the sign of the divisor, as in Python. A divisor of zero is an error for integers.
    rem, rem_scalar by divided: same_kernels!(|a, b|
        float: {
            let rem = a % b;
            if rem != 0.0 && (b < 0.0) != (rem < 0.0) { rem + b } else { rem }
        },
        int: a.floor_rem(b));
    /// Remainder with the sign of the dividend, as in C. A divisor of zero is an error for integers.
    fmod, fmod_scalar by divided: same_kernels!(|a, b| float: a % b, int: a.cut_rem(b));
    /// The angle of the point (`other`, `self`), from -pi to pi.
    atan2, atan2_scalar by float: float_kernels!(|a, b| f32: math32::atan2::<FMA>(a, b), f64: a.atan2(b));
    /// Length of the hypotenuse, without overflow on the way.
    hypot, hypot_scalar by float: float_kernels!(|a, b| f32: math32::hypot::<FMA>(a, b), f64: a.hypot(b));
    /// The logarithm of the sum of the exponentials.
    logaddexp, logaddexp_scalar by float: float_kernels!(|a, b|
        f32: math32::log_add_exp::<FMA>(a, b), f64: math64::log_add_exp(a, b));
    /// The magnitude of the first with the sign of the second.
    copysign, copysign_scalar by float: float_kernels!(|a, b| f32: a.copysign(b), f64: a.copysign(b));
}

impl Tensor {
    /// Power. Of integers it wraps, and is cut towards zero where the exponent is negative.
    ///
    /// Operands are broadcast and promoted ([`promote`](crate::promote)).
    pub fn pow(&self, exponent: &Tensor) -> Result<Tensor> {
        pow("pow", [self.into(), exponent.into()])
    }

    /// Power with a number as the exponent. The usual exponents (2, 3, 1/2, -1/2, -1) cost no logarithm.
    ///
    /// An integer to a negative integer power is cut towards zero; to a float it is a float.
    pub fn pow_scalar(&self, exponent: impl Into<Scalar>) -> Result<Tensor> {
        let exponent = exponent.into();
        if !self.dtype().is_float() {
            return pow("pow_scalar", [self.into(), exponent.into()]);
        }
        match exponent.to_f64() {
            2.0 => self.square(),
            3.0 => float(
                "pow_scalar",
                [self.into()],
                &float_kernels!(|x| f32: x * x * x, f64: x * x * x),
            ),
            -1.0 => self.reciprocal(),
            // Not for minus infinity and minus zero, of which the root is another: as PyTorch.
            0.5 => self.sqrt(),
            -0.5 => self.rsqrt(),
            1.0 => Ok(self.clone()),
            _ => pow("pow_scalar", [self.into(), exponent.into()]),
        }
    }
}

fn pow(op: &'static str, args: [Arg; 2]) -> Result<Tensor> {
    let kernels = SameKernels {
        f32: kernel!(f32 => f32, |a, b| math32::pow::<FMA>(a, b)),
        f64: kernel!(f64 => f64, |a, b| a.powf(b)),
        i64: kernel!(i64 => i64, |a, b| a.power(b)),
        i32: kernel!(i32 => i32, |a, b| a.power(b)),
        u8: kernel!(u8 => u8, |a, b| a.power(b)),
        bool: None,
    };
    same(op, args, &kernels)
}

/// As `same`, for operations that have no result where an integer divisor is zero.
fn divided(op: &'static str, args: [Arg; 2], kernels: &SameKernels<2>) -> Result<Tensor> {
    let dtype = common_dtype(&args);
    let zero = || LocalError::DivisionByZero { op, dtype };
    match args[1] {
        _ if dtype.is_float() => {}
        Arg::Scalar(scalar) if scalar.to_f64() == 0.0 => return Err(zero()),
        Arg::Tensor(divisor) if !divisor.is_meta() => {
            let divisor = divisor.contiguous();
            let values = Values::of(&divisor)?;
            if with_values!(values, values => values.contains(&Default::default())) {
                return Err(zero());
            }
        }
        _ => {}
    }
    same(op, args, kernels)
}
