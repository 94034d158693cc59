//! Comparisons, logic and bits.

// One expression serves all types, `bool` among them.
#![allow(clippy::bool_comparison)]

use super::{
    driver::apply,
    kinds::{kernel, test, test_kernels, unsupported},
    promote::{Arg, Scalar, common_dtype},
};
use crate::{DType, Result, Tensor};

/// Rows of comparisons of two tensors and of a tensor and a scalar.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident, $scalar_name:ident: |$a:ident, $b:ident| $test:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// Operands are broadcast and promoted ([`promote`](crate::promote)); the result is `bool`.
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
                test(op, args, &test_kernels!(|$a, $b| $test))
            }
        )*
    };
}

comparisons! {
    /// Whether the values are equal; NaN equals nothing.
    eq, eq_scalar: |a, b| a == b;
    /// Whether the values differ; NaN differs from everything.
    ne, ne_scalar: |a, b| a != b;
    /// Whether the first is less.
    lt, lt_scalar: |a, b| a < b;
    /// Whether the first is less or equal.
    le, le_scalar: |a, b| a <= b;
    /// Whether the first is greater.
    gt, gt_scalar: |a, b| a > b;
    /// Whether the first is greater or equal.
    ge, ge_scalar: |a, b| a >= b;
}

impl Tensor {
    /// Whether both are not zero.
    pub fn logical_and(&self, other: &Tensor) -> Result<Tensor> {
        logical("logical_and", self, other, kernel!(bool => bool, |a, b| a & b))
    }

    /// Whether one is not zero.
    pub fn logical_or(&self, other: &Tensor) -> Result<Tensor> {
        logical("logical_or", self, other, kernel!(bool => bool, |a, b| a | b))
    }

    /// Whether exactly one is not zero.
    pub fn logical_xor(&self, other: &Tensor) -> Result<Tensor> {
        logical("logical_xor", self, other, kernel!(bool => bool, |a, b| a ^ b))
    }
}

/// Every dtype is converted to `bool`, so no promotion is needed.
fn logical(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    kernel: super::driver::Kernel<bool, bool, 2>,
) -> Result<Tensor> {
    apply(op, [a.into(), b.into()], DType::Bool, kernel)
}

/// Rows of operations on the bits of integers and bools.
macro_rules! bitwise {
    ($($(#[$doc:meta])* $name:ident($self:ident $(, $other:ident)?): |$($x:ident),+| $value:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                pub fn $name(&$self $(, $other: &Tensor)?) -> Result<Tensor> {
                    let (op, args) = (stringify!($name), [Arg::from($self) $(, Arg::from($other))?]);
                    let dtype = common_dtype(&args);
                    match dtype {
                        DType::I64 => apply(op, args, dtype, kernel!(i64 => i64, |$($x),+| $value)),
                        DType::I32 => apply(op, args, dtype, kernel!(i32 => i32, |$($x),+| $value)),
                        DType::U8 => apply(op, args, dtype, kernel!(u8 => u8, |$($x),+| $value)),
                        DType::Bool => apply(op, args, dtype, kernel!(bool => bool, |$($x),+| $value)),
                        _ => Err(unsupported(op, dtype)),
                    }
                }
            )*
        }
    };
}

bitwise! {
    /// The bits that both integers have.
    bitwise_and(self, other): |a, b| a & b;
    /// The bits that one of two integers has.
    bitwise_or(self, other): |a, b| a | b;
    /// The bits that exactly one of two integers has.
    bitwise_xor(self, other): |a, b| a ^ b;
    /// The bits that an integer has not.
    bitwise_not(self): |x| !x;
}
