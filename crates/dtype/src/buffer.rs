//! Memory that a pending call may own: what tensors and communication agree on without knowing each other.

// The traits are promises about memory that no type can make by itself.
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::{DType, Element};

/// Owned memory that a pending call reads.
///
/// Implemented for `Vec<T>` and `Arc<[T]>`; implement it for a storage type of your own to hand it
/// to pending calls without a copy.
///
/// # Safety
/// From `send_ptr` until the value is dropped or taken back, the pointer refers to `elements()`
/// initialised values of `dtype()`, aligned for it, that nobody writes; moving the value does not
/// move them. Values of dtype `bool` are 0 or 1. The three functions keep giving the same answers.
pub unsafe trait SendBuffer: Send + 'static {
    /// The dtype of the elements.
    fn dtype(&self) -> DType;
    /// The number of elements.
    fn elements(&self) -> usize;
    /// The first element.
    fn send_ptr(&self) -> *const u8;
}

/// Owned memory that a pending call reads and writes.
///
/// Implemented for `Vec<T>`, whose length is what is received; implement it for a storage type of
/// your own to hand it to pending calls without a copy.
///
/// # Safety
/// From `recv_ptr` until the value is dropped or taken back, the pointer refers to `elements()`
/// initialised values of `dtype()`, aligned for it, that nobody else reads or writes, and through
/// which one may write; moving the value does not move them. (`Box<[T]>` does not qualify: moving a
/// box asserts that it is the only way to its memory.) Values of dtype `bool` are 0 or 1. The
/// functions keep giving the same answers.
pub unsafe trait RecvBuffer: Send + 'static {
    /// The dtype of the elements.
    fn dtype(&self) -> DType;
    /// The number of elements.
    fn elements(&self) -> usize;
    /// The first element.
    fn recv_ptr(&mut self) -> *mut u8;
}

// SAFETY: The elements of a vector are on the heap, and nobody else has access to an owned vector.
unsafe impl<T: Element> SendBuffer for Vec<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn elements(&self) -> usize {
        self.len()
    }
    fn send_ptr(&self) -> *const u8 {
        self.as_ptr().cast()
    }
}

// SAFETY: The elements are on the heap and immutable as long as this reference is alive: clones
// give shared access only, and `Arc::get_mut` needs the last reference.
unsafe impl<T: Element> SendBuffer for Arc<[T]> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn elements(&self) -> usize {
        self.len()
    }
    fn send_ptr(&self) -> *const u8 {
        self.as_ptr().cast()
    }
}

// SAFETY: The elements of a vector are on the heap, nobody else has access to an owned vector, and
// a vector, unlike a box, makes no claim of uniqueness when it is moved.
unsafe impl<T: Element> RecvBuffer for Vec<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }
    fn elements(&self) -> usize {
        self.len()
    }
    fn recv_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr().cast()
    }
}
