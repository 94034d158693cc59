//! Indices into a dim of which a rank holds a part.

use std::ops::Range;

use dtensor_layout::DType;
use dtensor_local::{LocalError, Tensor};

/// Indices into a dim, as a rank sees them that holds a range of it.
pub(super) struct Picks {
    /// Counted from the first that is held, and 0 for the others.
    pub(super) here: Tensor,
    /// Whether it is held, and not ignored.
    pub(super) is_held: Tensor,
    /// Whether it is not ignored.
    pub(super) is_used: Tensor,
}

impl Picks {
    /// Refuses an index that is nowhere in the dim, whoever holds what.
    pub(super) fn new(
        op: &'static str,
        indices: &Tensor,
        ignored: Option<i64>,
        (dim, held, size): (usize, Range<usize>, usize),
    ) -> Result<Picks, LocalError> {
        let indices = indices.to_dtype(DType::I64)?.contiguous();
        let is_strange = |index: &i64| {
            Some(*index) != ignored && usize::try_from(*index).map_or(true, |index| index >= size)
        };
        if !indices.is_meta()
            && let Some(index) = indices.as_slice::<i64>()?.iter().find(|index| is_strange(index))
        {
            return Err(LocalError::IndexOutOfRange { op, index: *index as isize, dim, size });
        }
        let number = |at: usize| i64::try_from(at).unwrap_or(i64::MAX);
        let is_used = match ignored {
            Some(ignored) => indices.ne_scalar(ignored)?,
            None => indices.eq(&indices)?,
        };
        let is_held = indices
            .ge_scalar(number(held.start))?
            .logical_and(&indices.lt_scalar(number(held.end))?)?;
        let is_held = is_held.logical_and(&is_used)?;
        let here = indices.sub_scalar(number(held.start))?;
        Ok(Picks { here: here.masked_fill(&is_held.logical_not()?, 0)?, is_held, is_used })
    }

    /// The elements of `x` along `dim`, which the result does not have, and 0 where nothing is held.
    pub(super) fn pick(&self, x: &Tensor, dim: usize) -> Result<Tensor, LocalError> {
        if x.shape()[dim] == 0 {
            return Tensor::zeros(self.here.shape(), x.dtype());
        }
        let picked = x.gather(dim as isize, &self.here.unsqueeze(dim as isize)?)?;
        picked.squeeze(dim as isize)?.masked_fill(&self.is_held.logical_not()?, 0)
    }

    /// The elements of a list that has one per index of the dim, and 0 where nothing is held.
    pub(super) fn pick_from(&self, list: &Tensor) -> Result<Tensor, LocalError> {
        if list.numel() == 0 {
            return Tensor::zeros(self.here.shape(), list.dtype());
        }
        let flat = self.here.reshape(&[self.here.numel()])?;
        let picked = list.index_select(0, &flat)?.reshape(self.here.shape())?;
        picked.masked_fill(&self.is_held.logical_not()?, 0)
    }

    /// Along a new dim of so many indices, whether each is the one.
    pub(super) fn one_hot(&self, dim: usize, n: usize) -> Result<Tensor, LocalError> {
        let end = i64::try_from(n).unwrap_or(i64::MAX);
        let numbers = match self.here.is_meta() {
            true => Tensor::meta(&[n], DType::I64)?,
            false => Tensor::arange(0, end, 1, DType::I64)?,
        };
        let mut shape = vec![1; self.here.n_dims() + 1];
        shape[dim] = n;
        let is_one = numbers.reshape(&shape)?.eq(&self.here.unsqueeze(dim as isize)?)?;
        is_one.logical_and(&self.is_held.unsqueeze(dim as isize)?)
    }
}
