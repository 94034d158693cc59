//! What the integers of Rust do not have under one name.

/// An integer of any width.
pub(super) trait Int: Sized {
    /// Magnitude; that of the smallest signed number wraps.
    fn magnitude(self) -> Self;
    /// -1, 0 or 1.
    fn sign(self) -> Self;
    /// Quotient, towards minus infinity; 0 for a divisor of 0, which callers refuse before.
    fn floor_div(self, divisor: Self) -> Self;
    /// Remainder with the sign of the divisor.
    fn floor_rem(self, divisor: Self) -> Self;
    /// Remainder with its own sign.
    fn cut_rem(self, divisor: Self) -> Self;
    /// Power, wrapping; for a negative exponent the exact value cut to an integer.
    fn power(self, exponent: Self) -> Self;
}

/// By squaring, for an exponent that is not negative.
macro_rules! power {
    ($base:expr, $exponent:expr) => {{
        let (mut base, mut exponent, mut result) = ($base, $exponent, 1);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = base.wrapping_mul(result);
            }
            base = base.wrapping_mul(base);
            exponent >>= 1;
        }
        result
    }};
}

macro_rules! signed {
    ($($type:ty),*) => {$(
        impl Int for $type {
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.wrapping_abs()
            }
            #[inline(always)]
            fn sign(self) -> Self {
                self.signum()
            }
            #[inline(always)]
            fn floor_div(self, divisor: Self) -> Self {
                if divisor == 0 {
                    return 0;
                }
                let down = self.wrapping_rem(divisor) != 0 && (self < 0) != (divisor < 0);
                self.wrapping_div(divisor) - <$type>::from(down)
            }
            #[inline(always)]
            fn floor_rem(self, divisor: Self) -> Self {
                let rem = self.cut_rem(divisor);
                if rem != 0 && (rem < 0) != (divisor < 0) { rem + divisor } else { rem }
            }
            #[inline(always)]
            fn cut_rem(self, divisor: Self) -> Self {
                if divisor == 0 { 0 } else { self.wrapping_rem(divisor) }
            }
            #[inline(always)]
            fn power(self, exponent: Self) -> Self {
                match (self, exponent) {
                    (_, 0..) => power!(self, exponent),
                    (1, _) => 1,
                    (-1, _) if exponent % 2 == 0 => 1,
                    (-1, _) => -1,
                    _ => 0,
                }
            }
        }
    )*};
}

signed! { i64, i32 }

impl Int for u8 {
    #[inline(always)]
    fn magnitude(self) -> Self {
        self
    }
    #[inline(always)]
    fn sign(self) -> Self {
        u8::from(self != 0)
    }
    #[inline(always)]
    fn floor_div(self, divisor: Self) -> Self {
        self.checked_div(divisor).unwrap_or(0)
    }
    #[inline(always)]
    fn floor_rem(self, divisor: Self) -> Self {
        self.cut_rem(divisor)
    }
    #[inline(always)]
    fn cut_rem(self, divisor: Self) -> Self {
        self.checked_rem(divisor).unwrap_or(0)
    }
    #[inline(always)]
    fn power(self, exponent: Self) -> Self {
        power!(self, exponent)
    }
}
