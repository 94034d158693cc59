//! A box of a tensor, overwritten.

use std::ops::Range;

use super::places::{Places, all_sums, dim_offsets, expand_for};
use crate::{
    LocalError, Result, Tensor,
    dims::{Dims, contiguous_strides},
};

impl Tensor {
    /// A copy with these values in a box: one range per dim, those that are missing at the end taking all of
    /// their dim. The values are broadcast to the box and cast to the dtype, as by `x[a:b] = values`.
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor};
    /// let zeros = Tensor::zeros(&[2, 4], DType::I32)?;
    /// let x = zeros.slice_assign(&[0..2, 1..3], &Tensor::from_vec(vec![1, 2], &[2])?)?;
    /// assert_eq!(x.to_vec::<i32>()?, [0, 1, 2, 0, 0, 1, 2, 0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn slice_assign(&self, ranges: &[Range<usize>], values: &Tensor) -> Result<Tensor> {
        let mut into = self.clone();
        assign("slice_assign", &mut into, ranges, values)?;
        Ok(into)
    }

    /// As [`slice_assign`](Tensor::slice_assign), in place. If somebody else can see the memory it is copied
    /// first.
    pub fn slice_assign_in_place(
        &mut self,
        ranges: &[Range<usize>],
        values: &Tensor,
    ) -> Result<()> {
        assign("slice_assign_in_place", self, ranges, values)
    }
}

fn assign(
    op: &'static str,
    into: &mut Tensor,
    ranges: &[Range<usize>],
    values: &Tensor,
) -> Result<()> {
    if ranges.len() > into.n_dims() {
        return Err(LocalError::BadNumber {
            op,
            name: "the number of ranges",
            got: ranges.len().to_string(),
            want: "at most one per dim",
        });
    }
    let mut shape = Dims::from(into.shape());
    let mut firsts: Dims = shape.iter().map(|_| 0).collect();
    for (dim, range) in ranges.iter().enumerate() {
        let (start, end, size) = (range.start, range.end, shape[dim]);
        if start > end || end > size {
            return Err(LocalError::BadRange { op, start, end, step: 1, dim, size });
        }
        (firsts[dim], shape[dim]) = (start, end - start);
    }
    let values = expand_for(op, values, &shape)?;
    if into.is_meta() {
        return Ok(());
    }
    if values.is_meta() {
        // What becomes of the tensor is not known: it has no values any more either.
        *into = Tensor::meta(into.shape(), into.dtype())?;
        return Ok(());
    }
    if shape.contains(&0) {
        return Ok(());
    }
    let places = box_places(into.shape(), &firsts, &shape);
    places.put(into, &values.to_dtype(into.dtype())?)
}

/// The runs of a box that starts at an index: the dims after the last one that is cut are taken whole, and
/// with that one they are one run.
fn box_places(sizes: &[usize], firsts: &[usize], shape: &[usize]) -> Places {
    let strides = contiguous_strides(sizes);
    let start = firsts.iter().zip(&strides).map(|(first, stride)| first * *stride as usize).sum();
    let cut = (0..sizes.len()).rev().find(|dim| shape[*dim] < sizes[*dim]).unwrap_or(0);
    let before = shape[..cut].iter().zip(&strides);
    let lists: Vec<Vec<isize>> = before.map(|(size, stride)| dim_offsets(*size, *stride)).collect();
    Places { starts: all_sums(start, &lists), width: shape[cut..].iter().product() }
}
