//! Norms, mostly put together from reductions.

use super::{batch::shape_error, svd::singular_values};
use crate::{LocalError, Result, Tensor};

/// The norms of [`matrix_norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MatrixNorm {
    /// The root of the sum of squares.
    Frobenius,
    /// The sum of the singular values.
    Nuclear,
    /// The largest sum of absolute values of a column.
    One,
    /// The largest sum of absolute values of a row.
    Infinity,
    /// The largest singular value.
    Two,
    /// The smallest singular value.
    MinusTwo,
}

/// A norm of each matrix in the last two dims. The norms that ask for a largest or smallest value have
/// none of an empty matrix: an error.
pub fn matrix_norm(a: &Tensor, norm: MatrixNorm) -> Result<Tensor> {
    let op = "matrix_norm";
    if a.n_dims() < 2 {
        return Err(shape_error(op, a, "a matrix needs two dims, with the batch before"));
    }
    match norm {
        MatrixNorm::Frobenius => a.norm(2.0, &[-2, -1], false),
        MatrixNorm::Nuclear => singular_values(op, a)?.sum(&[-1], false),
        MatrixNorm::One => a.abs()?.sum(&[-2], false)?.amax(&[-1], false),
        MatrixNorm::Infinity => a.abs()?.sum(&[-1], false)?.amax(&[-1], false),
        MatrixNorm::Two => singular_values(op, a)?.amax(&[-1], false),
        MatrixNorm::MinusTwo => singular_values(op, a)?.amin(&[-1], false),
    }
}

/// The condition number of each matrix, its largest over its smallest singular value: infinity if it is
/// singular, NaN if it has nothing but zeros, 0 if it is empty, as in PyTorch.
pub fn cond(a: &Tensor) -> Result<Tensor> {
    let values = singular_values("cond", a)?;
    match values.shape() {
        [batch @ .., 0] if values.is_meta() => Tensor::meta(batch, a.dtype()),
        [batch @ .., 0] => Tensor::zeros(batch, a.dtype()),
        _ => {
            let (largest, smallest) = (values.select(-1, 0)?, values.select(-1, -1)?);
            largest.div(&smallest)
        }
    }
}

/// The norm `p` of a tensor over these dims (all of them if the list is empty), which need not be
/// matrices. The same as [`Tensor::norm`], under the name that `torch.linalg` has for it.
pub fn vector_norm(x: &Tensor, p: f64, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
    if p.is_nan() {
        let (got, want) = (p.to_string(), "a number");
        return Err(LocalError::BadNumber { op: "vector_norm", name: "p", got, want });
    }
    x.norm(p, dims, keep_dims)
}
