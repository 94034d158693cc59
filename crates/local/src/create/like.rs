//! Constant tensors, also such as another one is.

use crate::{
    DType, Result, Scalar, Tensor,
    indexing::{bits, by_size, filled, scalar_of, write_bits},
};

impl Tensor {
    /// Ones (true, for `bool`).
    pub fn ones(shape: &[usize], dtype: DType) -> Result<Tensor> {
        filled("ones", shape, &scalar_of(Scalar::Int(1), dtype)?)
    }

    /// Any values: what the memory held before. For results that are written as a whole.
    pub fn empty(shape: &[usize], dtype: DType) -> Result<Tensor> {
        // SAFETY: The size fits, and nothing is written: memory of a new tensor holds values of its dtype.
        by_size!(dtype, U => unsafe { write_bits("empty", shape, dtype, |_: &mut [U]| ()) })
    }

    /// A matrix with ones on its diagonal and zeros elsewhere.
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor};
    /// assert_eq!(Tensor::eye(2, 3, DType::I32)?.to_vec::<i32>()?, [1, 0, 0, 0, 1, 0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn eye(rows: usize, columns: usize, dtype: DType) -> Result<Tensor> {
        let one = scalar_of(Scalar::Int(1), dtype)?;
        by_size!(dtype, U => {
            let one = bits::<U>(&one)?[0];
            // SAFETY: The size fits, and the bits are those of 1 and 0, which has no bit set in any dtype.
            unsafe {
                write_bits("eye", &[rows, columns], dtype, |out: &mut [U]| {
                    out.fill(0);
                    // Beyond the square the step finds no more rows, or the last row is over.
                    let diagonal = out.iter_mut().step_by(columns.saturating_add(1));
                    diagonal.take(rows.min(columns)).for_each(|value| *value = one);
                })
            }
        })
    }

    /// Zeros of the same shape and dtype; a meta tensor for a meta tensor, as all of these.
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.like(Tensor::zeros)
    }

    /// Ones of the same shape and dtype.
    pub fn ones_like(&self) -> Result<Tensor> {
        self.like(Tensor::ones)
    }

    /// A tensor of the same shape and dtype with any values, as [`Tensor::empty`].
    pub fn empty_like(&self) -> Result<Tensor> {
        self.like(Tensor::empty)
    }

    /// One value, cast to the dtype, in the same shape.
    pub fn full_like(&self, value: impl Into<Scalar>) -> Result<Tensor> {
        let value = value.into();
        self.like(|shape, dtype| filled("full_like", shape, &scalar_of(value, dtype)?))
    }

    fn like(&self, make: impl FnOnce(&[usize], DType) -> Result<Tensor>) -> Result<Tensor> {
        if self.is_meta() {
            return Tensor::meta(self.shape(), self.dtype());
        }
        make(self.shape(), self.dtype())
    }
}
