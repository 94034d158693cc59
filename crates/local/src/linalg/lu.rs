//! What follows from an LU decomposition with row pivots.

use faer::{
    MatRef,
    linalg::solvers::{DenseSolveCore, PartialPivLu, Solve},
};

use super::{
    batch::{Failure, Matrices, each_of, finite, store},
    right_hand_side::RightHandSide,
};
use crate::{Result, Tensor};

/// The solution `x` of `a x = b` for square `a`: `b` has matrices, whose columns are solved for, or one
/// vector for every matrix of `a` (or one for all). The batch dims are broadcast.
///
/// A singular matrix, one with a pivot that is exactly zero, is an error that names it.
///
/// ```
/// # use dtensor_local::{LocalError, Tensor, linalg};
/// let a = Tensor::from_vec(vec![2.0_f32, 0.0, 1.0, 4.0], &[2, 2])?;
/// let b = Tensor::from_vec(vec![2.0_f32, 9.0], &[2])?;
/// assert_eq!(linalg::solve(&a, &b)?.to_vec::<f32>()?, [1.0, 2.0]);
///
/// let singular = Tensor::from_vec(vec![1.0_f32, 2.0, 2.0, 4.0], &[2, 2])?;
/// let error = LocalError::Singular { op: "solve", matrix: vec![] };
/// assert_eq!(linalg::solve(&singular, &b).unwrap_err(), error);
/// # Ok::<(), LocalError>(())
/// ```
pub fn solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let op = "solve";
    Matrices::square(op, a)?;
    let sides = RightHandSide::new(op, a, b)?;
    let (a, b) = (Matrices::of(op, &sides.a)?, Matrices::of(op, &sides.b)?);
    let [x] = each_of([&a, &b], [&[b.rows(), b.columns()]], |[a, b], [x]| {
        finite(b)?;
        store(regular(a)?.solve(b).as_ref(), x);
        Ok(())
    })?;
    sides.like_b(x)
}

/// The inverse of a square matrix. A singular one is an error that names it.
///
/// To solve a system, [`solve`] is faster and more exact.
pub fn inv(a: &Tensor) -> Result<Tensor> {
    let a = Matrices::square("inv", a)?;
    let [inverse] = a.each([&[a.rows(), a.rows()]], |a, [inverse]| {
        store(regular(a)?.inverse().as_ref(), inverse);
        Ok(())
    })?;
    Ok(inverse)
}

/// The determinant of a square matrix; 1 for an empty one.
pub fn det(a: &Tensor) -> Result<Tensor> {
    let a = Matrices::square("det", a)?;
    let [det] = a.each([&[]], |a, [out]| {
        let (sign, pivots) = pivots(a)?;
        out[0] = pivots.iter().fold(sign, |det, pivot| det * pivot);
        Ok(())
    })?;
    Ok(det)
}

/// The sign of the determinant and the logarithm of its absolute value, for determinants that no float
/// can hold; 0 and minus infinity if the matrix is singular.
///
/// ```
/// # use dtensor_local::{Tensor, linalg};
/// let a = Tensor::from_vec(vec![0.0_f64, 1e200, 1e200, 0.0], &[2, 2])?;
/// let (sign, logabsdet) = linalg::slogdet(&a)?;
/// assert_eq!(sign.item::<f64>()?, -1.0);
/// assert!((logabsdet.item::<f64>()? - 400.0 * 10_f64.ln()).abs() < 1e-10);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub fn slogdet(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let a = Matrices::square("slogdet", a)?;
    let [sign, logabsdet] = a.each([&[], &[]], |a, [out_sign, out_log]| {
        let (sign, pivots) = pivots(a)?;
        let singular = pivots.contains(&0.0);
        let sign = pivots.iter().fold(sign, |sign, pivot| sign * pivot.signum());
        out_sign[0] = if singular { 0.0 } else { sign };
        out_log[0] = pivots.iter().map(|pivot| pivot.abs().ln()).sum();
        Ok(())
    })?;
    Ok((sign, logabsdet))
}

/// The decomposition of a matrix without a zero pivot.
fn regular(a: MatRef<'_, f64>) -> Result<PartialPivLu<f64>, Failure> {
    finite(a)?;
    let lu = PartialPivLu::new(a);
    let singular = (0..a.nrows()).any(|at| lu.U()[(at, at)] == 0.0);
    if singular { Err(Failure::Singular) } else { Ok(lu) }
}

/// The sign of the order of the rows, and the pivots up to the first that is zero: what comes after it
/// was divided by it, and means nothing.
fn pivots(a: MatRef<'_, f64>) -> Result<(f64, Vec<f64>), Failure> {
    finite(a)?;
    let size = a.nrows();
    if size == 0 {
        return Ok((1.0, Vec::new()));
    }
    let lu = PartialPivLu::new(a);
    let mut pivots: Vec<f64> = (0..size).map(|at| lu.U()[(at, at)]).collect();
    if let Some(zero) = pivots.iter().position(|pivot| *pivot == 0.0) {
        pivots.truncate(zero + 1);
    }
    Ok((sign_of(lu.P().arrays().0), pivots))
}

/// 1 for an even permutation, -1 for an odd one.
fn sign_of(permutation: &[usize]) -> f64 {
    let mut seen = vec![false; permutation.len()];
    let mut sign = 1.0;
    for start in 0..permutation.len() {
        // Every further element of a cycle is an exchange.
        let mut at = permutation[start];
        while !seen[start] && at != start {
            seen[at] = true;
            sign = -sign;
            at = permutation[at];
        }
    }
    sign
}
