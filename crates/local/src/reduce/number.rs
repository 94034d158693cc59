//! The eight dtypes as numbers, and the types in which they are reduced.

use crate::{Element, bf16, elementwise::math32::exp_of_nonpositive, f16, simd};

/// An element, and the type that reductions of it compute in: `f32` for the small floats, `i64` for all
/// integers (sums of integers are `i64` in PyTorch).
pub(super) trait Number: Element {
    /// Holds every value of the type exactly.
    type Wide: Wide;
    /// Of sums and products: the float itself, or `i64`.
    type Total: Element;

    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn total(wide: Self::Wide) -> Self::Total;
}

/// A floating-point element.
pub(super) trait Float: Number<Wide: Real> {}

/// A type that reductions compute in.
pub(super) trait Wide: Element {
    const ZERO: Self;
    const ONE: Self;
    /// Below all others, and above.
    const LOWEST: Self;
    const HIGHEST: Self;

    /// Integers wrap.
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;

    /// Of a float, the integer part.
    fn as_integer(self) -> i64;

    #[inline(always)]
    fn is_not_a_number(self) -> bool {
        #[allow(clippy::eq_op)] // That is what a NaN is.
        let differs = self != self;
        differs
    }
}

/// A floating-point type that reductions compute in.
pub(super) trait Real: Wide {
    fn of(value: f64) -> Self;
    fn double(self) -> f64;
    fn minus(self, other: Self) -> Self;
    fn absolute(self) -> Self;
    fn power(self, exponent: f64) -> Self;
    /// `self * self + other`, fused where that is one instruction.
    fn squared_plus<const FMA: bool>(self, other: Self) -> Self;
    /// The exponential of a number that is not above zero; what is next to nothing beside one may be
    /// any such number.
    fn exp_of_nonpositive<const FMA: bool>(self) -> Self;
}

macro_rules! numbers {
    ($($type:ty: $wide:ty, $total:ty, |$x:ident| $to:expr, |$w:ident| $from:expr, |$s:ident| $sum:expr;)*) => {$(
        impl Number for $type {
            type Wide = $wide;
            type Total = $total;

            #[inline(always)]
            fn wide(self) -> $wide {
                let $x = self;
                $to
            }

            #[inline(always)]
            fn narrow($w: $wide) -> $type {
                $from
            }

            #[inline(always)]
            fn total($s: $wide) -> $total {
                $sum
            }
        }
    )*};
}

numbers! {
    f32: f32, f32, |x| x, |wide| wide, |sum| sum;
    f64: f64, f64, |x| x, |wide| wide, |sum| sum;
    // The upper half of an f32. Written out, as this vectorises.
    bf16: f32, bf16, |x| f32::from_bits(u32::from(x.to_bits()) << 16), |wide| bf16::from_f32(wide), |sum| bf16::from_f32(sum);
    f16: f32, f16, |x| x.to_f32(), |wide| f16::from_f32(wide), |sum| f16::from_f32(sum);
    i64: i64, i64, |x| x, |wide| wide, |sum| sum;
    i32: i64, i64, |x| i64::from(x), |wide| wide as i32, |sum| sum;
    u8: i64, i64, |x| i64::from(x), |wide| wide as u8, |sum| sum;
    bool: i64, i64, |x| i64::from(x), |wide| wide != 0, |sum| sum;
}

impl Float for f32 {}
impl Float for f64 {}
impl Float for bf16 {}
impl Float for f16 {}

impl Wide for i64 {
    const ZERO: i64 = 0;
    const ONE: i64 = 1;
    const LOWEST: i64 = i64::MIN;
    const HIGHEST: i64 = i64::MAX;

    #[inline(always)]
    fn plus(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn times(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }

    #[inline(always)]
    fn as_integer(self) -> i64 {
        self
    }
}

macro_rules! reals {
    ($($type:ident: |$x:ident| $exp:expr;)*) => {$(
        impl Wide for $type {
            const ZERO: $type = 0.0;
            const ONE: $type = 1.0;
            const LOWEST: $type = $type::NEG_INFINITY;
            const HIGHEST: $type = $type::INFINITY;

            #[inline(always)]
            fn plus(self, other: $type) -> $type {
                self + other
            }

            #[inline(always)]
            fn times(self, other: $type) -> $type {
                self * other
            }

            #[inline(always)]
            fn as_integer(self) -> i64 {
                self as i64
            }
        }

        impl Real for $type {
            #[inline(always)]
            fn of(value: f64) -> $type {
                value as $type
            }

            #[inline(always)]
            fn double(self) -> f64 {
                f64::from(self)
            }

            #[inline(always)]
            fn minus(self, other: $type) -> $type {
                self - other
            }

            #[inline(always)]
            fn absolute(self) -> $type {
                self.abs()
            }

            #[inline(always)]
            fn power(self, exponent: f64) -> $type {
                self.powf(exponent as $type)
            }

            #[inline(always)]
            fn squared_plus<const FMA: bool>(self, other: $type) -> $type {
                simd::mul_add::<FMA, _>(self, self, other)
            }

            #[inline(always)]
            fn exp_of_nonpositive<const FMA: bool>(self) -> $type {
                let $x = self;
                $exp
            }
        }
    )*};
}

reals! {
    f32: |x| exp_of_nonpositive::<FMA>(x);
    f64: |x| x.exp();
}

/// As [`by_dtype`](crate::by_dtype) for the floating-point dtypes; another one, which the caller has refused, is taken as
/// `f32`.
macro_rules! by_float {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F64 => {
                type $type = f64;
                $body
            }
            $crate::DType::Bf16 => {
                type $type = $crate::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $type = $crate::f16;
                $body
            }
            _ => {
                type $type = f32;
                $body
            }
        }
    };
}
pub(super) use by_float;
