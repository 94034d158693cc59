//! Products of `f32` and `f64`, by the crate `gemm`.

use std::ops::{Add, Mul};

use gemm::Parallelism;

use super::{
    matrix::Matrix,
    number::{Number, Scale},
};
use crate::{
    Element,
    simd::vectorized,
    threads::{for_pieces_of, threads},
};

/// Products of at most so many multiplications are done here: `gemm` first allocates, which takes
/// longer than they do.
const TINY: usize = 256;

/// Elements of the larger operand or result that a piece of a thin product goes through.
const THIN_PIECE: usize = 1 << 17;

/// The shortest run of consecutive elements that a piece of a thin product reads: pieces that read a
/// little of every page are several times slower.
const RUN: usize = 1024;

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
trait Real: Element + Add<Output = Self> + Mul<Output = Self> {}
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
        by_gemm(a, b, out, factor, kept, parallelism);
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
