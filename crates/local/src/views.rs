//! Views: other shapes of the same memory.

use crate::{
    LocalError, Result, Tensor,
    dims::{Dims, contiguous_strides, normal_dim, numel},
};

impl Tensor {
    /// The dims in another order: dim `i` of the result is dim `dims[i]`.
    pub fn permute(&self, dims: &[isize]) -> Result<Tensor> {
        let not_an_order = || LocalError::NotAPermutation {
            op: "permute",
            dims: dims.to_vec(),
            n_dims: self.n_dims(),
        };
        let mut normal = Dims::new();
        for dim in dims {
            let dim = normal_dim("permute", *dim, self.shape())?;
            if normal.contains(&dim) {
                return Err(not_an_order());
            }
            normal.push(dim);
        }
        if normal.len() != self.n_dims() {
            return Err(not_an_order());
        }
        let shape = normal.iter().map(|dim| self.shape()[*dim]).collect();
        let strides = normal.iter().map(|dim| self.strides()[*dim]).collect();
        Ok(self.view(shape, strides, self.offset()))
    }

    /// Two dims exchanged.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Tensor> {
        let (a, b) =
            (normal_dim("transpose", a, self.shape())?, normal_dim("transpose", b, self.shape())?);
        let (mut shape, mut strides) = (Dims::from(self.shape()), Dims::from(self.strides()));
        shape.swap(a, b);
        strides.swap(a, b);
        Ok(self.view(shape, strides, self.offset()))
    }

    /// `length` indices of a dim, from `start`.
    pub fn narrow(&self, dim: isize, start: usize, length: usize) -> Result<Tensor> {
        let end = start.saturating_add(length);
        self.slice_named("narrow", dim, start, end, 1)
    }

    /// Every `step`-th index of a dim from `start` to before `end`.
    pub fn slice(&self, dim: isize, start: usize, end: usize, step: usize) -> Result<Tensor> {
        self.slice_named("slice", dim, start, end, step)
    }

    /// One index of a dim, which disappears. The index may count from the end.
    pub fn select(&self, dim: isize, index: isize) -> Result<Tensor> {
        let dim = normal_dim("select", dim, self.shape())?;
        let size = self.shape()[dim];
        let counted = if index < 0 { index.checked_add_unsigned(size) } else { Some(index) };
        let normal =
            counted.and_then(|index| usize::try_from(index).ok()).filter(|index| *index < size);
        let normal =
            normal.ok_or(LocalError::IndexOutOfRange { op: "select", index, dim, size })?;
        let (mut shape, mut strides) = (Dims::from(self.shape()), Dims::from(self.strides()));
        shape.remove(dim);
        let stride = strides.remove(dim);
        let offset = self.moved(normal, stride, &shape);
        Ok(self.view(shape, strides, offset))
    }

    /// Without a dim of size 1.
    pub fn squeeze(&self, dim: isize) -> Result<Tensor> {
        let normal = normal_dim("squeeze", dim, self.shape())?;
        let (mut shape, mut strides) = (Dims::from(self.shape()), Dims::from(self.strides()));
        if shape[normal] == 1 {
            shape.remove(normal);
            strides.remove(normal);
        }
        Ok(self.view(shape, strides, self.offset()))
    }

    /// With a new dim of size 1 before dim `dim` of the result.
    pub fn unsqueeze(&self, dim: isize) -> Result<Tensor> {
        let (mut shape, mut strides) = (Dims::from(self.shape()), Dims::from(self.strides()));
        shape.push(1);
        let dim = normal_dim("unsqueeze", dim, &shape)?;
        shape.pop();
        shape.insert(dim, 1);
        strides.insert(dim, 1);
        Ok(self.view(shape, strides, self.offset()))
    }

    /// Repeated to a larger shape without a copy, as NumPy broadcasts: dims of size 1, and new dims in
    /// front.
    pub fn expand(&self, shape: &[usize]) -> Result<Tensor> {
        let mismatch = |why| LocalError::ShapeMismatch {
            op: "expand",
            from: self.shape().to_vec(),
            to: shape.to_vec(),
            why,
        };
        numel("expand", shape, self.dtype())?;
        let new = shape
            .len()
            .checked_sub(self.n_dims())
            .ok_or_else(|| mismatch("dims cannot disappear"))?;
        let mut strides: Dims<isize> = shape[..new].iter().map(|_| 0).collect();
        for (dim, (have, want)) in self.shape().iter().zip(&shape[new..]).enumerate() {
            strides.push(match (*have, *want) {
                (have, want) if have == want => self.strides()[dim],
                (1, _) => 0,
                _ => return Err(mismatch("a dim of a size other than 1 keeps its size")),
            });
        }
        Ok(self.view(shape.into(), strides, self.offset()))
    }

    /// A dim in the opposite order.
    pub fn flip(&self, dim: isize) -> Result<Tensor> {
        let dim = normal_dim("flip", dim, self.shape())?;
        let mut strides = Dims::from(self.strides());
        let last = self.shape()[dim].saturating_sub(1);
        let offset = self.moved(last, strides[dim], self.shape());
        strides[dim] = -strides[dim];
        Ok(self.view(self.shape().into(), strides, offset))
    }

    /// Windows of `size` indices of a dim, `step` apart: the dim counts windows, a new last dim runs
    /// within them.
    pub fn unfold(&self, dim: isize, size: usize, step: usize) -> Result<Tensor> {
        let dim = normal_dim("unfold", dim, self.shape())?;
        let length = self.shape()[dim];
        if step == 0 || size > length {
            return Err(LocalError::BadRange {
                op: "unfold",
                start: 0,
                end: size,
                step,
                dim,
                size: length,
            });
        }
        let (mut shape, mut strides) = (Dims::from(self.shape()), Dims::from(self.strides()));
        shape[dim] = (length - size) / step + 1;
        shape.push(size);
        let stride = strides[dim];
        // One window is never stepped from; a huge step must not overflow.
        strides[dim] = if shape[dim] == 1 { stride } else { stride * step as isize };
        strides.push(stride);
        Ok(self.view(shape, strides, self.offset()))
    }

    /// The same elements in another shape: a view where the strides allow it, else a copy.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        let mismatch = LocalError::ShapeMismatch {
            op: "reshape",
            from: self.shape().to_vec(),
            to: shape.to_vec(),
            why: "the numbers of elements differ",
        };
        if numel("reshape", shape, self.dtype())? != self.numel() {
            return Err(mismatch);
        }
        if let Some(strides) = self.strides_for(shape) {
            return Ok(self.view(shape.into(), strides, self.offset()));
        }
        let whole = self.contiguous();
        Ok(whole.view(shape.into(), contiguous_strides(shape), whole.offset()))
    }

    fn slice_named(
        &self,
        op: &'static str,
        dim: isize,
        start: usize,
        end: usize,
        step: usize,
    ) -> Result<Tensor> {
        let dim = normal_dim(op, dim, self.shape())?;
        let size = self.shape()[dim];
        if step == 0 || start > end || end > size {
            return Err(LocalError::BadRange { op, start, end, step, dim, size });
        }
        let (mut shape, mut strides) = (Dims::from(self.shape()), Dims::from(self.strides()));
        shape[dim] = (end - start).div_ceil(step);
        let offset = self.moved(start, strides[dim], &shape);
        if shape[dim] > 1 {
            strides[dim] *= step as isize;
        }
        Ok(self.view(shape, strides, offset))
    }

    /// The offset of what lies `index` strides on; for a view without elements, one that is harmless.
    fn moved(&self, index: usize, stride: isize, shape: &[usize]) -> usize {
        if shape.contains(&0) {
            return 0;
        }
        self.offset().wrapping_add_signed(index as isize * stride)
    }

    /// Strides by which the elements, in order, have another shape; `None` if there are none.
    ///
    /// Both shapes are cut into stretches of equal products. A stretch of the old shape must be one
    /// run of memory, which the dims of the new shape then divide.
    fn strides_for(&self, shape: &[usize]) -> Option<Dims<isize>> {
        if self.is_contiguous() {
            return Some(contiguous_strides(shape));
        }
        let mut old = self
            .shape()
            .iter()
            .copied()
            .zip(self.strides().iter().copied())
            .filter(|(size, _)| *size != 1);
        let mut strides: Dims<isize> = shape.iter().map(|_| 1).collect();
        let mut dim = 0;
        while let Some((mut old_product, mut stride)) = old.next() {
            let first = dim;
            let mut new_product = 1;
            loop {
                if new_product < old_product {
                    new_product *= *shape.get(dim)?;
                    dim += 1;
                } else if old_product < new_product {
                    let (size, next) = old.next()?;
                    if stride != next * size as isize {
                        return None;
                    }
                    old_product *= size;
                    stride = next;
                } else {
                    break;
                }
            }
            let mut run = stride;
            for dim in (first..dim).rev() {
                strides[dim] = run;
                run *= shape[dim] as isize;
            }
        }
        Some(strides)
    }
}
