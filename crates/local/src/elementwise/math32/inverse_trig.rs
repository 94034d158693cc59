//! Inverse sine, cosine and tangent.

use std::f32::consts::{FRAC_PI_2, PI};

use super::polynomial;
use crate::simd::mul_add;

/// What `FRAC_PI_2` lacks of pi / 2.
const FRAC_PI_2_LOW: f32 = -4.371_139e-8;

/// The inverse sine: NaN beyond 1.
#[inline(always)]
pub(crate) fn asin<const FMA: bool>(x: f32) -> f32 {
    let (y, far) = asin_in_parts::<FMA>(x);
    let magnitude = if far { (FRAC_PI_2 - 2.0 * y) + FRAC_PI_2_LOW } else { y };
    magnitude.copysign(x)
}

/// The inverse cosine: NaN beyond 1.
#[inline(always)]
pub(crate) fn acos<const FMA: bool>(x: f32) -> f32 {
    let (y, far) = asin_in_parts::<FMA>(x);
    let near = (FRAC_PI_2 - y.copysign(x)) + FRAC_PI_2_LOW;
    let far_below = (PI - 2.0 * y) + 2.0 * FRAC_PI_2_LOW;
    let of_far = if x > 0.0 { 2.0 * y } else { far_below };
    if far { of_far } else { near }
}

/// The inverse tangent.
#[inline(always)]
pub(crate) fn atan<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    // Comparisons that a NaN passes through.
    let (top, bottom) = if a > 1.0 { (1.0, a) } else { (a, 1.0) };
    let y = atan_of_fraction::<FMA>(top / bottom);
    let y = if a > 1.0 { (FRAC_PI_2 - y) + FRAC_PI_2_LOW } else { y };
    y.copysign(x)
}

/// The angle of the point (`x`, `y`), from -pi to pi.
#[inline(always)]
pub(crate) fn atan2<const FMA: bool>(y: f32, x: f32) -> f32 {
    let (a, b) = (y.abs(), x.abs());
    let steep = a > b;
    let (top, bottom) = if steep { (b, a) } else { (a, b) };
    // Two zeros or two infinities have no quotient but an angle.
    let of_equals = if bottom == 0.0 { 0.0 } else { 1.0 };
    let quotient = if top == bottom { of_equals } else { top / bottom };
    let angle = atan_of_fraction::<FMA>(quotient);
    let angle = if steep { (FRAC_PI_2 - angle) + FRAC_PI_2_LOW } else { angle };
    // The sign bit, which a zero has too.
    let behind = (x.to_bits() as i32) < 0;
    let angle = if behind { (PI - angle) + 2.0 * FRAC_PI_2_LOW } else { angle };
    angle.copysign(y)
}

/// With `a` the magnitude of `x`: the inverse sine of `a` up to 1/2; beyond, that of the square root of
/// `(1 - a) / 2`, which is half the distance to pi / 2. And which of the two.
#[inline(always)]
fn asin_in_parts<const FMA: bool>(x: f32) -> (f32, bool) {
    let a = x.abs();
    let far = a > 0.5;
    let z = if far { 0.5 * (1.0 - a) } else { a * a };
    let s = if far { z.sqrt() } else { a };
    let p = polynomial::<FMA, 5, _>(
        z,
        [4.215_839_9e-2, 2.418_474_1e-2, 4.546_915_4e-2, 7.495_309_4e-2, 1.666_675_2e-1],
    );
    (mul_add::<FMA, _>(p * z, s, s), far)
}

/// The inverse tangent of a number from 0 to 1.
#[inline(always)]
fn atan_of_fraction<const FMA: bool>(q: f32) -> f32 {
    let z = q * q;
    let p = polynomial::<FMA, 9, _>(
        z,
        [
            -1.803_896_7e-3,
            1.093_998_4e-2,
            -3.119_250_0e-2,
            5.794_593_7e-2,
            -8.401_61e-2,
            1.095_128_5e-1,
            -1.426_404_3e-1,
            1.999_853e-1,
            -3.333_329_9e-1,
        ],
    );
    mul_add::<FMA, _>(p * z, q, q)
}
