//! Products of small blocks that lie in the cache.

use super::real::Real;
use crate::simd::vectorized;

/// Rows and columns of a product that are held in registers.
const TILE_ROWS: usize = 4;
const TILE_COLUMNS: usize = 16;

/// A left operand: element (row, column) is at `row * row_stride + column * column_stride`, so that a transposed
/// matrix needs no copy.
#[derive(Clone, Copy)]
pub(super) struct Left<'a, R> {
    pub(super) values: &'a [R],
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

vectorized! {
    /// `out += left right`, with `out` of `[n_rows, n_columns]` and `right` of `[depth, n_columns]`, both in
    /// rows with a distance of their own (the strides).
    pub(super) fn add_product<R: Real>(
        left: Left<R>,
        right: &[R],
        right_stride: usize,
        out: &mut [R],
        out_stride: usize,
        size: [usize; 3],
    ) {
        let [n_rows, depth, n_columns] = size;
        let whole_columns = n_columns - n_columns % TILE_COLUMNS;
        for column in (0..whole_columns).step_by(TILE_COLUMNS) {
            let mut row = 0;
            while row + TILE_ROWS <= n_rows {
                tile::<FMA, TILE_ROWS, R>(left, right, right_stride, out, out_stride, [row, depth, column]);
                row += TILE_ROWS;
            }
            while row < n_rows {
                tile::<FMA, 1, R>(left, right, right_stride, out, out_stride, [row, depth, column]);
                row += 1;
            }
        }
        if whole_columns == n_columns {
            return;
        }
        for row in 0..n_rows {
            let out = &mut out[row * out_stride..][whole_columns..n_columns];
            for k in 0..depth {
                let factor = left.values[row * left.row_stride + k * left.column_stride];
                let right = &right[k * right_stride..][whole_columns..n_columns];
                for (out, right) in out.iter_mut().zip(right) {
                    *out = factor.mul_add::<FMA>(*right, *out);
                }
            }
        }
    }
}

#[inline(always)]
fn tile<const FMA: bool, const ROWS: usize, R: Real>(
    left: Left<R>,
    right: &[R],
    right_stride: usize,
    out: &mut [R],
    out_stride: usize,
    [row, depth, column]: [usize; 3],
) {
    let mut sums = [[R::ZERO; TILE_COLUMNS]; ROWS];
    for k in 0..depth {
        let (right, _) = right[k * right_stride + column..].as_chunks::<TILE_COLUMNS>();
        let right = &right[0];
        for (i, sums) in sums.iter_mut().enumerate() {
            let factor = left.values[(row + i) * left.row_stride + k * left.column_stride];
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = factor.mul_add::<FMA>(*right, *sum);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (out, sum) in out[(row + i) * out_stride + column..].iter_mut().zip(sums) {
            *out += *sum;
        }
    }
}

/// `out[c][r] = from[r][c]` for a matrix of `n_columns`.
pub(super) fn transpose<R: Real>(from: &[R], n_columns: usize, out: &mut [R], out_stride: usize) {
    for (row, from) in from.chunks_exact(n_columns.max(1)).enumerate() {
        for (column, value) in from.iter().enumerate() {
            out[column * out_stride + row] = *value;
        }
    }
}
