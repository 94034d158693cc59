use dtensor_local::{LocalError, linalg::MatrixNorm};

use super::{checked::OnMatrices, matrices::Question};
use crate::{DTensor, Result, dispatch::call_one};

impl DTensor {
    /// A norm of each matrix in the last two dims. Those that are not made of singular values are found
    /// without moving a matrix that is cut.
    pub fn matrix_norm(&self, norm: MatrixNorm) -> Result<DTensor> {
        if self.n_dims() < 2 {
            return Err(LocalError::BadShape {
                op: "matrix_norm",
                shape: self.shape().to_vec(),
                why: "a matrix needs two dims, with the batch before",
            }
            .into());
        }
        match norm {
            MatrixNorm::Frobenius => self.norm(2.0, &[-2, -1], false),
            MatrixNorm::One => self.abs()?.sum(&[-2], false)?.amax(&[-1], false),
            MatrixNorm::Infinity => self.abs()?.sum(&[-1], false)?.amax(&[-1], false),
            norm => call_one(&OnMatrices::new(Question::MatrixNorm(norm)), &[self]),
        }
    }

    /// The norm `p` over these dims (all of them if the list is empty), which need not be matrices: the same
    /// as [`norm`](DTensor::norm).
    pub fn vector_norm(&self, p: f64, dims: &[isize], keep_dims: bool) -> Result<DTensor> {
        if p.is_nan() {
            let (got, want) = (p.to_string(), "a number");
            return Err(LocalError::BadNumber { op: "vector_norm", name: "p", got, want }.into());
        }
        self.norm(p, dims, keep_dims)
    }
}
