//! Shapes and strides, without an allocation for up to six dims.

use smallvec::SmallVec;

use crate::{DType, LocalError, Result};

/// Dims that need no allocation.
const INLINE: usize = 6;

/// One number per dim.
pub(crate) type Dims<T = usize> = SmallVec<[T; INLINE]>;

/// Number of elements of a shape, checked so that their bytes fit into a buffer.
#[inline]
pub(crate) fn numel(op: &'static str, shape: &[usize], dtype: DType) -> Result<usize> {
    let too_large = || LocalError::TooLarge { op, shape: shape.to_vec(), dtype };
    if shape.contains(&0) {
        return Ok(0);
    }
    let numel =
        shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size)).ok_or_else(too_large)?;
    let bytes = numel.checked_mul(dtype.size()).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.map(|_| numel).ok_or_else(too_large)
}

/// The strides of consecutive elements, the last dim varying fastest.
#[inline]
pub(crate) fn contiguous_strides(shape: &[usize]) -> Dims<isize> {
    // Without a loop that fills it where there are few dims, as nearly always.
    let mut strides: Dims<isize> = match shape.len() {
        n @ ..=INLINE => SmallVec::from_buf_and_len([1; INLINE], n),
        n => SmallVec::from_elem(1, n),
    };
    for dim in (1..shape.len()).rev() {
        // An empty tensor has no elements to be apart: its sizes may be of any product, which may wrap.
        strides[dim - 1] = strides[dim].wrapping_mul(shape[dim].max(1) as isize);
    }
    strides
}

/// The shape that all of these can be expanded to: dims are aligned at the last, and size 1 fits every
/// size.
pub(crate) fn broadcast<'a>(
    op: &'static str,
    shapes: impl Iterator<Item = &'a [usize]> + Clone,
) -> Result<Dims> {
    let n_dims = shapes.clone().map(<[usize]>::len).max().unwrap_or(0);
    let mut common: Dims = SmallVec::from_elem(1, n_dims);
    for shape in shapes.clone() {
        for (so_far, size) in common.iter_mut().rev().zip(shape.iter().rev()) {
            if *so_far == 1 {
                *so_far = *size;
            } else if *size != 1 && size != so_far {
                return Err(LocalError::ShapeMismatch {
                    op,
                    from: shape.to_vec(),
                    to: shapes.clone().next().unwrap_or_default().to_vec(),
                    why: "dims, aligned at the last, must be equal or 1; expand or reshape one of them",
                });
            }
        }
    }
    Ok(common)
}

/// The dim of a shape that a number names, which may count from the end.
pub fn normal_dim(op: &'static str, dim: isize, shape: &[usize]) -> Result<usize> {
    let counted = if dim < 0 { dim.checked_add_unsigned(shape.len()) } else { Some(dim) };
    let normal = counted.and_then(|dim| usize::try_from(dim).ok()).filter(|dim| *dim < shape.len());
    normal.ok_or_else(|| LocalError::DimOutOfRange { op, dim, shape: shape.to_vec() })
}
