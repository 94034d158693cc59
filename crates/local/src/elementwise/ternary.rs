//! Operations on three and more operands.

use super::{
    kinds::{FloatKernels, SameKernels, float, float_kernels, same, same_kernels},
    promote::{Arg, Scalar, common_dtype},
};
use crate::{DType, LocalError, Result, Tensor};

impl Tensor {
    /// `a` where the tensor, of `bool`, is true, else `b`. All three are broadcast.
    pub fn where_self(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        select("where", self, a.into(), b.into())
    }

    /// The values, but `value` where the mask, of `bool`, is true. The dtype stays.
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        let filled = select("masked_fill", mask, value.into().into(), self.into())?;
        filled.to_dtype(self.dtype())
    }

    /// The value, at least `min` and at most `max` (`max` if they cross); NaN stays.
    pub fn clamp(&self, min: Option<Scalar>, max: Option<Scalar>) -> Result<Tensor> {
        match (min, max) {
            (Some(min), Some(max)) => clamp("clamp", [self.into(), min.into(), max.into()]),
            (Some(min), None) => self.maximum_scalar(min),
            (None, Some(max)) => self.minimum_scalar(max),
            (None, None) => Ok(self.clone()),
        }
    }

    /// As [`clamp`](Tensor::clamp), with bounds that are tensors.
    pub fn clamp_tensor(&self, min: &Tensor, max: &Tensor) -> Result<Tensor> {
        clamp("clamp_tensor", [self.into(), min.into(), max.into()])
    }

    /// `self + weight * (end - self)`: linear interpolation.
    pub fn lerp(&self, end: &Tensor, weight: impl Into<Scalar>) -> Result<Tensor> {
        lerp([self.into(), end.into(), weight.into().into()])
    }

    /// As [`lerp`](Tensor::lerp), with a weight for every element.
    pub fn lerp_tensor(&self, end: &Tensor, weight: &Tensor) -> Result<Tensor> {
        lerp([self.into(), end.into(), weight.into()])
    }

    /// `self + value * a * b`.
    pub fn addcmul(&self, a: &Tensor, b: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        let kernels = same_kernels!(|x, a, b, value|
            float: x + value * a * b,
            int: x.wrapping_add(value.wrapping_mul(a).wrapping_mul(b)));
        same("addcmul", [self.into(), a.into(), b.into(), value.into().into()], &kernels)
    }

    /// `self + value * a / b`, a float.
    pub fn addcdiv(&self, a: &Tensor, b: &Tensor, value: impl Into<Scalar>) -> Result<Tensor> {
        let kernels = float_kernels!(|x, a, b, value|
            f32: x + value * (a / b), f64: x + value * (a / b));
        float("addcdiv", [self.into(), a.into(), b.into(), value.into().into()], &kernels)
    }

    /// NaN replaced by `nan` and the infinities by `positive` and `negative`; where those are `None`, by
    /// the largest and the smallest finite number of the dtype.
    pub fn nan_to_num(
        &self,
        nan: f64,
        positive: Option<f64>,
        negative: Option<f64>,
    ) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return Ok(self.clone());
        }
        let largest = match self.dtype() {
            DType::F64 => f64::MAX,
            DType::F16 => f64::from(crate::f16::MAX),
            DType::Bf16 => f64::from(crate::bf16::MAX),
            _ => f64::from(f32::MAX),
        };
        let number = |value: f64| Arg::from(Scalar::Float(value));
        let (positive, negative) = (positive.unwrap_or(largest), negative.unwrap_or(-largest));
        let args = [self.into(), number(nan), number(positive), number(negative)];
        float(
            "nan_to_num",
            args,
            &FloatKernels {
                f32: super::kinds::kernel!(f32 => f32, |x, nan, positive, negative|
                if x.is_nan() { nan } else if x == f32::INFINITY { positive }
                else if x == f32::NEG_INFINITY { negative } else { x }),
                f64: super::kinds::kernel!(f64 => f64, |x, nan, positive, negative|
                if x.is_nan() { nan } else if x == f64::INFINITY { positive }
                else if x == f64::NEG_INFINITY { negative } else { x }),
            },
        )
    }
}

fn lerp(args: [Arg; 3]) -> Result<Tensor> {
    let kernels = float_kernels!(|x, end, weight|
        f32: if weight.abs() < 0.5 { x + weight * (end - x) } else { end - (end - x) * (1.0 - weight) },
        f64: if weight.abs() < 0.5 { x + weight * (end - x) } else { end - (end - x) * (1.0 - weight) });
    float("lerp", args, &kernels)
}

fn clamp(op: &'static str, args: [Arg; 3]) -> Result<Tensor> {
    let kernels = same_kernels!(|x, min, max|
        float: {
            // Comparisons that a NaN among the three passes through, as in PyTorch.
            let raised = if x.is_nan() || x > min { x } else { min };
            if raised.is_nan() || raised < max { raised } else { max }
        },
        int: x.max(min).min(max));
    same(op, args, &kernels)
}

/// The mask is converted to the type of the values on the way: 1 or 0, which every kernel can tell apart.
fn select(op: &'static str, mask: &Tensor, a: Arg, b: Arg) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        return Err(LocalError::WrongDType { op, got: mask.dtype(), want: DType::Bool });
    }
    let kernels: SameKernels<3> = same_kernels!(|mask, a, b|
        float: if mask != 0.0 { a } else { b },
        int: if mask != 0 { a } else { b },
        bool: if mask { a } else { b });
    // The mask has no say in the dtype: it is `bool`, which yields to every other.
    super::kinds::same_as(op, common_dtype(&[a, b]), [mask.into(), a, b], &kernels)
}
