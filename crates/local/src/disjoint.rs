//! One slice that several pieces of work write, each its own part.

use std::{marker::PhantomData, ops::Range};

/// A mutable slice whose parts are handed out to threads by range. `for_pieces_of` does this safely for
/// one output; kernels with several outputs, or with parts of different lengths, need this.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: It is a `&mut [T]` whose parts go to different threads, each part to one.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Disjoint<'a, T> {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// The part at `range`.
    ///
    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    #[allow(clippy::mut_from_ref)] // The caller keeps the parts apart.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: Within the slice, by the assertion; not aliased, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
