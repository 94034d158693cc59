use std::{marker::PhantomData, ops::Range};

/// A matrix of elements that lie anywhere: a view into a tensor, of which nothing is copied.
///
/// Invariant: every row and column within the sizes is an element that may be read for `'a`.
pub(crate) struct Matrix<'a, T> {
    start: *const T,
    rows: usize,
    columns: usize,
    row_stride: isize,
    column_stride: isize,
    elements: PhantomData<&'a [T]>,
}

// SAFETY: As `&[T]`, of which it is a generalisation: it only reads.
unsafe impl<T: Sync> Send for Matrix<'_, T> {}
// SAFETY: As above.
unsafe impl<T: Sync> Sync for Matrix<'_, T> {}

impl<T> Clone for Matrix<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrix<'_, T> {}

impl<'a, T: Copy> Matrix<'a, T> {
    /// # Safety
    /// `start` is the element at row and column zero, and the invariant of the type holds.
    pub(super) unsafe fn new(
        start: *const T,
        (rows, columns): (usize, usize),
        (row_stride, column_stride): (isize, isize),
    ) -> Self {
        Matrix { start, rows, columns, row_stride, column_stride, elements: PhantomData }
    }

    /// Consecutive rows of `columns` elements each.
    pub(super) fn of_slice(elements: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(elements.len(), rows * columns, "a slice for {rows} x {columns} elements");
        // SAFETY: The slice has them all.
        unsafe { Matrix::new(elements.as_ptr(), (rows, columns), (columns as isize, 1)) }
    }

    /// Elements of a slice at these strides.
    pub(crate) fn of_strided(
        elements: &'a [T],
        (rows, columns): (usize, usize),
        (row_stride, column_stride): (usize, usize),
    ) -> Self {
        let last = rows.saturating_sub(1) * row_stride + columns.saturating_sub(1) * column_stride;
        assert!(rows == 0 || columns == 0 || last < elements.len(), "{rows} x {columns} elements");
        // SAFETY: The slice has the last one, and so all of them.
        unsafe {
            let strides = (row_stride as isize, column_stride as isize);
            Matrix::new(elements.as_ptr(), (rows, columns), strides)
        }
    }

    /// The same sizes and strides elsewhere, `by` elements further on.
    ///
    /// # Safety
    /// The invariant of the type holds there too.
    pub(super) unsafe fn moved(self, by: isize) -> Self {
        Matrix { start: self.start.wrapping_offset(by), ..self }
    }

    pub(super) fn start(&self) -> *const T {
        self.start
    }

    pub(super) fn n_rows(&self) -> usize {
        self.rows
    }

    pub(super) fn n_columns(&self) -> usize {
        self.columns
    }

    pub(super) fn row_stride(&self) -> isize {
        self.row_stride
    }

    pub(super) fn column_stride(&self) -> isize {
        self.column_stride
    }

    /// Rows and columns exchanged.
    pub(super) fn transposed(self) -> Self {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    /// Some of the rows.
    pub(super) fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?}");
        // Wrapping, because no rows at all may begin outside of the elements.
        let start = self.start.wrapping_offset(range.start as isize * self.row_stride);
        Matrix { start, rows: range.len(), ..self }
    }

    /// Some of the columns.
    pub(super) fn columns(self, range: Range<usize>) -> Self {
        self.transposed().rows(range).transposed()
    }

    /// One element.
    #[inline(always)]
    pub(super) fn at(&self, row: usize, column: usize) -> T {
        debug_assert!(row < self.rows && column < self.columns, "{row}, {column}");
        let at = row as isize * self.row_stride + column as isize * self.column_stride;
        // SAFETY: By the invariant. That row and column are within the sizes is what every caller in
        // this folder loops over, and what debug builds check.
        unsafe { *self.start.offset(at) }
    }

    /// A row, if its elements are consecutive.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> Option<&'a [T]> {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if self.column_stride != 1 && self.columns > 1 {
            return None;
        }
        // SAFETY: By the invariant the elements may be read, and by the check they are consecutive. Of
        // no columns at all the start is not dereferenced.
        Some(unsafe {
            let start = self.start.wrapping_offset(row as isize * self.row_stride);
            std::slice::from_raw_parts(start, self.columns)
        })
    }
}
