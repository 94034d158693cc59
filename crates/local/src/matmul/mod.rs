//! Products of matrices: of one dtype, with strides as they come, nothing copied that need not be.
//!
//! | dtype | how |
//! |---|---|
//! | `f32`, `f64` | the crate `gemm` |
//! | `bf16`, `f16` | widened to `f32` block by block, summed there, rounded once |
//! | `i64`, `i32`, `u8` | wrapping around, as PyTorch's |
//! | `bool` | an error, as in PyTorch |
//!
//! No sum is divided among threads, so results do not depend on how many there are.

mod batch;
mod einsum;
mod equation;
mod half;
mod integer;
mod matrix;
mod number;
mod real;

use batch::{add_product, check_dtypes, product};
pub(crate) use matrix::Matrix;
pub(crate) use number::{Number, Scale};

use crate::{
    LocalError, Result, Tensor,
    dims::{Dims, broadcast},
};

impl Tensor {
    /// The matrix product, by the rules of `torch.matmul`: the last two dims are matrices, those before
    /// are broadcast; a single dim is a row on the left and a column on the right, and disappears.
    ///
    /// ```
    /// # use dtensor_local::Tensor;
    /// let a = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let x = Tensor::from_vec(vec![1.0_f32, -1.0], &[2])?;
    /// assert_eq!(a.matmul(&x)?.to_vec::<f32>()?, [-1.0, -1.0]);
    /// assert_eq!(a.matmul(&a.transpose(0, 1)?)?.to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        let op = "matmul";
        check_dtypes(op, self, other)?;
        match (self.n_dims(), other.n_dims()) {
            (0, _) | (_, 0) => Err(mismatch(op, self, other, "a scalar is no matrix; use mul")),
            (2, 2) => self.matrix_product(op, other),
            (left, right) => {
                let a = if left == 1 { self.unsqueeze(0)? } else { self.clone() };
                let b = if right == 1 { other.unsqueeze(1)? } else { other.clone() };
                let (rows, columns) = (a.shape()[a.n_dims() - 2], b.shape()[b.n_dims() - 1]);
                if a.shape()[a.n_dims() - 1] != b.shape()[b.n_dims() - 2] {
                    return Err(mismatch(op, &a, &b, INNER));
                }
                let (mut shape, a, b) = broadcast_batch(op, &a, &b)?;
                shape.extend((left > 1).then_some(rows));
                shape.extend((right > 1).then_some(columns));
                product(op, &a, &b, &shape)
            }
        }
    }

    /// The product of two matrices.
    pub fn mm(&self, other: &Tensor) -> Result<Tensor> {
        match (self.n_dims(), other.n_dims()) {
            (2, 2) => self.matrix_product("mm", other),
            _ => Err(mismatch("mm", self, other, "both need two dims; use matmul for others")),
        }
    }

    /// The products of two batches of matrices, `[b, m, k]` and `[b, k, n]`, without broadcasting.
    pub fn bmm(&self, other: &Tensor) -> Result<Tensor> {
        let op = "bmm";
        match (self.shape(), other.shape()) {
            ([a_batch, m, k], [b_batch, b_rows, n]) if a_batch == b_batch && k == b_rows => {
                product(op, self, other, &[*a_batch, *m, *n])
            }
            _ => Err(mismatch(op, self, other, "give [b, m, k] and [b, k, n]; matmul broadcasts")),
        }
    }

    /// `beta * self + alpha * (a b)` for two matrices; `self` is broadcast to the shape of the product.
    /// With `beta` 0 the values of `self` do not matter, not even NaN.
    ///
    /// For integers the factors must be whole numbers.
    pub fn addmm(&self, a: &Tensor, b: &Tensor, beta: f64, alpha: f64) -> Result<Tensor> {
        let op = "addmm";
        let ([m, k], [b_rows, n]) = (a.shape(), b.shape()) else {
            return Err(mismatch(op, a, b, "both need two dims"));
        };
        if k != b_rows {
            return Err(mismatch(op, a, b, INNER));
        }
        let shape = [*m, *n];
        let kept = self.expand(&shape).map_err(|_| LocalError::ShapeMismatch {
            op,
            from: self.shape().to_vec(),
            to: shape.to_vec(),
            why: "what is added must broadcast to the product",
        })?;
        for (name, factor) in [("beta", beta), ("alpha", alpha)] {
            if !a.dtype().is_float() && factor.fract() != 0.0 {
                let (got, want) = (factor.to_string(), "a whole number for integers");
                return Err(LocalError::BadNumber { op, name, got, want });
            }
        }
        let scale = Scale { product: alpha, kept: (beta != 0.0).then_some(beta) };
        add_product(op, a, b, &kept, scale)
    }

    /// The linear layer `self weightᵀ + bias`, of `[.., in]` with a weight `[out, in]` and a bias `[out]`, as
    /// `torch.nn.functional.linear`. Rows that are evenly apart are one product.
    pub fn linear(&self, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let op = "linear";
        let [n_out, n_in] = weight.shape() else {
            return Err(mismatch(op, self, weight, "the weight needs two dims, [out, in]"));
        };
        let Some((last, rows)) = self.shape().split_last().filter(|(last, _)| *last == n_in) else {
            return Err(mismatch(op, self, weight, "the last dims must be equal"));
        };
        let shape: Dims = rows.iter().chain([n_out]).copied().collect();
        let a = if rows.is_empty() { self.unsqueeze(0)? } else { self.clone() };
        let batch = rows.split_last().map_or(&[][..], |(_, batch)| batch);
        let b: Dims = batch.iter().chain([last, n_out]).copied().collect();
        let b = weight.transpose(0, 1)?.expand(&b)?;
        let Some(bias) = bias else { return product(op, &a, &b, &shape) };
        if bias.shape() != [*n_out] {
            return Err(mismatch(op, weight, bias, "the bias needs one dim, [out]"));
        }
        add_product(op, &a, &b, &bias.expand(&shape)?, Scale { product: 1.0, kept: Some(1.0) })
    }

    /// The sum of the products of two vectors, without dims.
    pub fn dot(&self, other: &Tensor) -> Result<Tensor> {
        match (self.shape(), other.shape()) {
            ([a], [b]) if a == b => product("dot", &self.unsqueeze(0)?, &other.unsqueeze(1)?, &[]),
            _ => Err(mismatch("dot", self, other, "both need one dim of the same size")),
        }
    }

    /// All products of an element of one vector and one of another: `[m]` and `[n]` give `[m, n]`.
    pub fn outer(&self, other: &Tensor) -> Result<Tensor> {
        match (self.shape(), other.shape()) {
            ([m], [n]) => product("outer", &self.unsqueeze(1)?, &other.unsqueeze(0)?, &[*m, *n]),
            _ => Err(mismatch("outer", self, other, "both need one dim; reshape them first")),
        }
    }

    /// For two dims each; the common case has no batch to think about.
    fn matrix_product(&self, op: &'static str, other: &Tensor) -> Result<Tensor> {
        let (a, b) = (self.shape(), other.shape());
        if a[1] != b[0] {
            return Err(mismatch(op, self, other, INNER));
        }
        product(op, self, other, &[a[0], b[1]])
    }
}

const INNER: &str =
    "the last dim of the first and the dim before the last of the second must be equal";

/// Two tensors of at least two dims with the dims before the last two broadcast, and those dims.
pub(crate) fn broadcast_batch(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
) -> Result<(Dims, Tensor, Tensor)> {
    let (a_batch, a_matrix) = a.shape().split_at(a.n_dims() - 2);
    let (b_batch, b_matrix) = b.shape().split_at(b.n_dims() - 2);
    let batch = broadcast(op, [a_batch, b_batch].into_iter())
        .map_err(|_| mismatch(op, a, b, "the dims before the matrices must broadcast"))?;
    let with = |matrix: &[usize]| -> Dims { batch.iter().chain(matrix).copied().collect() };
    let (a, b) = (a.expand(&with(a_matrix))?, b.expand(&with(b_matrix))?);
    Ok((batch, a, b))
}

fn mismatch(op: &'static str, a: &Tensor, b: &Tensor, why: &'static str) -> LocalError {
    LocalError::ShapeMismatch { op, from: a.shape().to_vec(), to: b.shape().to_vec(), why }
}
