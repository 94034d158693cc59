//! The memory of one or several tensors.

use crate::{Element, pool::Buffer};

/// Initialised bytes, each group of them a valid value of the dtype that it was made for.
pub(crate) enum Storage {
    /// From the pool.
    Pooled(Buffer),
    /// A caller's `Vec`, taken over without a copy.
    Vec(Box<dyn OwnedVec>),
}

/// A `Vec` of any element type.
pub(crate) trait OwnedVec: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn start_mut(&mut self) -> *mut u8;
}

impl<T: Element> OwnedVec for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn start_mut(&mut self) -> *mut u8 {
        self.as_mut_ptr().cast()
    }
}

impl Storage {
    /// The first byte. Aligned for the dtype that the storage was made for.
    #[inline]
    pub(crate) fn start(&self) -> *const u8 {
        match self {
            Storage::Pooled(buffer) => buffer.as_slice().as_ptr(),
            Storage::Vec(vec) => vec.bytes().as_ptr(),
        }
    }

    /// The first byte, to write.
    pub(crate) fn start_mut(&mut self) -> *mut u8 {
        match self {
            Storage::Pooled(buffer) => buffer.as_mut_slice().as_mut_ptr(),
            Storage::Vec(vec) => vec.start_mut(),
        }
    }

    /// Number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Storage::Pooled(buffer) => buffer.as_slice().len(),
            Storage::Vec(vec) => vec.bytes().len(),
        }
    }
}
