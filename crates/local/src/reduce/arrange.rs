//! From any tensor and any set of dims to *outer x n x inner*.

use crate::{
    Element, LocalError, Result, Tensor,
    dims::{Dims, normal_dim},
};

/// Which dims are reduced, and the shape that is left.
pub(super) struct Reduced {
    /// Per dim of the operand.
    flags: Dims<bool>,
    keep_dims: bool,
    /// Of the result.
    pub shape: Dims,
    /// Number of elements that become one.
    pub n: usize,
}

/// A tensor whose elements are consecutive as `outer x n x inner`; the number of results is `outer x inner`.
pub(super) struct Arranged {
    /// The elements, consecutive.
    pub x: Tensor,
    pub n: usize,
    pub inner: usize,
    /// The dims of the operand in the order in which `x` has them.
    order: Dims,
}

impl Reduced {
    /// Checks a list of dims. An empty list means all of them, as in PyTorch; so do dims 0 and -1 of a
    /// tensor that has none.
    pub fn of(op: &'static str, x: &Tensor, dims: &[isize], keep_dims: bool) -> Result<Reduced> {
        let mut flags: Dims<bool> = x.shape().iter().map(|_| dims.is_empty()).collect();
        for dim in dims {
            let normal = lenient_dim(op, *dim, x.shape())?;
            match flags.get_mut(normal) {
                Some(true) => {
                    return Err(LocalError::RepeatedDim { op, dim: *dim, dims: dims.to_vec() });
                }
                Some(flag) => *flag = true,
                None => {}
            }
        }
        let of_flag = |flag: bool| x.shape().iter().zip(&flags).filter(move |(_, f)| **f == flag);
        let n = product(of_flag(true).map(|(size, _)| *size));
        let shape = if keep_dims {
            x.shape().iter().zip(&flags).map(|(size, flag)| if *flag { 1 } else { *size }).collect()
        } else {
            of_flag(false).map(|(size, _)| *size).collect()
        };
        Ok(Reduced { flags, keep_dims, shape, n })
    }

    /// The elements of `x` in an order in which at most one stretch of dims is reduced: the order of
    /// memory where it has such a form, else a copy with the reduced dims last.
    pub fn arrange(&self, x: &Tensor) -> Result<Arranged> {
        let (x, order) = in_memory_order(x)?;
        if let Some((n, inner)) = self.stretches(x.shape(), &order) {
            return Ok(Arranged { x, n, inner, order });
        }
        let kept = (0..order.len()).filter(|i| !self.flags[order[*i]]);
        let last = (0..order.len()).filter(|i| self.flags[order[*i]]);
        let places: Dims = kept.chain(last).collect();
        let dims: Dims<isize> = places.iter().map(|place| *place as isize).collect();
        let order: Dims = places.iter().map(|place| order[*place]).collect();
        let x = x.permute(&dims)?.contiguous();
        Ok(Arranged { x, n: self.n, inner: 1, order })
    }

    /// The result, whose `outer x inner` values `fill` writes.
    pub fn write<T: Element>(
        &self,
        op: &'static str,
        arranged: &Arranged,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Tensor> {
        let kept: Dims = arranged.order.iter().copied().filter(|dim| !self.flags[*dim]).collect();
        if kept.is_sorted() {
            return Tensor::write(op, &self.shape, fill);
        }
        let size = |dim: usize| -> usize {
            let before = self.flags[..dim].iter().filter(|flag| self.keep_dims || !**flag);
            self.shape[before.count()]
        };
        let shape: Dims = kept.iter().map(|dim| size(*dim)).collect();
        let mut back: Dims<isize> = (0..kept.len() as isize).collect();
        back.sort_by_key(|place| kept[*place as usize]);
        Tensor::write(op, &shape, fill)?.permute(&back)?.contiguous().reshape(&self.shape)
    }

    /// The values of a result that [`Reduced::write`] has made, `outer x inner` again.
    pub fn in_order_of(&self, arranged: &Arranged, result: &Tensor) -> Result<Tensor> {
        let kept = |dim: &usize| !self.flags[*dim];
        let place = |dim: usize| self.flags[..dim].iter().filter(|flag| !**flag).count() as isize;
        let sizes: Dims = if self.keep_dims {
            let sizes = self.shape.iter().zip(&self.flags).filter(|(_, flag)| !**flag);
            sizes.map(|(size, _)| *size).collect()
        } else {
            self.shape.clone()
        };
        let order: Dims<isize> = arranged.order.iter().copied().filter(kept).map(place).collect();
        Ok(result.reshape(&sizes)?.permute(&order)?.contiguous())
    }

    /// `n` and `inner`, if the reduced dims are neighbours.
    fn stretches(&self, shape: &[usize], order: &[usize]) -> Option<(usize, usize)> {
        let mut sizes = [1usize, 1, 1];
        let mut at = 0;
        for (size, dim) in shape.iter().zip(order).filter(|(size, _)| **size != 1) {
            // Even stretches are kept, the odd one is reduced.
            if (at == 1) != self.flags[*dim] {
                at += 1;
            }
            let product = sizes.get_mut(at)?;
            *product = product.saturating_mul(*size);
        }
        let [_outer, n, inner] = sizes;
        Some((n, inner))
    }
}

/// A dim that may count from the end; a tensor without dims is taken as one with a dim of size 1.
pub(super) fn lenient_dim(op: &'static str, dim: isize, shape: &[usize]) -> Result<usize> {
    if shape.is_empty() && (dim == 0 || dim == -1) { Ok(0) } else { normal_dim(op, dim, shape) }
}

/// The tensor with its dims in the order of memory, and that order. Where no order makes the elements
/// consecutive, they are copied.
fn in_memory_order(x: &Tensor) -> Result<(Tensor, Dims)> {
    let mut order: Dims = (0..x.n_dims()).collect();
    if x.is_contiguous() {
        return Ok((x.clone(), order));
    }
    order.sort_by_key(|dim| std::cmp::Reverse(x.strides()[*dim]));
    let dims: Dims<isize> = order.iter().map(|dim| *dim as isize).collect();
    let sorted = x.permute(&dims)?;
    if sorted.is_contiguous() {
        return Ok((sorted, order));
    }
    Ok((x.contiguous(), (0..x.n_dims()).collect()))
}

fn product(sizes: impl Iterator<Item = usize>) -> usize {
    // A tensor without elements may have other sizes that are too large to multiply.
    sizes.fold(1, usize::saturating_mul)
}
