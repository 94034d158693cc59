use super::batch::{check_dtype, shape_error};
use crate::{LocalError, Result, Tensor, matmul::broadcast_batch};

/// The operands of `a x = b`, brought to one batch, with matrices on both sides.
pub(super) struct RightHandSide {
    pub(super) a: Tensor,
    pub(super) b: Tensor,
    /// Whether the caller gave vectors.
    vectors: bool,
}

impl RightHandSide {
    /// By the rules of `torch.linalg.solve`: `b` is a vector if it has one dim, or vectors if it has the
    /// shape of `a` without the columns; else it has matrices.
    pub(super) fn new(op: &'static str, a: &Tensor, b: &Tensor) -> Result<RightHandSide> {
        check_dtype(op, a)?;
        if a.dtype() != b.dtype() {
            return Err(LocalError::WrongDType { op, got: b.dtype(), want: a.dtype() });
        }
        let [.., rows, _] = a.shape() else {
            return Err(shape_error(op, a, "a matrix needs two dims, with the batch before"));
        };
        let vectors = b.n_dims() == 1 || b.shape() == &a.shape()[..a.n_dims() - 1];
        let b_matrices = if vectors { b.unsqueeze(-1)? } else { b.clone() };
        let mismatch = |why| LocalError::ShapeMismatch {
            op,
            from: a.shape().to_vec(),
            to: b.shape().to_vec(),
            why,
        };
        let [.., b_rows, _] = b_matrices.shape() else {
            return Err(mismatch("the right-hand side must be vectors or matrices"));
        };
        if rows != b_rows {
            return Err(mismatch("the right-hand side must have as many rows as the matrix"));
        }
        let (_, a, b) = broadcast_batch(op, a, &b_matrices)?;
        Ok(RightHandSide { a, b, vectors })
    }

    /// A result with a column per column of `b`, as vectors if those were.
    pub(super) fn like_b(&self, result: Tensor) -> Result<Tensor> {
        if self.vectors { result.squeeze(-1) } else { Ok(result) }
    }
}
