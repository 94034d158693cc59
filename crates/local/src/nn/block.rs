//! Products of small blocks that lie in the cache.

use super::real::Real;
use crate::simd::vectorized;

/// A left operand: element (row, column) is at `row * row_stride + column * column_stride`, so that a transposed
/// matrix needs no copy.
#[derive(Clone, Copy)]
pub(super) struct Left<'a, R> {
    pub(super) values: &'a [R],
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

/// What of a product is asked for, or known to be zero. Tiles that this makes superfluous are left out; within
/// the others it is not looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Whole,
    /// Results are asked for where `column <= row + this`.
    ColumnsUpTo(isize),
    /// The left operand is zero but where `column <= row + this`.
    LeftUpTo(isize),
    /// The left operand is zero but where `row <= column + this`.
    LeftFrom(isize),
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
        part: Part,
    ) {
        let [n_rows, depth, n_columns] = size;
        if size.contains(&0) {
            return;
        }
        assert!((n_rows - 1) * left.row_stride + (depth - 1) * left.column_stride < left.values.len());
        assert!((depth - 1) * right_stride + n_columns <= right.len());
        assert!((n_rows - 1) * out_stride + n_columns <= out.len());
        let product = Product {
            left: left.values.as_ptr(),
            left_strides: [left.row_stride, left.column_stride],
            right: right.as_ptr(),
            right_stride,
            out: out.as_mut_ptr(),
            out_stride,
            n_rows,
            depth,
            part,
        };
        let mut column = 0;
        // SAFETY: All of the columns are within the operands, by the assertions.
        unsafe {
            // As many columns as, with six rows, fit into the registers of AVX2.
            while size_of::<R>() == 4 && column + 16 <= n_columns {
                product.columns::<FMA, 16>(column);
                column += 16;
            }
            while size_of::<R>() == 8 && column + 8 <= n_columns {
                product.columns::<FMA, 8>(column);
                column += 8;
            }
            while column + 4 <= n_columns {
                product.columns::<FMA, 4>(column);
                column += 4;
            }
            while column < n_columns {
                product.columns::<FMA, 1>(column);
                column += 1;
            }
        }
    }
}

struct Product<R> {
    left: *const R,
    left_strides: [usize; 2],
    right: *const R,
    right_stride: usize,
    out: *mut R,
    out_stride: usize,
    n_rows: usize,
    depth: usize,
    part: Part,
}

impl<R: Real> Product<R> {
    /// # Safety
    /// The operands have the sizes, and these columns.
    #[inline(always)]
    unsafe fn columns<const FMA: bool, const COLUMNS: usize>(&self, column: usize) {
        let mut row = 0;
        // SAFETY: Rows below `n_rows`, and the caller's promise.
        unsafe {
            while row + 6 <= self.n_rows {
                self.tile::<FMA, 6, COLUMNS>(row, column);
                row += 6;
            }
            if row + 4 <= self.n_rows {
                self.tile::<FMA, 4, COLUMNS>(row, column);
                row += 4;
            }
            while row < self.n_rows {
                self.tile::<FMA, 1, COLUMNS>(row, column);
                row += 1;
            }
        }
    }

    /// # Safety
    /// As [`Product::columns`], for these rows.
    #[inline(always)]
    unsafe fn tile<const FMA: bool, const ROWS: usize, const COLUMNS: usize>(
        &self,
        row: usize,
        column: usize,
    ) {
        let last = row + ROWS - 1;
        let steps = match self.part {
            Part::Whole => 0..self.depth,
            Part::ColumnsUpTo(apart) if column > last.saturating_add_signed(apart) => return,
            Part::ColumnsUpTo(_) => 0..self.depth,
            Part::LeftUpTo(apart) => 0..self.depth.min((last + 1).saturating_add_signed(apart)),
            Part::LeftFrom(apart) => row.saturating_add_signed(-apart).min(self.depth)..self.depth,
        };
        // SAFETY: Elements of the rows, columns and steps that the operands have.
        unsafe {
            let [row_stride, step_stride] = self.left_strides;
            let left = self.left.add(row * row_stride);
            let right = self.right.add(column);
            let mut sums = [[R::ZERO; COLUMNS]; ROWS];
            for k in steps {
                let right = *right.add(k * self.right_stride).cast::<[R; COLUMNS]>();
                let left = left.add(k * step_stride);
                for (i, sums) in sums.iter_mut().enumerate() {
                    let factor = *left.add(i * row_stride);
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = factor.mul_add::<FMA>(right, *sum);
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate() {
                let out =
                    &mut *self.out.add((row + i) * self.out_stride + column).cast::<[R; COLUMNS]>();
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out += *sum;
                }
            }
        }
    }
}

/// `out[c][r] = from[r][c]` for a matrix of `n_columns`.
pub(super) fn transpose<R: Real>(from: &[R], n_columns: usize, out: &mut [R], out_stride: usize) {
    let n_rows = from.len() / n_columns.max(1);
    if n_rows == 0 {
        return;
    }
    assert!((n_columns - 1) * out_stride + n_rows <= out.len());
    // SAFETY: A matrix of `n_rows` and `n_columns`, and room for it by the assertion.
    unsafe {
        let strides = [1, n_columns as isize];
        let out = out.as_mut_ptr();
        crate::transpose::transpose(
            from.as_ptr(),
            strides,
            n_columns,
            n_rows,
            out,
            out_stride as isize,
            false,
        );
    }
}
