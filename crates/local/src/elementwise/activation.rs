//! Activation functions of neural networks.

use super::{
    kinds::{float, float_kernels, same, same_kernels},
    math32, math64,
    promote::Scalar,
};
use crate::{Result, Tensor};

impl Tensor {
    /// The value if it is positive, else 0; NaN stays.
    pub fn relu(&self) -> Result<Tensor> {
        let kernels =
            same_kernels!(|x| float: if x < 0.0 { 0.0 } else { x }, int: x.max(Default::default()));
        same("relu", [self.into()], &kernels)
    }

    /// The value if it is positive, else `slope` times the value.
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        let kernels = float_kernels!(|x, slope|
            f32: if x > 0.0 { x } else { x * slope }, f64: if x > 0.0 { x } else { x * slope });
        float("leaky_relu", [self.into(), Scalar::Float(slope).into()], &kernels)
    }

    /// The value if it is positive, else `alpha * (exp(x) - 1)`.
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        let kernels = float_kernels!(|x, alpha|
            f32: if x > 0.0 { x } else { alpha * math32::expm1::<FMA>(x) },
            f64: if x > 0.0 { x } else { alpha * x.exp_m1() });
        float("elu", [self.into(), Scalar::Float(alpha).into()], &kernels)
    }

    /// The logistic function, `1 / (1 + exp(-x))`.
    pub fn sigmoid(&self) -> Result<Tensor> {
        let kernels = float_kernels!(|x| f32: math32::sigmoid::<FMA>(x), f64: math64::sigmoid(x));
        float("sigmoid", [self.into()], &kernels)
    }

    /// `x * sigmoid(x)`.
    pub fn silu(&self) -> Result<Tensor> {
        let kernels = float_kernels!(|x|
            f32: math32::silu::<FMA>(x), f64: x / (1.0 + (-x).exp()));
        float("silu", [self.into()], &kernels)
    }

    /// `x` times the normal distribution function of `x`, by the error function.
    pub fn gelu(&self) -> Result<Tensor> {
        let kernels = float_kernels!(|x|
            f32: 0.5 * x * (1.0 + math32::erf_roughly::<FMA>(x * std::f32::consts::FRAC_1_SQRT_2)),
            f64: 0.5 * x * (1.0 + math64::erf(x * std::f64::consts::FRAC_1_SQRT_2)));
        float("gelu", [self.into()], &kernels)
    }

    /// As [`gelu`](Tensor::gelu), by the usual approximation with a hyperbolic tangent.
    pub fn gelu_tanh(&self) -> Result<Tensor> {
        // (1 + tanh(u)) / 2 is the logistic function of 2 u: one exponential and one division.
        let kernels = float_kernels!(|x|
            f32: x / (1.0 + math32::exp::<FMA>(-1.595_769_2 * x * (1.0 + 0.044_715 * x * x))),
            f64: x / (1.0 + (-1.595_769_121_605_730_7 * x * (1.0 + 0.044_715 * x * x)).exp()));
        float("gelu_tanh", [self.into()], &kernels)
    }

    /// `log(1 + exp(x))`, without overflow.
    pub fn softplus(&self) -> Result<Tensor> {
        let kernels = float_kernels!(|x| f32: math32::softplus::<FMA>(x), f64: math64::softplus(x));
        float("softplus", [self.into()], &kernels)
    }

    /// `x * tanh(softplus(x))`.
    pub fn mish(&self) -> Result<Tensor> {
        let kernels = float_kernels!(|x| f32: math32::mish::<FMA>(x), f64: math64::mish(x));
        float("mish", [self.into()], &kernels)
    }

    /// The value, at least `min` and at most `max`: [`clamp`](Tensor::clamp) with bounds.
    pub fn hardtanh(&self, min: f64, max: f64) -> Result<Tensor> {
        self.clamp(Some(Scalar::Float(min)), Some(Scalar::Float(max)))
    }

    /// `x * min(max(x + 3, 0), 6) / 6`.
    pub fn hardswish(&self) -> Result<Tensor> {
        let kernels = float_kernels!(|x|
            f32: x * (x + 3.0).clamp(0.0, 6.0) / 6.0, f64: x * (x + 3.0).clamp(0.0, 6.0) / 6.0);
        float("hardswish", [self.into()], &kernels)
    }
}
