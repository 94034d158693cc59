//! The errors that several of these operations share.

use crate::{LocalError, Result, Tensor};

/// Refuses a dtype other than the floating-point ones.
pub(super) fn only_floats(op: &'static str, x: &Tensor) -> Result<()> {
    if x.dtype().is_float() {
        return Ok(());
    }
    Err(LocalError::NotFloat { op, got: x.dtype() })
}

/// Refuses to reduce nothing where the operation has no identity.
pub(super) fn not_nothing(op: &'static str, x: &Tensor, n: usize) -> Result<()> {
    if n > 0 {
        return Ok(());
    }
    Err(LocalError::NothingToReduce { op, shape: x.shape().to_vec() })
}
