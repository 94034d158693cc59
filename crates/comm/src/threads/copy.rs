//! Copying between the buffers of two ranks.

use std::ptr;

/// Pieces of this size and more are written past the caches: they would not stay there until their
/// receiver reads them, and an ordinary store first loads the line that it overwrites. At 64 MiB on
/// two ranks that is a third of the memory traffic.
const STREAM_BYTES: usize = 4 << 20;

/// Copies `bytes` bytes, from one offset to another. Nothing is offset for no bytes: pointers may be
/// dangling then.
///
/// # Safety
/// The two ranges are valid and do not overlap; nobody writes the first and nobody accesses the second
/// meanwhile.
pub(super) unsafe fn copy(
    from: *const u8,
    from_at: usize,
    to: *mut u8,
    to_at: usize,
    bytes: usize,
) {
    if bytes == 0 {
        return;
    }
    // SAFETY: The caller's promise.
    unsafe {
        let (from, to) = (from.add(from_at), to.add(to_at));
        if bytes >= STREAM_BYTES || meets_pages(from, to, bytes) {
            stream(from, to, bytes);
        } else {
            ptr::copy_nonoverlapping(from, to, bytes);
        }
    }
}

/// Whether the place to write is just behind the place to read, whole pages aside. There the `rep movsb` of which the C
/// library makes a copy of some KiB is 15 to 60 times slower, on some processors.
fn meets_pages(from: *const u8, to: *const u8, bytes: usize) -> bool {
    bytes >= 2048 && (1..64).contains(&(to.addr().wrapping_sub(from.addr()) % 4096))
}

/// # Safety
/// As [`copy`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: The caller's promise.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
}

/// # Safety
/// As [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: `head`, the lines and the rest together are the `bytes` bytes of the caller's promise.
    // The first byte after the head is aligned to a line, as streaming stores need. SSE2 is part of
    // x86-64. The fence orders the streaming stores, which ordinary release stores do not, before
    // whatever tells others that the copy is done.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let source = from.add(head + line * LINE).cast::<__m128i>();
            let target = to.add(head + line * LINE).cast::<__m128i>();
            let parts = [
                _mm_loadu_si128(source),
                _mm_loadu_si128(source.add(1)),
                _mm_loadu_si128(source.add(2)),
                _mm_loadu_si128(source.add(3)),
            ];
            for (i, part) in parts.into_iter().enumerate() {
                _mm_stream_si128(target.add(i), part);
            }
        }
        _mm_sfence();
        ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_bytes_arrive_at_any_alignment_and_length() {
        let from: Vec<u8> = (0..2_000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for start in [0, 1, 13, 63, 64] {
            for bytes in [0, 1, 63, 64, 65, 127, 128, 1_000, 1_800] {
                let mut to = vec![0_u8; 2_000];
                // SAFETY: Both vectors are long enough, and apart.
                unsafe { stream(from[3..].as_ptr(), to[start..].as_mut_ptr(), bytes) };
                assert_eq!(to[start..][..bytes], from[3..][..bytes], "{start} {bytes}");
                assert!(to[..start].iter().chain(&to[start + bytes..]).all(|&x| x == 0));
            }
        }
    }
}
