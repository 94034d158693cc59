//! Products of `bf16` and `f16`: blocks are widened to `f32`, multiplied as such, and rounded once.
//!
//! `gemm` knows `f16`, but rounds the sum to `f16` again and again on its way.

use super::{
    matrix::Matrix,
    number::{Number, Scale},
};
use crate::{Element, bf16, f16, pool::Buffer, simd::vectorized, threads::for_pieces_of};

/// Rows and columns of a block of the result: enough for `gemm` to be at its best, few enough that
/// the widened copies stay small beside the operands of large products.
const BLOCK: usize = 1024;

/// Elements that a thread converts at a time.
const PIECE: usize = 1 << 15;

impl Number for bf16 {
    fn multiply(
        a: Matrix<'_, bf16>,
        b: Matrix<'_, bf16>,
        out: &mut [bf16],
        scale: Scale,
        parallel: bool,
    ) {
        multiply(a, b, out, scale, parallel);
    }
}

impl Number for f16 {
    fn multiply(
        a: Matrix<'_, f16>,
        b: Matrix<'_, f16>,
        out: &mut [f16],
        scale: Scale,
        parallel: bool,
    ) {
        multiply(a, b, out, scale, parallel);
    }
}

/// A type of two bytes, computed with in `f32`.
trait Half: Element {
    fn widen(self) -> f32;
    fn widen_all(from: &[Self], to: &mut [f32]);
    fn round_all(from: &[f32], to: &mut [Self]);
}

impl Half for bf16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn widen_all(from: &[bf16], to: &mut [f32]) {
        widen_bf16(from, to);
    }

    fn round_all(from: &[f32], to: &mut [bf16]) {
        round_bf16(from, to);
    }
}

impl Half for f16 {
    fn widen(self) -> f32 {
        self.to_f32()
    }

    fn widen_all(from: &[f16], to: &mut [f32]) {
        widen_f16(from, to);
    }

    fn round_all(from: &[f32], to: &mut [f16]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f16::from_f32(*from));
    }
}

fn multiply<T: Half>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    out: &mut [T],
    scale: Scale,
    parallel: bool,
) {
    let (m, n) = (a.n_rows(), b.n_columns());
    if out.is_empty() {
        return;
    }
    for first_column in (0..n).step_by(BLOCK) {
        let columns = first_column..n.min(first_column + BLOCK);
        let b = Wide::of(b.columns(columns.clone()));
        for first_row in (0..m).step_by(BLOCK) {
            let rows = first_row..m.min(first_row + BLOCK);
            let a = Wide::of(a.rows(rows.clone()));
            let mut product = Buffer::any(rows.len() * columns.len() * size_of::<f32>());
            let product: &mut [f32] = bytemuck::cast_slice_mut(product.as_mut_slice());
            let out = &mut out[rows.start * n..rows.end * n];
            if scale.kept.is_some() {
                for (wide, out) in product.chunks_exact_mut(columns.len()).zip(out.chunks_exact(n))
                {
                    T::widen_all(&out[columns.clone()], wide);
                }
            }
            f32::multiply(a.matrix(), b.matrix(), product, scale, parallel);
            for_pieces_of(out, n, PIECE.div_ceil(columns.len()), |rows, out| {
                for (row, out) in rows.zip(out.chunks_exact_mut(n)) {
                    let wide = &product[row * columns.len()..(row + 1) * columns.len()];
                    T::round_all(wide, &mut out[columns.clone()]);
                }
            });
        }
    }
}

/// A matrix as `f32`, in consecutive rows or, if that is how its elements lie, columns.
struct Wide {
    values: Buffer,
    rows: usize,
    columns: usize,
    by_columns: bool,
}

impl Wide {
    fn of<T: Half>(matrix: Matrix<'_, T>) -> Wide {
        let (rows, columns) = (matrix.n_rows(), matrix.n_columns());
        let by_columns = matrix.column_stride() != 1 && matrix.row_stride() == 1;
        let lines = if by_columns { matrix.transposed() } else { matrix };
        let length = lines.n_columns();
        let mut values = Buffer::any(rows * columns * size_of::<f32>());
        let wide: &mut [f32] = bytemuck::cast_slice_mut(values.as_mut_slice());
        for_pieces_of(wide, length, PIECE.div_ceil(length.max(1)), |piece, wide| {
            for (line, wide) in piece.zip(wide.chunks_exact_mut(length)) {
                match lines.row(line) {
                    Some(narrow) => T::widen_all(narrow, wide),
                    None => wide
                        .iter_mut()
                        .enumerate()
                        .for_each(|(column, wide)| *wide = lines.at(line, column).widen()),
                }
            }
        });
        Wide { values, rows, columns, by_columns }
    }

    fn matrix(&self) -> Matrix<'_, f32> {
        let values = bytemuck::cast_slice(self.values.as_slice());
        if self.by_columns {
            Matrix::of_slice(values, self.columns, self.rows).transposed()
        } else {
            Matrix::of_slice(values, self.rows, self.columns)
        }
    }
}

vectorized! {
    fn widen_bf16(from: &[bf16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}

vectorized! {
    /// To the nearest, ties to even. A NaN stays one.
    fn round_bf16(from: &[f32], to: &mut [bf16]) {
        for (to, from) in to.iter_mut().zip(from) {
            let bits = from.to_bits();
            // Half of the last place that stays, less one unless that place is odd.
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // Rounding could carry a NaN into infinity; the quiet bit keeps it a NaN.
            let nan = (bits >> 16) | 0x40;
            *to = bf16::from_bits(if from.is_nan() { nan } else { rounded } as u16);
        }
    }
}

vectorized! {
    fn widen_f16(from: &[f16], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            let bits = u32::from(from.to_bits());
            // The exponent's offset is 127 instead of 15: a multiplication by 2^112, which is exact,
            // also for numbers that were subnormal. Infinity and NaN have the largest exponent in both.
            let magnitude = (bits & 0x7fff) << 13;
            let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
            let magnitude = if magnitude >= 0x0f80_0000 { magnitude | 0x7f80_0000 } else { finite };
            *to = f32::from_bits(magnitude | (bits & 0x8000) << 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_number_is_widened_exactly() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0.0; bits.len()];
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        let narrow: Vec<f16> = bits.iter().map(|bits| f16::from_bits(*bits)).collect();
        f16::widen_all(&narrow, &mut wide);
        assert!(narrow.iter().zip(&wide).all(|(narrow, wide)| same(narrow.to_f32(), *wide)));
        let narrow: Vec<bf16> = bits.iter().map(|bits| bf16::from_bits(*bits)).collect();
        bf16::widen_all(&narrow, &mut wide);
        assert!(narrow.iter().zip(&wide).all(|(narrow, wide)| same(narrow.to_f32(), *wide)));
    }

    #[test]
    fn rounding_to_bf16_is_to_the_nearest_with_ties_to_even() {
        let exact = (0..=u32::from(u16::MAX)).flat_map(|high| {
            [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(high << 16 | low))
        });
        let wide: Vec<f32> = exact.collect();
        let mut narrow = vec![bf16::ZERO; wide.len()];
        bf16::round_all(&wide, &mut narrow);
        for (wide, narrow) in wide.iter().zip(narrow) {
            let want = bf16::from_f32(*wide);
            assert!(
                narrow.to_bits() == want.to_bits() || (wide.is_nan() && narrow.is_nan()),
                "{wide}"
            );
        }
    }
}
