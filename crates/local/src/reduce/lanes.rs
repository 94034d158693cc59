//! Folds that take one value after the other, in as many lanes as keep a processor busy.

use super::fold::Fold;
use crate::{
    Element,
    simd::{settled, vectorized},
};

/// Accumulators of a row: several registers full, as an addition takes several cycles.
const LANES: usize = 32;

/// Steps of a lane after which it starts anew, so that rounding errors do not pile up.
const STEPS: usize = 32;

/// Rows of columns that are folded before their result is joined with what was before.
const ROWS: usize = 8;

/// A fold by one value at a time. All functions are to be `#[inline(always)]`: they become part of
/// vectorised loops.
pub(super) trait Step: Copy + Sync {
    type In: Element;
    type Acc: Copy + Send + Sync;
    type Out: Element;

    /// The fold of nothing.
    fn start(self) -> Self::Acc;

    /// One value more.
    fn step(self, acc: Self::Acc, x: Self::In) -> Self::Acc;

    /// The fold of both.
    fn join(self, a: Self::Acc, b: Self::Acc) -> Self::Acc;

    /// The result.
    fn finish(self, acc: Self::Acc) -> Self::Out;
}

/// The [`Fold`] of a [`Step`].
#[derive(Clone, Copy)]
pub(super) struct Steps<S>(pub S);

impl<S: Step> Fold for Steps<S> {
    type In = S::In;
    type Acc = S::Acc;
    type Out = S::Out;

    #[inline(always)]
    fn start(self) -> S::Acc {
        self.0.start()
    }

    fn row(self, x: &[S::In]) -> S::Acc {
        row(self.0, x)
    }

    fn columns(self, x: &[S::In], stride: usize, acc: &mut [S::Acc]) {
        columns(self.0, x, stride, acc);
    }

    #[inline(always)]
    fn join(self, a: S::Acc, b: S::Acc) -> S::Acc {
        self.0.join(a, b)
    }

    #[inline(always)]
    fn finish(self, acc: S::Acc) -> S::Out {
        self.0.finish(acc)
    }
}

vectorized! {
    fn row<S: Step>(step: S, x: &[S::In]) -> S::Acc {
        row_in_lanes(step, x)
    }
}

vectorized! {
    fn columns<S: Step>(step: S, x: &[S::In], stride: usize, acc: &mut [S::Acc]) {
        let width = acc.len();
        let mut rows = x.chunks(stride);
        while rows.len() >= ROWS {
            let eight: [&[S::In]; ROWS] =
                std::array::from_fn(|_| &rows.next().unwrap_or_default()[..width]);
            for i in 0..width {
                let mut sum = step.start();
                for row in eight {
                    sum = step.step(sum, row[i]);
                }
                acc[i] = step.join(acc[i], sum);
            }
        }
        for row in rows {
            for (acc, x) in acc.iter_mut().zip(row) {
                *acc = step.step(*acc, *x);
            }
        }
    }
}

/// The fold of a row, for use within vectorised functions.
#[inline(always)]
pub(super) fn row_in_lanes<S: Step>(step: S, x: &[S::In]) -> S::Acc {
    if x.len() < LANES {
        return x.iter().fold(step.start(), |acc, x| step.step(acc, *x));
    }
    let (groups, rest) = x.as_chunks::<LANES>();
    let mut total = [step.start(); LANES];
    for groups in groups.chunks(STEPS) {
        let mut lanes = [step.start(); LANES];
        for group in groups {
            for i in 0..LANES {
                lanes[i] = step.step(lanes[i], group[i]);
            }
        }
        for i in 0..LANES {
            total[i] = step.join(total[i], lanes[i]);
        }
    }
    for (lane, x) in total.iter_mut().zip(rest) {
        *lane = step.step(*lane, *x);
    }
    let mut total = settled(total);
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            total[i] = step.join(total[i], total[i + width]);
        }
    }
    total[0]
}
