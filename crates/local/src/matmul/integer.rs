//! Products of integers, which wrap around as PyTorch's do.

use super::{
    matrix::Matrix,
    number::{Number, Scale},
};
use crate::{Element, simd::vectorized, threads::for_pieces_of};

/// Rows of the second operand that stay in the cache while rows of the result go by.
const DEPTH: usize = 64;

/// Multiplications of one piece.
const PIECE: usize = 1 << 18;

trait Integer: Element {
    /// Of a whole number, modulo the range of the type.
    fn wrapped(number: f64) -> Self;
    fn times(self, other: Self) -> Self;
    fn plus(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Integer for $type {
            fn wrapped(number: f64) -> Self {
                number as i64 as $type
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }

        impl Number for $type {
            fn multiply(
                a: Matrix<'_, Self>,
                b: Matrix<'_, Self>,
                out: &mut [Self],
                scale: Scale,
                _parallel: bool,
            ) {
                multiply(a, b, out, scale);
            }
        }
    )*};
}
integers!(i64, i32, u8);

fn multiply<T: Integer>(a: Matrix<'_, T>, b: Matrix<'_, T>, out: &mut [T], scale: Scale) {
    let (k, n) = (b.n_rows(), b.n_columns());
    if out.is_empty() {
        return;
    }
    // The inner loop runs along a row of `b`.
    let packed: Vec<T>;
    let b = if b.column_stride() == 1 || n == 1 {
        b
    } else {
        packed = (0..k).flat_map(|p| (0..n).map(move |j| b.at(p, j))).collect();
        Matrix::of_slice(&packed, k, n)
    };
    let factor = T::wrapped(scale.product);
    let kept = scale.kept.map(T::wrapped).unwrap_or_default();
    let grain = PIECE.div_ceil(n.saturating_mul(k).max(1));
    for_pieces_of(out, n, grain, |rows, out| {
        out.iter_mut().for_each(|out| *out = out.times(kept));
        let a = a.rows(rows);
        for first in (0..k).step_by(DEPTH) {
            let depth = first..k.min(first + DEPTH);
            add_product(a.columns(depth.clone()), b.rows(depth), factor, out);
        }
    });
}

vectorized! {
    fn add_product<T: Integer>(a: Matrix<'_, T>, b: Matrix<'_, T>, factor: T, out: &mut [T]) {
        for (i, out) in out.chunks_exact_mut(b.n_columns()).enumerate() {
            for p in 0..b.n_rows() {
                let a = a.at(i, p).times(factor);
                for (out, b) in out.iter_mut().zip(b.row(p).unwrap_or_default()) {
                    *out = out.plus(a.times(*b));
                }
            }
        }
    }
}
