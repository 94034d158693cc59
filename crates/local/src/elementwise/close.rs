//! Equality of tensors, exact and within a tolerance.

use super::{
    driver::apply,
    kinds::kernel,
    promote::{Arg, Scalar, common_dtype},
};
use crate::{DType, Result, Tensor};

impl Tensor {
    /// Whether values are equal, or finite and `abs(a - b) <= absolute + relative * abs(b)`, as `bool`;
    /// with `equal_nan`, also whether both are NaN.
    ///
    /// Operands are broadcast and promoted ([`promote`](crate::promote)); integers are compared as `f64`.
    /// PyTorch's tolerances are 1e-5 and 1e-8 unless given.
    pub fn isclose(
        &self,
        other: &Tensor,
        relative: f64,
        absolute: f64,
        equal_nan: bool,
    ) -> Result<Tensor> {
        isclose("isclose", self, other, relative, absolute, equal_nan)
    }

    /// Whether [`isclose`](Tensor::isclose) holds for all values. A meta tensor has none: an error.
    pub fn allclose(
        &self,
        other: &Tensor,
        relative: f64,
        absolute: f64,
        equal_nan: bool,
    ) -> Result<bool> {
        isclose("allclose", self, other, relative, absolute, equal_nan)?.all(&[], false)?.item()
    }

    /// Whether shapes and all values are equal; NaN equals nothing. A meta tensor has no values: an error.
    pub fn equal(&self, other: &Tensor) -> Result<bool> {
        if self.shape() != other.shape() {
            return Ok(false);
        }
        self.eq(other)?.all(&[], false)?.item()
    }
}

fn isclose(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    relative: f64,
    absolute: f64,
    equal_nan: bool,
) -> Result<Tensor> {
    for (name, tolerance) in [("relative", relative), ("absolute", absolute)] {
        if tolerance.is_nan() || tolerance < 0.0 {
            let (got, want) = (tolerance.to_string(), "a number that is not negative");
            return Err(crate::LocalError::BadNumber { op, name, got, want });
        }
    }
    let common = common_dtype(&[a.into(), b.into()]);
    let number = |value| Arg::from(Scalar::Float(value));
    let args = [a.into(), b.into(), number(relative), number(absolute)];
    let close = match common {
        DType::F32 | DType::Bf16 | DType::F16 => apply(
            op,
            args,
            DType::Bool,
            kernel!(f32 => bool, |a, b, relative, absolute| {
                let distance = (a - b).abs();
                (a == b) | ((distance < f32::INFINITY) & (distance <= absolute + (relative * b).abs()))
            }),
        ),
        _ => apply(
            op,
            args,
            DType::Bool,
            kernel!(f64 => bool, |a, b, relative, absolute| {
                let distance = (a - b).abs();
                (a == b) | ((distance < f64::INFINITY) & (distance <= absolute + (relative * b).abs()))
            }),
        ),
    }?;
    // A composition: who asks for it compares results, which need not be fast.
    if equal_nan { close.logical_or(&a.isnan()?.logical_and(&b.isnan()?)?) } else { Ok(close) }
}
