//! The error function and its complement.

use super::{
    exp::{exp_in_parts, power_of_two},
    polynomial, wide,
};
use crate::simd::mul_add;

/// The error function.
#[inline(always)]
pub(crate) fn erf<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = polynomial::<FMA, 6, _>(
        z,
        [
            -5.970_269_6e-4,
            4.989_431_7e-3,
            -2.676_435_6e-2,
            1.128_176_7e-1,
            -3.761_249_2e-1,
            1.283_791_5e-1,
        ],
    );
    let near = mul_add::<FMA, _>(p, a, a);
    // 1 - exp(-a q(a)); from 3.93 on that is 1.
    let t = a.clamp(0.0, 3.93);
    let q = polynomial::<FMA, 7, _>(
        t,
        [
            -1.123_125_8e-5,
            3.228_022_5e-4,
            -3.642_449_6e-3,
            2.376_204e-2,
            -1.062_368_5e-1,
            -6.351_513_3e-1,
            -1.286_484_9e-1,
        ],
    );
    let (rest, n) = exp_in_parts::<FMA>(mul_add::<FMA, _>(q, t, -t));
    let far = 1.0 - (rest + 1.0) * power_of_two(n);
    (if a < 0.9277 { near } else { far }).copysign(x)
}

/// The error function to 5 units of the last place, in half the time: for sums with a number near 1. The
/// rational minimax function that Eigen and XLA use.
#[inline(always)]
pub(crate) fn erf_roughly<const FMA: bool>(x: f32) -> f32 {
    // Beyond, the result is 1 in f32.
    let x = x.clamp(-3.832_506_8, 3.832_506_8);
    let z = x * x;
    let p = polynomial::<FMA, 5, _>(
        z,
        [
            2.290_506_6e-4,
            3.408_291e-3,
            5.095_569_5e-2,
            1.852_083_2e-1,
            std::f32::consts::FRAC_2_SQRT_PI,
        ],
    );
    let q = polynomial::<FMA, 7, _>(
        z,
        [
            -1.179_160_3e-7,
            2.354_796_6e-5,
            1.017_962_5e-3,
            1.407_047e-2,
            1.109_850_5e-1,
            4.974_692_5e-1,
            1.0,
        ],
    );
    x * p / q
}

/// One minus the error function, exact in its tail.
#[inline(always)]
pub(crate) fn erfc<const FMA: bool>(x: f32) -> f32 {
    // From 10.06 on the result is zero in f32.
    let a = f64::from(x.abs().clamp(0.0, 10.1));
    // exp(a^2) erfc(a), which is smooth, as a polynomial in a fraction that goes from -1 to 0.49.
    let t = (a - 3.5) / (a + 3.5);
    let scaled = polynomial::<FMA, 10, _>(
        t,
        [
            0.000_416_207_027_523_980_4,
            0.000_251_577_425_951_359_8,
            -0.004_319_831_447_840_372,
            0.016_965_434_973_911_866,
            -0.045_419_744_870_412_29,
            0.094_430_561_896_447_43,
            -0.161_340_076_253_963_04,
            0.233_130_339_522_344_6,
            -0.289_265_002_926_688_55,
            0.155_293_656_268_777_86,
        ],
    );
    let y = scaled * wide::exp2::<FMA>(a * a * -std::f64::consts::LOG2_E);
    (if x < 0.0 { 2.0 - y } else { y }) as f32
}
