//! Places of values in a sorted sequence.

use super::key::Key;
use crate::{
    DType, LocalError, Result, Tensor, by_dtype::by_dtype, promote, threads::for_pieces_of,
};

/// Values that are worth a hand-over to another thread.
const GRAIN: usize = 1 << 12;

impl Tensor {
    /// Where each of `values` would be inserted into this tensor, which is sorted along its last dim, as
    /// `i64`: before values that are equal, or after them if `right`.
    ///
    /// The sequence has one dim, or the leading dims of `values`: then each of its lines is searched for
    /// the values of the same line. NaN is larger than all others. That the sequence is sorted is not
    /// checked. The dtypes must be equal, as in PyTorch.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    ///
    /// let sorted = Tensor::from_vec(vec![1.0_f32, 3.0, 3.0, 5.0], &[4])?;
    /// let values = Tensor::from_vec(vec![3.0_f32, 6.0], &[2])?;
    /// assert_eq!(sorted.searchsorted(&values, false)?.to_vec::<i64>()?, [1, 4]);
    /// assert_eq!(sorted.searchsorted(&values, true)?.to_vec::<i64>()?, [3, 4]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn searchsorted(&self, values: &Tensor, right: bool) -> Result<Tensor> {
        search("searchsorted", self, values, right)
    }

    /// The number of the bucket of each value, as `i64`: [`searchsorted`](Tensor::searchsorted) the other
    /// way round, in `boundaries` of one dim. A value that is a boundary belongs to the bucket below it,
    /// or to the one above if `right`.
    pub fn bucketize(&self, boundaries: &Tensor, right: bool) -> Result<Tensor> {
        if boundaries.n_dims() != 1 {
            return Err(LocalError::ShapeMismatch {
                op: "bucketize",
                from: boundaries.shape().to_vec(),
                to: self.shape().to_vec(),
                why: "the boundaries have exactly one dim; searchsorted takes several",
            });
        }
        search("bucketize", boundaries, self, right)
    }

    /// Whether each element equals one of `elements`, as `bool`. NaN equals nothing. Operands of different
    /// dtypes are promoted ([`promote`]).
    pub fn isin(&self, elements: &Tensor) -> Result<Tensor> {
        if self.is_meta() || elements.is_meta() {
            return Tensor::meta(self.shape(), DType::Bool);
        }
        let dtype = promote(self.dtype(), elements.dtype());
        let x = self.to_dtype(dtype)?.contiguous();
        let elements = elements.to_dtype(dtype)?.reshape(&[elements.numel()])?;
        let (sorted, _) = elements.sort(0, false)?;
        by_dtype!(dtype, T => {
            let (x, sorted) = (x.as_slice::<T>()?, sorted.as_slice::<T>()?);
            Tensor::write("isin", self.shape(), |out: &mut [bool]| {
                for_pieces_of(out, 1, GRAIN, |piece, out| {
                    for (out, x) in out.iter_mut().zip(&x[piece]) {
                        *out = sorted.get(place(sorted, *x, false)).is_some_and(|found| found == x);
                    }
                });
            })
        })
    }
}

fn search(op: &'static str, sequence: &Tensor, values: &Tensor, right: bool) -> Result<Tensor> {
    if sequence.dtype() != values.dtype() {
        return Err(LocalError::WrongDType { op, got: values.dtype(), want: sequence.dtype() });
    }
    let mismatch = |why| LocalError::ShapeMismatch {
        op,
        from: sequence.shape().to_vec(),
        to: values.shape().to_vec(),
        why,
    };
    let (n, leading) = match sequence.shape() {
        [] => return Err(mismatch("a sequence has at least one dim")),
        [leading @ .., n] => (*n, leading),
    };
    let width = match values.shape() {
        _ if leading.is_empty() => values.numel(),
        [same @ .., width] if same == leading => *width,
        _ => {
            return Err(mismatch(
                "a sequence of several dims has all but the last dim of the values",
            ));
        }
    };
    if sequence.is_meta() || values.is_meta() {
        return Tensor::meta(values.shape(), DType::I64);
    }
    let (sequence, values) = (sequence.contiguous(), values.contiguous());
    by_dtype!(sequence.dtype(), T => {
        let (sequence, x) = (sequence.as_slice::<T>()?, values.as_slice::<T>()?);
        Tensor::write(op, values.shape(), |out: &mut [i64]| {
            for_pieces_of(out, 1, GRAIN, |piece, out| {
                for (out, i) in out.iter_mut().zip(piece) {
                    // With one line, all values are of line 0.
                    let line = i / width * n;
                    *out = place(&sequence[line..line + n], x[i], right) as i64;
                }
            });
        })
    })
}

/// How many elements of a sorted slice are before a value.
pub(super) fn place<T: Key>(sorted: &[T], value: T, right: bool) -> usize {
    let key = value.key();
    sorted.partition_point(|x| if right { x.key() <= key } else { x.key() < key })
}
