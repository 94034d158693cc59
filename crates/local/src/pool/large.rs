//! Memory straight from the system, in pieces of 2 MiB.

use std::ptr::NonNull;

/// Size and alignment of a huge page on the systems that matter.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// `bytes` zeroed bytes, a multiple of [`HUGE_PAGE`].
#[cfg(all(unix, not(miri)))]
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    // The system aligns to small pages only: ask for one huge page more, and give back the ends.
    let padded = bytes.checked_add(HUGE_PAGE)?;
    // SAFETY: A new private mapping; no existing memory is touched.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            padded,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    let head = mapped.cast::<u8>().align_offset(HUGE_PAGE);
    let start = mapped.cast::<u8>().wrapping_add(head);
    // SAFETY: Both ends are within the mapping, multiples of the small page, and used by nobody.
    unsafe {
        if head > 0 {
            libc::munmap(mapped, head);
        }
        if HUGE_PAGE > head {
            libc::munmap(start.wrapping_add(bytes).cast(), HUGE_PAGE - head);
        }
        // A wish, not a need: without huge pages everything works, with more page faults.
        #[cfg(target_os = "linux")]
        libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start)
}

/// Gives memory back to the system.
///
/// # Safety
/// `start` came from [`allocate`] with as many bytes, and nobody uses it.
#[cfg(all(unix, not(miri)))]
pub(super) unsafe fn release(start: NonNull<u8>, bytes: usize) {
    // SAFETY: The caller's promise. It cannot fail for a mapping that exists.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(not(all(unix, not(miri))))]
fn layout(bytes: usize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes, HUGE_PAGE).ok()
}

/// `bytes` zeroed bytes, a multiple of [`HUGE_PAGE`].
#[cfg(not(all(unix, not(miri))))]
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: Large buffers are not empty.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)?) })
}

/// Gives memory back to the system.
///
/// # Safety
/// `start` came from [`allocate`] with as many bytes, and nobody uses it.
#[cfg(not(all(unix, not(miri))))]
pub(super) unsafe fn release(start: NonNull<u8>, bytes: usize) {
    if let Some(layout) = layout(bytes) {
        // SAFETY: The caller's promise.
        unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
    }
}
