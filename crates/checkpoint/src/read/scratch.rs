//! Memory that is used again and again.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, PoisonError},
};

/// Buffers that threads borrow. New memory must be given by the system page after page, which costs as much as reading into it.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Vec<Vec<u8>>>);

/// A buffer, given back when it is dropped.
pub(super) struct Borrowed<'s> {
    bytes: Vec<u8>,
    /// As many of them were asked for.
    used: usize,
    owner: &'s Scratch,
}

impl Scratch {
    /// A buffer of so many bytes, which hold anything.
    pub(super) fn borrow(&self, bytes: usize) -> Borrowed<'_> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut found = found.unwrap_or_default();
        if found.len() < bytes {
            found.resize(bytes, 0);
        }
        Borrowed { bytes: found, used: bytes, owner: self }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut free = self.owner.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(std::mem::take(&mut self.bytes));
    }
}

impl Deref for Borrowed<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

impl DerefMut for Borrowed<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.used]
    }
}
