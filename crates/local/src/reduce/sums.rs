//! Sums, products, means, norms, counts.

use std::marker::PhantomData;

use super::{
    arrange::Reduced,
    error::{not_nothing, only_floats},
    fold::fold,
    lanes::{Step, Steps},
    number::{Float, Number, Real, Wide, by_float},
};
use crate::{Result, Tensor, by_dtype::by_dtype};

impl Tensor {
    /// The sum over these dims, or over all if the list is empty.
    ///
    /// Integers and bools give `i64` and wrap. Floats keep their dtype; `bf16` and `f16` are added as
    /// `f32`. The sum of nothing is 0. Sums are put together as a tree of short runs, so that the
    /// rounding error stays near that of a pairwise sum.
    pub fn sum(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        let reduced = Reduced::of("sum", self, dims, keep_dims)?;
        by_dtype!(self.dtype(), T => fold("sum", self, &reduced, Steps(Sum::<T>(PhantomData))))
    }

    /// The product over these dims, or over all if the list is empty; dtypes as for [`Tensor::sum`].
    /// The product of nothing is 1.
    pub fn prod(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        let reduced = Reduced::of("prod", self, dims, keep_dims)?;
        by_dtype!(self.dtype(), T => fold("prod", self, &reduced, Steps(Product::<T>(PhantomData))))
    }

    /// The mean over these dims, or over all if the list is empty; of floats only. The mean of nothing
    /// is NaN.
    pub fn mean(&self, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        only_floats("mean", self)?;
        let reduced = Reduced::of("mean", self, dims, keep_dims)?;
        let n = reduced.n as f64;
        by_float!(self.dtype(), T => fold("mean", self, &reduced, Steps(Mean::<T>(n, PhantomData))))
    }

    /// The `p`-norm over these dims, or over all if the list is empty; of floats only.
    ///
    /// As `torch.linalg.vector_norm`: the `p`-th root of the sum of `|x|^p`; infinite `p` give the
    /// largest and the smallest `|x|`, 0 the number of elements that are not 0. The norm of nothing is 0
    /// for `p` from 0 to below infinity, else an error.
    pub fn norm(&self, p: f64, dims: &[isize], keep_dims: bool) -> Result<Tensor> {
        only_floats("norm", self)?;
        let reduced = Reduced::of("norm", self, dims, keep_dims)?;
        if p < 0.0 || p == f64::INFINITY {
            not_nothing("norm", self, reduced.n)?;
        }
        by_float!(self.dtype(), T => {
            type Kind = PhantomData<T>;
            match p {
                2.0 => fold("norm", self, &reduced, Steps(Euclidean::<T>(Kind::default()))),
                1.0 => fold("norm", self, &reduced, Steps(AbsoluteSum::<T>(Kind::default()))),
                f64::INFINITY => fold("norm", self, &reduced, Steps(Largest::<T>(Kind::default()))),
                f64::NEG_INFINITY => fold("norm", self, &reduced, Steps(Smallest::<T>(Kind::default()))),
                0.0 => fold("norm", self, &reduced, Steps(NotZero::<T>(Kind::default()))),
                _ => fold("norm", self, &reduced, Steps(PowerSum::<T>(p, Kind::default()))),
            }
        })
    }
}

/// Defines a [`Step`] over numbers whose accumulator is their wide type.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident<$type:ident: $bound:ident>($($field:ty)?) -> $out:ty {
        start: $start:expr;
        step: |$acc:ident, $x:ident, $self:ident| $step:expr;
        join: |$a:ident, $b:ident| $join:expr;
        finish: |$end:ident, $of:ident| $finish:expr;
    })*) => {$(
        $(#[$doc])*
        pub(super) struct $name<$type>($($field,)? pub(super) PhantomData<$type>);

        impl<$type> Clone for $name<$type> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<$type> Copy for $name<$type> {}

        impl<$type: $bound> Step for $name<$type> {
            type In = $type;
            type Acc = $type::Wide;
            type Out = $out;

            #[inline(always)]
            fn start(self) -> $type::Wide {
                $start
            }

            #[inline(always)]
            fn step(self, $acc: $type::Wide, $x: $type) -> $type::Wide {
                let ($x, $self) = ($x.wide(), self);
                $step
            }

            #[inline(always)]
            fn join(self, $a: $type::Wide, $b: $type::Wide) -> $type::Wide {
                $join
            }

            #[inline(always)]
            fn finish(self, $end: $type::Wide) -> $out {
                let $of = self;
                $finish
            }
        }
    )*};
}

steps! {
    Sum<T: Number>() -> T::Total {
        start: T::Wide::ZERO;
        step: |acc, x, _sum| acc.plus(x);
        join: |a, b| a.plus(b);
        finish: |acc, _sum| T::total(acc);
    }
    Product<T: Number>() -> T::Total {
        start: T::Wide::ONE;
        step: |acc, x, _product| acc.times(x);
        join: |a, b| a.times(b);
        finish: |acc, _product| T::total(acc);
    }
    /// With the number of elements.
    Mean<T: Float>(f64) -> T {
        start: T::Wide::ZERO;
        step: |acc, x, _mean| acc.plus(x);
        join: |a, b| a.plus(b);
        finish: |acc, mean| T::narrow(T::Wide::of(acc.double() / mean.0));
    }
    Euclidean<T: Float>() -> T {
        start: T::Wide::ZERO;
        step: |acc, x, _norm| acc.plus(x.times(x));
        join: |a, b| a.plus(b);
        finish: |acc, _norm| T::narrow(T::Wide::of(acc.double().sqrt()));
    }
    AbsoluteSum<T: Float>() -> T {
        start: T::Wide::ZERO;
        step: |acc, x, _norm| acc.plus(x.absolute());
        join: |a, b| a.plus(b);
        finish: |acc, _norm| T::narrow(acc);
    }
    Largest<T: Float>() -> T {
        start: T::Wide::ZERO;
        step: |acc, x, _norm| larger(acc, x.absolute());
        join: |a, b| larger(a, b);
        finish: |acc, _norm| T::narrow(acc);
    }
    Smallest<T: Float>() -> T {
        start: T::Wide::HIGHEST;
        step: |acc, x, _norm| smaller(acc, x.absolute());
        join: |a, b| smaller(a, b);
        finish: |acc, _norm| T::narrow(acc);
    }
    NotZero<T: Float>() -> T {
        start: T::Wide::ZERO;
        step: |acc, x, _norm| acc.plus(if x == T::Wide::ZERO { T::Wide::ZERO } else { T::Wide::ONE });
        join: |a, b| a.plus(b);
        finish: |acc, _norm| T::narrow(acc);
    }
    /// With the exponent.
    PowerSum<T: Float>(f64) -> T {
        start: T::Wide::ZERO;
        step: |acc, x, norm| acc.plus(x.absolute().power(norm.0));
        join: |a, b| a.plus(b);
        finish: |acc, norm| T::narrow(T::Wide::of(acc.double().powf(1.0 / norm.0)));
    }
}

/// The larger of two, or the NaN.
#[inline(always)]
pub(super) fn larger<W: Wide>(a: W, b: W) -> W {
    if b > a || b.is_not_a_number() { b } else { a }
}

/// The smaller of two, or the NaN.
#[inline(always)]
pub(super) fn smaller<W: Wide>(a: W, b: W) -> W {
    if b < a || b.is_not_a_number() { b } else { a }
}
