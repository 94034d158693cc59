//! The same values several times. All but the last of these lay a view with strides of zero over the
//! tensor and let it be copied.

use super::indices::check_index_dtype;
use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, normal_dim, numel},
};

impl Tensor {
    /// Copies side by side: `repeats[d]` of them in dim `d` of the result. There are as many numbers as
    /// dims, or more: the first ones then are new dims.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let x = Tensor::from_vec(vec![1, 2], &[2])?;
    /// assert_eq!(x.repeat(&[2, 2])?.to_vec::<i32>()?, [1, 2, 1, 2, 1, 2, 1, 2]);
    /// assert_eq!(x.repeat_interleave(2, None)?.to_vec::<i32>()?, [1, 1, 2, 2]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn repeat(&self, repeats: &[usize]) -> Result<Tensor> {
        self.repeated("repeat", repeats)
    }

    /// As [`repeat`](Tensor::repeat), but there may also be fewer numbers than dims: the first dims then are
    /// not repeated.
    pub fn tile(&self, repeats: &[usize]) -> Result<Tensor> {
        let missing = self.n_dims().saturating_sub(repeats.len());
        let all: Dims = std::iter::repeat_n(1, missing).chain(repeats.iter().copied()).collect();
        self.repeated("tile", &all)
    }

    /// Every slice of a dim `repeats` times in a row. Without a dim, every element of the tensor seen as one
    /// line.
    pub fn repeat_interleave(&self, repeats: usize, dim: Option<isize>) -> Result<Tensor> {
        let op = "repeat_interleave";
        let (lined, dim) = self.lined(op, dim)?;
        let (mut shape, mut strides) = (Dims::from(lined.shape()), Dims::from(lined.strides()));
        let mut result = shape.clone();
        result[dim] = result[dim].saturating_mul(repeats);
        numel(op, &result, self.dtype())?;
        shape.insert(dim + 1, repeats);
        strides.insert(dim + 1, 0);
        lined.view(shape, strides, lined.offset()).reshape(&result)
    }

    /// As [`repeat_interleave`](Tensor::repeat_interleave), with a number for each slice (`i64` or `i32`), or
    /// one for all of them.
    pub fn repeat_interleave_tensor(&self, repeats: &Tensor, dim: Option<isize>) -> Result<Tensor> {
        let op = "repeat_interleave_tensor";
        check_index_dtype(op, repeats)?;
        let (lined, dim) = self.lined(op, dim)?;
        let size = lined.shape()[dim];
        if repeats.n_dims() > 1 || repeats.numel() != size && repeats.numel() != 1 {
            return Err(LocalError::ShapeMismatch {
                op,
                from: repeats.shape().to_vec(),
                to: vec![size],
                why: "there is one number of repeats per slice, or one for all",
            });
        }
        if repeats.is_meta() {
            return Err(LocalError::Meta { op, shape: repeats.shape().to_vec() });
        }
        let numbers = repeats.to_dtype(DType::I64)?.reshape(&[repeats.numel()])?.expand(&[size])?;
        let numbers = numbers.to_vec::<i64>()?;
        let mut total = 0_usize;
        for number in &numbers {
            let number = usize::try_from(*number).map_err(|_| LocalError::BadNumber {
                op,
                name: "a number of repeats",
                got: number.to_string(),
                want: "zero or more",
            })?;
            total = total.saturating_add(number);
        }
        let mut shape = Dims::from(lined.shape());
        shape[dim] = total;
        // The list of indices must fit into memory as well.
        numel(op, &shape, self.dtype())?;
        numel(op, &[total], DType::I64)?;
        let list: Vec<i64> = (0_i64..)
            .zip(numbers)
            .flat_map(|(index, number)| std::iter::repeat_n(index, number as usize))
            .collect();
        lined.index_select(dim as isize, &Tensor::from_vec(list, &[total])?)
    }

    /// The tensor and a dim of it; without a dim, the tensor as one line and its dim.
    fn lined(&self, op: &'static str, dim: Option<isize>) -> Result<(Tensor, usize)> {
        match dim {
            Some(dim) => Ok((self.clone(), normal_dim(op, dim, self.shape())?)),
            None => Ok((self.reshape(&[self.numel()])?, 0)),
        }
    }

    fn repeated(&self, op: &'static str, repeats: &[usize]) -> Result<Tensor> {
        let Some(new) = repeats.len().checked_sub(self.n_dims()) else {
            return Err(LocalError::ShapeMismatch {
                op,
                from: self.shape().to_vec(),
                to: repeats.to_vec(),
                why: "there are fewer numbers of repeats than dims; give one for each, or use tile",
            });
        };
        let (mut shape, mut strides, mut result) = (Dims::new(), Dims::new(), Dims::new());
        for (dim, count) in repeats.iter().enumerate() {
            // A copy of the whole dim after the other: the number of the copy has stride zero.
            let old = dim.checked_sub(new);
            let (size, stride) = old.map_or((1, 1), |old| (self.shape()[old], self.strides()[old]));
            shape.extend([*count, size]);
            strides.extend([0, stride]);
            result.push(size.saturating_mul(*count));
        }
        numel(op, &result, self.dtype())?;
        self.view(shape, strides, self.offset()).reshape(&result)
    }
}
