//! Copying matrices whose columns are not consecutive where they are read.

/// Rows and columns of a tile: both its sides stay in the first-level cache, and every line that is
/// fetched or written is used whole.
const TILE: usize = 64;

/// Copies a matrix with these strides of rows and columns to one with consecutive columns. `stream` says
/// that the result is too large for the caches, so that it is better written past them.
///
/// # Safety
/// The elements may be read, those of the result be written, and the two do not overlap.
pub(crate) unsafe fn transpose<T: Copy>(
    from: *const T,
    strides: [isize; 2],
    rows: usize,
    columns: usize,
    to: *mut T,
    to_stride: isize,
    stream: bool,
) {
    for first_row in (0..rows).step_by(TILE) {
        let rows = TILE.min(rows - first_row);
        for first_column in (0..columns).step_by(TILE) {
            let columns = TILE.min(columns - first_column);
            // SAFETY: A part of the matrix.
            unsafe {
                let from = from.offset(first_row as isize * strides[0]);
                let from = from.offset(first_column as isize * strides[1]);
                let to = to.offset(first_row as isize * to_stride).add(first_column);
                tile(from, strides, rows, columns, to, to_stride, stream);
            }
        }
    }
}

/// # Safety
/// As [`transpose`].
unsafe fn tile<T: Copy>(
    from: *const T,
    strides: [isize; 2],
    rows: usize,
    columns: usize,
    to: *mut T,
    to_stride: isize,
    stream: bool,
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if size_of::<T>() == 4 && strides[0] == 1 && crate::simd::simd() != crate::simd::Simd::Baseline
    {
        // SAFETY: As for this function; the processor has AVX2.
        unsafe {
            match stream && avx2::can_stream(rows, columns, to.cast(), to_stride) {
                true => avx2::stream(from.cast(), strides[1], rows, columns, to.cast(), to_stride),
                false => avx2::tile(from.cast(), strides[1], rows, columns, to.cast(), to_stride),
            }
        }
        return;
    }
    let _ = stream;
    // SAFETY: As for this function.
    unsafe { plain(from, strides, 0..rows, 0..columns, to, to_stride) };
}

/// # Safety
/// As [`transpose`], for a range of rows and one of columns.
#[inline(always)]
unsafe fn plain<T: Copy>(
    from: *const T,
    strides: [isize; 2],
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    to: *mut T,
    to_stride: isize,
) {
    for row in rows {
        for column in columns.clone() {
            // SAFETY: An element.
            unsafe {
                let from = from.offset(row as isize * strides[0] + column as isize * strides[1]);
                *to.offset(row as isize * to_stride).add(column) = *from;
            }
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2 {
    use std::{arch::x86_64::*, mem::MaybeUninit};

    /// Transposes a tile whose rows are consecutive where they are read.
    ///
    /// # Safety
    /// As [`super::transpose`], and the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile(
        from: *const f32,
        stride: isize,
        rows: usize,
        columns: usize,
        to: *mut f32,
        to_stride: isize,
    ) {
        let (whole_rows, whole_columns) = (rows / 8 * 8, columns / 8 * 8);
        // Along the rows first: what lies next to each other where it is read is used at once.
        for column in (0..whole_columns).step_by(8) {
            for row in (0..whole_rows).step_by(8) {
                // SAFETY: Eight rows and columns of the tile.
                unsafe {
                    let from = from.add(row).offset(column as isize * stride);
                    eight_by_eight(
                        from,
                        stride,
                        to.offset(row as isize * to_stride).add(column),
                        to_stride,
                    );
                }
            }
        }
        let strides = [1, stride];
        // SAFETY: What is left at the right and at the bottom.
        unsafe {
            super::plain(from, strides, 0..whole_rows, whole_columns..columns, to, to_stride);
            super::plain(from, strides, whole_rows..rows, 0..columns, to, to_stride);
        }
    }

    /// Whether [`stream`] can write this tile.
    pub(super) fn can_stream(
        rows: usize,
        columns: usize,
        to: *const f32,
        to_stride: isize,
    ) -> bool {
        let whole = rows.is_multiple_of(8) && columns.is_multiple_of(8);
        whole && to.addr().is_multiple_of(32) && to_stride % 8 == 0
    }

    /// As [`tile`], but the result is put together elsewhere and then written past the caches, whole lines
    /// at a time. Rows whose distance is a power of two would else push each other out of the caches, and
    /// lines would be fetched only to be overwritten: half of the time.
    ///
    /// # Safety
    /// As [`tile`], and [`can_stream`] said yes.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn stream(
        from: *const f32,
        stride: isize,
        rows: usize,
        columns: usize,
        to: *mut f32,
        to_stride: isize,
    ) {
        let mut turned = [const { MaybeUninit::<__m256>::uninit() }; super::TILE * super::TILE / 8];
        let turned: *mut f32 = turned.as_mut_ptr().cast();
        // SAFETY: `turned` has room for a tile, and its rows are aligned as those of `to` are.
        unsafe {
            tile(from, stride, rows, columns, turned, columns as isize);
            for row in 0..rows {
                let (from, to) = (turned.add(row * columns), to.offset(row as isize * to_stride));
                for column in (0..columns).step_by(8) {
                    _mm256_stream_ps(to.add(column), _mm256_load_ps(from.add(column)));
                }
            }
        }
        // Such writes are not ordered; whoever is told that they are done must see them.
        _mm_sfence();
    }

    /// # Safety
    /// As [`tile`], of eight rows and columns.
    #[target_feature(enable = "avx2")]
    unsafe fn eight_by_eight(from: *const f32, stride: isize, to: *mut f32, to_stride: isize) {
        // SAFETY: Eight values of each of eight columns.
        let load = |column: isize| unsafe { _mm256_loadu_ps(from.offset(column * stride)) };
        // Pairs of values of two columns, then fours of four, then eights of eight.
        let pairs = |column| {
            let (a, b) = (load(column), load(column + 1));
            (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b))
        };
        let fours = |column| {
            let ((a, b), (c, d)) = (pairs(column), pairs(column + 2));
            [
                _mm256_shuffle_ps::<0x44>(a, c),
                _mm256_shuffle_ps::<0xee>(a, c),
                _mm256_shuffle_ps::<0x44>(b, d),
                _mm256_shuffle_ps::<0xee>(b, d),
            ]
        };
        let (left, right) = (fours(0), fours(4));
        for (row, (left, right)) in left.into_iter().zip(right).enumerate() {
            // SAFETY: Eight values of each of eight rows.
            unsafe {
                let to = to.offset(row as isize * to_stride);
                _mm256_storeu_ps(to, _mm256_permute2f128_ps::<0x20>(left, right));
                _mm256_storeu_ps(
                    to.offset(4 * to_stride),
                    _mm256_permute2f128_ps::<0x31>(left, right),
                );
            }
        }
    }
}
