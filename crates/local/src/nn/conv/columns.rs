//! The matrix of the elements that windows see: a row per channel and tap, a column per output. Only tiles of it exist.

use std::ops::Range;

use crate::{
    disjoint::Disjoint,
    nn::{real::Real, windows::Windows},
};

/// Outputs next to each other in the last dim, as columns of a tile.
struct Segment {
    /// The image of the batch.
    image: usize,
    /// Index in the first two spatial dims.
    outer: [usize; 2],
    /// Indices in the last one.
    outputs: Range<usize>,
    /// The column of the first.
    column: usize,
}

/// Some columns of the matrix, of a batch of inputs with `n_channels`. Columns count the outputs of all images.
pub(super) struct Tile<'a> {
    windows: &'a Windows,
    n_channels: usize,
    columns: Range<usize>,
    segments: Vec<Segment>,
}

impl<'a> Tile<'a> {
    pub(super) fn new(windows: &'a Windows, n_channels: usize, columns: Range<usize>) -> Tile<'a> {
        let [_, height, width] = windows.output;
        let n_outputs = windows.n_outputs();
        let mut segments = Vec::new();
        let mut at = columns.start;
        while at < columns.end {
            let (image, output) = (at / n_outputs, at % n_outputs);
            let (row, first) = (output / width, output % width);
            let length = (width - first).min(columns.end - at);
            let (outer, outputs) = ([row / height, row % height], first..first + length);
            segments.push(Segment { image, outer, outputs, column: at - columns.start });
            at += length;
        }
        Tile { windows, n_channels, columns, segments }
    }

    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    /// Writes the rows of these channels of the input `x`.
    pub(super) fn gather<R: Real>(&self, x: &[R], channels: Range<usize>, out: &mut [R]) {
        let stride = self.windows.stride[2];
        let mut done = 0;
        self.each_run(channels, |to, from, n| {
            // What lies between runs is padding.
            out[done..to].fill(R::ZERO);
            done = to + n;
            let out = &mut out[to..to + n];
            if stride == 1 {
                out.copy_from_slice(&x[from..from + n]);
            } else {
                for (out, x) in out.iter_mut().zip(x[from..].iter().step_by(stride)) {
                    *out = *x;
                }
            }
        });
        out[done..].fill(R::ZERO);
    }

    /// Adds the rows of these channels to the elements of the input that they were taken from: the adjoint of
    /// [`Tile::gather`].
    ///
    /// # Safety
    /// Nobody else uses these channels of the images of this tile.
    pub(super) unsafe fn scatter<R: Real>(
        &self,
        rows: &[R],
        channels: Range<usize>,
        x: &Disjoint<R>,
    ) {
        let stride = self.windows.stride[2];
        self.each_run(channels, |from, to, n| {
            // SAFETY: Within a channel of an image of this tile, and given back before the next.
            let x = unsafe { x.part(to..to + (n - 1) * stride + 1) };
            let rows = &rows[from..from + n];
            if stride == 1 {
                for (x, row) in x.iter_mut().zip(rows) {
                    *x += *row;
                }
            } else {
                for (x, row) in x.iter_mut().step_by(stride).zip(rows) {
                    *x += *row;
                }
            }
        });
    }

    /// The columns of `y` (a row per filter and a column per output, image by image) of these filters, in rows.
    pub(super) fn rows_of<R: Real>(
        &self,
        y: &[R],
        n_filters: usize,
        filters: Range<usize>,
        out: &mut [R],
    ) {
        let n_outputs = self.windows.n_outputs();
        for (images, columns) in self.images() {
            for (row, filter) in filters.clone().enumerate() {
                let from = (images * n_filters + filter) * n_outputs;
                let (start, end) = (columns.start % n_outputs, columns.len());
                let at = row * self.len() + (columns.start - self.columns.start);
                out[at..at + end].copy_from_slice(&y[from + start..from + start + end]);
            }
        }
    }

    /// The images of the tile, each with its columns.
    pub(super) fn images(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let n_outputs = self.windows.n_outputs();
        let columns = self.columns.clone();
        (columns.start / n_outputs..columns.end.div_ceil(n_outputs)).map(move |image| {
            let of_image = image * n_outputs..(image + 1) * n_outputs;
            (image, columns.start.max(of_image.start)..columns.end.min(of_image.end))
        })
    }

    /// Calls `run(at, element, n)` for `n` entries from place `at` of the rows on, in the order of places, which are
    /// the elements from `element` on, by the stride of the last dim. Places that are not called are padding.
    #[inline(always)]
    fn each_run(&self, channels: Range<usize>, mut run: impl FnMut(usize, usize, usize)) {
        let windows = self.windows;
        let [_, in_height, in_width] = windows.input;
        let n_inputs = windows.n_inputs();
        let mut row = 0;
        for channel in channels {
            for tap_0 in 0..windows.kernel[0] {
                let seen_0 = windows.seen(0, tap_0);
                for tap_1 in 0..windows.kernel[1] {
                    let seen_1 = windows.seen(1, tap_1);
                    for tap_2 in 0..windows.kernel[2] {
                        let seen_2 = windows.seen(2, tap_2);
                        for segment in &self.segments {
                            let Segment { image, outer: [o_0, o_1], outputs, column } = segment;
                            let start = outputs.start.max(seen_2.start);
                            let end = outputs.end.min(seen_2.end);
                            if start >= end || !seen_0.contains(o_0) || !seen_1.contains(o_1) {
                                continue;
                            }
                            let plane = (image * self.n_channels + channel) * n_inputs;
                            let in_row = windows.element(0, *o_0, tap_0) * in_height
                                + windows.element(1, *o_1, tap_1);
                            let element =
                                plane + in_row * in_width + windows.element(2, start, tap_2);
                            let at = row * self.columns.len() + column + start - outputs.start;
                            run(at, element, end - start);
                        }
                        row += 1;
                    }
                }
            }
        }
    }
}
