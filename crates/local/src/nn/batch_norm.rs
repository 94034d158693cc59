//! Normalisation of channels over all samples.

use super::{
    group_norm::{ChannelNormGrads, affine, check_channels},
    plane_norm::{Moments, Planes, Sets},
    real::{Real, by_real, check_dtype, check_float, check_shape, rounded, widened},
};
use crate::{DType, LocalError, Result, Tensor};

/// Mean and variance of every channel of a batch.
#[derive(Clone, Debug)]
pub struct BatchStats {
    /// The means, `[C]`, in what the kernel computes in (`f32`, or `f64` for `f64`).
    pub mean: Tensor,
    /// The variances, `[C]`, as the mean of the squares.
    pub var: Tensor,
    /// Values of a channel that they are taken over.
    pub count: usize,
}

impl BatchStats {
    /// Moves running statistics, of any floating-point dtype, towards these: `(1 - momentum) running + momentum these`.
    /// The variance that goes in is the unbiased one, which divides by one less, as in PyTorch.
    pub fn update_running(&self, mean: &mut Tensor, var: &mut Tensor, momentum: f64) -> Result<()> {
        let op = "update_running";
        for running in [&*mean, &*var] {
            check_float(op, running)?;
            check_shape(op, running, self.mean.shape(), "there is one value per channel")?;
        }
        if [&*mean, &*var, &self.mean, &self.var].iter().any(|tensor| tensor.is_meta()) {
            return Ok(());
        }
        let unbiased = self.count as f64 / (self.count as f64 - 1.0);
        // A value per channel: too few to be worth a kernel.
        let moved = |running: &Tensor, new: &Tensor, factor: f64| {
            let old = running.to_dtype(DType::F64)?.to_vec::<f64>()?;
            let new = new.to_dtype(DType::F64)?.to_vec::<f64>()?;
            let moved = old.iter().zip(new);
            let moved =
                moved.map(|(old, new)| (1.0 - momentum) * old + momentum * factor * new).collect();
            Tensor::from_vec(moved, running.shape())?.to_dtype(running.dtype())
        };
        (*mean, *var) = (moved(mean, &self.mean, 1.0)?, moved(var, &self.var, unbiased)?);
        Ok(())
    }
}

impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` of `[N, C, ...]`, where mean and variance are those of a channel in
    /// this batch, and weight and bias are `[C]`. Gives these too, for [`BatchStats::update_running`] and
    /// [`Tensor::batch_norm_backward`]. As `torch.nn.functional.batch_norm` in training.
    pub fn batch_norm(
        &self,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<(Tensor, BatchStats)> {
        let op = "batch_norm";
        let planes = planes(op, self, [weight, bias])?;
        let count = planes.set_len();
        if count == 1 {
            return Err(LocalError::ShapeMismatch {
                op,
                from: self.shape().to_vec(),
                to: vec![2, planes.n_channels],
                why: "every channel needs more than one value",
            });
        }
        let (shape, kept) = ([planes.n_channels], kept_dtype(self));
        if [Some(self), weight, bias].into_iter().flatten().any(Tensor::is_meta) {
            let mean = Tensor::meta(&shape, kept)?;
            let stats = BatchStats { var: mean.clone(), mean, count };
            return Ok((Tensor::meta(self.shape(), self.dtype())?, stats));
        }
        let wide = widened(op, &channels_first(self)?)?;
        let weight = weight.map(|weight| widened(op, weight)).transpose()?;
        let bias = bias.map(|bias| widened(op, bias)).transpose()?;
        by_real!(wide, R => {
            let x = wide.as_slice::<R>()?;
            let moments = planes.moments(x);
            let affine = affine::<R>(weight.as_ref(), bias.as_ref())?;
            let out = planes.normalize(op, wide.shape(), x, &moments, affine, eps)?;
            let of = |value: fn(&Moments<R>) -> R| {
                Tensor::from_vec(moments.iter().map(value).collect(), &shape)
            };
            let stats = BatchStats { mean: of(|of| of.mean)?, var: of(|of| of.var)?, count };
            Ok((samples_first(&rounded(op, out, self.dtype())?, self)?, stats))
        })
    }

    /// As [`Tensor::batch_norm`], with a mean and a variance that are given (`[C]`, of any floating-point dtype). As
    /// `torch.nn.functional.batch_norm` in evaluation.
    pub fn batch_norm_eval(
        &self,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        let op = "batch_norm_eval";
        let planes = planes(op, self, [weight, bias])?;
        check_stats(op, &planes, mean, var)?;
        let operands = [Some(self), Some(mean), Some(var), weight, bias];
        if operands.into_iter().flatten().any(Tensor::is_meta) {
            return Tensor::meta(self.shape(), self.dtype());
        }
        let wide = widened(op, &channels_first(self)?)?;
        let weight = weight.map(|weight| widened(op, weight)).transpose()?;
        let bias = bias.map(|bias| widened(op, bias)).transpose()?;
        let out = by_real!(wide, R => {
            let affine = affine::<R>(weight.as_ref(), bias.as_ref())?;
            let moments = given::<R>(mean, var)?;
            planes.normalize(op, wide.shape(), wide.as_slice::<R>()?, &moments, affine, eps)?
        });
        samples_first(&rounded(op, out, self.dtype())?, self)
    }

    /// Gradients of [`Tensor::batch_norm`] of `self`, given that of its first result, and the second.
    pub fn batch_norm_backward(
        &self,
        grad: &Tensor,
        stats: &BatchStats,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<ChannelNormGrads> {
        let op = "batch_norm_backward";
        backward(op, self, grad, [&stats.mean, &stats.var], weight, (eps, false))
    }

    /// Gradients of [`Tensor::batch_norm_eval`] of `self`, given that of its result.
    pub fn batch_norm_eval_backward(
        &self,
        grad: &Tensor,
        mean: &Tensor,
        var: &Tensor,
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<ChannelNormGrads> {
        backward("batch_norm_eval_backward", self, grad, [mean, var], weight, (eps, true))
    }
}

fn backward(
    op: &'static str,
    x: &Tensor,
    grad: &Tensor,
    [mean, var]: [&Tensor; 2],
    weight: Option<&Tensor>,
    settings: (f64, bool),
) -> Result<ChannelNormGrads> {
    let planes = planes(op, x, [weight, None])?;
    check_stats(op, &planes, mean, var)?;
    check_dtype(op, grad, x.dtype())?;
    check_shape(op, grad, x.shape(), "a gradient has the shape of the result")?;
    let operands = [Some(x), Some(grad), Some(mean), Some(var), weight];
    if operands.into_iter().flatten().any(Tensor::is_meta) {
        return ChannelNormGrads::meta(x);
    }
    let wide = widened(op, &channels_first(x)?)?;
    let wide_grad = widened(op, &channels_first(grad)?)?;
    let weight = weight.map(|weight| widened(op, weight)).transpose()?;
    let [input, weight, bias] = by_real!(wide, R => {
        let operands = (wide.as_slice::<R>()?, wide_grad.as_slice::<R>()?);
        let (moments, affine) = (given::<R>(mean, var)?, affine::<R>(weight.as_ref(), None)?);
        planes.backward(op, wide.shape(), operands, &moments, affine, settings)?
    });
    ChannelNormGrads::of(op, [samples_first(&input, x)?, weight, bias], x)
}

/// The planes of `[N, C, ...]`. Without further dims a plane would be one element, and the channels far apart: then the
/// tensor is turned, and all samples of a channel are one plane.
fn planes(op: &'static str, x: &Tensor, affine: [Option<&Tensor>; 2]) -> Result<Planes> {
    let [n_samples, n_channels, len] = check_channels(op, x, affine)?;
    let (n_samples, len) = if x.n_dims() == 2 { (1, n_samples) } else { (n_samples, len) };
    Ok(Planes { n_samples, n_channels, len, sets: Sets::Channel })
}

/// `[N, C]` as `[C, N]`, others as they are.
fn channels_first(x: &Tensor) -> Result<Tensor> {
    if x.n_dims() == 2 { x.transpose(0, 1) } else { Ok(x.clone()) }
}

/// The way back from [`channels_first`].
fn samples_first(out: &Tensor, x: &Tensor) -> Result<Tensor> {
    if x.n_dims() == 2 { Ok(out.transpose(0, 1)?.contiguous()) } else { Ok(out.clone()) }
}

fn check_stats(op: &'static str, planes: &Planes, mean: &Tensor, var: &Tensor) -> Result<()> {
    for tensor in [mean, var] {
        check_float(op, tensor)?;
        check_shape(op, tensor, &[planes.n_channels], "there is one value per channel")?;
    }
    Ok(())
}

fn given<R: Real>(mean: &Tensor, var: &Tensor) -> Result<Vec<Moments<R>>> {
    let [mean, var] = [mean, var].map(|tensor| tensor.to_dtype(R::DTYPE)?.to_vec::<R>());
    Ok(mean?.into_iter().zip(var?).map(|(mean, var)| Moments { mean, var }).collect())
}

/// The dtype of the statistics: what the kernel computes in.
fn kept_dtype(x: &Tensor) -> DType {
    if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}
