//! Which of several values for one place stays: the last. The others have no gradient.
//!
//! To know it, the numbers of the values are written as the values were, and read again: where there is another number,
//! another value came later.

use dtensor_layout::{DType, Placement};

use crate::{DTensor, Result, arange, zeros};

/// The numbers of the indices of a dim, the same for all indices of the other dims of this shape.
pub(super) fn numbers(beside: &DTensor, shape: &[usize], dim: usize) -> Result<DTensor> {
    let mut own = vec![1; shape.len()];
    own[dim] = -1;
    counted(beside, shape[dim])?.reshape(&own)?.expand(shape)
}

/// The numbers from 0 to before `n`, on every rank.
pub(super) fn counted(beside: &DTensor, n: usize) -> Result<DTensor> {
    let mesh = beside.mesh();
    arange(0, n as i64, 1, DType::I64, mesh, &vec![Placement::Replicate; mesh.n_axes()])
}

/// Where numbers are written to: dims of a tensor, cut as they are there.
pub(super) fn places(of: &DTensor, dims: &[usize]) -> Result<DTensor> {
    let place = |placement: &Placement| match *placement {
        Placement::Shard(dim) => dims.iter().position(|own| *own == dim),
        _ => None,
    };
    let place = |placement| place(placement).map_or(Placement::Replicate, Placement::Shard);
    let placements: Vec<Placement> = of.placements().iter().map(place).collect();
    let shape: Vec<usize> = dims.iter().map(|dim| of.shape()[*dim]).collect();
    zeros(&shape, DType::I64, of.mesh(), &placements)
}

/// The gradient, but zero where other numbers were read than had been written. `of_dims` is how the numbers lie among
/// the dims of the gradient.
pub(super) fn of_the_last(
    grad: &DTensor,
    written: &DTensor,
    read: &DTensor,
    of_dims: &[isize],
) -> Result<DTensor> {
    grad.masked_fill(&read.ne(written)?.reshape(of_dims)?, false)
}
