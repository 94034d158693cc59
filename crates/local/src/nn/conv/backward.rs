//! Gradients of convolutions.

use super::{
    Conv, ConvTranspose,
    plan::{Plan, Transposed},
};
use crate::{
    LocalError, Result, Tensor,
    nn::real::{by_real, check_dtype, check_shape, rounded, widened},
};

/// Which gradients of a convolution to compute. Each is about as much work as the convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedGrads {
    /// That of the input; the first layer of a network does without.
    pub input: bool,
    /// That of the weights.
    pub weight: bool,
    /// That of the bias.
    pub bias: bool,
}

impl WantedGrads {
    /// All of them.
    pub const ALL: WantedGrads = WantedGrads { input: true, weight: true, bias: true };
}

/// Gradients of a convolution: those that were asked for, each in the shape of its operand.
#[derive(Clone, Debug)]
pub struct ConvGrads {
    /// Of the input.
    pub input: Option<Tensor>,
    /// Of the weights.
    pub weight: Option<Tensor>,
    /// Of the bias.
    pub bias: Option<Tensor>,
}

impl Tensor {
    /// Gradients of [`Tensor::conv1d`], [`Tensor::conv2d`] or [`Tensor::conv3d`] (the weights say which) of `self`, given
    /// that of its result.
    pub fn conv_backward(
        &self,
        weight: &Tensor,
        grad: &Tensor,
        settings: &Conv,
        wanted: WantedGrads,
    ) -> Result<ConvGrads> {
        let op = "conv_backward";
        let n_spatial = n_spatial(op, weight)?;
        let plan = Plan::new(op, n_spatial, self, weight, None, settings)?;
        check_dtype(op, grad, self.dtype())?;
        check_shape(op, grad, &plan.output_shape(), "a gradient has the shape of the result")?;
        if [self, weight, grad].iter().any(|tensor| tensor.is_meta()) {
            return meta(self, weight, weight.shape()[0], wanted);
        }
        let [x, wide_weight, wide_grad] =
            [widened(op, self)?, widened(op, weight)?, widened(op, grad)?];
        by_real!(x, R => {
            let input = || plan.spread::<R>(op, &wide_grad, &wide_weight, None);
            let weights = || plan.correlate::<R>(op, &x, &wide_grad, weight.shape());
            grads(op, [&input, &weights], grad, n_spatial, wanted)
        })
    }

    /// Gradients of [`Tensor::conv_transpose1d`], [`Tensor::conv_transpose2d`] or [`Tensor::conv_transpose3d`] (the
    /// weights say which) of `self`, given that of its result.
    pub fn conv_transpose_backward(
        &self,
        weight: &Tensor,
        grad: &Tensor,
        settings: &ConvTranspose,
        wanted: WantedGrads,
    ) -> Result<ConvGrads> {
        let op = "conv_transpose_backward";
        let n_spatial = n_spatial(op, weight)?;
        let Transposed(plan) = Transposed::new(op, n_spatial, self, weight, None, settings)?;
        check_dtype(op, grad, self.dtype())?;
        check_shape(op, grad, &plan.input_shape(), "a gradient has the shape of the result")?;
        if [self, weight, grad].iter().any(|tensor| tensor.is_meta()) {
            return meta(self, weight, weight.shape()[1] * settings.conv.groups, wanted);
        }
        let [x, wide_weight, wide_grad] =
            [widened(op, self)?, widened(op, weight)?, widened(op, grad)?];
        by_real!(x, R => {
            // The plan is that of the plain convolution, whose input and output have changed places.
            let input = || plan.gather::<R>(op, &wide_grad, &wide_weight, None);
            let weights = || plan.correlate::<R>(op, &wide_grad, &x, weight.shape());
            grads(op, [&input, &weights], grad, n_spatial, wanted)
        })
    }
}

/// The spatial dims that weights have.
fn n_spatial(op: &'static str, weight: &Tensor) -> Result<usize> {
    match weight.n_dims() {
        n_dims @ 3..=5 => Ok(n_dims - 2),
        _ => Err(LocalError::ShapeMismatch {
            op,
            from: weight.shape().to_vec(),
            to: vec![0; 5],
            why: "weights have two dims for channels and one to three of the kernel",
        }),
    }
}

fn grads(
    op: &'static str,
    [input, weight]: [&dyn Fn() -> Result<Tensor>; 2],
    grad: &Tensor,
    n_spatial: usize,
    wanted: WantedGrads,
) -> Result<ConvGrads> {
    let dtype = grad.dtype();
    let rounded = |tensor: Tensor| rounded(op, tensor, dtype);
    let bias = || {
        let n_dims = grad.n_dims() as isize;
        let channels = n_dims - 1 - n_spatial as isize;
        let others: Vec<isize> = (0..n_dims).filter(|dim| *dim != channels).collect();
        grad.sum(&others, false)
    };
    Ok(ConvGrads {
        input: wanted.input.then(|| input().and_then(rounded)).transpose()?,
        weight: wanted.weight.then(|| weight().and_then(rounded)).transpose()?,
        bias: wanted.bias.then(bias).transpose()?,
    })
}

fn meta(x: &Tensor, weight: &Tensor, n_bias: usize, wanted: WantedGrads) -> Result<ConvGrads> {
    let like = |tensor: &Tensor| Tensor::meta(tensor.shape(), tensor.dtype());
    Ok(ConvGrads {
        input: wanted.input.then(|| like(x)).transpose()?,
        weight: wanted.weight.then(|| like(weight)).transpose()?,
        bias: wanted.bias.then(|| Tensor::meta(&[n_bias], x.dtype())).transpose()?,
    })
}
