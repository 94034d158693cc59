//! Layer and root-mean-square normalisation over the last dims.

use super::real::{
    Real, by_real, check_dtype, check_float, check_shape, rounded, row_sum, rows_per_piece, widened,
};
use crate::{LocalError, Result, Tensor, simd::vectorized, threads};

impl Tensor {
    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last dims, whose sizes `normalized_shape`
    /// names; `var` divides by the number of elements. As `torch.nn.functional.layer_norm`.
    pub fn layer_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        normalized("layer_norm", Kind::Layer, self, normalized_shape, weight, bias, eps)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` over the last dims, whose sizes `normalized_shape` names. As
    /// `torch.nn.functional.rms_norm`.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    ///
    /// let x = Tensor::from_vec(vec![3.0_f32, 4.0, -3.0, 4.0], &[2, 2])?;
    /// let y = x.rms_norm(&[2], None, 12.5)?.to_vec::<f32>()?;
    /// assert_eq!(y, [0.6, 0.8, -0.6, 0.8]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn rms_norm(
        &self,
        normalized_shape: &[usize],
        weight: Option<&Tensor>,
        eps: f64,
    ) -> Result<Tensor> {
        normalized("rms_norm", Kind::Rms, self, normalized_shape, weight, None, eps)
    }
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Around the mean.
    Layer,
    /// Around zero.
    Rms,
}

/// Refuses shapes and dtypes that do not fit; gives the length of a row.
pub(super) fn check(
    op: &'static str,
    x: &Tensor,
    normalized_shape: &[usize],
    affine: [Option<&Tensor>; 2],
) -> Result<usize> {
    check_float(op, x)?;
    if normalized_shape.is_empty() || !x.shape().ends_with(normalized_shape) {
        return Err(LocalError::ShapeMismatch {
            op,
            from: x.shape().to_vec(),
            to: normalized_shape.to_vec(),
            why: "the normalized shape is that of the last dims, at least one",
        });
    }
    for tensor in affine.into_iter().flatten() {
        check_dtype(op, tensor, x.dtype())?;
        check_shape(op, tensor, normalized_shape, "weight and bias have the normalized shape")?;
    }
    Ok(normalized_shape.iter().product())
}

/// What a row is normalised by: its mean (zero for [`Kind::Rms`]) and one over its deviation.
#[inline(always)]
pub(super) fn moments<const FMA: bool, R: Real>(kind: Kind, x: &[R], eps: R) -> (R, R) {
    let n = R::of(x.len() as f64);
    let mean = match kind {
        Kind::Layer => row_sum(x, |x| x) / n,
        Kind::Rms => R::ZERO,
    };
    // The second pass finds the row in the cache, and does not cancel as E[x^2] - mean^2 would.
    let squares = row_sum(x, |x| (x - mean) * (x - mean));
    (mean, R::ONE / (squares / n + eps).sqrt())
}

fn normalized(
    op: &'static str,
    kind: Kind,
    x: &Tensor,
    normalized_shape: &[usize],
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let len = check(op, x, normalized_shape, [weight, bias])?;
    let meta = |tensor: &Tensor| tensor.is_meta();
    if x.is_meta() || weight.is_some_and(meta) || bias.is_some_and(meta) {
        return Tensor::meta(x.shape(), x.dtype());
    }
    let wide = widened(op, x)?;
    let weight = weight.map(|weight| widened(op, weight)).transpose()?;
    let bias = bias.map(|bias| widened(op, bias)).transpose()?;
    let out = by_real!(wide, R => {
        let x = wide.as_slice::<R>()?;
        let weight = weight.as_ref().map(Tensor::as_slice::<R>).transpose()?;
        let bias = bias.as_ref().map(Tensor::as_slice::<R>).transpose()?;
        let eps = R::of(eps);
        Tensor::write(op, wide.shape(), |out: &mut [R]| {
            threads::for_pieces_of(out, len, rows_per_piece(len), |piece, out| {
                for (row, out) in piece.zip(out.chunks_exact_mut(len.max(1))) {
                    normalize_row(kind, &x[row * len..][..len], weight, bias, eps, out);
                }
            });
        })?
    });
    rounded(op, out, x.dtype())
}

vectorized! {
    fn normalize_row<R: Real>(
        kind: Kind,
        x: &[R],
        weight: Option<&[R]>,
        bias: Option<&[R]>,
        eps: R,
        out: &mut [R],
    ) {
        let (mean, scale) = moments::<FMA, R>(kind, x, eps);
        match (weight, bias) {
            (Some(weight), Some(bias)) => {
                for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                    *out = ((*x - mean) * scale).mul_add::<FMA>(*weight, *bias);
                }
            }
            (Some(weight), None) => {
                for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                    *out = (*x - mean) * scale * *weight;
                }
            }
            (None, bias) => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = (*x - mean) * scale;
                }
                for (out, bias) in out.iter_mut().zip(bias.unwrap_or(&[])) {
                    *out += *bias;
                }
            }
        }
    }
}
