//! Softmax and its logarithm over one dim.

use super::real::{
    Real, by_real, check_dtype, check_float, check_shape, rounded, row_map_sum, row_max, row_sum,
    row_sum_2, rows_per_piece, widened,
};
use crate::{Result, Tensor, dims::normal_dim, simd::vectorized, threads};

impl Tensor {
    /// `exp(x) / sum(exp(x))` over `dim`, computed with the largest element subtracted. A row of `-inf`
    /// alone gives NaN, as in PyTorch.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    ///
    /// let x = Tensor::from_vec(vec![0.0_f32, 0.0, 1000.0, 1000.0], &[2, 2])?;
    /// assert_eq!(x.softmax(-1)?.to_vec::<f32>()?, [0.5; 4]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn softmax(&self, dim: isize) -> Result<Tensor> {
        let op = "softmax";
        by_rows(
            op,
            self,
            dim,
            |x| by_real!(x, R => each_row::<_, R>(op, &[x], |[x], out| softmax_row(x, out))),
        )
    }

    /// `x - log(sum(exp(x)))` over `dim`.
    pub fn log_softmax(&self, dim: isize) -> Result<Tensor> {
        let op = "log_softmax";
        by_rows(
            op,
            self,
            dim,
            |x| by_real!(x, R => each_row::<_, R>(op, &[x], |[x], out| log_softmax_row(x, out))),
        )
    }

    /// Gradient of [`Tensor::softmax`] with respect to its input, where `self` is its result and `grad` the
    /// gradient of that result: `y (grad - sum(y grad))`.
    pub fn softmax_backward(&self, grad: &Tensor, dim: isize) -> Result<Tensor> {
        let op = "softmax_backward";
        by_rows_2(op, self, grad, dim, |y, grad| {
            by_real!(y, R => each_row::<_, R>(op, &[y, grad], |[y, grad], out| {
                softmax_backward_row(y, grad, out);
            }))
        })
    }

    /// Gradient of [`Tensor::log_softmax`] with respect to its input, where `self` is its result and `grad`
    /// the gradient of that result: `grad - exp(y) sum(grad)`.
    pub fn log_softmax_backward(&self, grad: &Tensor, dim: isize) -> Result<Tensor> {
        let op = "log_softmax_backward";
        by_rows_2(op, self, grad, dim, |y, grad| {
            by_real!(y, R => each_row::<_, R>(op, &[y, grad], |[y, grad], out| {
                log_softmax_backward_row(y, grad, out);
            }))
        })
    }
}

vectorized! {
    fn softmax_row<R: Real>(x: &[R], out: &mut [R]) {
        let largest = row_max(x);
        let sum = row_map_sum(x, out, |x| (x - largest).exp::<FMA>());
        let scale = R::ONE / sum;
        for out in out.iter_mut() {
            *out *= scale;
        }
    }
}

vectorized! {
    fn log_softmax_row<R: Real>(x: &[R], out: &mut [R]) {
        let log_sum = log_sum_exp_body::<FMA, R>(x);
        for (out, x) in out.iter_mut().zip(x) {
            *out = *x - log_sum;
        }
    }
}

vectorized! {
    /// `log(sum(exp(x)))` of a row.
    pub(crate) fn log_sum_exp<R: Real>(x: &[R]) -> R {
        log_sum_exp_body::<FMA, R>(x)
    }
}

#[inline(always)]
fn log_sum_exp_body<const FMA: bool, R: Real>(x: &[R]) -> R {
    let largest = row_max(x);
    largest + row_sum(x, |x| (x - largest).exp::<FMA>()).ln()
}

vectorized! {
    fn softmax_backward_row<R: Real>(y: &[R], grad: &[R], out: &mut [R]) {
        let sum = row_sum_2(y, grad, |y, grad| y * grad);
        for (out, (y, grad)) in out.iter_mut().zip(y.iter().zip(grad)) {
            *out = *y * (*grad - sum);
        }
    }
}

vectorized! {
    fn log_softmax_backward_row<R: Real>(y: &[R], grad: &[R], out: &mut [R]) {
        let sum = row_sum(grad, |grad| grad);
        for (out, (y, grad)) in out.iter_mut().zip(y.iter().zip(grad)) {
            *out = *grad - y.exp::<FMA>() * sum;
        }
    }
}

/// Runs `kernel` on the tensor with `dim` as its last one, in the type it is computed in.
fn by_rows(
    op: &'static str,
    x: &Tensor,
    dim: isize,
    kernel: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    by_rows_2(op, x, x, dim, |x, _| kernel(x))
}

/// As [`by_rows`], for two tensors of the same shape.
fn by_rows_2(
    op: &'static str,
    x: &Tensor,
    grad: &Tensor,
    dim: isize,
    kernel: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    check_float(op, x)?;
    check_dtype(op, grad, x.dtype())?;
    check_shape(op, grad, x.shape(), "a gradient has the shape of the result")?;
    if x.n_dims() == 0 {
        // A scalar has the dims 0 and -1, as in PyTorch.
        normal_dim(op, dim, &[1])?;
        return by_rows_2(op, &x.unsqueeze(0)?, &grad.unsqueeze(0)?, 0, kernel)?.squeeze(0);
    }
    let dim = normal_dim(op, dim, x.shape())?;
    if x.is_meta() || grad.is_meta() {
        return Tensor::meta(x.shape(), x.dtype());
    }
    let is_last = dim + 1 == x.n_dims();
    let to_last = |tensor: &Tensor| {
        if is_last { Ok(tensor.clone()) } else { tensor.transpose(dim as isize, -1) }
    };
    let wide = widened(op, &to_last(x)?)?;
    let wide_grad =
        if std::ptr::eq(x, grad) { wide.clone() } else { widened(op, &to_last(grad)?)? };
    let out = rounded(op, kernel(&wide, &wide_grad)?, x.dtype())?;
    Ok(if is_last { out } else { to_last(&out)?.contiguous() })
}

/// The tensor whose rows `kernel` makes of the rows (along the last dim) of others of the same shape.
fn each_row<const N: usize, R: Real>(
    op: &'static str,
    tensors: &[&Tensor; N],
    kernel: impl Fn([&[R]; N], &mut [R]) + Sync,
) -> Result<Tensor> {
    let mut rows: [&[R]; N] = [&[]; N];
    for (rows, tensor) in rows.iter_mut().zip(tensors) {
        *rows = tensor.as_slice::<R>()?;
    }
    let shape = tensors[0].shape();
    let len = shape.last().copied().unwrap_or(1);
    Tensor::write(op, shape, |out: &mut [R]| {
        threads::for_pieces_of(out, len, rows_per_piece(len), |piece, out| {
            for (row, out) in piece.zip(out.chunks_exact_mut(len.max(1))) {
                kernel(rows.map(|rows| &rows[row * len..][..len]), out);
            }
        });
    })
}
