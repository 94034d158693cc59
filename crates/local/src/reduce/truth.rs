//! Whether and how often elements are not zero.

use std::marker::PhantomData;

use super::{
    arrange::Reduced,
    fold::fold,
    lanes::{Step, Steps},
    number::{Number, Wide},
};
use crate::{Result, Tensor, by_dtype::by_dtype};

impl Tensor {
    /// Whether any element is not 0, over these dims or over all if the list is empty. A NaN is not 0;
    /// of nothing it is false. The result is `bool`, also for `u8`, where PyTorch keeps `u8`.
    pub fn any(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        let reduced = Reduced::of("any", self, dims, keep_dims)?;
        by_dtype!(self.dtype(), T => fold("any", self, &reduced, Steps(Any::<T>(PhantomData))))
    }

    /// Whether no element is 0, over these dims or over all if the list is empty. Of nothing it is true.
    /// The result is `bool`, also for `u8`, where PyTorch keeps `u8`.
    pub fn all(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        let reduced = Reduced::of("all", self, dims, keep_dims)?;
        by_dtype!(self.dtype(), T => fold("all", self, &reduced, Steps(All::<T>(PhantomData))))
    }

    /// How many elements are not 0, over these dims or over all if the list is empty, as `i64`.
    pub fn count_nonzero(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        let reduced = Reduced::of("count_nonzero", self, dims, keep_dims)?;
        by_dtype!(self.dtype(), T => fold("count_nonzero", self, &reduced, Steps(Count::<T>(PhantomData))))
    }
}

/// Defines a [`Step`] that sees of a value only whether it is not zero.
macro_rules! truth_steps {
    ($($name:ident: $acc:ty, $start:expr, |$so_far:ident, $not_zero:ident| $step:expr, $join:expr;)*) => {$(
        struct $name<T>(PhantomData<T>);

        impl<T> Clone for $name<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<T> {}

        impl<T: Number> Step for $name<T> {
            type In = T;
            type Acc = $acc;
            type Out = $acc;

            #[inline(always)]
            fn start(self) -> $acc {
                $start
            }

            #[inline(always)]
            fn step(self, $so_far: $acc, x: T) -> $acc {
                let $not_zero = x.wide() != T::Wide::ZERO;
                $step
            }

            #[inline(always)]
            fn join(self, a: $acc, b: $acc) -> $acc {
                $join(a, b)
            }

            #[inline(always)]
            fn finish(self, acc: $acc) -> $acc {
                acc
            }
        }
    )*};
}

truth_steps! {
    Any: bool, false, |acc, not_zero| acc | not_zero, |a, b| a | b;
    All: bool, true, |acc, not_zero| acc & not_zero, |a, b| a & b;
    Count: i64, 0, |acc, not_zero| acc + i64::from(not_zero), |a: i64, b: i64| a + b;
}
