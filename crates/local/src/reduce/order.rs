//! Sorting, and what sorting would find.
//!
//! A line is sorted as keys with the index in their lower half: one integer per element, so that a
//! comparison is one instruction and equal elements keep their order.

use std::ops::Range;

use super::{
    arrange::{Reduced, lenient_dim},
    error::not_nothing,
    key::Key,
};
use crate::{
    DType, LocalError, Result, Tensor, by_dtype::by_dtype, dims::Dims, threads::for_pieces_of,
};

/// Elements that are worth a hand-over to another thread.
const GRAIN: usize = 1 << 13;

/// Values, and the indices where they were.
type Found = (Tensor, Tensor);

impl Tensor {
    /// The values sorted along a dim and, as `i64`, where they were. Stable: equal values keep their
    /// order. NaN is larger than all others.
    pub fn sort(&self, dim: isize, descending: bool) -> Result<(Tensor, Tensor)> {
        let n = size("sort", self, dim)?;
        along("sort", self, dim, n, descending, |_| 0..n)
    }

    /// The indices that sort along a dim, as `i64`: those of [`Tensor::sort`].
    pub fn argsort(&self, dim: isize, descending: bool) -> Result<Tensor> {
        let n = size("argsort", self, dim)?;
        along("argsort", self, dim, n, descending, |_| 0..n).map(|(_, indices)| indices)
    }

    /// The `k` largest or smallest values along a dim, in order, and where they were. Of equal values the
    /// first are taken.
    pub fn topk(&self, k: usize, dim: isize, largest: bool) -> Result<(Tensor, Tensor)> {
        let n = size("topk", self, dim)?;
        if k > n {
            return Err(bad_k("topk", k, "at most the size of the dim"));
        }
        along("topk", self, dim, k, largest, |_| 0..k)
    }

    /// The `k`-th smallest value along a dim, counted from 1, and where it was.
    pub fn kthvalue(&self, k: usize, dim: isize, keep_dims: bool) -> Result<(Tensor, Tensor)> {
        let n = size("kthvalue", self, dim)?;
        if k == 0 || k > n {
            return Err(bad_k("kthvalue", k, "1 to the size of the dim"));
        }
        one_of("kthvalue", self, dim, keep_dims, |_| k - 1)
    }

    /// The median along a dim, of an even number the lower one, and where it was. NaN if there is one.
    pub fn median(&self, dim: isize, keep_dims: bool) -> Result<(Tensor, Tensor)> {
        let n = size("median", self, dim)?;
        not_nothing("median", self, n)?;
        // NaN are the last in order: if the last is one, it is the result.
        one_of("median", self, dim, keep_dims, |has_nan| if has_nan { n - 1 } else { (n - 1) / 2 })
    }
}

/// Which places of the sorted line are asked for, given whether it has a NaN.
trait Places: Fn(bool) -> Range<usize> + Sync + Copy {}
impl<F: Fn(bool) -> Range<usize> + Sync + Copy> Places for F {}

fn one_of(
    op: &'static str,
    x: &Tensor,
    dim: isize,
    keep_dims: bool,
    place: impl Fn(bool) -> usize + Sync + Copy,
) -> Result<Found> {
    let shape = Reduced::of(op, x, &[dim], keep_dims)?.shape;
    let places = |has_nan| place(has_nan)..place(has_nan) + 1;
    let (values, indices) = along(op, x, dim, 1, false, places)?;
    Ok((values.reshape(&shape)?, indices.reshape(&shape)?))
}

/// The values at some `places` of the sorted lines along a dim, `count` of each line.
fn along(
    op: &'static str,
    x: &Tensor,
    dim: isize,
    count: usize,
    descending: bool,
    places: impl Places,
) -> Result<Found> {
    let dim = lenient_dim(op, dim, x.shape())?;
    let mut shape = Dims::from(x.shape());
    if let Some(size) = shape.get_mut(dim) {
        *size = count;
    }
    if x.is_meta() {
        return Ok((Tensor::meta(&shape, x.dtype())?, Tensor::meta(&shape, DType::I64)?));
    }
    if shape.is_empty() {
        return Ok((x.clone(), Tensor::scalar(0_i64)));
    }
    let last = shape.len() - 1;
    shape.swap(dim, last);
    let lines = x.transpose(dim as isize, -1)?.contiguous();
    let (values, indices) = by_dtype!(x.dtype(), T => if T::SHORT && lines.shape()[last] <= u32::MAX as usize {
        find::<T, u64>(op, &lines, &shape, descending, places)
    } else {
        find::<T, u128>(op, &lines, &shape, descending, places)
    })?;
    let back = |x: Tensor| Ok(x.transpose(dim as isize, -1)?.contiguous());
    Ok((back(values)?, back(indices)?))
}

/// A key above an index.
trait Packed: Ord + Copy + Send {
    fn pack(key: u64, index: usize) -> Self;
    fn index(self) -> usize;
}

impl Packed for u64 {
    fn pack(key: u64, index: usize) -> u64 {
        key << 32 | index as u64
    }

    fn index(self) -> usize {
        self as u32 as usize
    }
}

impl Packed for u128 {
    fn pack(key: u64, index: usize) -> u128 {
        u128::from(key) << 64 | index as u128
    }

    fn index(self) -> usize {
        self as u64 as usize
    }
}

/// As [`along`] for consecutive lines, which are the last dim.
fn find<T: Key, P: Packed>(
    op: &'static str,
    lines: &Tensor,
    shape: &[usize],
    descending: bool,
    places: impl Places,
) -> Result<Found> {
    let x = lines.as_slice::<T>()?;
    let (n, count) = (last(lines.shape()), last(shape));
    let indices = Tensor::write(op, shape, |out: &mut [i64]| {
        if out.is_empty() {
            return;
        }
        for_pieces_of(out, count, GRAIN.div_ceil(n), |rows, out| {
            let mut packed: Vec<P> = Vec::with_capacity(n);
            for (row, out) in rows.zip(out.chunks_mut(count)) {
                let x = &x[row * n..(row + 1) * n];
                packed.clear();
                // A key that counts down, with an index that does not: equal values keep their order.
                let all = if T::SHORT { u64::from(u32::MAX) } else { u64::MAX };
                let key = |x: T| if descending { all - x.key() } else { x.key() };
                packed.extend(x.iter().enumerate().map(|(i, x)| P::pack(key(*x), i)));
                #[allow(clippy::eq_op)] // That is what a NaN is.
                let places = places(x.iter().any(|x| x != x));
                for (out, packed) in out.iter_mut().zip(sorted_places(&mut packed, places)) {
                    *out = packed.index() as i64;
                }
            }
        });
    })?;
    let at = indices.as_slice::<i64>()?;
    let values = Tensor::write(op, shape, |out: &mut [T]| {
        if out.is_empty() {
            return;
        }
        for_pieces_of(out, count, GRAIN.div_ceil(count), |rows, out| {
            let at = &at[rows.start * count..rows.end * count];
            for ((row, out), at) in rows.zip(out.chunks_mut(count)).zip(at.chunks(count)) {
                for (out, at) in out.iter_mut().zip(at) {
                    *out = x[row * n + *at as usize];
                }
            }
        });
    })?;
    Ok((values, indices))
}

/// The elements that sorting would put to these places.
fn sorted_places<P: Packed>(packed: &mut [P], places: Range<usize>) -> &[P] {
    if places.len() == 1 {
        packed.select_nth_unstable(places.start);
    } else {
        if places.end > 0 && places.end < packed.len() {
            packed.select_nth_unstable(places.end - 1);
        }
        packed[..places.end].sort_unstable();
    }
    &packed[places]
}

fn last(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

fn size(op: &'static str, x: &Tensor, dim: isize) -> Result<usize> {
    let dim = lenient_dim(op, dim, x.shape())?;
    Ok(x.shape().get(dim).copied().unwrap_or(1))
}

fn bad_k(op: &'static str, k: usize, want: &'static str) -> LocalError {
    LocalError::BadNumber { op, name: "k", got: k.to_string(), want }
}
