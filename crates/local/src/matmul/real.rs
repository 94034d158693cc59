//! Products of `f32` and `f64`, by the crate `gemm`.

use std::{
    marker::PhantomData,
    ops::{Add, Mul},
};

use bytemuck::Pod;
use gemm::Parallelism;

use super::{
    matrix::Matrix,
    number::{Number, Scale},
};
use crate::{
    Element,
    pool::Buffer,
    simd::vectorized,
    threads::{for_pieces_of, threads},
    transpose::transpose,
};

/// Products of at most so many multiplications are done here: `gemm` first allocates, which takes
/// longer than they do.
const TINY: usize = 256;

/// Elements of the larger operand or result that a piece of a thin product goes through.
const THIN_PIECE: usize = 1 << 17;

/// The shortest run of consecutive elements that a piece of a thin product reads: pieces that read a
/// little of every page are several times slower.
const RUN: usize = 1024;

/// Rows of the first operand from which on a second one whose rows are not consecutive is copied. `gemm` would gather its
/// elements one by one, in wide strips; to turn it in tiles takes a fraction of that, and is soon a small part of the product.
const COPIED_FOR: usize = 64;

/// Elements of such a copy that a thread makes at a time.
const COPY_PIECE: usize = 1 << 16;

impl Number for f32 {
    fn multiply(
        a: Matrix<'_, f32>,
        b: Matrix<'_, f32>,
        out: &mut [f32],
        scale: Scale,
        parallel: bool,
    ) {
        let kept = scale.kept.map(|kept| kept as f32);
        multiply(a, b, out, scale.product as f32, kept, parallel);
    }
}

impl Number for f64 {
    fn multiply(
        a: Matrix<'_, f64>,
        b: Matrix<'_, f64>,
        out: &mut [f64],
        scale: Scale,
        parallel: bool,
    ) {
        multiply(a, b, out, scale.product, scale.kept, parallel);
    }
}

/// A floating-point type that `gemm` knows.
trait Real: Element + Pod + Add<Output = Self> + Mul<Output = Self> {}
impl Real for f32 {}
impl Real for f64 {}

fn multiply<T: Real>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &mut [T],
    factor: T,
    kept: Option<T>,
    parallel: bool,
) {
    let (m, k, n) = (a.n_rows(), a.n_columns(), b.n_columns());
    if out.is_empty() {
        return;
    }
    if out.len().saturating_mul(k) <= TINY {
        return tiny(a, b, out, factor, kept);
    }
    // `gemm` does not share the work of vectors and outer products among threads. They are bound by
    // memory: threads help if there is more of it than a cache holds. The pieces depend on sizes alone.
    if m == 1 {
        let run = if b.row_stride() == 1 { 1 } else { RUN };
        let grain = THIN_PIECE.div_ceil(k).max(run);
        for_pieces_of(out, 1, grain, |columns, out| {
            by_gemm(a, b.columns(columns), out, factor, kept, Parallelism::None);
        });
    } else if n == 1 || k <= 2 {
        let run = if a.column_stride() == 1 || k <= 2 { 1 } else { RUN };
        let grain = THIN_PIECE.div_ceil(k.max(n)).max(run);
        for_pieces_of(out, n, grain, |rows, out| {
            by_gemm(a.rows(rows), b, out, factor, kept, Parallelism::None);
        });
    } else {
        // Which thread computes a tile of the result changes nothing in it: `gemm` divides the rows and
        // columns, never the sum.
        let parallelism = match threads() {
            threads if parallel && threads > 1 => Parallelism::Rayon(threads),
            _ => Parallelism::None,
        };
        if b.column_stride() != 1 && m >= COPIED_FOR {
            let rows = Rows::of(b, parallel);
            by_gemm(a, rows.matrix(), out, factor, kept, parallelism);
        } else {
            by_gemm(a, b, out, factor, kept, parallelism);
        }
    }
}

/// A copy of a matrix with consecutive rows.
struct Rows<T> {
    values: Buffer,
    rows: usize,
    columns: usize,
    element: PhantomData<T>,
}

impl<T: Real> Rows<T> {
    fn of(matrix: Matrix<'_, T>, parallel: bool) -> Rows<T> {
        let (rows, columns) = (matrix.n_rows(), matrix.n_columns());
        let mut values = Buffer::any(rows * columns * size_of::<T>());
        let copy: &mut [T] = bytemuck::cast_slice_mut(values.as_mut_slice());
        let grain = if parallel { COPY_PIECE.div_ceil(columns) } else { rows };
        for_pieces_of(copy, columns, grain, |piece, copy| {
            let part = matrix.rows(piece);
            let strides = [part.row_stride(), part.column_stride()];
            // SAFETY: The elements of the matrix are there, and `copy` has as many, of which each row
            // follows the other.
            unsafe {
                transpose(
                    part.start(),
                    strides,
                    part.n_rows(),
                    columns,
                    copy.as_mut_ptr(),
                    columns as isize,
                    false,
                );
            }
        });
        Rows { values, rows, columns, element: PhantomData }
    }

    fn matrix(&self) -> Matrix<'_, T> {
        Matrix::of_slice(bytemuck::cast_slice(self.values.as_slice()), self.rows, self.columns)
    }
}

fn by_gemm<T: Real>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &mut [T],
    factor: T,
    kept: Option<T>,
    parallelism: Parallelism,
) {
    let (m, k, n) = (a.n_rows(), a.n_columns(), b.n_columns());
    assert_eq!((out.len(), k), (m * n, b.n_rows()), "{m} x {k} times {} x {n}", b.n_rows());
    // SAFETY: The matrices hold the elements that their sizes and strides promise, `out` has room for
    // the result, and nobody else sees it. The type is one that `gemm` has.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            kept.is_some(),
            a.start(),
            a.column_stride(),
            a.row_stride(),
            b.start(),
            b.column_stride(),
            b.row_stride(),
            kept.unwrap_or_default(),
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

vectorized! {
    fn tiny<T: Real>(a: Matrix<'_, T>, b: Matrix<'_, T>, out: &mut [T], factor: T, kept: Option<T>) {
        let n = b.n_columns();
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            match kept {
                Some(kept) => out.iter_mut().for_each(|out| *out = *out * kept),
                None => out.fill(T::default()),
            }
            for p in 0..b.n_rows() {
                let a = a.at(i, p) * factor;
                match b.row(p) {
                    Some(b) => out.iter_mut().zip(b).for_each(|(out, b)| *out = *out + a * *b),
                    None => out.iter_mut().enumerate().for_each(|(j, out)| *out = *out + a * b.at(p, j)),
                }
            }
        }
    }
}
