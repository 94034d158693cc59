//! Products of tiles on the thread that asks for them, and memory for the tiles.

use std::marker::PhantomData;

use bytemuck::Pod;

use crate::{
    matmul::{self, Scale},
    nn::real::Real,
    pool::Buffer,
};

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
    let left = matmul::Matrix::of_strided(left.values, (m, k), left.strides);
    let right = matmul::Matrix::of_strided(right.values, (k, n), right.strides);
    let scale = Scale { product: 1.0, kept: adds.then_some(1.0) };
    // Whoever calls has given the tiles to threads already.
    R::multiply(left, right, out, scale, false);
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
