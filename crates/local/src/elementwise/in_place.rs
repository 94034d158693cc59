//! Arithmetic that changes its first operand.

use super::{driver::update, layout::broadcast};
use crate::{DType, LocalError, Result, Tensor, promote, simd::vectorized};

/// Rows of operations `a = a op b`.
macro_rules! assigning {
    ($($(#[$doc:meta])* $name:ident by $plain:ident: |$a:ident, $b:ident| $float:expr, int: $int:expr;)*) => {
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// `other` is broadcast and converted; shape and dtype stay, so `other` must not have more
                /// dims or be of a higher kind (a float for an integer tensor). If somebody else can see
                /// the memory it is copied first.
                pub fn $name(&mut self, other: &Tensor) -> Result<()> {
                    let op = stringify!($name);
                    check(op, self, other)?;
                    if self.is_meta() {
                        return Ok(());
                    }
                    if other.is_meta() {
                        return Err(LocalError::Meta { op, shape: other.shape().to_vec() });
                    }
                    match self.dtype() {
                        DType::F32 => in_place!(self, other, f32, |$a, $b| $float),
                        DType::F64 => in_place!(self, other, f64, |$a, $b| $float),
                        DType::I64 => in_place!(self, other, i64, |$a, $b| $int),
                        DType::I32 => in_place!(self, other, i32, |$a, $b| $int),
                        DType::U8 => in_place!(self, other, u8, |$a, $b| $int),
                        // Half precision is computed in f32, so it cannot be in place.
                        dtype => {
                            *self = self.$plain(other)?.to_dtype(dtype)?;
                            Ok(())
                        }
                    }
                }
            )*
        }
    };
}

/// One of them, for one type.
macro_rules! in_place {
    ($to:ident, $other:ident, $type:ty, |$a:ident, $b:ident| $value:expr) => {{
        vectorized! {
            fn kernel(b: &[$type], a: &mut [$type]) {
                for (out, &$b) in a.iter_mut().zip(b) {
                    let $a = *out;
                    *out = $value;
                }
            }
        }
        update::<$type, 1>($to, [$other.into()], &|[b], a| kernel(b, a))
    }};
}

assigning! {
    /// Adds in place.
    add_assign by add: |a, b| a + b, int: a.wrapping_add(b);
    /// Subtracts in place.
    sub_assign by sub: |a, b| a - b, int: a.wrapping_sub(b);
    /// Multiplies in place.
    mul_assign by mul: |a, b| a * b, int: a.wrapping_mul(b);
}

fn check(op: &'static str, to: &Tensor, other: &Tensor) -> Result<()> {
    if broadcast(op, &[to.into(), other.into()])?[..] != *to.shape() {
        return Err(LocalError::ShapeMismatch {
            op,
            from: other.shape().to_vec(),
            to: to.shape().to_vec(),
            why: "the result would be larger than what it is written to; use the form that is not in place",
        });
    }
    let fits = match to.dtype() {
        dtype if dtype.is_float() => true,
        DType::Bool => other.dtype() == DType::Bool,
        _ => !other.dtype().is_float(),
    };
    if fits {
        return Ok(());
    }
    Err(LocalError::WrongDType { op, got: to.dtype(), want: promote(to.dtype(), other.dtype()) })
}
