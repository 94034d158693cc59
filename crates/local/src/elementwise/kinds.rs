//! How operations choose the type that they compute in and that of their result.
//!
//! An operation is a row of one of the macros here: its name, and the value of one element in each
//! type. The macro writes the vectorised kernels and the method; the functions below choose among
//! the kernels.

use super::{
    driver::{Kernel, apply},
    promote::{Arg, common_dtype},
};
use crate::{DType, LocalError, Result, Tensor};

/// Kernels of an operation whose result is a float.
pub(super) struct FloatKernels<'a, const N: usize> {
    pub(super) f32: Kernel<'a, f32, f32, N>,
    pub(super) f64: Kernel<'a, f64, f64, N>,
}

/// Computes in floating point: integers and bools count as `f32`, as in PyTorch.
pub(super) fn float<const N: usize>(
    op: &'static str,
    args: [Arg; N],
    kernels: &FloatKernels<N>,
) -> Result<Tensor> {
    let common = common_dtype(&args);
    let dtype = if common.is_float() { common } else { DType::F32 };
    match dtype {
        DType::F64 => apply(op, args, dtype, kernels.f64),
        _ => apply(op, args, dtype, kernels.f32),
    }
}

/// Kernels of an operation whose result has the dtype of its operands.
pub(super) struct SameKernels<'a, const N: usize> {
    pub(super) f32: Kernel<'a, f32, f32, N>,
    pub(super) f64: Kernel<'a, f64, f64, N>,
    pub(super) i64: Kernel<'a, i64, i64, N>,
    pub(super) i32: Kernel<'a, i32, i32, N>,
    pub(super) u8: Kernel<'a, u8, u8, N>,
    pub(super) bool: Option<Kernel<'a, bool, bool, N>>,
}

/// Computes in the dtype in which the operands meet.
pub(super) fn same<const N: usize>(
    op: &'static str,
    args: [Arg; N],
    kernels: &SameKernels<N>,
) -> Result<Tensor> {
    same_as(op, common_dtype(&args), args, kernels)
}

/// Computes in a given dtype.
pub(super) fn same_as<const N: usize>(
    op: &'static str,
    dtype: DType,
    args: [Arg; N],
    kernels: &SameKernels<N>,
) -> Result<Tensor> {
    match dtype {
        DType::F32 | DType::Bf16 | DType::F16 => apply(op, args, dtype, kernels.f32),
        DType::F64 => apply(op, args, dtype, kernels.f64),
        DType::I64 => apply(op, args, dtype, kernels.i64),
        DType::I32 => apply(op, args, dtype, kernels.i32),
        DType::U8 => apply(op, args, dtype, kernels.u8),
        DType::Bool => match kernels.bool {
            Some(kernel) => apply(op, args, dtype, kernel),
            None => Err(unsupported(op, dtype)),
        },
    }
}

/// Kernels of a question about values.
pub(super) struct TestKernels<'a, const N: usize> {
    pub(super) f32: Kernel<'a, f32, bool, N>,
    pub(super) f64: Kernel<'a, f64, bool, N>,
    pub(super) i64: Kernel<'a, i64, bool, N>,
    pub(super) i32: Kernel<'a, i32, bool, N>,
    pub(super) u8: Kernel<'a, u8, bool, N>,
    pub(super) bool: Kernel<'a, bool, bool, N>,
}

/// Asks in the dtype in which the operands meet; the answer is `bool`.
pub(super) fn test<const N: usize>(
    op: &'static str,
    args: [Arg; N],
    kernels: &TestKernels<N>,
) -> Result<Tensor> {
    let out = DType::Bool;
    match common_dtype(&args) {
        DType::F32 | DType::Bf16 | DType::F16 => apply(op, args, out, kernels.f32),
        DType::F64 => apply(op, args, out, kernels.f64),
        DType::I64 => apply(op, args, out, kernels.i64),
        DType::I32 => apply(op, args, out, kernels.i32),
        DType::U8 => apply(op, args, out, kernels.u8),
        DType::Bool => apply(op, args, out, kernels.bool),
    }
}

pub(super) fn unsupported(op: &'static str, dtype: DType) -> LocalError {
    LocalError::UnsupportedDType { op, dtype }
}

/// A vectorised kernel, as a `Kernel`: `kernel!(f32 => f32, |x, y| x + y)`. `FMA` is in scope.
macro_rules! kernel {
    ($from:ty => $to:ty, |$a:ident| $value:expr) => {{
        $crate::simd::vectorized! {
            fn kernel(a: &[$from], out: &mut [$to]) {
                for (out, &$a) in out.iter_mut().zip(a) {
                    *out = $value;
                }
            }
        }
        &|[a]: [&[$from]; 1], out: &mut [$to]| kernel(a, out)
    }};
    ($from:ty => $to:ty, |$a:ident, $b:ident| $value:expr) => {{
        $crate::simd::vectorized! {
            fn kernel(a: &[$from], b: &[$from], out: &mut [$to]) {
                for ((out, &$a), &$b) in out.iter_mut().zip(a).zip(b) {
                    *out = $value;
                }
            }
        }
        &|[a, b]: [&[$from]; 2], out: &mut [$to]| kernel(a, b, out)
    }};
    ($from:ty => $to:ty, |$a:ident, $b:ident, $c:ident| $value:expr) => {{
        $crate::simd::vectorized! {
            fn kernel(a: &[$from], b: &[$from], c: &[$from], out: &mut [$to]) {
                for (((out, &$a), &$b), &$c) in out.iter_mut().zip(a).zip(b).zip(c) {
                    *out = $value;
                }
            }
        }
        &|[a, b, c]: [&[$from]; 3], out: &mut [$to]| kernel(a, b, c, out)
    }};
    ($from:ty => $to:ty, |$a:ident, $b:ident, $c:ident, $d:ident| $value:expr) => {{
        $crate::simd::vectorized! {
            fn kernel(a: &[$from], b: &[$from], c: &[$from], d: &[$from], out: &mut [$to]) {
                for ((((out, &$a), &$b), &$c), &$d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    *out = $value;
                }
            }
        }
        &|[a, b, c, d]: [&[$from]; 4], out: &mut [$to]| kernel(a, b, c, d, out)
    }};
}
pub(super) use kernel;

/// The [`FloatKernels`] of two expressions.
macro_rules! float_kernels {
    (|$($x:ident),+| f32: $f32:expr, f64: $f64:expr) => {
        $crate::elementwise::kinds::FloatKernels {
            f32: $crate::elementwise::kinds::kernel!(f32 => f32, |$($x),+| $f32),
            f64: $crate::elementwise::kinds::kernel!(f64 => f64, |$($x),+| $f64),
        }
    };
}
pub(super) use float_kernels;

/// The [`SameKernels`] of an expression for floats and one for integers.
macro_rules! same_kernels {
    (|$($x:ident),+| float: $float:expr, int: $int:expr) => {
        $crate::elementwise::kinds::same_kernels!(@ |$($x),+| $float, $int, None)
    };
    (|$($x:ident),+| float: $float:expr, int: $int:expr, bool: $bool:expr) => {
        $crate::elementwise::kinds::same_kernels!(@ |$($x),+| $float, $int,
            Some($crate::elementwise::kinds::kernel!(bool => bool, |$($x),+| $bool)))
    };
    (@ |$($x:ident),+| $float:expr, $int:expr, $bool:expr) => {
        $crate::elementwise::kinds::SameKernels {
            f32: $crate::elementwise::kinds::kernel!(f32 => f32, |$($x),+| $float),
            f64: $crate::elementwise::kinds::kernel!(f64 => f64, |$($x),+| $float),
            i64: $crate::elementwise::kinds::kernel!(i64 => i64, |$($x),+| $int),
            i32: $crate::elementwise::kinds::kernel!(i32 => i32, |$($x),+| $int),
            u8: $crate::elementwise::kinds::kernel!(u8 => u8, |$($x),+| $int),
            bool: $bool,
        }
    };
}
pub(super) use same_kernels;

/// The [`TestKernels`] of an expression that every type understands.
macro_rules! test_kernels {
    (|$($x:ident),+| $test:expr) => {
        $crate::elementwise::kinds::TestKernels {
            f32: $crate::elementwise::kinds::kernel!(f32 => bool, |$($x),+| $test),
            f64: $crate::elementwise::kinds::kernel!(f64 => bool, |$($x),+| $test),
            i64: $crate::elementwise::kinds::kernel!(i64 => bool, |$($x),+| $test),
            i32: $crate::elementwise::kinds::kernel!(i32 => bool, |$($x),+| $test),
            u8: $crate::elementwise::kinds::kernel!(u8 => bool, |$($x),+| $test),
            bool: $crate::elementwise::kinds::kernel!(bool => bool, |$($x),+| $test),
        }
    };
}
pub(super) use test_kernels;
