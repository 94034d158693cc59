//! Products of tiles on the thread that asks for them, by the crate `gemm`, and memory for the tiles.

use std::marker::PhantomData;

use bytemuck::Pod;
use gemm::Parallelism;

use crate::{nn::real::Real, pool::Buffer};

/// A matrix whose element (row, column) is at `row * strides.0 + column * strides.1`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, R> {
    pub(super) values: &'a [R],
    pub(super) strides: (usize, usize),
}

/// `out = left right`, or `out += left right`; `size` has the rows, the length of the sums, and the columns.
pub(super) fn multiply<R: Real>(
    left: Matrix<R>,
    right: Matrix<R>,
    out: &mut [R],
    [m, k, n]: [usize; 3],
    adds: bool,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !adds {
            out.fill(R::ZERO);
        }
        return;
    }
    let last =
        |strides: (usize, usize), rows, columns| (rows - 1) * strides.0 + (columns - 1) * strides.1;
    assert!(last(left.strides, m, k) < left.values.len(), "{m} x {k} on the left");
    assert!(last(right.strides, k, n) < right.values.len(), "{k} x {n} on the right");
    assert_eq!(out.len(), m * n, "{m} x {n}");
    // SAFETY: By the assertions all elements that the sizes and strides name are within the slices. `R` is `f32` or
    // `f64`, which `gemm` has.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            adds,
            left.values.as_ptr(),
            left.strides.1 as isize,
            left.strides.0 as isize,
            right.values.as_ptr(),
            right.strides.1 as isize,
            right.strides.0 as isize,
            R::ONE,
            R::ONE,
            false,
            false,
            false,
            // Whoever calls has given the tiles to threads already.
            Parallelism::None,
        );
    }
}

/// Memory from the pool for a tile. It holds anything at first.
pub(super) struct Scratch<R> {
    buffer: Buffer,
    life: PhantomData<R>,
}

impl<R: Pod> Scratch<R> {
    pub(super) fn new(n: usize) -> Scratch<R> {
        Scratch { buffer: Buffer::any(n * size_of::<R>()), life: PhantomData }
    }

    pub(super) fn values(&mut self) -> &mut [R] {
        bytemuck::cast_slice_mut(self.buffer.as_mut_slice())
    }
}
