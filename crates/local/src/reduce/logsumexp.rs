//! The logarithm of a sum of exponentials, without overflow.

use std::marker::PhantomData;

use super::{
    arrange::Reduced,
    error::only_floats,
    extremes::Extreme,
    fold::{Fold, fold},
    lanes::{Step, row_in_lanes},
    number::{Float, Real, Wide, by_float},
    sums::larger,
};
use crate::{Result, Tensor, simd::vectorized};

/// Columns whose sums are kept at once, on the stack.
const STRIPE: usize = 256;

impl Tensor {
    /// The logarithm of the sum of exponentials over these dims, or over all if the list is empty; of
    /// floats only. The largest value is taken out first, so nothing overflows. Of nothing it is minus
    /// infinity.
    pub fn logsumexp(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        only_floats("logsumexp", self)?;
        let reduced = Reduced::of("logsumexp", self, dims, keep_dims)?;
        by_float!(self.dtype(), T => fold("logsumexp", self, &reduced, LogSumExp::<T>(PhantomData)))
    }
}

struct LogSumExp<T>(PhantomData<T>);

impl<T> Clone for LogSumExp<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LogSumExp<T> {}

/// The largest of some values, and the sum of the exponentials of their distances from it.
#[derive(Clone, Copy)]
struct Scaled {
    max: f64,
    sum: f64,
}

impl<T: Float> Fold for LogSumExp<T> {
    type In = T;
    type Acc = Scaled;
    type Out = T;

    fn start(self) -> Scaled {
        Scaled { max: f64::NEG_INFINITY, sum: 0.0 }
    }

    fn row(self, x: &[T]) -> Scaled {
        row_exponentials(x)
    }

    fn columns(self, x: &[T], stride: usize, acc: &mut [Scaled]) {
        for (stripe, acc) in acc.chunks_mut(STRIPE).enumerate() {
            column_exponentials(&x[stripe * STRIPE..], stride, acc);
        }
    }

    fn join(self, a: Scaled, b: Scaled) -> Scaled {
        let max = larger(a.max, b.max);
        // Infinity less infinity is not a number, but the sum is known.
        if max.is_infinite() {
            return Scaled { max, sum: 1.0 };
        }
        Scaled { max, sum: a.sum * (a.max - max).exp() + b.sum * (b.max - max).exp() }
    }

    fn finish(self, acc: Scaled) -> T {
        T::narrow(T::Wide::of(acc.max + acc.sum.ln()))
    }
}

vectorized! {
    fn row_exponentials<T: Float>(x: &[T]) -> Scaled {
        let max = row_in_lanes(Extreme::<T, true>(PhantomData), x);
        if max.double().is_infinite() {
            return Scaled { max: max.double(), sum: 1.0 };
        }
        let sum = row_in_lanes(Exponentials::<T, FMA> { max }, x);
        Scaled { max: max.double(), sum: sum.double() }
    }
}

vectorized! {
    fn column_exponentials<T: Float>(x: &[T], stride: usize, acc: &mut [Scaled]) {
        let width = acc.len();
        let rows = || x.chunks(stride).map(|row| &row[..width]);
        let mut max = [T::Wide::LOWEST; STRIPE];
        for row in rows() {
            for (max, x) in max.iter_mut().zip(row) {
                *max = larger(*max, x.wide());
            }
        }
        let mut sums = [T::Wide::ZERO; STRIPE];
        for row in rows() {
            for ((x, max), sum) in row.iter().zip(&max).zip(&mut sums) {
                *sum = sum.plus(x.wide().minus(*max).exp_of_nonpositive::<FMA>());
            }
        }
        for ((acc, max), sum) in acc.iter_mut().zip(max).zip(sums) {
            let (max, sum) = (max.double(), sum.double());
            *acc = Scaled { max, sum: if max.is_infinite() { 1.0 } else { sum } };
        }
    }
}

/// The sum of `exp(x - max)`.
struct Exponentials<T: Float, const FMA: bool> {
    max: T::Wide,
}

impl<T: Float, const FMA: bool> Clone for Exponentials<T, FMA> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Float, const FMA: bool> Copy for Exponentials<T, FMA> {}

impl<T: Float, const FMA: bool> Step for Exponentials<T, FMA> {
    type In = T;
    type Acc = T::Wide;
    type Out = T;

    #[inline(always)]
    fn start(self) -> T::Wide {
        T::Wide::ZERO
    }

    #[inline(always)]
    fn step(self, acc: T::Wide, x: T) -> T::Wide {
        acc.plus(x.wide().minus(self.max).exp_of_nonpositive::<FMA>())
    }

    #[inline(always)]
    fn join(self, a: T::Wide, b: T::Wide) -> T::Wide {
        a.plus(b)
    }

    #[inline(always)]
    fn finish(self, acc: T::Wide) -> T {
        T::narrow(acc)
    }
}
