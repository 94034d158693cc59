//! Convolutions whose filters see one channel each: too little work per element for a matrix product.

use std::ops::Range;

use super::kernels::Convolution;
use crate::{
    nn::{
        real::{Real, row_sum_2},
        windows::Windows,
    },
    simd::vectorized,
    threads,
};

/// Multiplications that are worth a hand-over to another thread.
const PIECE: usize = 1 << 16;

/// From so many filters per channel on, matrix products are faster.
const MOST_FILTERS: usize = 8;

impl Convolution {
    /// Whether the functions of this file are to be used.
    pub(super) fn is_depthwise(&self) -> bool {
        self.channels == 1 && self.filters < MOST_FILTERS
    }

    /// As [`Convolution::gather`].
    pub(super) fn depthwise_gather<R: Real>(
        &self,
        x: &[R],
        weight: &[R],
        bias: Option<&[R]>,
        y: &mut [R],
    ) {
        let windows = &self.windows;
        let (n_in, n_out, n_taps) = (windows.n_inputs(), windows.n_outputs(), windows.n_taps());
        let n_filters = self.groups * self.filters;
        threads::for_pieces_of(y, n_out, self.planes_per_piece(1), |planes, y| {
            for (plane, y) in planes.zip(y.chunks_exact_mut(n_out)) {
                let (image, filter) = (plane / n_filters, plane % n_filters);
                let channel = image * self.groups + filter / self.filters;
                y.fill(bias.map_or(R::ZERO, |bias| bias[filter]));
                let taps = &weight[filter * n_taps..][..n_taps];
                gather_plane(windows, &x[channel * n_in..][..n_in], taps, y);
            }
        });
    }

    /// As [`Convolution::spread`].
    pub(super) fn depthwise_spread<R: Real>(
        &self,
        y: &[R],
        weight: &[R],
        bias: Option<&[R]>,
        x: &mut [R],
    ) {
        let windows = &self.windows;
        let (n_in, n_out, n_taps) = (windows.n_inputs(), windows.n_outputs(), windows.n_taps());
        threads::for_pieces_of(x, n_in, self.planes_per_piece(self.filters), |planes, x| {
            for (plane, x) in planes.zip(x.chunks_exact_mut(n_in)) {
                let channel = plane % self.groups;
                x.fill(bias.map_or(R::ZERO, |bias| bias[channel]));
                for i in 0..self.filters {
                    let taps = &weight[(channel * self.filters + i) * n_taps..][..n_taps];
                    let y = &y[(plane * self.filters + i) * n_out..][..n_out];
                    spread_plane(windows, y, taps, x);
                }
            }
        });
    }

    /// As [`Convolution::correlate`].
    pub(super) fn depthwise_correlate<R: Real>(&self, x: &[R], y: &[R], weight: &mut [R]) {
        let windows = &self.windows;
        let (n_in, n_out, n_taps) = (windows.n_inputs(), windows.n_outputs(), windows.n_taps());
        let n_filters = self.groups * self.filters;
        weight.fill(R::ZERO);
        let grain = self.planes_per_piece(self.batch);
        threads::for_pieces_of(weight, n_taps, grain, |filters, weight| {
            for (filter, taps) in filters.zip(weight.chunks_exact_mut(n_taps)) {
                for image in 0..self.batch {
                    let channel = image * self.groups + filter / self.filters;
                    let y = &y[(image * n_filters + filter) * n_out..][..n_out];
                    correlate_plane(windows, &x[channel * n_in..][..n_in], y, taps);
                }
            }
        });
    }

    /// Planes that a thread takes at a time, if each means the work of so many filters.
    fn planes_per_piece(&self, filters: usize) -> usize {
        let work = self.windows.n_outputs() * self.windows.n_taps() * filters;
        PIECE.div_ceil(work.max(1))
    }
}

vectorized! {
    fn gather_plane<R: Real>(windows: &Windows, x: &[R], taps: &[R], y: &mut [R]) {
        let stride = windows.stride[2];
        each_run(windows, |tap, outputs, first| {
            let (tap, y) = (taps[tap], &mut y[outputs]);
            if stride == 1 {
                let x = &x[first..first + y.len()];
                for (y, x) in y.iter_mut().zip(x) {
                    *y = tap.mul_add::<FMA>(*x, *y);
                }
            } else {
                for (y, x) in y.iter_mut().zip(x[first..].iter().step_by(stride)) {
                    *y = tap.mul_add::<FMA>(*x, *y);
                }
            }
        });
    }
}

vectorized! {
    fn spread_plane<R: Real>(windows: &Windows, y: &[R], taps: &[R], x: &mut [R]) {
        let stride = windows.stride[2];
        each_run(windows, |tap, outputs, first| {
            let (tap, y) = (taps[tap], &y[outputs]);
            if stride == 1 {
                let x = &mut x[first..first + y.len()];
                for (x, y) in x.iter_mut().zip(y) {
                    *x = tap.mul_add::<FMA>(*y, *x);
                }
            } else {
                for (x, y) in x[first..].iter_mut().step_by(stride).zip(y) {
                    *x = tap.mul_add::<FMA>(*y, *x);
                }
            }
        });
    }
}

vectorized! {
    fn correlate_plane<R: Real>(windows: &Windows, x: &[R], y: &[R], taps: &mut [R]) {
        let stride = windows.stride[2];
        each_run(windows, |tap, outputs, first| {
            let y = &y[outputs];
            let sum = if stride == 1 {
                row_sum_2(&x[first..first + y.len()], y, |x, y| x * y)
            } else {
                let x = x[first..].iter().step_by(stride);
                y.iter().zip(x).fold(R::ZERO, |sum, (y, x)| x.mul_add::<FMA>(*y, sum))
            };
            taps[tap] += sum;
        });
    }
}

/// Calls `run(tap, outputs, element)` for outputs next to each other, the first of which sees `element` at the tap and
/// the others those that follow by the stride. All taps of a row of outputs come one after the other: the row stays in
/// the nearest cache.
#[inline(always)]
fn each_run(windows: &Windows, mut run: impl FnMut(usize, Range<usize>, usize)) {
    let [n_0, n_1, n_2] = windows.output;
    let [_, in_height, in_width] = windows.input;
    for o_0 in 0..n_0 {
        for o_1 in 0..n_1 {
            for tap_0 in 0..windows.kernel[0] {
                if !windows.seen(0, tap_0).contains(&o_0) {
                    continue;
                }
                for tap_1 in 0..windows.kernel[1] {
                    if !windows.seen(1, tap_1).contains(&o_1) {
                        continue;
                    }
                    let in_row =
                        windows.element(0, o_0, tap_0) * in_height + windows.element(1, o_1, tap_1);
                    for tap_2 in 0..windows.kernel[2] {
                        let seen = windows.seen(2, tap_2);
                        if seen.is_empty() {
                            continue;
                        }
                        let tap = (tap_0 * windows.kernel[1] + tap_1) * windows.kernel[2] + tap_2;
                        let first = in_row * in_width + windows.element(2, seen.start, tap_2);
                        let row = (o_0 * n_1 + o_1) * n_2;
                        run(tap, row + seen.start..row + seen.end, first);
                    }
                }
            }
        }
    }
}
