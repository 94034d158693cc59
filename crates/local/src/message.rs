//! Tensors as the memory of calls that are still under way.

use std::fmt;

use dtensor_dtype::{RecvBuffer, SendBuffer};

use crate::{DType, LocalError, Result, Tensor, dims::numel, pool::Buffer, storage::Storage};

/// A tensor that a pending call reads. It has values, and they are consecutive.
#[derive(Clone, Debug)]
pub struct SendTensor(Tensor);

/// Memory that a pending call writes, a tensor afterwards.
pub struct RecvTensor {
    buffer: Buffer,
    n: usize,
    dtype: DType,
}

impl SendTensor {
    /// The values of a tensor; a copy if they are not consecutive.
    pub fn new(tensor: &Tensor) -> Result<SendTensor> {
        match tensor.is_meta() {
            true => Err(LocalError::Meta { op: "send", shape: tensor.shape().to_vec() }),
            false => Ok(SendTensor(tensor.contiguous())),
        }
    }
}

impl RecvTensor {
    /// Room for so many values.
    pub fn new(n: usize, dtype: DType) -> Result<RecvTensor> {
        let n_bytes = numel("receive", &[n], dtype)? * dtype.size();
        // Any bytes are numbers; only 0 and 1 are bools.
        let buffer =
            if dtype == DType::Bool { Buffer::zeros(n_bytes) } else { Buffer::any(n_bytes) };
        Ok(RecvTensor { buffer, n, dtype })
    }

    /// A copy of a tensor's values, for calls that read and write.
    pub fn copy_of(tensor: &Tensor) -> Result<RecvTensor> {
        let mut copy = RecvTensor::new(tensor.numel(), tensor.dtype())?;
        copy.buffer.as_mut_slice().copy_from_slice(tensor.contiguous().as_bytes()?);
        Ok(copy)
    }

    /// What was received, as a tensor of this shape.
    pub fn into_tensor(self, shape: &[usize]) -> Result<Tensor> {
        let RecvTensor { buffer, n, dtype } = self;
        Tensor::of_storage(Storage::Pooled(buffer), &[n], dtype).reshape(shape)
    }
}

impl fmt::Debug for RecvTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvTensor({} x {})", self.dtype, self.n)
    }
}

// SAFETY: The tensor keeps its storage alive and in place, and as it is one of the owners nobody writes: what
// writes in place copies first if a storage has another owner. The elements are consecutive, by the check in
// `new`, and valid values of the dtype, by the invariant of a storage.
unsafe impl SendBuffer for SendTensor {
    fn dtype(&self) -> DType {
        self.0.dtype()
    }
    fn elements(&self) -> usize {
        self.0.numel()
    }
    fn send_ptr(&self) -> *const u8 {
        self.0.as_bytes().map_or(std::ptr::NonNull::dangling().as_ptr(), <[u8]>::as_ptr)
    }
}

// SAFETY: The buffer has one owner, is initialised, aligned for every dtype and on the heap, so that it stays
// where it is when the value is moved; bools are 0 at first.
unsafe impl RecvBuffer for RecvTensor {
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn elements(&self) -> usize {
        self.n
    }
    fn recv_ptr(&mut self) -> *mut u8 {
        self.buffer.as_mut_slice().as_mut_ptr()
    }
}
