//! Linear algebra, as `torch.linalg`: decompositions and solutions of batches of matrices.
//!
//! ```
//! use dtensor_local::{Tensor, linalg};
//!
//! let a = Tensor::from_vec(vec![4.0_f64, 2.0, 2.0, 3.0], &[2, 2])?;
//! let b = Tensor::from_vec(vec![2.0_f64, 5.0], &[2])?;
//! let x = linalg::solve(&a, &b)?;
//! assert!(a.matmul(&x)?.sub(&b)?.norm(2.0, &[], false)?.item::<f64>()? < 1e-14);
//! assert!((linalg::det(&a)?.item::<f64>()? - 8.0).abs() < 1e-14);
//! # Ok::<(), dtensor_local::LocalError>(())
//! ```
//!
//! The last two dims are matrices, those before are the batch. The algorithms are those of the crate
//! `faer`.
//!
//! # Trade-offs
//!
//! * Tensors are `f32` or `f64`, and results are of the same dtype; others are an error that asks for a
//!   conversion. Everything is computed in `f64`: results in `f32` are rounded once, and one copy of
//!   every algorithm is compiled instead of two. Tolerances of rank are those of the tensor's dtype.
//! * The matrices of a batch are shared among threads; a single matrix is worked on by one. So results
//!   do not depend on the number of threads.
//! * A matrix with an infinity or a NaN is an error, where PyTorch gives an error from some functions
//!   and NaN from others. Errors name the first matrix of the batch that is at fault.
//! * Signs of singular vectors and eigenvectors, and bases where values are equal, are not unique: any
//!   may come.
//!
//! Empty matrices and empty batches are ordinary, and meta tensors give the shapes of results.

mod batch;
mod cdist;
mod lstsq;
mod lu;
mod norms;
mod power;
mod qr;
mod right_hand_side;
mod svd;
mod symmetric;

pub use lstsq::{Lstsq, lstsq};
pub use lu::{det, inv, slogdet, solve};
pub use norms::{MatrixNorm, cond, matrix_norm, vector_norm};
pub use qr::{qr, qr_complete};
pub use svd::{matrix_rank, pinv, svd, svdvals};
pub use symmetric::{cholesky, eigh, eigvalsh};
