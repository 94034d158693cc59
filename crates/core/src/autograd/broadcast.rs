//! What broadcasting does to gradients.

use crate::{DTensor, Result};

impl DTensor {
    /// The sum over the dims along which a tensor of `shape` was broadcast to that of `self`: its gradient, given that of
    /// what it was broadcast to.
    pub(crate) fn sum_to(&self, shape: &[usize]) -> Result<DTensor> {
        if self.shape() == shape {
            return Ok(self.clone());
        }
        let added = self.n_dims().saturating_sub(shape.len());
        let is_broadcast =
            |dim: &usize| *dim < added || (shape[*dim - added] == 1 && self.shape()[*dim] != 1);
        let dims: Vec<isize> =
            (0..self.n_dims()).filter(is_broadcast).map(usize::cast_signed).collect();
        let sum = if dims.is_empty() { self.clone() } else { self.sum(&dims, true)? };
        if sum.shape() == shape {
            return Ok(sum);
        }
        sum.reshape(&shape.iter().map(|size| size.cast_signed()).collect::<Vec<_>>())
    }
}
