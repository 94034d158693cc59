//! Normalisation of groups of channels, sample by sample.

use super::{
    plane_norm::{Affine, Planes, Sets},
    real::{Real, by_real, check_dtype, check_float, check_shape, rounded, widened},
};
use crate::{LocalError, Result, Tensor};

/// Gradients of a normalisation of channels.
#[derive(Clone, Debug)]
pub struct ChannelNormGrads {
    /// Of the input, in its shape.
    pub input: Tensor,
    /// Of the weight, one per channel.
    pub weight: Tensor,
    /// Of the bias, one per channel.
    pub bias: Tensor,
}

impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` of `[N, C, ...]`, where mean and variance are those of each of
    /// `groups` groups of channels of a sample, and weight and bias are `[C]`. As `torch.nn.functional.group_norm`.
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        forward("group_norm", self, Some(groups), [weight, bias], eps)
    }

    /// Gradients of [`Tensor::group_norm`] of `self`, given that of its result. Mean and variance are computed again.
    pub fn group_norm_backward(
        &self,
        grad: &Tensor,
        groups: usize,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<ChannelNormGrads> {
        backward("group_norm_backward", self, grad, Some(groups), weight, eps)
    }

    /// As [`Tensor::group_norm`], every channel a group. As `torch.nn.functional.instance_norm` with the statistics of
    /// the input.
    pub fn instance_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        forward("instance_norm", self, None, [weight, bias], eps)
    }

    /// Gradients of [`Tensor::instance_norm`] of `self`, given that of its result.
    pub fn instance_norm_backward(
        &self,
        grad: &Tensor,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<ChannelNormGrads> {
        backward("instance_norm_backward", self, grad, None, weight, eps)
    }
}

/// Refuses what is not `[N, C, ...]`, and weights and biases that are not `[C]`. Gives samples, channels, and elements
/// of a channel.
pub(super) fn check_channels(
    op: &'static str,
    x: &Tensor,
    affine: [Option<&Tensor>; 2],
) -> Result<[usize; 3]> {
    check_float(op, x)?;
    let [n_samples, n_channels, plane @ ..] = x.shape() else {
        return Err(LocalError::ShapeMismatch {
            op,
            from: x.shape().to_vec(),
            to: vec![0; 2],
            why: "it has dims for samples and channels",
        });
    };
    for tensor in affine.into_iter().flatten() {
        check_dtype(op, tensor, x.dtype())?;
        check_shape(op, tensor, &[*n_channels], "weight and bias have one value per channel")?;
    }
    Ok([*n_samples, *n_channels, plane.iter().product()])
}

fn planes(
    op: &'static str,
    x: &Tensor,
    groups: Option<usize>,
    affine: [Option<&Tensor>; 2],
) -> Result<Planes> {
    let [n_samples, n_channels, len] = check_channels(op, x, affine)?;
    let size = match groups {
        Some(groups) if groups > 0 && n_channels % groups == 0 => n_channels / groups,
        Some(groups) => {
            let (got, want) = (groups.to_string(), "a divisor of the number of channels");
            return Err(LocalError::BadNumber { op, name: "groups", got, want });
        }
        // One element is its own mean: what is left of it is nothing.
        None if len == 1 => {
            return Err(LocalError::ShapeMismatch {
                op,
                from: x.shape().to_vec(),
                to: vec![n_samples, n_channels, 2],
                why: "every channel needs more than one element",
            });
        }
        None => 1,
    };
    Ok(Planes { n_samples, n_channels, len, sets: Sets::Group(size) })
}

fn forward(
    op: &'static str,
    x: &Tensor,
    groups: Option<usize>,
    [weight, bias]: [Option<&Tensor>; 2],
    eps: f64,
) -> Result<Tensor> {
    let planes = planes(op, x, groups, [weight, bias])?;
    if [Some(x), weight, bias].into_iter().flatten().any(Tensor::is_meta) {
        return Tensor::meta(x.shape(), x.dtype());
    }
    let wide = widened(op, x)?;
    let weight = weight.map(|weight| widened(op, weight)).transpose()?;
    let bias = bias.map(|bias| widened(op, bias)).transpose()?;
    let out = by_real!(wide, R => {
        let values = wide.as_slice::<R>()?;
        let affine = affine::<R>(weight.as_ref(), bias.as_ref())?;
        planes.normalize(op, x.shape(), values, &planes.moments(values), affine, eps)?
    });
    rounded(op, out, x.dtype())
}

fn backward(
    op: &'static str,
    x: &Tensor,
    grad: &Tensor,
    groups: Option<usize>,
    weight: Option<&Tensor>,
    eps: f64,
) -> Result<ChannelNormGrads> {
    let planes = planes(op, x, groups, [weight, None])?;
    check_dtype(op, grad, x.dtype())?;
    check_shape(op, grad, x.shape(), "a gradient has the shape of the result")?;
    if [Some(x), Some(grad), weight].into_iter().flatten().any(Tensor::is_meta) {
        return ChannelNormGrads::meta(x);
    }
    let (wide, wide_grad) = (widened(op, x)?, widened(op, grad)?);
    let weight = weight.map(|weight| widened(op, weight)).transpose()?;
    let grads = by_real!(wide, R => {
        let (values, grads) = (wide.as_slice::<R>()?, wide_grad.as_slice::<R>()?);
        let affine = affine::<R>(weight.as_ref(), None)?;
        let moments = planes.moments(values);
        planes.backward(op, x.shape(), (values, grads), &moments, affine, (eps, false))?
    });
    ChannelNormGrads::of(op, grads, x)
}

impl ChannelNormGrads {
    pub(super) fn of(op: &'static str, grads: [Tensor; 3], x: &Tensor) -> Result<Self> {
        let [input, weight, bias] = grads.map(|grad| rounded(op, grad, x.dtype()));
        Ok(ChannelNormGrads { input: input?, weight: weight?, bias: bias? })
    }

    pub(super) fn meta(x: &Tensor) -> Result<Self> {
        let affine = Tensor::meta(&[x.shape()[1]], x.dtype())?;
        let input = Tensor::meta(x.shape(), x.dtype())?;
        Ok(ChannelNormGrads { input, weight: affine.clone(), bias: affine })
    }
}

/// Weight and bias that [`widened`] gave.
pub(super) fn affine<'a, R: Real>(
    weight: Option<&'a Tensor>,
    bias: Option<&'a Tensor>,
) -> Result<Affine<'a, R>> {
    Ok(Affine {
        weight: weight.map(Tensor::as_slice).transpose()?,
        bias: bias.map(Tensor::as_slice).transpose()?,
    })
}
