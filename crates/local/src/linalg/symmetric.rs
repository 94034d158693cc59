//! Decompositions of symmetric matrices, of which the lower triangle alone is looked at.

use faer::Side;

use super::batch::{Failure, Matrices, finite_lower, store, turn_columns, turned_columns};
use crate::{Result, Tensor};

/// The factor `l` of a positive definite matrix `a = l lᵀ`, a lower triangle; or with `upper`, the upper
/// triangle `u` of `a = uᵀ u`. Of `a` the lower triangle is looked at, or with `upper` the upper one.
///
/// A matrix that is not positive definite is an error that names it.
///
/// ```
/// # use dtensor_local::{LocalError, Tensor, linalg};
/// let a = Tensor::from_vec(vec![4.0_f32, 2.0, 2.0, 5.0], &[2, 2])?;
/// assert_eq!(linalg::cholesky(&a, false)?.to_vec::<f32>()?, [2.0, 0.0, 1.0, 2.0]);
///
/// let batch = Tensor::stack(&[&a, &a.neg()?], 0)?;
/// let error = LocalError::NotPositiveDefinite { op: "cholesky", matrix: vec![1] };
/// assert_eq!(linalg::cholesky(&batch, false).unwrap_err(), error);
/// # Ok::<(), LocalError>(())
/// ```
pub fn cholesky(a: &Tensor, upper: bool) -> Result<Tensor> {
    let lower = if upper && a.n_dims() >= 2 { a.transpose(-2, -1)? } else { a.clone() };
    let matrices = Matrices::square("cholesky", &lower)?;
    let size = matrices.rows();
    let [factor] = matrices.each([&[size, size]], |a, [out]| {
        finite_lower(a)?;
        let factor = a.llt(Side::Lower).map_err(|_| Failure::NotPositiveDefinite)?;
        store(if upper { factor.L().transpose() } else { factor.L() }, out);
        Ok(())
    })?;
    Ok(factor)
}

/// The eigenvalues of a symmetric matrix in increasing order, and its eigenvectors as the columns of an
/// orthogonal matrix: `a = v diag(w) vᵀ`. The lower triangle is looked at; for the upper one, transpose.
/// The largest element of each eigenvector is positive.
///
/// ```
/// # use dtensor_local::{Tensor, linalg};
/// let a = Tensor::from_vec(vec![2.0_f64, 1.0, 1.0, 2.0], &[2, 2])?;
/// let (values, vectors) = linalg::eigh(&a)?;
/// assert!(values.sub(&Tensor::from_vec(vec![1.0_f64, 3.0], &[2])?)?.norm(2.0, &[], false)?.item::<f64>()? < 1e-14);
/// assert!(a.matmul(&vectors)?.sub(&vectors.mul(&values)?)?.norm(2.0, &[], false)?.item::<f64>()? < 1e-14);
/// # Ok::<(), dtensor_local::LocalError>(())
/// ```
pub fn eigh(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let a = Matrices::square("eigh", a)?;
    let size = a.rows();
    let [values, vectors] = a.each([&[size], &[size, size]], |a, [values, vectors]| {
        finite_lower(a)?;
        let eigen = a.self_adjoint_eigen(Side::Lower).map_err(|_| Failure::NoConvergence)?;
        store(eigen.S().column_vector().as_mat(), values);
        store(eigen.U(), vectors);
        turn_columns(vectors, size, &turned_columns(eigen.U(), size));
        Ok(())
    })?;
    Ok((values, vectors))
}

/// The eigenvalues of a symmetric matrix in increasing order, as [`eigh`] but cheaper.
pub fn eigvalsh(a: &Tensor) -> Result<Tensor> {
    let a = Matrices::square("eigvalsh", a)?;
    let [values] = a.each([&[a.rows()]], |a, [values]| {
        finite_lower(a)?;
        let eigen = a.self_adjoint_eigenvalues(Side::Lower).map_err(|_| Failure::NoConvergence)?;
        values.copy_from_slice(&eigen);
        Ok(())
    })?;
    Ok(values)
}
