//! Copying strided elements to consecutive memory.

use crate::{DType, dims::Dims};

/// Rows and columns of the tiles in which a transposition is copied: both sides of a tile stay in
/// the first-level cache.
const TILE: usize = 32;

/// Copies the elements of a strided tensor, the last dim varying fastest, to `to`.
///
/// # Safety
/// `from` is the element at index zero, aligned for the dtype, and every index within `shape` is an
/// element that may be read. `to` has as many bytes as the elements, and is aligned as they are.
pub(crate) unsafe fn gather(
    from: *const u8,
    shape: &[usize],
    strides: &[isize],
    dtype: DType,
    to: &mut [u8],
) {
    if to.is_empty() {
        return;
    }
    let to = to.as_mut_ptr();
    // SAFETY: The caller's promise. What is copied are bytes of the element's size; that they are
    // numbers does not matter.
    unsafe {
        match dtype.size() {
            1 => gather_as::<u8>(from.cast(), shape, strides, to.cast()),
            2 => gather_as::<u16>(from.cast(), shape, strides, to.cast()),
            4 => gather_as::<u32>(from.cast(), shape, strides, to.cast()),
            _ => gather_as::<u64>(from.cast(), shape, strides, to.cast()),
        }
    }
}

/// # Safety
/// As [`gather`], with elements of type `T`; there is at least one.
unsafe fn gather_as<T: Copy>(from: *const T, shape: &[usize], strides: &[isize], to: *mut T) {
    let dims = merge_dims(shape, strides);
    // The last two dims are the inner loops; the others are counted through.
    let outer = &dims[..dims.len().saturating_sub(2)];
    let (rows, row_stride) = dims.len().checked_sub(2).map_or((1, 0), |dim| dims[dim]);
    let (columns, stride) = dims.last().copied().unwrap_or((1, 1));
    let mut index: Dims = outer.iter().map(|_| 0).collect();
    let (mut at, mut done) = (0isize, 0usize);
    loop {
        // SAFETY: `at` is the sum of index times stride over the outer dims, so this is the block of
        // the last two dims there; it goes to the next `rows * columns` places.
        unsafe { gather_block(from.offset(at), rows, row_stride, columns, stride, to.add(done)) };
        done += rows * columns;
        let Some(dim) = (0..outer.len()).rev().find(|dim| index[*dim] + 1 < outer[*dim].0) else {
            return;
        };
        for later in dim + 1..outer.len() {
            at -= index[later] as isize * outer[later].1;
            index[later] = 0;
        }
        index[dim] += 1;
        at += outer[dim].1;
    }
}

/// # Safety
/// The block of `rows` times `columns` elements with these strides may be read, and as many
/// consecutive ones be written; the two do not overlap.
unsafe fn gather_block<T: Copy>(
    from: *const T,
    rows: usize,
    row_stride: isize,
    columns: usize,
    stride: isize,
    to: *mut T,
) {
    if stride == 1 {
        for row in 0..rows {
            // SAFETY: One row, consecutive on both sides.
            unsafe {
                let source = from.offset(row as isize * row_stride);
                std::ptr::copy_nonoverlapping(source, to.add(row * columns), columns);
            }
        }
        return;
    }
    // Tiles, so that a column that lies far apart is not fetched again for every row.
    for first_row in (0..rows).step_by(TILE) {
        for first_column in (0..columns).step_by(TILE) {
            for row in first_row..rows.min(first_row + TILE) {
                for column in first_column..columns.min(first_column + TILE) {
                    // SAFETY: Within the block.
                    unsafe {
                        let source =
                            from.offset(row as isize * row_stride + column as isize * stride);
                        *to.add(row * columns + column) = *source;
                    }
                }
            }
        }
    }
}

/// Sizes and strides without dims of size 1, neighbours that are one run merged.
fn merge_dims(shape: &[usize], strides: &[isize]) -> Dims<(usize, isize)> {
    let mut merged: Dims<(usize, isize)> = Dims::new();
    for (size, stride) in shape.iter().copied().zip(strides.iter().copied()) {
        match merged.last_mut() {
            _ if size == 1 => {}
            Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
            _ => merged.push((size, stride)),
        }
    }
    merged
}
