//! Elements by their index.

use super::by_dtype;
use crate::{
    DType, Element, LocalError, Result, Tensor,
    dims::{Dims, normal_dim},
};

impl Tensor {
    /// The slices of a dim at these indices (`i64` or `i32`, one dim), in their order.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let rows = Tensor::from_vec(vec![1, 2, 3, 4, 5, 6], &[3, 2])?;
    /// let picked = rows.index_select(0, &Tensor::from_vec(vec![2_i64, 0, 2], &[3])?)?;
    /// assert_eq!(picked.to_vec::<i32>()?, [5, 6, 1, 2, 5, 6]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn index_select(&self, dim: isize, indices: &Tensor) -> Result<Tensor> {
        let dim = normal_dim("index_select", dim, self.shape())?;
        if indices.n_dims() != 1 {
            return Err(LocalError::ShapeMismatch {
                op: "index_select",
                from: indices.shape().to_vec(),
                to: vec![indices.numel()],
                why: "the indices have one dim; reshape them",
            });
        }
        let mut shape = Dims::from(self.shape());
        shape[dim] = indices.numel();
        if self.is_meta() || indices.is_meta() {
            check_index_dtype("index_select", indices)?;
            return Tensor::meta(&shape, self.dtype());
        }
        let indices = checked_indices("index_select", indices, dim, self.shape()[dim])?;
        by_dtype!(self.dtype(), T => index_select_as::<T>(self, dim, &indices, &shape))
    }

    /// `out[i][j][k] = self[indices[i][j][k]][j][k]`, for `dim` 0: along a dim, the element that each index
    /// names. The other dims of `indices` are at most as large as those of the tensor.
    pub fn gather(&self, dim: isize, indices: &Tensor) -> Result<Tensor> {
        let dim = normal_dim("gather", dim, self.shape())?;
        let fits = indices.n_dims() == self.n_dims()
            && (0..self.n_dims())
                .all(|other| other == dim || indices.shape()[other] <= self.shape()[other]);
        if !fits {
            return Err(LocalError::ShapeMismatch {
                op: "gather",
                from: indices.shape().to_vec(),
                to: self.shape().to_vec(),
                why: "the indices have as many dims as the tensor, and but for the gathered one none is larger",
            });
        }
        if self.is_meta() || indices.is_meta() {
            check_index_dtype("gather", indices)?;
            return Tensor::meta(indices.shape(), self.dtype());
        }
        let size = self.shape()[dim];
        let numbers = checked_indices("gather", indices, dim, size)?;
        // Only the part of the other dims that is asked for.
        let mut source = self.clone();
        for other in (0..self.n_dims()).filter(|other| *other != dim) {
            source = source.narrow(other as isize, 0, indices.shape()[other])?;
        }
        let inner: usize = indices.shape()[dim + 1..].iter().product();
        let length = indices.shape()[dim];
        by_dtype!(self.dtype(), T => {
            let source = source.contiguous();
            let values = source.as_slice::<T>()?;
            Tensor::write("gather", indices.shape(), |out: &mut [T]| {
                for (position, (out, index)) in out.iter_mut().zip(&numbers).enumerate() {
                    let (outer, within) = (position / (length * inner), position % inner);
                    *out = values[(outer * size + index) * inner + within];
                }
            })
        })
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

fn index_select_as<T: Element>(
    tensor: &Tensor,
    dim: usize,
    indices: &[usize],
    shape: &[usize],
) -> Result<Tensor> {
    let whole = tensor.contiguous();
    let values = whole.as_slice::<T>()?;
    let inner: usize = shape[dim + 1..].iter().product();
    let size = tensor.shape()[dim];
    Tensor::write("index_select", shape, |out: &mut [T]| {
        if inner == 0 || out.is_empty() {
            return;
        }
        for (row, out) in out.chunks_exact_mut(inner).enumerate() {
            let (outer, position) = (row / indices.len(), row % indices.len());
            let from = (outer * size + indices[position]) * inner;
            out.copy_from_slice(&values[from..from + inner]);
        }
    })
}

fn check_index_dtype(op: &'static str, indices: &Tensor) -> Result<()> {
    match indices.dtype() {
        DType::I64 | DType::I32 => Ok(()),
        got => Err(LocalError::WrongDType { op, got, want: DType::I64 }),
    }
}

/// The indices in order, all of them below `size`. Negative ones are not counted from the end: PyTorch
/// does not either.
fn checked_indices(
    op: &'static str,
    indices: &Tensor,
    dim: usize,
    size: usize,
) -> Result<Vec<usize>> {
    check_index_dtype(op, indices)?;
    let numbers: Vec<i64> = match indices.dtype() {
        DType::I32 => indices.to_vec::<i32>()?.into_iter().map(i64::from).collect(),
        _ => indices.to_vec::<i64>()?,
    };
    let check = |number: i64| {
        let index = usize::try_from(number).ok().filter(|index| *index < size);
        let shown = isize::try_from(number).unwrap_or(isize::MAX);
        index.ok_or(LocalError::IndexOutOfRange { op, index: shown, dim, size })
    };
    numbers.into_iter().map(check).collect()
}
