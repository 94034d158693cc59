//! Diagonals: seen, laid out, summed.

use super::places::{Places, all_sums, dim_offsets};
use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, normal_dim},
};

impl Tensor {
    /// The diagonal of two dims, as a view: they disappear, and a new last dim runs along it. `offset`
    /// columns (`dim2`) further right, or rows (`dim1`) further down if it is negative.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let x = Tensor::from_vec((0..6).collect(), &[2, 3])?;
    /// assert_eq!(x.diagonal(0, 0, 1)?.to_vec::<i32>()?, [0, 4]);
    /// assert_eq!(x.diagonal(1, 0, 1)?.to_vec::<i32>()?, [1, 5]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn diagonal(&self, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor> {
        let (rows, columns) = two_dims("diagonal", dim1, dim2, self.shape())?;
        let (down, right) = skipped(offset);
        let length = self.shape()[rows]
            .saturating_sub(down)
            .min(self.shape()[columns].saturating_sub(right));
        let (mut shape, mut strides) = (Dims::from(self.shape()), Dims::from(self.strides()));
        let (row_stride, column_stride) = (strides[rows], strides[columns]);
        for dim in [rows.max(columns), rows.min(columns)] {
            shape.remove(dim);
            strides.remove(dim);
        }
        shape.push(length);
        strides.push(row_stride + column_stride);
        // Without elements any place will do, and the first one may be beyond the memory.
        let start = if shape.contains(&0) {
            0
        } else {
            let first = down as isize * row_stride + right as isize * column_stride;
            self.offset().wrapping_add_signed(first)
        };
        Ok(self.view(shape, strides, start))
    }

    /// A square matrix with the values of one dim on a diagonal and zeros elsewhere, or the diagonal of a
    /// matrix; `offset` as for [`diagonal`](Tensor::diagonal).
    pub fn diag(&self, offset: isize) -> Result<Tensor> {
        match self.n_dims() {
            1 => self.diag_embed(offset, -2, -1),
            2 => self.diagonal(offset, 0, 1),
            n_dims => Err(LocalError::BadNumber {
                op: "diag",
                name: "the number of dims",
                got: n_dims.to_string(),
                want: "1 or 2, or use diagonal or diag_embed",
            }),
        }
    }

    /// The values of the last dim on a diagonal of two new dims, `dim1` and `dim2` of the result, with
    /// zeros elsewhere: what [`diagonal`](Tensor::diagonal) would take it from.
    pub fn diag_embed(&self, offset: isize, dim1: isize, dim2: isize) -> Result<Tensor> {
        let op = "diag_embed";
        let (down, right) = skipped(offset);
        let length = self.shape().last().copied().unwrap_or(1);
        let size = length.saturating_add(down.max(right));
        let mut shape = Dims::from(self.shape());
        shape.pop();
        shape.extend([size, size]);
        // The new dims are among as many as the result has, one more than this tensor.
        let names: Dims = std::iter::repeat_n(0, self.n_dims() + 1).collect();
        let (rows, columns) = two_dims(op, dim1, dim2, &names)?;
        let embedded = if self.is_meta() {
            Tensor::meta(&shape, self.dtype())?
        } else {
            let mut zeros = Tensor::zeros(&shape, self.dtype())?;
            if self.numel() > 0 {
                let matrices = dim_offsets(self.numel() / length, (size * size) as isize);
                let lists = [matrices, dim_offsets(length, size as isize + 1)];
                let places = Places { starts: all_sums(down * size + right, &lists), width: 1 };
                places.put(&mut zeros, self)?;
            }
            zeros
        };
        embedded.movedim(&[-2, -1], &[rows as isize, columns as isize])
    }

    /// The sum of the diagonal of a matrix; dtypes as for [`sum`](Tensor::sum), but not `bool`.
    pub fn trace(&self) -> Result<Tensor> {
        let op = "trace";
        if self.dtype() == DType::Bool {
            return Err(LocalError::UnsupportedDType { op, dtype: DType::Bool });
        }
        if self.n_dims() != 2 {
            return Err(LocalError::BadNumber {
                op,
                name: "the number of dims",
                got: self.n_dims().to_string(),
                want: "2, or sum a diagonal",
            });
        }
        self.diagonal(0, 0, 1)?.sum(&[], false)
    }
}

/// Rows and columns before the first element of a diagonal.
fn skipped(offset: isize) -> (usize, usize) {
    if offset < 0 { (offset.unsigned_abs(), 0) } else { (0, offset.unsigned_abs()) }
}

/// Two dims that are not the same.
pub(super) fn two_dims(
    op: &'static str,
    dim1: isize,
    dim2: isize,
    shape: &[usize],
) -> Result<(usize, usize)> {
    let normal = (normal_dim(op, dim1, shape)?, normal_dim(op, dim2, shape)?);
    if normal.0 == normal.1 {
        return Err(LocalError::RepeatedDim { op, dim: dim2, dims: vec![dim1, dim2] });
    }
    Ok(normal)
}
