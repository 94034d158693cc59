//! Elements by their index.

use super::{
    indices::{check_index_dtype, checked_indices, wrapped_indices},
    places::{Laid, Places, all_sums, dim_offsets, with_a_dim},
};
use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, normal_dim},
};

impl Tensor {
    /// The slices of a dim at these indices (`i64` or `i32`, at most one dim), in their order.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let rows = Tensor::from_vec(vec![1, 2, 3, 4, 5, 6], &[3, 2])?;
    /// let picked = rows.index_select(0, &Tensor::from_vec(vec![2_i64, 0, 2], &[3])?)?;
    /// assert_eq!(picked.to_vec::<i32>()?, [5, 6, 1, 2, 5, 6]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn index_select(&self, dim: isize, indices: &Tensor) -> Result<Tensor> {
        let op = "index_select";
        if self.n_dims() == 0 && indices.numel() == 1 {
            return with_a_dim(self)?.index_select(dim, indices)?.reshape(&[]);
        }
        let dim = normal_dim(op, dim, self.shape())?;
        check_one_dim(op, indices)?;
        let mut shape = Dims::from(self.shape());
        shape[dim] = indices.numel();
        if self.is_meta() || indices.is_meta() {
            check_index_dtype(op, indices)?;
            return Tensor::meta(&shape, self.dtype());
        }
        let indices = checked_indices(op, indices, dim, self.shape()[dim])?;
        let laid = Laid::of(self, dim + 1);
        let places = Places::of_slices(&laid, &shape, dim, &indices);
        places.pick(op, &laid.memory, &shape)
    }

    /// `out[i][j][k] = self[indices[i][j][k]][j][k]`, for `dim` 0: along a dim, the element that each index
    /// names. The other dims of `indices` are at most as large as those of the tensor.
    pub fn gather(&self, dim: isize, indices: &Tensor) -> Result<Tensor> {
        let op = "gather";
        let (source, list) = (with_a_dim(self)?, with_a_dim(indices)?);
        let dim = normal_dim(op, dim, source.shape())?;
        let fits = list.n_dims() == source.n_dims()
            && (0..source.n_dims())
                .all(|other| other == dim || list.shape()[other] <= source.shape()[other]);
        if !fits {
            return Err(LocalError::ShapeMismatch {
                op,
                from: indices.shape().to_vec(),
                to: self.shape().to_vec(),
                why: "the indices have as many dims as the tensor, and but for the gathered one none is larger",
            });
        }
        if self.is_meta() || indices.is_meta() {
            check_index_dtype(op, indices)?;
            return Tensor::meta(indices.shape(), self.dtype());
        }
        let numbers = checked_indices(op, &list, dim, source.shape()[dim])?;
        let laid = Laid::of(&source, source.n_dims());
        let places = Places::of_elements(&laid, list.shape(), dim, &numbers);
        places.pick(op, &laid.memory, indices.shape())
    }

    /// The elements at these indices (`i64` or `i32`) of the tensor seen as one line, in the shape of the
    /// indices. Negative ones count from the end.
    pub fn take(&self, indices: &Tensor) -> Result<Tensor> {
        if self.is_meta() || indices.is_meta() {
            check_index_dtype("take", indices)?;
            return Tensor::meta(indices.shape(), self.dtype());
        }
        let starts = wrapped_indices("take", indices, 0, self.numel())?;
        Places { starts, width: 1 }.pick("take", &self.contiguous(), indices.shape())
    }

    /// A new last dim of `n_classes` zeros with a one at each index; `i64`.
    pub fn one_hot(&self, n_classes: usize) -> Result<Tensor> {
        let mut shape = Dims::from(self.shape());
        shape.push(n_classes);
        if self.is_meta() {
            check_index_dtype("one_hot", self)?;
            return Tensor::meta(&shape, DType::I64);
        }
        let numbers = checked_indices("one_hot", self, self.n_dims(), n_classes)?;
        Tensor::write("one_hot", &shape, |out: &mut [i64]| {
            out.fill(0);
            for (row, index) in numbers.iter().enumerate() {
                out[row * n_classes + index] = 1;
            }
        })
    }
}

impl Places {
    /// The slices of a dim at these indices. `shape` has their number in place of the size of that dim, and
    /// the dims after it are consecutive.
    pub(super) fn of_slices(laid: &Laid, shape: &[usize], dim: usize, indices: &[usize]) -> Places {
        if shape.contains(&0) {
            return Places::none();
        }
        let stride = laid.strides[dim];
        let before = shape[..dim].iter().zip(&laid.strides);
        let mut lists: Vec<Vec<isize>> =
            before.map(|(size, stride)| dim_offsets(*size, *stride)).collect();
        lists.push(indices.iter().map(|index| *index as isize * stride).collect());
        let width = shape[dim + 1..].iter().product();
        Places { starts: all_sums(laid.start, &lists), width }
    }

    /// The elements at every position of `shape`, with these indices for their positions in one dim.
    pub(super) fn of_elements(
        laid: &Laid,
        shape: &[usize],
        dim: usize,
        indices: &[usize],
    ) -> Places {
        if shape.contains(&0) {
            return Places::none();
        }
        let mut strides = laid.strides.clone();
        let along = std::mem::take(&mut strides[dim]);
        let lists: Vec<Vec<isize>> =
            shape.iter().zip(&strides).map(|(size, stride)| dim_offsets(*size, *stride)).collect();
        let mut starts = all_sums(laid.start, &lists);
        for (start, index) in starts.iter_mut().zip(indices) {
            *start = start.wrapping_add_signed(*index as isize * along);
        }
        Places { starts, width: 1 }
    }
}

/// Lists of slices have one dim; one index may have none.
pub(super) fn check_one_dim(op: &'static str, indices: &Tensor) -> Result<()> {
    if indices.n_dims() <= 1 {
        return Ok(());
    }
    Err(LocalError::ShapeMismatch {
        op,
        from: indices.shape().to_vec(),
        to: vec![indices.numel()],
        why: "the indices have one dim; reshape them",
    })
}
