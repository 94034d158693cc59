//! Tensors as bytes: what moves between ranks.

use crate::{DType, LocalError, Result, Tensor, copy};

impl Tensor {
    /// The bytes of a tensor whose elements are consecutive.
    pub fn as_bytes(&self) -> Result<&[u8]> {
        let Some(start) = self.start() else {
            return Err(LocalError::Meta { op: "as_bytes", shape: self.shape().to_vec() });
        };
        if !self.is_contiguous() {
            return Err(self.not_contiguous("as_bytes"));
        }
        // SAFETY: `numel` consecutive elements of the storage, by the invariant of a tensor and the check
        // above; shared memory is not written.
        Ok(unsafe { std::slice::from_raw_parts(start, self.numel() * self.dtype().size()) })
    }

    /// The bytes, to be changed in place. If the elements are not consecutive, or if another tensor can see them, they are
    /// copied first; that tensor does not change. Refused for `bool`, of which most bytes are no values: change those by
    /// [`as_mut_slice`](Tensor::as_mut_slice).
    ///
    /// ```
    /// use dtensor_local::{LocalError, Tensor};
    ///
    /// let mut tensor = Tensor::from_vec(vec![1_i32, 2], &[2])?;
    /// let other = tensor.clone();
    /// tensor.as_bytes_mut()?[..4].copy_from_slice(&7_i32.to_le_bytes());
    /// assert_eq!(tensor.to_vec::<i32>()?, [7, 2]);
    /// assert_eq!(other.to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), LocalError>(())
    /// ```
    pub fn as_bytes_mut(&mut self) -> Result<&mut [u8]> {
        if self.dtype() == DType::Bool {
            let (got, want) = (DType::Bool, DType::U8);
            return Err(LocalError::WrongDType { op: "as_bytes_mut", got, want });
        }
        let n_bytes = self.numel() * self.dtype().size();
        let start = self.own_start("as_bytes_mut")?;
        // SAFETY: As many consecutive elements, of which this tensor is the only owner. They are numbers, which any bytes are.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, n_bytes) })
    }

    /// A new tensor whose bytes `fill` writes, the last dim varying fastest. They are aligned for every
    /// dtype and hold anything at first, so `fill` must write all of them. An error of `fill` is passed on.
    ///
    /// ```
    /// use dtensor_local::{DType, LocalError, Tensor};
    ///
    /// let tensor = Tensor::from_bytes_with(&[2], DType::U8, |bytes| {
    ///     bytes.copy_from_slice(&[3, 4]);
    ///     Ok::<_, LocalError>(())
    /// })?;
    /// assert_eq!(tensor.to_vec::<u8>()?, [3, 4]);
    /// # Ok::<(), LocalError>(())
    /// ```
    pub fn from_bytes_with<E: From<LocalError>>(
        shape: &[usize],
        dtype: DType,
        fill: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let mut fill = Some(fill);
        let mut filled = Ok(());
        let tensor = Tensor::write_raw("from_bytes_with", shape, dtype, &mut |start, n| {
            // SAFETY: Room for `n` values of this dtype, that nobody else sees.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start, n * dtype.size()) };
            if let Some(fill) = fill.take() {
                filled = fill(bytes);
            }
            if dtype == DType::Bool {
                // Nothing else is a bool.
                bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        })?;
        filled.map(|()| tensor)
    }

    /// The elements of several tensors of one dtype, one after the other, as a tensor of one dim.
    pub fn pack(dtype: DType, tensors: &[Tensor]) -> Result<Tensor> {
        if let Some(other) = tensors.iter().find(|tensor| tensor.dtype() != dtype) {
            return Err(LocalError::WrongDType { op: "pack", got: other.dtype(), want: dtype });
        }
        let n = tensors.iter().map(Tensor::numel).sum();
        if tensors.iter().any(Tensor::is_meta) {
            return Tensor::meta(&[n], dtype);
        }
        Tensor::write_raw("pack", &[n], dtype, &mut |start, _| {
            let mut at = 0;
            for tensor in tensors {
                let n_bytes = tensor.numel() * dtype.size();
                let Some(from) = tensor.start() else { continue };
                // SAFETY: By the invariant of a tensor every element is there to be read; the new memory
                // has room for all of them, and this part of it is nobody else's.
                unsafe {
                    let to = std::slice::from_raw_parts_mut(start.add(at), n_bytes);
                    copy::gather(from, tensor.shape(), tensor.strides(), dtype, to);
                }
                at += n_bytes;
            }
        })
    }
}
