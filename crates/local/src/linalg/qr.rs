use faer::{MatRef, linalg::solvers::Qr};

use super::batch::{Failure, Matrices, finite, store, store_identity};
use crate::{Result, Tensor};

/// `a = q r`, with orthonormal columns in `q` and an upper triangle in `r`; reduced: for `[m, n]` they
/// are `[m, k]` and `[k, n]`, where `k` is the smaller of `m` and `n`.
///
/// ```
/// # use dtensor_local::{DType, Tensor, linalg};
/// let a = Tensor::from_vec(vec![3.0_f32, 1.0, 4.0, 1.0, 0.0, 2.0], &[3, 2])?;
/// let (q, r) = linalg::qr(&a)?;
/// assert_eq!((q.shape(), r.shape()), (&[3, 2][..], &[2, 2][..]));
/// assert!(q.matmul(&r)?.sub(&a)?.abs()?.amax(&[], false)?.item::<f32>()? < 1e-6);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub fn qr(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let a = Matrices::of("qr", a)?;
    let (rows, columns, rank) = (a.rows(), a.columns(), a.rows().min(a.columns()));
    let [q, r] = a.each([&[rows, rank], &[rank, columns]], |a, [q, r]| {
        let qr = factor(a)?;
        store(qr.compute_thin_Q().as_ref(), q);
        store(qr.thin_R(), r);
        Ok(())
    })?;
    Ok((q, r))
}

/// As [`qr`], with all columns of the orthogonal matrix: for `[m, n]` the factors are `[m, m]` and
/// `[m, n]`.
pub fn qr_complete(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let a = Matrices::of("qr_complete", a)?;
    let (rows, columns) = (a.rows(), a.columns());
    let [q, r] = a.each([&[rows, rows], &[rows, columns]], |a, [q, r]| {
        if columns == 0 {
            store_identity(rows, q);
            return Ok(());
        }
        let qr = factor(a)?;
        store(qr.compute_Q().as_ref(), q);
        // Below the triangle of the first rows there are only zeros.
        let (triangle, rest) = r.split_at_mut(rows.min(columns) * columns);
        store(qr.thin_R(), triangle);
        rest.fill(0.0);
        Ok(())
    })?;
    Ok((q, r))
}

fn factor(a: MatRef<'_, f64>) -> Result<Qr<f64>, Failure> {
    finite(a)?;
    Ok(Qr::new(a))
}
