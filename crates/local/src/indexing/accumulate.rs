//! Values that meet at the same place become one.

use super::places::Places;
use crate::{DType, LocalError, Result, Tensor};

/// How [`Tensor::scatter_reduce`] makes one value of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterReduce {
    /// The sum. Integers wrap; on `bool` it is *or*.
    Sum,
    /// The product. Integers wrap; on `bool` it is *and*.
    Prod,
    /// The mean, of integers rounded down; not defined on `bool`.
    Mean,
    /// The largest, or NaN if there is one.
    Amax,
    /// The smallest, or NaN if there is one.
    Amin,
}

/// The tensor with values brought to these places: as many values as the runs have elements. Values for
/// one element come in the order of the places, so that sums of floats do not depend on the threads.
///
/// It is computed in `f32`, `f64` or `i64`: half precision is rounded once, at the end, and the low bits of
/// an `i64` are the right ones of a smaller integer that wraps.
pub(super) fn accumulate(
    op: &'static str,
    into: Tensor,
    places: &Places,
    values: &Tensor,
    reduce: ScatterReduce,
    include_self: bool,
) -> Result<Tensor> {
    let dtype = into.dtype();
    if dtype == DType::Bool && reduce == ScatterReduce::Mean {
        return Err(LocalError::UnsupportedDType { op, dtype });
    }
    if places.is_empty() {
        return Ok(into);
    }
    let wide = wide(dtype);
    let mut total = into.to_dtype(wide)?;
    // If nobody else has it, its memory is written.
    drop(into);
    let values = values.to_dtype(wide)?.contiguous();
    match wide {
        DType::F32 => total_as::<f32>(&mut total, places, &values, reduce, include_self)?,
        DType::F64 => total_as::<f64>(&mut total, places, &values, reduce, include_self)?,
        _ => total_as::<i64>(&mut total, places, &values, reduce, include_self)?,
    }
    total.to_dtype(dtype)
}

/// The dtype that sums of a dtype are computed in.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F32 | DType::Bf16 | DType::F16 => DType::F32,
        DType::F64 => DType::F64,
        DType::I64 | DType::I32 | DType::U8 | DType::Bool => DType::I64,
    }
}

fn total_as<T: Total>(
    total: &mut Tensor,
    places: &Places,
    values: &Tensor,
    reduce: ScatterReduce,
    include_self: bool,
) -> Result<()> {
    let values = values.as_slice::<T>()?;
    let total = total.as_mut_slice::<T>()?;
    let (start, change) = T::step(reduce);
    if !include_self {
        // What was there before counts as nothing, but only where something arrives.
        let nothing = vec![start; places.width];
        places.change(total, &nothing, 0, &|into, nothing| into.copy_from_slice(nothing));
    }
    places.change(total, values, places.width, &change);
    if reduce == ScatterReduce::Mean {
        let mut counts = vec![i64::from(include_self); total.len()];
        let ones = vec![1; places.width];
        places.change(&mut counts, &ones, 0, &add::<i64>);
        for (total, count) in total.iter_mut().zip(counts) {
            if count > 1 {
                *total = total.over(count);
            }
        }
    }
    Ok(())
}

/// Changes values by others.
type Change<T> = fn(&mut [T], &[T]);

/// A type in which values are put together.
trait Total: crate::Element {
    /// Where nothing has come yet, and what one more value does.
    fn step(reduce: ScatterReduce) -> (Self, Change<Self>);

    fn plus(self, other: Self) -> Self;

    fn over(self, count: i64) -> Self;
}

fn add<T: Total>(into: &mut [T], values: &[T]) {
    by_value(into, values, T::plus);
}

#[inline(always)]
fn by_value<T: Copy>(into: &mut [T], values: &[T], value: impl Fn(T, T) -> T) {
    for (into, new) in into.iter_mut().zip(values) {
        *into = value(*into, *new);
    }
}

macro_rules! floats {
    ($($float:ident),*) => {$(
        impl Total for $float {
            fn step(reduce: ScatterReduce) -> ($float, Change<$float>) {
                use ScatterReduce::{Amax, Amin, Mean, Prod, Sum};
                fn larger(a: $float, b: $float) -> $float {
                    if b > a || b.is_nan() { b } else { a }
                }
                fn smaller(a: $float, b: $float) -> $float {
                    if b < a || b.is_nan() { b } else { a }
                }
                match reduce {
                    Sum | Mean => (0.0, add::<$float>),
                    Prod => (1.0, |into, values| by_value(into, values, |a, b| a * b)),
                    Amax => ($float::NEG_INFINITY, |into, values| by_value(into, values, larger)),
                    Amin => ($float::INFINITY, |into, values| by_value(into, values, smaller)),
                }
            }

            #[inline(always)]
            fn plus(self, other: $float) -> $float {
                self + other
            }

            fn over(self, count: i64) -> $float {
                self / count as $float
            }
        }
    )*};
}
floats! { f32, f64 }

impl Total for i64 {
    fn step(reduce: ScatterReduce) -> (i64, Change<i64>) {
        use ScatterReduce::{Amax, Amin, Mean, Prod, Sum};
        match reduce {
            Sum | Mean => (0, add::<i64>),
            Prod => (1, |into, values| by_value(into, values, i64::wrapping_mul)),
            Amax => (i64::MIN, |into, values| by_value(into, values, i64::max)),
            Amin => (i64::MAX, |into, values| by_value(into, values, i64::min)),
        }
    }

    #[inline(always)]
    fn plus(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }

    fn over(self, count: i64) -> i64 {
        // Down, not towards zero; a count is positive.
        self.div_euclid(count)
    }
}
