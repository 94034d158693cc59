//! Singular values, and what follows from them.

use faer::{Mat, MatRef};

use super::batch::{
    Failure, Matrices, finite, store, store_identity, turn_columns, turned_columns,
};
use crate::{DType, Result, Tensor};

/// `a = u diag(s) vh`, with orthonormal columns in `u`, orthonormal rows in `vh` and singular values in
/// decreasing order. For `[m, n]`, with `k` the smaller of both, the shapes are `[m, k]`, `[k]` and
/// `[k, n]`; with `full_matrices` `u` is `[m, m]` and `vh` is `[n, n]`.
/// The largest element of each of the first `k` columns of `u` is positive.
///
/// ```
/// # use dtensor_local::{Tensor, linalg};
/// let a = Tensor::from_vec(vec![3.0_f64, 0.0, 0.0, 0.0, -5.0, 0.0], &[2, 3])?;
/// let (u, s, vh) = linalg::svd(&a, false)?;
/// assert!(s.sub(&Tensor::from_vec(vec![5.0_f64, 3.0], &[2])?)?.norm(2.0, &[], false)?.item::<f64>()? < 1e-14);
/// assert!(u.mul(&s)?.matmul(&vh)?.sub(&a)?.norm(2.0, &[], false)?.item::<f64>()? < 1e-14);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub fn svd(a: &Tensor, full_matrices: bool) -> Result<(Tensor, Tensor, Tensor)> {
    let a = Matrices::of("svd", a)?;
    let (rows, columns) = (a.rows(), a.columns());
    let rank = rows.min(columns);
    let (left, right) = if full_matrices { (rows, columns) } else { (rank, rank) };
    let shapes: [&[usize]; 3] = [&[rows, left], &[rank], &[right, columns]];
    let [u, s, vh] = a.each(shapes, |a, [u, s, vh]| {
        finite(a)?;
        if rank == 0 {
            // Without singular values, any orthogonal matrices do.
            store_identity(left, u);
            store_identity(right, vh);
            return Ok(());
        }
        let svd = if full_matrices { a.svd() } else { a.thin_svd() };
        let svd = svd.map_err(|_| Failure::NoConvergence)?;
        store(svd.U(), u);
        store(svd.S().column_vector().as_mat(), s);
        store(svd.V().transpose(), vh);
        let turned = turned_columns(svd.U(), rank);
        turn_columns(u, left, &turned);
        for (row, _) in vh.chunks_exact_mut(columns).zip(turned).filter(|(_, turned)| *turned) {
            row.iter_mut().for_each(|value| *value = -*value);
        }
        Ok(())
    })?;
    Ok((u, s, vh))
}

/// The singular values in decreasing order, as [`svd`] but cheaper.
pub fn svdvals(a: &Tensor) -> Result<Tensor> {
    singular_values("svdvals", a)
}

/// The pseudo-inverse (Moore-Penrose). Singular values up to `rcond` times the largest count as zero;
/// by default the larger number of rows or columns times the epsilon of the dtype, as in PyTorch.
pub fn pinv(a: &Tensor, rcond: Option<f64>) -> Result<Tensor> {
    let a = Matrices::of("pinv", a)?;
    let rcond = rcond.unwrap_or_else(|| default_rcond(&a));
    let [inverse] = a.each([&[a.columns(), a.rows()]], |a, [inverse]| {
        store(Factors::of(a)?.pseudo_inverse(rcond).as_ref(), inverse);
        Ok(())
    })?;
    Ok(inverse)
}

/// How many singular values are larger than `rcond` times the largest (by default as for [`pinv`]), as
/// `i64`.
pub fn matrix_rank(a: &Tensor, rcond: Option<f64>) -> Result<Tensor> {
    let a = Matrices::of("matrix_rank", a)?;
    let rcond = rcond.unwrap_or_else(|| default_rcond(&a));
    let [rank] = a.each([&[]], |a, [rank]| {
        finite(a)?;
        let values = values_of(a)?;
        rank[0] = rank_of(&values, rcond) as f64;
        Ok(())
    })?;
    rank.to_dtype(DType::I64)
}

pub(super) fn singular_values(op: &'static str, a: &Tensor) -> Result<Tensor> {
    let a = Matrices::of(op, a)?;
    let rank = a.rows().min(a.columns());
    let [s] = a.each([&[rank]], |a, [s]| {
        finite(a)?;
        s.copy_from_slice(&values_of(a)?);
        Ok(())
    })?;
    Ok(s)
}

/// What PyTorch takes where the caller says nothing.
pub(super) fn default_rcond(a: &Matrices) -> f64 {
    a.epsilon() * a.rows().max(a.columns()) as f64
}

/// A thin decomposition `u diag(s) vᵀ`, of empty matrices too.
pub(super) struct Factors {
    u: Mat<f64>,
    pub(super) s: Vec<f64>,
    v: Mat<f64>,
}

impl Factors {
    pub(super) fn of(a: MatRef<'_, f64>) -> Result<Factors, Failure> {
        finite(a)?;
        if a.nrows() == 0 || a.ncols() == 0 {
            let (u, v) = (Mat::zeros(a.nrows(), 0), Mat::zeros(a.ncols(), 0));
            return Ok(Factors { u, s: Vec::new(), v });
        }
        let svd = a.thin_svd().map_err(|_| Failure::NoConvergence)?;
        let s = svd.S().column_vector().iter().copied().collect();
        Ok(Factors { u: svd.U().to_owned(), s, v: svd.V().to_owned() })
    }

    pub(super) fn rank(&self, rcond: f64) -> usize {
        rank_of(&self.s, rcond)
    }

    pub(super) fn pseudo_inverse(&self, rcond: f64) -> Mat<f64> {
        self.solve(Mat::<f64>::identity(self.u.nrows(), self.u.nrows()).as_ref(), rcond)
    }

    /// The shortest `x` for which `a x` is nearest to `b`, by the singular values that count.
    pub(super) fn solve(&self, b: MatRef<'_, f64>, rcond: f64) -> Mat<f64> {
        let rank = self.rank(rcond);
        let mut x = self.u.get(.., ..rank).transpose() * b;
        for row in 0..rank {
            for column in 0..b.ncols() {
                x[(row, column)] /= self.s[row];
            }
        }
        self.v.get(.., ..rank) * x
    }
}

fn values_of(a: MatRef<'_, f64>) -> Result<Vec<f64>, Failure> {
    if a.nrows() == 0 || a.ncols() == 0 {
        return Ok(Vec::new());
    }
    a.singular_values().map_err(|_| Failure::NoConvergence)
}

fn rank_of(decreasing: &[f64], rcond: f64) -> usize {
    let largest = decreasing.first().copied().unwrap_or(0.0);
    decreasing.iter().take_while(|value| **value > rcond * largest).count()
}
