//! Variance and standard deviation.

use std::marker::PhantomData;

use super::{
    arrange::Reduced,
    error::only_floats,
    fold::{Fold, fold},
    lanes::{Step, row_in_lanes},
    number::{Float, Real, Wide, by_float},
    sums::Sum,
};
use crate::{Result, Tensor, simd::vectorized};

/// Columns whose sums are kept at once, on the stack.
const STRIPE: usize = 256;

impl Tensor {
    /// The variance over these dims, or over all if the list is empty: the sum of squared deviations from
    /// the mean, divided by the number of elements less `correction` (1 for the unbiased estimate, 0 for
    /// the mean square). Of floats only; NaN where that leaves nothing to divide by.
    ///
    /// Two passes over pieces that stay in the cache, the second corrected by the sum of its deviations;
    /// pieces are put together in `f64` by Chan's formula. The relative error is a few units in the last
    /// place times the logarithm of the number of elements, also where the mean is large beside the
    /// deviation.
    pub fn var(&self, dims: &[isize], correction: usize, keep_dims: bool) -> Result<Tensor> {
        deviation("var", self, dims, correction, keep_dims, false)
    }

    /// The square root of [`Tensor::var`].
    pub fn std(&self, dims: &[isize], correction: usize, keep_dims: bool) -> Result<Tensor> {
        deviation("std", self, dims, correction, keep_dims, true)
    }
}

fn deviation(
    op: &'static str,
    x: &Tensor,
    dims: &[isize],
    correction: usize,
    keep_dims: bool,
    root: bool,
) -> Result<Tensor> {
    only_floats(op, x)?;
    let reduced = Reduced::of(op, x, dims, keep_dims)?;
    let divisor = reduced.n.saturating_sub(correction) as f64;
    by_float!(x.dtype(), T => fold(op, x, &reduced, Variance::<T> { divisor, root, of: PhantomData }))
}

/// Folds to the variance, or its root.
struct Variance<T> {
    divisor: f64,
    root: bool,
    of: PhantomData<T>,
}

impl<T> Clone for Variance<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Variance<T> {}

/// Of some values: their number, mean, and sum of squared deviations from it.
#[derive(Clone, Copy)]
struct Moments {
    n: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// From the sums of `x - near` and of its squares.
    #[inline(always)]
    fn of_deviations(n: f64, near: f64, sum: f64, squares: f64) -> Moments {
        Moments { n, mean: near + sum / n, squares: (squares - sum * sum / n).max_or_nan(0.0) }
    }
}

/// `f64::max` hides a NaN.
trait MaxOrNan {
    fn max_or_nan(self, least: f64) -> f64;
}

impl MaxOrNan for f64 {
    #[inline(always)]
    fn max_or_nan(self, least: f64) -> f64 {
        if self < least { least } else { self }
    }
}

impl<T: Float> Fold for Variance<T> {
    type In = T;
    type Acc = Moments;
    type Out = T;

    fn start(self) -> Moments {
        Moments { n: 0.0, mean: 0.0, squares: 0.0 }
    }

    fn row(self, x: &[T]) -> Moments {
        row_moments(x)
    }

    fn columns(self, x: &[T], stride: usize, acc: &mut [Moments]) {
        for (stripe, acc) in acc.chunks_mut(STRIPE).enumerate() {
            column_moments(&x[stripe * STRIPE..], stride, acc);
        }
    }

    fn join(self, a: Moments, b: Moments) -> Moments {
        let n = a.n + b.n;
        if n == 0.0 {
            return a;
        }
        let apart = b.mean - a.mean;
        let mean = a.mean + apart * (b.n / n);
        Moments { n, mean, squares: a.squares + b.squares + apart * apart * (a.n * b.n / n) }
    }

    fn finish(self, acc: Moments) -> T {
        let variance = acc.squares / self.divisor;
        T::narrow(T::Wide::of(if self.root { variance.sqrt() } else { variance }))
    }
}

vectorized! {
    fn row_moments<T: Float>(x: &[T]) -> Moments {
        let n = x.len() as f64;
        let sum = row_in_lanes(Sum(PhantomData::<T>), x).double();
        let near = T::Wide::of(sum / n);
        let (sum, squares) = row_in_lanes(Deviations::<T, FMA> { near }, x);
        Moments::of_deviations(n, near.double(), sum.double(), squares.double())
    }
}

vectorized! {
    fn column_moments<T: Float>(x: &[T], stride: usize, acc: &mut [Moments]) {
        let width = acc.len();
        let rows = || x.chunks(stride).map(|row| &row[..width]);
        let n = rows().count() as f64;
        let mut near = [T::Wide::ZERO; STRIPE];
        for row in rows() {
            for (near, x) in near.iter_mut().zip(row) {
                *near = near.plus(x.wide());
            }
        }
        for near in &mut near {
            *near = T::Wide::of(near.double() / n);
        }
        let mut sums = [T::Wide::ZERO; STRIPE];
        let mut squares = [T::Wide::ZERO; STRIPE];
        for row in rows() {
            for (((x, near), sum), square) in row.iter().zip(&near).zip(&mut sums).zip(&mut squares) {
                let deviation = x.wide().minus(*near);
                *sum = sum.plus(deviation);
                *square = deviation.squared_plus::<FMA>(*square);
            }
        }
        for (((acc, near), sum), square) in acc.iter_mut().zip(near).zip(sums).zip(squares) {
            *acc = Moments::of_deviations(n, near.double(), sum.double(), square.double());
        }
    }
}

/// The sums of `x - near` and of its squares.
struct Deviations<T: Float, const FMA: bool> {
    near: T::Wide,
}

impl<T: Float, const FMA: bool> Clone for Deviations<T, FMA> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Float, const FMA: bool> Copy for Deviations<T, FMA> {}

impl<T: Float, const FMA: bool> Step for Deviations<T, FMA> {
    type In = T;
    type Acc = (T::Wide, T::Wide);
    type Out = T;

    #[inline(always)]
    fn start(self) -> (T::Wide, T::Wide) {
        (T::Wide::ZERO, T::Wide::ZERO)
    }

    #[inline(always)]
    fn step(self, (sum, squares): (T::Wide, T::Wide), x: T) -> (T::Wide, T::Wide) {
        let deviation = x.wide().minus(self.near);
        (sum.plus(deviation), deviation.squared_plus::<FMA>(squares))
    }

    #[inline(always)]
    fn join(self, a: (T::Wide, T::Wide), b: (T::Wide, T::Wide)) -> (T::Wide, T::Wide) {
        (a.0.plus(b.0), a.1.plus(b.1))
    }

    #[inline(always)]
    fn finish(self, acc: (T::Wide, T::Wide)) -> T {
        T::narrow(acc.1)
    }
}
