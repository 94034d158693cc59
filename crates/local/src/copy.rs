//! Copying strided elements to consecutive memory.

use crate::{DType, dims::Dims, run::copy_run, threads::for_pieces, transpose::transpose};

/// Bytes of one piece of work for a thread.
const GRAIN: usize = 1 << 17;

/// Copies the elements of a strided tensor, the last dim varying fastest, to `to`.
///
/// # Safety
/// `from` is the element at index zero, aligned for the dtype, and every index within `shape` is an
/// element that may be read. `to` has as many bytes as the elements, is aligned as they are, and none
/// of it is an element.
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

/// Bytes from which on a copy is not expected to stay in the caches.
const LARGE: usize = 8 << 20;

/// A dim of the copy.
#[derive(Clone, Copy, Debug)]
struct Dim {
    size: usize,
    /// Distance of neighbours where they are read, and where they are written.
    from: isize,
    to: isize,
}

/// A copy of rows, or of a matrix, for every index of the outer dims.
struct Copy<T> {
    from: *const T,
    to: *mut T,
    outer: Dims<Dim>,
    rows: Dim,
    columns: Dim,
    /// Whether the result is large.
    large: bool,
}

// SAFETY: Threads read what nobody writes, and write different rows.
unsafe impl<T> Sync for Copy<T> {}

/// # Safety
/// As [`gather`], with elements of type `T`; there is at least one.
unsafe fn gather_as<T: std::marker::Copy>(
    from: *const T,
    shape: &[usize],
    strides: &[isize],
    to: *mut T,
) {
    let mut outer = merge_dims(shape, strides);
    let one = Dim { size: 1, from: 0, to: 0 };
    let columns = outer.pop().unwrap_or(Dim { size: 1, from: 1, to: 1 });
    // Rows are taken along the dim whose neighbours are nearest in memory, so that what is fetched
    // with a column is used by the next rows. If columns are consecutive, any order will do.
    let nearest = (0..outer.len()).rev().min_by_key(|dim| outer[*dim].from.unsigned_abs());
    let last = outer.len().checked_sub(1);
    let rows = if columns.from == 1 { last } else { nearest };
    let rows = rows.map_or(one, |dim| outer.remove(dim));
    let n_outer: usize = outer.iter().map(|dim| dim.size).product();
    let large = n_outer * rows.size * columns.size * size_of::<T>() >= LARGE;
    let copy = Copy { from, to, outer, rows, columns, large };
    // Pieces of many short rows, or of parts of a long one.
    let row_bytes = columns.size * size_of::<T>();
    if row_bytes <= GRAIN {
        let grain = GRAIN / row_bytes.max(1);
        // Whole tiles, but for the last of a matrix.
        let grain = if rows.size > 64 { grain.div_ceil(64) * 64 } else { grain };
        for_pieces(n_outer * rows.size, grain, &|piece| {
            let mut at = piece.start;
            while at < piece.end {
                let (outer, row) = (at / rows.size, at % rows.size);
                let n = (rows.size - row).min(piece.end - at);
                // SAFETY: Rows of the copy, each in one piece only.
                unsafe { copy.block(outer, row, n, 0, columns.size) };
                at += n;
            }
        });
        return;
    }
    let per_row = row_bytes.div_ceil(GRAIN);
    let length = columns.size.div_ceil(per_row);
    for_pieces(n_outer * rows.size * per_row, 1, &|piece| {
        for part in piece {
            let (row, column) = (part / per_row, part % per_row * length);
            let n = length.min(columns.size.saturating_sub(column));
            // SAFETY: As above.
            unsafe { copy.block(row / rows.size, row % rows.size, 1, column, n) };
        }
    });
}

impl<T: std::marker::Copy> Copy<T> {
    /// Copies a part of the matrix that has this number.
    ///
    /// # Safety
    /// Within the copy, and nobody else copies there.
    unsafe fn block(&self, outer: usize, row: usize, rows: usize, column: usize, columns: usize) {
        let (mut from, mut to) = (0isize, 0isize);
        let mut left = outer;
        for dim in self.outer.iter().rev() {
            let index = (left % dim.size) as isize;
            left /= dim.size;
            from += index * dim.from;
            to += index * dim.to;
        }
        from += row as isize * self.rows.from + column as isize * self.columns.from;
        to += row as isize * self.rows.to + column as isize * self.columns.to;
        // SAFETY: Sums of indices times strides, all within the dims.
        let (from, to) = unsafe { (self.from.offset(from), self.to.offset(to)) };
        if self.columns.from == 1 {
            for row in 0..rows as isize {
                // SAFETY: One row, consecutive on both sides.
                unsafe {
                    let from = from.offset(row * self.rows.from);
                    let to = to.offset(row * self.rows.to);
                    copy_run(from.cast(), to.cast(), columns * size_of::<T>(), self.large);
                }
            }
            return;
        }
        let strides = [self.rows.from, self.columns.from];
        // SAFETY: The block, with consecutive columns where it is written.
        unsafe { transpose(from, strides, rows, columns, to, self.rows.to, self.large) };
    }
}

/// The dims without those of size 1, neighbours that are one run merged.
fn merge_dims(shape: &[usize], strides: &[isize]) -> Dims<Dim> {
    let mut merged: Dims<Dim> = Dims::new();
    for (size, from) in shape.iter().copied().zip(strides.iter().copied()) {
        match merged.last_mut() {
            _ if size == 1 => {}
            Some(last) if last.from == from * size as isize => {
                (last.size, last.from) = (last.size * size, from);
            }
            _ => merged.push(Dim { size, from, to: 0 }),
        }
    }
    let mut to = 1;
    for dim in merged.iter_mut().rev() {
        dim.to = to;
        to *= dim.size as isize;
    }
    merged
}
