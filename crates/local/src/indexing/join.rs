//! Several tensors to one, and one to several.

use super::bits::{Bits, GRAIN, bits, by_size, write_bits};
use crate::{
    DType, LocalError, Result, Tensor,
    dims::{Dims, normal_dim},
    threads::for_pieces_of,
};

impl Tensor {
    /// Tensors one after the other along a dim. All other sizes and the dtypes are equal.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let a = Tensor::from_vec(vec![1, 2], &[1, 2])?;
    /// let b = Tensor::from_vec(vec![3, 4, 5, 6], &[2, 2])?;
    /// assert_eq!(Tensor::cat(&[&a, &b], 0)?.to_vec::<i32>()?, [1, 2, 3, 4, 5, 6]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn cat(tensors: &[&Tensor], dim: isize) -> Result<Tensor> {
        let Some(first) = tensors.first() else {
            return Err(LocalError::BadNumber {
                op: "cat",
                name: "the number of tensors",
                got: "0".to_string(),
                want: "at least one",
            });
        };
        let dim = normal_dim("cat", dim, first.shape())?;
        let mut shape = Dims::from(first.shape());
        shape[dim] = 0;
        for tensor in tensors {
            if tensor.dtype() != first.dtype() {
                return Err(LocalError::WrongDType {
                    op: "cat",
                    got: tensor.dtype(),
                    want: first.dtype(),
                });
            }
            let same_dims = tensor.n_dims() == first.n_dims();
            let same_sizes = (0..first.n_dims())
                .all(|other| other == dim || tensor.shape().get(other) == first.shape().get(other));
            if !same_dims || !same_sizes {
                return Err(LocalError::ShapeMismatch {
                    op: "cat",
                    from: tensor.shape().to_vec(),
                    to: first.shape().to_vec(),
                    why: "all sizes but that of the joined dim must be equal",
                });
            }
            // Sums of sizes of what is in memory fit; those of meta tensors need not.
            shape[dim] = shape[dim].saturating_add(tensor.shape()[dim]);
        }
        if tensors.iter().any(|tensor| tensor.is_meta()) {
            return Tensor::meta(&shape, first.dtype());
        }
        let whole: Vec<Tensor> = tensors.iter().map(|tensor| tensor.contiguous()).collect();
        by_size!(first.dtype(), U => cat_as::<U>(&whole, dim, &shape, first.dtype()))
    }

    /// Tensors of one shape along a new dim.
    pub fn stack(tensors: &[&Tensor], dim: isize) -> Result<Tensor> {
        let with_dim =
            tensors.iter().map(|tensor| tensor.unsqueeze(dim)).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&with_dim.iter().collect::<Vec<_>>(), dim)
    }

    /// Views of consecutive stretches of a dim, of these lengths, which together are its size.
    pub fn split(&self, lengths: &[usize], dim: isize) -> Result<Vec<Tensor>> {
        let normal = normal_dim("split", dim, self.shape())?;
        let total = lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(*length));
        if total != Some(self.shape()[normal]) {
            return Err(LocalError::ShapeMismatch {
                op: "split",
                from: self.shape().to_vec(),
                to: lengths.to_vec(),
                why: "the lengths must add up to the size of the dim",
            });
        }
        let mut start = 0;
        let mut parts = Vec::with_capacity(lengths.len());
        for length in lengths {
            parts.push(self.narrow(dim, start, *length)?);
            start += length;
        }
        Ok(parts)
    }

    /// A dim cut into `parts` views, as `torch.chunk` cuts: ceil-sized, the last ones short. Parts that
    /// would be empty are there as well, unlike in PyTorch, so that there are as many as asked for.
    pub fn chunk(&self, parts: usize, dim: isize) -> Result<Vec<Tensor>> {
        let size = self.shape()[normal_dim("chunk", dim, self.shape())?];
        if parts == 0 {
            return Err(LocalError::BadNumber {
                op: "chunk",
                name: "the number of parts",
                got: "0".to_string(),
                want: "at least one",
            });
        }
        let length = size.div_ceil(parts);
        let lengths: Vec<usize> = (0..parts)
            .map(|part| length.min(size.saturating_sub(part.saturating_mul(length))))
            .collect();
        self.split(&lengths, dim)
    }

    /// A dim rotated: element `i` comes to `(i + shift) % size`.
    pub fn roll(&self, shift: isize, dim: isize) -> Result<Tensor> {
        let normal = normal_dim("roll", dim, self.shape())?;
        let size = self.shape()[normal];
        if size == 0 {
            return Ok(self.clone());
        }
        let shift = shift.rem_euclid(size as isize) as usize;
        let (head, tail) =
            (self.narrow(dim, 0, size - shift)?, self.narrow(dim, size - shift, shift)?);
        Tensor::cat(&[&tail, &head], dim)
    }
}

/// Of tensors whose elements are consecutive and as large as `U`.
fn cat_as<U: Bits>(
    tensors: &[Tensor],
    dim: usize,
    shape: &[usize],
    dtype: DType,
) -> Result<Tensor> {
    let inner: usize = shape[dim + 1..].iter().product();
    let row = shape[dim] * inner;
    let parts = tensors
        .iter()
        .map(|tensor| Ok((bits::<U>(tensor)?, tensor.shape()[dim] * inner)))
        .collect::<Result<Vec<(&[U], usize)>>>()?;
    let join = |out: &mut [U]| {
        if out.is_empty() {
            return;
        }
        // Each row of the result has a stretch of every tensor.
        for_pieces_of(out, row, GRAIN.div_ceil(row), |rows, out| {
            for (index, mut rest) in rows.zip(out.chunks_exact_mut(row)) {
                for (values, length) in &parts {
                    let (to, later) = rest.split_at_mut(*length);
                    to.copy_from_slice(&values[index * length..(index + 1) * length]);
                    rest = later;
                }
            }
        });
    };
    // SAFETY: The size fits, and the bits are those of values of the same dtype.
    unsafe { write_bits("cat", shape, dtype, join) }
}
