//! Where the memory of tensors comes from and goes back to.
//!
//! A fresh allocation of 64 MiB costs tens of milliseconds of page faults, several times what the
//! arithmetic in it takes; so buffers are kept and used again. Three sizes of things:
//!
//! | bytes | kept in | rounded up to |
//! |---|---|---|
//! | up to 16 KiB | the thread, a list per class | a power of two, at least 64 |
//! | up to 1 MiB | the process, a list per class | a power of two |
//! | more | the process | 2 MiB, on huge pages where the system has them |
//!
//! # No uninitialised memory
//!
//! A buffer is filled with zeros when it is made, which for large ones the system does anyway, and
//! is given out again with whatever its last owner wrote. So its bytes are always initialised, and a
//! kernel may take an output as a plain `&mut [f32]` without touching it first. (Not as `&mut [bool]`:
//! not every byte is one.)
//!
//! # A buffer has one owner
//!
//! A [`Buffer`] is unique, and gives its memory back when it is dropped; what is shared is an `Arc`
//! around it. So the pool never gives out memory that somebody still reads.

mod large;
mod lists;

use std::{alloc::Layout, num::NonZero, ptr::NonNull, slice};

pub use lists::PoolStats;

/// Alignment of every buffer: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// Initialised bytes, aligned to [`ALIGN`], that go back to the pool when dropped.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    /// What was asked for; the class of that many bytes is what there is.
    bytes: usize,
}

// SAFETY: A buffer owns its memory, as a `Vec<u8>` does.
unsafe impl Send for Buffer {}
// SAFETY: As above; shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer with anything in it.
    #[inline]
    pub(crate) fn any(bytes: usize) -> Buffer {
        let start = if bytes == 0 { dangling() } else { lists::take(bytes) };
        Buffer { start, bytes }
    }

    /// A buffer of zeros.
    pub(crate) fn zeros(bytes: usize) -> Buffer {
        let mut buffer = Buffer::any(bytes);
        buffer.as_mut_slice().fill(0);
        buffer
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `bytes` initialised bytes that this buffer owns.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: As above, and `&mut self` is the only way to them.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: The memory came from `take` for as many bytes, and this was its only owner.
            unsafe { lists::give_back(self.start, self.bytes) };
        }
    }
}

/// Numbers about the pool of this process.
pub fn pool_stats() -> PoolStats {
    lists::stats()
}

/// The most bytes that the process keeps for reuse (threads' own small ones aside); more than that
/// is given back to the system as it comes. The default is 4 GiB.
pub fn set_pool_limit(bytes: usize) {
    lists::set_limit(bytes);
}

/// Gives all memory that is kept for reuse back to the system (other threads' own small ones aside).
pub fn trim_pool() {
    lists::trim();
}

fn dangling() -> NonNull<u8> {
    // Aligned as promised, and never dereferenced.
    const ADDRESS: NonZero<usize> = match NonZero::new(ALIGN) {
        Some(address) => address,
        None => NonZero::<usize>::MIN,
    };
    NonNull::without_provenance(ADDRESS)
}

/// The system's own allocator, for everything that is not large.
fn system_layout(class_bytes: usize) -> Layout {
    // Classes are powers of two of at most 1 MiB, for which this is always a layout.
    Layout::from_size_align(class_bytes, ALIGN).unwrap_or(Layout::new::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_apart_and_as_long_as_asked() {
        let sizes =
            [0, 1, 63, 64, 65, 4096, 16 << 10, (16 << 10) + 1, 1 << 20, (1 << 20) + 1, 5 << 20];
        let mut buffers: Vec<Buffer> = sizes.iter().map(|bytes| Buffer::any(*bytes)).collect();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_slice().len(), sizes[number]);
            assert_eq!(buffer.as_slice().as_ptr().addr() % ALIGN, 0);
            buffer.as_mut_slice().fill(number as u8);
        }
        for (number, buffer) in buffers.iter().enumerate() {
            // As slices: a loop over bytes would keep Miri busy for hours.
            assert!(buffer.as_slice() == vec![number as u8; sizes[number]]);
        }
    }

    #[test]
    fn a_dropped_buffer_is_used_again_and_zeros_are_zeros() {
        for bytes in [100, 100_000, 3 << 20] {
            let mut first = Buffer::any(bytes);
            first.as_mut_slice().fill(7);
            let address = first.as_slice().as_ptr();
            drop(first);
            let again = Buffer::any(bytes);
            // Other tests run beside this one and may have been faster with shared sizes.
            if again.as_slice().as_ptr() == address {
                assert_eq!(again.as_slice()[0], 7);
            }
            drop(again);
            assert!(Buffer::zeros(bytes).as_slice() == vec![0; bytes]);
        }
    }

    #[test]
    fn small_buffers_come_back_in_their_own_thread() {
        let first = Buffer::any(200);
        let address = first.as_slice().as_ptr();
        drop(first);
        assert_eq!(Buffer::any(250).as_slice().as_ptr(), address, "one class, one list");
    }

    #[test]
    fn buffers_may_be_dropped_in_another_thread() {
        let buffers: Vec<Buffer> = [100, 100_000, 3 << 20].into_iter().map(Buffer::any).collect();
        std::thread::spawn(move || drop(buffers)).join().unwrap();
    }

    #[test]
    fn what_is_kept_can_be_given_back() {
        drop(Buffer::any(300_000));
        trim_pool();
        let before = pool_stats();
        let held = Buffer::any(300_000);
        let after = pool_stats();
        assert!(after.allocations > 0 && after.used_bytes >= before.used_bytes.min(300_000));
        drop(held);
    }
}
