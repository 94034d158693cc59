//! Copying consecutive bytes, where the C library is slow at it.
//!
//! Between some KiB and about a MiB `memcpy` of glibc is the instruction `rep movsb`. On AMD's Zen 3 and 4 that
//! takes 15 to 60 times as long if the place to write is up to 31 bytes behind the place to read, but for
//! whole pages: as for the second half of a matrix with an odd number of rows and columns. And it writes
//! through the caches what does not stay in them.

/// Copies bytes. `stream` says that they are a part of something too large for the caches, so that they are
/// better written past them.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`] of as many bytes.
#[inline]
pub(crate) unsafe fn copy_run(from: *const u8, to: *mut u8, bytes: usize, stream: bool) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= SHORT && (stream || meets_pages(from, to)) && is_x86_feature_detected!("avx") {
        // SAFETY: The caller's promise; the processor has AVX, as was just asked.
        unsafe { avx::copy(from, to, bytes, stream) };
        return;
    }
    let _ = stream;
    // SAFETY: The caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

/// Bytes below which a copy is no `rep movsb`, whatever the width of vectors.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 2048;

/// Whether the place to write is just behind the place to read, whole pages aside.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn meets_pages(from: *const u8, to: *mut u8) -> bool {
    (1..64).contains(&(to.addr().wrapping_sub(from.addr()) % 4096))
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx {
    use std::{arch::x86_64::*, ptr::copy_nonoverlapping};

    /// Bytes of a cache line, of a vector, and of a step.
    const LINE: usize = 64;
    const WIDTH: usize = 32;
    const STEP: usize = 4 * WIDTH;

    /// # Safety
    /// As [`super::copy_run`], of at least [`super::SHORT`] bytes, and the processor has AVX.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize, stream: bool) {
        // Up to where lines can be written whole.
        let head = to.addr().next_multiple_of(LINE) - to.addr();
        let tail = head + (bytes - head) / STEP * STEP;
        // SAFETY: `head <= tail <= bytes`, and all steps lie between the first two.
        unsafe {
            copy_nonoverlapping(from, to, head);
            for at in (head..tail).step_by(STEP) {
                let (from, to): (*const __m256i, *mut __m256i) =
                    (from.add(at).cast(), to.add(at).cast());
                let vectors = [
                    _mm256_loadu_si256(from),
                    _mm256_loadu_si256(from.add(1)),
                    _mm256_loadu_si256(from.add(2)),
                    _mm256_loadu_si256(from.add(3)),
                ];
                for (index, vector) in vectors.into_iter().enumerate() {
                    match stream {
                        true => _mm256_stream_si256(to.add(index), vector),
                        false => _mm256_store_si256(to.add(index), vector),
                    }
                }
            }
            copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
        }
        if stream {
            // Such writes are not ordered; whoever is told that they are done must see them.
            _mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_any_length_and_alignment_are_copied_and_nothing_else_is_written() {
        let from: Vec<u8> = (0..30_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        for bytes in [0, 1, 31, 2047, 2048, 2049, 4096 + 127, 9000] {
            for (read, write) in [(0, 0), (1, 0), (4092, 0), (0, 4), (4096, 4127), (33, 64)] {
                for stream in [false, true] {
                    let mut to = vec![255; 30_000];
                    // SAFETY: Both are within their vectors, which are two.
                    unsafe {
                        let (from, to) = (from.as_ptr().add(read), to.as_mut_ptr().add(write));
                        copy_run(from, to, bytes, stream);
                    }
                    assert!(to[write..write + bytes] == from[read..read + bytes]);
                    let others = to[..write].iter().chain(&to[write + bytes..]);
                    assert!(others.copied().all(|byte| byte == 255), "{bytes} {read} {write}");
                }
            }
        }
    }
}
