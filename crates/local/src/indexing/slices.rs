//! Slices of a dim, written to the places that a list of indices names: the opposite of
//! [`Tensor::index_select`].

use super::{
    accumulate::{ScatterReduce, accumulate, wide},
    bits::scalar_of,
    indices::{check_index_dtype, checked_indices},
    pick::check_one_dim,
    places::{Laid, Places, same_dtype, with_a_dim},
};
use crate::{
    LocalError, Result, Scalar, Tensor,
    dims::{Dims, normal_dim},
};

impl Tensor {
    /// A copy with `alpha` times slice `i` of the source added to slice `indices[i]` of a dim, in the order
    /// of the indices, which are not negative and may repeat. `alpha` is cast to the dtype first.
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor};
    /// let rows = Tensor::from_vec(vec![1, 2, 3, 4], &[2, 2])?;
    /// let list = Tensor::from_vec(vec![2_i64, 2], &[2])?;
    /// let sums = Tensor::zeros(&[3, 2], DType::I32)?.index_add(0, &list, &rows, 10)?;
    /// assert_eq!(sums.to_vec::<i32>()?, [0, 0, 0, 0, 40, 60]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn index_add(
        &self,
        dim: isize,
        indices: &Tensor,
        source: &Tensor,
        alpha: impl Into<Scalar>,
    ) -> Result<Tensor> {
        let (op, alpha) = ("index_add", alpha.into());
        self.with_slices(op, dim, indices, source, |into, places, source| {
            if alpha == Scalar::Int(1) {
                return accumulate(op, into, places, source, ScatterReduce::Sum, true);
            }
            let wide = wide(into.dtype());
            let factor = scalar_of(alpha, into.dtype())?.to_dtype(wide)?;
            let source = source.to_dtype(wide)?.mul(&factor)?;
            accumulate(op, into, places, &source, ScatterReduce::Sum, true)
        })
    }

    /// A copy with slice `i` of the source in place of slice `indices[i]` of a dim. The indices are not
    /// negative; if one repeats, the last slice stays.
    pub fn index_copy(&self, dim: isize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        self.with_slices("index_copy", dim, indices, source, |mut into, places, source| {
            places.put(&mut into, source)?;
            Ok(into)
        })
    }

    /// A copy with one value, cast to the dtype, in the slices of a dim at these indices.
    pub fn index_fill(
        &self,
        dim: isize,
        indices: &Tensor,
        value: impl Into<Scalar>,
    ) -> Result<Tensor> {
        let value = scalar_of(value.into(), self.dtype())?;
        let mut shape = Dims::from(with_a_dim(self)?.shape());
        let normal = normal_dim("index_fill", dim, &shape)?;
        shape[normal] = indices.numel();
        let source = value.expand(&shape)?;
        self.with_slices("index_fill", dim, indices, &source, |mut into, places, _| {
            places.fill(&mut into, &value)?;
            Ok(into)
        })
    }

    fn with_slices(
        &self,
        op: &'static str,
        dim: isize,
        indices: &Tensor,
        source: &Tensor,
        change: impl FnOnce(Tensor, &Places, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let (into, slices) = (with_a_dim(self)?, with_a_dim(source)?);
        let dim = normal_dim(op, dim, into.shape())?;
        check_one_dim(op, indices)?;
        check_index_dtype(op, indices)?;
        same_dtype(op, self, source)?;
        let mut shape = Dims::from(into.shape());
        shape[dim] = indices.numel();
        if slices.shape() != &shape[..] {
            return Err(LocalError::ShapeMismatch {
                op,
                from: source.shape().to_vec(),
                to: shape.to_vec(),
                why: "the source has one slice per index, each like those of the tensor",
            });
        }
        if [self, indices, source].iter().any(|tensor| tensor.is_meta()) {
            return Tensor::meta(self.shape(), self.dtype());
        }
        let numbers = checked_indices(op, indices, dim, into.shape()[dim])?;
        let into = into.contiguous();
        let laid = Laid::of(&into, 0);
        let places = Places::of_slices(&laid, &shape, dim, &numbers);
        drop(laid);
        change(into, &places, &slices)?.reshape(self.shape())
    }
}
