//! Matrices with zeros on one side of a diagonal.

use std::ops::Range;

use super::bits::{Bits, GRAIN, bits, by_size, write_bits};
use crate::{LocalError, Result, Tensor, threads::for_pieces_of};

impl Tensor {
    /// The last two dims as matrices, with zeros above a diagonal: `diagonal` 0 is the main one, 1 the next
    /// one to the right.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let x = Tensor::from_vec((1..7).collect(), &[2, 3])?;
    /// assert_eq!(x.tril(0)?.to_vec::<i32>()?, [1, 0, 0, 4, 5, 0]);
    /// assert_eq!(x.triu(1)?.to_vec::<i32>()?, [0, 2, 3, 0, 0, 6]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn tril(&self, diagonal: isize) -> Result<Tensor> {
        triangle("tril", self, &|row, columns| {
            0..clamped((row as isize).saturating_add(diagonal).saturating_add(1), columns)
        })
    }

    /// The last two dims as matrices, with zeros below a diagonal, as [`tril`](Tensor::tril) counts them.
    pub fn triu(&self, diagonal: isize) -> Result<Tensor> {
        triangle("triu", self, &|row, columns| {
            clamped((row as isize).saturating_add(diagonal), columns)..columns
        })
    }
}

/// The columns of a row that stay, given how many there are.
type Kept<'a> = &'a (dyn Fn(usize, usize) -> Range<usize> + Sync);

fn triangle(op: &'static str, x: &Tensor, kept: Kept) -> Result<Tensor> {
    let [.., rows, columns] = *x.shape() else {
        return Err(LocalError::BadNumber {
            op,
            name: "the number of dims",
            got: x.n_dims().to_string(),
            want: "at least 2",
        });
    };
    if x.is_meta() {
        return Tensor::meta(x.shape(), x.dtype());
    }
    let whole = x.contiguous();
    by_size!(x.dtype(), U => {
        let values = bits::<U>(&whole)?;
        // SAFETY: The size fits, and the bits are those of values of the same dtype or all zero, which is
        // zero in every dtype.
        unsafe {
            write_bits(op, x.shape(), x.dtype(), |out: &mut [U]| {
                triangle_as(values, rows, columns, kept, out);
            })
        }
    })
}

fn triangle_as<U: Bits>(values: &[U], rows: usize, columns: usize, kept: Kept, out: &mut [U]) {
    if out.is_empty() {
        return;
    }
    for_pieces_of(out, columns, GRAIN.div_ceil(columns), |piece, out| {
        for (index, out) in piece.zip(out.chunks_exact_mut(columns)) {
            let kept = kept(index % rows, columns);
            let values = &values[index * columns..(index + 1) * columns];
            out[..kept.start].fill(U::zeroed());
            out[kept.end..].fill(U::zeroed());
            out[kept.clone()].copy_from_slice(&values[kept]);
        }
    });
}

fn clamped(column: isize, columns: usize) -> usize {
    usize::try_from(column).unwrap_or(0).min(columns)
}
