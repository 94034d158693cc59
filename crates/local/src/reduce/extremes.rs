//! Largest and smallest values, and where they are.

use std::marker::PhantomData;

use super::{
    arrange::{Arranged, Reduced},
    error::not_nothing,
    fold::{fold, fold_arranged},
    lanes::{Step, Steps},
    number::{Number, Wide},
    sums::{larger, smaller},
};
use crate::{DType, Result, Tensor, by_dtype::by_dtype, simd::vectorized, threads::for_pieces_of};

/// Elements that are searched together: enough to keep a vector unit busy.
const SEARCH: usize = 64;

/// Columns that are searched together: enough for long reads, few enough to share.
const COLUMNS: usize = 1024;

impl Tensor {
    /// The largest value over these dims, or over all if the list is empty. NaN is larger than all
    /// others, as in PyTorch. There is none of nothing: an error.
    pub fn amax(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        extreme::<true>("amax", self, dims, keep_dims)
    }

    /// The smallest value over these dims, or over all if the list is empty; NaN if there is one, as in
    /// PyTorch. There is none of nothing: an error.
    pub fn amin(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        extreme::<false>("amin", self, dims, keep_dims)
    }

    /// The largest values along a dim and, as `i64`, the first index of each. A NaN counts as the
    /// largest.
    pub fn max(&self, dim: isize, keep_dims: bool) -> Result<(Tensor, Tensor)> {
        with_index::<true>("max", self, dim, keep_dims)
    }

    /// The smallest values along a dim and, as `i64`, the first index of each. A NaN counts as the
    /// smallest.
    pub fn min(&self, dim: isize, keep_dims: bool) -> Result<(Tensor, Tensor)> {
        with_index::<false>("min", self, dim, keep_dims)
    }

    /// The first index of the largest value along a dim, or among all elements in order, as `i64`.
    pub fn argmax(&self, dim: Option<isize>, keep_dims: bool) -> Result<Tensor> {
        index::<true>("argmax", self, dim, keep_dims)
    }

    /// The first index of the smallest value along a dim, or among all elements in order, as `i64`.
    pub fn argmin(&self, dim: Option<isize>, keep_dims: bool) -> Result<Tensor> {
        index::<false>("argmin", self, dim, keep_dims)
    }
}

fn extreme<const MAX: bool>(
    op: &'static str,
    x: &Tensor,
    dims: &[isize],
    keep_dims: bool,
) -> Result<Tensor> {
    let reduced = Reduced::of(op, x, dims, keep_dims)?;
    not_nothing(op, x, reduced.n)?;
    by_dtype!(x.dtype(), T => fold(op, x, &reduced, Steps(Extreme::<T, MAX>(PhantomData))))
}

fn index<const MAX: bool>(
    op: &'static str,
    x: &Tensor,
    dim: Option<isize>,
    keep_dims: bool,
) -> Result<Tensor> {
    if let Some(dim) = dim {
        return with_index::<MAX>(op, x, dim, keep_dims).map(|(_, index)| index);
    }
    let (_, index) = with_index::<MAX>(op, &x.reshape(&[x.numel()])?, 0, false)?;
    if keep_dims { index.reshape(&vec![1; x.n_dims()]) } else { Ok(index) }
}

fn with_index<const MAX: bool>(
    op: &'static str,
    x: &Tensor,
    dim: isize,
    keep_dims: bool,
) -> Result<(Tensor, Tensor)> {
    let reduced = Reduced::of(op, x, &[dim], keep_dims)?;
    not_nothing(op, x, reduced.n)?;
    if x.is_meta() {
        let values = Tensor::meta(&reduced.shape, x.dtype())?;
        return Ok((values, Tensor::meta(&reduced.shape, DType::I64)?));
    }
    let arranged = reduced.arrange(x)?;
    by_dtype!(x.dtype(), T => {
        let values = fold_arranged(op, &arranged, &reduced, Steps(Extreme::<T, MAX>(PhantomData)))?;
        let index = first_index::<T>(op, &arranged, &reduced, &values)?;
        Ok((values, index))
    })
}

/// Where each value is first. A second look at the elements, which stops early in rows; both looks run
/// at the speed of memory, while one that carries indices along does not.
fn first_index<T: Number>(
    op: &'static str,
    arranged: &Arranged,
    reduced: &Reduced,
    values: &Tensor,
) -> Result<Tensor> {
    // The values in the order of the arrangement: `values` may be a permuted copy of them.
    let values = reduced.in_order_of(arranged, values)?;
    let (x, values) = (arranged.x.as_slice::<T>()?, values.as_slice::<T>()?);
    let (n, inner) = (arranged.n, arranged.inner);
    reduced.write(op, arranged, |out: &mut [i64]| {
        if out.is_empty() {
            return;
        }
        if inner == 1 {
            for_pieces_of(out, 1, (1usize << 15).div_ceil(n), |rows, out| {
                for (row, out) in rows.zip(out) {
                    *out = position(&x[row * n..(row + 1) * n], values[row]) as i64;
                }
            });
            return;
        }
        for_pieces_of(out, 1, COLUMNS, |piece, out| {
            // A piece may begin and end within a row of results.
            let mut done = 0;
            while done < out.len() {
                let (outer, column) = ((piece.start + done) / inner, (piece.start + done) % inner);
                let width = (inner - column).min(out.len() - done);
                let first = outer * n * inner + column;
                let x = &x[first..first + (n - 1) * inner + width];
                let values = &values[piece.start + done..][..width];
                column_positions(x, inner, values, &mut out[done..done + width]);
                done += width;
            }
        });
    })
}

vectorized! {
    /// The first index of a value, which is there.
    fn position<T: Number>(x: &[T], value: T) -> usize {
        for (group, x) in x.chunks(SEARCH).enumerate() {
            let mut found = false;
            for x in x {
                found |= same(*x, value);
            }
            if found {
                return group * SEARCH + x.iter().position(|x| same(*x, value)).unwrap_or(0);
            }
        }
        0
    }
}

vectorized! {
    /// The first index of every value in its column; the rows of the columns are `stride` apart.
    fn column_positions<T: Number>(x: &[T], stride: usize, values: &[T], out: &mut [i64]) {
        out.fill(0);
        // From the end, so that the first one stays.
        for (index, row) in x.chunks(stride).enumerate().rev() {
            for ((out, x), value) in out.iter_mut().zip(row).zip(values) {
                *out = if same(*x, *value) { index as i64 } else { *out };
            }
        }
    }
}

/// Whether two values are equal or both NaN.
#[inline(always)]
fn same<T: Number>(a: T, b: T) -> bool {
    let (a, b) = (a.wide(), b.wide());
    (a == b) | (a.is_not_a_number() & b.is_not_a_number())
}

/// The largest value, or the smallest.
pub(super) struct Extreme<T, const MAX: bool>(pub(super) PhantomData<T>);

impl<T, const MAX: bool> Clone for Extreme<T, MAX> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const MAX: bool> Copy for Extreme<T, MAX> {}

impl<T: Number, const MAX: bool> Step for Extreme<T, MAX> {
    type In = T;
    type Acc = T::Wide;
    type Out = T;

    #[inline(always)]
    fn start(self) -> T::Wide {
        if MAX { T::Wide::LOWEST } else { T::Wide::HIGHEST }
    }

    #[inline(always)]
    fn step(self, acc: T::Wide, x: T) -> T::Wide {
        self.join(acc, x.wide())
    }

    #[inline(always)]
    fn join(self, a: T::Wide, b: T::Wide) -> T::Wide {
        if MAX { larger(a, b) } else { smaller(a, b) }
    }

    #[inline(always)]
    fn finish(self, acc: T::Wide) -> T {
        T::narrow(acc)
    }
}
