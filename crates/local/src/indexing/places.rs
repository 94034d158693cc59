//! Runs of consecutive elements somewhere in memory: under all picking and scattering.
//!
//! An operation on indices checks them and turns them into a list of places first. What then moves the
//! elements knows nothing of dims, and is compiled once per element size.

use super::bits::{Bits, GRAIN, bits, bits_mut, by_size, write_bits};
use crate::{
    LocalError, Result, Tensor,
    dims::Dims,
    threads::{for_pieces_of, threads},
};

/// Runs of `width` elements each.
pub(super) struct Places {
    pub(super) starts: Vec<usize>,
    pub(super) width: usize,
}

impl Places {
    /// No places. What has no elements must not list them: its other dims may be of any size.
    pub(super) fn none() -> Places {
        Places { starts: Vec::new(), width: 0 }
    }

    /// The runs of `from`, a tensor of consecutive elements, one after the other in a new shape.
    pub(super) fn pick(&self, op: &'static str, from: &Tensor, shape: &[usize]) -> Result<Tensor> {
        by_size!(from.dtype(), U => {
            let values = bits::<U>(from)?;
            // SAFETY: The size fits, and the bits are those of values of the same dtype.
            unsafe {
                write_bits(op, shape, from.dtype(), |out: &mut [U]| pick_runs(self, values, out))
            }
        })
    }

    /// Writes the elements of `values`, of the same dtype and as many as the runs have, over them. Where
    /// runs overlap the last one stays.
    pub(super) fn put(&self, into: &mut Tensor, values: &Tensor) -> Result<()> {
        self.put_steps(into, values, self.width)
    }

    /// Writes one value over all of the runs.
    pub(super) fn fill(&self, into: &mut Tensor, value: &Tensor) -> Result<()> {
        self.put_steps(into, &value.reshape(&[1])?.expand(&[self.width])?, 0)
    }

    fn put_steps(&self, into: &mut Tensor, values: &Tensor, step: usize) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let values = values.contiguous();
        by_size!(into.dtype(), U => {
            let values = bits::<U>(&values)?;
            // SAFETY: The size fits, and the bits are those of values of the same dtype.
            let into = unsafe { bits_mut::<U>(into)? };
            self.change(into, values, step, &|into, values| into.copy_from_slice(values));
        });
        Ok(())
    }

    /// Calls `change` for every run of `into` with the values for it, which are `step` apart (0: the same
    /// for every run). A run may be given in two parts.
    ///
    /// Every thread goes through all places and keeps to its own part of `into`. So each element is changed
    /// by one thread, in the order of the places, however many threads there are.
    pub(super) fn change<T: Sync + Send>(
        &self,
        into: &mut [T],
        values: &[T],
        step: usize,
        change: &(dyn Fn(&mut [T], &[T]) + Sync),
    ) {
        let work = self.starts.len().saturating_mul(self.width);
        let parts = if work < GRAIN { 1 } else { threads() };
        let length = into.len().div_ceil(parts);
        for_pieces_of(into, 1, length, |part, into| {
            for (run, start) in self.starts.iter().copied().enumerate() {
                let (from, to) = (start.max(part.start), (start + self.width).min(part.end));
                if from < to {
                    let first = run * step + (from - start);
                    change(
                        &mut into[from - part.start..to - part.start],
                        &values[first..first + (to - from)],
                    );
                }
            }
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.starts.is_empty() || self.width == 0
    }
}

/// A tensor as a stretch of memory, and where its elements are in it.
pub(super) struct Laid {
    /// Consecutive elements, without dims of their own.
    pub(super) memory: Tensor,
    /// Where the element at index zero is.
    pub(super) start: usize,
    /// One per dim of the tensor.
    pub(super) strides: Dims<isize>,
}

impl Laid {
    /// The tensor's own memory if its dims from `run` on are consecutive in it, else a copy's.
    pub(super) fn of(tensor: &Tensor, run: usize) -> Laid {
        let mut expected = 1;
        let consecutive = (run..tensor.n_dims()).rev().all(|dim| {
            let (size, stride) = (tensor.shape()[dim], tensor.strides()[dim]);
            let fits = size <= 1 || stride == expected;
            expected = expected.wrapping_mul(size as isize);
            fits
        });
        let tensor = if consecutive { tensor.clone() } else { tensor.contiguous() };
        let (memory, start) = tensor.span();
        Laid { memory, start, strides: tensor.strides().into() }
    }
}

/// The offsets of the elements of a dim.
pub(super) fn dim_offsets(size: usize, stride: isize) -> Vec<isize> {
    (0..size as isize).map(|index| index * stride).collect()
}

/// All sums of `start` and one offset of each list, the last list varying fastest.
pub(super) fn all_sums(start: usize, lists: &[Vec<isize>]) -> Vec<usize> {
    if lists.iter().any(Vec::is_empty) {
        return Vec::new();
    }
    lists.iter().fold(vec![start], |sums, list| {
        let mut next = Vec::with_capacity(sums.len() * list.len());
        for sum in sums {
            next.extend(list.iter().map(|offset| sum.wrapping_add_signed(*offset)));
        }
        next
    })
}

/// A tensor without dims as one with one dim: PyTorch takes dim 0 of both.
pub(super) fn with_a_dim(tensor: &Tensor) -> Result<Tensor> {
    if tensor.n_dims() == 0 { tensor.reshape(&[1]) } else { Ok(tensor.clone()) }
}

/// [`Tensor::expand`] with an error that names the operation.
pub(super) fn expand_for(op: &'static str, tensor: &Tensor, shape: &[usize]) -> Result<Tensor> {
    tensor.expand(shape).map_err(|_| LocalError::ShapeMismatch {
        op,
        from: tensor.shape().to_vec(),
        to: shape.to_vec(),
        why: "the values must have the shape of where they go, or be broadcast to it",
    })
}

/// An error unless both have one dtype.
pub(super) fn same_dtype(op: &'static str, tensor: &Tensor, values: &Tensor) -> Result<()> {
    if tensor.dtype() == values.dtype() {
        return Ok(());
    }
    Err(LocalError::WrongDType { op, got: values.dtype(), want: tensor.dtype() })
}

fn pick_runs<U: Bits>(places: &Places, values: &[U], out: &mut [U]) {
    let Places { starts, width } = places;
    if places.is_empty() {
        return;
    }
    if *width == 1 {
        for_pieces_of(out, 1, GRAIN, |piece, out| {
            for (out, start) in out.iter_mut().zip(&starts[piece]) {
                *out = values[*start];
            }
        });
        return;
    }
    for_pieces_of(out, *width, GRAIN.div_ceil(*width), |piece, out| {
        for (out, start) in out.chunks_exact_mut(*width).zip(&starts[piece]) {
            out.copy_from_slice(&values[*start..*start + *width]);
        }
    });
}
