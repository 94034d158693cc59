//! The values of a tensor as a slice of whichever type they have.

use super::{
    cast::{CastTo, convert},
    promote::Scalar,
};
use crate::{DType, Element, Result, Tensor, bf16, f16};

/// Consecutive values of some dtype.
#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    I64(&'a [i64]),
    I32(&'a [i32]),
    U8(&'a [u8]),
    Bool(&'a [bool]),
}

/// Evaluates an expression with the slice of whichever type it is.
macro_rules! with_values {
    ($values:expr, $slice:ident => $body:expr) => {
        match $values {
            Values::F32($slice) => $body,
            Values::F64($slice) => $body,
            Values::Bf16($slice) => $body,
            Values::F16($slice) => $body,
            Values::I64($slice) => $body,
            Values::I32($slice) => $body,
            Values::U8($slice) => $body,
            Values::Bool($slice) => $body,
        }
    };
}
pub(super) use with_values;

impl<'a> Values<'a> {
    /// All values of a tensor whose elements are consecutive.
    pub(super) fn of(tensor: &'a Tensor) -> Result<Values<'a>> {
        Ok(match tensor.dtype() {
            DType::F32 => Values::F32(tensor.as_slice()?),
            DType::F64 => Values::F64(tensor.as_slice()?),
            DType::Bf16 => Values::Bf16(tensor.as_slice()?),
            DType::F16 => Values::F16(tensor.as_slice()?),
            DType::I64 => Values::I64(tensor.as_slice()?),
            DType::I32 => Values::I32(tensor.as_slice()?),
            DType::U8 => Values::U8(tensor.as_slice()?),
            DType::Bool => Values::Bool(tensor.as_slice()?),
        })
    }
}

/// A type that kernels compute in. The half-precision types are none: they are widened to `f32` a
/// block at a time and rounded once, so every kernel is compiled for six types instead of eight.
pub(super) trait Compute:
    Element
    + CastTo<f32>
    + CastTo<f64>
    + CastTo<bf16>
    + CastTo<f16>
    + CastTo<i64>
    + CastTo<i32>
    + CastTo<u8>
    + CastTo<bool>
{
    /// The values themselves, if they have this type.
    fn of(values: Values<'_>) -> Option<&[Self]>;

    /// Converts the values at `start`, `start + stride`, ... until `out` is full.
    fn load(values: Values<'_>, start: usize, stride: isize, out: &mut [Self]);

    /// The scalar in this type.
    fn of_scalar(scalar: Scalar) -> Self;
}

macro_rules! compute {
    ($($type:ty => $variant:ident),*) => {$(
        impl Compute for $type {
            #[inline]
            fn of(values: Values<'_>) -> Option<&[Self]> {
                if let Values::$variant(values) = values { Some(values) } else { None }
            }

            fn load(values: Values<'_>, start: usize, stride: isize, out: &mut [Self]) {
                with_values!(values, values => load(values, start, stride, out))
            }

            fn of_scalar(scalar: Scalar) -> Self {
                match scalar {
                    Scalar::Float(value) => value.cast_to(),
                    Scalar::Int(value) => value.cast_to(),
                    Scalar::Bool(value) => value.cast_to(),
                }
            }
        }
    )*};
}
compute! { f32 => F32, f64 => F64, i64 => I64, i32 => I32, u8 => U8, bool => Bool }

fn load<T: CastTo<C>, C: Element>(values: &[T], start: usize, stride: isize, out: &mut [C]) {
    match stride {
        0 => out.fill(values[start].cast_to()),
        1 => convert(&values[start..start + out.len()], out),
        _ => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = values[start.wrapping_add_signed(stride * i as isize)].cast_to();
            }
        }
    }
}
