//! Which indices a rank holds, and the names of dims in rules.

use std::ops::Range;

use dtensor_layout::{Placement, ReduceOp};
use dtensor_local::{DType, LocalError, Tensor};

use crate::op::LocalContext;

/// Of a list of indices those that name something in the part of a rank.
pub(in crate::ops) struct Hits {
    /// Where they are in the list, as `i64`.
    pub(in crate::ops) positions: Tensor,
    /// What they name, counted in the part, as `i64`.
    pub(in crate::ops) indices: Tensor,
}

impl Hits {
    /// Of indices of the whole dim, those in `held`.
    pub(in crate::ops) fn of(numbers: &[usize], held: &Range<usize>) -> Result<Hits, LocalError> {
        let found = numbers.iter().enumerate().filter(|(_, number)| held.contains(number));
        Hits::from_pairs(found.map(|(position, number)| (position, number - held.start)))
    }

    /// From pairs of a position and what it names.
    pub(in crate::ops) fn from_pairs(
        pairs: impl Iterator<Item = (usize, usize)>,
    ) -> Result<Hits, LocalError> {
        let (positions, indices): (Vec<i64>, Vec<i64>) =
            pairs.map(|(position, index)| (position as i64, index as i64)).unzip();
        let n = positions.len();
        Ok(Hits {
            positions: Tensor::from_vec(positions, &[n])?,
            indices: Tensor::from_vec(indices, &[n])?,
        })
    }
}

/// Tensors of indices as numbers of the *whole* dim, checked against its size, so that what is wrong is
/// wrong on every rank that sees the list. Negative ones count from the end if `wrap`.
pub(in crate::ops) fn numbers(
    op: &'static str,
    indices: &Tensor,
    dim: usize,
    size: usize,
    wrap: bool,
) -> Result<Vec<usize>, LocalError> {
    if !matches!(indices.dtype(), DType::I64 | DType::I32) {
        return Err(LocalError::WrongDType { op, got: indices.dtype(), want: DType::I64 });
    }
    let check = |number: &i64| {
        let end = i64::try_from(size).unwrap_or(i64::MAX);
        let counted = if wrap && *number < 0 { number.saturating_add(end) } else { *number };
        let index = usize::try_from(counted).ok().filter(|index| *index < size);
        let shown = isize::try_from(*number).unwrap_or(isize::MAX);
        index.ok_or(LocalError::IndexOutOfRange { op, index: shown, dim, size })
    };
    let indices = indices.to_dtype(DType::I64)?.contiguous();
    indices.as_slice::<i64>()?.iter().map(check).collect()
}

/// The indices of every dim of an operand that the rank holds. Without dims, as of one dim of size 1.
pub(in crate::ops) fn ranges(
    context: &LocalContext,
    operand: usize,
    local: &Tensor,
) -> Vec<Range<usize>> {
    if local.n_dims() == 0 {
        return std::iter::once(0..1).collect();
    }
    let sizes = local.shape().iter().enumerate();
    sizes.map(|(dim, size)| context.operand_range(operand, dim, *size)).collect()
}

/// The tensor, but with one dim of size 1 if it has none.
pub(in crate::ops) fn with_a_dim(tensor: &Tensor) -> Result<Tensor, LocalError> {
    if tensor.n_dims() == 0 { tensor.reshape(&[1]) } else { Ok(tensor.clone()) }
}

/// A dim that may count from the end, of a shape whose operation has accepted it. Without dims it is the
/// first.
pub(in crate::ops) fn normal(dim: isize, n_dims: usize) -> usize {
    let counted = if dim < 0 { dim.saturating_add_unsigned(n_dims.max(1)) } else { dim };
    usize::try_from(counted).unwrap_or(0)
}

/// Whether this rank leaves these operands out of a pending sum or product. They are whole on an axis on
/// which the result is pending; so the first rank of the axis brings them in, and the others do not.
pub(in crate::ops) fn is_left_out(context: &LocalContext, operands: &[usize]) -> bool {
    let Some(result) = context.result(0) else { return false };
    let is_whole = |axis: usize| {
        let layouts = operands.iter().filter_map(|operand| context.operand(*operand));
        layouts.into_iter().all(|layout| layout.placements()[axis] == Placement::Replicate)
    };
    result.placements().iter().enumerate().any(|(axis, placement)| {
        let counts = matches!(placement, Placement::Partial(ReduceOp::Sum | ReduceOp::Product));
        counts && context.coord()[axis] != 0 && is_whole(axis)
    })
}

/// The name of a dim in a rule. Tensors have families of six letters each.
pub(in crate::ops) fn letter(family: char, dim: usize) -> String {
    let letter = (family..='z').nth(dim % 6).unwrap_or('z');
    match dim / 6 {
        0 => letter.to_string(),
        number => format!("{letter}{number}"),
    }
}

/// Families of names: of the tensor, of indices, of a source, of a result with dims of its own.
pub(in crate::ops) const TENSOR: char = 'a';
pub(in crate::ops) const LIST: char = 'i';
pub(in crate::ops) const SOURCE: char = 'o';
pub(in crate::ops) const RESULT: char = 'u';

/// The names of all dims of a tensor.
pub(in crate::ops) fn letters(family: char, n_dims: usize) -> Vec<String> {
    (0..n_dims).map(|dim| letter(family, dim)).collect()
}
