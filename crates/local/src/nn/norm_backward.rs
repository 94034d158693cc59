//! Gradients of the normalisations.

use super::{
    norm::{Kind, check, moments},
    real::{Real, by_real, check_dtype, check_shape, rounded, row_sum_2, rows_per_piece, widened},
};
use crate::{Result, Tensor, disjoint::Disjoint, simd::vectorized, threads};

/// Parts that the gradient of the weight is summed in. A constant, and not the number of threads, so that the
/// sum does not depend on that number; it also bounds the memory for them.
const MOST_PARTS: usize = 32;

/// Gradients of a normalisation.
#[derive(Clone, Debug)]
pub struct NormGrads {
    /// Of the input, in its shape.
    pub input: Tensor,
    /// Of the weight, in the normalized shape.
    pub weight: Tensor,
    /// Of the bias, in the normalized shape; `None` for [`Tensor::rms_norm`], which has no bias.
    pub bias: Option<Tensor>,
}

impl Tensor {
    /// Gradients of [`Tensor::layer_norm`] of `self`, given that of its result. Mean and deviation are
    /// computed again, which is cheaper than to keep them.
    pub fn layer_norm_backward(
        &self,
        grad: &Tensor,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<NormGrads> {
        backward("layer_norm_backward", Kind::Layer, self, grad, normalized_shape, weight, eps)
    }

    /// Gradients of [`Tensor::rms_norm`] of `self`, given that of its result.
    pub fn rms_norm_backward(
        &self,
        grad: &Tensor,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<NormGrads> {
        backward("rms_norm_backward", Kind::Rms, self, grad, normalized_shape, weight, eps)
    }
}

fn backward(
    op: &'static str,
    kind: Kind,
    x: &Tensor,
    grad: &Tensor,
    normalized_shape: &[usize],
    weight: Option<&Tensor>,
    eps: f64,
) -> Result<NormGrads> {
    let len = check(op, x, normalized_shape, [weight, None])?;
    check_dtype(op, grad, x.dtype())?;
    check_shape(op, grad, x.shape(), "a gradient has the shape of the result")?;
    if x.is_meta() || grad.is_meta() || weight.is_some_and(Tensor::is_meta) {
        let affine = Tensor::meta(normalized_shape, x.dtype())?;
        let bias = (kind == Kind::Layer).then(|| affine.clone());
        return Ok(NormGrads { input: Tensor::meta(x.shape(), x.dtype())?, weight: affine, bias });
    }
    let (wide, wide_grad) = (widened(op, x)?, widened(op, grad)?);
    let weight = match weight {
        Some(weight) => widened(op, weight)?,
        None => by_real!(wide, R => Tensor::full(normalized_shape, R::ONE)?),
    };
    let [input, weight, bias] = by_real!(wide, R => {
        backward_of::<R>(op, kind, &wide, &wide_grad, &weight, len, eps)?
    });
    Ok(NormGrads {
        input: rounded(op, input, x.dtype())?,
        weight: rounded(op, weight, x.dtype())?,
        bias: (kind == Kind::Layer).then(|| rounded(op, bias, x.dtype())).transpose()?,
    })
}

/// Gradients of input, weight and bias.
fn backward_of<R: Real>(
    op: &'static str,
    kind: Kind,
    x: &Tensor,
    grad: &Tensor,
    weight: &Tensor,
    len: usize,
    eps: f64,
) -> Result<[Tensor; 3]> {
    let (values, grads, weights) =
        (x.as_slice::<R>()?, grad.as_slice::<R>()?, weight.as_slice::<R>()?);
    let n_rows = values.len() / len.max(1);
    let rows_per_part = rows_per_piece(len).max(n_rows.div_ceil(MOST_PARTS));
    let n_parts = n_rows.div_ceil(rows_per_part);
    // Every part sums the gradients of its rows with respect to weight and bias, side by side.
    let mut sums = vec![R::ZERO; n_parts * 2 * len];
    let input = {
        let sums = Disjoint::new(&mut sums);
        Tensor::write(op, x.shape(), |out: &mut [R]| {
            threads::for_pieces_of(out, len, rows_per_part, |piece, out| {
                let part = piece.start / rows_per_part;
                // SAFETY: Every piece is a part of its own.
                let sums = unsafe { sums.part(part * 2 * len..(part + 1) * 2 * len) };
                for (row, out) in piece.zip(out.chunks_exact_mut(len.max(1))) {
                    let (x, grad) = (&values[row * len..][..len], &grads[row * len..][..len]);
                    let eps = R::of(eps);
                    backward_row(kind, x, grad, weights, eps, out, sums);
                }
            });
        })?
    };
    let total = |first: usize| {
        Tensor::write(op, weight.shape(), |out: &mut [R]| {
            out.fill(R::ZERO);
            for sums in sums.chunks_exact((2 * len).max(1)) {
                for (out, sum) in out.iter_mut().zip(&sums[first..]) {
                    *out += *sum;
                }
            }
        })
    };
    Ok([input, total(0)?, total(len)?])
}

vectorized! {
    /// With `n = (x - mean) scale` and `d = grad weight`: `dx = scale (d - mean(d) - n mean(d n))`, the
    /// first mean only where the mean was subtracted.
    fn backward_row<R: Real>(
        kind: Kind,
        x: &[R],
        grad: &[R],
        weight: &[R],
        eps: R,
        dx: &mut [R],
        sums: &mut [R],
    ) {
        let len = x.len();
        let (grad, weight, dx) = (&grad[..len], &weight[..len], &mut dx[..len]);
        let (weight_sums, bias_sums) = sums.split_at_mut(len);
        let bias_sums = &mut bias_sums[..len];
        let (mean, scale) = moments::<FMA, R>(kind, x, eps);
        // `dx` holds `d` and then the result: the row is in the cache, and memory is touched once.
        for i in 0..len {
            let normal = (x[i] - mean) * scale;
            dx[i] = grad[i] * weight[i];
            weight_sums[i] = grad[i].mul_add::<FMA>(normal, weight_sums[i]);
            bias_sums[i] += grad[i];
        }
        let n = R::of(len as f64);
        let along = row_sum_2(x, dx, |x, d| (x - mean) * scale * d) / n;
        let shift = match kind {
            Kind::Layer => row_sum_2(dx, dx, |d, _| d) / n,
            Kind::Rms => R::ZERO,
        };
        for i in 0..len {
            let normal = (x[i] - mean) * scale;
            dx[i] = scale * (dx[i] - shift - normal * along);
        }
    }
}
