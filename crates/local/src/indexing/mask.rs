//! Elements by a mask, and where a mask is true.

use super::places::{Places, same_dtype};
use crate::{DType, LocalError, Result, Tensor, dims::broadcast};

impl Tensor {
    /// The elements where the mask, of `bool`, is true, in one dim. Both are broadcast.
    ///
    /// How many there are is a question about values, so this is an error on a meta tensor; so is
    /// [`nonzero`](Tensor::nonzero).
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        let op = "masked_select";
        check_mask(op, mask)?;
        let shape = broadcast(op, [self.shape(), mask.shape()].into_iter())?;
        if self.is_meta() || mask.is_meta() {
            return Err(LocalError::Meta { op, shape: shape.to_vec() });
        }
        let starts = positions(&mask.expand(&shape)?)?;
        let n = starts.len();
        Places { starts, width: 1 }.pick(op, &self.expand(&shape)?.contiguous(), &[n])
    }

    /// A copy whose elements where the mask, of `bool`, is true are the first ones of the source, in order.
    /// Tensor and mask are broadcast; the source has at least as many elements as are asked for.
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
        let op = "masked_scatter";
        check_mask(op, mask)?;
        same_dtype(op, self, source)?;
        let shape = broadcast(op, [self.shape(), mask.shape()].into_iter())?;
        if [self, mask, source].iter().any(|tensor| tensor.is_meta()) {
            return Tensor::meta(&shape, self.dtype());
        }
        let starts = positions(&mask.expand(&shape)?)?;
        if source.numel() < starts.len() {
            return Err(LocalError::WrongNumberOfValues {
                op,
                got: source.numel(),
                want: starts.len(),
                shape: shape.to_vec(),
            });
        }
        let values = source.reshape(&[source.numel()])?.narrow(0, 0, starts.len())?;
        let mut into = self.expand(&shape)?;
        Places { starts, width: 1 }.put(&mut into, &values)?;
        Ok(into)
    }

    /// The indices of the elements that are not zero, in order: `i64`, one row per element and one column
    /// per dim. NaN is not zero.
    ///
    /// ```
    /// use dtensor_local::Tensor;
    /// let x = Tensor::from_vec(vec![0, 5, 0, 7], &[2, 2])?;
    /// assert_eq!(x.nonzero()?.to_vec::<i64>()?, [0, 1, 1, 1]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn nonzero(&self) -> Result<Tensor> {
        let op = "nonzero";
        if self.is_meta() {
            return Err(LocalError::Meta { op, shape: self.shape().to_vec() });
        }
        let found = positions(&self.to_dtype(DType::Bool)?)?;
        let n_dims = self.n_dims();
        Tensor::write(op, &[found.len(), n_dims], |out: &mut [i64]| {
            // Without dims there is nothing to say of an index, and rows of no columns are no chunks.
            for (row, position) in out.chunks_exact_mut(n_dims.max(1)).zip(found) {
                let mut rest = position;
                for (index, size) in row.iter_mut().zip(self.shape()).rev() {
                    *index = (rest % size) as i64;
                    rest /= size;
                }
            }
        })
    }
}

fn check_mask(op: &'static str, mask: &Tensor) -> Result<()> {
    match mask.dtype() {
        DType::Bool => Ok(()),
        got => Err(LocalError::WrongDType { op, got, want: DType::Bool }),
    }
}

/// Which elements of a mask are true, counted in order.
fn positions(mask: &Tensor) -> Result<Vec<usize>> {
    let mask = mask.contiguous();
    let flags = mask.as_slice::<bool>()?;
    // Counted first: growing the list would copy it several times.
    let mut found = Vec::with_capacity(flags.iter().filter(|flag| **flag).count());
    found.extend(flags.iter().enumerate().filter(|(_, flag)| **flag).map(|(position, _)| position));
    Ok(found)
}
