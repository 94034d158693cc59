//! Distances between all pairs of rows.

use super::batch::check_dtype;
use crate::{
    DType, Element, LocalError, Result, Tensor, matmul::broadcast_batch, threads::for_pieces_of,
};

/// From this many rows on either side, and columns, distances come from a product of matrices: from
/// there on it is faster than subtracting.
const PRODUCT_ROWS: usize = 26;

/// A squared distance from a product is the difference of numbers as large as the squared lengths. It is
/// kept if it has lost no more than this part of them, six bits; else it is computed again by subtraction.
const KEPT: f64 = 1.0 / 64.0;

/// Values that a thread is woken up for.
const PIECE: usize = 1 << 15;

impl Tensor {
    /// The distances between every row of `self` and every row of `other`: `[.., m, d]` and
    /// `[.., n, d]` give `[.., m, n]`. The batch dims are broadcast.
    ///
    /// The distance is the norm `p` of the difference: 2 is Euclid's, 1 the sum of absolute values,
    /// infinity the largest, 0 how many values differ. Distances are exact to a few places of the dtype
    /// even of rows that nearly agree, unlike PyTorch's for `p` 2 and many rows.
    ///
    /// ```
    /// # use dtensor_local::Tensor;
    /// let a = Tensor::from_vec(vec![0.0_f32, 0.0, 3.0, 4.0], &[2, 2])?;
    /// let origin = Tensor::from_vec(vec![0.0_f32, 0.0], &[1, 2])?;
    /// assert_eq!(a.cdist(&origin, 2.0)?.to_vec::<f32>()?, [0.0, 5.0]);
    /// assert_eq!(a.cdist(&origin, 1.0)?.to_vec::<f32>()?, [0.0, 7.0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn cdist(&self, other: &Tensor, p: f64) -> Result<Tensor> {
        let op = "cdist";
        check_dtype(op, self)?;
        if self.dtype() != other.dtype() {
            return Err(LocalError::WrongDType { op, got: other.dtype(), want: self.dtype() });
        }
        if p.is_nan() || p < 0.0 {
            let (got, want) = (p.to_string(), "zero, a positive number or infinity");
            return Err(LocalError::BadNumber { op, name: "p", got, want });
        }
        let mismatch = |why| LocalError::ShapeMismatch {
            op,
            from: self.shape().to_vec(),
            to: other.shape().to_vec(),
            why,
        };
        let ([.., m, width], [.., n, other_width]) = (self.shape(), other.shape()) else {
            return Err(mismatch("both need two dims, with the batch before"));
        };
        let (m, n, width) = (*m, *n, *width);
        if width != *other_width {
            return Err(mismatch("the rows must be of the same length"));
        }
        let (batch, a, b) = broadcast_batch(op, self, other)?;
        let shape = [&batch[..], &[m, n]].concat();
        if a.is_meta() || b.is_meta() {
            return Tensor::meta(&shape, self.dtype());
        }

        let product = (p == 2.0 && width > 0 && (m >= PRODUCT_ROWS || n >= PRODUCT_ROWS))
            .then(|| a.matmul(&b.transpose(-2, -1)?)?.to_dtype(DType::F64))
            .transpose()?;
        let a = a.to_dtype(DType::F64)?.contiguous();
        let b = b.to_dtype(DType::F64)?.contiguous();
        let (a, b) = (a.as_slice::<f64>()?, b.as_slice::<f64>()?);
        let rows = Rows { a, b, m, n, width };
        let distances = match &product {
            Some(product) => {
                let product = product.as_slice::<f64>()?;
                let (a_squares, b_squares) = (squares(a, width), squares(b, width));
                rows.each(op, &shape, |i, j, at| {
                    let sum = a_squares[i] + b_squares[j];
                    let squared = sum - 2.0 * product[at];
                    // Not `<`: what is no number is computed again too.
                    if squared >= KEPT * sum { squared.sqrt() } else { rows.distance(i, j, p) }
                })
            }
            None => rows.each(op, &shape, |i, j, _| rows.distance(i, j, p)),
        }?;
        distances.to_dtype(self.dtype())
    }
}

/// Two batches of rows, of the same number of batches.
struct Rows<'a> {
    a: &'a [f64],
    b: &'a [f64],
    m: usize,
    n: usize,
    width: usize,
}

impl Rows<'_> {
    /// A tensor of a value per pair, of which `value` gets the rows in `a` and in `b`, counted through
    /// all batches, and the place among the values.
    fn each(
        &self,
        op: &'static str,
        shape: &[usize],
        value: impl Fn(usize, usize, usize) -> f64 + Sync,
    ) -> Result<Tensor> {
        let (m, n) = (self.m, self.n);
        Tensor::write(op, shape, |out: &mut [f64]| {
            if out.is_empty() {
                return;
            }
            let grain = PIECE / (n * self.width.max(1)).max(1);
            for_pieces_of(out, n, grain, |piece, part| {
                for (i, part) in piece.zip(part.chunks_exact_mut(n)) {
                    let first = i / m * n;
                    for (j, out) in part.iter_mut().enumerate() {
                        *out = value(i, first + j, i * n + j);
                    }
                }
            });
        })
    }

    fn distance(&self, i: usize, j: usize, p: f64) -> f64 {
        let (a, b) = (row(self.a, i, self.width), row(self.b, j, self.width));
        let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        if p == 2.0 {
            differences.map(|d| d * d).sum::<f64>().sqrt()
        } else if p == 1.0 {
            differences.sum()
        } else if p == 0.0 {
            differences.filter(|d| *d != 0.0).count() as f64
        } else if p == f64::INFINITY {
            // Not `f64::max`, which drops what is no number.
            differences.fold(0.0, |max, d| if d <= max { max } else { d })
        } else {
            differences.map(|d| d.powf(p)).sum::<f64>().powf(1.0 / p)
        }
    }
}

fn row<T: Element>(values: &[T], index: usize, width: usize) -> &[T] {
    &values[index * width..(index + 1) * width]
}

fn squares(values: &[f64], width: usize) -> Vec<f64> {
    values.chunks_exact(width).map(|row| row.iter().map(|value| value * value).sum()).collect()
}
