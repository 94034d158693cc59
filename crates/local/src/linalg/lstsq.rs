use super::{
    batch::{Matrices, each_of, finite, store},
    right_hand_side::RightHandSide,
    svd::{Factors, default_rcond},
};
use crate::{DType, Result, Tensor};

/// What [`lstsq`] finds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Lstsq {
    /// The `x` for which `a x` is nearest to `b`; of those, the shortest.
    pub solution: Tensor,
    /// The squared length of `b - a x`, for every column of `b`.
    pub residuals: Tensor,
    /// How many singular values of each matrix counted, as `i64`.
    pub rank: Tensor,
    /// The singular values of each matrix, in decreasing order.
    pub singular_values: Tensor,
}

/// The least squares solution of `a x = b`, for matrices of any shape and rank. Operands as for
/// [`solve`](super::solve).
///
/// Singular values up to `rcond` times the largest count as zero; by default the larger number of rows or
/// columns times the epsilon of the dtype.
///
/// Solved by singular values, as by PyTorch's driver `gelsd`; the default there, `gelsy`, gives the same
/// solution by another way. Unlike there, residuals are given for every shape and rank, so that the
/// shape of the result does not depend on values.
///
/// ```
/// # use dtensor_local::{Tensor, linalg};
/// // The line nearest to (0, 1), (1, 3), (2, 5.5).
/// let a = Tensor::from_vec(vec![0.0_f64, 1.0, 1.0, 1.0, 2.0, 1.0], &[3, 2])?;
/// let b = Tensor::from_vec(vec![1.0_f64, 3.0, 5.5], &[3])?;
/// let line = linalg::lstsq(&a, &b, None)?;
/// let (slope, start) = (line.solution.select(0, 0)?, line.solution.select(0, 1)?);
/// assert!((slope.item::<f64>()? - 2.25).abs() < 1e-14);
/// assert!((start.item::<f64>()? - 11.0 / 12.0).abs() < 1e-14);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub fn lstsq(a: &Tensor, b: &Tensor, rcond: Option<f64>) -> Result<Lstsq> {
    let op = "lstsq";
    let sides = RightHandSide::new(op, a, b)?;
    let (a, b) = (Matrices::of(op, &sides.a)?, Matrices::of(op, &sides.b)?);
    let rcond = rcond.unwrap_or_else(|| default_rcond(&a));
    let (unknowns, columns) = (a.columns(), b.columns());
    let n_values = a.rows().min(a.columns());
    let shapes: [&[usize]; 4] = [&[unknowns, columns], &[1, columns], &[], &[n_values]];
    let [solution, residuals, rank, singular_values] =
        each_of([&a, &b], shapes, |[a, b], [solution, residuals, rank, singular_values]| {
            finite(b)?;
            let factors = Factors::of(a)?;
            let x = factors.solve(b, rcond);
            let rest = b - a * &x;
            for (column, residual) in residuals.iter_mut().enumerate() {
                *residual = (0..rest.nrows()).map(|row| rest[(row, column)].powi(2)).sum();
            }
            rank[0] = factors.rank(rcond) as f64;
            singular_values.copy_from_slice(&factors.s);
            store(x.as_ref(), solution);
            Ok(())
        })?;
    Ok(Lstsq {
        solution: sides.like_b(solution)?,
        residuals: sides.like_b(residuals.squeeze(-2)?)?,
        rank: rank.to_dtype(DType::I64)?,
        singular_values,
    })
}
