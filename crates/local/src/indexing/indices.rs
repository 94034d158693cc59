//! Tensors of indices as numbers that are known to be in range.

use crate::{DType, LocalError, Result, Tensor};

/// Indices have one of two dtypes.
pub(super) fn check_index_dtype(op: &'static str, indices: &Tensor) -> Result<()> {
    match indices.dtype() {
        DType::I64 | DType::I32 => Ok(()),
        got => Err(LocalError::WrongDType { op, got, want: DType::I64 }),
    }
}

/// The indices in order, all of them below `size`. Negative ones are not counted from the end: for the
/// operations that ask for these, PyTorch does not either.
pub(super) fn checked_indices(
    op: &'static str,
    indices: &Tensor,
    dim: usize,
    size: usize,
) -> Result<Vec<usize>> {
    numbers(op, indices, dim, size, false)
}

/// As [`checked_indices`], but negative indices count from the end.
pub(super) fn wrapped_indices(
    op: &'static str,
    indices: &Tensor,
    dim: usize,
    size: usize,
) -> Result<Vec<usize>> {
    numbers(op, indices, dim, size, true)
}

fn numbers(
    op: &'static str,
    indices: &Tensor,
    dim: usize,
    size: usize,
    wrap: bool,
) -> Result<Vec<usize>> {
    check_index_dtype(op, indices)?;
    let indices = indices.contiguous();
    let check = |number: i64| {
        // Sizes are those of memory, so they fit; an i64 plus one of them is checked.
        let counted =
            if wrap && number < 0 { number.checked_add(size as i64) } else { Some(number) };
        let index = counted.and_then(|index| usize::try_from(index).ok());
        let shown = isize::try_from(number).unwrap_or(isize::MAX);
        index.filter(|index| *index < size).ok_or(LocalError::IndexOutOfRange {
            op,
            index: shown,
            dim,
            size,
        })
    };
    match indices.dtype() {
        DType::I32 => indices.as_slice::<i32>()?.iter().map(|n| check(i64::from(*n))).collect(),
        _ => indices.as_slice::<i64>()?.iter().map(|n| check(*n)).collect(),
    }
}
