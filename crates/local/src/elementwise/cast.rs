//! Casts between all dtypes.

use super::values::{Values, with_values};
use crate::{
    DType, Element, Result, Tensor, bf16, by_dtype::by_dtype, f16, simd::vectorized,
    threads::for_pieces_of,
};

/// Elements of one piece of work.
const GRAIN: usize = 1 << 15;

impl Tensor {
    /// The values in another dtype; itself if it has that dtype.
    ///
    /// | from | to | value |
    /// |---|---|---|
    /// | float | wider float | the same |
    /// | float, integer | float | the nearest, ties to even; too large gives infinity; NaN stays NaN. To `bf16` and `f16` by way of `f32`, as in PyTorch |
    /// | float | integer | cut towards zero; beyond its range the nearest end of it; NaN gives 0. (PyTorch leaves the last two undefined.) |
    /// | integer | integer | the low bits (wraps), as in PyTorch |
    /// | any | `bool` | whether it is not zero; NaN is true |
    /// | `bool` | any | 1 or 0 |
    ///
    /// ```
    /// use dtensor_local::{DType, Tensor};
    ///
    /// let x = Tensor::from_vec(vec![1.9_f32, -1.9, 300.0, f32::NAN], &[4])?;
    /// assert_eq!(x.to_dtype(DType::U8)?.to_vec::<u8>()?, [1, 0, 255, 0]);
    /// assert_eq!(x.to_dtype(DType::I32)?.to_vec::<i32>()?, [1, -1, 300, 0]);
    /// # Ok::<(), dtensor_local::LocalError>(())
    /// ```
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        if self.is_meta() {
            return Tensor::meta(self.shape(), dtype);
        }
        let whole = self.contiguous();
        let values = Values::of(&whole)?;
        by_dtype!(dtype, To => with_values!(values, values => cast::<_, To>(values, self.shape())))
    }
}

fn cast<T: CastTo<To>, To: Element>(values: &[T], shape: &[usize]) -> Result<Tensor> {
    Tensor::write::<To>("to_dtype", shape, |out| {
        for_pieces_of(out, 1, GRAIN, |piece, part| convert(&values[piece], part));
    })
}

vectorized! {
    /// Converts every value.
    pub(super) fn convert<T: CastTo<To>, To: Element>(values: &[T], out: &mut [To]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = value.cast_to();
        }
    }
}

/// The cast of one value, as the table of [`Tensor::to_dtype`] says.
pub(super) trait CastTo<To>: Element {
    /// The value in the other type.
    fn cast_to(self) -> To;
}

/// Rust's `as` is the table's cast between numbers.
macro_rules! by_as {
    ($($from:ty => $($to:ty),*;)*) => {$($(
        impl CastTo<$to> for $from {
            #[inline(always)]
            fn cast_to(self) -> $to {
                self as $to
            }
        }
    )*)*};
}
by_as! {
    f32 => f32, f64, i64, i32, u8;
    f64 => f32, f64, i64, i32, u8;
    i64 => f32, f64, i64, i32, u8;
    i32 => f32, f64, i64, i32, u8;
    u8 => f32, f64, i64, i32, u8;
}

/// To and from `bool`.
macro_rules! bools {
    ($($number:ty),*) => {$(
        impl CastTo<bool> for $number {
            #[inline(always)]
            fn cast_to(self) -> bool {
                self != 0 as $number
            }
        }
        impl CastTo<$number> for bool {
            #[inline(always)]
            fn cast_to(self) -> $number {
                u8::from(self) as $number
            }
        }
    )*};
}
bools! { f32, f64, i64, i32, u8 }

impl CastTo<bool> for bool {
    #[inline(always)]
    fn cast_to(self) -> bool {
        self
    }
}

/// To and from a type of half precision, by way of `f32`.
macro_rules! halves {
    ($half:ty, $widen:ident, $round:ident: $($other:ty),*) => {
        impl CastTo<f32> for $half {
            #[inline(always)]
            fn cast_to(self) -> f32 {
                $widen(self)
            }
        }
        impl CastTo<$half> for f32 {
            #[inline(always)]
            fn cast_to(self) -> $half {
                $round(self)
            }
        }
        impl CastTo<$half> for $half {
            #[inline(always)]
            fn cast_to(self) -> $half {
                self
            }
        }
        $(
            impl CastTo<$other> for $half {
                #[inline(always)]
                fn cast_to(self) -> $other {
                    $widen(self).cast_to()
                }
            }
            impl CastTo<$half> for $other {
                #[inline(always)]
                fn cast_to(self) -> $half {
                    $round(self.cast_to())
                }
            }
        )*
    };
}
halves! { bf16, widen_bf16, round_bf16: f64, i64, i32, u8, bool }
halves! { f16, widen_f16, round_f16: f64, i64, i32, u8, bool }

impl CastTo<f16> for bf16 {
    #[inline(always)]
    fn cast_to(self) -> f16 {
        round_f16(widen_bf16(self))
    }
}

impl CastTo<bf16> for f16 {
    #[inline(always)]
    fn cast_to(self) -> bf16 {
        round_bf16(widen_f16(self))
    }
}

// The four conversions are written without branches so that loops of them are vectorised, which those
// of the `half` crate are not: they ask for the processor's features at every value.

#[inline(always)]
fn widen_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

#[inline(always)]
fn round_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    // Half of the last place that stays, less one, and one more if that place is odd: ties to even.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // A NaN must not be carried over to an infinity, and keeps a bit of its fraction.
    let kept = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    bf16::from_bits((kept >> 16) as u16)
}

#[inline(always)]
fn widen_f16(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    // The fraction in its place with the exponent of f16, which is 112 less than that of f32. The
    // product is exact and puts subnormal numbers right.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
    // What is beyond the largest number was an infinity or a NaN.
    let special = if magnitude >= 65536.0 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | ((bits & 0x8000) << 16))
}

#[inline(always)]
fn round_f16(value: f32) -> f16 {
    let bits = value.to_bits();
    let (sign, magnitude) = (bits & 0x8000_0000, bits & 0x7fff_ffff);
    // 0.5 puts the last place of a subnormal f16 where that of the sum is, so the sum rounds it.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let normal =
        magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    // 2^-14 is the smallest normal f16; from 2^16 on nothing is finite. (What rounds up to 2^16 gets
    // the bits of infinity by itself.)
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let rounded = if magnitude >= 143 << 23 { special } else { finite };
    f16::from_bits((rounded | (sign >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_precision_number_widens_and_rounds_back_to_itself() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert_eq!(half.is_nan(), widen_f16(half).is_nan());
            assert_eq!(brain.is_nan(), widen_bf16(brain).is_nan());
            if !half.is_nan() {
                assert_eq!(widen_f16(half).to_bits(), half.to_f32().to_bits(), "{bits:#x}");
                assert_eq!(round_f16(widen_f16(half)).to_bits(), bits);
            }
            if !brain.is_nan() {
                assert_eq!(round_bf16(widen_bf16(brain)).to_bits(), bits);
            }
        }
    }

    #[test]
    fn rounding_to_half_precision_is_to_nearest_even() {
        // Steps that share no factor with the places of the fraction, over all exponents.
        for bits in (0..=u32::MAX).step_by(9973) {
            let value = f32::from_bits(bits);
            if value.is_nan() {
                assert!(round_f16(value).is_nan() && round_bf16(value).is_nan());
                continue;
            }
            assert_eq!(round_f16(value), f16::from_f32(value), "{bits:#x}");
            assert_eq!(round_bf16(value), bf16::from_f32(value), "{bits:#x}");
        }
        // Ties.
        for bits in 0..u16::MAX {
            let next = f64::from(bf16::from_bits(bits.wrapping_add(1)).to_f32());
            let tie = ((f64::from(bf16::from_bits(bits).to_f32()) + next) / 2.0) as f32;
            if tie.is_finite() {
                assert_eq!(round_bf16(tie), bf16::from_f32(tie));
            }
            let next = f16::from_bits(bits.wrapping_add(1)).to_f32();
            let tie = (f16::from_bits(bits).to_f32() + next) / 2.0;
            if tie.is_finite() {
                assert_eq!(round_f16(tie), f16::from_f32(tie));
            }
        }
    }
}
