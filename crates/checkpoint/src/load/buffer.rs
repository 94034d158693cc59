//! Memory for what is on its way.

use std::ops::{Deref, DerefMut};

use dtensor::{DType, Tensor};

use crate::Result;

/// Bytes that are used again and again.
///
/// They are those of a tensor, and so lie on large pages: the system reads into these half again as fast as into small ones, and
/// copies from them are twice as fast.
#[derive(Default)]
pub(super) struct Buffer {
    memory: Option<Tensor>,
    used: usize,
}

impl Buffer {
    /// Makes it so many bytes long. They hold anything.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<()> {
        if self.memory.as_ref().is_none_or(|memory| memory.numel() < bytes) {
            // Given back first: it may be what comes next.
            self.memory = None;
            self.memory = Some(Tensor::empty(&[bytes], DType::U8).map_err(dtensor::Error::from)?);
        }
        self.used = bytes;
        Ok(())
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = self.memory.as_ref().and_then(|memory| memory.as_bytes().ok());
        bytes.and_then(|bytes| bytes.get(..self.used)).unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.memory.as_mut().and_then(|memory| memory.as_bytes_mut().ok());
        bytes.and_then(|bytes| bytes.get_mut(..self.used)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_was_asked() {
        let mut buffer = Buffer::default();
        assert!(buffer.is_empty());
        for bytes in [3, 5 << 20, 0, 7] {
            buffer.resize(bytes).unwrap();
            assert_eq!((buffer.len(), buffer.iter_mut().count()), (bytes, bytes));
        }
        buffer.copy_from_slice(b"1234567");
        buffer.resize(5).unwrap();
        assert_eq!(*buffer, *b"12345");
    }
}
